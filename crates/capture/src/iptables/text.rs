//! What to tell `iptables-restore`, given what `iptables-save` says.

use crate::render;
use crate::rule::{Rule, Table};
use std::collections::BTreeMap;
use std::fmt::Write;

const COMMENT: &str = "remora:";
const OURS: &str = "ISTIO_";

/// What is ours in one table of `iptables-save`'s output.
#[derive(Debug, Default)]
struct Found<'a> {
    /// Our chains, with their number of rules.
    chains: BTreeMap<&'a str, usize>,
    /// Our rules in built-in chains, as listed.
    rules: Vec<&'a str>,
}

fn find(saved: &str) -> BTreeMap<&str, Found<'_>> {
    let mut tables: BTreeMap<&str, Found<'_>> = BTreeMap::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if chain.starts_with(OURS) {
                tables.entry(table).or_default().chains.entry(chain).or_default();
            }
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let chain = rest.split(' ').next().unwrap_or_default();
            let found = tables.entry(table).or_default();
            if chain.starts_with(OURS) {
                *found.chains.entry(chain).or_default() += 1;
            } else if is_ours(line) {
                found.rules.push(line);
            }
        }
    }
    tables.retain(|_, found| !found.chains.is_empty() || !found.rules.is_empty());
    tables
}

/// A rule of a built-in chain that we, or Istio, put there.
fn is_ours(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let jumps = words
        .windows(2)
        .any(|pair| pair[0] == "-j" && pair[1].starts_with(OURS));
    let marked = words
        .windows(2)
        .any(|pair| pair[0] == "--comment" && pair[1].trim_matches('"').starts_with(COMMENT));
    jumps || marked
}

/// The comment on our rules in built-in chains: a number that changes when the rules do.
fn mark(rules: &[Rule]) -> String {
    let text = render::iptables::restore(rules);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{COMMENT}{hash:016x}")
}

/// Whether anything of ours is there.
pub(super) fn has_remains(saved: &str) -> bool {
    !find(saved).is_empty()
}

/// Whether exactly these rules are there: the same fingerprint on all our rules in built-in chains, and the
/// same chains with the same number of rules.
pub(super) fn is_installed(saved: &str, rules: &[Rule]) -> bool {
    let found = find(saved);
    let mark = mark(rules);
    let planned: Vec<(Table, Vec<&Rule>)> = tables(rules);
    if found.len() != planned.len() {
        return false;
    }
    planned.into_iter().all(|(table, own)| {
        let Some(found) = found.get(table.name()) else {
            return false;
        };
        let built_in = own.iter().filter(|rule| rule.chain.is_built_in()).count();
        let chains = render::iptables::new_chains(&own);
        found.rules.len() == built_in
            && found.rules.iter().all(|line| line.contains(&mark))
            && found.chains.len() == chains.len()
            && chains.iter().all(|chain| {
                let count = own.iter().filter(|rule| rule.chain == *chain).count();
                found.chains.get(chain.name()) == Some(&count)
            })
    })
}

fn tables(rules: &[Rule]) -> Vec<(Table, Vec<&Rule>)> {
    let own = |table| {
        rules
            .iter()
            .filter(|rule| rule.table == table)
            .collect::<Vec<_>>()
    };
    Table::ALL
        .into_iter()
        .map(|table| (table, own(table)))
        .filter(|(_, own)| !own.is_empty())
        .collect()
}

/// Replaces everything of ours by these rules. Other rules are neither flushed nor moved.
pub(super) fn replacement(saved: &str, rules: &[Rule]) -> String {
    let found = find(saved);
    let mark = mark(rules);
    let mut out = String::new();
    for table in Table::ALL {
        let own: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
        let old = found.get(table.name());
        if own.is_empty() && old.is_none() {
            continue;
        }
        // A String cannot fail to be written to.
        let _ = writeln!(out, "*{}", table.name());
        let new_chains = render::iptables::new_chains(&own);
        // With --noflush a chain that is listed is made, or emptied if it is there.
        for chain in &new_chains {
            let _ = writeln!(out, ":{} - [0:0]", chain.name());
        }
        if let Some(old) = old {
            let obsolete = || {
                old.chains
                    .keys()
                    .filter(|name| new_chains.iter().all(|chain| chain.name() != **name))
            };
            for line in &old.rules {
                let _ = writeln!(out, "-D{}", line.trim_start_matches("-A"));
            }
            for name in obsolete() {
                let _ = writeln!(out, "-F {name}");
            }
            for name in obsolete() {
                let _ = writeln!(out, "-X {name}");
            }
        }
        for rule in own {
            if rule.chain.is_built_in() {
                let text = rule.to_string();
                // The target is last, and there is exactly one.
                let (head, target) = text.split_once(" -j ").unwrap_or((&text, "RETURN"));
                let _ = writeln!(out, "{head} -m comment --comment {mark} -j {target}");
            } else {
                let _ = writeln!(out, "{rule}");
            }
        }
        out.push_str("COMMIT\n");
    }
    out
}

#[cfg(test)]
mod tests;
