//! A small HTTP client for commands that query the sidecar of their own pod: blocking, one request per connection, with
//! a timeout and a size limit. It needs no runtime, and no resolver for IP addresses and `localhost`, because these
//! commands delay the start of a pod.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Size limit of a response; a larger one is an error.
const MAX_RESPONSE_BYTES: u64 = 256 << 20;

/// A URL with the scheme `http`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub path: String,
}

/// The text is not a usable URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a URL such as http://localhost:15021/healthz/ready")]
pub struct InvalidUrl(String);

impl std::str::FromStr for Url {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let wrong = || InvalidUrl(text.to_owned());
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, 80),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || !printable(host) || !printable(path) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            path: if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/{path}")
            },
        })
    }
}

impl Url {
    /// A URL of this pod's sidecar.
    pub fn local(port: u16, path: &str) -> Self {
        Self {
            host: "localhost".to_owned(),
            port,
            path: path.to_owned(),
        }
    }

    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let at = |address: IpAddr| SocketAddr::new(address, self.port);
        if self.host == "localhost" {
            return Ok(vec![
                at(Ipv4Addr::LOCALHOST.into()),
                at(Ipv6Addr::LOCALHOST.into()),
            ]);
        }
        match self.host.parse() {
            Ok(address) => Ok(vec![at(address)]),
            Err(_) => Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect()),
        }
    }
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body, without transfer encoding.
    pub body: Vec<u8>,
}

impl Reply {
    /// First value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value.as_str()))
    }
}

/// Sends one request and reads the whole response within `timeout`.
pub fn exchange(url: &Url, method: &str, body: &[u8], timeout: Duration) -> io::Result<Reply> {
    let until = Instant::now() + timeout;
    let mut stream = connect(url, until)?;
    let head = format!(
        "{method} {} HTTP/1.1\r\nhost: {}:{}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        url.path,
        url.host,
        url.port,
        body.len()
    );
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    loop {
        if let Some(reply) = parse(&answer, false)? {
            return Ok(reply);
        }
        stream.set_read_timeout(Some(left(until)?))?;
        let mut piece = [0; 16 << 10];
        let count = match stream.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if count == 0 {
            return parse(&answer, true)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&piece[..count]);
        if answer.len() as u64 > MAX_RESPONSE_BYTES {
            return Err(io::Error::other("the answer is too large"));
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

fn connect(url: &Url, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in url.addresses()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            // `localhost` tries IPv6 last. In a pod without IPv6 the refusal over IPv4 is the useful error.
            Err(error) if last.kind() == io::ErrorKind::ConnectionRefused => drop(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP")
}

/// The response, if it is complete. Without a length it is complete at the end of the stream.
fn parse(bytes: &[u8], ended: bool) -> io::Result<Option<Reply>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| broken())?;
    let rest = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .filter(|line| line.starts_with("HTTP/1."))
        .and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .ok_or_else(broken)?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect();
    let mut reply = Reply {
        status,
        headers,
        body: Vec::new(),
    };
    let chunked = reply
        .header("transfer-encoding")
        .is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
    let length = reply.header("content-length").map(str::parse::<usize>);
    let body = if chunked {
        unchunk(rest)?
    } else {
        match length {
            Some(Ok(length)) => rest.get(..length).map(<[u8]>::to_vec),
            Some(Err(_)) => return Err(broken()),
            None => ended.then(|| rest.to_vec()),
        }
    };
    Ok(body.map(|body| {
        reply.body = body;
        reply
    }))
}

/// Decodes a chunked body; `None` until the last chunk has arrived.
fn unchunk(mut rest: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return Ok(None);
        };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| broken())?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| broken())?;
        if size == 0 {
            return Ok(Some(body));
        }
        rest = &rest[end + 2..];
        let Some(chunk) = rest.get(..size) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk);
        rest = rest.get(size..).unwrap_or_default();
        match rest.get(..2) {
            Some(b"\r\n") => rest = &rest[2..],
            Some(_) => return Err(broken()),
            None => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Url, parse};

    #[test]
    fn urls_are_taken_apart() {
        let url = |text: &str| text.parse::<Url>().map(|url| (url.host, url.port, url.path));
        let expected = |host: &str, port, path: &str| Ok((host.to_owned(), port, path.to_owned()));
        assert_eq!(
            url("http://localhost:15021/healthz/ready"),
            expected("localhost", 15021, "/healthz/ready")
        );
        assert_eq!(url("http://[::1]:80?x"), expected("::1", 80, "/?x"));
        assert_eq!(url("http://[::1]"), expected("::1", 80, "/"));
        assert_eq!(url("http://a"), expected("a", 80, "/"));
        for wrong in ["https://a", "a:1", "http://", "http://a:b/", "http://a/ x"] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_complete_only_at_their_end() {
        let length = b"HTTP/1.1 503 x\r\nContent-Length: 3\r\nA: b\r\n\r\nabc";
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n";
        for (whole, status) in [(&length[..], 503), (&chunked[..], 200)] {
            let reply = parse(whole, false).unwrap().unwrap();
            assert_eq!((reply.status, &reply.body[..]), (status, &b"abc"[..]));
            for cut in 0..whole.len() - 4 {
                assert_eq!(parse(&whole[..cut], true).unwrap(), None, "{cut}");
            }
        }
        let reply = parse(length, false).unwrap().unwrap();
        assert_eq!(reply.header("a"), Some("b"));
        let endless = b"HTTP/1.0 200 OK\r\n\r\nab";
        assert_eq!(parse(endless, false).unwrap(), None);
        assert_eq!(parse(endless, true).unwrap().unwrap().body, b"ab");
        for wrong in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/1.1 200 x\r\ncontent-length: x\r\n\r\n",
            b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        ] {
            assert!(parse(wrong, true).is_err(), "{wrong:?}");
        }
    }
}
