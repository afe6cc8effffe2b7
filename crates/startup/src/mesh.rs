//! Meshes as data, and which one a pod is in.
//!
//! A [`Mesh`] names the containers, users, ports and annotations of one mesh; a [`Setup`] is what was found in a
//! pod: where capture begins, the position of the proxy, and what delays the other containers until it is ready.
//! Everything is read from the final order of containers, never from what an injector would usually do.

mod assume;
mod setup;

use remora_rules::dialect::{self, Dialect};
pub use setup::{CapturePoint, Gate, Setup};

/// How a mesh is added to a pod.
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
    /// A proxy on the node captures the traffic.
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

/// One mesh.
#[derive(Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Its name.
    pub name: &'static str,
    /// Its containers, users and capture options.
    pub dialect: &'static Dialect,
    /// Port of the agent that answers rewritten probes.
    pub agent_port: Option<u16>,
    /// The proxy's readiness endpoint.
    pub ready: (&'static str, u16),
    /// Command of the hook that waits for the proxy.
    pub wait: &'static [&'static str],
    /// How long that hook waits, in seconds.
    pub wait_seconds: u64,
    /// How long the proxy keeps running after its stop signal, in seconds.
    pub drain_seconds: u64,
    /// Whether its control plane serves a proxy only once the API shows the pod's address.
    pub needs_pod_ip: bool,
    /// Annotation that makes the proxy a native sidecar, with its value.
    pub native: Option<(&'static str, &'static str)>,
    /// Annotation that holds the application back until the proxy is ready, with its value.
    pub hold: (&'static str, &'static str),
}

/// Istio.
pub static ISTIO: Mesh = Mesh {
    name: "istio",
    dialect: &dialect::ISTIO,
    agent_port: Some(15020),
    ready: ("/healthz/ready", 15021),
    wait: &["pilot-agent", "wait"],
    wait_seconds: 60,
    drain_seconds: 5,
    needs_pod_ip: false,
    native: Some(("sidecar.istio.io/nativeSidecar", "true")),
    hold: ("proxy.istio.io/config", "holdApplicationUntilProxyStarts: true"),
};

/// Linkerd.
pub static LINKERD: Mesh = Mesh {
    name: "linkerd",
    dialect: &dialect::LINKERD,
    agent_port: None,
    ready: ("/ready", 4191),
    wait: &["/usr/lib/linkerd/linkerd-await", "--timeout=2m"],
    wait_seconds: 120,
    drain_seconds: 0,
    needs_pod_ip: false,
    native: Some(("config.linkerd.io/proxy-enable-native-sidecar", "true")),
    hold: ("config.linkerd.io/proxy-await", "enabled"),
};

/// Kuma.
pub static KUMA: Mesh = Mesh {
    name: "kuma",
    dialect: &dialect::KUMA,
    agent_port: Some(9001),
    ready: ("/ready", 9902),
    wait: &["kuma-dp", "wait"],
    wait_seconds: 180,
    drain_seconds: 30,
    needs_pod_ip: true,
    native: None,
    hold: ("kuma.io/wait-for-dataplane-ready", "true"),
};

impl Mesh {
    /// Name of the container of the proxy.
    pub const fn proxy(&self) -> &'static str {
        self.dialect.proxy
    }

    /// Names of the containers that install the rules.
    pub const fn capture(&self) -> &'static [&'static str] {
        self.dialect.capture
    }

    /// User of the proxy.
    pub fn uid(&self) -> i64 {
        self.dialect.uid.into()
    }

    /// Group of the proxy, when it is exempt as well.
    pub fn gid(&self) -> Option<i64> {
        self.dialect.gid.map(i64::from)
    }
}

/// All known meshes.
pub static MESHES: [&Mesh; 3] = [&ISTIO, &LINKERD, &KUMA];
