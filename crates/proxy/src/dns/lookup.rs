//! Addresses of a name, asked of the machine's or pod's name servers directly.
//!
//! Not through the C library: a static program cannot load the host's resolver, and its lookups block a thread. All
//! names a short one may stand for are asked for at once, so that a search list costs one round trip and not eight.

use super::decide::Transport;
use super::packet::{A, AAAA, IN, Query};
use super::resolv::Resolv;
use super::upstream::{AskError, Upstream};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const HEADER: usize = 12;
/// Everything before the flags of a question that wants recursion, and one question.
const QUESTION: [u8; HEADER] = [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];

/// Looks a name up, by `/etc/hosts` and `/etc/resolv.conf`.
pub async fn lookup(host: &str) -> io::Result<Vec<IpAddr>> {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let known = in_hosts(&hosts, host);
    if !known.is_empty() {
        return Ok(known);
    }
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let resolv = Resolv::parse(&text);
    let names = candidates(host, &resolv.search, dots_wanted(&text));
    let upstream = Upstream::new(resolv.servers, resolv.rotate, PATIENCE);
    ask(host, &names, &upstream).await
}

/// The first name that has addresses counts.
async fn ask(host: &str, names: &[String], upstream: &Upstream) -> io::Result<Vec<IpAddr>> {
    let asked = names.iter().map(|name| both(name, upstream));
    let mut trouble = None;
    for answer in join_all(asked).await {
        match answer {
            Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
            Ok(_) => {}
            Err(error) => trouble = Some(error),
        }
    }
    let nobody = || io::Error::new(io::ErrorKind::NotFound, format!("nobody knows the name {host}"));
    Err(trouble.unwrap_or_else(nobody))
}

/// All of them at once, in one task; the results in their order.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Some(Box::pin(future)), None)).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (future, done) in &mut waiting {
            let Some(running) = future else { continue };
            match running.as_mut().poll(context) {
                std::task::Poll::Ready(output) => {
                    *done = Some(output);
                    *future = None;
                }
                std::task::Poll::Pending => pending = true,
            }
        }
        if pending {
            std::task::Poll::Pending
        } else {
            std::task::Poll::Ready(())
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

/// An error and why.
fn in_full(error: &AskError) -> String {
    use std::error::Error as _;
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Addresses of both families, IPv4 first.
async fn both(name: &str, upstream: &Upstream) -> io::Result<Vec<IpAddr>> {
    let one = async |kind: u16| {
        let Some(bytes) = question(name, kind) else {
            return Ok(Vec::new());
        };
        let query = Query::read(&bytes).map_err(|_| io::Error::other("no question"))?;
        let answer = upstream
            .ask(&query, Transport::Udp)
            .await
            .map_err(|error| io::Error::other(in_full(&error)))?;
        Ok::<_, io::Error>(addresses(&answer).unwrap_or_default())
    };
    let (v4, v6) = tokio::join!(one(A), one(AAAA));
    match (v4, v6) {
        (Ok(v4), Ok(v6)) => Ok([v4, v6].concat()),
        // One family is enough.
        (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// What a name may stand for, in order.
// resolv.conf(5): names with fewer dots than wanted are tried with the search list first; a last dot means exactly this.
fn candidates(host: &str, search: &[String], dots_wanted: usize) -> Vec<String> {
    if let Some(exact) = host.strip_suffix('.') {
        return vec![exact.to_owned()];
    }
    let searched = search.iter().map(|domain| format!("{host}.{domain}"));
    let whole = std::iter::once(host.to_owned());
    if host.matches('.').count() < dots_wanted {
        searched.chain(whole).collect()
    } else {
        whole.chain(searched).collect()
    }
}

fn dots_wanted(resolv: &str) -> usize {
    let words = resolv
        .lines()
        .filter_map(|line| line.trim().strip_prefix("options"))
        .flat_map(str::split_whitespace);
    words
        .rev()
        .find_map(|word| word.strip_prefix("ndots:")?.parse().ok())
        .unwrap_or(1)
}

fn in_hosts(hosts: &str, host: &str) -> Vec<IpAddr> {
    let lines = hosts
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words
                .any(|name| name.eq_ignore_ascii_case(host))
                .then_some(address)
        })
        .collect()
}

/// A question, if the name can be one of DNS.
fn question(name: &str, kind: u16) -> Option<Vec<u8>> {
    const LONGEST: usize = 253;
    if name.len() > LONGEST {
        return None;
    }
    let mut bytes = QUESTION.to_vec();
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..64).contains(length))?;
        bytes.push(length);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&IN.to_be_bytes());
    Some(bytes)
}

