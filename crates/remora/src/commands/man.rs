//! `remora man [COMMAND]`: manual pages, made from the same definition as the help.

use crate::{cli, out};
use anyhow::Context as _;
use std::process::ExitCode;

/// Which page.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Command to describe (default: the program itself)
    command: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut definition = cli::definition();
    definition.build();
    let (page, title) = match &args.command {
        None => (definition, "remora".to_owned()),
        Some(name) => {
            let found = definition.find_subcommand(name).cloned();
            let page =
                found.with_context(|| format!("there is no command {name:?}; `remora --help` lists them"))?;
            (page, format!("remora-{name}"))
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).title(title).render(&mut text)?;
    out::stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}
