//! Addresses in the environment and arguments of a container.

use std::fmt;
use std::net::IpAddr;

use super::is_local;
use remora_pod::spec::Container;

/// A destination in a container's environment or arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Host name or address.
    pub host: String,
    /// Port, when it is given or follows from the scheme.
    pub port: Option<u16>,
    /// The variable or argument that contains it.
    pub source: String,
}

impl Destination {
    /// Its address, when the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// Ports that follow from a scheme.
const SCHEME_PORTS: [(&str, u16); 12] = [
    ("http", 80),
    ("https", 443),
    ("postgres", 5432),
    ("postgresql", 5432),
    ("mysql", 3306),
    ("redis", 6379),
    ("rediss", 6379),
    ("mongodb", 27017),
    ("amqp", 5672),
    ("nats", 4222),
    ("grpc", 443),
    ("ldap", 389),
];

/// Small port numbers that are accepted without a scheme.
const WELL_KNOWN_PORTS: [u16; 8] = [22, 25, 53, 80, 88, 389, 443, 587];

/// All destinations outside the pod that environment and arguments name.
pub(super) fn of_container(container: &Container) -> Vec<Destination> {
    let mut out = of_words(&container.command);
    for (name, value) in &container.env {
        out.extend(in_text(value).into_iter().map(|(host, port)| Destination {
            host,
            port,
            source: name.clone(),
        }));
    }
    out.extend(split_pairs(container));
    out
}

/// All destinations outside the pod that words of a command name.
pub(super) fn of_words(words: &[String]) -> Vec<Destination> {
    let found = words.iter().flat_map(|w| in_text(w));
    found
        .map(|(host, port)| Destination {
            host,
            port,
            source: "its command".to_owned(),
        })
        .collect()
}

/// `DB_HOST` with `DB_PORT`.
fn split_pairs(container: &Container) -> Vec<Destination> {
    let mut out = Vec::new();
    for (name, host) in &container.env {
        let Some(stem) = name.strip_suffix("_HOST") else {
            continue;
        };
        let port = container
            .env(&format!("{stem}_PORT"))
            .and_then(|p| p.parse().ok());
        if port.is_some() && is_host(host) && !is_local(host) {
            out.push(Destination {
                host: host.clone(),
                port,
                source: name.clone(),
            });
        }
    }
    out
}

/// `scheme://host:port` and `host:port` anywhere in a text.
fn in_text(text: &str) -> Vec<(String, Option<u16>)> {
    let cut =
        |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | ';' | ',' | '(' | ')' | '|' | '`' | '=');
    text.split(cut).filter_map(one).collect()
}

fn one(word: &str) -> Option<(String, Option<u16>)> {
    if let Some((scheme, rest)) = word.split_once("://") {
        let default = SCHEME_PORTS.iter().find(|(s, _)| *s == scheme)?.1;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = split_port(authority);
        return (is_host(host) && !is_local(host)).then(|| (host.to_owned(), Some(port.unwrap_or(default))));
    }
    let (host, port) = split_port(word);
    // A bare `name:1234` is an address; `retries:100` is not, so small numbers have to be well-known ports.
    let port = port.filter(|p| *p >= 1024 || WELL_KNOWN_PORTS.contains(p))?;
    let named = host.contains(|c: char| c.is_ascii_alphabetic()) || host.parse::<IpAddr>().is_ok();
    (named && is_host(host) && !is_local(host)).then(|| (host.to_owned(), Some(port)))
}

fn split_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            (host, port.parse().ok())
        }
        _ => (authority, None),
    }
}

fn is_host(text: &str) -> bool {
    let bare = text.trim_matches(['[', ']']);
    !bare.is_empty()
        && bare.len() <= 253
        && (bare.parse::<IpAddr>().is_ok()
            || bare
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
                && bare.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::in_text;

    fn found(text: &str) -> Vec<String> {
        in_text(text)
            .into_iter()
            .map(|(h, p)| format!("{h}:{}", p.unwrap_or_default()))
            .collect()
    }

    #[test]
    fn addresses_are_found_where_people_write_them() {
        for (text, expected) in [
            ("http://collector:4318/v1/traces", "collector:4318"),
            ("https://vault.vault.svc", "vault.vault.svc:443"),
            ("postgres://user:secret@db.prod/app?sslmode=off", "db.prod:5432"),
            ("--upstream=10.1.2.3:9000", "10.1.2.3:9000"),
            ("until nc -z redis:6379; do sleep 1; done", "redis:6379"),
            ("tcp(mysql:3306)/db", "mysql:3306"),
            ("http://[fd00::1]:8080/", "[fd00::1]:8080"),
        ] {
            assert_eq!(found(text), [expected], "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_an_address_is_left_alone() {
        for text in [
            "localhost:8080",
            "127.0.0.1:5432",
            ":9090",
            "0.0.0.0:80",
            "http://localhost/",
            "chown 1000:1000 /data",
            "nginx:1.25",
            "retries:100",
            "12:30",
            "C:1234\\x",
            "file:///etc/passwd",
            "unix:///var/run/x.sock",
            "a:b:c",
            "://:",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }
}
