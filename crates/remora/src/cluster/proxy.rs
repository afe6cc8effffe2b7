//! The proxy on the way to an API server, by the variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
//!
//! kube reads the first for every server and compares the last with the proxy rather than with the server, so the
//! choice is made here, as kubectl makes it.

use crate::settings;
use std::net::IpAddr;

/// The proxy the environment wants for a server.
pub(super) fn of_environment(scheme: &str, host: &str, port: Option<u16>) -> Option<String> {
    let either = |name: &str| settings::variable(name).or_else(|| settings::variable(&name.to_lowercase()));
    let proxy = match scheme {
        "https" => either("HTTPS_PROXY"),
        _ => either("HTTP_PROXY"),
    }?;
    let spared = either("NO_PROXY").unwrap_or_default();
    (!is_direct(host, port, &spared)).then_some(proxy)
}

/// A proxy with its scheme; one without speaks HTTP.
pub(super) fn address(proxy: &str) -> String {
    if proxy.contains("://") {
        proxy.to_owned()
    } else {
        format!("http://{proxy}")
    }
}

/// Whether a server is reached without a proxy: this machine always, otherwise what the list names.
fn is_direct(host: &str, port: Option<u16>, spared: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    spared
        .split(',')
        .map(|entry| entry.trim().to_lowercase())
        .filter(|entry| !entry.is_empty())
        .any(|entry| covers(&entry, &host, ip, port))
}

fn covers(entry: &str, host: &str, ip: Option<IpAddr>, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/') {
        return ip.is_some_and(|ip| is_within(ip, network, bits));
    }
    if let Ok(listed) = entry.parse::<IpAddr>() {
        return ip == Some(listed);
    }
    let (name, only) = match entry.rsplit_once(':') {
        Some((name, only)) => (name, only.parse::<u16>().ok()),
        None => (entry, None),
    };
    if only.is_some() && only != port {
        return false;
    }
    let name = name.trim_start_matches('*');
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

fn is_within(ip: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let differing = match (ip, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    differing >= bits
}

#[cfg(test)]
mod tests {
    use super::is_direct;

    #[test]
    fn this_machine_needs_no_proxy() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_direct(host, None, ""), "{host}");
        }
        assert!(!is_direct("10.0.0.1", Some(6443), ""));
    }

    #[test]
    fn the_list_names_hosts_domains_addresses_and_networks() {
        let direct = |host, list| is_direct(host, Some(6443), list);
        assert!(direct("api.example.com", "other, example.com,,"));
        assert!(direct("API.example.com", ".example.com"));
        assert!(direct("api.example.com", "*.example.com"));
        assert!(!direct("example.com", ".example.com"));
        assert!(!direct("badexample.com", "example.com"));
        assert!(direct("api.example.com", "example.com:6443"));
        assert!(!direct("api.example.com", "example.com:443"));
        assert!(direct("10.1.2.3", "10.0.0.0/8"));
        assert!(!direct("11.1.2.3", "10.0.0.0/8"));
        assert!(direct("10.1.2.3", "0.0.0.0/0"));
        assert!(!direct("10.1.2.3", "10.0.0.0/x,fd00::/8"));
        assert!(direct("[fd00::5]", "fd00::/8"));
        assert!(direct("10.1.2.3", "10.1.2.3"));
        assert!(direct("anything", "*"));
    }
}
