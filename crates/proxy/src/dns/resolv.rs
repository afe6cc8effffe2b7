//! `resolv.conf`: whom to ask, and what short names are tried with.

use std::net::{IpAddr, SocketAddr};

/// The port of name servers.
pub const PORT: u16 = 53;
/// Those after the third are not asked.
// glibc: MAXNS.
const MOST_SERVERS: usize = 3;

/// What a `resolv.conf` says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resolv {
    /// Name servers, in order.
    pub servers: Vec<SocketAddr>,
    /// Search domains in small letters, without the last dot.
    pub search: Vec<String>,
    /// Whether servers take turns.
    pub rotate: bool,
    /// Name servers that are no addresses, as written.
    pub unusable: Vec<String>,
}

impl Resolv {
    /// Reads the text. Lines that are not understood are skipped, as resolvers do; the last `search` or `domain`
    /// counts.
    pub fn parse(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => words.next().into_iter().for_each(|word| read.server(word)),
                Some("search" | "domain") => {
                    let domains = words.map(|word| word.trim_end_matches('.').to_ascii_lowercase());
                    read.search = domains.filter(|domain| !domain.is_empty()).collect();
                }
                Some("options") => read.rotate |= words.any(|word| word == "rotate"),
                _ => {}
            }
        }
        read.servers.truncate(MOST_SERVERS);
        read
    }

    fn server(&mut self, word: &str) {
        match word.parse::<IpAddr>() {
            Ok(address) => self.servers.push(SocketAddr::new(address, PORT)),
            Err(_) => self.unusable.push(word.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Resolv;

    #[test]
    fn a_pods_file_is_read_as_a_resolver_reads_it() {
        let read = Resolv::parse(
            "# made by the kubelet\nsearch old.example\nnameserver 10.96.0.10\nnameserver fd00::a ; second\n\
             search shop.svc.Cluster.local. svc.cluster.local\nnameserver fe80::1%eth0\noptions ndots:5 rotate\n\
             nameserver\nsortlist 1.2.3.4\n",
        );
        assert_eq!(
            read.servers,
            ["10.96.0.10:53".parse().unwrap(), "[fd00::a]:53".parse().unwrap()]
        );
        assert_eq!(read.search, ["shop.svc.cluster.local", "svc.cluster.local"]);
        assert!(read.rotate);
        assert_eq!(read.unusable, ["fe80::1%eth0"]);
        assert_eq!(Resolv::parse(""), Resolv::default());
        let many = "nameserver 10.0.0.1\n".repeat(5);
        assert_eq!(Resolv::parse(&many).servers.len(), 3);
    }
}
