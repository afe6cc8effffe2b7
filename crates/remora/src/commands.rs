//! One module a command.

pub(crate) mod capture;
pub(crate) mod capture_flags;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod exec;
pub(crate) mod image;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod instance;
pub(crate) mod istio_iptables;
pub(crate) mod logs;
pub(crate) mod man;
pub(crate) mod proxy;
pub(crate) mod ps;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod wait;
pub(crate) mod why;

use crate::cli::Command;
use std::process::ExitCode;

/// Runs a command.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check(args) => Ok(check::run(&args)),
        Command::Inject(args) => inject::run(&args),
        Command::IstioIptables(args) => istio_iptables::run(&args),
        Command::IstioCleanIptables(args) => istio_iptables::run_clean(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Control(args) => control::run(&args),
        Command::Install(args) => install::run(&args),
        Command::Uninstall(args) => install::run_uninstall(&args),
        Command::Image(args) => image::run(&args),
        Command::Proxy(args) => Ok(proxy::run(&args)),
        Command::Wait(args) => Ok(wait::run(&args)),
        Command::Request(args) => Ok(request::run(&args)),
        Command::Run(args) => run::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Delete(args) => delete::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Why(args) => Ok(why::run(&args)),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
