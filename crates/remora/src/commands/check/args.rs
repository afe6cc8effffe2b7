//! The flags of `remora check`.

use crate::commands::inject::{self, InjectorChoice, NativeChoice, OrderChoice};
use anyhow::bail;
use clap::ValueEnum;
use remora_startup::findings::Severity;
use remora_startup::mesh::Mode;
use std::path::PathBuf;

/// What `remora check --help` says first.
pub(crate) const ABOUT: &str = "\
Says, before a pod runs, who has network when, what will fail, and the fix.

Reads Kubernetes manifests, raw or injected, plays how a kubelet would start and stop each pod under its mesh, \
draws that as a timeline and lists what is wrong with it: cause, what you would see in kubectl, and fixes ranked \
with what each costs. It changes nothing, and with -f it works offline. With --namespace or --all-namespaces it \
checks what runs in a cluster: of pods that are made alike one, and templates of which no pod runs.

Exit code: 0 nothing found (at or above --fail-on), 1 findings, 2 could not check.";

/// What `remora check --help` says last.
pub(crate) const AFTER: &str = "\
Assumptions (--assume FILE, YAML or JSON): how processes behave, and what is done
to the pod.
  processes:
    istio-proxy: {ready: 5s}          # takes traffic 5 s after its start
    migrate: {lives: 3s, needsNetwork: true}
    app/postStart: {lives: 10s}       # a hook or probe of a container
  do:
  - {on: app.start, after: 30s, act: delete, grace: 5}
  kubelet: {version: \"1.34\"}
  until: 2m
Keys of a process: lives, exit, deaths, life, needsNetwork, healthy,
listensAfter, drains, stopExit, imageMissing; of a proxy also ready, strict.
act: delete, lose-sandbox, restart-kubelet, quit-proxy, end.
Times: 500ms, 5s, 2m.

Examples:
  remora check -f app.yaml --inject                 what our injection does to it
  remora check -f app.yaml --inject --order istio --native off
  remora check --namespace shop                     what runs there now
  remora check -f app.yaml --mode cni --fix=diff    what to change for a mesh with CNI
  remora check -R -f deploy/ --format sarif -o out.sarif";

/// A mode to assume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeChoice {
    /// No mesh
    None,
    /// istio-init, then the proxy beside the application
    Classic,
    /// The same, application held until the proxy is ready
    #[value(alias = "classic+hold")]
    ClassicHold,
    /// Rules by a CNI plugin, proxy beside the application
    Cni,
    /// The same, with hold
    #[value(alias = "cni+hold")]
    CniHold,
    /// istio-init, then the proxy as a native sidecar
    Native,
    /// Rules by a CNI plugin, proxy as a native sidecar
    #[value(alias = "native+cni")]
    NativeCni,
    /// A proxy on the node
    Ambient,
}

impl ModeChoice {
    pub(super) const fn mode(self) -> Mode {
        match self {
            Self::None => Mode::None,
            Self::Classic => Mode::Classic,
            Self::ClassicHold => Mode::ClassicHold,
            Self::Cni => Mode::Cni,
            Self::CniHold => Mode::CniHold,
            Self::Native => Mode::Native,
            Self::NativeCni => Mode::NativeCni,
            Self::Ambient => Mode::Ambient,
        }
    }
}

/// How to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatChoice {
    /// For a terminal: timeline and findings
    Text,
    /// For programs
    Json,
    /// For code scanning (SARIF 2.1.0)
    Sarif,
    /// One self-contained page
    Html,
    /// The timeline alone
    Svg,
}

/// What to do with fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FixChoice {
    /// Print the manifests with the best fixes applied
    Print,
    /// Show the changes
    Diff,
}

/// From which severity on findings fail the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// The pod will not start, not end or not do its work
    Error,
    /// It depends on timing too
    Warning,
    /// Nothing does
    Never,
}

impl FailOn {
    /// Whether the worst finding fails the check.
    pub(super) fn fails(self, worst: Option<Severity>) -> bool {
        match self {
            Self::Error => worst == Some(Severity::Error),
            Self::Warning => worst.is_some_and(|w| w <= Severity::Warning),
            Self::Never => false,
        }
    }
}

