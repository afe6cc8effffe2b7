//! One table of every option: the only place where names are written down.

/// What an option's value looks like on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A flag with a value.
    Text,
    /// A boolean flag, which means true without a value.
    Switch,
    /// Not a flag: only an environment variable, with this default.
    Variable(&'static str),
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Its identity in this program.
    pub name: Name,
    /// The long name without dashes, or the variable's name if it has no flag.
    pub long: &'static str,
    /// The letter, if it has one.
    pub short: Option<char>,
    /// Environment variables that set it; a later one wins over an earlier one, the flag over all.
    pub env: &'static [&'static str],
    /// Whether the flag takes a value.
    pub kind: Kind,
    /// Accepted so that existing manifests keep working, and without any effect here.
    pub ignored: bool,
    /// The placeholder of the value in the help.
    pub value_name: &'static str,
    /// One line of help.
    pub help: &'static str,
}

/// Declares [`Name`] and [`OPTIONS`] together, so that neither can have an entry that the other lacks.
macro_rules! options {
    ($($name:ident: $long:literal, $short:expr, $env:expr, $kind:expr, $value:literal, $help:literal;)*) => {
        /// The options, one variant each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "the table's help text describes each of them")]
        pub enum Name {
            $($name,)*
        }

        /// Every option. Flags come in the order of the help.
        // istio: the variable is the long name in capitals (tools/istio-iptables/pkg/cmd/root.go). ENVOY_PORT is
        // honoured as in 1.5, although the flag has no variable today. Flags after `force-iptables-binary` up to
        // the log flags are our own; the log flags are those that the injection template passes.
        pub const OPTIONS: &[Spec] = &[
            $(Spec {
                name: Name::$name,
                long: $long,
                short: $short,
                env: &$env,
                kind: $kind,
                ignored: $help.is_empty(),
                value_name: $value,
                help: $help,
            },)*
        ];

        impl Name {
            /// The entry in the table.
            pub const fn spec(self) -> &'static Spec {
                match self {
                    $(Self::$name => &OPTIONS[Self::$name as usize],)*
                }
            }
        }
    };
}

