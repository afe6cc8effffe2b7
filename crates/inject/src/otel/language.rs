//! The eight things that can be injected, and the fixed facts about each: names, keys, default images.

/// A language (or web server, or the bare SDK environment) that can be instrumented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// Java agent.
    Java,
    /// Node.js `--require` hook.
    NodeJs,
    /// Python `sitecustomize`.
    Python,
    /// .NET profiler.
    DotNet,
    /// eBPF sidecar for Go binaries.
    Go,
    /// Apache HTTPD module.
    ApacheHttpd,
    /// nginx module.
    Nginx,
    /// SDK environment only, no agent.
    Sdk,
}

impl Language {
    /// Every language, in the order in which they are applied to a pod.
    pub const ALL: [Self; 8] = [
        Self::Java,
        Self::NodeJs,
        Self::Python,
        Self::DotNet,
        Self::Go,
        Self::ApacheHttpd,
        Self::Nginx,
        Self::Sdk,
    ];

    /// The name used in annotations, container names and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Java => "java",
            Self::NodeJs => "nodejs",
            Self::Python => "python",
            Self::DotNet => "dotnet",
            Self::Go => "go",
            Self::ApacheHttpd => "apache-httpd",
            Self::Nginx => "nginx",
            Self::Sdk => "sdk",
        }
    }

    /// The key of its section in `Instrumentation.spec`; the SDK has none.
    pub(crate) fn section(self) -> Option<&'static str> {
        match self {
            Self::ApacheHttpd => Some("apacheHttpd"),
            Self::Sdk => None,
            other => Some(other.name()),
        }
    }

    /// The operator's switch for it; the SDK cannot be switched off.
    pub(crate) fn switch(self) -> Option<&'static str> {
        match self {
            Self::Java => Some("EnableJavaAutoInstrumentation"),
            Self::NodeJs => Some("EnableNodeJSAutoInstrumentation"),
            Self::Python => Some("EnablePythonAutoInstrumentation"),
            Self::DotNet => Some("EnableDotNetAutoInstrumentation"),
            Self::Go => Some("EnableGoAutoInstrumentation"),
            Self::ApacheHttpd => Some("EnableApacheHttpdInstrumentation"),
            Self::Nginx => Some("EnableNginxAutoInstrumentation"),
            Self::Sdk => None,
        }
    }

    /// Annotation that switches it on and chooses the Instrumentation.
    pub(crate) fn inject_key(self) -> &'static str {
        match self {
            Self::Java => "instrumentation.opentelemetry.io/inject-java",
            Self::NodeJs => "instrumentation.opentelemetry.io/inject-nodejs",
            Self::Python => "instrumentation.opentelemetry.io/inject-python",
            Self::DotNet => "instrumentation.opentelemetry.io/inject-dotnet",
            Self::Go => "instrumentation.opentelemetry.io/inject-go",
            Self::ApacheHttpd => "instrumentation.opentelemetry.io/inject-apache-httpd",
            Self::Nginx => "instrumentation.opentelemetry.io/inject-nginx",
            Self::Sdk => "instrumentation.opentelemetry.io/inject-sdk",
        }
    }

    /// Annotation with its own container list.
    pub(crate) fn containers_key(self) -> &'static str {
        match self {
            Self::Java => "instrumentation.opentelemetry.io/java-container-names",
            Self::NodeJs => "instrumentation.opentelemetry.io/nodejs-container-names",
            Self::Python => "instrumentation.opentelemetry.io/python-container-names",
            Self::DotNet => "instrumentation.opentelemetry.io/dotnet-container-names",
            Self::Go => "instrumentation.opentelemetry.io/go-container-names",
            Self::ApacheHttpd => "instrumentation.opentelemetry.io/apache-httpd-container-names",
            // operator: only this key keeps the inject- prefix.
            Self::Nginx => "instrumentation.opentelemetry.io/inject-nginx-container-names",
            Self::Sdk => "instrumentation.opentelemetry.io/sdk-container-names",
        }
    }

    /// Whether init containers can be targets.
    pub(crate) fn instruments_init(self) -> bool {
        matches!(
            self,
            Self::Java | Self::NodeJs | Self::Python | Self::DotNet | Self::Sdk
        )
    }

    /// The image the operator's webhook would write into an Instrumentation that names none.
    pub(crate) fn default_image(self) -> &'static str {
        match self {
            Self::Java => "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-java:2.30.0",
            Self::NodeJs => "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-nodejs:0.78.0",
            Self::Python => "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-python:0.64b0",
            Self::DotNet => "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-dotnet:1.16.0",
            Self::Go => {
                "ghcr.io/open-telemetry/opentelemetry-go-instrumentation/autoinstrumentation-go:v0.24.0"
            }
            Self::ApacheHttpd | Self::Nginx => {
                "ghcr.io/open-telemetry/opentelemetry-operator/autoinstrumentation-apache-httpd:1.0.4"
            }
            Self::Sdk => "",
        }
    }

    /// Default requests (cpu, memory); limits are 500m/256Mi for all.
    pub(crate) fn default_requests(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeJs | Self::DotNet => ("50m", "128Mi"),
            Self::ApacheHttpd | Self::Nginx => ("1m", "128Mi"),
            Self::Java | Self::Python | Self::Go | Self::Sdk => ("50m", "64Mi"),
        }
    }
}
