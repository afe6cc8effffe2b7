//! Converts the rules that the kernel lists back to a plan.
//!
//! It understands what [`super::expressions`] writes. A rule that it cannot read comes from another program or from
//! another version of remora; then the result is an error rather than an incomplete plan.

use remora_net::nft::{Base, Cmp, Ct, Expression as E, ListedRule, Meta, Verdict};
use remora_rules::Plan;
use remora_rules::rule::{Action, Chain, Family, Match, OwnerKind, Position, Protocol, Rule, State, Table};
use remora_rules::value::{Cidr, Interface, Owner, Ports};
use std::net::IpAddr;

/// A rule in remora's table that this version does not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chain {chain} has a rule at place {place} that this version did not write")]
pub struct UnreadableRule {
    /// The chain.
    pub chain: String,
    /// The rule's position, counted from 1.
    pub place: usize,
}

/// Reads the rules of remora's table.
pub fn plan_of(listed: &[ListedRule]) -> Result<Plan, UnreadableRule> {
    let mut plan = Plan {
        ipv4: Vec::new(),
        ipv6: Some(Vec::new()),
        route: None,
    };
    let mut place = 0;
    let mut previous = "";
    for rule in listed {
        place = if rule.chain == previous { place + 1 } else { 1 };
        previous = &rule.chain;
        let Some((table, chain)) = chain_of(&rule.chain) else {
            continue;
        };
        let unreadable = || UnreadableRule {
            chain: rule.chain.clone(),
            place,
        };
        let mut read = Reader {
            rest: &rule.expressions,
            v4: true,
            v6: true,
            matches: Vec::new(),
        };
        let action = read.rule(listed).ok_or_else(unreadable)?;
        // The first rule of a base chain when IPv6 is not captured.
        if chain.is_built_in() && read.matches.is_empty() && action == Action::Accept && !read.v4 {
            plan.ipv6 = None;
            continue;
        }
        let made = Rule {
            table,
            chain,
            place: Position::Append,
            matches: read.matches,
            action,
        };
        if read.v6
            && let Some(ipv6) = &mut plan.ipv6
        {
            ipv6.push(made.clone());
        }
        if read.v4 {
            plan.ipv4.push(made);
        }
    }
    Ok(plan)
}

fn chain_of(name: &str) -> Option<(Table, Chain)> {
    const CHAINS: [Chain; Chain::COUNT] = [
        Chain::Prerouting,
        Chain::Output,
        Chain::Inbound,
        Chain::Redirect,
        Chain::InRedirect,
        Chain::IstioOutput,
        Chain::OutputDns,
        Chain::Divert,
        Chain::Tproxy,
        Chain::Drop,
    ];
    let all = Table::ALL
        .into_iter()
        .flat_map(|table| CHAINS.map(|chain| (table, chain)));
    all.into_iter()
        .find(|(table, chain)| super::build::name(*table, *chain) == name)
}

struct Reader<'a> {
    rest: &'a [E],
    v4: bool,
    v6: bool,
    matches: Vec<Match>,
}

