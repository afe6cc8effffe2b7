//! Sockets with the options that transparent proxying needs.

use crate::sys;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Where a redirected connection was going: `SO_ORIGINAL_DST`.
///
/// On a connection that was not redirected this is the socket's own address if connections are tracked in the
/// namespace, and an error if not: compare with the local address before drawing conclusions.
pub fn original_destination(stream: impl AsFd) -> io::Result<SocketAddr> {
    let fd = stream.as_fd();
    let domain = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    if domain == libc::AF_INET6 {
        let v6 = sys::address_option(fd, libc::SOL_IPV6, libc::IP6T_SO_ORIGINAL_DST);
        // A dual-stack listener's IPv4 connection is known to the IPv4 side only.
        return v6.or_else(|_| sys::address_option(fd, libc::SOL_IP, libc::SO_ORIGINAL_DST));
    }
    sys::address_option(fd, libc::SOL_IP, libc::SO_ORIGINAL_DST)
}

/// Lets a socket accept and send with addresses that are not this host's (TPROXY).
pub fn set_transparent(socket: impl AsFd, ipv6: bool) -> io::Result<()> {
    let (level, name) = if ipv6 {
        (libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
    } else {
        (libc::SOL_IP, libc::IP_TRANSPARENT)
    };
    sys::set_option(socket.as_fd(), level, name, 1)
}

/// Whether a socket accepts and sends with addresses that are not this host's.
pub fn is_transparent(socket: impl AsFd, ipv6: bool) -> io::Result<bool> {
    let (level, name) = if ipv6 {
        (libc::SOL_IPV6, libc::IPV6_TRANSPARENT)
    } else {
        (libc::SOL_IP, libc::IP_TRANSPARENT)
    };
    Ok(sys::option(socket.as_fd(), level, name)? != 0)
}

/// Whether a socket could not be made or accepted because the process or the machine has no descriptors left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Puts a mark on every packet a socket sends.
pub fn set_mark(socket: impl AsFd, mark: u32) -> io::Result<()> {
    sys::set_option(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_MARK,
        mark.cast_signed(),
    )
}

/// Lets the kernel choose the source port on `connect` rather than on `bind` (`IP_BIND_ADDRESS_NO_PORT`).
///
/// Then the port is occupied for one destination only, not for all destinations until long after the connection ended.
pub fn set_bind_address_no_port(socket: impl AsFd) -> io::Result<()> {
    // Also for IPv6: there is one option for both families.
    sys::set_option(socket.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// TCP keepalive: when the kernel probes an idle peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Interval between probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is closed.
    pub probes: u8,
}

/// Enables TCP keepalive. Connections that a listener accepts inherit it.
pub fn set_keepalive(socket: impl AsFd, keepalive: Keepalive) -> io::Result<()> {
    let socket = socket.as_fd();
    let seconds = |time: Duration| libc::c_int::try_from(time.as_secs()).unwrap_or(libc::c_int::MAX);
    sys::set_option(socket, libc::SOL_TCP, libc::TCP_KEEPIDLE, seconds(keepalive.idle))?;
    sys::set_option(
        socket,
        libc::SOL_TCP,
        libc::TCP_KEEPINTVL,
        seconds(keepalive.interval),
    )?;
    sys::set_option(socket, libc::SOL_TCP, libc::TCP_KEEPCNT, keepalive.probes.into())?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
}

/// The keepalive settings of a socket; `None` if keepalive is off.
pub fn keepalive(socket: impl AsFd) -> io::Result<Option<Keepalive>> {
    let socket = socket.as_fd();
    if sys::option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE)? == 0 {
        return Ok(None);
    }
    let read = |name| sys::option(socket, libc::SOL_TCP, name).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(Some(Keepalive {
        idle: Duration::from_secs(read(libc::TCP_KEEPIDLE)?.into()),
        interval: Duration::from_secs(read(libc::TCP_KEEPINTVL)?.into()),
        probes: u8::try_from(read(libc::TCP_KEEPCNT)?).unwrap_or(u8::MAX),
    }))
}

/// Sets the backlog of a listener: the number of connections that wait to be accepted.
pub fn set_backlog(listener: impl AsFd, count: u16) -> io::Result<()> {
    sys::listen(listener.as_fd(), count.into())
}

/// Options of a socket that are set before it is bound or connected.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpOptions {
    /// The local address to bind to.
    pub bind: Option<SocketAddr>,
    /// Allow addresses that are not this host's (`IP_TRANSPARENT`).
    pub transparent: bool,
    /// The mark of outgoing packets (`SO_MARK`).
    pub mark: Option<u32>,
    /// Share the port with other sockets of the same user.
    pub reuse_port: bool,
}

impl TcpOptions {
    fn socket(&self, address: SocketAddr, kind: libc::c_int) -> io::Result<OwnedFd> {
        let domain = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let fd = sys::socket(domain, kind, 0)?;
        sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        if self.reuse_port {
            sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        if domain == libc::AF_INET6 {
            sys::set_option(fd.as_fd(), libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        if self.transparent {
            set_transparent(&fd, domain == libc::AF_INET6)?;
        }
        if let Some(mark) = self.mark {
            set_mark(&fd, mark)?;
        }
        if let Some(bind) = self.bind {
            sys::bind(fd.as_fd(), bind)?;
        }
        Ok(fd)
    }

    /// Listens on an address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let options = Self {
            bind: Some(address),
            ..*self
        };
        let fd = options.socket(address, libc::SOCK_STREAM)?;
        sys::listen(fd.as_fd(), 1024)?;
        Ok(fd.into())
    }

    /// Connects to an address, for at most this long.
    pub fn connect(&self, address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        self.start(address)?
            .finish(timeout)?
            .map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Sends the SYN of a connection and does not wait for the answer.
    pub fn start(&self, address: SocketAddr) -> io::Result<Connecting> {
        let fd = self.socket(address, libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
        match sys::connect(fd.as_fd(), address) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        Ok(Connecting { fd })
    }

    /// Opens a UDP socket for an address of the same family as `bind`, bound there.
    pub fn udp(&self, bind: SocketAddr) -> io::Result<UdpSocket> {
        let options = Self {
            bind: Some(bind),
            ..*self
        };
        Ok(options.socket(bind, libc::SOCK_DGRAM)?.into())
    }
}

/// A connection whose handshake is not complete yet.
#[derive(Debug)]
pub struct Connecting {
    fd: OwnedFd,
}

impl Connecting {
    /// Waits until the connection is established or refused; returns itself if neither happens within `timeout`.
    pub fn finish(self, timeout: Duration) -> io::Result<Result<TcpStream, Self>> {
        if !wait(&[self.fd.as_fd()], libc::POLLOUT, timeout)?.contains(&true) {
            return Ok(Err(self));
        }
        match sys::option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        let stream = TcpStream::from(self.fd);
        stream.set_nonblocking(false)?;
        Ok(Ok(stream))
    }
}

/// Waits until at least one socket is readable and returns which are; none are if `timeout` passes first.
pub fn readable(sockets: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    wait(sockets, libc::POLLIN, timeout)
}

fn wait(sockets: &[BorrowedFd<'_>], events: libc::c_short, timeout: Duration) -> io::Result<Vec<bool>> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // Round up, so that the last part of a millisecond is not spent spinning.
        let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        match sys::poll(sockets, events, millis) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
