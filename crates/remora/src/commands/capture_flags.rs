//! The flags of `istio-iptables`, shared with every command that needs to know what would be captured.
//!
//! All values are texts: what they mean and which environment variables stand in for them is decided in
//! `remora_capture::options`, so that a pod's manifest and a command line are read alike.

use crate::settings;
use clap::Args;
use remora_capture::options::{Environment, Given, Origin};

/// What to capture, in Istio's words.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Capture (as istio-iptables)")]
pub(crate) struct CaptureFlags {
    /// Port of the proxy for outbound connections [default: 15001]
    #[arg(
        short = 'p',
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        overrides_with = "envoy_port"
    )]
    pub(crate) envoy_port: Option<String>,
    /// Port of the proxy for inbound connections [default: 15006]
    #[arg(
        short = 'z',
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        overrides_with = "inbound_capture_port"
    )]
    pub(crate) inbound_capture_port: Option<String>,
    /// Port of tunnels (HBONE), never captured [default: 15008]
    #[arg(
        short = 'e',
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        overrides_with = "inbound_tunnel_port"
    )]
    pub(crate) inbound_tunnel_port: Option<String>,
    /// Users whose traffic is not captured: the proxy's own [default: the user istio-proxy, else 1337]
    #[arg(
        short = 'u',
        long,
        value_name = "UIDS",
        allow_hyphen_values = true,
        overrides_with = "proxy_uid"
    )]
    pub(crate) proxy_uid: Option<String>,
    /// Groups whose traffic is not captured [default: as --proxy-uid]
    #[arg(
        short = 'g',
        long,
        value_name = "GIDS",
        allow_hyphen_values = true,
        overrides_with = "proxy_gid"
    )]
    pub(crate) proxy_gid: Option<String>,
    /// How inbound connections are taken over: REDIRECT or TPROXY
    #[arg(
        short = 'm',
        long,
        value_name = "MODE",
        allow_hyphen_values = true,
        overrides_with = "istio_inbound_interception_mode"
    )]
    pub(crate) istio_inbound_interception_mode: Option<String>,
    /// Inbound ports to capture; "*" is all, empty is none
    #[arg(
        short = 'b',
        long,
        value_name = "PORTS",
        allow_hyphen_values = true,
        overrides_with = "istio_inbound_ports"
    )]
    pub(crate) istio_inbound_ports: Option<String>,
    /// Inbound ports not to capture, when all others are
    #[arg(
        short = 'd',
        long,
        value_name = "PORTS",
        allow_hyphen_values = true,
        overrides_with = "istio_local_exclude_ports"
    )]
    pub(crate) istio_local_exclude_ports: Option<String>,
    /// Interfaces to leave alone in both directions
    #[arg(
        short = 'c',
        long,
        value_name = "NAMES",
        allow_hyphen_values = true,
        overrides_with = "istio_exclude_interfaces"
    )]
    pub(crate) istio_exclude_interfaces: Option<String>,
    /// Outbound destinations to capture; "*" is all, empty is none
    #[arg(
        short = 'i',
        long,
        value_name = "CIDRS",
        allow_hyphen_values = true,
        overrides_with = "istio_service_cidr"
    )]
    pub(crate) istio_service_cidr: Option<String>,
    /// Outbound destinations not to capture
    #[arg(
        short = 'x',
        long,
        value_name = "CIDRS",
        allow_hyphen_values = true,
        overrides_with = "istio_service_exclude_cidr"
    )]
    pub(crate) istio_service_exclude_cidr: Option<String>,
    /// Outbound ports to capture whatever the destination
    #[arg(
        short = 'q',
        long,
        value_name = "PORTS",
        allow_hyphen_values = true,
        overrides_with = "istio_outbound_ports"
    )]
    pub(crate) istio_outbound_ports: Option<String>,
    /// Outbound ports not to capture
    #[arg(
        short = 'o',
        long,
        value_name = "PORTS",
        allow_hyphen_values = true,
        overrides_with = "istio_local_outbound_ports_exclude"
    )]
    pub(crate) istio_local_outbound_ports_exclude: Option<String>,
    /// Interfaces whose incoming traffic counts as outbound (virtual machines)
    #[arg(
        short = 'k',
        long,
        value_name = "NAMES",
        allow_hyphen_values = true,
        overrides_with = "kube_virt_interfaces"
    )]
    pub(crate) kube_virt_interfaces: Option<String>,
    /// Mark on packets for the transparent listener [default: 1337]
    #[arg(
        short = 't',
        long,
        value_name = "MARK",
        allow_hyphen_values = true,
        overrides_with = "istio_inbound_tproxy_mark"
    )]
    pub(crate) istio_inbound_tproxy_mark: Option<String>,
    /// Routing table that delivers marked packets [default: 133]
    #[arg(
        short = 'r',
        long,
        value_name = "TABLE",
        allow_hyphen_values = true,
        overrides_with = "istio_inbound_tproxy_route_table"
    )]
    pub(crate) istio_inbound_tproxy_route_table: Option<String>,
    /// Print what would be done and touch nothing
    #[arg(short = 'n', long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "dry_run")]
    pub(crate) dry_run: Option<String>,
    /// Print text for iptables-restore rather than single commands [default: true]
    #[arg(short = 'f', long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "restore_format")]
    pub(crate) restore_format: Option<String>,
    /// Port that validation knocks at [default: 15002]
    #[arg(
        long,
        value_name = "PORT",
        allow_hyphen_values = true,
        overrides_with = "iptables_probe_port"
    )]
    pub(crate) iptables_probe_port: Option<String>,
    /// How long validation tries [default: 5s]
    #[arg(
        long,
        value_name = "DURATION",
        allow_hyphen_values = true,
        overrides_with = "probe_timeout"
    )]
    pub(crate) probe_timeout: Option<String>,
    /// Leave rules, routes and addresses alone
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "skip_rule_apply")]
    pub(crate) skip_rule_apply: Option<String>,
    /// Check that capture works; exit 126 if it does not
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "run_validation")]
    pub(crate) run_validation: Option<String>,
    /// Capture name queries to the servers in resolv.conf
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "redirect_dns")]
    pub(crate) redirect_dns: Option<String>,
    /// Capture all name queries
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "capture_all_dns")]
    pub(crate) capture_all_dns: Option<String>,
    /// Drop packets that belong to no known connection
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "drop_invalid")]
    pub(crate) drop_invalid: Option<String>,
    /// Capture IPv6 if any address is IPv6, not only the first
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "dual_stack")]
    pub(crate) dual_stack: Option<String>,
    /// Work in this network namespace
    #[arg(
        long,
        value_name = "PATH",
        allow_hyphen_values = true,
        overrides_with = "network_namespace"
    )]
    pub(crate) network_namespace: Option<String>,
    /// Called on the host for a pod: do not look users up
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "cni_mode")]
    pub(crate) cni_mode: Option<String>,
    /// Replace what an earlier run with other flags left behind
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "reconcile")]
    pub(crate) reconcile: Option<String>,
    /// Remove everything this command ever put in
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "cleanup_only")]
    pub(crate) cleanup_only: Option<String>,
    /// Apply even when nothing has changed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "force_apply")]
    pub(crate) force_apply: Option<String>,
    /// Use nftables (the default back end; a dry run then prints an nft script)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "native_nftables")]
    pub(crate) native_nftables: Option<String>,
    /// Use the iptables programs of this variant: legacy or nft
    #[arg(
        long,
        value_name = "VARIANT",
        allow_hyphen_values = true,
        overrides_with = "force_iptables_binary"
    )]
    pub(crate) force_iptables_binary: Option<String>,
    /// nftables (by netlink, needs no program) or iptables [default: nftables]
    #[arg(
        long,
        value_name = "NAME",
        allow_hyphen_values = true,
        overrides_with = "backend"
    )]
    pub(crate) backend: Option<String>,
    /// State of the switch afterwards: open, hold, closed or on [default: as it is, else closed]
    #[arg(
        long,
        value_name = "STATE",
        allow_hyphen_values = true,
        overrides_with = "state"
    )]
    pub(crate) state: Option<String>,
    /// Take the host to have IPv6 or not, whatever its addresses
    #[arg(
        long,
        value_name = "YES|NO",
        allow_hyphen_values = true,
        overrides_with = "host_ipv6"
    )]
    pub(crate) host_ipv6: Option<String>,
    /// Take these for the host's DNS servers
    #[arg(
        long,
        value_name = "ADDRS",
        allow_hyphen_values = true,
        overrides_with = "host_dns"
    )]
    pub(crate) host_dns: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_output_level",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_output_level"
    )]
    pub(crate) log_output_level: Option<String>,
    /// Accepted and ignored.
    #[arg(long = "log_as_json", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", overrides_with = "log_as_json")]
    pub(crate) log_as_json: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_caller",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_caller"
    )]
    pub(crate) log_caller: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_stacktrace_level",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_stacktrace_level"
    )]
    pub(crate) log_stacktrace_level: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_target",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_target"
    )]
    pub(crate) log_target: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_rotate",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_rotate"
    )]
    pub(crate) log_rotate: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_rotate_max_age",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_rotate_max_age"
    )]
    pub(crate) log_rotate_max_age: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_rotate_max_backups",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_rotate_max_backups"
    )]
    pub(crate) log_rotate_max_backups: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "log_rotate_max_size",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "log_rotate_max_size"
    )]
    pub(crate) log_rotate_max_size: Option<String>,
    /// Accepted and ignored.
    #[arg(
        long = "vklog",
        hide = true,
        allow_hyphen_values = true,
        overrides_with = "vklog"
    )]
    pub(crate) vklog: Option<String>,
}

