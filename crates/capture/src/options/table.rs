//! One table of every option: the only place where names are written down.

/// What an option's value looks like on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Takes a value.
    Text,
    /// May stand alone, meaning true.
    Switch,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// The long name, without dashes.
    pub long: &'static str,
    /// The letter, if it has one.
    pub short: Option<char>,
    /// Environment variables that set it; a later one wins over an earlier one, the flag over all.
    pub env: &'static [&'static str],
    /// With or without a value.
    pub kind: Kind,
    /// Accepted so that existing manifests keep working, and without any effect here.
    pub ignored: bool,
}

const fn text(long: &'static str, short: Option<char>, env: &'static [&'static str]) -> Spec {
    Spec {
        long,
        short,
        env,
        kind: Kind::Text,
        ignored: false,
    }
}

const fn switch(long: &'static str, short: Option<char>, env: &'static [&'static str]) -> Spec {
    Spec {
        long,
        short,
        env,
        kind: Kind::Switch,
        ignored: false,
    }
}

const fn log(long: &'static str, kind: Kind) -> Spec {
    Spec {
        long,
        short: None,
        env: &[],
        kind,
        ignored: true,
    }
}

/// Every option that is a flag.
// istio: the variable is the long name in capitals (tools/istio-iptables/pkg/cmd/root.go). ENVOY_PORT is
// honoured as in 1.5, although the flag has no variable today. Flags after `force-iptables-binary` up to the
// log flags are our own; the log flags are what the injection template passes.
pub const OPTIONS: &[Spec] = &[
    text("envoy-port", Some('p'), &["ENVOY_PORT"]),
    text("inbound-capture-port", Some('z'), &["INBOUND_CAPTURE_PORT"]),
    text("inbound-tunnel-port", Some('e'), &["INBOUND_TUNNEL_PORT"]),
    text("proxy-uid", Some('u'), &["PROXY_UID"]),
    text("proxy-gid", Some('g'), &["PROXY_GID"]),
    text(
        "istio-inbound-interception-mode",
        Some('m'),
        &["ISTIO_INBOUND_INTERCEPTION_MODE"],
    ),
    text("istio-inbound-ports", Some('b'), &["ISTIO_INBOUND_PORTS"]),
    text(
        "istio-local-exclude-ports",
        Some('d'),
        &["ISTIO_LOCAL_EXCLUDE_PORTS"],
    ),
    text(
        "istio-exclude-interfaces",
        Some('c'),
        &["ISTIO_EXCLUDE_INTERFACES"],
    ),
    text("istio-service-cidr", Some('i'), &["ISTIO_SERVICE_CIDR"]),
    text(
        "istio-service-exclude-cidr",
        Some('x'),
        &["ISTIO_SERVICE_EXCLUDE_CIDR"],
    ),
    text("istio-outbound-ports", Some('q'), &["ISTIO_OUTBOUND_PORTS"]),
    text(
        "istio-local-outbound-ports-exclude",
        Some('o'),
        &["ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE"],
    ),
    text("kube-virt-interfaces", Some('k'), &["KUBE_VIRT_INTERFACES"]),
    text(
        "istio-inbound-tproxy-mark",
        Some('t'),
        &["ISTIO_INBOUND_TPROXY_MARK"],
    ),
    text(
        "istio-inbound-tproxy-route-table",
        Some('r'),
        &["ISTIO_INBOUND_TPROXY_ROUTE_TABLE"],
    ),
    switch("dry-run", Some('n'), &["DRY_RUN"]),
    switch("restore-format", Some('f'), &["RESTORE_FORMAT"]),
    text("iptables-probe-port", None, &["IPTABLES_PROBE_PORT"]),
    text("probe-timeout", None, &["PROBE_TIMEOUT"]),
    switch("skip-rule-apply", None, &["SKIP_RULE_APPLY"]),
    switch("run-validation", None, &["RUN_VALIDATION"]),
    switch("redirect-dns", None, &["REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"]),
    switch("capture-all-dns", None, &["CAPTURE_ALL_DNS"]),
    switch("drop-invalid", None, &["DROP_INVALID", "INVALID_DROP"]),
    switch("dual-stack", None, &["DUAL_STACK", "ISTIO_DUAL_STACK"]),
    text("network-namespace", None, &["NETWORK_NAMESPACE"]),
    switch("cni-mode", None, &["CNI_MODE"]),
    switch("reconcile", None, &["RECONCILE"]),
    switch("cleanup-only", None, &["CLEANUP_ONLY"]),
    switch("force-apply", None, &["FORCE_APPLY"]),
    switch("native-nftables", None, &["NATIVE_NFTABLES"]),
    text("force-iptables-binary", None, &["FORCE_IPTABLES_BINARY"]),
    text("backend", None, &["REMORA_CAPTURE_BACKEND"]),
    text("state", None, &["REMORA_CAPTURE_STATE"]),
    text("host-ipv6", None, &[]),
    text("host-dns", None, &[]),
    log("log_output_level", Kind::Text),
    log("log_as_json", Kind::Switch),
    log("log_caller", Kind::Text),
    log("log_stacktrace_level", Kind::Text),
    log("log_target", Kind::Text),
    log("log_rotate", Kind::Text),
    log("log_rotate_max_age", Kind::Text),
    log("log_rotate_max_backups", Kind::Text),
    log("log_rotate_max_size", Kind::Text),
    log("vklog", Kind::Text),
];

/// An option that only exists as an environment variable.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentOnly {
    /// The variable.
    pub name: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
}

/// Options without a flag.
pub const ENVIRONMENT_ONLY: &[EnvironmentOnly] = &[
    EnvironmentOnly {
        name: "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR",
        default: "127.0.0.1/32",
        help: "what counts as loopback destination in IPv4",
    },
    EnvironmentOnly {
        name: "ISTIO_OUTBOUND_OWNER_GROUPS",
        default: "*",
        help: "groups whose outbound traffic is captured, at most 64",
    },
    EnvironmentOnly {
        name: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE",
        default: "",
        help: "groups whose outbound traffic is not captured, when all others are",
    },
    EnvironmentOnly {
        name: "ENVOY_USER",
        default: "istio-proxy",
        help: "user whose id is the proxy's when none is given",
    },
    EnvironmentOnly {
        name: "DRY_RUN_FILE_PATH",
        default: "",
        help: "write what a dry run prints to this file too",
    },
];

/// The option with this long name.
pub fn find(long: &str) -> Option<&'static Spec> {
    OPTIONS.iter().find(|spec| spec.long == long)
}
