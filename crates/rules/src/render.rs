//! Plans as text for `iptables-restore` and as `iptables` commands.
//!
//! The text is the one Istio feeds to `iptables-restore --noflush`: tables by name, new chains in order of
//! first use, then the rules in build order. It is data for a program's standard input and never passes a
//! shell.

use crate::rule::{Action, Chain, Match, OwnerKind, Position, Rule, State, Table};
use std::fmt::{self, Write};

/// The text for `iptables-restore --noflush` (or `ip6tables-restore`).
pub fn restore(rules: &[Rule]) -> String {
    let mut out = String::with_capacity(rules.len() * 80);
    for table in Table::ALL {
        let own: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
        if own.is_empty() {
            continue;
        }
        // A String cannot fail to be written to.
        let _ = writeln!(out, "* {}", table.name());
        for chain in new_chains(&own) {
            let _ = writeln!(out, "-N {}", chain.name());
        }
        for rule in own {
            let _ = writeln!(out, "{rule}");
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// One command per chain and rule, as the classic `--restore-format=false` prints them.
pub fn commands(program: &str, rules: &[Rule]) -> String {
    let mut out = String::new();
    for table in Table::ALL {
        let own: Vec<&Rule> = rules.iter().filter(|rule| rule.table == table).collect();
        for chain in new_chains(&own) {
            let _ = writeln!(out, "{program} -t {} -N {}", table.name(), chain.name());
        }
    }
    for rule in rules {
        let _ = writeln!(out, "{program} -t {} {rule}", rule.table.name());
    }
    out
}

/// Chains to create: owners of rules in order of first use, then chains that are only jumped to.
pub fn new_chains(rules: &[&Rule]) -> Vec<Chain> {
    let owners = rules.iter().map(|rule| rule.chain);
    let targets = rules.iter().filter_map(|rule| match rule.action {
        Action::Jump(chain) => Some(chain),
        _ => None,
    });
    let mut chains = Vec::new();
    for chain in owners.chain(targets) {
        if !chain.is_built_in() && !chains.contains(&chain) {
            chains.push(chain);
        }
    }
    chains
}

/// Writes one rule as `-A CHAIN matches -j TARGET`.
pub(crate) fn rule(rule: &Rule, out: &mut dyn Write) -> fmt::Result {
    match rule.place {
        Position::Append => write!(out, "-A {}", rule.chain.name())?,
        Position::Insert(at) => write!(out, "-I {} {at}", rule.chain.name())?,
    }
    body(rule, out)
}

/// Writes what comes after the chain: matches and target.
pub(crate) fn body(rule: &Rule, out: &mut dyn Write) -> fmt::Result {
    for item in &rule.matches {
        one_match(item, out)?;
    }
    target(rule, out)
}

fn one_match(item: &Match, out: &mut dyn Write) -> fmt::Result {
    let bang = |not: bool| if not { " !" } else { "" };
    match item {
        Match::In(interface) => write!(out, " -i {}", interface.as_str()),
        Match::Out(interface) => write!(out, " -o {}", interface.as_str()),
        Match::Protocol(protocol) => write!(out, " -p {}", protocol.name()),
        Match::Source(range) => write!(out, " -s {range}"),
        Match::Destination { range, not } => write!(out, "{} -d {range}", bang(*not)),
        Match::DestinationPort { ports, not } => write!(out, "{} --dport {ports}", bang(*not)),
        Match::DestinationPortNoneOf(ports) => {
            let list: Vec<String> = ports.iter().map(u16::to_string).collect();
            write!(out, " -m multiport ! --dports {}", list.join(","))
        }
        Match::SourcePort(port) => write!(out, " --sport {port}"),
        Match::Owner { kind, owner, not } => {
            let option = match kind {
                OwnerKind::User => "--uid-owner",
                OwnerKind::Group => "--gid-owner",
            };
            write!(out, " -m owner{} {option} {owner}", bang(*not))
        }
        Match::State(State::Invalid) => write!(out, " -m conntrack --ctstate INVALID"),
        Match::State(State::Established) => write!(out, " -m conntrack --ctstate RELATED,ESTABLISHED"),
        Match::Mark { mark, not } => write!(out, " -m mark{} --mark {mark}", bang(*not)),
        Match::ConnectionMark(mark) => write!(out, " -m connmark --mark {mark}"),
    }
}

fn target(rule: &Rule, out: &mut dyn Write) -> fmt::Result {
    match rule.action {
        Action::Return => write!(out, " -j RETURN"),
        Action::Accept => write!(out, " -j ACCEPT"),
        Action::Drop => write!(out, " -j DROP"),
        Action::Jump(chain) => write!(out, " -j {}", chain.name()),
        Action::Redirect(port) => {
            // istio: the singular in the rule for UDP is a slip there, and iptables takes both.
            let option = match rule.protocol() {
                Some(crate::rule::Protocol::Udp) => "--to-port",
                _ => "--to-ports",
            };
            write!(out, " -j REDIRECT {option} {port}")
        }
        Action::Tproxy { port, mark } => {
            write!(out, " -j TPROXY --tproxy-mark {mark}/0xffffffff --on-port {port}")
        }
        Action::SetMark(mark) => write!(out, " -j MARK --set-mark {mark}"),
        Action::SaveMark => write!(out, " -j CONNMARK --save-mark"),
        Action::RestoreMark => write!(out, " -j CONNMARK --restore-mark"),
        Action::Zone(zone) => write!(out, " -j CT --zone {zone}"),
    }
}
