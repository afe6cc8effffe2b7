//! `remora control`: discovery, certificates and webhooks for the mesh of a cluster, or of files.

mod files;
mod kubernetes;

use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Serves a mesh to its proxies: workloads, services and policies by incremental discovery (delta ADS), certificates by
Istio's certificate service, both over TLS on one port (15012).

With --config the mesh is described by files (Workload, Service and Policy documents); the file says where they are,
where the root certificate is kept (made at the first start) and which tokens belong to whom. Files are looked at again
every second; proxies are sent what changed. A description with a mistake changes nothing and is reported.

Without it the mesh is a Kubernetes cluster: the one it runs in, or the one of --kubeconfig or --context. Then it also
answers the API server's webhooks (15017: /inject, /check) and tells its health and metrics (15014: /ready, /live,
/metrics). `remora install` writes what the cluster needs for that.";

/// What to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Describes a mesh of files
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    cluster: kubernetes::ClusterArgs,
}

/// How long a control plane that is asked to stop goes on answering: nodes learn a little later than it does that it is
/// no endpoint any more, and until then API servers come here to have pods injected.
const LEAVE: Duration = Duration::from_secs(3);

/// Threads that serve; more of them use memory and bring little.
const MAX_THREADS: usize = 4;
/// Threads for admission reviews, files and names.
const BLOCKING_THREADS: usize = 16;

/// Runs until it is asked to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // A client that keeps one thread busy does not keep the others from accepting.
    let threads = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, MAX_THREADS));
    // Connections are limited by the server, not by the usual limit of a process.
    let _ = remora_net::privilege::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    // Before anything else, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let in_cluster = args.config.is_none();
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => return,
        }
        if in_cluster {
            tokio::select! {
                () = tokio::time::sleep(LEAVE) => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    };
    match &args.config {
        Some(config) => files::serve(config, stop).await?,
        None => kubernetes::serve(&args.cluster, stop).await?,
    }
    Ok(ExitCode::SUCCESS)
}