options! {
    EnvoyPort: "envoy-port", Some('p'), ["ENVOY_PORT"], Kind::Text, "PORT",
        "Proxy port for outbound connections [default: 15001]";
    InboundCapturePort: "inbound-capture-port", Some('z'), ["INBOUND_CAPTURE_PORT"], Kind::Text, "PORT",
        "Proxy port for inbound connections [default: 15006]";
    InboundTunnelPort: "inbound-tunnel-port", Some('e'), ["INBOUND_TUNNEL_PORT"], Kind::Text, "PORT",
        "HBONE tunnel port; never captured [default: 15008]";
    ProxyUid: "proxy-uid", Some('u'), ["PROXY_UID"], Kind::Text, "UIDS",
        "User ids of the proxy; their traffic is not captured [default: the user istio-proxy, else 1337]";
    ProxyGid: "proxy-gid", Some('g'), ["PROXY_GID"], Kind::Text, "GIDS",
        "Group ids of the proxy; their traffic is not captured [default: as --proxy-uid]";
    IstioInboundInterceptionMode: "istio-inbound-interception-mode", Some('m'), ["ISTIO_INBOUND_INTERCEPTION_MODE"], Kind::Text, "MODE",
        "How inbound connections are captured: REDIRECT or TPROXY";
    IstioInboundPorts: "istio-inbound-ports", Some('b'), ["ISTIO_INBOUND_PORTS"], Kind::Text, "PORTS",
        "Inbound ports to capture; \"*\" is all, empty is none";
    IstioLocalExcludePorts: "istio-local-exclude-ports", Some('d'), ["ISTIO_LOCAL_EXCLUDE_PORTS"], Kind::Text, "PORTS",
        "Inbound ports to exclude when all others are captured";
    IstioExcludeInterfaces: "istio-exclude-interfaces", Some('c'), ["ISTIO_EXCLUDE_INTERFACES"], Kind::Text, "NAMES",
        "Interfaces to exclude in both directions";
    IstioServiceCidr: "istio-service-cidr", Some('i'), ["ISTIO_SERVICE_CIDR"], Kind::Text, "CIDRS",
        "Outbound destinations to capture; \"*\" is all, empty is none";
    IstioServiceExcludeCidr: "istio-service-exclude-cidr", Some('x'), ["ISTIO_SERVICE_EXCLUDE_CIDR"], Kind::Text, "CIDRS",
        "Outbound destinations to exclude";
    IstioOutboundPorts: "istio-outbound-ports", Some('q'), ["ISTIO_OUTBOUND_PORTS"], Kind::Text, "PORTS",
        "Outbound ports to capture whatever the destination";
    IstioLocalOutboundPortsExclude: "istio-local-outbound-ports-exclude", Some('o'), ["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"], Kind::Text, "PORTS",
        "Outbound ports to exclude";
    KubeVirtInterfaces: "kube-virt-interfaces", Some('k'), ["KUBE_VIRT_INTERFACES"], Kind::Text, "NAMES",
        "Interfaces of virtual machines: their inbound traffic is treated as outbound";
    IstioInboundTproxyMark: "istio-inbound-tproxy-mark", Some('t'), ["ISTIO_INBOUND_TPROXY_MARK"], Kind::Text, "MARK",
        "Packet mark for the transparent listener [default: 1337]";
    IstioInboundTproxyRouteTable: "istio-inbound-tproxy-route-table", Some('r'), ["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"], Kind::Text, "TABLE",
        "Routing table for marked packets [default: 133]";
    DryRun: "dry-run", Some('n'), ["DRY_RUN"], Kind::Switch, "BOOL",
        "Print the rules and change nothing";
    RestoreFormat: "restore-format", Some('f'), ["RESTORE_FORMAT"], Kind::Switch, "BOOL",
        "Print input for iptables-restore instead of single commands [default: true]";
    IptablesProbePort: "iptables-probe-port", None, ["IPTABLES_PROBE_PORT"], Kind::Text, "PORT",
        "Port that validation connects to [default: 15002]";
    ProbeTimeout: "probe-timeout", None, ["PROBE_TIMEOUT"], Kind::Text, "DURATION",
        "Timeout of validation [default: 5s]";
    SkipRuleApply: "skip-rule-apply", None, ["SKIP_RULE_APPLY"], Kind::Switch, "BOOL",
        "Do not change rules, routes and addresses";
    RunValidation: "run-validation", None, ["RUN_VALIDATION"], Kind::Switch, "BOOL",
        "Check that capture works; exit with 126 if it does not";
    RedirectDns: "redirect-dns", None, ["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"], Kind::Switch, "BOOL",
        "Capture DNS queries to the servers in resolv.conf";
    CaptureAllDns: "capture-all-dns", None, ["CAPTURE_ALL_DNS"], Kind::Switch, "BOOL",
        "Capture all DNS queries";
    DropInvalid: "drop-invalid", None, ["DROP_INVALID", "INVALID_DROP"], Kind::Switch, "BOOL",
        "Drop packets in conntrack state INVALID";
    DualStack: "dual-stack", None, ["DUAL_STACK", "ISTIO_DUAL_STACK"], Kind::Switch, "BOOL",
        "Capture IPv6 if any address is IPv6, not only the first";
    NetworkNamespace: "network-namespace", None, ["NETWORK_NAMESPACE"], Kind::Text, "PATH",
        "Path of the network namespace to work in";
    CniMode: "cni-mode", None, ["CNI_MODE"], Kind::Switch, "BOOL",
        "Run on the host for a pod: do not look up users of the host";
    Reconcile: "reconcile", None, ["RECONCILE"], Kind::Switch, "BOOL",
        "Replace the rules of an earlier run with other flags";
    CleanupOnly: "cleanup-only", None, ["CLEANUP_ONLY"], Kind::Switch, "BOOL",
        "Remove all rules, routes and addresses of this command";
    ForceApply: "force-apply", None, ["FORCE_APPLY"], Kind::Switch, "BOOL",
        "Apply the rules even if nothing changed";
    NativeNftables: "native-nftables", None, ["NATIVE_NFTABLES"], Kind::Switch, "BOOL",
        "Use nftables (the default back end); a dry run then prints an nft script";
    ForceIptablesBinary: "force-iptables-binary", None, ["FORCE_IPTABLES_BINARY"], Kind::Text, "VARIANT",
        "Use the iptables programs of this variant: legacy or nft";
    Backend: "backend", None, ["REMORA_CAPTURE_BACKEND"], Kind::Text, "NAME",
        "nftables (by netlink, without programs) or iptables [default: nftables]";
    State: "state", None, ["REMORA_CAPTURE_STATE"], Kind::Text, "STATE",
        "State of the capture switch afterwards: open, hold, closed or on [default: unchanged, else closed]";
    HostIpv6: "host-ipv6", None, [], Kind::Text, "YES|NO",
        "Assume that the host has IPv6, or not, instead of reading its addresses";
    HostDns: "host-dns", None, [], Kind::Text, "ADDRS",
        "Assume these DNS servers instead of reading resolv.conf";
    LogOutputLevel: "log_output_level", None, [], Kind::Text, "",
        "";
    LogAsJson: "log_as_json", None, [], Kind::Switch, "",
        "";
    LogCaller: "log_caller", None, [], Kind::Text, "",
        "";
    LogStacktraceLevel: "log_stacktrace_level", None, [], Kind::Text, "",
        "";
    LogTarget: "log_target", None, [], Kind::Text, "",
        "";
    LogRotate: "log_rotate", None, [], Kind::Text, "",
        "";
    LogRotateMaxAge: "log_rotate_max_age", None, [], Kind::Text, "",
        "";
    LogRotateMaxBackups: "log_rotate_max_backups", None, [], Kind::Text, "",
        "";
    LogRotateMaxSize: "log_rotate_max_size", None, [], Kind::Text, "",
        "";
    Vklog: "vklog", None, [], Kind::Text, "",
        "";
    LoopbackCidr: "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", None, ["ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"], Kind::Variable("127.0.0.1/32"), "",
        "IPv4 range that is treated as loopback";
    OwnerGroups: "ISTIO_OUTBOUND_OWNER_GROUPS", None, ["ISTIO_OUTBOUND_OWNER_GROUPS"], Kind::Variable("*"), "",
        "Groups whose outbound traffic is captured, at most 64";
    OwnerGroupsExclude: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", None, ["ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE"], Kind::Variable(""), "",
        "Groups whose outbound traffic is not captured, when all others are";
    EnvoyUser: "ENVOY_USER", None, ["ENVOY_USER"], Kind::Variable("istio-proxy"), "",
        "User whose id is the proxy's when none is given";
    DryRunFilePath: "DRY_RUN_FILE_PATH", None, ["DRY_RUN_FILE_PATH"], Kind::Variable(""), "",
        "File that a dry run also writes to";
}

/// The flag with this long name.
pub fn find(long: &str) -> Option<&'static Spec> {
    OPTIONS
        .iter()
        .find(|spec| spec.long == long && !matches!(spec.kind, Kind::Variable(_)))
}
