//! `remora exec`: a command in a container of a run.

use super::instance::{self, Where};
use crate::{out, settings};
use anyhow::{Context as _, bail};
use remora_engine::door::frame::{self, Kind};
use remora_engine::door::{Request, Terminal, Which};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal as _, Read as _};
use std::process::ExitCode;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The flags of `remora exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `POD`, or `KIND/NAME` for the first pod of a workload
    #[arg(value_name = "POD")]
    pod: String,

    /// Container (default: the pod's first, not its proxy)
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,

    /// Namespace of the pod
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Hand on what is typed
    #[arg(short = 'i', long)]
    stdin: bool,

    /// With a terminal
    #[arg(short = 't', long)]
    tty: bool,

    #[command(flatten)]
    place: Where,

    /// What to run
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = instance::runtime()?;
    let done = runtime.block_on(talk(args));
    // A thread may still wait for somebody to type.
    runtime.shutdown_background();
    done
}

async fn talk(args: &Args) -> anyhow::Result<ExitCode> {
    let pod = Which {
        namespace: args.namespace.clone(),
        name: args.pod.clone(),
    };
    let instance = args.place.with(&pod).await?;
    let terminal = terminal(args);
    let request = Request::Exec {
        pod,
        container: args.container.clone(),
        args: args.command.clone(),
        input: args.stdin,
        terminal: terminal.clone(),
    };
    let stream = instance.ask(&request).await?;
    let raw = match &terminal {
        Some(_) if args.stdin => Some(Raw::begin().context("set up the terminal")?),
        _ => None,
    };
    let code = carry(stream, args.stdin, terminal.is_some()).await;
    drop(raw);
    Ok(ExitCode::from(u8::try_from(code?).unwrap_or(u8::MAX)))
}

/// The terminal the command gets, if we have one to give.
fn terminal(args: &Args) -> Option<Terminal> {
    if !args.tty {
        return None;
    }
    if args.stdin && !io::stdin().is_terminal() {
        out::warning("standard input is no terminal: the command does not get one");
        return None;
    }
    let (rows, columns) = size();
    Some(Terminal {
        rows,
        columns,
        kind: settings::variable("TERM"),
    })
}

fn size() -> (u16, u16) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}

/// What is typed goes through as it is, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no care.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// What is typed, from a thread of its own; an empty piece is the end.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    let read = move || {
        let mut buffer = vec![0; 4096];
        loop {
            let got = io::stdin().read(&mut buffer).unwrap_or(0);
            let piece = buffer[..got].to_vec();
            if sender.blocking_send(piece).is_err() || got == 0 {
                return;
            }
        }
    };
    // Without the thread nothing is typed.
    let _ = std::thread::Builder::new().name("typed".into()).spawn(read);
    receiver
}

async fn carry(stream: UnixStream, input: bool, terminal: bool) -> anyhow::Result<i32> {
    let (mut from, mut to) = stream.into_split();
    let mut resized = signal(SignalKind::window_change()).context("watch the terminal's size")?;
    let mut keys = if input { typed() } else { mpsc::channel(1).1 };
    let outgoing = async {
        let mut open = input;
        loop {
            let sent = tokio::select! {
                piece = keys.recv(), if open => {
                    // The thread that reads what is typed says when that ends.
                    let piece = piece.unwrap_or_default();
                    open = !piece.is_empty();
                    frame::send(&mut to, Kind::In, &piece).await
                }
                _ = resized.recv(), if terminal => {
                    let (rows, columns) = size();
                    let bytes = [rows.to_be_bytes(), columns.to_be_bytes()].concat();
                    frame::send(&mut to, Kind::Size, &bytes).await
                }
                () = std::future::pending() => Ok(()),
            };
            if sent.is_err() {
                // What the run has to say about it comes on the other way.
                return std::future::pending().await;
            }
        }
    };
    let incoming = async {
        loop {
            match frame::receive(&mut from)
                .await
                .context("read what the run says")?
            {
                Some((Kind::Out, bytes)) => out::stdout(&bytes)?,
                Some((Kind::Err, bytes)) => out::stderr(&bytes),
                Some((Kind::Exit, bytes)) => {
                    let code = bytes.try_into().map_or(1, i32::from_be_bytes);
                    return Ok(code);
                }
                Some((Kind::Fail, bytes)) => bail!("{}", String::from_utf8_lossy(&bytes)),
                Some(_) => {}
                None => bail!("the run ended"),
            }
        }
    };
    tokio::select! {
        code = incoming => code,
        never = outgoing => never,
    }
}
