//! Rules as `iptables-save` lists them, back as data.
//!
//! Only what is ours is read: our chains (Istio's, by name) and our rules in built-in chains. The switch is left
//! out, because the evaluator knows it as a state. A rule of ours that somebody changed beyond what our rules can
//! say is an error, not something to be guessed at.

use super::{gate, text};
use remora_rules::rule::{Action, Chain, Match, OwnerKind, Place, Protocol, Rule, State, Table};
use remora_rules::value::Ports;

/// A listed rule that none of ours can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule {rule:?} of table {table} is none that remora or Istio writes")]
pub struct Foreign {
    /// Its table.
    pub table: String,
    /// The rule.
    pub rule: String,
}

/// Our rules in what `iptables-save` printed, table by table, chain by chain.
pub(super) fn rules(saved: &str) -> Result<Vec<Rule>, Foreign> {
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
        if !text::is_of_us(line) || is_switch(line) {
            continue;
        }
        let foreign = || Foreign {
            table: table.to_owned(),
            rule: line.to_owned(),
        };
        rules.push(rule(known, line).ok_or_else(foreign)?);
    }
    Ok(rules)
}

fn is_switch(line: &str) -> bool {
    line.split(' ').any(|word| word == gate::CHAIN)
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
                    place: Place::Append,
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
        "--ctstate" | "--state" => plain(Match::State(tracked(value)?)),
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

fn tracked(states: &str) -> Option<State> {
    match states {
        "INVALID" => Some(State::Invalid),
        "RELATED,ESTABLISHED" => Some(State::Established),
        _ => None,
    }
}

/// A mark, in decimal as it is written or in hexadecimal as it is listed; only whole ones are ours.
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
    use remora_rules::rule::{Place, Rule};
    use remora_rules::{plan, render};

    fn planned(flags: &[&str]) -> Vec<Rule> {
        let given = parse_argv(flags).unwrap();
        let settings = Settings::read(&given, &Environment::new()).unwrap();
        plan(&settings.intent(&HostFacts::default()).0).ipv4
    }

    /// What we print, with rules that are put in front already in their places, reads as what we planned.
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
                .filter(|rule| rule.place == Place::Append)
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
    fn the_switch_and_other_peoples_rules_are_left_out() {
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
    fn rules_somebody_changed_are_named() {
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
