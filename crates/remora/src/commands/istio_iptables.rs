//! `remora istio-iptables`: the init container's job, with Istio's command line.
//!
//! Exit codes: 0 done or nothing to do, 1 any error, 126 validation failed (what Istio's repair looks for).

use super::capture_flags::{CaptureFlags, environment};
use crate::commands::{proxy, report};
use anyhow::{Context, bail};
use clap::Args;
use remora_capture::install::{self, Outcome};
use remora_capture::ruleset::{ruleset, script};
use remora_capture::{iptables, validate};
use remora_net::Namespace;
use remora_rules::options::{Backend, Given, InitialState, Name, Origin, Settings, parse_argv};
use remora_rules::rule::Family;
use remora_rules::switch::State;
use remora_rules::{Plan, render};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Redirect a pod's traffic to its sidecar.
#[derive(Debug, Args)]
pub(crate) struct IstioIptablesArgs {
    #[command(flatten)]
    flags: CaptureFlags,
}

/// Remove everything that `istio-iptables` put in.
#[derive(Debug, Args)]
pub(crate) struct IstioCleanIptablesArgs {
    #[command(flatten)]
    flags: CaptureFlags,
}

/// Runs `istio-iptables` straight from the command line, before the whole program's one is looked at.
///
/// Two reasons: a flag that is not known must be exit 1 here, as in Istio, where elsewhere it is 2; and this is
/// the command whose time counts, since every pod waits for it. `None` if it is another command, or help is
/// asked for.
pub(crate) fn early(arguments: &[OsString]) -> Option<ExitCode> {
    let (program, rest) = arguments.split_first()?;
    let command = |name: &OsString| match Path::new(name).file_name()?.to_str()? {
        "istio-iptables" => Some(false),
        "istio-clean-iptables" => Some(true),
        _ => None,
    };
    // istio: in 1.5 these were programs of their own, and manifests of that time call them by name.
    let (clean, rest) = match (command(program), rest.split_first()) {
        (Some(clean), _) => (clean, rest),
        (None, Some((name, rest))) => (command(name)?, rest),
        (None, None) => return None,
    };
    let (rest, then) = match rest.iter().position(|word| word == "--") {
        Some(at) if !clean => (&rest[..at], Some(&rest[at + 1..])),
        _ => (rest, None),
    };
    let rest: Vec<&str> = rest.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
    if rest
        .iter()
        .any(|word| matches!(*word, "-h" | "--help" | "-V" | "--version"))
    {
        return None;
    }
    let given = parse_argv(&rest).map_err(anyhow::Error::from);
    Some(match then {
        None => report::finish(given.and_then(|given| act(given, clean))),
        Some(words) => capture_and_go_on(given, words),
    })
}

/// `istio-iptables FLAGS -- proxy sidecar …`: a sidecar that captures the traffic itself, gives up the right to and
/// only then becomes a proxy. If any of it fails it ends, and whoever waits for it does not start.
fn capture_and_go_on(given: anyhow::Result<Vec<Given>>, words: &[OsString]) -> ExitCode {
    let captured = || -> anyhow::Result<ExitCode> {
        let Some((_, words)) = words.split_first().filter(|(command, _)| *command == "proxy") else {
            bail!("only `proxy` can follow behind `--`");
        };
        // As the proxy itself does it: a pod may be deleted at any moment.
        remora_agent::block_stop_signals().context("keep signals that come early")?;
        let code = act(given?, false)?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
        remora_net::privilege::drop_capabilities().context("give up the right to change rules")?;
        Ok(proxy::start(words))
    };
    report::finish(captured())
}

/// Runs `istio-iptables`. Every error is exit 1, as Istio's is.
#[expect(clippy::unnecessary_wraps, reason = "every command has this signature")]
pub(crate) fn run(args: &IstioIptablesArgs) -> anyhow::Result<ExitCode> {
    Ok(report::finish(act(args.flags.given(), false)))
}

/// Runs `istio-clean-iptables`, which is `istio-iptables --cleanup-only`.
#[expect(clippy::unnecessary_wraps, reason = "every command has this signature")]
pub(crate) fn run_clean(args: &IstioCleanIptablesArgs) -> anyhow::Result<ExitCode> {
    Ok(report::finish(act(args.flags.given(), true)))
}

fn act(mut given: Vec<Given>, clean: bool) -> anyhow::Result<ExitCode> {
    if clean {
        given.push(Given {
            option: Name::CleanupOnly,
            value: "true".into(),
            origin: Origin::Flag,
        });
    }
    let settings = Settings::read(&given, &environment())?;
    report::warnings(&settings.warnings);
    enter(&settings)?;
    if settings.cleanup_only {
        if !settings.dry_run {
            install::remove(&settings)?;
            report::note("everything is removed");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let prepared = install::prepare(&settings)?;
    report::warnings(&prepared.warnings);
    if settings.dry_run {
        return dry_run(&settings, &prepared.plan);
    }
    if !settings.skip_rule_apply {
        match install::install(&settings, &prepared.plan)? {
            Outcome::Unchanged => report::note("the rules are already in place"),
            Outcome::Applied | Outcome::Removed => report::note("the rules are in place"),
        }
    }
    if let Some(backend) = settings.backend.filter(|backend| *backend != Backend::Nftables) {
        report::note(&format!("back end: {}", iptables::detect(backend, Family::V4)?));
    }
    if settings.run_validation {
        return Ok(validated(&settings, &prepared));
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves into the namespace that was asked for. The command has one thread, so it may move as a whole.
fn enter(settings: &Settings) -> anyhow::Result<()> {
    let Some(path) = &settings.network_namespace else {
        return Ok(());
    };
    let enter = || Namespace::open(path)?.enter();
    enter().with_context(|| format!("enter the network namespace {}", path.display()))
}

fn validated(settings: &Settings, prepared: &install::Prepared) -> ExitCode {
    let checks = validate::validate(settings, &prepared.intent, &prepared.plan);
    for check in &checks {
        report::note(&check.to_string());
    }
    if validate::passed(&checks) {
        return ExitCode::SUCCESS;
    }
    report::hint(
        "traffic of this pod is not captured: the CNI plugin did not run for it, or the init container that sets \
         capture up failed; the pod must be recreated, or repaired by running `remora istio-iptables` in its \
         network namespace",
    );
    // istio: the code its repair controller looks for.
    ExitCode::from(126)
}

fn dry_run(settings: &Settings, plan: &Plan) -> anyhow::Result<ExitCode> {
    let text = describe(settings, plan)?;
    if let Some(path) = &settings.dry_run_file {
        std::fs::write(path, &text).with_context(|| format!("write {}", path.display()))?;
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What would be applied, as text.
// Istio's text by default, since that is what people compare; the nft script when nftables is asked for.
pub(crate) fn describe(settings: &Settings, plan: &Plan) -> anyhow::Result<String> {
    let mut text = String::new();
    if settings.backend == Some(Backend::Nftables) {
        let state = match settings.state {
            InitialState::Set(state) => state,
            InitialState::Keep => State::Closed,
        };
        writeln!(text, "# nft")?;
        text.push_str(&script::script(&ruleset(plan), state));
        return Ok(text);
    }
    let families = [
        ("ipv4", "iptables", Some(&plan.ipv4)),
        ("ipv6", "ip6tables", plan.ipv6.as_ref()),
    ];
    for (family, program, rules) in families {
        let Some(rules) = rules else { continue };
        writeln!(text, "# {family}")?;
        text.push_str(&if settings.restore_format {
            render::restore(rules)
        } else {
            render::commands(program, rules)
        });
    }
    Ok(text)
}
