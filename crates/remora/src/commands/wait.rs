//! `remora wait`: returns when the sidecar is ready. What a `postStart` hook runs.
//!
//! Exit codes: 0 ready, 255 not ready in time or a mistake in the flags.

use crate::out;
use clap::{Args as _, FromArgMatches as _};
use remora_agent::client::Url;
use remora_agent::wait::Wait;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

// istio: any error is -1.
const FAILED: u8 = 255;

/// How long to wait for what.
#[derive(Debug, clap::Args)]
#[command(rename_all = "camelCase")]
pub(crate) struct Args {
    /// For how long altogether
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout_seconds: u64,
    /// For how long one answer is waited for
    #[arg(long, default_value_t = 500, value_name = "MILLISECONDS")]
    request_timeout_millis: u64,
    /// The longest time between two looks; a sidecar of remora tells by itself
    #[arg(long, default_value_t = 500, value_name = "MILLISECONDS")]
    period_millis: u64,
    /// What to ask
    #[arg(long, default_value = "http://localhost:15021/healthz/ready")]
    url: Url,
}

/// Runs `wait` straight from the command line: a pod's start waits for it.
pub(crate) fn early(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.get(1)? != "wait" {
        return None;
    }
    let command = Args::augment_args(clap::Command::new("wait"));
    let matches = command.try_get_matches_from(arguments.get(1..)?);
    match matches.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => Some(run(&args)),
        // The whole program knows how to show help.
        Err(error) if !error.use_stderr() => None,
        Err(error) => {
            let _ = error.print();
            Some(ExitCode::from(FAILED))
        }
    }
}

/// Waits.
pub(crate) fn run(args: &Args) -> ExitCode {
    let wait = Wait {
        url: args.url.clone(),
        timeout: Duration::from_secs(args.timeout_seconds),
        request_timeout: Duration::from_millis(args.request_timeout_millis),
        period: Duration::from_millis(args.period_millis),
    };
    match wait.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::error_text(error);
            ExitCode::from(FAILED)
        }
    }
}
