//! Just enough HTTP/1.1 for the demo application: one request a connection.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST: u64 = 64 * 1024;

/// A request, as far as anybody here cares.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) user_agent: String,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    pub(super) fn json(body: &serde_json::Value) -> Self {
        Self {
            status: 200,
            kind: "application/json",
            body: format!("{body}\n"),
        }
    }
}

/// What answers.
pub(super) type Handler = fn(&Request) -> Answer;

/// A server on threads of its own.
#[derive(Debug)]
pub(super) struct Server {
    busy: Arc<AtomicUsize>,
}

impl Server {
    pub(super) fn listen(port: u16, think: Duration, handler: Handler) -> io::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", port))?;
        let busy = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&busy);
        std::thread::Builder::new().name("accept".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                counted.fetch_add(1, Ordering::SeqCst);
                let served = std::thread::Builder::new().spawn({
                    let counted = Arc::clone(&counted);
                    move || {
                        // A client that breaks off is the client's business.
                        let _ = serve(stream, think, handler);
                        counted.fetch_sub(1, Ordering::SeqCst);
                    }
                });
                if served.is_err() {
                    counted.fetch_sub(1, Ordering::SeqCst);
                }
            }
        })?;
        Ok(Self { busy })
    }

    /// Waits until the requests in flight are answered.
    pub(super) fn drain(&self) {
        let end = Instant::now() + PATIENCE;
        while self.busy.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

fn serve(stream: TcpStream, think: Duration, handler: Handler) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?.take(LONGEST));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
    let mut user_agent = String::new();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("user-agent")
        {
            value.trim().clone_into(&mut user_agent);
        }
    }
    super::pause(think);
    let answer = handler(&Request { path, user_agent });
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        answer.status,
        if answer.status < 400 { "OK" } else { "Error" },
        answer.kind,
        answer.body.len(),
        answer.body
    )?;
    stream.flush()
}

/// The status and body of `http://HOST:PORT/PATH`.
pub(super) fn get(url: &str) -> io::Result<(u16, String)> {
    Target::of(url)?.get()
}

/// Somebody to ask more than once.
#[derive(Debug, Clone)]
pub(super) struct Target {
    addresses: Vec<SocketAddr>,
    host: String,
    path: String,
}

impl Target {
    /// Reads `http://HOST:PORT/PATH` and looks the host up.
    pub(super) fn of(url: &str) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "not an http:// address");
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address = if host.contains(':') {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        Ok(Self {
            addresses: address.to_socket_addrs()?.collect(),
            host: host.to_owned(),
            path: path.to_owned(),
        })
    }

    /// Asks, on a connection of its own.
    pub(super) fn get(&self) -> io::Result<(u16, String)> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for candidate in &self.addresses {
            match TcpStream::connect_timeout(candidate, PATIENCE) {
                Ok(stream) => return exchange(stream, &self.host, &self.path),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn exchange(mut stream: TcpStream, host: &str, path: &str) -> io::Result<(u16, String)> {
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: remora-demo\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.take(LONGEST).read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    match status {
        Some(status) => Ok((status, body.to_owned())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
