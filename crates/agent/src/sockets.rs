//! Listening sockets, on every address of both families.

use remora_net::socket::TcpOptions;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::{TcpListener, UdpSocket};

/// A port could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct ListenError {
    /// Address that could not be bound.
    pub address: SocketAddr,
    /// Error of the system.
    #[source]
    pub source: io::Error,
}

impl ListenError {
    /// How to fix it.
    pub fn hint(&self) -> Option<&'static str> {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                Some("another container of this pod listens there: these ports belong to the sidecar")
            }
            io::ErrorKind::PermissionDenied => Some(
                "interception mode TPROXY needs the capability NET_ADMIN, which the sidecar does not have",
            ),
            _ => None,
        }
    }
}

/// Listens on a port for IPv4 and IPv6. In a pod without one of the families only the other is used.
pub(crate) fn everywhere(port: u16) -> Result<Vec<TcpListener>, ListenError> {
    on_all(port, TcpOptions::default())
}

/// The same, on a port that another process of the same user may listen on as well.
pub(crate) fn shared(port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let options = TcpOptions {
        reuse_port: true,
        ..TcpOptions::default()
    };
    on_all(port, options)
}

/// The same, for captured connections; with `transparent` for TPROXY instead of REDIRECT.
pub(crate) fn captured(port: u16, transparent: bool) -> Result<Vec<TcpListener>, ListenError> {
    let options = TcpOptions {
        transparent,
        ..TcpOptions::default()
    };
    on_all(port, options)
}

fn on_all(port: u16, options: TcpOptions) -> Result<Vec<TcpListener>, ListenError> {
    let addresses = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    on(addresses, options)
}

fn on(addresses: [SocketAddr; 2], options: TcpOptions) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners = Vec::new();
    let mut absent = None;
    for address in addresses {
        match listen(address, options) {
            Ok(listener) => listeners.push(listener),
            Err(source) if is_absent(&source) => absent = Some(ListenError { address, source }),
            Err(source) => return Err(ListenError { address, source }),
        }
    }
    match absent {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Listens on loopback, for processes of the pod only.
pub(crate) fn local(port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    on(addresses, TcpOptions::default())
}

/// DNS sockets on the loopback addresses, to which captured queries are redirected.
pub(crate) fn names(port: u16) -> Result<remora_proxy::dns::Sockets, ListenError> {
    let mut sockets = remora_proxy::dns::Sockets::default();
    for address in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ] {
        let open = || {
            let udp = TcpOptions::default().udp(address)?;
            udp.set_nonblocking(true)?;
            Ok((UdpSocket::from_std(udp)?, listen(address, TcpOptions::default())?))
        };
        match open() {
            Ok((udp, tcp)) => {
                sockets.udp.push(udp);
                sockets.tcp.push(tcp);
            }
            Err(source) if is_absent(&source) && address.is_ipv6() => {}
            Err(source) => return Err(ListenError { address, source }),
        }
    }
    Ok(sockets)
}

fn listen(address: SocketAddr, options: TcpOptions) -> io::Result<TcpListener> {
    let listener = options.listen(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether the error means that the kernel lacks the address family, or that it is disabled.
fn is_absent(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}
