//! Validated settings, and the intent they give on a particular host.

use super::read::{Environment, Given, Sources};
use super::reader::Reader;
use crate::intent::{Destinations, Dns, Intent};
use crate::value::{Cidr, Owner, ValueError};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why the options cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value does not parse.
    #[error("{given}: {error}")]
    Value {
        /// The value and its origin.
        given: Given,
        /// The parse error.
        error: ValueError,
    },
    /// A value parses, but is not one of the accepted values.
    #[error("{given}: {:?} is none of {allowed}", given.value)]
    Choice {
        /// The value and its origin.
        given: Given,
        /// The accepted values.
        allowed: &'static str,
    },
    /// `*` where it would exclude everything.
    #[error("{given}: \"*\" cannot be excluded, it would leave nothing to capture")]
    ExcludeAll {
        /// The value and its origin.
        given: Given,
    },
    /// More groups than fit in one rule.
    #[error("{given}: {count} groups, at most 64 are possible")]
    TooManyGroups {
        /// The value and its origin.
        given: Given,
        /// The number of groups.
        count: usize,
    },
    /// A loopback range that is not one.
    #[error("{given}: {:?} is not an IPv4 loopback range from /8 to /32", given.value)]
    Loopback {
        /// The value and its origin.
        given: Given,
    },
    /// Options that contradict each other.
    #[error("{given}: {problem}")]
    Conflict {
        /// The option that cannot be honoured.
        given: Given,
        /// Why.
        problem: &'static str,
    },
}

/// The back end that installs the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// nftables, by netlink.
    Nftables,
    /// The `iptables-restore` program, with automatic detection of the variant.
    Iptables,
    /// `iptables-legacy-restore`.
    IptablesLegacy,
    /// `iptables-nft-restore`.
    IptablesNft,
}

/// The state in which the rules are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialState {
    /// The present state of the switch if rules are installed already, else captured.
    Keep,
    /// This state.
    Set(crate::switch::State),
}

/// The facts about the host that the options depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequiredFacts {
    /// Search all addresses for an IPv6 one, not only the first address.
    pub dual_stack: bool,
    /// The DNS servers are needed.
    pub dns_servers: bool,
}

/// Facts about the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostFacts {
    /// IPv6 is in use.
    pub ipv6: bool,
    /// The servers in resolv.conf.
    pub dns_servers: Vec<IpAddr>,
    /// The id of the user called `ENVOY_USER`, if there is one.
    pub proxy_user: Option<u32>,
}

/// The options, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one per switch on the command line")]
pub struct Settings {
    pub(super) intent: Intent,
    pub(super) has_uids: bool,
    pub(super) has_gids: bool,
    pub(super) redirect_dns: bool,
    pub(super) capture_all_dns: bool,
    /// Dry run: print the changes and make none.
    pub dry_run: bool,
    /// Also write the printed rules to this file.
    pub dry_run_file: Option<PathBuf>,
    /// Print restore text rather than single commands.
    pub restore_format: bool,
    /// The destination port of validation probes.
    pub probe_port: u16,
    /// The timeout of validation probes.
    pub probe_timeout: Duration,
    /// Change no rules, routes or addresses.
    pub skip_rule_apply: bool,
    /// Check that capture works.
    pub run_validation: bool,
    /// Remove everything that remora installed.
    pub cleanup_only: bool,
    /// Replace installed rules, even incomplete or modified ones in remora's chains.
    pub reconcile: bool,
    /// Apply even when nothing has changed.
    pub force_apply: bool,
    /// Search all addresses for an IPv6 one, not only the first address.
    pub dual_stack: bool,
    /// The back end, if the options choose one.
    pub backend: Option<Backend>,
    /// The namespace to work in, if not the current one.
    pub network_namespace: Option<PathBuf>,
    /// Called on the host for a pod: do not read the host's users and groups.
    pub cni_mode: bool,
    /// The state of the switch after installation.
    pub state: InitialState,
    /// Whether the host has IPv6, if an option states it.
    pub host_ipv6: Option<bool>,
    /// The host's DNS servers, if an option states them.
    pub host_dns: Option<Vec<IpAddr>>,
    /// The user whose id is the proxy's when none is given.
    pub proxy_user: String,
    /// Warnings about values that were accepted leniently.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads flags (or annotations) over the environment.
    pub fn read(given: &[Given], environment: &Environment) -> Result<Self, SettingsError> {
        Reader {
            sources: Sources { given, environment },
            warnings: Vec::new(),
        }
        .settings()
    }

    /// The facts about the host that are needed to make an intent.
    pub fn required_facts(&self) -> RequiredFacts {
        RequiredFacts {
            dual_stack: self.dual_stack,
            dns_servers: self.redirect_dns && !self.capture_all_dns,
        }
    }

    /// The intent on this host, and warnings about options that have no effect on it.
    pub fn intent(&self, host: &HostFacts) -> (Intent, Vec<String>) {
        let mut warnings = Vec::new();
        let mut intent = self.intent.clone();
        intent.ipv6 = self.host_ipv6.unwrap_or(host.ipv6);
        if !self.has_uids {
            intent.proxy_uids = vec![Owner::Id(host.proxy_user.unwrap_or(1337))];
        }
        if !self.has_gids {
            intent.proxy_gids.clone_from(&intent.proxy_uids);
        }
        let servers = self.host_dns.as_ref().unwrap_or(&host.dns_servers);
        intent.dns = match (self.redirect_dns, self.capture_all_dns, servers.is_empty()) {
            (true, true, _) => Dns::All,
            (true, false, false) => Dns::Servers(servers.clone()),
            (true, false, true) => {
                warnings.push(
                    "DNS capture is off: the host has no DNS server and not all queries are captured".into(),
                );
                Dns::Off
            }
            (false, _, _) => Dns::Off,
        };
        if !intent.ipv6 && has_ipv6_range(&intent) {
            warnings.push("IPv6 ranges have no effect: the host has no IPv6 address".into());
        }
        (intent, warnings)
    }
}

fn has_ipv6_range(intent: &Intent) -> bool {
    let included: &[Cidr] = match &intent.destinations {
        Destinations::All => &[],
        Destinations::Ranges(ranges) => ranges,
    };
    included
        .iter()
        .chain(&intent.excluded_destinations)
        .any(|range| !range.is_ipv4())
}
