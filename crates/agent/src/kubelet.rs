//! Which clients are the kubelet of this pod's node.
//!
//! Hooks and probes that go through the agent bypass the mesh's policies, because the kubelet has no certificate. So the
//! agent must recognise the kubelet by its address. Which one the node uses to reach a pod depends on
//! the network plugin: the node's own address (`HOST_IP`), or the address of the bridge to which the pod is connected,
//! which is the pod's default gateway. Where a plugin uses yet another one (OVN-Kubernetes: the management port of the
//! node), `REMORA_KUBELET_SOURCES` names it, as addresses or ranges separated by commas.

use crate::settings::{Environment, SettingsError};
use remora_pod::cidr::Cidr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Environment variable with additional kubelet addresses.
pub(crate) const VARIABLE: &str = "REMORA_KUBELET_SOURCES";

/// Addresses from which hooks may be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletSources(Vec<Cidr>);

impl KubeletSources {
    /// The node's addresses, those of the pod itself, its default gateways and what the environment adds.
    pub(crate) fn resolve(
        env: Environment<'_>,
        gateways: &[IpAddr],
        own: &[IpAddr],
    ) -> Result<Self, SettingsError> {
        let mut sources: Vec<Cidr> = gateways.iter().chain(own).copied().map(host).collect();
        for name in ["HOST_IP", "HOST_IPS", VARIABLE] {
            for text in env.text(name).unwrap_or_default().split(',').map(str::trim) {
                if !text.is_empty() {
                    sources.push(source(name, text)?);
                }
            }
        }
        Ok(Self(sources))
    }

    /// Whether a client may run the application's hooks: the kubelet, or a process of this pod.
    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        is_local(peer) || (!is_carried(peer) && self.0.iter().any(|range| range.contains(peer)))
    }
}

impl fmt::Display for KubeletSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, range) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

/// Whether a process of this pod connected, over the loopback interface.
pub(crate) fn is_local(peer: IpAddr) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() && !is_carried(peer)
}

/// Whether the proxy connected on behalf of a client of the mesh. It uses these loopback addresses only for that.
fn is_carried(peer: IpAddr) -> bool {
    let carried: [IpAddr; 2] = [
        Ipv4Addr::new(127, 0, 0, 6).into(),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6).into(),
    ];
    carried.contains(&peer)
}

fn host(address: IpAddr) -> Cidr {
    Cidr::host(address.to_canonical())
}

fn source(name: &str, text: &str) -> Result<Cidr, SettingsError> {
    let address = text.parse().map(host);
    address
        .or_else(|_| text.parse())
        .map_err(|_| SettingsError::Value {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "an IP address or a range of addresses",
        })
}

#[cfg(test)]
mod tests {
    use super::{KubeletSources, is_local};
    use crate::settings::Environment;
    use std::net::IpAddr;

    fn sources(env: &[(&str, &str)], gateways: &[&str], own: &[&str]) -> KubeletSources {
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let parse = |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|a| a.parse().unwrap()).collect() };
        KubeletSources::resolve(Environment(&env), &parse(gateways), &parse(own)).unwrap()
    }

    #[test]
    fn what_comes_through_the_proxy_is_not_local() {
        for (peer, local) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.6", false),
            ("::ffff:127.0.0.6", false),
            ("::6", false),
            ("10.1.0.2", false),
        ] {
            assert_eq!(is_local(peer.parse().unwrap()), local, "{peer}");
        }
    }

    #[test]
    fn the_kubelet_is_known_by_the_nodes_address_the_gateway_or_the_environment() {
        let env = [
            ("HOST_IP", "192.168.1.10"),
            ("HOST_IPS", "192.168.1.10,fd00::10"),
            ("REMORA_KUBELET_SOURCES", "10.128.0.2, 100.64.0.0/16"),
        ];
        let known = sources(&env, &["10.244.0.1", "fe80::1"], &["10.244.0.7"]);
        for (peer, expected) in [
            ("192.168.1.10", true),
            ("::ffff:192.168.1.10", true),
            ("fd00::10", true),
            ("10.244.0.1", true),
            ("10.244.0.7", true),
            ("10.128.0.2", true),
            ("100.64.9.9", true),
            ("127.0.0.1", true),
            ("127.0.0.6", false),
            ("10.244.0.8", false),
            ("192.168.1.11", false),
            ("fd00::11", false),
        ] {
            assert_eq!(known.contains(peer.parse().unwrap()), expected, "{peer}");
        }
        assert!(!sources(&[], &[], &[]).contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_is_an_error() {
        let env = [("REMORA_KUBELET_SOURCES".to_owned(), "node-1".to_owned())].into();
        let error = KubeletSources::resolve(Environment(&env), &[], &[]).unwrap_err();
        assert!(
            error.to_string().contains("REMORA_KUBELET_SOURCES is node-1"),
            "{error}"
        );
    }
}
