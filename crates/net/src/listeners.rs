//! Listening TCP sockets of a network namespace.
//!
//! Reading `/proc/net/tcp` makes the kernel walk its whole connection hash table, regardless of the namespace:
//! milliseconds on a machine with much memory. With `sock_diag` (netlink) and a filter for listening sockets the
//! kernel walks only the table of listeners.

use crate::netlink::{KernelError, Message, NLM_F_DUMP, NLM_F_REQUEST, Protocol, Socket};
use std::io;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const ADDRESS_FAMILIES: [u8; 2] = [2, 10];
const IPPROTO_TCP: u8 = 6;
const TCP_LISTEN: u8 = 10;
const PROC_TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// Lists the listening TCP sockets of one network namespace.
#[derive(Debug)]
pub struct Listeners {
    /// `None` where the kernel was built without `sock_diag`.
    socket: Option<Socket>,
}

impl Listeners {
    /// Opens the socket in the namespace of the calling thread. [`Self::ports`] must be called from a thread in the
    /// same namespace, because the fallback reads `/proc/thread-self`.
    pub fn open() -> io::Result<Self> {
        match Socket::open(Protocol::SocketDiagnosis) {
            Ok(socket) => Ok(Self { socket: Some(socket) }),
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(Self { socket: None }),
            Err(error) => Err(error),
        }
    }

    /// The ports with a listening socket, of both address families, in no particular order.
    pub fn ports(&mut self) -> io::Result<Vec<u16>> {
        if let Some(socket) = &mut self.socket {
            match dump_listeners(socket) {
                Ok(ports) => return Ok(ports),
                // The kernel has no `tcp_diag` module; the slower table in /proc has the same content.
                Err(error) if error.is_missing() || error.errno == libc::EOPNOTSUPP => self.socket = None,
                Err(error) => return Err(io::Error::from_raw_os_error(error.errno)),
            }
        }
        Ok(read_tables())
    }
}

fn dump_listeners(socket: &mut Socket) -> Result<Vec<u16>, KernelError> {
    let mut ports = Vec::new();
    for family in ADDRESS_FAMILIES {
        let found = socket.dump(
            |writer, sequence| {
                let flags = NLM_F_REQUEST | NLM_F_DUMP;
                writer.begin(SOCK_DIAG_BY_FAMILY, flags, sequence, &request(family));
                writer.end();
            },
            port_of,
        )?;
        ports.extend(found);
    }
    Ok(ports)
}

/// `struct inet_diag_req_v2` for listening sockets on any address.
fn request(family: u8) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[0] = family;
    bytes[1] = IPPROTO_TCP;
    bytes[4..8].copy_from_slice(&(1_u32 << TCP_LISTEN).to_ne_bytes());
    bytes
}

/// From `struct inet_diag_msg`; kernels that do not filter are filtered here.
fn port_of(message: &Message<'_>) -> Option<u16> {
    let head: &[u8; 6] = message.payload.first_chunk()?;
    (head[1] == TCP_LISTEN).then(|| u16::from_be_bytes([head[4], head[5]]))
}

fn read_tables() -> Vec<u16> {
    // A kernel without IPv6 has no second table.
    let tables = PROC_TABLES
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    tables
        .flat_map(|table| table.lines().filter_map(listening_port).collect::<Vec<_>>())
        .collect()
}

/// The local port in a line of `/proc/net/tcp`, if its socket listens.
fn listening_port(line: &str) -> Option<u16> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    if state != "0A" {
        return None;
    }
    u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn lines_of_proc_net_tcp_are_parsed() {
        let listening =
            "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 1 1";
        assert_eq!(listening_port(listening), Some(8080));
        assert_eq!(listening_port(&listening.replace(" 0A ", " 01 ")), None);
        assert_eq!(listening_port("  sl  local_address"), None);
    }

    /// Both sources list a listener of either family, and neither lists a connected socket.
    #[test]
    fn listeners_are_seen_while_they_listen() {
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        // Not every machine has IPv6.
        let six = TcpListener::bind("[::1]:0").ok();
        let port = four.local_addr().unwrap().port();
        let other = six.as_ref().map_or(port, |six| six.local_addr().unwrap().port());
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let caller = client.local_addr().unwrap().port();
        let mut listeners = Listeners::open().unwrap();
        for ports in [listeners.ports().unwrap(), read_tables()] {
            assert!(ports.contains(&port), "{ports:?}");
            assert!(ports.contains(&other), "{ports:?}");
            assert!(!ports.contains(&caller), "{ports:?}");
        }
        drop((four, client));
        assert!(!listeners.ports().unwrap().contains(&port));
    }

    /// Reading the table instead made the port watches of fifty concurrent pods wait for each other.
    #[test]
    fn listeners_come_from_sock_diag_where_the_kernel_has_it() {
        let mut listeners = Listeners::open().unwrap();
        listeners.ports().unwrap();
        assert!(
            listeners.socket.is_some(),
            "the kernel answers questions about sockets"
        );
    }

    #[test]
    fn a_kernel_without_sock_diag_falls_back_to_proc() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut listeners = Listeners { socket: None };
        let port = listener.local_addr().unwrap().port();
        assert!(listeners.ports().unwrap().contains(&port));
    }
}
