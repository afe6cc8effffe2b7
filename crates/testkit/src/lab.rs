//! A pod and its surroundings.

use crate::Actor;
use remora_net::address::{self, InterfaceAddress};
use remora_net::nft::{Batch, ChainSpec, Cmp, Connection, Expression, Hook, Meta};
use remora_net::{Namespace, link, route};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The addresses at the two ends of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The pod's IPv4 address.
    pub pod_v4: Ipv4Addr,
    /// The peer's IPv4 address.
    pub peer_v4: Ipv4Addr,
    /// The pod's IPv6 address.
    pub pod_v6: Ipv6Addr,
    /// The peer's IPv6 address.
    pub peer_v6: Ipv6Addr,
}

impl LinkAddresses {
    /// The addresses of link number `n`.
    pub const fn numbered(n: u8) -> Self {
        Self {
            pod_v4: Ipv4Addr::new(10, n, 0, 2),
            peer_v4: Ipv4Addr::new(10, n, 0, 1),
            pod_v6: Ipv6Addr::new(0xfd00, n as u16, 0, 0, 0, 0, 0, 2),
            peer_v6: Ipv6Addr::new(0xfd00, n as u16, 0, 0, 0, 0, 0, 1),
        }
    }

    /// The pod's address of a family.
    pub const fn pod(&self, ipv6: bool) -> IpAddr {
        if ipv6 {
            IpAddr::V6(self.pod_v6)
        } else {
            IpAddr::V4(self.pod_v4)
        }
    }

    /// The other end's address of a family.
    pub const fn peer(&self, ipv6: bool) -> IpAddr {
        if ipv6 {
            IpAddr::V6(self.peer_v6)
        } else {
            IpAddr::V4(self.peer_v4)
        }
    }
}

/// A pod with `eth0`, and a peer at the other end that everything is routed through.
#[derive(Debug)]
pub struct Lab {
    /// The pod's namespace.
    pub pod: Namespace,
    /// The namespace of the peer, outside of the pod.
    pub peer: Namespace,
    /// The addresses of `eth0`.
    pub eth0: LinkAddresses,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// Makes the namespaces and connects them.
    #[expect(
        clippy::expect_used,
        reason = "a test that has no namespaces must fail loudly"
    )]
    pub fn new() -> Self {
        let pod = Namespace::create().expect("make a network namespace: run the tests as root");
        let peer = Namespace::create().expect("make a network namespace: run the tests as root");
        for namespace in [&pod, &peer] {
            Actor::root(namespace).run(|| up("lo"));
        }
        let lab = Self {
            pod,
            peer,
            eth0: LinkAddresses::numbered(1),
        };
        connect(&lab.pod, "eth0", &lab.peer, "pod0", lab.eth0);
        default_route(&lab.pod, "eth0", [lab.eth0.peer(false), lab.eth0.peer(true)]);
        default_route(&lab.peer, "pod0", [lab.eth0.pod(false), lab.eth0.pod(true)]);
        lab
    }

    /// Connects the pod to another, new namespace by a link with this name and number (2 to 255). The new
    /// namespace routes everything through the pod.
    #[expect(
        clippy::expect_used,
        reason = "a test that has no namespaces must fail loudly"
    )]
    pub fn attach(&self, name: &'static str, number: u8) -> (Namespace, LinkAddresses) {
        let other = Namespace::create().expect("make a network namespace: run the tests as root");
        let addresses = LinkAddresses::numbered(number);
        Actor::root(&other).run(|| up("lo"));
        connect(&self.pod, name, &other, "pod0", addresses);
        default_route(&other, "pod0", [addresses.pod(false), addresses.pod(true)]);
        (other, addresses)
    }
}

/// Makes a namespace accept connections to every address and port, and redirects them to its port `port`.
#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
pub fn answer_for_everyone(namespace: &Namespace, port: u16) {
    Actor::root(namespace).run(move || {
        let mut batch = Batch::new("everyone");
        batch.add_table(None);
        let hook = Hook {
            kind: "nat",
            number: 0,
            priority: -100,
        };
        batch.add_chain(&ChainSpec {
            name: "prerouting",
            hook: Some(hook),
        });
        for protocol in [6, 17] {
            let rule = [
                Expression::Meta(Meta::Protocol),
                Expression::Compare(Cmp::Equal, vec![protocol]),
                Expression::Value(port.to_be_bytes().to_vec()),
                Expression::Redirect,
            ];
            batch.add_rule("prerouting", &rule);
        }
        Connection::open()
            .expect("netlink")
            .commit(batch)
            .expect("redirect everything");
    });
}

/// Enables IP forwarding in a namespace.
#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
pub fn forwarding(namespace: &Namespace) {
    Actor::root(namespace).run(|| {
        for path in [
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/net/ipv6/conf/all/forwarding",
        ] {
            std::fs::write(path, "1").expect("switch forwarding on in a namespace of the test's own");
        }
    });
}

#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
fn up(name: &str) {
    let index = link::index(name).expect("interface");
    let mut socket = link::socket().expect("netlink");
    link::set_up(&mut socket, index).expect("switch the interface on");
}

#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
fn connect(
    pod: &Namespace,
    name: &'static str,
    other: &Namespace,
    peer: &'static str,
    addresses: LinkAddresses,
) {
    let target = other.clone();
    Actor::root(pod).run(move || {
        let mut socket = link::socket().expect("netlink");
        link::add_veth(&mut socket, name, peer, &target).expect("make a veth pair");
    });
    let ends = [
        (pod, name, addresses.pod_v4, addresses.pod_v6),
        (other, peer, addresses.peer_v4, addresses.peer_v6),
    ];
    for (namespace, name, v4, v6) in ends {
        Actor::root(namespace).run(move || {
            let interface = link::index(name).expect("interface");
            let mut socket = link::socket().expect("netlink");
            for (address, prefix) in [(IpAddr::V4(v4), 24), (IpAddr::V6(v6), 64)] {
                address::add(
                    &mut socket,
                    InterfaceAddress {
                        interface,
                        address,
                        prefix,
                    },
                )
                .expect("add an address");
            }
            up(name);
        });
    }
    wait_for_local_address(pod, addresses.pod_v6);
    wait_for_local_address(other, addresses.peer_v6);
}

/// Waits until an IPv6 address is in the local routing table. The kernel adds it some time after the address was
/// assigned; until then packets to it leave by the default route.
#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
fn wait_for_local_address(namespace: &Namespace, address: Ipv6Addr) {
    const LOCAL_TABLE: u32 = 255;
    Actor::root(namespace).run(move || {
        let mut socket = link::socket().expect("netlink");
        let end = Instant::now() + Duration::from_secs(30);
        let own = |route: &route::Route| {
            route.table == LOCAL_TABLE && route.destination == Some((IpAddr::V6(address), 128)) && route.local
        };
        while !route::routes(&mut socket, route::Family::V6)
            .expect("routes")
            .iter()
            .any(own)
        {
            assert!(
                Instant::now() < end,
                "{address} did not become an address of its namespace"
            );
            std::thread::yield_now();
        }
    });
}

#[expect(
    clippy::expect_used,
    reason = "a test that has no namespaces must fail loudly"
)]
fn default_route(namespace: &Namespace, interface: &'static str, gateways: [IpAddr; 2]) {
    Actor::root(namespace).run(move || {
        let index = link::index(interface).expect("interface");
        let mut socket = link::socket().expect("netlink");
        for gateway in gateways {
            let any: IpAddr = match gateway {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            route::add_unicast(&mut socket, (any, 0), Some(gateway), index).expect("default route");
        }
    });
}