impl Reader<'_> {
    fn rule(&mut self, listed: &[ListedRule]) -> Option<Action> {
        loop {
            if let Some(action) = self.action(listed) {
                return Some(action);
            }
            let read = self.test()?;
            self.rest = self.rest.get(read..)?;
        }
    }

    /// The action, if the remaining expressions are exactly one action.
    fn action(&self, listed: &[ListedRule]) -> Option<Action> {
        Some(match self.rest {
            [E::Verdict(Verdict::Accept)] => Action::Accept,
            [E::Verdict(Verdict::Drop)] => Action::Drop,
            [E::Verdict(Verdict::Return)] => Action::Return,
            [E::Verdict(Verdict::Jump(name))] => jump(name, listed)?,
            [E::Value(mark), E::SetMeta(Meta::Mark)] => Action::SetMark(host(mark)?),
            [E::Meta(Meta::Mark), E::SetCt(Ct::Mark)] => Action::SaveMark,
            [E::Ct(Ct::Mark), E::SetMeta(Meta::Mark)] => Action::RestoreMark,
            [E::Value(zone), E::SetCt(Ct::Zone)] => {
                Action::Zone(u16::from_ne_bytes(zone.as_slice().try_into().ok()?))
            }
            _ => return None,
        })
    }

    /// Reads one condition and returns the number of expressions that it consists of.
    fn test(&mut self) -> Option<usize> {
        let (found, read) = match self.rest {
            [E::Meta(Meta::Family), E::Compare(how, value), ..] => {
                let same = *how == Cmp::Equal;
                let (v4, v6) = (value == &[2], value == &[10]);
                self.v4 &= v4 == same;
                self.v6 &= v6 == same;
                return Some(2);
            }
            [E::Meta(key), E::Compare(how, value), ..] => (meta(*key, *how, value)?, 2),
            [E::Ct(Ct::State), E::Mask(bits), E::Compare(Cmp::NotEqual, _), ..] => {
                let state = if host(bits)? == Ct::INVALID {
                    State::Invalid
                } else {
                    State::Established
                };
                (Match::State(state), 3)
            }
            [E::Ct(Ct::Mark), E::Compare(Cmp::Equal, mark), ..] => (Match::ConnectionMark(host(mark)?), 2),
            [
                E::Payload {
                    base: Base::Network,
                    offset,
                    ..
                },
                E::Mask(mask),
                E::Compare(how, value),
                ..,
            ] => {
                let bits = mask.iter().map(|byte| byte.count_ones()).sum();
                (address(*offset, bits, *how, value)?, 3)
            }
            [
                E::Payload {
                    base: Base::Network,
                    offset,
                    length,
                },
                E::Compare(how, value),
                ..,
            ] => (address(*offset, length * 8, *how, value)?, 2),
            [
                E::Payload {
                    base: Base::Transport,
                    offset: 0,
                    ..
                },
                E::Compare(Cmp::Equal, port),
                ..,
            ] => (Match::SourcePort(net(port)?), 2),
            [
                E::Payload { .. },
                E::Compare(Cmp::AtLeast, first),
                E::Compare(Cmp::AtMost, last),
                ..,
            ] => (ports(first, last, false)?, 3),
            [E::Payload { offset: 2, .. }, E::NotInRange(first, last), ..] => (ports(first, last, true)?, 2),
            [E::Payload { offset: 2, .. }, E::Compare(how, port), ..] => {
                (ports(port, port, *how == Cmp::NotEqual)?, 2)
            }
            _ => return None,
        };
        self.matches.push(found);
        Some(read)
    }
}

fn host(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn net(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

fn ports(first: &[u8], last: &[u8], not: bool) -> Option<Match> {
    Some(Match::DestinationPort {
        ports: Ports {
            first: net(first)?,
            last: net(last)?,
        },
        not,
    })
}

fn meta(key: Meta, how: Cmp, value: &[u8]) -> Option<Match> {
    let not = how == Cmp::NotEqual;
    Some(match key {
        Meta::Mark => Match::Mark {
            mark: host(value)?,
            not,
        },
        Meta::User => Match::Owner {
            kind: OwnerKind::User,
            owner: Owner::Id(host(value)?),
            not,
        },
        Meta::Group => Match::Owner {
            kind: OwnerKind::Group,
            owner: Owner::Id(host(value)?),
            not,
        },
        Meta::InName => Match::In(interface(value)?),
        Meta::OutName => Match::Out(interface(value)?),
        Meta::Protocol => Match::Protocol(match value {
            [6] => Protocol::Tcp,
            [17] => Protocol::Udp,
            _ => return None,
        }),
        Meta::Family => return None,
    })
}

fn interface(value: &[u8]) -> Option<Interface> {
    let end = value.iter().position(|byte| *byte == 0);
    let name = std::str::from_utf8(&value[..end.unwrap_or(value.len())]).ok()?;
    // A name without its nul padding is a pattern.
    if end.is_some() {
        name.parse().ok()
    } else {
        format!("{name}+").parse().ok()
    }
}

fn address(offset: u32, bits: u32, how: Cmp, value: &[u8]) -> Option<Match> {
    let length = u8::try_from(bits).ok()?;
    let (family, source) = match offset {
        12 => (Family::V4, true),
        16 => (Family::V4, false),
        8 => (Family::V6, true),
        24 => (Family::V6, false),
        _ => return None,
    };
    let mut bytes = [0; 16];
    bytes.get_mut(..value.len())?.copy_from_slice(value);
    let address = match family {
        Family::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(bytes),
    };
    let range = Cidr::new(address, length)?;
    let not = how == Cmp::NotEqual;
    Some(if source {
        Match::Source(range)
    } else {
        Match::Destination { range, not }
    })
}

/// A jump to one of the plan's chains, or to a chain that captures connections.
fn jump(name: &str, listed: &[ListedRule]) -> Option<Action> {
    if let Some((_, chain)) = chain_of(name) {
        return Some(Action::Jump(chain));
    }
    if let Some(port) = name.strip_prefix("redirect-to-") {
        return Some(Action::Redirect(port.parse().ok()?));
    }
    let port = name.strip_prefix("tproxy-to-")?.parse().ok()?;
    let mut taking = listed.iter().filter(|rule| rule.chain == name);
    let mark = taking.find_map(|rule| match rule.expressions.as_slice() {
        [.., E::Value(mark), E::SetMeta(Meta::Mark), E::Counter, _] => host(mark),
        _ => None,
    })?;
    Some(Action::Tproxy { port, mark })
}
