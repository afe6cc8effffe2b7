//! The network of one run: a node and the pods around it, each in a network namespace of its own.
//!
//! Every pod has a pair of interfaces to the node, an address of its own and a route to everything through the node,
//! so that all traffic between pods passes there: Service addresses are translated in one place, for meshed pods and
//! others. The node's own address is what probes come from.
//!
//! Nothing here touches the namespace the program was started in, and everything vanishes with the last process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remora_net::address::{self, InterfaceAddress};
use remora_net::netlink::KernelError;
use remora_net::nft::{Connection, TransactionError};
use remora_net::{Namespace, link, route};

use crate::services::{CONTROL_ADDRESS, DNS_ADDRESS, Forward};

mod rules;

/// The node's address, which is every pod's gateway.
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Where addresses of Services are.
const SERVICE_RANGE: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(10, 96, 0, 0)), 16);
const FIRST_POD: u32 = u32::from_be_bytes([10, 244, 0, 2]);

/// Something could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A namespace.
    #[error("{what}")]
    Namespace {
        /// What was being done.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// An interface, address or route.
    #[error("{what}")]
    Kernel {
        /// What was being done.
        what: &'static str,
        /// Why not.
        #[source]
        source: KernelError,
    },
    /// Rules.
    #[error("write the rules of the node")]
    Rules(#[from] TransactionError),
}

impl NetworkError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Namespace { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run it as root, or allow unprivileged user namespaces")
            }
            _ => None,
        }
    }
}

fn namespace(what: &'static str) -> impl Fn(io::Error) -> NetworkError {
    move |source| NetworkError::Namespace { what, source }
}

fn kernel(what: &'static str) -> impl Fn(KernelError) -> NetworkError {
    move |source| NetworkError::Kernel { what, source }
}

/// The node: a namespace that all pods are connected to.
#[derive(Debug)]
pub struct Node {
    namespace: Namespace,
    pods: AtomicU32,
    /// To its rules. Kept, because closing one that changed something takes the kernel a while.
    rules: Mutex<Connection>,
}

/// A pod's place in the network.
#[derive(Debug, Clone)]
pub struct PodNetwork {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Node {
    /// Makes the node.
    pub fn create() -> Result<Self, NetworkError> {
        let made = Namespace::create().map_err(namespace("make a network namespace for the node"))?;
        let rules = in_namespace(&made, || {
            let mut socket = link::socket().map_err(namespace("open netlink"))?;
            let interface = up(&mut socket, "lo")?;
            for own in [NODE_ADDRESS, DNS_ADDRESS, CONTROL_ADDRESS] {
                assign(&mut socket, interface, own, 32)?;
            }
            // So that the node's own connections to Services get as far as the rules.
            route::add_unicast(&mut socket, SERVICE_RANGE, None, interface)
                .map_err(kernel("add a route to the Services"))?;
            for (path, value) in [
                ("/proc/sys/net/ipv4/ip_forward", "1"),
                ("/proc/sys/net/ipv4/ip_local_port_range", "1024\t65000"),
            ] {
                std::fs::write(path, value).map_err(namespace("set up forwarding in the node"))?;
            }
            let mut rules = Connection::open().map_err(namespace("open netlink"))?;
            rules::install(&mut rules)?;
            Ok(rules)
        })?;
        Ok(Self {
            namespace: made,
            pods: AtomicU32::new(0),
            rules: Mutex::new(rules),
        })
    }

    /// The node's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The address of the next pod.
    pub fn next_address(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(FIRST_POD + self.pods.fetch_add(1, Ordering::Relaxed))
    }

    /// Connects a pod's namespace.
    pub fn attach(&self, pod: &Namespace, address: Ipv4Addr) -> Result<(), NetworkError> {
        let name = interface_of(address);
        let target = pod.clone();
        in_namespace(&self.namespace, || {
            let mut socket = link::socket().map_err(namespace("open netlink"))?;
            link::add_veth(&mut socket, &name, "eth0", &target).map_err(kernel("connect the pod"))?;
            let index = up(&mut socket, &name)?;
            route::add_unicast(&mut socket, (address.into(), 32), None, index)
                .map_err(kernel("add a route to the pod"))
        })?;
        in_namespace(pod, || {
            let mut socket = link::socket().map_err(namespace("open netlink"))?;
            up(&mut socket, "lo")?;
            let index = link::index("eth0").map_err(namespace("find the pod's interface"))?;
            assign(&mut socket, index, address, 32)?;
            up(&mut socket, "eth0")?;
            let gateway = (IpAddr::V4(NODE_ADDRESS), 32);
            route::add_unicast(&mut socket, gateway, None, index)
                .map_err(kernel("add a route to the node"))?;
            let everything = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            route::add_unicast(&mut socket, everything, Some(NODE_ADDRESS.into()), index)
                .map_err(kernel("add a default route"))
        })
    }

    /// Takes a pod off the network. It is gone already if its namespace is.
    pub fn detach(&self, address: Ipv4Addr) -> Result<(), NetworkError> {
        let name = interface_of(address);
        in_namespace(&self.namespace, || {
            let Ok(index) = link::index(&name) else {
                return Ok(());
            };
            let mut socket = link::socket().map_err(namespace("open netlink"))?;
            link::delete(&mut socket, index).map_err(kernel("disconnect the pod"))
        })
    }

    /// Sends TCP connections of pods to the outside to a port of the node.
    pub(crate) fn lead_outside(&self, to: SocketAddrV4) -> Result<(), NetworkError> {
        rules::lead_outside(&mut self.rules(), to)
    }

    /// Sends connections to Service addresses where they belong, from now on.
    pub fn forward(&self, forwards: &[Forward]) -> Result<(), NetworkError> {
        rules::replace(&mut self.rules(), forwards)
    }

    fn rules(&self) -> MutexGuard<'_, Connection> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node's end of a pod's pair of interfaces: at most 15 letters.
fn interface_of(address: Ipv4Addr) -> String {
    let [_, _, third, fourth] = address.octets();
    format!("pod{third}.{fourth}")
}

fn in_namespace<T: Send>(
    inside: &Namespace,
    work: impl FnOnce() -> Result<T, NetworkError> + Send,
) -> Result<T, NetworkError> {
    inside.run(work).map_err(namespace("enter a network namespace"))?
}

fn up(socket: &mut remora_net::netlink::Socket, name: &str) -> Result<u32, NetworkError> {
    let index = link::index(name).map_err(namespace("find an interface"))?;
    link::set_up(socket, index).map_err(kernel("switch an interface on"))?;
    Ok(index)
}

fn assign(
    socket: &mut remora_net::netlink::Socket,
    interface: u32,
    own: Ipv4Addr,
    prefix: u8,
) -> Result<(), NetworkError> {
    let assigned = InterfaceAddress {
        interface,
        address: own.into(),
        prefix,
    };
    address::add(socket, assigned).map_err(kernel("add an address"))
}
