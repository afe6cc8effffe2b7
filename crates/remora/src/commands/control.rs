//! `remora control --config FILE`: discovery and certificates for a mesh that files describe.

use crate::out;
use anyhow::Context as _;
use remora_control::{Config, Notice, Plane};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Serves a mesh to its proxies: workloads, services and policies by incremental discovery (delta ADS), certificates by
Istio's certificate service, both over TLS on one port.

The file says where the mesh is described (files or directories of Workload, Service and Policy documents), where the
root certificate is kept (made at the first start) and which tokens belong to whom. Files are looked at again every
second; proxies are sent what changed. A description with a mistake changes nothing and is reported.";

/// Where the configuration is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
}

/// Runs until it is asked to stop.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    // Before anything else, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let config = Config::read(&args.config)?;
    let listen = config.listen;
    let plane = Plane::open(config, |notice: &Notice| match notice {
        Notice::Mesh { .. } => out::note(notice),
        Notice::Kept(_) | Notice::Refused { .. } => out::warning(notice),
    })?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("listen on {listen}"))?;
    out::note(format_args!("listening on {}", listener.local_addr()?));
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    plane.serve(listener, stop).await?;
    Ok(ExitCode::SUCCESS)
}
