//! `remora capture`: look at traffic capture, explain it, switch it.

mod explain;

use super::capture_flags::{CaptureFlags, environment};
use super::{istio_iptables, report};
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use remora_capture::apply::Nftables;
use remora_capture::{install, iptables};
use remora_net::Namespace;
use remora_pod::spec::PodView;
use remora_pod::{workload, yaml};
use remora_rules::dialect;
use remora_rules::options::{Environment, Given, HostFacts, Name, Origin, Settings};
use remora_rules::switch::State;
use remora_rules::{Plan, plan, pod};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Look at traffic capture and switch it.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say which rule decides about a packet
    Explain(explain::ExplainArgs),
    /// Print the rules for flags or for a pod
    Rules(RulesArgs),
    /// Let connections pass (open), wait (hold) or go to the proxy (closed, on)
    Switch(SwitchArgs),
    /// Say what is installed in this network namespace
    Status(StatusArgs),
}

/// From flags or from a pod.
#[derive(Debug, Args)]
struct Source {
    /// Read what to capture from the first workload of this manifest
    #[arg(long, value_name = "FILE")]
    pod: Option<PathBuf>,
    #[command(flatten)]
    flags: CaptureFlags,
}

#[derive(Debug, Args)]
struct RulesArgs {
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, Args)]
struct SwitchArgs {
    /// The state
    #[arg(value_enum)]
    state: StateName,
    /// Work in this network namespace
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Work in this network namespace
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StateName {
    Open,
    Hold,
    Closed,
    On,
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Open => Self::Open,
            StateName::Hold => Self::Hold,
            StateName::Closed => Self::Closed,
            StateName::On => Self::On,
        }
    }
}

/// Runs the command. Every error is exit 1.
#[expect(clippy::unnecessary_wraps, reason = "every command has this signature")]
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    Ok(report::finish(match &args.command {
        Command::Explain(args) => explain::run(args),
        Command::Rules(args) => rules(args),
        Command::Switch(args) => switch(args),
        Command::Status(args) => status(args),
    }))
}

fn rules(args: &RulesArgs) -> anyhow::Result<ExitCode> {
    let (settings, plan) = args.source.plan()?;
    std::io::stdout()
        .lock()
        .write_all(istio_iptables::describe(&settings, &plan)?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn switch(args: &SwitchArgs) -> anyhow::Result<ExitCode> {
    enter(args.network_namespace.as_deref())?;
    let state = State::from(args.state);
    install::switch(state).with_context(|| format!("switch traffic capture to {state}"))?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    enter(args.network_namespace.as_deref())?;
    let text = match (Nftables::open()?.installed()?, iptables::state()) {
        (None, None) => "not installed, or by iptables without a switch\n".to_owned(),
        (None, Some(state)) => format!("installed by iptables\nswitch: {state}\n"),
        (Some(there), _) => {
            let state = there.state.map_or("changed by somebody else", State::name);
            format!("installed: {}\nswitch: {state}\n", there.comment)
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn enter(path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let enter = || Namespace::open(path)?.enter();
    enter().with_context(|| format!("enter the network namespace {}", path.display()))
}

/// The first pod or pod template of a manifest.
fn first_pod(path: &Path, text: &str) -> anyhow::Result<PodView> {
    for raw in yaml::split(text) {
        let document = yaml::parse(&raw, yaml::Limits::default())
            .map_err(|error| error.locate(&path.display().to_string(), raw.index + 1))?;
        let Some(document) = document else { continue };
        if let Some(found) = workload::workloads(&document.value).first()
            && let Some(pod) = found.object.get(&document.value)
        {
            return Ok(PodView::read(pod));
        }
    }
    bail!("{} has no pod or workload in it", path.display())
}

impl Source {
    /// The rules that flags or a pod stand for. Nothing is asked of this host, which need not be the pod's: it
    /// is taken to have IPv6 unless a flag says otherwise.
    fn plan(&self) -> anyhow::Result<(Settings, Plan)> {
        let (given, environment) = self.options()?;
        let settings = Settings::read(&given, &environment)?;
        report::warnings(&settings.warnings);
        let (intent, warnings) = settings.intent(&HostFacts {
            ipv6: true,
            ..HostFacts::default()
        });
        report::warnings(&warnings);
        Ok((settings, plan(&intent)))
    }

    /// Flags over this process's environment; of a pod, flags over those of its manifest.
    fn options(&self) -> anyhow::Result<(Vec<Given>, Environment)> {
        let Some(path) = &self.pod else {
            return Ok((self.flags.given(), environment()));
        };
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let found = pod::options(&first_pod(path, &text)?, &dialect::ISTIO)?;
        let mut given = found.given;
        given.extend(self.flags.given());
        Ok((given, found.environment))
    }

    /// Whether anything was said about what to capture.
    fn is_empty(&self) -> bool {
        let about = |given: &Given| given.origin == Origin::Flag && given.option != Name::NetworkNamespace;
        self.pod.is_none() && !self.flags.given().iter().any(about)
    }

    fn network_namespace(&self) -> anyhow::Result<()> {
        enter(self.flags.value(Name::NetworkNamespace).map(Path::new))
    }

    /// The rules that are installed, when nothing else was asked about.
    fn live(&self) -> anyhow::Result<(Plan, State)> {
        if !self.is_empty() {
            bail!("--live explains what is installed: leave flags and --pod out");
        }
        self.network_namespace()?;
        let mut nftables = Nftables::open()?;
        let Some(installed) = nftables.installed()? else {
            let state = iptables::state().unwrap_or(State::Closed);
            return match iptables::plan()? {
                Some(plan) => Ok((plan, state)),
                // Says that nothing is installed, and how to mend it.
                None => Ok((nftables.plan()?, state)),
            };
        };
        let plan = nftables.plan()?;
        let state = installed.state.context("the switch has no known state")?;
        Ok((plan, state))
    }
}
