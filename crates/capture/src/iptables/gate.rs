//! The switch, for the iptables programs.
//!
//! Every rule that takes a connection over is preceded by a jump to a chain of its table that is empty while
//! connections are captured. Address translation tables may not drop, so a held packet is marked there and
//! dropped where filtering is allowed, before its connection is remembered.

use remora_rules::rule::{Action, Rule};
use remora_rules::switch::State;
use std::fmt::Write;

/// The chain that is asked.
pub(super) const CHAIN: &str = "ISTIO_GATE";

/// "hold", on a packet that is to be dropped.
const HELD: &str = "0x686f6c64";
const ON: &str = "remora-on";

/// Where held packets end, by built-in chain of the table `filter`.
pub(super) const BARRIERS: [(&str, &str); 3] = [
    ("INPUT", "-A INPUT -m mark --mark 0x686f6c64 -j DROP"),
    ("FORWARD", "-A FORWARD -m mark --mark 0x686f6c64 -j DROP"),
    ("OUTPUT", "-A OUTPUT -m mark --mark 0x686f6c64 -j DROP"),
];

/// The jump that precedes a rule, if the rule takes connections over.
pub(super) fn ask(rule: &Rule) -> Option<String> {
    matches!(rule.action, Action::Redirect(_) | Action::Tproxy { .. }).then(|| {
        let text = rule.to_string();
        let head = text.split_once(" -j ").map_or(text.as_str(), |(head, _)| head);
        format!("{head} -j {CHAIN}")
    })
}

/// The rules of the chain, in a table.
pub(super) fn content(table: &str, state: State) -> Vec<String> {
    match (state, table) {
        (State::Closed, _) => Vec::new(),
        (State::On, _) => vec![format!("-A {CHAIN} -m comment --comment {ON}")],
        (State::Hold, "nat") => {
            vec![
                format!("-A {CHAIN} -j MARK --set-mark {HELD}"),
                format!("-A {CHAIN} -j ACCEPT"),
            ]
        }
        (State::Hold, _) => vec![format!("-A {CHAIN} -j DROP")],
        (State::Open, _) => vec![format!("-A {CHAIN} -j ACCEPT")],
    }
}

/// The state of the switch; none if there is no switch.
pub(super) fn state_of(saved: &str) -> Option<State> {
    let has_chain = saved.lines().any(|line| line.starts_with(&format!(":{CHAIN} ")));
    let rules: Vec<&str> = saved
        .lines()
        .filter(|line| line.starts_with(&format!("-A {CHAIN} ")))
        .collect();
    let any = |what: &str| rules.iter().any(|line| line.contains(what));
    let state = match () {
        () if any(" -j MARK ") || any(" -j DROP") => State::Hold,
        () if any(" -j ACCEPT") => State::Open,
        () if any(ON) => State::On,
        () => State::Closed,
    };
    has_chain.then_some(state)
}

/// What to tell `iptables-restore` to flip the switch; none if there is no switch.
pub(super) fn flip(saved: &str, state: State) -> Option<String> {
    state_of(saved)?;
    let mut out = String::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if line.starts_with(&format!(":{CHAIN} ")) {
            // A String cannot fail to be written to. Listing a chain empties it.
            let _ = writeln!(out, "*{table}\n:{CHAIN} - [0:0]");
            for rule in content(table, state) {
                let _ = writeln!(out, "{rule}");
            }
            out.push_str("COMMIT\n");
        }
    }
    Some(out)
}
