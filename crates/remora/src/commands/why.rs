//! `remora why SRC DST:PORT`: what a proxy would do with a connection, and because of what. Nothing is sent to anybody
//! but the proxy that is asked. `remora why POD`: where a pod of a cluster is stuck.
//!
//! Exit codes: 0 bytes would flow, or the pod is well; 1 they would not, or it is not; 2 nobody could say.

mod pod;
mod stuck;

use crate::out;
use anyhow::{Context as _, bail};
use remora_agent::client::{self, Url};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What the help says at length.
pub(crate) const ABOUT: &str = "\
Two questions:

remora why POD  asks a cluster where a pod is stuck: which container it waits for, what that one does, what the cluster \
and the sidecar said about it, and what `remora check` finds there. POD may be NAME, NAMESPACE/NAME, or the name of the \
workload.

remora why SRC DST:PORT  asks a running proxy what it would do with a connection: which service and workload it means, \
who could be chosen and who is, how it would be carried, and which policy would let it in or not. Nothing is sent to \
anybody but the proxy. The answer is that of the proxy which is asked, over what it knows now. Ask the one of SRC: run \
this in its pod, or forward its port 15000 and name it by --admin.

Exit code: 0 the pod is well, or bytes would flow; 1 not; 2 nobody could say.";

const PATIENCE: Duration = Duration::from_secs(10);
const REFUSED: u8 = 1;
const FAILED: u8 = 2;

/// What to ask, and whom.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A pod that does not start or stop; or who opens a connection: an address, or a workload as NAMESPACE/NAME
    #[arg(value_name = "POD|SRC")]
    source: String,
    /// Where the connection goes: ADDRESS:PORT or NAME:PORT, as the application would dial it
    #[arg(value_name = "DST:PORT", conflicts_with_all = ["namespace", "kubeconfig", "context"])]
    destination: Option<String>,
    /// Namespace of the pod [default: the context's]
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Kubeconfig of the pod's cluster [default: KUBECONFIG, ~/.kube/config, or the cluster this runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The admin port of the proxy to ask about a connection
    #[arg(long, value_name = "URL", default_value = "http://localhost:15000")]
    admin: String,
    /// As JSON, for programs
    #[arg(long)]
    json: bool,
}

/// Asks and prints the answer.
pub(crate) fn run(args: &Args) -> ExitCode {
    match ask(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(REFUSED),
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::error(&error);
            if let Some(text) = hint(&error) {
                out::hint(text);
            }
            ExitCode::from(FAILED)
        }
    }
}

fn ask(args: &Args) -> anyhow::Result<bool> {
    match &args.destination {
        Some(destination) => ask_proxy(args, destination),
        None => pod::ask(&pod::Question {
            pod: &args.source,
            namespace: args.namespace.as_deref(),
            kubeconfig: args.kubeconfig.as_deref(),
            context: args.context.as_deref(),
            json: args.json,
        }),
    }
}

fn ask_proxy(args: &Args, destination: &str) -> anyhow::Result<bool> {
    let mut path = format!("/why?src={}&dst={}", quoted(&args.source), quoted(destination));
    if args.json {
        path.push_str("&format=json");
    }
    let url: Url = format!("{}{path}", args.admin.trim_end_matches('/')).parse()?;
    let reply = client::exchange(&url, "GET", &[], PATIENCE)
        .with_context(|| format!("ask the proxy at {}", args.admin))?;
    let text = String::from_utf8_lossy(&reply.body);
    match (reply.status, reply.header("remora-allowed")) {
        (200, Some(allowed)) => {
            out::stdout(&reply.body)?;
            Ok(allowed == "true")
        }
        (400, _) => bail!("{}", text.trim_end()),
        (status, _) => bail!("{} is not a proxy of remora: status {status}", args.admin),
    }
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let cause = error.downcast_ref::<std::io::Error>()?;
    (cause.kind() == std::io::ErrorKind::ConnectionRefused).then_some(
        "no proxy runs here: run this in the pod (kubectl exec POD -c istio-proxy -- remora why …), or forward its port \
         (kubectl port-forward POD 15000) and give --admin http://localhost:15000",
    )
}

/// For a query: everything but letters, digits and a few signs as `%XX`.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b".-_:/".contains(&byte) {
            quoted.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(quoted, "%{byte:02X}");
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn nothing_that_is_asked_for_can_change_the_question() {
        assert_eq!(quoted("[fd00::1]:80"), "%5Bfd00::1%5D:80");
        assert_eq!(quoted("a&dst=b c\r\n%"), "a%26dst%3Db%20c%0D%0A%25");
    }
}
