//! The input for `iptables-restore`, given the output of `iptables-save`.

use super::gate;
use remora_rules::render;
use remora_rules::rule::{Chain, Rule, Table};
use remora_rules::switch::State;
use std::collections::BTreeMap;
use std::fmt::Write;

const COMMENT_PREFIX: &str = "remora:";
const CHAIN_PREFIX: &str = "ISTIO_";

/// Remora's part of one table in the output of `iptables-save`.
#[derive(Debug, Default)]
struct OwnRules<'a> {
    /// Remora's chains, with their number of rules.
    chains: BTreeMap<&'a str, usize>,
    /// Remora's rules in built-in chains, as listed.
    rules: Vec<&'a str>,
}

fn find_own_rules(saved: &str) -> BTreeMap<&str, OwnRules<'_>> {
    let mut tables: BTreeMap<&str, OwnRules<'_>> = BTreeMap::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if chain.starts_with(CHAIN_PREFIX) {
                tables.entry(table).or_default().chains.entry(chain).or_default();
            }
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let chain = rest.split(' ').next().unwrap_or_default();
            let found = tables.entry(table).or_default();
            if chain.starts_with(CHAIN_PREFIX) {
                *found.chains.entry(chain).or_default() += 1;
            } else if is_own_built_in_rule(line) {
                found.rules.push(line);
            }
        }
    }
    tables.retain(|_, found| !found.chains.is_empty() || !found.rules.is_empty());
    tables
}

/// Whether a listed rule is in one of remora's chains, or is a rule of remora or Istio in a built-in chain.
pub(super) fn is_own_rule(line: &str) -> bool {
    line.strip_prefix("-A ")
        .is_some_and(|rest| rest.starts_with(CHAIN_PREFIX) || is_own_built_in_rule(line))
}

/// Whether a rule of a built-in chain was added by remora or Istio.
fn is_own_built_in_rule(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let jumps = words
        .windows(2)
        .any(|pair| pair[0] == "-j" && pair[1].starts_with(CHAIN_PREFIX));
    let marked = words
        .windows(2)
        .any(|pair| pair[0] == "--comment" && pair[1].trim_matches('"').starts_with(COMMENT_PREFIX));
    jumps || marked
}

/// The desired content of one table.
struct DesiredTable {
    name: &'static str,
    chains: Vec<&'static str>,
    lines: Vec<DesiredRule>,
}

/// One desired rule.
struct DesiredRule {
    chain: &'static str,
    text: String,
}

impl DesiredRule {
    fn is_in(&self, table: &DesiredTable) -> bool {
        table.chains.contains(&self.chain)
    }
}

/// The desired tables: the rules, and the switch if there is to be one.
fn desired_tables(rules: &[Rule], switch: Option<State>) -> Vec<DesiredTable> {
    let mut tables = Vec::new();
    for table in Table::ALL {
        let own: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
        if own.is_empty() {
            continue;
        }
        let mut desired = DesiredTable {
            name: table.name(),
            chains: render::new_chains(&own).into_iter().map(Chain::name).collect(),
            lines: Vec::with_capacity(own.len() + 4),
        };
        for rule in own {
            if switch.is_some()
                && let Some(text) = gate::jump_to_switch(rule)
            {
                desired.lines.push(DesiredRule {
                    chain: rule.chain.name(),
                    text,
                });
            }
            desired.lines.push(DesiredRule {
                chain: rule.chain.name(),
                text: rule.to_string(),
            });
        }
        if let Some(state) = switch {
            desired.chains.push(gate::SWITCH_CHAIN);
            let lines = gate::switch_rules(desired.name, state).into_iter();
            desired.lines.extend(lines.map(|text| DesiredRule {
                chain: gate::SWITCH_CHAIN,
                text,
            }));
        }
        tables.push(desired);
    }
    if switch.is_some() && !tables.is_empty() {
        let lines = gate::HOLD_DROP_RULES.iter().map(|(chain, text)| DesiredRule {
            chain,
            text: (*text).to_owned(),
        });
        tables.push(DesiredTable {
            name: "filter",
            chains: Vec::new(),
            lines: lines.collect(),
        });
    }
    tables
}

/// The comment on remora's rules in built-in chains: a fingerprint that changes with the rules, but not with the
/// state of the switch.
fn fingerprint_comment(tables: &[DesiredTable]) -> String {
    let lines = tables
        .iter()
        .flat_map(|table| &table.lines)
        .filter(|line| line.chain != gate::SWITCH_CHAIN);
    let hash = lines
        .flat_map(|line| line.text.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{COMMENT_PREFIX}{hash:016x}")
}

/// Whether any chain or rule of remora is installed.
pub(super) fn has_own_rules(saved: &str) -> bool {
    !find_own_rules(saved).is_empty()
}

/// Whether exactly these rules are installed: the same fingerprint on all of remora's rules in built-in chains, the
/// same chains with the same number of rules, and the switch in the same state.
pub(super) fn is_installed(saved: &str, rules: &[Rule], switch: Option<State>) -> bool {
    let found = find_own_rules(saved);
    let tables = desired_tables(rules, switch);
    let comment = fingerprint_comment(&tables);
    found.len() == tables.len()
        && gate::state_of(saved) == switch
        && tables.iter().all(|table| {
            let Some(found) = found.get(table.name) else {
                return false;
            };
            let built_in = table.lines.iter().filter(|line| !line.is_in(table)).count();
            let count = |chain: &&str| table.lines.iter().filter(|line| line.chain == *chain).count();
            found.rules.len() == built_in
                && found.rules.iter().all(|line| line.contains(&comment))
                && found.chains.len() == table.chains.len()
                && table
                    .chains
                    .iter()
                    .all(|chain| found.chains.get(chain) == Some(&count(chain)))
        })
}

/// Replaces remora's chains and rules by these rules. Other programs' rules are neither flushed nor moved.
pub(super) fn replacement(saved: &str, rules: &[Rule], switch: Option<State>) -> String {
    let found = find_own_rules(saved);
    let tables = desired_tables(rules, switch);
    let comment = fingerprint_comment(&tables);
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
        // With --noflush, listing a chain creates it, or empties it if it exists.
        for chain in chains {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        remove_own_rules(&mut out, old, chains);
        for line in new.into_iter().flat_map(|table| &table.lines) {
            add_rule(&mut out, line, chains.contains(&line.chain), &comment);
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// Removes remora's rules from built-in chains, and remora's chains that are no longer needed.
fn remove_own_rules(out: &mut String, old: Option<&OwnRules<'_>>, kept: &[&str]) {
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

fn add_rule(out: &mut String, line: &DesiredRule, in_our_chain: bool, comment: &str) {
    let text = &line.text;
    let _ = match text.split_once(" -j ") {
        // The target is last, and there is exactly one.
        Some((head, target)) if !in_our_chain => {
            writeln!(out, "{head} -m comment --comment {comment} -j {target}")
        }
        _ => writeln!(out, "{text}"),
    };
}

#[cfg(test)]
mod tests;
