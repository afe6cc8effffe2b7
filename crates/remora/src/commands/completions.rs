//! `remora completions SHELL`.

use crate::{cli, out};
use clap_complete::Shell;
use std::process::ExitCode;

/// Which shell.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell to complete for
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::definition(), "remora", &mut script);
    out::stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}
