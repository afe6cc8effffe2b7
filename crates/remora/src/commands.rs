//! One module a command.

pub(crate) mod completions;
pub(crate) mod inject;
pub(crate) mod man;

use crate::cli::Command;
use std::process::ExitCode;

/// Runs a command.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Inject(args) => inject::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