/// The addresses in an answer, whatever names lead to them; nothing if it cannot be read.
fn addresses(answer: &[u8]) -> Option<Vec<IpAddr>> {
    let half = |at: usize| Some(u16::from_be_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let (questions, records) = (half(4)?, half(6)?);
    let mut at = HEADER;
    for _ in 0..questions {
        at = skip_name(answer, at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..records {
        at = skip_name(answer, at)?;
        let (kind, length) = (half(at)?, usize::from(half(at + 8)?));
        let data = answer.get(at + 10..at + 10 + length)?;
        match (kind, data.len()) {
            (A, 4) => found.push(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into()),
            (AAAA, 16) => found.push(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into()),
            _ => {}
        }
        at += 10 + length;
    }
    Some(found)
}

/// Where a name ends. A reference to elsewhere is its end; nothing is followed.
fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{addresses, ask, candidates, dots_wanted, in_hosts, question};
    use crate::dns::packet::{A, Code, Query};
    use crate::dns::upstream::Upstream;
    use std::net::IpAddr;
    use std::time::Duration;
    use tokio::net::UdpSocket;

    #[test]
    fn short_names_are_tried_as_resolvers_do() {
        let search = ["shop.svc.cluster.local".to_owned(), "cluster.local".to_owned()];
        assert_eq!(
            candidates("istiod.istio-system.svc", &search, 5),
            [
                "istiod.istio-system.svc.shop.svc.cluster.local",
                "istiod.istio-system.svc.cluster.local",
                "istiod.istio-system.svc"
            ]
        );
        assert_eq!(candidates("a.b", &search[1..], 1), ["a.b", "a.b.cluster.local"]);
        assert_eq!(candidates("a.", &search, 5), ["a"]);
        assert_eq!(dots_wanted("nameserver 1.1.1.1\noptions timeout:1 ndots:5\n"), 5);
        assert_eq!(dots_wanted(""), 1);
        let hosts = "127.0.0.1 localhost\n# 10.0.0.9 no\n10.0.0.1 a ISTIOD # x\nfd00::1 istiod\n";
        let expected: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(in_hosts(hosts, "istiod"), expected);
        assert!(question(&"a".repeat(64), A).is_none() && question("a..b", A).is_none());
    }

    #[tokio::test]
    async fn the_first_name_with_addresses_counts() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let query = Query::read(&buffer[..length]).unwrap();
                let answer = match (query.name(), query.kind) {
                    (Some("b" | "c"), A) => query.addresses(None, &["10.0.0.7".parse().unwrap()], 512),
                    (Some("b"), _) => query.addresses(None, &[], 512),
                    _ => query.code(Code::NoSuchName),
                };
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        let upstream = Upstream::new(vec![server], false, Duration::from_secs(20));
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let found = ask("x", &names(&["a", "b", "c"]), &upstream).await.unwrap();
        assert_eq!(found, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        let error = ask("x", &names(&["a"]), &upstream).await.unwrap_err();
        assert_eq!(error.to_string(), "nobody knows the name x");
    }

    #[test]
    fn broken_answers_are_no_answers() {
        let bytes = question("a.b", A).unwrap();
        let query = Query::read(&bytes).unwrap();
        let answer = query.addresses(Some("c.d"), &["10.0.0.7".parse().unwrap()], 512);
        assert_eq!(addresses(&answer), Some(vec!["10.0.0.7".parse().unwrap()]));
        for cut in 0..answer.len() {
            let _ = addresses(&answer[..cut]);
        }
        assert_eq!(addresses(&answer[..answer.len() - 1]), None);
    }
}
