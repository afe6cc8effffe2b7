//! The flags of `remora run`.

use super::until::Until;
use crate::commands::inject::OrderChoice;
use clap::ValueEnum;
use remora_engine::relay::Publish;
use std::path::PathBuf;
use std::time::Duration;

/// What `remora run --help` says first.
pub(crate) const ABOUT: &str = "\
Runs the pods of Kubernetes manifests on this machine, mesh included: injected as `remora inject` does it, started, \
probed and stopped as a kubelet does it, with real network namespaces, real capture and mutual TLS between pods. \
No cluster, no daemon. Nothing outside the run is changed, and nothing is left of it afterwards.

Pods, Deployments, StatefulSets, DaemonSets, Jobs, CronJobs (--now), Services, ConfigMaps, Secrets, Istio's policies and Namespaces \
count; other kinds are named and left out. The images of the mesh itself and the image `remora` are this program.

Exit code: 0 everything was ready (or completed) in the end, 1 something was not, 2 wrong arguments.";

/// What `remora run --help` says last.
pub(crate) const AFTER: &str = "\
Examples:
  remora run -f examples/bookinfo -p 9080:productpage:9080
  remora run -f app.yaml --mode classic --order istio --logs     watch it fail
  remora run -f job.yaml --until complete";

/// Which pods get a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InjectChoice {
    /// Those a cluster would inject: by labels of Namespaces and pods; all where no Namespace is among the manifests
    Auto,
    /// All that can have one
    Always,
    /// None
    Never,
}

/// Where images come from that the demo application could stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImagesChoice {
    /// Nowhere: what is not on this machine is played by the demo application
    BuiltIn,
    /// Registries; the demo application plays what cannot be reached
    Pull,
}

/// How the mesh meets a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeChoice {
    /// The proxy is a native sidecar
    Native,
    /// The proxy is a container beside the application
    Classic,
    /// The same, application held until the proxy is ready
    #[value(alias = "classic-hold", alias = "classic+hold")]
    Hold,
    /// Captured with the pod's sandbox, as by a CNI plugin; the proxy is a native sidecar
    #[value(alias = "node", alias = "native+cni")]
    NativeCni,
    /// Captured with the pod's sandbox; the proxy is a container beside the application
    Cni,
    /// The same, application held until the proxy is ready
    #[value(alias = "cni+hold")]
    CniHold,
}

impl ModeChoice {
    pub(super) const fn is_native(self) -> bool {
        matches!(self, Self::Native | Self::NativeCni)
    }

    pub(super) const fn is_held(self) -> bool {
        matches!(self, Self::Hold | Self::CniHold)
    }

    pub(super) const fn is_cni(self) -> bool {
        matches!(self, Self::NativeCni | Self::Cni | Self::CniHold)
    }
}

/// The flags of `remora run`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File, directory or - (standard input) with manifests; may be repeated
    #[arg(short, long, value_name = "FILE|DIR|-")]
    pub(crate) filename: Vec<String>,

    /// Look for manifests in subdirectories too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// Lead a port of this machine to a Service: `[ADDRESS:]PORT:[NAMESPACE/]SERVICE[:PORT]`; may be repeated
    #[arg(short, long, value_name = "PORT:SERVICE:PORT")]
    pub(crate) publish: Vec<Publish>,

    /// Let pods reach the outside through this machine: TCP, and names by its name servers
    #[arg(long)]
    pub(crate) egress: bool,

    /// Namespace of objects that name none (default: the only Namespace of the input, else "default")
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Which pods get a sidecar
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) inject: InjectChoice,

    /// How the mesh meets a pod
    #[arg(long, value_enum, default_value = "native", value_name = "MODE")]
    pub(crate) mode: ModeChoice,

    /// Order of containers
    #[arg(long, value_enum, default_value = "safe", value_name = "ORDER")]
    pub(crate) order: OrderChoice,

    /// Show what containers write
    #[arg(long)]
    pub(crate) logs: bool,

    /// Lines instead of a picture, on a terminal too
    #[arg(long)]
    pub(crate) plain: bool,

    /// Draw the timelines of all pods in the end, measured beside predicted
    #[arg(long)]
    pub(crate) timeline: bool,

    /// Write a page with measured and predicted timelines; if its name ends in `.json`, both event by event
    #[arg(long, value_name = "FILE.html|FILE.json")]
    pub(crate) report: Option<PathBuf>,

    /// When to stop: `ready`, `complete` (Jobs and pods that end), or a time such as 30s; else at Ctrl-C
    #[arg(long, value_name = "WHEN", default_value = "interrupted")]
    pub(crate) until: Until,

    /// Longest time to wait for --until ready or complete
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = super::until::time)]
    pub(crate) timeout: Duration,

    /// Run `CronJobs` once, now
    #[arg(long)]
    pub(crate) now: bool,

    /// Divide the waiting times after crashes by this
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) fast_backoff: u64,

    /// Remove what runs that were killed left behind
    #[arg(long)]
    pub(crate) clean: bool,

    /// Images of containers with an annotation `remora.dev/demo.CONTAINER`; all others are pulled in any case
    #[arg(long, value_enum, default_value = "built-in", value_name = "WHERE")]
    pub(crate) images: ImagesChoice,

    /// Where images are kept between runs (default: /var/lib/remora/images, or ~/.local/share/remora/images)
    #[arg(long, value_name = "DIR")]
    pub(crate) image_store: Option<PathBuf>,

    /// Take images from an OCI layout, an archive of one or what `docker save` wrote into the store first; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) image_archive: Vec<PathBuf>,

    /// Program that runs the containers, such as runc or crun, by name or path (default: none, remora does it itself)
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) runtime: Option<String>,

    /// Most processes and threads of a pod; 0 for any number
    #[arg(long, value_name = "N", default_value_t = remora_engine::world::Isolation::POD_PIDS)]
    pub(crate) pod_pids_limit: u64,

    /// Let pods share the users of this machine unless they have `hostUsers: false`, so that root of a container is root
    /// of the machine (default: pods of root have users of their own)
    #[arg(long)]
    pub(crate) host_users: bool,

    /// Directory that `localhostProfile` of pods is relative to (default: /var/lib/remora/seccomp, or
    /// ~/.local/share/remora/seccomp)
    #[arg(long, value_name = "DIR")]
    pub(crate) seccomp_profile_root: Option<PathBuf>,

    /// Registry (host and port) that is spoken to without TLS; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) insecure_registry: Vec<String>,

    /// Where runs keep their files while they last (default: /var/lib/remora/runs, or ~/.local/share/remora/runs)
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}
