//! Evaluates the rules for a packet without a kernel.
//!
//! [`Evaluator::decide`] follows the first packet of a connection through the tables in the kernel's order
//! and allocates nothing; [`Evaluator::explain`] also returns the rules that matched. Both work on the rules of
//! the plan, so they hold for either back end. The caller decides what depends on the host: routing (which
//! interface a packet leaves by) is part of the packet.

mod packet;

use crate::chains::Chains;
use crate::plan::Plan;
use crate::rule::{Action, Chain, Family, Match, OwnerKind, Rule, State, Table};
use crate::switch;
use crate::value::Owner;
pub use packet::{ConnectionState, Direction, Packet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What the rules do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It goes to its original destination.
    Untouched,
    /// It is redirected to a port of this host; the listener reads the original destination (`SO_ORIGINAL_DST`).
    Redirected(u16),
    /// It is handed over to the transparent listener on a port.
    Transparent(u16),
    /// The switch holds it: the packet is dropped, and the client retries.
    Held,
    /// It is dropped.
    Dropped,
}

/// The decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'a> {
    /// What the rules do with it.
    pub fate: Fate,
    /// The rule that decided; none if the packet passed them all.
    pub rule: Option<&'a Rule>,
    /// The packet's mark after all rules.
    pub mark: u32,
    /// The connection tracking zone.
    pub zone: u16,
}

/// A rule that a packet matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The rule's position in its chain, counted from 1.
    pub place: usize,
}

/// Evaluates the rules of both address families.
#[derive(Debug, Clone)]
pub struct Evaluator<'a> {
    v4: Chains<'a>,
    v6: Option<Chains<'a>>,
    state: switch::State,
}

/// How a chain ended.
enum End<'a> {
    /// With no decision.
    Through,
    /// With a rule that decided.
    At(&'a Rule),
}

/// A packet during its evaluation.
struct Walk<'p, 't, 'a> {
    packet: Packet<'p>,
    zone: Option<u16>,
    /// The last rule that returned the packet to the calling chain.
    returned: Option<&'a Rule>,
    trail: Option<&'t mut Vec<Step<'a>>>,
}

impl<'a> Evaluator<'a> {
    /// Takes the rules of a plan, with the switch in this state.
    pub fn new(plan: &'a Plan, state: switch::State) -> Self {
        let v6 = plan.ipv6.as_ref().map(|rules| Chains::new(rules));
        Self {
            v4: Chains::new(&plan.ipv4),
            v6,
            state,
        }
    }

    /// What the rules do with a packet.
    pub fn decide(&self, packet: &Packet<'_>) -> Decision<'a> {
        self.follow(packet, None)
    }

    /// What the rules do with a packet, and every rule that it matched.
    pub fn explain(&self, packet: &Packet<'_>) -> (Decision<'a>, Vec<Step<'a>>) {
        let mut trail = Vec::new();
        let decision = self.follow(packet, Some(&mut trail));
        (decision, trail)
    }

    fn follow<'t>(&self, packet: &Packet<'_>, trail: Option<&'t mut Vec<Step<'a>>>) -> Decision<'a> {
        let untouched = Decision {
            fate: Fate::Untouched,
            rule: None,
            mark: packet.mark,
            zone: 0,
        };
        let chains = match Family::of(packet.destination.ip()) {
            Family::V4 => &self.v4,
            Family::V6 => match &self.v6 {
                Some(chains) => chains,
                None => return untouched,
            },
        };
        let mut walk = Walk {
            packet: *packet,
            zone: None,
            returned: None,
            trail,
        };
        let mut decision = untouched;
        match packet.direction {
            Direction::Out { interface } => {
                walk.hook(chains, Chain::Output, true, &mut decision);
                // A packet that leaves by lo arrives again. Its address translation is decided: the kernel does not
                // consult nat a second time.
                if self.apply_switch(&mut walk, &mut decision)
                    && (interface == "lo" || decision.fate != Fate::Untouched)
                {
                    walk.packet.direction = Direction::In { interface: "lo" };
                    walk.hook(chains, Chain::Prerouting, false, &mut decision);
                    self.apply_switch(&mut walk, &mut decision);
                }
            }
            Direction::In { .. } => {
                walk.hook(chains, Chain::Prerouting, true, &mut decision);
                self.apply_switch(&mut walk, &mut decision);
            }
        }
        decision.rule = decision.rule.or(walk.returned);
        decision.mark = walk.packet.mark;
        decision.zone = walk.zone.unwrap_or(0);
        decision
    }

    /// Applies the switch and the redirection; returns whether the packet continues.
    fn apply_switch(&self, walk: &mut Walk<'_, '_, 'a>, decision: &mut Decision<'a>) -> bool {
        match (decision.fate, self.state) {
            (Fate::Redirected(_) | Fate::Transparent(_), switch::State::Open) => {
                decision.fate = Fate::Untouched;
            }
            (Fate::Redirected(_) | Fate::Transparent(_), switch::State::Hold) => decision.fate = Fate::Held,
            (Fate::Redirected(port), _) => {
                let loopback = match walk.packet.destination.ip() {
                    IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
                };
                walk.packet.destination = (loopback, port).into();
            }
            _ => {}
        }
        !matches!(decision.fate, Fate::Dropped | Fate::Held | Fate::Transparent(_))
    }
}

