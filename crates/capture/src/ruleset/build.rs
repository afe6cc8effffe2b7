//! From a plan to a ruleset.

use super::{NftAction, NftChain, NftMatch, NftRule, Ruleset};
use remora_net::nft::Hook;
use remora_rules::Plan;
use remora_rules::chains::Chains;
use remora_rules::rule::{Action, Chain, Family, Match, Protocol, Rule, Table};

/// Converts a plan to an nftables ruleset.
pub fn ruleset(plan: &Plan) -> Ruleset {
    let v4 = Chains::new(&plan.ipv4);
    let v6 = plan.ipv6.as_ref().map(|rules| Chains::new(rules));
    let mut build = Build {
        v4,
        v6,
        chains: Vec::new(),
        takes: Vec::new(),
    };
    for table in Table::ALL {
        for chain in [Chain::Prerouting, Chain::Output] {
            build.base(table, chain);
        }
    }
    let Build {
        mut chains, takes, ..
    } = build;
    chains.extend(takes.into_iter().map(|take| take_chain(&take)));
    Ruleset { chains }
}

/// A chain that captures connections: its action, its name, and the protocols that arrive there.
#[derive(Clone, PartialEq, Eq)]
struct Take {
    action: Action,
    name: String,
    protocols: Vec<Protocol>,
}

struct Build<'a> {
    v4: Chains<'a>,
    v6: Option<Chains<'a>>,
    chains: Vec<NftChain>,
    takes: Vec<Take>,
}

impl Build<'_> {
    fn base(&mut self, table: Table, chain: Chain) {
        let rules = self.rules(table, chain);
        if rules.is_empty() {
            return;
        }
        // If IPv6 is not captured, its packets leave the base chain at the first rule.
        // differs from istio: its own nftables rules then capture IPv6 where a rule names no address, and not where
        // one does, because all its tables are for both families; its iptables rules leave IPv6 alone, as this does.
        let mut all = Vec::with_capacity(rules.len() + 1);
        if self.v6.is_none() {
            let tests = vec![NftMatch::Family {
                family: Family::V4,
                not: true,
            }];
            all.push(NftRule {
                tests,
                action: NftAction::Accept,
            });
        }
        all.extend(rules);
        self.chains.push(NftChain {
            name: name(table, chain),
            hook: Some(hook(table, chain)),
            rules: all,
        });
        self.follow(table, chain);
    }

    /// Adds the chains that a chain leads to.
    fn follow(&mut self, table: Table, from: Chain) {
        let mut targets = Vec::new();
        for chains in [Some(&self.v4), self.v6.as_ref()].into_iter().flatten() {
            targets.extend(
                chains
                    .rules(table, from)
                    .iter()
                    .filter_map(|rule| match rule.action {
                        Action::Jump(target) => Some(target),
                        _ => None,
                    }),
            );
        }
        for target in targets {
            let name = name(table, target);
            if self.chains.iter().all(|chain| chain.name != name) {
                let rules = self.rules(table, target);
                self.chains.push(NftChain {
                    name,
                    hook: None,
                    rules,
                });
                self.follow(table, target);
            }
        }
    }

    // The same builder makes both lists, so they are equal except where a rule contains an address, or where one
    // family has rules that the other has not. Any merge that keeps both orders is correct; this one searches
    // ahead for the common rule.
    fn rules(&mut self, table: Table, chain: Chain) -> Vec<NftRule> {
        let v4 = self.v4.rules(table, chain).to_vec();
        let Some(v6) = self.v6.as_ref().map(|chains| chains.rules(table, chain).to_vec()) else {
            return v4
                .into_iter()
                .map(|rule| self.rule(table, rule, has_address(rule).then_some(Family::V4)))
                .collect();
        };
        let mut merged = Vec::with_capacity(v4.len() + v6.len());
        let mut rest = v6.as_slice();
        for rule in v4 {
            match rest.iter().position(|other| is_same_rule(rule, other)) {
                Some(at) if !has_address(rule) => {
                    let (before, after) = rest.split_at(at);
                    merged.extend(
                        before
                            .iter()
                            .map(|other| self.rule(table, other, Some(Family::V6))),
                    );
                    merged.push(self.rule(table, rule, None));
                    rest = &after[1..];
                }
                _ => merged.push(self.rule(table, rule, Some(Family::V4))),
            }
        }
        merged.extend(rest.iter().map(|other| self.rule(table, other, Some(Family::V6))));
        merged
    }

    fn rule(&mut self, table: Table, rule: &Rule, family: Option<Family>) -> NftRule {
        let guard = family.map(|family| NftMatch::Family { family, not: false });
        let tests = guard
            .into_iter()
            .chain(rule.matches.iter().cloned().map(NftMatch::Plan))
            .collect();
        let action = match rule.action {
            Action::Return => NftAction::Return,
            Action::Accept => NftAction::Accept,
            Action::Drop => NftAction::Drop,
            Action::Jump(chain) => NftAction::Jump(name(table, chain)),
            Action::Redirect(_) | Action::Tproxy { .. } => NftAction::Jump(self.take(rule)),
            Action::SetMark(mark) => NftAction::SetMark(mark),
            Action::SaveMark => NftAction::SaveMark,
            Action::RestoreMark => NftAction::RestoreMark,
            Action::Zone(zone) => NftAction::Zone(zone),
        };
        NftRule { tests, action }
    }

    fn take(&mut self, rule: &Rule) -> String {
        let action = rule.action;
        let protocol = rule.protocol().unwrap_or(Protocol::Tcp);
        if let Some(take) = self.takes.iter_mut().find(|take| take.action == action) {
            if !take.protocols.contains(&protocol) {
                take.protocols.push(protocol);
            }
            return take.name.clone();
        }
        let name = match action {
            Action::Tproxy { port, .. } => format!("tproxy-to-{port}"),
            Action::Redirect(port) => format!("redirect-to-{port}"),
            _ => "nowhere".to_owned(),
        };
        self.takes.push(Take {
            action,
            name: name.clone(),
            protocols: vec![protocol],
        });
        name
    }
}

