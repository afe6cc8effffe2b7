//! Constant load, to see what is lost while something else happens.

use super::http::Target;
use crate::out;
use serde_json::json;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often it tells.
const TELLING: Duration = Duration::from_secs(1);

/// Whom to call, and how often.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Load {
    /// http://HOST:PORT/PATH, looked up once
    url: String,
    /// Requests a second, each on a connection of its own
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Requests that may be under way at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    workers: u16,
    /// Seconds to go on; 0 is until stopped
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

/// What came of the requests so far.
#[derive(Debug, Default)]
struct Tally {
    answered: u64,
    failed: u64,
    slowest: Duration,
}

/// Calls until the time is over. Fails when a request did.
pub(super) fn run(load: &Load) -> ExitCode {
    let target = match Target::of(&load.url) {
        Ok(target) => target,
        Err(error) => {
            out::note(format_args!("{}: {error}", load.url));
            return ExitCode::FAILURE;
        }
    };
    let began = Instant::now();
    let end = (load.seconds > 0).then(|| began + Duration::from_secs(load.seconds));
    let tally = Mutex::new(Tally::default());
    let workers = u32::from(load.workers);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (tally, target) = (&tally, &target);
            scope.spawn(move || {
                // Each takes its turn, so that all together keep the rate.
                let every = Duration::from_secs(1) * workers / load.rate;
                let mut next = began + Duration::from_secs(1) * worker / load.rate;
                while end.is_none_or(|end| next < end) {
                    super::pause(next.saturating_duration_since(Instant::now()));
                    request(target, tally);
                    // Turns that were missed while an answer was waited for are not made up for.
                    next = (next + every).max(Instant::now());
                }
            });
        }
        scope.spawn(|| {
            while end.is_none_or(|end| Instant::now() < end) {
                super::pause(TELLING);
                tell(&tally, began.elapsed());
            }
        });
    });
    tell(&tally, began.elapsed());
    if lock(&tally).failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn request(target: &Target, tally: &Mutex<Tally>) {
    let began = Instant::now();
    let outcome = target.get();
    let took = began.elapsed();
    let mut tally = lock(tally);
    tally.slowest = tally.slowest.max(took);
    match outcome {
        Ok((status, _)) if status < 400 => tally.answered += 1,
        Ok((status, _)) => failed(&mut tally, took, &format_args!("status {status}")),
        Err(error) => failed(&mut tally, took, &error),
    }
}

fn failed(tally: &mut Tally, took: Duration, why: &dyn std::fmt::Display) {
    tally.failed += 1;
    out::note(format_args!("failed after {} ms: {why}", took.as_millis()));
}

fn tell(tally: &Mutex<Tally>, since: Duration) {
    let tally = lock(tally);
    let line = json!({"seconds": since.as_secs(), "answered": tally.answered, "failed": tally.failed,
        "slowest_ms": u64::try_from(tally.slowest.as_millis()).unwrap_or(u64::MAX)});
    out::note(format_args!("{line}"));
}
