//! One attempt of a probe or hook that is made from the node: HTTP, TCP, gRPC.
//!
//! k8s: the node dials the pod's address, so inbound capture applies; the status of an HTTP answer counts from 200 to
//! 399; redirects are followed on the same host only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use remora_net::Namespace;
use remora_pod::view;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

mod grpc;
mod tls;

/// How much of an answer is read.
const LONGEST: u64 = 10 * 1024;
const REDIRECTS: usize = 10;

/// Whom to dial, and what to say.
#[derive(Debug, Clone)]
pub struct Attempt {
    node: Namespace,
    address: Option<IpAddr>,
    port: Option<u16>,
    path: String,
    headers: Vec<(String, String)>,
    service: String,
    agent: &'static str,
    secure: bool,
}

/// An HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Where it sends us.
    pub location: Option<String>,
}

impl Attempt {
    /// Reads a probe or hook; `pod` is who is dialled unless it names a host.
    pub fn new(
        node: Namespace,
        raw: &Value,
        pod: Option<Ipv4Addr>,
        port: Option<u16>,
        agent: &'static str,
    ) -> Self {
        let http = raw.get("httpGet").unwrap_or(&Value::Null);
        let tcp = raw.get("tcpSocket").unwrap_or(&Value::Null);
        let host = [http, tcp].iter().find_map(|h| view::text(h, &["host"]));
        let address = host.filter(|h| !h.is_empty()).and_then(|h| h.parse().ok());
        let header = |header: &Value| {
            let value = view::text(header, &["value"]).unwrap_or_default();
            (view::name(header).to_owned(), value.to_owned())
        };
        let path = view::text(http, &["path"])
            .filter(|p| !p.is_empty())
            .unwrap_or("/");
        Self {
            node,
            address: address.or(pod.map(IpAddr::V4)),
            port,
            path: if path.starts_with('/') {
                path.to_owned()
            } else {
                format!("/{path}")
            },
            headers: view::list(http, &["httpHeaders"]).iter().map(header).collect(),
            service: view::text(raw, &["grpc", "service"])
                .unwrap_or_default()
                .to_owned(),
            agent,
            secure: view::text(http, &["scheme"]).is_some_and(|s| s.eq_ignore_ascii_case("HTTPS")),
        }
    }

    /// Whether there is nothing to dial, because the pod has no port of that name.
    pub fn has_no_port(&self) -> bool {
        self.port.is_none()
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let nowhere = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let address = SocketAddr::new(self.address.ok_or_else(nowhere)?, self.port.ok_or_else(nowhere)?);
        dial(&self.node, address).await
    }

    /// Whether a connection can be made.
    pub async fn tcp(&self, patience: Duration) -> bool {
        matches!(tokio::time::timeout(patience, self.connect()).await, Ok(Ok(_)))
    }

    /// Whether the answer, after redirects, is a good one.
    pub async fn http_succeeds(&self, patience: Duration) -> bool {
        let followed = async {
            let mut attempt = self.clone();
            for _ in 0..=REDIRECTS {
                let answer = attempt.exchange().await.ok()?;
                match answer.location.filter(|_| (300..400).contains(&answer.status)) {
                    Some(next) if next.starts_with('/') => attempt.path = next,
                    // k8s: a redirect to another host counts as success and is not followed.
                    _ => return Some((200..400).contains(&answer.status)),
                }
            }
            None
        };
        matches!(tokio::time::timeout(patience, followed).await, Ok(Some(true)))
    }

    /// One request, whatever the answer says.
    pub async fn http(&self, patience: Duration) -> io::Result<Answer> {
        tokio::time::timeout(patience, self.exchange()).await?
    }

    async fn exchange(&self) -> io::Result<Answer> {
        let stream = self.connect().await?;
        match self.address.filter(|_| self.secure) {
            Some(address) => self.talk(tls::over(stream, address).await?).await,
            None => self.talk(stream).await,
        }
    }

    async fn talk(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Answer> {
        stream.write_all(self.request().as_bytes()).await?;
        let mut bytes = Vec::new();
        let mut limited = stream.take(LONGEST);
        // A peer that resets after its answer has answered.
        let read = limited.read_to_end(&mut bytes).await;
        match parse(&bytes) {
            Some(answer) => Ok(answer),
            None => Err(read.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into())),
        }
    }

    fn request(&self) -> String {
        let own = |wanted: &str| {
            let found = self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.clone())
        };
        let host = || {
            let address = self.address.map(|a| a.to_string()).unwrap_or_default();
            format!("{address}:{}", self.port.unwrap_or(0))
        };
        let mut text = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nConnection: close\r\n",
            self.path,
            own("host").unwrap_or_else(host),
            own("user-agent").unwrap_or_else(|| self.agent.to_owned()),
        );
        if own("accept").is_none() {
            text.push_str("Accept: */*\r\n");
        }
        let plain = |name: &str| {
            !["host", "user-agent"]
                .iter()
                .any(|n| name.eq_ignore_ascii_case(n))
        };
        let clean = |text: &str| !text.contains(['\r', '\n']);
        for (name, value) in self.headers.iter().filter(|(n, _)| plain(n)) {
            if clean(name) && clean(value) && !value.is_empty() {
                text.extend([name, ": ", value, "\r\n"]);
            }
        }
        text.push_str("\r\n");
        text
    }

    /// Whether the health service of gRPC says that it serves.
    pub async fn grpc(&self, patience: Duration) -> bool {
        let asked = async {
            let stream = self.connect().await?;
            grpc::serves(stream, &self.service).await
        };
        matches!(tokio::time::timeout(patience, asked).await, Ok(Ok(true)))
    }
}

/// Connects from inside a namespace.
pub(crate) async fn dial(namespace: &Namespace, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = namespace.run(|| match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(address).await
}

/// The status line and the header that matters.
fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split("\r\n");
    let mut words = lines.next()?.split(' ');
    if !words.next()?.starts_with("HTTP/1.") {
        return None;
    }
    let status = words.next()?.parse().ok()?;
    let location = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("location"))
        .map(|(_, value)| value.trim().to_owned());
    Some(Answer { status, location })
}

#[cfg(test)]
mod tests {
    use super::{Answer, Attempt, parse};
    use remora_net::Namespace;
    use serde_json::json;

    #[test]
    fn requests_are_a_kubelets() {
        let raw = json!({"httpGet": {"path": "/ready", "httpHeaders": [{"name": "Host", "value": "me"},
            {"name": "X", "value": "y"}]}});
        let here = Namespace::current().unwrap();
        let attempt = Attempt::new(
            here,
            &raw,
            Some([10, 0, 0, 1].into()),
            Some(80),
            "kube-probe/1.38",
        );
        assert_eq!(
            attempt.request(),
            "GET /ready HTTP/1.1\r\nHost: me\r\nUser-Agent: kube-probe/1.38\r\nConnection: close\r\n\
             Accept: */*\r\nX: y\r\n\r\n"
        );
    }

    #[test]
    fn answers_and_nonsense() {
        let answer = |status, location: Option<&str>| {
            let location = location.map(str::to_owned);
            Some(Answer { status, location })
        };
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n"), answer(200, None));
        assert_eq!(
            parse(b"HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n"),
            answer(302, Some("/x"))
        );
        assert_eq!(parse(b"SSH-2.0\r\n"), None);
        assert_eq!(parse(b""), None);
    }
}
