//! TCP connections to others, with a limit on the wait.

mod batched;

pub(crate) use batched::Batched;

use remora_net::socket::{Keepalive, set_keepalive};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};

/// A peer that vanished without a word is noticed within half an hour, not only when the idle timeout ends.
// istio: ztunnel asks after 180 s, every 180 s, nine times.
pub(crate) const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_mins(3),
    interval: Duration::from_mins(3),
    probes: 9,
};

/// A connection from wherever the kernel likes.
pub(crate) async fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let socket = socket(address)?;
    set_keepalive(&socket, KEEPALIVE)?;
    dial(socket, address, patience).await
}

/// As whom the application is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaker {
    /// The proxy.
    // istio: 127.0.0.6 or ::6, by which the capture rules know these connections and leave them alone.
    Proxy,
    /// The caller, whose address is kept; the capture rules know the mark.
    // istio: what interception mode TPROXY does.
    Caller(IpAddr, u32),
}

impl Speaker {
    fn address(self, like: SocketAddr) -> IpAddr {
        match (self, like) {
            (Self::Caller(address, _), _) => address,
            (Self::Proxy, SocketAddr::V4(_)) => Ipv4Addr::new(127, 0, 0, 6).into(),
            (Self::Proxy, SocketAddr::V6(_)) => Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
        }
    }
}

/// A connection to the pod's own application.
pub(crate) async fn connect_application(
    address: SocketAddr,
    speaker: Speaker,
    patience: Duration,
) -> io::Result<TcpStream> {
    let socket = socket(address)?;
    // All these connections have one source address: without this they would share its ports with those that
    // ended within the last minute, whatever their destinations.
    remora_net::socket::set_bind_address_no_port(&socket)?;
    if let Speaker::Caller(_, mark) = speaker {
        remora_net::socket::set_transparent(&socket, address.is_ipv6())?;
        remora_net::socket::set_mark(&socket, mark)?;
    }
    socket.bind(SocketAddr::new(speaker.address(address), 0))?;
    dial(socket, address, patience).await
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }
}

async fn dial(socket: TcpSocket, address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(patience, socket.connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::{KEEPALIVE, connect};
    use remora_net::socket::{keepalive, set_keepalive};
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn silent_peers_are_asked_on_both_sides() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        set_keepalive(&listener, KEEPALIVE).unwrap();
        let to = listener.local_addr().unwrap();
        let dialled = connect(to, Duration::from_secs(10)).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert_eq!(keepalive(&dialled).unwrap(), Some(KEEPALIVE));
        assert_eq!(
            keepalive(&accepted).unwrap(),
            Some(KEEPALIVE),
            "taken over from the listener"
        );
        let other = tokio::net::TcpStream::connect(to).await.unwrap();
        assert_eq!(keepalive(&other).unwrap(), None);
    }
}