impl CaptureFlags {
    /// The flags that were given, in the order of the table.
    pub(crate) fn given(&self) -> Vec<Given> {
        let all: [(&'static str, &Option<String>); 47] = [
            ("envoy-port", &self.envoy_port),
            ("inbound-capture-port", &self.inbound_capture_port),
            ("inbound-tunnel-port", &self.inbound_tunnel_port),
            ("proxy-uid", &self.proxy_uid),
            ("proxy-gid", &self.proxy_gid),
            (
                "istio-inbound-interception-mode",
                &self.istio_inbound_interception_mode,
            ),
            ("istio-inbound-ports", &self.istio_inbound_ports),
            ("istio-local-exclude-ports", &self.istio_local_exclude_ports),
            ("istio-exclude-interfaces", &self.istio_exclude_interfaces),
            ("istio-service-cidr", &self.istio_service_cidr),
            ("istio-service-exclude-cidr", &self.istio_service_exclude_cidr),
            ("istio-outbound-ports", &self.istio_outbound_ports),
            (
                "istio-local-outbound-ports-exclude",
                &self.istio_local_outbound_ports_exclude,
            ),
            ("kube-virt-interfaces", &self.kube_virt_interfaces),
            ("istio-inbound-tproxy-mark", &self.istio_inbound_tproxy_mark),
            (
                "istio-inbound-tproxy-route-table",
                &self.istio_inbound_tproxy_route_table,
            ),
            ("dry-run", &self.dry_run),
            ("restore-format", &self.restore_format),
            ("iptables-probe-port", &self.iptables_probe_port),
            ("probe-timeout", &self.probe_timeout),
            ("skip-rule-apply", &self.skip_rule_apply),
            ("run-validation", &self.run_validation),
            ("redirect-dns", &self.redirect_dns),
            ("capture-all-dns", &self.capture_all_dns),
            ("drop-invalid", &self.drop_invalid),
            ("dual-stack", &self.dual_stack),
            ("network-namespace", &self.network_namespace),
            ("cni-mode", &self.cni_mode),
            ("reconcile", &self.reconcile),
            ("cleanup-only", &self.cleanup_only),
            ("force-apply", &self.force_apply),
            ("native-nftables", &self.native_nftables),
            ("force-iptables-binary", &self.force_iptables_binary),
            ("backend", &self.backend),
            ("state", &self.state),
            ("host-ipv6", &self.host_ipv6),
            ("host-dns", &self.host_dns),
            ("log_output_level", &self.log_output_level),
            ("log_as_json", &self.log_as_json),
            ("log_caller", &self.log_caller),
            ("log_stacktrace_level", &self.log_stacktrace_level),
            ("log_target", &self.log_target),
            ("log_rotate", &self.log_rotate),
            ("log_rotate_max_age", &self.log_rotate_max_age),
            ("log_rotate_max_backups", &self.log_rotate_max_backups),
            ("log_rotate_max_size", &self.log_rotate_max_size),
            ("vklog", &self.vklog),
        ];
        let given = |(option, value): (&'static str, &Option<String>)| {
            Some(Given {
                option,
                value: value.clone()?,
                origin: Origin::Flag,
            })
        };
        all.into_iter().filter_map(given).collect()
    }
}

/// The environment as it is now.
pub(crate) fn environment() -> Environment {
    settings::all().into_iter().collect()
}
