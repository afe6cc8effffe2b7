//! Parses rules in the format of `iptables-save`.
//!
//! Only remora's rules are read: its chains (which have Istio's names) and its rules in built-in chains. The switch
//! is left out, because the evaluator models it as a state. If another program changed a rule to something that
//! remora never writes, the result is an error, not a guess.

use super::{gate, text};
use remora_rules::rule::{Action, Chain, Match, OwnerKind, Position, Protocol, Rule, State, Table};
use remora_rules::value::Ports;

/// A rule in remora's chains that remora does not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule {rule:?} of table {table} is none that remora or Istio writes")]
pub struct ForeignRule {
    /// Its table.
    pub table: String,
    /// The rule.
    pub rule: String,
}

/// Remora's rules in the output of `iptables-save`, table by table, chain by chain.
pub(super) fn rules(saved: &str) -> Result<Vec<Rule>, ForeignRule> {
    let mut rules = Vec::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
            continue;
        }
        let Some(known) = Table::ALL.into_iter().find(|t| t.name() == table) else {
            continue;
        };
        if !text::is_own_rule(line) || is_switch(line) {
            continue;
        }
        let foreign = || ForeignRule {
            table: table.to_owned(),
            rule: line.to_owned(),
        };
        rules.push(rule(known, line).ok_or_else(foreign)?);
    }
    Ok(rules)
}

fn is_switch(line: &str) -> bool {
    line.split(' ').any(|word| word == gate::SWITCH_CHAIN)
}

fn rule(table: Table, line: &str) -> Option<Rule> {
    let mut words = line.split(' ');
    let ("-A", Some(name)) = (words.next()?, words.next()) else {
        return None;
    };
    let chain = chain(name)?;
    let mut matches = Vec::new();
    let mut not = false;
    let mut module = "";
    while let Some(word) = words.next() {
        match word {
            "!" => {
                not = true;
                continue;
            }
            "-m" => module = words.next()?,
            "--comment" => _ = words.next()?,
            "-j" => {
                let action = action(words.next()?, &words.collect::<Vec<_>>())?;
                return Some(Rule {
                    table,
                    chain,
                    place: Position::Append,
                    matches,
                    action,
                });
            }
            option => matches.push(condition(option, words.next()?, not, module)?),
        }
        not = false;
    }
    None
}

fn chain(name: &str) -> Option<Chain> {
    Chain::ALL.into_iter().find(|chain| chain.name() == name)
}

fn condition(option: &str, value: &str, not: bool, module: &str) -> Option<Match> {
    let plain = |found: Match| (!not).then_some(found);
    match option {
        "-i" => plain(Match::In(value.parse().ok()?)),
        "-o" => plain(Match::Out(value.parse().ok()?)),
        "-p" => plain(Match::Protocol(protocol(value)?)),
        "-s" => plain(Match::Source(value.parse().ok()?)),
        "-d" => Some(Match::Destination {
            range: value.parse().ok()?,
            not,
        }),
        "--dport" => Some(Match::DestinationPort {
            ports: value.parse::<Ports>().ok()?,
            not,
        }),
        "--dports" if not => {
            let ports = value
                .split(',')
                .map(|port| port.parse().ok())
                .collect::<Option<_>>()?;
            Some(Match::DestinationPortNoneOf(ports))
        }
        "--sport" => plain(Match::SourcePort(value.parse().ok()?)),
        "--uid-owner" => Some(Match::Owner {
            kind: OwnerKind::User,
            owner: value.parse().ok()?,
            not,
        }),
        "--gid-owner" => Some(Match::Owner {
            kind: OwnerKind::Group,
            owner: value.parse().ok()?,
            not,
        }),
        "--ctstate" | "--state" => plain(Match::State(conntrack_state(value)?)),
        "--mark" if module == "connmark" => plain(Match::ConnectionMark(mark(value)?)),
        "--mark" => Some(Match::Mark {
            mark: mark(value)?,
            not,
        }),
        _ => None,
    }
}

fn protocol(name: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .find(|protocol| protocol.name() == name)
}

fn conntrack_state(states: &str) -> Option<State> {
    match states {
        "INVALID" => Some(State::Invalid),
        "RELATED,ESTABLISHED" => Some(State::Established),
        _ => None,
    }
}

