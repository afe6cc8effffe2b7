//! `remora logs`: what a container of a run wrote.

use super::instance::{self, Where};
use remora_engine::door::{Request, Which};
use std::process::ExitCode;

/// The flags of `remora logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `POD`, or `KIND/NAME` for the first pod of a workload
    #[arg(value_name = "POD")]
    pod: String,

    /// Container (default: the pod's first, not its proxy)
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Namespace of the pod
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Go on until the container ends
    #[arg(short, long)]
    follow: bool,

    /// Only the last lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,

    /// What it wrote before it was started again
    #[arg(short, long)]
    previous: bool,

    /// With the time of each line
    #[arg(long)]
    timestamps: bool,

    #[command(flatten)]
    place: Where,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    instance::runtime()?.block_on(async {
        let pod = Which {
            namespace: args.namespace.clone(),
            name: args.pod.clone(),
        };
        let instance = args.place.with(&pod).await?;
        let request = Request::Logs {
            pod,
            container: args.container.clone(),
            follow: args.follow,
            tail: args.tail,
            previous: args.previous,
            timestamps: args.timestamps,
        };
        let mut stream = instance.ask(&request).await?;
        instance::until_answered(&mut stream).await?;
        Ok(ExitCode::SUCCESS)
    })
}