fn take_chain(take: &Take) -> NftChain {
    let tcp = || NftMatch::Plan(Match::Protocol(Protocol::Tcp));
    let mut rules = vec![
        NftRule {
            tests: vec![tcp(), NftMatch::NotFirst],
            action: NftAction::Accept,
        },
        NftRule {
            tests: Vec::new(),
            action: NftAction::AskSwitch,
        },
    ];
    match take.action {
        Action::Redirect(port) => {
            for protocol in &take.protocols {
                let tests = vec![NftMatch::Plan(Match::Protocol(*protocol))];
                rules.push(NftRule {
                    tests,
                    action: NftAction::Redirect(port),
                });
            }
        }
        Action::Tproxy { port, mark } => {
            rules.push(NftRule {
                tests: vec![tcp()],
                action: NftAction::Tproxy { port, mark },
            });
            // The expression does nothing if there is no transparent listener. The packet must not reach the
            // application then, as it does with Istio's own nftables rules.
            rules.push(NftRule {
                tests: Vec::new(),
                action: NftAction::Drop,
            });
        }
        _ => {}
    }
    NftChain {
        name: take.name.clone(),
        hook: None,
        rules,
    }
}

fn is_same_rule(one: &Rule, other: &Rule) -> bool {
    one.action == other.action && one.matches == other.matches
}

fn has_address(rule: &Rule) -> bool {
    rule.matches
        .iter()
        .any(|item| matches!(item, Match::Source(_) | Match::Destination { .. }))
}

pub(super) fn name(table: Table, chain: Chain) -> String {
    format!(
        "{}-{}",
        table.name(),
        chain.name().to_ascii_lowercase().replace('_', "-")
    )
}

// Priorities as iptables has them. The output chain that sets marks is of type `route`, so that a new mark
// makes the kernel look for another route.
fn hook(table: Table, chain: Chain) -> Hook {
    let output = chain == Chain::Output;
    let (kind, priority) = match table {
        Table::Raw => ("filter", -300),
        Table::Mangle if output => ("route", -150),
        Table::Mangle => ("filter", -150),
        Table::Nat => ("nat", -100),
    };
    Hook {
        kind,
        number: if output { 3 } else { 0 },
        priority,
    }
}
