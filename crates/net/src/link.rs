//! Interfaces.

use crate::Namespace;
use crate::netlink::{
    KernelError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, Protocol, Socket, Writer,
};
use crate::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFF_UP: u32 = 1;

/// `struct ifinfomsg`.
fn fixed(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&change.to_ne_bytes());
    bytes
}

fn request(
    socket: &mut Socket,
    kind: u16,
    flags: u16,
    head: &[u8],
    content: impl FnOnce(&mut Writer),
) -> Result<(), KernelError> {
    let sequence = socket.next_sequence();
    let mut writer = Writer::with_capacity(256);
    writer.begin(kind, NLM_F_REQUEST | NLM_F_ACK | flags, sequence, head);
    content(&mut writer);
    writer.end();
    socket.transact(&writer, sequence)
}

/// The index of an interface in the calling thread's namespace.
pub fn index(name: &str) -> io::Result<u32> {
    sys::interface_index(name)
}

/// The names of all interfaces, in the kernel's order.
pub fn names(socket: &mut Socket) -> Result<Vec<String>, KernelError> {
    socket.dump(
        |writer, sequence| {
            writer.begin(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, sequence, &fixed(0, 0, 0));
            writer.end();
        },
        |message| {
            let attributes = crate::netlink::Attributes::new(message.payload.get(16..)?);
            attributes.find(IFLA_IFNAME).map(|name| name.text())
        },
    )
}

/// Switches an interface on.
pub fn set_up(socket: &mut Socket, index: u32) -> Result<(), KernelError> {
    request(socket, RTM_NEWLINK, 0, &fixed(index, IFF_UP, IFF_UP), |_| {})
}

/// Switches an interface off. The peer of a veth pair keeps its addresses but reaches no host.
pub fn set_down(socket: &mut Socket, index: u32) -> Result<(), KernelError> {
    request(socket, RTM_NEWLINK, 0, &fixed(index, 0, IFF_UP), |_| {})
}

/// Removes an interface (of a veth pair: both ends).
pub fn delete(socket: &mut Socket, index: u32) -> Result<(), KernelError> {
    request(socket, RTM_DELLINK, 0, &fixed(index, 0, 0), |_| {})
}

/// Creates a veth pair: one end here, the peer in another network namespace.
pub fn add_veth(
    socket: &mut Socket,
    name: &str,
    peer: &str,
    peer_namespace: &Namespace,
) -> Result<(), KernelError> {
    let fd = u32::try_from(peer_namespace.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
    request(
        socket,
        RTM_NEWLINK,
        NLM_F_CREATE | NLM_F_EXCL,
        &fixed(0, 0, 0),
        |w| {
            w.text(IFLA_IFNAME, name);
            w.nested(IFLA_LINKINFO, |w| {
                w.bytes(IFLA_INFO_KIND, b"veth");
                w.nested(IFLA_INFO_DATA, |w| {
                    w.nested(VETH_INFO_PEER, |w| peer_link(w, peer, fd));
                });
            });
        },
    )
}

fn peer_link(writer: &mut Writer, name: &str, namespace: u32) {
    writer.raw(&fixed(0, 0, 0));
    writer.text(IFLA_IFNAME, name);
    writer.host_u32(IFLA_NET_NS_FD, namespace);
}

/// A socket for this module's functions, in the calling thread's namespace.
pub fn socket() -> io::Result<Socket> {
    Socket::open(Protocol::Route)
}
