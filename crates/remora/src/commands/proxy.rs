//! `remora proxy sidecar`: the first process of a sidecar, with the command line of Istio's `pilot-agent`.
//!
//! Exit codes: 0 after a stop that was asked for, 255 when the sidecar cannot start, Envoy's own (or 128 and the signal)
//! when it ended by itself.

use crate::{out, settings};
use anyhow::Context as _;
use remora_agent::{Inputs, Level, Log, RunError, Settings, SettingsError};
use std::ffi::OsString;
use std::process::ExitCode;

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Runs a sidecar: takes the pod's captured connections (15001, 15006), tunnels from other proxies (15008), and answers
for its readiness (15021, /healthz/ready) from the first moment: 503 with the stage that is missing, then 200, then 503
from the moment it is asked to stop.

Settings come from Istio's flags, environment (PROXY_CONFIG, POD_NAME, POD_NAMESPACE, SERVICE_ACCOUNT, INSTANCE_IP,
TRUST_DOMAIN, CA_ADDR, ISTIO_META_*, …) and files below the working directory. Flags that are not known are accepted
with a warning, so that templates of other versions start.

`--proxy envoy`, or `--binaryPath` with a file that is there, runs that Envoy instead of the built-in proxy: the agent
makes its bootstrap, carries its discovery and hands it certificates. When Envoy ends by itself its exit code, or 128 and
the signal, is the agent's.

`remora istio-iptables FLAGS -- proxy sidecar FLAGS` captures the pod's traffic first, as istio-init would with those flags,
gives up all capabilities and goes on as the sidecar; it ends if that fails.

The agent's port 15020 answers for the application's probes (ISTIO_KUBE_APP_PROBERS), for all metrics
(/stats/prometheus) and, from inside the pod, POST /drain and POST /quitquitquit. The application's hooks are run for the
kubelet only, which is known by HOST_IP, the pod's default gateway, or REMORA_KUBELET_SOURCES (addresses or ranges).

After SIGTERM readiness fails at once, and the sidecar stays while the application listens or anything is open, at most
until one deadline: terminationDrainDuration if it was chosen, else a second less than the grace period
(TERMINATION_GRACE_PERIOD_SECONDS, or 30 s). A second SIGTERM hurries. The exit code is 0. With
REMORA_EXIT_WITH_PROCESS=NAME it also ends when that process, once seen, is gone: for Jobs whose pod shares its process
namespace.

With REMORA_LAST_GOOD_DIR=DIRECTORY, one that outlives the container (an emptyDir such as /etc/istio/proxy), the
configuration is kept there after every change, and a start while the control plane is away makes do with it, if it is
of this pod and not older than REMORA_LAST_GOOD_MAX_AGE (24h); readiness and metrics then say how old it is. The certificate of such a start is a mounted one or the one in OUTPUT_CERTS.

A message of the control plane may have 134217728 bytes (128 MiB), enough for more than 100,000 workloads;
REMORA_XDS_MAX_MESSAGE_BYTES sets another limit. A larger message is refused with a warning, and what was received
before stays in force.";

/// Whatever Istio's templates say.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The role (`sidecar`) and flags of pilot-agent
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ROLE AND FLAGS"
    )]
    words: Vec<OsString>,
}

// istio: any error is -1.
const FAILED: u8 = 255;

/// Runs `proxy` straight from the command line: a pod waits for it.
pub(crate) fn early(arguments: &[OsString]) -> Option<ExitCode> {
    let (name, words) = arguments.get(1..)?.split_first()?;
    let asks = |word: &OsString| word == "-h" || word == "--help";
    if name != "proxy" || words.iter().any(asks) {
        return None;
    }
    Some(start(words))
}

/// Runs until it is asked to stop.
pub(crate) fn run(args: &Args) -> ExitCode {
    start(&args.words)
}

/// Runs with these words behind `proxy`.
pub(super) fn start(words: &[OsString]) -> ExitCode {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match act(&words) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            out::error(&error);
            let hint = error
                .downcast_ref::<SettingsError>()
                .and_then(SettingsError::hint)
                .or_else(|| error.downcast_ref::<RunError>().and_then(RunError::hint));
            if let Some(text) = hint {
                out::hint(text);
            }
            ExitCode::from(FAILED)
        }
    }
}

fn act(words: &[String]) -> anyhow::Result<u8> {
    // First of all: a pod may be deleted before its sidecar has read its settings.
    remora_agent::block_stop_signals().context("keep signals that come early")?;
    let inputs = Inputs::read(words, settings::all().into_iter().collect())?;
    let (settings, warnings) = Settings::resolve(&inputs)?;
    for warning in warnings {
        out::warning(warning);
    }
    let log = Log::new(|level, text| match level {
        Level::Note => out::note(text),
        Level::Warning => out::warning(text),
    });
    if let Some(envoy) = &settings.envoy {
        return Ok(remora_agent::envoy::run(&settings, envoy, &log)?);
    }
    remora_agent::run(&settings, &log)?;
    Ok(0)
}