/// The flags of `remora check`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File, directory or - (standard input) with manifests; may be repeated
    #[arg(
        short,
        long,
        value_name = "FILE|DIR|-",
        required_unless_present_any = ["explain", "namespace", "all_namespaces"]
    )]
    pub(crate) filename: Vec<String>,

    /// Check what runs in this namespace of a cluster; with -f, namespace of objects that name none
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Check what runs in a cluster
    #[arg(short = 'A', long, conflicts_with_all = ["filename", "namespace"])]
    pub(crate) all_namespaces: bool,

    /// Kubeconfig of the cluster; with --inject, of the one whose nodes decide about `--native auto`
    /// [default: KUBECONFIG, ~/.kube/config, or the cluster this runs in]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of that kubeconfig
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Look for manifests in subdirectories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// How to tell
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) format: FormatChoice,

    /// File to write to instead of standard output; replaced in one step
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Draw pods without errors and warnings too, and show notes
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Mesh mode to assume, instead of the one found in each pod
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<ModeChoice>,

    /// Version of the kubelets, such as 1.32
    #[arg(long, value_name = "VERSION")]
    pub(crate) kubelet: Option<String>,

    /// Assume that workloads accept nothing but mTLS
    #[arg(long)]
    pub(crate) strict_mtls: bool,

    /// Simulate under these assumptions (see below) and print what happens
    #[arg(long, value_name = "FILE")]
    pub(crate) assume: Option<PathBuf>,

    /// Print the manifests with the best fixes applied, or the changes (--fix=diff)
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "print",
        conflicts_with_all = ["format", "assume"]
    )]
    pub(crate) fix: Option<FixChoice>,

    /// Severity from which on findings make the exit code 1
    #[arg(long, value_enum, default_value = "error", value_name = "SEVERITY")]
    pub(crate) fail_on: FailOn,

    /// Print the page about a code, such as RM001
    #[arg(long, value_name = "CODE", conflicts_with_all = ["filename", "fix", "assume"])]
    pub(crate) explain: Option<String>,

    /// Inject first, as `remora inject` does
    #[arg(long, help_heading = "Injection")]
    pub(crate) inject: bool,

    /// Whether the injected proxy is a native sidecar
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        requires = "inject",
        help_heading = "Injection"
    )]
    pub(crate) native: NativeChoice,

    /// Order of injected containers
    #[arg(
        long,
        value_enum,
        default_value = "safe",
        value_name = "ORDER",
        requires = "inject",
        help_heading = "Injection"
    )]
    pub(crate) order: OrderChoice,

    /// Mesh configuration (Istio's MeshConfig)
    #[arg(
        long = "meshConfigFile",
        value_name = "FILE",
        requires = "inject",
        help_heading = "Injection"
    )]
    pub(crate) mesh_config_file: Option<PathBuf>,

    /// Installation values (as of Istio's charts)
    #[arg(
        long = "valuesFile",
        value_name = "FILE",
        requires = "inject",
        help_heading = "Injection"
    )]
    pub(crate) values_file: Option<PathBuf>,

    /// Injector configuration with templates, or one bare template
    #[arg(
        long = "injectConfigFile",
        value_name = "FILE",
        requires = "inject",
        help_heading = "Injection"
    )]
    pub(crate) inject_config_file: Option<PathBuf>,
}

impl Args {
    /// Whether a cluster is asked rather than files read.
    pub(super) fn is_live(&self) -> bool {
        self.filename.is_empty()
    }

    /// What the flags say together.
    pub(super) fn consistent(&self) -> anyhow::Result<()> {
        let cluster = self.kubeconfig.is_some() || self.context.is_some();
        if self.is_live() {
            return Ok(());
        }
        if cluster && !self.inject {
            bail!("with -f a cluster is asked for --inject only: leave -f away to check what runs in it");
        }
        if cluster && self.kubelet.is_some() {
            bail!("--kubelet says what the cluster would be asked for: give one of them");
        }
        if self.namespace.is_some() && !self.inject {
            bail!("with -f a namespace matters for --inject only: leave -f away to check what runs in it");
        }
        Ok(())
    }

    /// The same wishes, as `remora inject` takes them.
    pub(super) fn injection(&self) -> inject::Args {
        inject::Args {
            filename: Vec::new(),
            recursive: false,
            output: None,
            mesh_config_file: self.mesh_config_file.clone(),
            values_file: self.values_file.clone(),
            inject_config_file: self.inject_config_file.clone(),
            operator_file: None,
            revision: None,
            namespace: self.namespace.clone(),
            native: self.native,
            kubelet_min: self.kubelet.clone(),
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            order: self.order,
            injectors: vec![InjectorChoice::Mesh, InjectorChoice::Otel],
            otel_operator_config: None,
            diff: false,
            strict: false,
        }
    }
}
