//! `remora demo actor`: a process that behaves as it is told and writes down what happens to it.
//!
//! With actors for application, proxy, capture and hooks a pod can be rehearsed: how it starts, who has network when,
//! how it stops. Each change is one line in a file that all actors share:
//! `NANOSECONDS NAME INSTANCE EVENT`, where events are `start`, `net=TARGET STATE`, `sigterm`, `exit` and so on.

mod journal;
mod look;
mod proxy;
mod serve;

use anyhow::Context as _;
use journal::Journal;
use look::{Look, Target};
use proxy::Proxy;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::LocalSet;

/// How an actor behaves. Times are milliseconds.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Who this is: the container's name, or that and the hook's: app/preStop
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// Directory that all actors of the pod write to
    #[arg(long, value_name = "DIR")]
    journal: PathBuf,
    /// Connect there again and again, and write down what answers; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS:PORT")]
    target: Vec<Target>,
    /// End after this time
    #[arg(long, value_name = "MS")]
    life: Option<u64>,
    /// Exit code at its own end
    #[arg(long, default_value_t = 0)]
    code: u8,
    /// End with code 1 if no connection was possible
    #[arg(long)]
    needs_network: bool,
    /// End with code 0 at the first connection
    #[arg(long)]
    until_connected: bool,
    /// Keep one connection to the first target open
    #[arg(long)]
    keep_connection: bool,
    /// Answer HTTP on this port
    #[arg(long, value_name = "PORT")]
    serve: Vec<u16>,
    /// Answer with 503
    #[arg(long)]
    unhealthy: bool,
    /// Answer connections to this port with the word `direct`; may be repeated
    #[arg(long, value_name = "PORT")]
    banner: Vec<u16>,
    /// So many first instances die early, with code 1
    #[arg(long, default_value_t = 0, value_name = "N")]
    deaths: u32,
    /// When those die
    #[arg(long, default_value_t = 0, value_name = "MS")]
    first_life: u64,
    /// Those do not even listen
    #[arg(long)]
    deaf: bool,
    /// Go on for this time after SIGTERM
    #[arg(long, default_value_t = 0, value_name = "MS")]
    drain: u64,
    /// Exit code after SIGTERM
    #[arg(long, default_value_t = 0)]
    stop_code: u8,
    /// Do not stop at SIGTERM
    #[arg(long)]
    ignore_stop: bool,
    /// Be the proxy: agent and readiness port at once, traffic after this time
    #[arg(long, value_name = "MS")]
    proxy: Option<u64>,
    /// As the proxy, refuse plaintext from outside
    #[arg(long)]
    strict: bool,
    /// Redirect the pod's traffic to the proxy, and end
    #[arg(long)]
    capture: bool,
    /// When capturing, leave this port alone; may be repeated
    #[arg(long, value_name = "PORT")]
    exclude_port: Vec<u16>,
    /// When capturing, leave these addresses alone; may be repeated
    #[arg(long, value_name = "RANGE")]
    exclude_range: Vec<String>,
    /// Wait this long for the proxy: end with 0 when it is ready, else with 1
    #[arg(long, value_name = "MS")]
    await_proxy: Option<u64>,
}

impl Args {
    /// From the words of the command line, if they can be understood.
    pub(super) fn read(words: &[OsString]) -> Option<Self> {
        use clap::{Args as _, FromArgMatches as _};
        let command = Self::augment_args(clap::Command::new("actor").no_binary_name(true));
        let matches = command.try_get_matches_from(words).ok()?;
        Self::from_arg_matches(&matches).ok()
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    LocalSet::new().block_on(&runtime, async {
        // Before anything else: the first process of a container is not ended by signals it does not know.
        let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        live(args, terminate).await
    })
}

async fn live(args: &Args, mut terminate: Signal) -> anyhow::Result<ExitCode> {
    let journal = Rc::new(Journal::open(&args.journal, &args.name)?);
    journal.write("start");
    let look = Rc::new(Look::new(&args.target, Rc::clone(&journal)));
    let early = journal.instance() <= args.deaths;
    if !(early && args.deaf) {
        listen(args, &journal)?;
    }
    if args.capture {
        proxy::capture(&args.exclude_port, &args.exclude_range)?;
        journal.write("captured");
        journal.write("exit");
        return Ok(ExitCode::SUCCESS);
    }
    look.begin(args.keep_connection);
    let quit = journal.quit();
    let own = own_end(args, early, &look);
    tokio::pin!(own);
    let asked = tokio::select! {
        code = &mut own => Some(code),
        () = quit.notified() => Some(0),
        _ = terminate.recv() => None,
    };
    let code = if let Some(code) = asked {
        code
    } else {
        journal.write("sigterm");
        tokio::select! {
            code = own => code,
            () = pause(args.drain), if !args.ignore_stop => args.stop_code,
        }
    };
    journal.write("exit");
    Ok(ExitCode::from(code))
}

fn listen(args: &Args, journal: &Rc<Journal>) -> anyhow::Result<()> {
    for port in &args.serve {
        let status = if args.unhealthy { 503 } else { 200 };
        serve::http(*port, move |_| serve::Answer::now(status))?;
    }
    for port in &args.banner {
        serve::banner(*port, "direct")?;
    }
    if let Some(delay) = args.proxy {
        Proxy::new(delay, args.strict, Rc::clone(journal)).begin()?;
    }
    Ok(())
}

/// Returns when the process comes to its own end.
async fn own_end(args: &Args, early: bool, look: &Look) -> u8 {
    if early {
        pause(args.first_life).await;
        return 1;
    }
    if let Some(patience) = args.await_proxy {
        return u8::from(!proxy::comes_up(Duration::from_millis(patience)).await);
    }
    let over = async {
        match args.life {
            Some(life) => pause(life).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = over => {
            let missed = args.needs_network && !look.has_connected();
            if missed { 1 } else { args.code }
        }
        () = look.connected(), if args.until_connected => 0,
    }
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
