//! The flags of `remora inject`.

use clap::ValueEnum;
use std::path::PathBuf;

/// What `remora inject --help` says first.
pub(crate) const ABOUT: &str = "\
Reads Kubernetes manifests, adds the mesh sidecar and OpenTelemetry auto-instrumentation to every pod in \
them, and prints the result: `remora inject -f app.yaml | kubectl apply -f -`.

Works offline and without any configuration. Any object with a pod template is injected, whatever its \
kind; everything else passes through untouched. Injecting an injected manifest again changes nothing.

Per pod, annotations say what a container needs while it starts:
  remora.dev/network.CONTAINER: direct | mesh | none
  remora.dev/start-after.CONTAINER: OTHER[,OTHER]

Warnings go to standard error. On any error nothing is printed and the exit code is 1.";

/// Native sidecar, classic sidecar, or what the nodes can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NativeChoice {
    /// Native, unless a node of the cluster is too old (see --kubeconfig and --context)
    Auto,
    /// Native: the proxy is an init container that keeps running
    On,
    /// Classic: the proxy is a container beside the application
    Off,
}

/// Planned order, or Istio's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderChoice {
    /// A planned order in which everything starts
    Safe,
    /// Istio's own order and output, quirks included
    Istio,
}

/// An injector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InjectorChoice {
    /// The sidecar
    Mesh,
    /// OpenTelemetry auto-instrumentation
    Otel,
}

/// The flags of `remora inject`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File, directory or - (standard input) with manifests; may be repeated
    #[arg(short, long, value_name = "FILE|DIR|-")]
    pub(crate) filename: Vec<String>,

    /// Look for manifests in subdirectories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// File to write to instead of standard output; replaced in one step
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Mesh configuration (Istio's MeshConfig)
    #[arg(long = "meshConfigFile", value_name = "FILE")]
    pub(crate) mesh_config_file: Option<PathBuf>,

    /// Installation values (as of Istio's charts)
    #[arg(long = "valuesFile", value_name = "FILE")]
    pub(crate) values_file: Option<PathBuf>,

    /// Injector configuration with templates, or one bare template
    #[arg(long = "injectConfigFile", value_name = "FILE")]
    pub(crate) inject_config_file: Option<PathBuf>,

    /// IstioOperator file; its values and meshConfig win over the two files
    #[arg(long = "operatorFileName", value_name = "FILE")]
    pub(crate) operator_file: Option<PathBuf>,

    /// Control plane revision
    #[arg(short, long, value_name = "NAME")]
    pub(crate) revision: Option<String>,

    /// Namespace of objects that name none (default: the only Namespace of the input, else "default")
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Whether the proxy is a native sidecar
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) native: NativeChoice,

    /// Oldest kubelet the pods may land on; native sidecars need 1.33
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["context", "kubeconfig"])]
    pub(crate) kubelet_min: Option<String>,

    /// Kubeconfig of the cluster whose nodes decide about `--native auto` [default: KUBECONFIG, if set]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of that kubeconfig; without one, of ~/.kube/config
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Order of containers
    #[arg(long, value_enum, default_value = "safe", value_name = "ORDER")]
    pub(crate) order: OrderChoice,

    /// What to inject
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["mesh", "otel"], value_name = "LIST")]
    pub(crate) injectors: Vec<InjectorChoice>,

    /// Switches of an OpenTelemetry operator, as JSON, e.g. '{"EnableGoAutoInstrumentation": true}'
    ///
    /// What is not listed is off, and Instrumentations are taken as that operator stored them. The texts
    /// '"defaults"' and '"zero"' stand for its defaults and for everything off. Without this option the
    /// operator's defaults apply: everything on but Go and nginx.
    #[arg(long, value_name = "JSON")]
    pub(crate) otel_operator_config: Option<String>,

    /// Show what would change, pod by pod, instead of the manifests
    #[arg(long, conflicts_with = "output")]
    pub(crate) diff: bool,

    /// Treat warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
}
