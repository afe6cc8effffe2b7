//! Meshes as data, and which one a pod is in.
//!
//! A [`Mesh`] names the containers, users, ports and annotations of one mesh; a [`Setup`] says what was found in a
//! pod: where capture begins, where the proxy stands, what holds the others back until it is ready.
//! Everything is read from the final order of containers, never from what an injector would usually do.

mod assume;
mod rules;
mod setup;

pub use setup::{CapturePoint, Gate, Setup};

/// How a mesh meets a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// No mesh.
    #[default]
    None,
    /// Rules by an init container, proxy among the main containers.
    Classic,
    /// The same, with the proxy first and a postStart hook that waits for it.
    ClassicHold,
    /// Rules with the sandbox, proxy among the main containers.
    Cni,
    /// The same, with hold.
    CniHold,
    /// Rules by an init container, proxy as a native sidecar.
    Native,
    /// Rules with the sandbox, proxy as a native sidecar.
    NativeCni,
    /// A proxy on the node takes the traffic.
    Ambient,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Classic,
        Self::ClassicHold,
        Self::Cni,
        Self::CniHold,
        Self::Native,
        Self::NativeCni,
        Self::Ambient,
    ];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Classic => "classic",
            Self::ClassicHold => "classic+hold",
            Self::Cni => "cni",
            Self::CniHold => "cni+hold",
            Self::Native => "native",
            Self::NativeCni => "native+cni",
            Self::Ambient => "ambient",
        }
    }

    /// The mode of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.as_str() == name)
    }

    /// Whether rules come with the sandbox.
    pub const fn is_cni(self) -> bool {
        matches!(self, Self::Cni | Self::CniHold | Self::NativeCni)
    }

    /// Whether the proxy is a native sidecar.
    pub const fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeCni)
    }

    /// Whether the proxy is a main container.
    pub const fn is_classic(self) -> bool {
        matches!(
            self,
            Self::Classic | Self::ClassicHold | Self::Cni | Self::CniHold
        )
    }

    /// Whether the proxy holds back the containers behind it by a hook.
    pub const fn is_hold(self) -> bool {
        matches!(self, Self::ClassicHold | Self::CniHold)
    }

    pub(crate) const fn of(cni: bool, native: bool, hold: bool) -> Self {
        match (cni, native, hold) {
            (false, true, _) => Self::Native,
            (true, true, _) => Self::NativeCni,
            (false, false, true) => Self::ClassicHold,
            (false, false, false) => Self::Classic,
            (true, false, true) => Self::CniHold,
            (true, false, false) => Self::Cni,
        }
    }
}

/// Annotations by which a pod tells a mesh what it wants.
#[derive(Debug, PartialEq, Eq)]
pub struct Annotations {
    /// Outbound ports left alone.
    pub exclude_ports: &'static str,
    /// Outbound ranges left alone.
    pub exclude_ranges: Option<&'static str>,
    /// Outbound ranges captured.
    pub include_ranges: Option<&'static str>,
    /// Outbound ports captured besides.
    pub include_ports: Option<&'static str>,
    /// Inbound ports left alone.
    pub exclude_inbound: &'static str,
    /// Inbound ports captured.
    pub include_inbound: Option<&'static str>,
    /// Proxy as a native sidecar, and the value that says so.
    pub native: Option<(&'static str, &'static str)>,
    /// Hold the application back, and the value that says so.
    pub hold: (&'static str, &'static str),
}

