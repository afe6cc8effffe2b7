//! Reads the facts about the host that a plan depends on.
//!
//! Everything is read in the calling thread's network namespace and file system. The parsers are pure functions,
//! separate from the functions that read files.

use remora_net::address;
use remora_net::netlink::{KernelError, Protocol, Socket};
use remora_rules::Plan;
use remora_rules::options::{HostFacts, RequiredFacts};
use remora_rules::rule::{Match, OwnerKind, Rule};
use remora_rules::value::Owner;
use std::io;
use std::net::IpAddr;

/// Why the facts about the host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The addresses cannot be read.
    #[error("read the addresses of this network namespace")]
    Addresses(#[source] KernelError),
    /// The netlink socket could not be opened.
    #[error("open a netlink socket")]
    Open(#[source] io::Error),
    /// The namespace has no address, so there is no traffic to capture.
    #[error("no address besides loopback and link-local ones in this network namespace")]
    NoAddress,
    /// The DNS servers, which DNS capture needs, could not be read.
    #[error("read the DNS servers from {path}")]
    Resolv {
        /// The file.
        path: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A user or group that does not exist on this host.
    #[error("there is no {kind} {name:?} in {path}")]
    UnknownOwner {
        /// User or group.
        kind: &'static str,
        /// The name.
        name: String,
        /// The file it was looked up in.
        path: &'static str,
    },
}

impl FactsError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoAddress => Some("run in the pod's network namespace, or say --host-ipv6 yes|no"),
            Self::Resolv { .. } => Some("say --capture-all-dns, or --host-dns with the servers"),
            Self::UnknownOwner { .. } => Some("give the numeric id"),
            _ => None,
        }
    }
}

const RESOLV_CONF_PATH: &str = "/etc/resolv.conf";
const PASSWD_PATH: &str = "/etc/passwd";
const GROUP_PATH: &str = "/etc/group";

/// Reads the facts that the settings need. Facts that the options set explicitly are not looked up.
pub fn read_facts(settings: &remora_rules::options::Settings) -> Result<HostFacts, FactsError> {
    let needed = settings.required_facts();
    let ipv6 = match settings.host_ipv6 {
        Some(decreed) => decreed,
        None => uses_ipv6(&addresses()?, needed).ok_or(FactsError::NoAddress)?,
    };
    let dns_servers = if needed.dns_servers && settings.host_dns.is_none() {
        let text = std::fs::read_to_string(RESOLV_CONF_PATH).map_err(|source| FactsError::Resolv {
            path: RESOLV_CONF_PATH,
            source,
        })?;
        dns_servers(&text)
    } else {
        Vec::new()
    };
    // istio: the host's users are not the pod's.
    let proxy_user = if settings.cni_mode {
        None
    } else {
        id_of(
            &std::fs::read_to_string(PASSWD_PATH).unwrap_or_default(),
            &settings.proxy_user,
        )
    };
    Ok(HostFacts {
        ipv6,
        dns_servers,
        proxy_user,
    })
}

/// The addresses of this namespace, in the kernel's order.
fn addresses() -> Result<Vec<IpAddr>, FactsError> {
    let mut socket = Socket::open(Protocol::Route).map_err(FactsError::Open)?;
    let all = address::list(&mut socket).map_err(FactsError::Addresses)?;
    Ok(all.into_iter().map(|assigned| assigned.address).collect())
}

/// Whether IPv6 is captured; `None` if no address decides it.
// istio: the first address decides; with dual stack the first IPv6 one, wherever it is.
pub fn uses_ipv6(addresses: &[IpAddr], needed: RequiredFacts) -> Option<bool> {
    let mut telling = addresses
        .iter()
        .map(IpAddr::to_canonical)
        .filter(|address| is_significant(*address))
        .peekable();
    let first = *telling.peek()?;
    Some(if needed.dual_stack {
        telling.any(|address| address.is_ipv6())
    } else {
        first.is_ipv6()
    })
}

fn is_significant(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.octets()[..2] == [0xff, 0x02],
    };
    !address.is_loopback() && !link_local
}

/// The servers in a resolv.conf.
pub fn dns_servers(text: &str) -> Vec<IpAddr> {
    let mut servers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        // A scoped address (fe80::1%eth0) cannot be in a rule without its interface.
        let Some(server) = words.next().and_then(|word| word.parse().ok()) else {
            continue;
        };
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    servers
}

/// The number of a user or group, in the text of /etc/passwd or /etc/group.
// The static binary must not use the C library's lookup, which would load the host's name service modules.
pub fn id_of(text: &str, name: &str) -> Option<u32> {
    let mut entries = text.lines().map(|line| line.split(':'));
    let mut entry = entries.find(|entry| entry.clone().next() == Some(name))?;
    entry.nth(2)?.parse().ok()
}

/// Replaces names of users and groups by their numbers.
pub fn resolve_owners(plan: &mut Plan) -> Result<(), FactsError> {
    let named = |rule: &Rule| {
        rule.matches.iter().any(|m| {
            matches!(
                m,
                Match::Owner {
                    owner: Owner::Name(_),
                    ..
                }
            )
        })
    };
    let families = || std::iter::once(&plan.ipv4).chain(plan.ipv6.as_ref());
    if !families().flatten().any(named) {
        return Ok(());
    }
    let passwd = std::fs::read_to_string(PASSWD_PATH).unwrap_or_default();
    let group = std::fs::read_to_string(GROUP_PATH).unwrap_or_default();
    for rule in plan.ipv4.iter_mut().chain(plan.ipv6.iter_mut().flatten()) {
        for item in &mut rule.matches {
            let Match::Owner { kind, owner, .. } = item else {
                continue;
            };
            let Owner::Name(name) = owner else { continue };
            let (what, path, text) = match kind {
                OwnerKind::User => ("user", PASSWD_PATH, &passwd),
                OwnerKind::Group => ("group", GROUP_PATH, &group),
            };
            let unknown = || FactsError::UnknownOwner {
                kind: what,
                name: name.clone(),
                path,
            };
            *owner = Owner::Id(id_of(text, name).ok_or_else(unknown)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
