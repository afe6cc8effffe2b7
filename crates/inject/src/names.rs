//! Names, ports and ids shared with Istio and with the OpenTelemetry operator.
//!
//! Everything here is an interface: other programs look for exactly these texts.

/// Container that installs the capture rules.
pub const INIT: &str = "istio-init";
/// Container that checks capture rules a CNI plugin installed.
pub const VALIDATION: &str = "istio-validation";
/// The proxy.
pub const PROXY: &str = "istio-proxy";
/// Container that lets the proxy write core dumps.
pub const CORE_DUMP: &str = "enable-core-dump";

/// User and group the proxy runs as; its traffic is never captured.
pub const PROXY_ID: i64 = 1337;
/// Port of the proxy's readiness endpoint; probes always use it, also with another status port.
pub const HEALTH_PORT: u16 = 15021;

/// Annotation names.
pub mod annotation {
    /// Whether to inject (deprecated form; the label of the same name is preferred).
    pub const INJECT: &str = "sidecar.istio.io/inject";
    /// What an injection added; its presence means "already injected".
    pub const STATUS: &str = "sidecar.istio.io/status";
    /// The user's own definitions of containers the templates also define.
    pub const OVERRIDES: &str = "proxy.istio.io/overrides";
    /// ProxyConfig overlay of one pod.
    pub const PROXY_CONFIG: &str = "proxy.istio.io/config";
    /// Templates to apply instead of the default ones.
    pub const TEMPLATES: &str = "inject.istio.io/templates";
    /// Native sidecar for this pod, `"true"` or `"false"`.
    pub const NATIVE: &str = "sidecar.istio.io/nativeSidecar";
    /// Capture mode: REDIRECT, TPROXY or NONE.
    pub const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";
    /// `"true"` lets the proxy bind ports below 1024.
    pub const CAP_NET_BIND: &str = "sidecar.istio.io/capNetBindService";
    /// Full reference of the proxy image.
    pub const PROXY_IMAGE: &str = "sidecar.istio.io/proxyImage";
    /// Suffix of the proxy image tag.
    pub const PROXY_IMAGE_TYPE: &str = "sidecar.istio.io/proxyImageType";
    /// CPU request of the proxy.
    pub const PROXY_CPU: &str = "sidecar.istio.io/proxyCPU";
    /// Memory request of the proxy.
    pub const PROXY_MEMORY: &str = "sidecar.istio.io/proxyMemory";
    /// CPU limit of the proxy.
    pub const PROXY_CPU_LIMIT: &str = "sidecar.istio.io/proxyCPULimit";
    /// Memory limit of the proxy.
    pub const PROXY_MEMORY_LIMIT: &str = "sidecar.istio.io/proxyMemoryLimit";
    /// Log level of the proxy.
    pub const LOG_LEVEL: &str = "sidecar.istio.io/logLevel";
    /// Log level of proxy components.
    pub const COMPONENT_LOG_LEVEL: &str = "sidecar.istio.io/componentLogLevel";
    /// Log level of the agent.
    pub const AGENT_LOG_LEVEL: &str = "sidecar.istio.io/agentLogLevel";
    /// ConfigMap with a bootstrap of the user's own.
    pub const BOOTSTRAP_OVERRIDE: &str = "sidecar.istio.io/bootstrapOverride";
    /// Volumes for the proxy, as JSON.
    pub const USER_VOLUME: &str = "sidecar.istio.io/userVolume";
    /// Volume mounts for the proxy, as JSON.
    pub const USER_VOLUME_MOUNT: &str = "sidecar.istio.io/userVolumeMount";
    /// Whether probes are sent through the agent.
    pub const REWRITE_PROBES: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
    /// Port of the agent; 0 switches the proxy's probes off.
    pub const STATUS_PORT: &str = "status.sidecar.istio.io/port";
    /// Initial delay of the proxy's readiness probe.
    pub const READINESS_DELAY: &str = "readiness.status.sidecar.istio.io/initialDelaySeconds";
    /// Period of the proxy's readiness probe.
    pub const READINESS_PERIOD: &str = "readiness.status.sidecar.istio.io/periodSeconds";
    /// Failure threshold of the proxy's readiness probe.
    pub const READINESS_FAILURES: &str = "readiness.status.sidecar.istio.io/failureThreshold";
    /// Address ranges whose outbound traffic is captured.
    pub const INCLUDE_OUT_RANGES: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
    /// Address ranges whose outbound traffic is left alone.
    pub const EXCLUDE_OUT_RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
    /// Ports whose outbound traffic is captured.
    pub const INCLUDE_OUT_PORTS: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
    /// Ports whose outbound traffic is left alone.
    pub const EXCLUDE_OUT_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
    /// Ports whose inbound traffic is captured.
    pub const INCLUDE_IN_PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
    /// Ports whose inbound traffic is left alone.
    pub const EXCLUDE_IN_PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
    /// Interfaces that are not captured.
    pub const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
    /// Virtual interfaces whose inbound traffic counts as outbound (deprecated form).
    pub const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";
    /// Virtual interfaces whose inbound traffic counts as outbound.
    pub const REROUTE_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
    /// Whether the agent merges the application's metrics.
    pub const MERGE_METRICS: &str = "prometheus.istio.io/merge-metrics";
    /// Further metrics endpoints of the application.
    pub const SCRAPE_TARGETS: &str = "prometheus.istio.io/scrape-targets";
    /// Port of the metrics served over mTLS.
    pub const SECURE_PORT: &str = "prometheus.istio.io/secure-port";
    /// Revision that injected the pod.
    pub const REVISION: &str = "istio.io/rev";
    /// Networks of a pod under Multus.
    pub const MULTUS_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
    /// Variables for a Datadog tracer.
    pub const DATADOG_ENV: &str = "apm.datadoghq.com/env";
    /// Container that `kubectl exec` uses when none is named.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    /// Container that `kubectl logs` uses when none is named.
    pub const DEFAULT_LOGS_CONTAINER: &str = "kubectl.kubernetes.io/default-logs-container";
    /// Prefix: what kind of network a container needs while it starts.
    pub const NETWORK_PREFIX: &str = "remora.dev/network.";
    /// Prefix: the container after which another one starts.
    pub const START_AFTER_PREFIX: &str = "remora.dev/start-after.";
    /// What makes containers wait for a native proxy: `probe` or `hook`.
    pub const GATE: &str = "remora.dev/gate";
    /// The container that captures the traffic if the proxy is native: `init` (istio-init) or `sidecar` (the proxy).
    pub const CAPTURE: &str = "remora.dev/capture";
}

/// Label names.
pub mod label {
    /// Whether to inject.
    pub const INJECT: &str = "sidecar.istio.io/inject";
    /// Network the pod is on.
    pub const NETWORK: &str = "topology.istio.io/network";
    /// Whether peers may speak mTLS to the pod.
    pub const TLS_MODE: &str = "security.istio.io/tlsMode";
    /// Whether peers may tunnel to the pod.
    pub const TUNNEL: &str = "networking.istio.io/tunnel";
    /// Name of the service for telemetry.
    pub const CANONICAL_NAME: &str = "service.istio.io/canonical-name";
    /// Revision of the service for telemetry.
    pub const CANONICAL_REVISION: &str = "service.istio.io/canonical-revision";
    /// Name of the workload for telemetry.
    pub const WORKLOAD_NAME: &str = "service.istio.io/workload-name";
}
