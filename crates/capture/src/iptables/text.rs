//! What to tell `iptables-restore`, given what `iptables-save` says.

use super::gate;
use remora_rules::render;
use remora_rules::rule::{Chain, Rule, Table};
use remora_rules::switch::State;
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

/// A listed rule that is in a chain of ours, or that we (or Istio) put into a built-in one.
pub(super) fn is_of_us(line: &str) -> bool {
    line.strip_prefix("-A ")
        .is_some_and(|rest| rest.starts_with(OURS) || is_ours(line))
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

/// One table as it should be.
struct Wanted {
    name: &'static str,
    chains: Vec<&'static str>,
    lines: Vec<Line>,
}

/// One rule as it should be.
struct Line {
    chain: &'static str,
    text: String,
}

impl Line {
    fn is_in(&self, wanted: &Wanted) -> bool {
        wanted.chains.contains(&self.chain)
    }
}

/// The tables as they should be: the rules, and the switch if there is to be one.
fn wanted(rules: &[Rule], switch: Option<State>) -> Vec<Wanted> {
    let mut tables = Vec::new();
    for table in Table::ALL {
        let own: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
        if own.is_empty() {
            continue;
        }
        let mut wanted = Wanted {
            name: table.name(),
            chains: render::new_chains(&own).into_iter().map(Chain::name).collect(),
            lines: Vec::with_capacity(own.len() + 4),
        };
        for rule in own {
            if switch.is_some()
                && let Some(text) = gate::ask(rule)
            {
                wanted.lines.push(Line {
                    chain: rule.chain.name(),
                    text,
                });
            }
            wanted.lines.push(Line {
                chain: rule.chain.name(),
                text: rule.to_string(),
            });
        }
        if let Some(state) = switch {
            wanted.chains.push(gate::CHAIN);
            let lines = gate::content(wanted.name, state).into_iter();
            wanted.lines.extend(lines.map(|text| Line {
                chain: gate::CHAIN,
                text,
            }));
        }
        tables.push(wanted);
    }
    if switch.is_some() && !tables.is_empty() {
        let lines = gate::BARRIERS.iter().map(|(chain, text)| Line {
            chain,
            text: (*text).to_owned(),
        });
        tables.push(Wanted {
            name: "filter",
            chains: Vec::new(),
            lines: lines.collect(),
        });
    }
    tables
}

/// The comment on our rules in built-in chains: a number that changes when the rules do, and not when the
/// switch is flipped.
fn mark(tables: &[Wanted]) -> String {
    let lines = tables
        .iter()
        .flat_map(|table| &table.lines)
        .filter(|line| line.chain != gate::CHAIN);
    let hash = lines
        .flat_map(|line| line.text.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{COMMENT}{hash:016x}")
}

/// Whether anything of ours is there.
pub(super) fn has_remains(saved: &str) -> bool {
    !find(saved).is_empty()
}

/// Whether exactly these rules are there: the same fingerprint on all our rules in built-in chains, the same
/// chains with the same number of rules, and the switch in the same state.
pub(super) fn is_installed(saved: &str, rules: &[Rule], switch: Option<State>) -> bool {
    let found = find(saved);
    let tables = wanted(rules, switch);
    let mark = mark(&tables);
    found.len() == tables.len()
        && gate::state_of(saved) == switch
        && tables.iter().all(|table| {
            let Some(found) = found.get(table.name) else {
                return false;
            };
            let built_in = table.lines.iter().filter(|line| !line.is_in(table)).count();
            let count = |chain: &&str| table.lines.iter().filter(|line| line.chain == *chain).count();
            found.rules.len() == built_in
                && found.rules.iter().all(|line| line.contains(&mark))
                && found.chains.len() == table.chains.len()
                && table
                    .chains
                    .iter()
                    .all(|chain| found.chains.get(chain) == Some(&count(chain)))
        })
}

/// Replaces everything of ours by these rules. Other rules are neither flushed nor moved.
pub(super) fn replacement(saved: &str, rules: &[Rule], switch: Option<State>) -> String {
    let found = find(saved);
    let tables = wanted(rules, switch);
    let mark = mark(&tables);
    let mut out = String::new();
    for name in ["filter", "mangle", "nat", "raw"] {
        let new = tables.iter().find(|table| table.name == name);
        let old = found.get(name);
        if new.is_none() && old.is_none() {
            continue;
        }
        // A String cannot fail to be written to.
        let _ = writeln!(out, "*{name}");
        let chains = new.map_or(&[][..], |table| &table.chains);
        // With --noflush a chain that is listed is made, or emptied if it is there.
        for chain in chains {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        remove(&mut out, old, chains);
        for line in new.into_iter().flat_map(|table| &table.lines) {
            add(&mut out, line, chains.contains(&line.chain), &mark);
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// Takes out our rules of built-in chains, and our chains that are not wanted any more.
fn remove(out: &mut String, old: Option<&Found<'_>>, kept: &[&str]) {
    let Some(old) = old else { return };
    for line in &old.rules {
        let _ = writeln!(out, "-D{}", line.trim_start_matches("-A"));
    }
    let obsolete = || old.chains.keys().filter(|name| !kept.contains(name));
    for name in obsolete() {
        let _ = writeln!(out, "-F {name}");
    }
    for name in obsolete() {
        let _ = writeln!(out, "-X {name}");
    }
}

fn add(out: &mut String, line: &Line, in_our_chain: bool, mark: &str) {
    let text = &line.text;
    let _ = match text.split_once(" -j ") {
        // The target is last, and there is exactly one.
        Some((head, target)) if !in_our_chain => {
            writeln!(out, "{head} -m comment --comment {mark} -j {target}")
        }
        _ => writeln!(out, "{text}"),
    };
}

#[cfg(test)]
mod tests;
