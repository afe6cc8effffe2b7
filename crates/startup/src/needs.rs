//! Whether a process needs the network, as far as its container shows.
//!
//! Few pods declare this (`remora.dev/network.CONTAINER`), so it is inferred: from programs on the command line, from
//! well-known images, and from addresses in environment and arguments. The result includes the reason, and can be
//! "unknown".

use std::net::IpAddr;

use remora_pod::spec::{Container, PodView};

mod address;

pub use address::Destination;

/// Whether a process needs the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// It does not, with the reason.
    No(&'static str),
    /// It probably does, with the reason.
    Likely(String),
    /// Unknown.
    Unknown,
}

impl Need {
    /// Whether it probably needs the network.
    pub const fn is_likely(&self) -> bool {
        matches!(self, Self::Likely(_))
    }

    /// Whether it may need the network.
    pub const fn is_possible(&self) -> bool {
        !matches!(self, Self::No(_))
    }
}

/// Prefix of the annotation that declares the need; the container's name follows.
const NETWORK_ANNOTATION_PREFIX: &str = "remora.dev/network.";

/// Programs that do nothing without a network.
const NETWORK_PROGRAMS: [&str; 34] = [
    "curl",
    "wget",
    "nc",
    "ncat",
    "netcat",
    "telnet",
    "dig",
    "nslookup",
    "host",
    "ping",
    "git",
    "kubectl",
    "psql",
    "pg_isready",
    "mysql",
    "mysqladmin",
    "mongo",
    "mongosh",
    "redis-cli",
    "aws",
    "gcloud",
    "gsutil",
    "az",
    "vault",
    "migrate",
    "flyway",
    "liquibase",
    "alembic",
    "goose",
    "atlas",
    "consul",
    "nats",
    "pip",
    "npm",
];

/// Programs that only touch files.
const LOCAL_PROGRAMS: [&str; 15] = [
    "cp", "mv", "ln", "mkdir", "chmod", "chown", "touch", "true", "sleep", "echo", "sysctl", "cat", "tar",
    "iptables", "nft",
];

/// Parts of image or container names that indicate network use.
const NETWORK_NAMES: [&str; 16] = [
    "vault",
    "migrat",
    "flyway",
    "liquibase",
    "wait-for",
    "cloud-sql-proxy",
    "cloudsql-proxy",
    "git-sync",
    "download",
    "fetch",
    "collector",
    "otc-container",
    "fluent",
    "agent-init",
    "curl",
    "consul",
];

/// What a container's main process needs: as the pod declares, else as inferred.
pub fn in_pod(view: &PodView, container: &Container) -> Need {
    let key = format!("{NETWORK_ANNOTATION_PREFIX}{}", container.name);
    match view.annotation(&key) {
        Some("none") => Need::No("the pod declares it"),
        Some("direct" | "mesh") => Need::Likely(format!("{key} says so")),
        _ => of_container(container),
    }
}

/// What a container's main process needs, inferred from the container alone.
pub fn of_container(container: &Container) -> Need {
    let by_command = of_command(&container.command);
    if by_command.is_likely() {
        return by_command;
    }
    // otel: the operator's stock images only copy files; the network use is the kubelet's, when it pulls them.
    if let Need::No(why) = by_command {
        return Need::No(why);
    }
    if let Some(found) = address::of_container(container).first() {
        return Need::Likely(format!("{} names {found}", found.source));
    }
    let name = [&container.image, &container.name].into_iter().find_map(|text| {
        let text = text.to_ascii_lowercase();
        NETWORK_NAMES.iter().find(|n| text.contains(**n)).map(|_| text)
    });
    name.map_or(Need::Unknown, |n| {
        Need::Likely(format!("{n:?} is known to use the network"))
    })
}

/// What a command needs.
pub fn of_command(command: &[String]) -> Need {
    if let Some(found) = address::of_words(command).first() {
        return Need::Likely(format!("its command names {found}"));
    }
    let mut local = false;
    let mut other = false;
    for word in programs(command) {
        if let Some(program) = NETWORK_PROGRAMS.iter().find(|p| **p == word) {
            return Need::Likely(format!("it runs `{program}`"));
        }
        let is_local = LOCAL_PROGRAMS.contains(&word);
        local |= is_local;
        other |= !is_local;
    }
    if local && !other {
        Need::No("its command only touches files")
    } else {
        Need::Unknown
    }
}

/// The programs a command line runs: its first word, and those that begin a command in a shell script.
fn programs(command: &[String]) -> Vec<&str> {
    let Some(first) = command.first() else {
        return Vec::new();
    };
    let shell = matches!(base_name(first), "sh" | "bash" | "ash" | "dash");
    if !shell {
        return vec![base_name(first)];
    }
    let mut out = Vec::new();
    for script in command.iter().skip(1).filter(|w| !w.starts_with('-')) {
        for part in script.split(['\n', ';', '|', '&', '(', ')', '!']) {
            let skip = [
                "until", "while", "if", "do", "then", "else", "exec", "set", "time", "fi", "done", "esac",
            ];
            let mut words = part
                .split_whitespace()
                .skip_while(|w| skip.contains(w) || w.contains('='));
            out.extend(words.next().map(base_name).filter(|w| !w.starts_with('-')));
        }
    }
    out
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Destinations a container names in its environment and arguments.
pub fn destinations(container: &Container) -> Vec<Destination> {
    address::of_container(container)
}

/// Whether a host name or address is the pod itself.
fn is_local(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.is_empty()
        || host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|a| a.is_loopback() || a.is_unspecified())
}