/// A mark, in decimal as it is written or in hexadecimal as it is listed; remora writes no mask.
fn mark(text: &str) -> Option<u32> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    (number(mask)? == u32::MAX).then(|| number(value)).flatten()
}

fn action(target: &str, rest: &[&str]) -> Option<Action> {
    let option = |wanted: &[&str]| {
        rest.windows(2)
            .find(|pair| wanted.contains(&pair[0]))
            .map(|pair| pair[1])
    };
    match target {
        "RETURN" => Some(Action::Return),
        "ACCEPT" => Some(Action::Accept),
        "DROP" => Some(Action::Drop),
        "REDIRECT" => Some(Action::Redirect(
            option(&["--to-ports", "--to-port"])?.parse().ok()?,
        )),
        "TPROXY" => {
            let port = option(&["--on-port"])?.parse().ok()?;
            Some(Action::Tproxy {
                port,
                mark: mark(option(&["--tproxy-mark"])?)?,
            })
        }
        "MARK" => Some(Action::SetMark(mark(option(&["--set-xmark", "--set-mark"])?)?)),
        "CONNMARK" if rest.contains(&"--save-mark") => Some(Action::SaveMark),
        "CONNMARK" if rest.contains(&"--restore-mark") => Some(Action::RestoreMark),
        "CT" => Some(Action::Zone(option(&["--zone"])?.parse().ok()?)),
        name => chain(name).map(Action::Jump),
    }
}

#[cfg(test)]
mod tests {
    use super::rules;
    use remora_rules::options::{Environment, HostFacts, Settings, parse_argv};
    use remora_rules::rule::{Position, Rule};
    use remora_rules::{plan, render};

    fn planned(flags: &[&str]) -> Vec<Rule> {
        let given = parse_argv(flags).unwrap();
        let settings = Settings::read(&given, &Environment::new()).unwrap();
        plan(&settings.intent(&HostFacts::default()).0).ipv4
    }

    /// The rendered plan parses to the plan, with inserted rules already in their positions.
    #[test]
    fn printed_rules_read_back() {
        let sets: [&[&str]; 4] = [
            &["-i", "*", "-b", "*"],
            &["-i", "10.0.0.0/8", "-b", "80,81", "-o", "99", "-x", "10.1.0.0/16"],
            &["-i", "*", "-b", "*", "-m", "TPROXY", "--drop-invalid"],
            &["-i", "*", "-b", "*", "--redirect-dns", "--capture-all-dns"],
        ];
        for flags in sets {
            let mut wanted: Vec<Rule> = planned(flags)
                .into_iter()
                .filter(|rule| rule.place == Position::Append)
                .collect();
            let text = render::restore(&wanted).replace("* ", "*");
            wanted.retain(|rule| !rule.chain.is_built_in());
            let mut read = rules(&text).unwrap();
            read.retain(|rule| !rule.chain.is_built_in());
            wanted.sort_by_key(|rule| rule.table);
            assert_eq!(read, wanted, "{flags:?}");
        }
    }

    #[test]
    fn the_switch_and_rules_of_other_programs_are_left_out() {
        let saved = "*nat\n:ISTIO_GATE - [0:0]\n-A OUTPUT -p tcp --dport 1 -j ACCEPT\n-A ISTIO_GATE -j ACCEPT\n\
                     -A ISTIO_REDIRECT -p tcp -j ISTIO_GATE\n-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n\
                     *filter\n-A INPUT -m mark --mark 0x686f6c64 -m comment --comment \"remora:1\" -j DROP\nCOMMIT\n";
        let read = rules(saved).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(
            read[0].to_string(),
            "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001"
        );
    }

    #[test]
    fn rules_that_another_program_changed_are_named() {
        let saved = "*nat\n-A ISTIO_OUTPUT -m time --timestart 10:00 -j RETURN\nCOMMIT\n";
        assert!(rules(saved).unwrap_err().to_string().contains("timestart"));
        for odd in [
            "-A ISTIO_OUTPUT",
            "-A ISTIO_OUTPUT -j",
            "-A ISTIO_OUTPUT -p",
            "-A ISTIO_OUTPUT -m mark --mark 1/2 -j RETURN",
        ] {
            assert!(rules(&format!("*nat\n{odd}\n")).is_err(), "{odd}");
        }
    }
}
