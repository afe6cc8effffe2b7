//! Names the operator uses, names that are never targets, and valid names for added containers and volumes.

/// Prefix of the annotations that ask for instrumentation.
pub(crate) const PREFIX: &str = "instrumentation.opentelemetry.io/";
/// Container list for every enabled language.
pub(crate) const CONTAINERS: &str = "instrumentation.opentelemetry.io/container-names";
/// `glibc` (default) or `musl`.
pub(crate) const PYTHON_PLATFORM: &str = "instrumentation.opentelemetry.io/otel-python-platform";
/// `linux-x64` (default) or `linux-musl-x64`.
pub(crate) const DOTNET_RUNTIME: &str = "instrumentation.opentelemetry.io/otel-dotnet-auto-runtime";
/// Path of the Go binary; read from the pod only.
pub(crate) const GO_EXE: &str = "instrumentation.opentelemetry.io/otel-go-auto-target-exe";
/// Prefix of annotations that become resource attributes.
pub(crate) const RESOURCE: &str = "resource.opentelemetry.io/";

/// The Go sidecar, and the prefix of every copy container and its volume.
pub(crate) const AGENT: &str = "opentelemetry-auto-instrumentation";
/// Prefix of the directories in which agents are mounted.
pub(crate) const AGENT_DIR: &str = "/otel-auto-instrumentation";

/// Containers of meshes and secret injectors: an agent in one of them is a mistake.
pub(crate) fn is_mesh(name: &str) -> bool {
    matches!(
        name,
        "istio-proxy"
            | "istio-init"
            | "istio-validation"
            | "enable-core-dump"
            | "linkerd-proxy"
            | "linkerd-init"
    ) || name.starts_with("vault-agent")
}

/// Containers that injectors add; none of them is ever instrumented.
pub(crate) fn is_injected(name: &str) -> bool {
    is_mesh(name) || name == "otc-container" || name.starts_with(AGENT) || name.starts_with("otel-agent-")
}

/// A Kubernetes name for a container or volume: lower case letters, digits and inner dashes, at most 63.
pub(crate) fn is_label(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|b| plain(*b))
        && bytes.last().is_some_and(|b| plain(*b))
        && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

/// A Kubernetes object name: labels joined with dots, at most 253.
pub(crate) fn is_object_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

/// `stem-part` as a valid name; too long ones end in a hash of the whole, so that they stay distinct.
pub(crate) fn joined(stem: &str, part: &str) -> String {
    let full = format!("{stem}-{}", part.replace('.', "-"));
    if full.len() <= 63 {
        return full.trim_end_matches('-').to_owned();
    }
    let head: String = full.chars().take(54).collect();
    format!(
        "{}-{:08x}",
        head.trim_end_matches('-'),
        digest(&format!("{stem}-{part}"))
    )
}

/// FNV-1a: short, stable across versions, not a security feature.
pub(crate) fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
