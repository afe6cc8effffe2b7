//! What can be typed. No IO, no decisions: [`commands`](crate::commands) act on it.

use crate::commands::{
    capture, check, completions, control, delete, demo, exec, image, inject, install, istio_iptables, logs,
    man, proxy, ps, request, run, wait, why,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;

/// Runs a pod's sidecars in the right order.
#[derive(Debug, Parser)]
#[command(
    name = "remora",
    version,
    about = "The Istio-compatible sidecar data plane in which a pod always starts and stops in the right order",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false,
    after_help = "Invoked as kube-inject, istio-iptables, istio-clean-iptables, istioctl or pilot-agent, remora behaves \
                  as that program."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One of the commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add the mesh sidecar and OpenTelemetry to manifests, in an order in which everything starts
    #[command(visible_alias = "kube-inject", long_about = inject::ABOUT)]
    Inject(Box<inject::Args>),
    /// Say who has network when, what will fail, and the fix
    #[command(long_about = check::ABOUT, after_long_help = check::AFTER)]
    Check(Box<check::Args>),
    /// Redirect a pod's traffic to its sidecar: the job of the init container `istio-init`
    IstioIptables(Box<istio_iptables::IstioIptablesArgs>),
    /// Remove everything that `istio-iptables` put in
    IstioCleanIptables(Box<istio_iptables::IstioCleanIptablesArgs>),
    /// Look at traffic capture, explain it, switch it
    Capture(Box<capture::CaptureArgs>),
    /// Serve discovery, certificates and webhooks to a mesh
    #[command(long_about = control::ABOUT)]
    Control(control::Args),
    /// Run a sidecar: the job of the container `istio-proxy`
    #[command(long_about = proxy::ABOUT)]
    Proxy(proxy::Args),
    /// Return when the sidecar beside us is ready
    Wait(wait::Args),
    /// Ask the sidecar beside us
    Request(request::Args),
    /// Say where a pod is stuck, or what a proxy would do with a connection, and because of what
    #[command(long_about = why::ABOUT)]
    Why(why::Args),
    /// Print what a cluster needs to run a mesh, for kubectl
    #[command(long_about = install::ABOUT)]
    Install(install::Args),
    /// Print what `install` printed, for kubectl to delete
    Uninstall(install::Args),
    /// Write an image of this binary, for clusters
    #[command(long_about = image::ABOUT)]
    Image(image::Args),
    /// Run pods on this machine, mesh included
    #[command(long_about = run::ABOUT, after_long_help = run::AFTER)]
    Run(Box<run::Args>),
    /// List the pods of runs that go on
    Ps(ps::Args),
    /// Print what a container of a run wrote
    Logs(logs::Args),
    /// Run a command in a container of a run
    Exec(exec::Args),
    /// Delete pods of a run, as a cluster would
    #[command(long_about = delete::ABOUT)]
    Delete(delete::Args),
    /// Play a part of a small demo application
    #[command(hide = true)]
    Demo(demo::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page of a command
    #[command(hide = true)]
    Man(man::Args),
}

/// Programs whose name on the command line means a command of ours.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("kube-inject", &["inject"]),
    ("istio-iptables", &["istio-iptables"]),
    ("istio-clean-iptables", &["istio-clean-iptables"]),
    ("istioctl", &[]),
    ("pilot-agent", &[]),
];

/// The arguments as if `remora COMMAND …` had been typed, whatever the binary is called.
pub(crate) fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut given = given.into_iter();
    let program = given.next().unwrap_or_default();
    let name = Path::new(&program)
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let command = PROGRAMS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(&[][..], |(_, words)| *words);
    std::iter::once(OsString::from("remora"))
        .chain(command.iter().map(OsString::from))
        .chain(given)
        .collect()
}

/// Reads the arguments; help, version and mistakes come back as errors that print themselves.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Command, clap::Error> {
    let matches = definition().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map(|cli| cli.command)
}

/// The whole command line, for help, completions and manual pages.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::{arguments, definition};
    use std::ffi::OsString;

    #[test]
    fn the_command_line_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn the_name_of_the_program_chooses_the_command() {
        let typed = |words: &[&str]| {
            let words: Vec<OsString> = arguments(words.iter().map(OsString::from));
            words
                .into_iter()
                .map(|w| w.into_string().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            typed(&["/usr/bin/remora", "inject", "-f", "x"]),
            "remora inject -f x"
        );
        assert_eq!(typed(&["/bin/kube-inject", "-f", "x"]), "remora inject -f x");
        assert_eq!(
            typed(&["istioctl", "kube-inject", "-f", "x"]),
            "remora kube-inject -f x"
        );
        assert_eq!(
            typed(&["/usr/local/bin/istio-iptables", "-p", "1"]),
            "remora istio-iptables -p 1"
        );
        assert_eq!(
            typed(&["pilot-agent", "istio-iptables", "-p", "1"]),
            "remora istio-iptables -p 1"
        );
        assert_eq!(typed(&[]), "remora");
    }
}
