//! `remora delete`: ends pods of a run as a cluster would.

use super::instance::{self, Where};
use crate::out;
use remora_engine::door::{Request, Which};
use std::process::ExitCode;

/// What `remora delete --help` says first.
pub(crate) const ABOUT: &str = "\
Deletes pods of a run, in the order and with the patience of a kubelet: hooks, signals, grace. What a Deployment, \
ReplicaSet, StatefulSet, DaemonSet or Job made is made again, as in a cluster; deleting one of those deletes its pods \
for good.";

/// The flags of `remora delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `POD`, or `KIND/NAME`: pod, deployment, replicaset, statefulset, daemonset, job; may be repeated
    #[arg(value_name = "POD|KIND/NAME", required = true)]
    what: Vec<String>,

    /// Namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Seconds to stop in, instead of the pod's own
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u64>,

    /// Within a second
    #[arg(long, conflicts_with = "grace_period")]
    now: bool,

    /// Do not wait until they are gone
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    place: Where,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    instance::runtime()?.block_on(async {
        for name in &args.what {
            delete(args, name).await?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn delete(args: &Args, name: &str) -> anyhow::Result<()> {
    let what = Which {
        namespace: args.namespace.clone(),
        name: name.to_owned(),
    };
    let instance = args.place.with(&what).await?;
    let request = Request::Delete {
        what,
        grace: if args.now { Some(1) } else { args.grace_period },
        wait: !args.no_wait,
    };
    let mut stream = instance.ask(&request).await?;
    let names = instance::until_answered(&mut stream).await?;
    for name in names.as_array().into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        out::stdout(format!("{} deleted\n", name.to_lowercase()).as_bytes())?;
    }
    Ok(())
}
