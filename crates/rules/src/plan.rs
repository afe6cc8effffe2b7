//! Builds the rules for an intent.
//!
//! [`plan`] is pure: the same [`Intent`] always gives the same [`Plan`], in the order in which Istio builds
//! its rules, so that a plan can be compared, printed, encoded and evaluated without touching a kernel.
//! It knows nothing about back ends, and nothing about what is installed already.

mod dns;
mod inbound;
mod outbound;

use crate::intent::{Intent, Mode};
use crate::rule::{Action, Chain, Family, Match, OwnerKind, Position, Protocol, Rule, State, Table};
use crate::value::{Cidr, Interface, Owner, PASSTHROUGH_V4, PASSTHROUGH_V6, Ports};
use std::net::{IpAddr, Ipv6Addr};

/// Everything that capture needs in a network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The IPv4 rules, in build order.
    pub ipv4: Vec<Rule>,
    /// The IPv6 rules, if IPv6 is captured.
    pub ipv6: Option<Vec<Rule>>,
    /// Deliver packets with this mark locally, by this routing table.
    pub route: Option<PolicyRoute>,
}

/// `ip rule fwmark MARK lookup TABLE` and `local default dev lo table TABLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRoute {
    /// The mark.
    pub mark: u32,
    /// The table.
    pub table: u32,
}

/// Builds the rules for one network namespace.
pub fn plan(intent: &Intent) -> Plan {
    let route = intent.needs_policy_route().then_some(PolicyRoute {
        mark: intent.mark,
        table: intent.route_table,
    });
    Plan {
        ipv4: Builder::new(intent, Family::V4).build(),
        ipv6: intent.ipv6.then(|| Builder::new(intent, Family::V6).build()),
        route,
    }
}

/// The rules of one family under construction.
struct Builder<'a> {
    intent: &'a Intent,
    family: Family,
    loopback: Cidr,
    passthrough: Cidr,
    rules: Vec<Rule>,
}

impl<'a> Builder<'a> {
    fn new(intent: &'a Intent, family: Family) -> Self {
        let (loopback, passthrough) = match family {
            Family::V4 => (intent.loopback_v4, Cidr::host(IpAddr::V4(PASSTHROUGH_V4))),
            Family::V6 => (
                Cidr::host(IpAddr::V6(Ipv6Addr::LOCALHOST)),
                Cidr::host(IpAddr::V6(PASSTHROUGH_V6)),
            ),
        };
        Self {
            intent,
            family,
            loopback,
            passthrough,
            rules: Vec::with_capacity(32),
        }
    }

    // The order is Istio's (tools/istio-iptables/pkg/capture/run.go):
    //  1. interfaces left alone       2. virtual machines' interfaces   3. invalid packets
    //  4. the tunnel port             5. the two redirect chains        6. inbound
    //  7. outbound with owners, DNS and destinations                    8. what TPROXY needs besides
    fn build(mut self) -> Vec<Rule> {
        self.excluded_interfaces();
        self.virtual_interfaces();
        if self.intent.drop_invalid {
            self.append(
                Table::Mangle,
                Chain::Prerouting,
                [Match::State(State::Invalid)],
                Action::Jump(Chain::Drop),
            );
            self.append(Table::Mangle, Chain::Drop, [], Action::Drop);
        }
        let tunnel = [MATCH_TCP, dport(self.intent.tunnel_port)];
        self.append(Table::Nat, Chain::Inbound, tunnel, Action::Return);
        self.append(
            Table::Nat,
            Chain::Redirect,
            [MATCH_TCP],
            Action::Redirect(self.intent.outbound_port),
        );
        self.append(
            Table::Nat,
            Chain::InRedirect,
            [MATCH_TCP],
            Action::Redirect(self.intent.inbound_port),
        );
        self.inbound();
        self.outbound();
        if self.intent.mode == Mode::Tproxy {
            self.tproxy_loops();
        }
        self.rules
    }

    // Additional networks of the pod (multus): appended to the built-in chains before any jump to Istio's chains.
    fn excluded_interfaces(&mut self) {
        let tables: &[Table] = match self.intent.mode {
            Mode::Redirect => &[Table::Nat],
            Mode::Tproxy => &[Table::Nat, Table::Mangle],
        };
        for interface in &self.intent.excluded_interfaces {
            for table in tables {
                self.append(
                    *table,
                    Chain::Prerouting,
                    [Match::In(interface.clone())],
                    Action::Return,
                );
                self.append(
                    *table,
                    Chain::Output,
                    [Match::Out(interface.clone())],
                    Action::Return,
                );
            }
        }
    }

    // A virtual machine's packets must not fall into inbound capture; the redirect for them is inserted
    // above this rule later.
    fn virtual_interfaces(&mut self) {
        for interface in &self.intent.virtual_interfaces {
            self.insert(
                Table::Nat,
                Chain::Prerouting,
                1,
                [Match::In(interface.clone())],
                Action::Return,
            );
        }
    }

    fn append(&mut self, table: Table, chain: Chain, matches: impl Into<Vec<Match>>, action: Action) {
        self.rules.push(Rule {
            table,
            chain,
            place: Position::Append,
            matches: matches.into(),
            action,
        });
    }

    fn insert(
        &mut self,
        table: Table,
        chain: Chain,
        at: usize,
        matches: impl Into<Vec<Match>>,
        action: Action,
    ) {
        self.rules.push(Rule {
            table,
            chain,
            place: Position::Insert(at),
            matches: matches.into(),
            action,
        });
    }

    /// The proxy's users, then its groups.
    fn proxy_owners(&self) -> impl Iterator<Item = (OwnerKind, &'a Owner)> + use<'a> {
        let intent = self.intent;
        let users = intent.proxy_uids.iter().map(|owner| (OwnerKind::User, owner));
        users.chain(intent.proxy_gids.iter().map(|owner| (OwnerKind::Group, owner)))
    }
}

const MATCH_TCP: Match = Match::Protocol(Protocol::Tcp);
const MATCH_UDP: Match = Match::Protocol(Protocol::Udp);

fn dport(port: u16) -> Match {
    dports(Ports::one(port))
}

fn dports(ports: Ports) -> Match {
    Match::DestinationPort { ports, not: false }
}

fn not_dport(port: u16) -> Match {
    Match::DestinationPort {
        ports: Ports::one(port),
        not: true,
    }
}

fn to(range: Cidr) -> Match {
    Match::Destination { range, not: false }
}

fn not_to(range: Cidr) -> Match {
    Match::Destination { range, not: true }
}

fn owned_by(kind: OwnerKind, owner: &Owner) -> Match {
    Match::Owner {
        kind,
        owner: owner.clone(),
        not: false,
    }
}

fn not_owned_by(kind: OwnerKind, owner: &Owner) -> Match {
    Match::Owner {
        kind,
        owner: owner.clone(),
        not: true,
    }
}

fn out_lo() -> Match {
    Match::Out(Interface::loopback())
}

fn in_lo() -> Match {
    Match::In(Interface::loopback())
}
