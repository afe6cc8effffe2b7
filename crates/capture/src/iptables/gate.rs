//! The switch, for the iptables programs.
//!
//! Every rule that captures connections is preceded by a jump to a chain of its table that is empty while
//! connections are captured. The nat table may not drop packets, so a held packet is marked there and dropped in the
//! filter table, before its connection tracking entry is confirmed.

use remora_rules::rule::{Action, Rule};
use remora_rules::switch::State;
use std::fmt::Write;

/// The chain that implements the switch.
pub(super) const SWITCH_CHAIN: &str = "ISTIO_GATE";

/// The mark of a packet that the `filter` table drops: "hold" in ASCII.
const HOLD_MARK: &str = "0x686f6c64";
const ON_COMMENT: &str = "remora-on";

/// Built-in chain of the table `filter` and the rule in it that drops held packets.
pub(super) const HOLD_DROP_RULES: [(&str, &str); 3] = [
    ("INPUT", "-A INPUT -m mark --mark 0x686f6c64 -j DROP"),
    ("FORWARD", "-A FORWARD -m mark --mark 0x686f6c64 -j DROP"),
    ("OUTPUT", "-A OUTPUT -m mark --mark 0x686f6c64 -j DROP"),
];

/// The jump to the switch that precedes a rule, if the rule captures connections.
pub(super) fn jump_to_switch(rule: &Rule) -> Option<String> {
    matches!(rule.action, Action::Redirect(_) | Action::Tproxy { .. }).then(|| {
        let text = rule.to_string();
        let head = text.split_once(" -j ").map_or(text.as_str(), |(head, _)| head);
        format!("{head} -j {SWITCH_CHAIN}")
    })
}

/// The rules of the switch's chain in a table.
pub(super) fn switch_rules(table: &str, state: State) -> Vec<String> {
    match (state, table) {
        (State::Closed, _) => Vec::new(),
        (State::On, _) => vec![format!("-A {SWITCH_CHAIN} -m comment --comment {ON_COMMENT}")],
        (State::Hold, "nat") => {
            vec![
                format!("-A {SWITCH_CHAIN} -j MARK --set-mark {HOLD_MARK}"),
                format!("-A {SWITCH_CHAIN} -j ACCEPT"),
            ]
        }
        (State::Hold, _) => vec![format!("-A {SWITCH_CHAIN} -j DROP")],
        (State::Open, _) => vec![format!("-A {SWITCH_CHAIN} -j ACCEPT")],
    }
}

/// The state of the switch; none if there is no switch.
pub(super) fn state_of(saved: &str) -> Option<State> {
    let has_chain = saved
        .lines()
        .any(|line| line.starts_with(&format!(":{SWITCH_CHAIN} ")));
    let rules: Vec<&str> = saved
        .lines()
        .filter(|line| line.starts_with(&format!("-A {SWITCH_CHAIN} ")))
        .collect();
    let any = |what: &str| rules.iter().any(|line| line.contains(what));
    let state = match () {
        () if any(" -j MARK ") || any(" -j DROP") => State::Hold,
        () if any(" -j ACCEPT") => State::Open,
        () if any(ON_COMMENT) => State::On,
        () => State::Closed,
    };
    has_chain.then_some(state)
}

/// The input for `iptables-restore` that flips the switch; `None` if there is no switch.
pub(super) fn flip_input(saved: &str, state: State) -> Option<String> {
    state_of(saved)?;
    let mut out = String::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if line.starts_with(&format!(":{SWITCH_CHAIN} ")) {
            // A String cannot fail to be written to. Listing a chain empties it.
            let _ = writeln!(out, "*{table}\n:{SWITCH_CHAIN} - [0:0]");
            for rule in switch_rules(table, state) {
                let _ = writeln!(out, "{rule}");
            }
            out.push_str("COMMIT\n");
        }
    }
    Some(out)
}
