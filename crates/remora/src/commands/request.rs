//! `remora request METHOD PATH`: asks the sidecar beside us, as `pilot-agent request` does.
//!
//! Exit codes: 0 answered (also with 404), 255 otherwise.

use crate::out;
use anyhow::{Context as _, ensure};
use remora_agent::client::{self, Url};
use std::process::ExitCode;
use std::time::Duration;

// istio: any error is -1; the client's time; the ports of the proxy and of the agent.
const FAILED: u8 = 255;
const PATIENCE: Duration = Duration::from_mins(1);
const PORTS: [u16; 4] = [15000, 15004, 15020, 15021];

/// What to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The port: 15000 (proxy), 15020 (agent), 15021 (readiness) or 15004
    #[arg(long, default_value_t = 15000, value_name = "PORT")]
    debug_port: u16,
    /// GET, POST and so on
    method: String,
    /// With or without a leading slash
    path: String,
    /// What to send
    body: Option<String>,
}

/// Asks and prints the answer.
pub(crate) fn run(args: &Args) -> ExitCode {
    match ask(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::error(&error);
            ExitCode::from(FAILED)
        }
    }
}

fn ask(args: &Args) -> anyhow::Result<()> {
    let port = args.debug_port;
    ensure!(PORTS.contains(&port), "port {port} is not one of {PORTS:?}");
    let path = args.path.trim_start_matches('/');
    let url: Url = format!("http://localhost:{port}/{path}").parse()?;
    ensure!(
        args.method.bytes().all(|byte| byte.is_ascii_alphabetic()),
        "{} is not a method",
        args.method
    );
    let body = args.body.as_deref().unwrap_or_default();
    let reply = client::exchange(&url, &args.method.to_ascii_uppercase(), body.as_bytes(), PATIENCE)
        .with_context(|| format!("ask the sidecar on port {port}"))?;
    out::stdout(&reply.body)?;
    // istio: everything from 400 on is an error, but not "there is no such thing".
    ensure!(
        reply.status < 400 || reply.status == 404,
        "{} /{path} is answered with status {}",
        args.method,
        reply.status
    );
    Ok(())
}
