//! Addresses of interfaces.

use crate::netlink::{
    Attributes, KernelError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Socket, Writer,
};
use std::net::IpAddr;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Skips duplicate address detection, so that the address is usable immediately.
const IFA_F_NODAD: u32 = 2;

pub(crate) fn family(address: IpAddr) -> u8 {
    // AF_INET and AF_INET6.
    if address.is_ipv4() { 2 } else { 10 }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

pub(crate) fn from_octets(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// `struct ifaddrmsg`.
fn fixed(family: u8, prefix: u8, index: u32) -> [u8; 8] {
    let mut bytes = [family, prefix, 0, 0, 0, 0, 0, 0];
    bytes[4..].copy_from_slice(&index.to_ne_bytes());
    bytes
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface.
    pub interface: u32,
    /// The address.
    pub address: IpAddr,
    /// The length of the network part.
    pub prefix: u8,
}

/// All addresses, in the kernel's order: by family, then by interface.
pub fn list(socket: &mut Socket) -> Result<Vec<InterfaceAddress>, KernelError> {
    socket.dump(
        |writer, sequence| {
            writer.begin(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, sequence, &fixed(0, 0, 0));
            writer.end();
        },
        |message| {
            let head: &[u8; 8] = message.payload.first_chunk()?;
            let attributes = Attributes::new(message.payload.get(8..)?);
            // On point-to-point links ADDRESS is the other end and LOCAL this one.
            let own = attributes
                .find(IFA_LOCAL)
                .or_else(|| attributes.find(IFA_ADDRESS))?;
            Some(InterfaceAddress {
                interface: u32::from_ne_bytes([head[4], head[5], head[6], head[7]]),
                address: from_octets(own.value)?,
                prefix: head[1],
            })
        },
    )
}

/// Gives an interface an address.
pub fn add(socket: &mut Socket, assigned: InterfaceAddress) -> Result<(), KernelError> {
    change(socket, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, assigned)
}

/// Takes an address from an interface.
pub fn delete(socket: &mut Socket, assigned: InterfaceAddress) -> Result<(), KernelError> {
    change(socket, RTM_DELADDR, 0, assigned)
}

fn change(socket: &mut Socket, kind: u16, flags: u16, assigned: InterfaceAddress) -> Result<(), KernelError> {
    let sequence = socket.next_sequence();
    let mut writer = Writer::with_capacity(128);
    let head = fixed(family(assigned.address), assigned.prefix, assigned.interface);
    writer.begin(kind, NLM_F_REQUEST | NLM_F_ACK | flags, sequence, &head);
    writer.bytes(IFA_LOCAL, &octets(assigned.address));
    writer.bytes(IFA_ADDRESS, &octets(assigned.address));
    if assigned.address.is_ipv6() {
        writer.host_u32(IFA_FLAGS, IFA_F_NODAD);
    }
    writer.end();
    socket.transact(&writer, sequence)
}