/// One mesh.
#[derive(Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Its name.
    pub name: &'static str,
    /// Name of the proxy container.
    pub proxy: &'static str,
    /// Names of containers that install the rules.
    pub capture: &'static [&'static str],
    /// Names of containers that only look whether rules are there.
    pub validation: &'static [&'static str],
    /// User of the proxy.
    pub uid: i64,
    /// Group of the proxy, when it is exempt as well.
    pub gid: Option<i64>,
    /// Port of the agent that answers rewritten probes.
    pub agent_port: Option<u16>,
    /// Where the proxy says that it is ready.
    pub ready: (&'static str, u16),
    /// Inbound ports never captured.
    pub own_ports: &'static [u16],
    /// Command of the hook that waits for the proxy.
    pub wait: &'static [&'static str],
    /// How long that hook waits, in seconds.
    pub wait_seconds: u64,
    /// How long the proxy goes on after its stop signal, in seconds.
    pub drain_seconds: u64,
    /// Whether its control plane serves a proxy only once the API shows the pod's address.
    pub needs_pod_ip: bool,
    /// Its annotations.
    pub annotations: Annotations,
}

/// Istio.
pub static ISTIO: Mesh = Mesh {
    name: "istio",
    proxy: "istio-proxy",
    capture: &["istio-init"],
    validation: &["istio-validation"],
    uid: 1337,
    gid: Some(1337),
    agent_port: Some(15020),
    ready: ("/healthz/ready", 15021),
    own_ports: &[15090, 15021, 15020],
    wait: &["pilot-agent", "wait"],
    wait_seconds: 60,
    drain_seconds: 5,
    needs_pod_ip: false,
    annotations: Annotations {
        exclude_ports: "traffic.sidecar.istio.io/excludeOutboundPorts",
        exclude_ranges: Some("traffic.sidecar.istio.io/excludeOutboundIPRanges"),
        include_ranges: Some("traffic.sidecar.istio.io/includeOutboundIPRanges"),
        include_ports: Some("traffic.sidecar.istio.io/includeOutboundPorts"),
        exclude_inbound: "traffic.sidecar.istio.io/excludeInboundPorts",
        include_inbound: Some("traffic.sidecar.istio.io/includeInboundPorts"),
        native: Some(("sidecar.istio.io/nativeSidecar", "true")),
        hold: ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true"),
    },
};

/// Linkerd.
pub static LINKERD: Mesh = Mesh {
    name: "linkerd",
    proxy: "linkerd-proxy",
    capture: &["linkerd-init"],
    validation: &["linkerd-network-validator"],
    uid: 2102,
    gid: None,
    agent_port: None,
    ready: ("/ready", 4191),
    own_ports: &[4190, 4191, 4567, 4568],
    wait: &["/usr/lib/linkerd/linkerd-await", "--timeout=2m"],
    wait_seconds: 120,
    drain_seconds: 0,
    needs_pod_ip: false,
    annotations: Annotations {
        exclude_ports: "config.linkerd.io/skip-outbound-ports",
        exclude_ranges: None,
        include_ranges: None,
        include_ports: None,
        exclude_inbound: "config.linkerd.io/skip-inbound-ports",
        include_inbound: None,
        native: Some(("config.linkerd.io/proxy-enable-native-sidecar", "true")),
        hold: ("config.linkerd.io/proxy-await", "enabled"),
    },
};

/// Kuma.
pub static KUMA: Mesh = Mesh {
    name: "kuma",
    proxy: "kuma-sidecar",
    capture: &["kuma-init"],
    validation: &["kuma-validation"],
    uid: 5678,
    gid: None,
    agent_port: Some(9001),
    ready: ("/ready", 9902),
    own_ports: &[9901, 9902, 9000, 9001],
    wait: &["kuma-dp", "wait"],
    wait_seconds: 180,
    drain_seconds: 30,
    needs_pod_ip: true,
    annotations: Annotations {
        exclude_ports: "traffic.kuma.io/exclude-outbound-ports",
        exclude_ranges: Some("traffic.kuma.io/exclude-outbound-ips"),
        include_ranges: None,
        include_ports: None,
        exclude_inbound: "traffic.kuma.io/exclude-inbound-ports",
        include_inbound: None,
        native: None,
        hold: ("kuma.io/wait-for-dataplane-ready", "true"),
    },
};

/// All meshes known here.
pub static MESHES: [&Mesh; 3] = [&ISTIO, &LINKERD, &KUMA];
