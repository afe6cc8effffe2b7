//! Rulesets as a script for `nft -f`.
//!
//! Like the netlink transaction, the script replaces the table atomically. Interface names are quoted and contain no
//! quotes (see [`remora_rules::value::Interface`]); everything else is numbers and constant words.

use crate::ruleset::{GATE, NftAction, NftMatch, NftRule, Ruleset, TABLE};
use remora_rules::rule::{Family, Match, OwnerKind, Protocol, State};
use remora_rules::switch;
use remora_rules::value::Interface;
use std::fmt::Write;

/// The whole script: replace the table, with the switch in this state.
pub fn script(ruleset: &Ruleset, state: switch::State) -> String {
    let comment = ruleset.comment();
    let body = table(ruleset, state, Some(&comment));
    format!("add table inet {TABLE}\ndelete table inet {TABLE}\n{body}")
}

/// The table alone.
pub fn table(ruleset: &Ruleset, state: switch::State, comment: Option<&str>) -> String {
    let mut out = String::with_capacity(ruleset.chains.len() * 256);
    // A String cannot fail to be written to.
    let _ = writeln!(out, "table inet {TABLE} {{");
    if let Some(comment) = comment {
        let _ = writeln!(out, "\tcomment \"{comment}\"");
    }
    let _ = writeln!(out, "\tmap {GATE} {{\n\t\ttype inet_proto : verdict");
    let verdict = match state {
        switch::State::Open => Some("accept"),
        switch::State::Hold => Some("drop"),
        switch::State::On => Some("continue"),
        switch::State::Closed => None,
    };
    if let Some(verdict) = verdict {
        let _ = writeln!(out, "\t\telements = {{ tcp : {verdict}, udp : {verdict} }}");
    }
    out.push_str("\t}\n");
    for chain in &ruleset.chains {
        let _ = writeln!(out, "\tchain {} {{", chain.name);
        if let Some(hook) = chain.hook {
            let point = if hook.number == 3 { "output" } else { "prerouting" };
            let _ = writeln!(
                out,
                "\t\ttype {} hook {point} priority {}; policy accept;",
                hook.kind, hook.priority
            );
        }
        for rule in &chain.rules {
            let _ = writeln!(out, "\t\t{}", self::rule(rule));
        }
        out.push_str("\t}\n");
    }
    out.push_str("}\n");
    out
}

/// One rule.
pub fn rule(rule: &NftRule) -> String {
    let mut words: Vec<String> = Vec::with_capacity(rule.tests.len() + 1);
    let mut protocol = "th";
    for test in &rule.tests {
        match test {
            NftMatch::Family { family, not } => {
                let name = if *family == Family::V4 { "ipv4" } else { "ipv6" };
                words.push(format!("meta nfproto {}{name}", unless(*not)));
            }
            NftMatch::Plan(item) => {
                if let Match::Protocol(known) = item {
                    protocol = known.name();
                }
                words.push(one_match(item, protocol));
            }
            NftMatch::NotFirst => words.push("tcp flags & (fin | syn | rst | ack) != syn".into()),
        }
    }
    words.push(action(&rule.action));
    words.join(" ")
}

const fn unless(not: bool) -> &'static str {
    if not { "!= " } else { "" }
}

fn one_match(item: &Match, protocol: &str) -> String {
    match item {
        Match::In(interface) => format!("iifname {}", quoted(interface)),
        Match::Out(interface) => format!("oifname {}", quoted(interface)),
        Match::Protocol(Protocol::Tcp) => "meta l4proto tcp".into(),
        Match::Protocol(Protocol::Udp) => "meta l4proto udp".into(),
        Match::Source(range) => format!("{} saddr {range}", if range.is_ipv4() { "ip" } else { "ip6" }),
        Match::Destination { range, not } => {
            format!(
                "{} daddr {}{range}",
                if range.is_ipv4() { "ip" } else { "ip6" },
                unless(*not)
            )
        }
        Match::DestinationPort { ports, not } if ports.first == ports.last => {
            format!("{protocol} dport {}{}", unless(*not), ports.first)
        }
        Match::DestinationPort { ports, not } => {
            format!("{protocol} dport {}{}-{}", unless(*not), ports.first, ports.last)
        }
        Match::DestinationPortNoneOf(ports) => {
            let tests: Vec<String> = ports
                .iter()
                .map(|port| format!("{protocol} dport != {port}"))
                .collect();
            tests.join(" ")
        }
        Match::SourcePort(port) => format!("{protocol} sport {port}"),
        Match::Owner { kind, owner, not } => {
            let key = match kind {
                OwnerKind::User => "skuid",
                OwnerKind::Group => "skgid",
            };
            format!("meta {key} {}{owner}", unless(*not))
        }
        Match::State(State::Invalid) => "ct state invalid".into(),
        Match::State(State::Established) => "ct state related,established".into(),
        Match::Mark { mark, not } => format!("meta mark {}{mark}", unless(*not)),
        Match::ConnectionMark(mark) => format!("ct mark {mark}"),
    }
}

fn quoted(interface: &Interface) -> String {
    match interface.prefix() {
        Some(prefix) => format!("\"{prefix}*\""),
        None => format!("\"{}\"", interface.as_str()),
    }
}

fn action(action: &NftAction) -> String {
    match action {
        NftAction::Accept => "accept".into(),
        NftAction::Drop => "drop".into(),
        NftAction::Return => "return".into(),
        NftAction::Jump(chain) => format!("jump {chain}"),
        NftAction::AskSwitch => format!("meta l4proto vmap @{GATE}"),
        NftAction::Redirect(port) => format!("counter redirect to :{port}"),
        NftAction::Tproxy { port, mark } => format!("tproxy to :{port} meta mark set {mark} counter accept"),
        NftAction::SetMark(mark) => format!("meta mark set {mark}"),
        NftAction::SaveMark => "ct mark set meta mark".into(),
        NftAction::RestoreMark => "meta mark set ct mark".into(),
        NftAction::Zone(zone) => format!("ct zone set {zone}"),
    }
}
