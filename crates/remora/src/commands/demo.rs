//! `remora demo ROLE`: a small application of services that call each other, for trying things out without a registry.
//!
//! Plain blocking HTTP/1.1, one thread a connection. It ends on SIGTERM when the requests in flight are answered, as
//! a well-behaved application does.

mod actor;
mod http;
mod load;
mod roles;

use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What to play.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Role,
}

/// A part of the application.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Role {
    /// The page: calls details and reviews
    Productpage(Serve),
    /// What is known about a book
    Details(Serve),
    /// What people say about it
    Reviews(Serve),
    /// The same with black stars: calls ratings
    ReviewsV2(Serve),
    /// The same with red stars: calls ratings
    ReviewsV3(Serve),
    /// How many stars
    Ratings(Serve),
    /// Answers every request with a text
    Hello(Serve),
    /// Calls an address until it answers with a good status
    Call(Call),
    /// Calls an address all the time, and says once a second how often that went wrong
    Load(load::Load),
    /// Plays any part in a pod and writes down what it sees: for rehearsals
    Actor(Box<actor::Args>),
}

/// How a service is served.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Port to listen on
    #[arg(long, default_value_t = 9080)]
    port: u16,
    /// Seconds to wait before listening, as slow starters do
    #[arg(long, default_value_t = 0.0)]
    slow: f64,
    /// Seconds every answer takes
    #[arg(long, default_value_t = 0.0)]
    think: f64,
}

/// Whom to call.
#[derive(Debug, clap::Args)]
pub(crate) struct Call {
    /// http://HOST:PORT/PATH
    url: String,
    /// How often to try, half a second apart
    #[arg(long, default_value_t = 1)]
    tries: u32,
    /// Seconds to go on calling after the first success, once a second
    #[arg(long, default_value_t = 0)]
    hold: u64,
}

/// Runs an actor before the whole program's command line is looked at: it has to know its signals soon. For the other
/// roles signals wait until they listen for them.
pub(crate) fn early(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, demo, role, rest @ ..] = arguments else {
        return None;
    };
    if demo != "demo" {
        return None;
    }
    if role != "actor" {
        let kept = remora_net::process::block_stop_signals().context("keep signals that come early");
        return kept.err().map(|error| crate::finish(Err(error)));
    }
    // What is wrong with the words is said by whoever knows all commands.
    let args = actor::Args::read(rest)?;
    Some(crate::finish(actor::run(&args)))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.role {
        Role::Call(call) => {
            let (url, tries, hold) = (call.url.clone(), call.tries, call.hold);
            run_until_stopped(move || roles::call(&url, tries, hold), ExitCode::FAILURE)
        }
        Role::Load(load) => {
            let load = load.clone();
            run_until_stopped(move || load::run(&load), ExitCode::SUCCESS)
        }
        Role::Productpage(serve) => run_service(serve, roles::productpage),
        Role::Details(serve) => run_service(serve, roles::details),
        Role::Reviews(serve) => run_service(serve, roles::reviews),
        Role::ReviewsV2(serve) => run_service(serve, roles::reviews_black),
        Role::ReviewsV3(serve) => run_service(serve, roles::reviews_red),
        Role::Ratings(serve) => run_service(serve, roles::ratings),
        Role::Hello(serve) => run_service(serve, roles::hello),
        Role::Actor(args) => actor::run(args),
    }
}

/// Before anything else: the first process of a container is not ended by signals it does not know. What came before is
/// heard now.
fn stops() -> anyhow::Result<[Signal; 2]> {
    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    remora_net::process::unblock_stop_signals().context("take signals that came early")?;
    Ok([terminate, interrupt])
}

/// Works on a thread of its own, so that a stop signal ends it: the first process of a container gets no other end.
fn run_until_stopped(
    work: impl FnOnce() -> ExitCode + Send + 'static,
    stopped: ExitCode,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let [mut terminate, mut interrupt] = stops()?;
        let (done, outcome) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("call".into())
            .spawn(move || done.send(work()))
            .context("start a thread")?;
        tokio::select! {
            code = outcome => Ok(code.unwrap_or(ExitCode::FAILURE)),
            _ = terminate.recv() => Ok(stopped),
            _ = interrupt.recv() => Ok(stopped),
        }
    })
}

fn run_service(serve: &Serve, handler: http::Handler) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let [mut terminate, mut interrupt] = stops()?;
        let think = Duration::from_secs_f64(serve.think.max(0.0));
        let started = async {
            tokio::time::sleep(Duration::from_secs_f64(serve.slow.max(0.0))).await;
            let server = http::Server::listen(serve.port, think, handler);
            server.with_context(|| format!("listen on port {}", serve.port))
        };
        let server = tokio::select! {
            server = started => server?,
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        };
        crate::out::note(format_args!("listening on port {}", serve.port));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        server.drain();
        Ok(ExitCode::SUCCESS)
    })
}

/// Does nothing for a while, as the application it plays would.
fn pause(time: Duration) {
    let end = std::time::Instant::now() + time;
    while let Some(left) = end
        .checked_duration_since(std::time::Instant::now())
        .filter(|l| !l.is_zero())
    {
        std::thread::park_timeout(left);
    }
}