impl<'a> Walk<'_, '_, 'a> {
    /// The tables in the kernel's order; the first that decides something ends it.
    fn hook(&mut self, chains: &Chains<'a>, base: Chain, with_nat: bool, decision: &mut Decision<'a>) {
        for table in [Table::Raw, Table::Mangle, Table::Nat] {
            if table == Table::Nat && !with_nat {
                continue;
            }
            let End::At(rule) = self.chain(chains, table, base) else {
                continue;
            };
            let fate = match rule.action {
                Action::Drop => Fate::Dropped,
                Action::Redirect(port) => Fate::Redirected(port),
                Action::Tproxy { port, mark } => {
                    self.packet.mark = mark;
                    Fate::Transparent(port)
                }
                // Accepted or returned: the kernel still consults the next table.
                _ => {
                    if decision.fate == Fate::Untouched {
                        decision.rule = Some(rule);
                    }
                    continue;
                }
            };
            decision.fate = fate;
            decision.rule = Some(rule);
            return;
        }
    }

    fn chain(&mut self, chains: &Chains<'a>, table: Table, chain: Chain) -> End<'a> {
        for (index, rule) in chains.rules(table, chain).iter().enumerate() {
            if !rule.matches.iter().all(|item| self.matches(item)) {
                continue;
            }
            if let Some(trail) = self.trail.as_deref_mut() {
                trail.push(Step {
                    rule,
                    place: index + 1,
                });
            }
            match rule.action {
                // In a built-in chain this decides that the packet is left alone.
                Action::Return if chain.is_built_in() => return End::At(rule),
                Action::Return => {
                    self.returned = Some(rule);
                    return End::Through;
                }
                Action::Jump(target) => {
                    if let End::At(rule) = self.chain(chains, table, target) {
                        return End::At(rule);
                    }
                }
                Action::SetMark(mark) => self.packet.mark = mark,
                // The first zone counts.
                Action::Zone(zone) => self.zone = self.zone.or(Some(zone)),
                Action::RestoreMark => self.packet.mark = self.packet.connection_mark,
                Action::SaveMark => self.packet.connection_mark = self.packet.mark,
                Action::Accept | Action::Drop | Action::Redirect(_) | Action::Tproxy { .. } => {
                    return End::At(rule);
                }
            }
        }
        End::Through
    }

    fn matches(&self, item: &Match) -> bool {
        let packet = &self.packet;
        match item {
            Match::In(interface) => {
                matches!(packet.direction, Direction::In { interface: name } if interface.matches(name))
            }
            Match::Out(interface) => {
                matches!(packet.direction, Direction::Out { interface: name } if interface.matches(name))
            }
            Match::Protocol(protocol) => packet.protocol == *protocol,
            Match::Source(range) => range.contains(packet.source.ip()),
            Match::Destination { range, not } => range.contains(packet.destination.ip()) != *not,
            Match::DestinationPort { ports, not } => ports.contains(packet.destination.port()) != *not,
            Match::DestinationPortNoneOf(ports) => !ports.contains(&packet.destination.port()),
            Match::SourcePort(port) => packet.source.port() == *port,
            Match::Owner { kind, owner, not } => self.matches_owner(*kind, owner, *not),
            Match::State(State::Invalid) => packet.state == ConnectionState::Invalid,
            Match::State(State::Established) => packet.state == ConnectionState::Established,
            Match::Mark { mark, not } => (packet.mark == *mark) != *not,
            Match::ConnectionMark(mark) => packet.connection_mark == *mark,
        }
    }

    // A packet without a local socket has no owner, and neither test matches. A name that was not resolved to an id
    // matches no owner.
    fn matches_owner(&self, kind: OwnerKind, owner: &Owner, not: bool) -> bool {
        let Some((uid, gid)) = self.packet.owner else {
            return false;
        };
        let id = match kind {
            OwnerKind::User => uid,
            OwnerKind::Group => gid,
        };
        (*owner == Owner::Id(id)) != not
    }
}

#[cfg(test)]
mod tests;
