//! Connections and where they end up.

use remora_net::socket::readable;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// Listeners by name; reports which of them a connection reached.
#[derive(Debug, Default)]
pub struct Watch {
    tcp: Vec<(String, TcpListener)>,
    udp: Vec<(String, UdpSocket)>,
}

/// What reached a listener.
#[derive(Debug)]
pub struct Seen {
    /// The listener's name.
    pub at: String,
    /// The accepted connection; none for a datagram.
    pub stream: Option<TcpStream>,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Result of sending the reply to a datagram.
    pub answered: std::io::Result<usize>,
}

impl Watch {
    /// Watches a listener.
    pub fn tcp(&mut self, name: impl Into<String>, listener: TcpListener) {
        self.tcp.push((name.into(), listener));
    }

    /// Watches a socket for datagrams.
    pub fn udp(&mut self, name: impl Into<String>, socket: UdpSocket) {
        self.udp.push((name.into(), socket));
    }

    /// The next connection or datagram, or `None` after `timeout`. A datagram is answered.
    pub fn next(&self, timeout: Duration) -> Option<Seen> {
        let fds: Vec<_> = self
            .tcp
            .iter()
            .map(|(_, l)| l.as_fd())
            .chain(self.udp.iter().map(|(_, s)| s.as_fd()))
            .collect();
        let ready = readable(&fds, timeout).ok()?;
        let index = ready.iter().position(|ready| *ready)?;
        if let Some((name, listener)) = self.tcp.get(index) {
            let (stream, from) = listener.accept().ok()?;
            return Some(Seen {
                at: name.clone(),
                stream: Some(stream),
                from,
                answered: Ok(0),
            });
        }
        let (name, socket) = self.udp.get(index - self.tcp.len())?;
        let (_, from) = socket.recv_from(&mut [0; 2048]).ok()?;
        let answered = socket.send_to(b"answer", from);
        Some(Seen {
            at: name.clone(),
            stream: None,
            from,
            answered,
        })
    }
}

/// The two ends of a connection.
#[derive(Debug)]
pub struct Pair {
    /// The client's end.
    pub client: TcpStream,
    /// The server's end.
    pub server: TcpStream,
}

/// Sends bytes both ways and checks that they arrive.
pub fn exchange(pair: &mut Pair) -> std::io::Result<()> {
    {
        let (from, to) = (&mut pair.client, &mut pair.server);
        pass(from, to)?;
        pass(to, from)?;
    }
    Ok(())
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) -> std::io::Result<()> {
    let message = *b"remora!!";
    let mut received = [0; 8];
    from.write_all(&message)?;
    to.set_read_timeout(Some(Duration::from_secs(5)))?;
    to.read_exact(&mut received)?;
    if received == message {
        Ok(())
    } else {
        Err(std::io::ErrorKind::InvalidData.into())
    }
}
