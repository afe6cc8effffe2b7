use super::*;
use remora_rules::options::{HostFacts, Settings, parse_argv};

fn rules(flags: &[&str]) -> Vec<Rule> {
    let given = parse_argv(flags).unwrap();
    let settings = Settings::read(&given, &BTreeMap::new()).unwrap();
    remora_rules::plan(&settings.intent(&HostFacts::default()).0).ipv4
}

const THEIRS: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [1:2]\n:THEIRS - [0:0]\n\
    -A OUTPUT -p tcp -m comment --comment \"not remora:\" -j THEIRS\nCOMMIT\n";

#[test]
fn only_remoras_rules_are_removed() {
    let saved = "*nat\n:OUTPUT ACCEPT [0:0]\n:ISTIO_OUTPUT - [0:0]\n:ISTIO_OLD - [0:0]\n:THEIRS - [0:0]\n\
        -A OUTPUT -o eth1 -m comment --comment \"remora:0123\" -j RETURN\n\
        -A OUTPUT -j ISTIO_OUTPUT\n-A OUTPUT -j THEIRS\n-A ISTIO_OUTPUT -j RETURN\nCOMMIT\n";
    let text = replacement(saved, &[], None);
    assert_eq!(
        text,
        "*nat\n-D OUTPUT -o eth1 -m comment --comment \"remora:0123\" -j RETURN\n-D OUTPUT -j ISTIO_OUTPUT\n\
         -F ISTIO_OLD\n-F ISTIO_OUTPUT\n-X ISTIO_OLD\n-X ISTIO_OUTPUT\nCOMMIT\n"
    );
    assert!(has_own_rules(saved));
    assert!(!has_own_rules(THEIRS));
    assert_eq!(replacement(THEIRS, &[], None), "");
}

#[test]
fn installed_rules_are_recognised() {
    let rules = rules(&["-i", "*", "-b", "*", "-c", "eth1"]);
    let text = replacement(THEIRS, &rules, None);
    // As iptables-save would list it: chains with their counters, then the rules.
    let saved = text.replace("- [0:0]", "- [7:8]");
    assert!(is_installed(&saved, &rules, None));
    assert!(
        !is_installed(
            &saved.replacen("-A ISTIO_OUTPUT", "-A ISTIO_REDIRECT", 1),
            &rules,
            None
        ),
        "moved"
    );
    let lines: Vec<&str> = saved
        .lines()
        .filter(|line| !line.contains("-A OUTPUT -m comment"))
        .collect();
    assert!(!is_installed(&lines.join("\n"), &rules, None), "the jump is gone");
    assert!(!is_installed("", &rules, None));
    assert!(
        !is_installed(&saved, &self::rules(&["-i", "*"]), None),
        "other flags"
    );
}

/// As `iptables-save` would list it: inserted rules have become rules like the others.
fn as_saved(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("-I ISTIO_INBOUND ") {
        Some(rest) => format!("-A ISTIO_INBOUND {}\n", rest.split_once(' ').unwrap().1),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn the_switch_is_recognised_and_flipped() {
    let rules = rules(&["-i", "*", "-b", "*", "-m", "TPROXY"]);
    for state in State::ALL {
        let saved = as_saved(&replacement("", &rules, Some(state)));
        assert_eq!(gate::state_of(&saved), Some(state));
        assert!(is_installed(&saved, &rules, Some(state)), "{state}");
        assert!(
            !is_installed(&saved, &rules, None),
            "{state}: rules without a switch are other rules"
        );
        for other in State::ALL {
            assert_eq!(
                gate::state_of(&gate::flip_input(&saved, other).unwrap()),
                Some(other),
                "{state} to {other}"
            );
            assert_eq!(
                is_installed(&saved, &rules, Some(other)),
                state == other,
                "{state} {other}"
            );
        }
    }
    let plain = replacement("", &rules, None);
    assert_eq!(
        (gate::state_of(&plain), gate::flip_input(&plain, State::On)),
        (None, None)
    );
    assert!(!plain.contains("ISTIO_GATE"));
}
