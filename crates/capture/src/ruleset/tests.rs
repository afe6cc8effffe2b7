use super::*;
use remora_net::nft::ListedRule;
use remora_rules::options::{HostFacts, Settings, parse_argv};
use remora_rules::rule::{Chain, Table};
use remora_rules::{Plan, plan};

const SETS: &[&[&str]] = &[
    &[],
    &["-i", "*", "-b", "*", "-d", "15090"],
    &[
        "-i",
        "10.0.0.0/12,2001:db8::/33",
        "-x",
        "10.1.0.0/16",
        "-q",
        "1,2:3",
        "-o",
        "9",
        "-b",
        "80:90",
    ],
    &[
        "-i",
        "*",
        "-b",
        "*",
        "-m",
        "TPROXY",
        "-c",
        "eth1,net+",
        "--drop-invalid",
        "-u",
        "1,2",
        "-g",
        "3",
    ],
    &[
        "-i",
        "*",
        "-k",
        "vm0,vm1",
        "--redirect-dns",
        "--host-dns",
        "10.0.0.10,fd00::a",
    ],
    &["-i", "127.0.0.53/32", "--redirect-dns", "--capture-all-dns"],
];

fn plan_for(flags: &[&str], ipv6: bool) -> Plan {
    let given = parse_argv(flags).unwrap();
    let settings = Settings::read(&given, &std::collections::BTreeMap::new()).unwrap();
    let (mut intent, _) = settings.intent(&HostFacts::default());
    intent.ipv6 = ipv6;
    plan(&intent)
}

fn listed(ruleset: &Ruleset) -> Vec<ListedRule> {
    let rules = |chain: &NftChain| {
        let name = chain.name.clone();
        let list = |rule: &NftRule| ListedRule {
            chain: name.clone(),
            expressions: expressions(rule),
        };
        chain.rules.iter().map(list).collect::<Vec<_>>()
    };
    ruleset.chains.iter().flat_map(rules).collect()
}

/// A written ruleset can be read back, and writing the result again gives the same ruleset.
#[test]
fn listed_rules_decode_to_the_plan() {
    for flags in SETS {
        for ipv6 in [false, true] {
            let plan = plan_for(flags, ipv6);
            let first = ruleset(&plan);
            let back = plan_of(&listed(&first)).unwrap();
            assert_eq!(back.ipv6.is_some(), ipv6, "{flags:?}");
            let second = ruleset(&back);
            assert_eq!(listed(&second), listed(&first), "{flags:?} ipv6 {ipv6}");
        }
    }
}

#[test]
fn a_foreign_rule_is_noticed() {
    let ruleset = ruleset(&plan_for(SETS[1], true));
    let mut rules = listed(&ruleset);
    let at = rules
        .iter()
        .position(|rule| rule.chain == "nat-istio-output")
        .unwrap();
    rules[at + 1].expressions = vec![remora_net::nft::Expression::Unknown("limit".into())];
    assert_eq!(
        plan_of(&rules),
        Err(UnreadableRule {
            chain: "nat-istio-output".into(),
            place: 2
        })
    );
    let differences = crate::verify::compare(&rules, &ruleset);
    assert_eq!(
        differences.len(),
        2,
        "one is missing and one is foreign: {differences:?}"
    );
    rules.remove(at);
    assert!(differences.len() < crate::verify::compare(&rules, &ruleset).len());
}

#[test]
fn both_families_share_what_they_can() {
    let one = ruleset(&plan_for(SETS[1], false));
    let both = ruleset(&plan_for(SETS[1], true));
    let count = |ruleset: &Ruleset| {
        ruleset
            .chains
            .iter()
            .map(|chain| chain.rules.len())
            .sum::<usize>()
    };
    let addresses = plan_for(SETS[1], true)
        .ipv6
        .unwrap()
        .iter()
        .filter(|rule| {
            rule.matches
                .iter()
                .any(|item| matches!(item, Match::Source(_) | Match::Destination { .. }))
        })
        .count();
    // IPv6 adds its rules with addresses, and needs no guard at the head of the two base chains.
    assert_eq!(count(&both), count(&one) + addresses - 2);
}

#[test]
fn connections_are_only_captured_through_the_switch() {
    for flags in SETS {
        for chain in ruleset(&plan_for(flags, true)).chains {
            let takes =
                |rule: &NftRule| matches!(rule.action, NftAction::Redirect(_) | NftAction::Tproxy { .. });
            if let Some(first) = chain.rules.iter().position(takes) {
                assert_eq!(
                    chain.rules[0].tests.last(),
                    Some(&NftMatch::NotFirst),
                    "{}",
                    chain.name
                );
                assert_eq!(chain.rules[1].action, NftAction::AskSwitch, "{}", chain.name);
                assert_eq!(first, 2, "{}", chain.name);
            }
        }
    }
}

#[test]
fn the_fingerprint_tells_rules_apart() {
    let all: Vec<u64> = SETS
        .iter()
        .flat_map(|flags| [false, true].map(|ipv6| ruleset(&plan_for(flags, ipv6)).fingerprint()))
        .collect();
    for (index, one) in all.iter().enumerate() {
        assert!(!all[index + 1..].contains(one), "{index}");
    }
    assert_eq!(
        all[3],
        ruleset(&plan_for(SETS[1], true)).fingerprint(),
        "and is the same for the same rules"
    );
}

#[test]
fn inserted_rules_are_in_the_position_that_iptables_gives_them() {
    let plan = plan_for(SETS[4], false);
    let chains = remora_rules::chains::Chains::new(&plan.ipv4);
    let text: Vec<String> = chains
        .rules(Table::Nat, Chain::Prerouting)
        .iter()
        .map(ToString::to_string)
        .collect();
    let order = [
        "-i vm1 -j ISTIO_REDIRECT",
        "-i vm0 -j ISTIO_REDIRECT",
        "-i vm1 -j RETURN",
        "-i vm0 -j RETURN",
    ];
    assert_eq!(text.len(), order.len());
    for (rule, wanted) in text.iter().zip(order) {
        assert!(rule.ends_with(wanted), "{text:?}");
    }
}
