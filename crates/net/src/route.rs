//! Routes and rules that choose a routing table.
//!
//! Everything added here carries [`ROUTE_PROTOCOL`] as its protocol number, so that it can be found and removed later
//! without knowing with which options it was added.

use crate::address::{family, from_octets, octets};
use crate::netlink::{
    Attributes, KernelError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Socket, Writer,
};
use std::net::IpAddr;

/// The protocol number that marks a route or rule as ours (`ip route show proto 137`).
pub const ROUTE_PROTOCOL: u8 = 137;

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_TABLE: u16 = 15;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RT_SCOPE_HOST: u8 = 254;
const FR_ACT_TO_TBL: u8 = 1;
const MAIN_TABLE: u32 = 254;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}

/// `struct rtmsg`, which rules share under another name.
fn fixed(family: u8, length: u8, table: u32, protocol: u8, scope: u8, kind: u8) -> [u8; 12] {
    let table = u8::try_from(table).unwrap_or(0);
    [family, length, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0]
}

fn request(
    socket: &mut Socket,
    kind: u16,
    flags: u16,
    head: &[u8; 12],
    content: impl FnOnce(&mut Writer),
) -> Result<(), KernelError> {
    let sequence = socket.next_sequence();
    let mut writer = Writer::with_capacity(128);
    writer.begin(kind, NLM_F_REQUEST | NLM_F_ACK | flags, sequence, head);
    content(&mut writer);
    writer.end();
    socket.transact(&writer, sequence)
}

/// A route, installed by remora or by another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The family.
    pub family: Family,
    /// The table.
    pub table: u32,
    /// The protocol number of the program that installed it.
    pub protocol: u8,
    /// The destination; `None` is everything.
    pub destination: Option<(IpAddr, u8)>,
    /// The outgoing interface.
    pub interface: Option<u32>,
    /// The gateway; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Whether the route delivers to this host.
    pub local: bool,
}

/// Delivers everything that is routed by `table` to this host itself.
pub fn add_local_default(
    socket: &mut Socket,
    family: Family,
    table: u32,
    loopback: u32,
) -> Result<(), KernelError> {
    let head = fixed(
        family.number(),
        0,
        table,
        ROUTE_PROTOCOL,
        RT_SCOPE_HOST,
        RTN_LOCAL,
    );
    request(socket, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, |w| {
        w.host_u32(RTA_TABLE, table);
        w.host_u32(RTA_OIF, loopback);
    })
}

/// Removes what [`add_local_default`] added.
pub fn delete_local_default(
    socket: &mut Socket,
    family: Family,
    table: u32,
    loopback: u32,
) -> Result<(), KernelError> {
    let head = fixed(family.number(), 0, table, 0, RT_SCOPE_HOST, RTN_LOCAL);
    request(socket, RTM_DELROUTE, 0, &head, |w| {
        w.host_u32(RTA_TABLE, table);
        w.host_u32(RTA_OIF, loopback);
    })
}

/// Routes a network (or everything, with length 0) through a gateway or directly through an interface.
pub fn add_unicast(
    socket: &mut Socket,
    destination: (IpAddr, u8),
    gateway: Option<IpAddr>,
    interface: u32,
) -> Result<(), KernelError> {
    let scope = if gateway.is_some() {
        RT_SCOPE_UNIVERSE
    } else {
        RT_SCOPE_LINK
    };
    let head = fixed(
        family(destination.0),
        destination.1,
        MAIN_TABLE,
        4,
        scope,
        RTN_UNICAST,
    );
    request(socket, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, |w| {
        if destination.1 > 0 {
            w.bytes(RTA_DST, &octets(destination.0));
        }
        if let Some(gateway) = gateway {
            w.bytes(RTA_GATEWAY, &octets(gateway));
        }
        w.host_u32(RTA_OIF, interface);
    })
}

/// All routes of a family.
pub fn routes(socket: &mut Socket, family: Family) -> Result<Vec<Route>, KernelError> {
    socket.dump(
        |writer, sequence| {
            let head = fixed(family.number(), 0, 0, 0, 0, 0);
            writer.begin(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, sequence, &head);
            writer.end();
        },
        |message| {
            let head: &[u8; 12] = message.payload.first_chunk()?;
            let attributes = Attributes::new(message.payload.get(12..)?);
            let table = attributes.find(RTA_TABLE).and_then(|table| table.host_u32());
            let destination = attributes.find(RTA_DST).and_then(|dst| from_octets(dst.value));
            Some(Route {
                family,
                table: table.unwrap_or_else(|| u32::from(head[4])),
                protocol: head[5],
                destination: destination.map(|address| (address, head[1])),
                interface: attributes.find(RTA_OIF).and_then(|index| index.host_u32()),
                gateway: attributes
                    .find(RTA_GATEWAY)
                    .and_then(|gateway| from_octets(gateway.value)),
                local: head[7] == RTN_LOCAL,
            })
        },
    )
}

/// A rule that sends marked packets to a routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkRule {
    /// The family.
    pub family: Family,
    /// The mark.
    pub mark: u32,
    /// The table.
    pub table: u32,
    /// The priority among the rules.
    pub priority: u32,
    /// The protocol number of the program that installed it.
    pub protocol: u8,
}

/// Adds a rule. The kernel accepts the same rule twice, so the caller must check [`mark_rules`] first.
pub fn add_mark_rule(socket: &mut Socket, rule: MarkRule) -> Result<(), KernelError> {
    change_rule(socket, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule)
}

/// Removes one rule.
pub fn delete_mark_rule(socket: &mut Socket, rule: MarkRule) -> Result<(), KernelError> {
    change_rule(socket, RTM_DELRULE, 0, rule)
}

fn change_rule(socket: &mut Socket, kind: u16, flags: u16, rule: MarkRule) -> Result<(), KernelError> {
    let head = fixed(rule.family.number(), 0, rule.table, 0, 0, FR_ACT_TO_TBL);
    request(socket, kind, flags, &head, |w| {
        w.host_u32(FRA_FWMARK, rule.mark);
        w.host_u32(FRA_FWMASK, u32::MAX);
        w.host_u32(FRA_TABLE, rule.table);
        w.host_u32(FRA_PRIORITY, rule.priority);
        w.bytes(FRA_PROTOCOL, &[rule.protocol]);
    })
}

/// All rules of a family that select packets by mark.
pub fn mark_rules(socket: &mut Socket, family: Family) -> Result<Vec<MarkRule>, KernelError> {
    socket.dump(
        |writer, sequence| {
            let head = fixed(family.number(), 0, 0, 0, 0, 0);
            writer.begin(RTM_GETRULE, NLM_F_REQUEST | NLM_F_DUMP, sequence, &head);
            writer.end();
        },
        |message| {
            let head: &[u8; 12] = message.payload.first_chunk()?;
            let attributes = Attributes::new(message.payload.get(12..)?);
            let number = |kind| attributes.find(kind).and_then(|value| value.host_u32());
            Some(MarkRule {
                family,
                mark: number(FRA_FWMARK)?,
                table: number(FRA_TABLE).unwrap_or_else(|| u32::from(head[4])),
                priority: number(FRA_PRIORITY).unwrap_or(0),
                protocol: attributes
                    .find(FRA_PROTOCOL)
                    .and_then(|p| p.value.first().copied())
                    .unwrap_or(0),
            })
        },
    )
}
