//! The names that each mesh uses for the options: flags of its init containers, annotations of its pods.
//!
//! Istio's names identify the options ([`Name`]); a table for each other mesh translates its names. The rules of all
//! meshes have the same form: exempt users, exempt ports and ranges, everything else to the proxy.

use crate::options::Name;

/// One mesh.
#[derive(Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Name of the container of the proxy.
    pub proxy: &'static str,
    /// Names of the init containers that install the rules.
    pub capture: &'static [&'static str],
    /// Names of the init containers that only check whether the rules work.
    pub validation: &'static [&'static str],
    /// The program whose arguments are Istio's flags. None: the arguments are those of [`Dialect::flags`].
    pub program: Option<&'static str>,
    /// Flags of a mesh that is not Istio, and what they mean.
    pub flags: &'static [(&'static str, Name)],
    /// Annotations of pods.
    pub annotations: &'static [Annotation],
    /// Values of options that neither a flag nor an annotation sets.
    pub defaults: &'static [(Name, &'static str)],
    /// User of the proxy, unless its container has another.
    pub uid: u32,
    /// Group of the proxy, if the rules exempt it.
    pub gid: Option<u32>,
    /// Inbound ports of the proxy itself, which are never captured.
    pub own_ports: &'static [u16],
}

/// An annotation that sets an option.
#[derive(Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its key.
    pub key: &'static str,
    /// The option.
    pub option: Name,
    /// Its value where the node captures the traffic (CNI) and the pod does not set the annotation.
    pub default: Option<&'static str>,
}

const fn annotation(key: &'static str, option: Name, default: Option<&'static str>) -> Annotation {
    Annotation { key, option, default }
}

impl Dialect {
    /// The annotation that sets an option.
    pub fn annotation(&self, option: Name) -> Option<&'static str> {
        let found = self.annotations.iter().find(|a| a.option == option);
        found.map(|a| a.key)
    }
}

/// Istio, and remora.
// istio: defaults of the annotations in cni/pkg/plugin/sidecar_redirect.go.
pub static ISTIO: Dialect = Dialect {
    proxy: "istio-proxy",
    capture: &["istio-init"],
    validation: &["istio-validation"],
    program: Some("istio-iptables"),
    flags: &[],
    annotations: &[
        annotation(
            "sidecar.istio.io/interceptionMode",
            Name::IstioInboundInterceptionMode,
            Some("REDIRECT"),
        ),
        annotation(
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            Name::IstioServiceCidr,
            Some("*"),
        ),
        annotation(
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            Name::IstioServiceExcludeCidr,
            None,
        ),
        annotation(
            "traffic.sidecar.istio.io/includeInboundPorts",
            Name::IstioInboundPorts,
            Some("*"),
        ),
        annotation(
            "traffic.sidecar.istio.io/excludeInboundPorts",
            Name::IstioLocalExcludePorts,
            Some("15020"),
        ),
        annotation(
            "traffic.sidecar.istio.io/excludeOutboundPorts",
            Name::IstioLocalOutboundPortsExclude,
            Some("15020"),
        ),
        annotation(
            "traffic.sidecar.istio.io/includeOutboundPorts",
            Name::IstioOutboundPorts,
            None,
        ),
        annotation(
            "traffic.sidecar.istio.io/excludeInterfaces",
            Name::IstioExcludeInterfaces,
            None,
        ),
        annotation(
            "traffic.sidecar.istio.io/kubevirtInterfaces",
            Name::KubeVirtInterfaces,
            None,
        ),
        // The newer name of the same option.
        annotation(
            "istio.io/reroute-virtual-interfaces",
            Name::KubeVirtInterfaces,
            None,
        ),
    ],
    defaults: &[],
    uid: 1337,
    gid: Some(1337),
    own_ports: &[15020, 15021, 15090],
};

/// The defaults of the other meshes: all destinations and all inbound ports are captured.
const CAPTURE_ALL: &[(Name, &str)] = &[(Name::IstioServiceCidr, "*"), (Name::IstioInboundPorts, "*")];

/// Linkerd.
pub static LINKERD: Dialect = Dialect {
    proxy: "linkerd-proxy",
    capture: &["linkerd-init"],
    validation: &["linkerd-network-validator"],
    program: None,
    flags: &[
        ("-u", Name::ProxyUid),
        ("--proxy-uid", Name::ProxyUid),
        ("-g", Name::ProxyGid),
        ("--proxy-gid", Name::ProxyGid),
        ("-p", Name::InboundCapturePort),
        ("--incoming-proxy-port", Name::InboundCapturePort),
        ("-o", Name::EnvoyPort),
        ("--outgoing-proxy-port", Name::EnvoyPort),
        ("--inbound-ports-to-ignore", Name::IstioLocalExcludePorts),
        ("--outbound-ports-to-ignore", Name::IstioLocalOutboundPortsExclude),
        ("--subnets-to-ignore", Name::IstioServiceExcludeCidr),
    ],
    annotations: &[
        annotation(
            "config.linkerd.io/skip-outbound-ports",
            Name::IstioLocalOutboundPortsExclude,
            None,
        ),
        annotation(
            "config.linkerd.io/skip-inbound-ports",
            Name::IstioLocalExcludePorts,
            None,
        ),
        annotation(
            "config.linkerd.io/skip-subnets",
            Name::IstioServiceExcludeCidr,
            None,
        ),
    ],
    defaults: CAPTURE_ALL,
    uid: 2102,
    gid: None,
    own_ports: &[4190, 4191, 4567, 4568],
};

/// Kuma.
pub static KUMA: Dialect = Dialect {
    proxy: "kuma-sidecar",
    capture: &["kuma-init"],
    validation: &["kuma-validation"],
    program: None,
    flags: &[
        ("--kuma-dp-uid", Name::ProxyUid),
        ("--exclude-inbound-ports", Name::IstioLocalExcludePorts),
        ("--exclude-outbound-ports", Name::IstioLocalOutboundPortsExclude),
        ("--exclude-outbound-ips", Name::IstioServiceExcludeCidr),
    ],
    annotations: &[
        annotation(
            "traffic.kuma.io/exclude-outbound-ports",
            Name::IstioLocalOutboundPortsExclude,
            None,
        ),
        annotation(
            "traffic.kuma.io/exclude-outbound-ips",
            Name::IstioServiceExcludeCidr,
            None,
        ),
        annotation(
            "traffic.kuma.io/exclude-inbound-ports",
            Name::IstioLocalExcludePorts,
            None,
        ),
    ],
    defaults: CAPTURE_ALL,
    uid: 5678,
    gid: None,
    own_ports: &[9901, 9902, 9000, 9001],
};
