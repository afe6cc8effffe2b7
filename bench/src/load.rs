//! Load, and what became of it.
//!
//! [`closed`] asks again as soon as it is answered. [`rate`] asks at fixed times and counts from the time at which it
//! should have asked, so that a proxy that stalls cannot hide it. [`connections`] asks once on each connection.
//! [`bulk`] sends as much as goes through.

use crate::origin::{ANSWER, REQUEST};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a load found.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Requests, connections or bytes.
    pub done: u64,
    /// Those that failed.
    pub failed: u64,
    /// How long it took.
    pub seconds: f64,
    /// Latencies, sorted, in microseconds.
    pub latencies: Vec<f64>,
}

impl Outcome {
    /// Each second.
    pub fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds
    }

    /// A latency below which this part of all lies.
    pub fn percentile(&self, part: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let place = (last as f64 * part).round() as usize;
        self.latencies.get(place).copied().unwrap_or(f64::NAN)
    }

    fn new(results: Vec<(Vec<f64>, u64)>, started: Instant) -> Self {
        let seconds = started.elapsed().as_secs_f64();
        let failed = results.iter().map(|(_, failed)| failed).sum();
        let mut latencies: Vec<f64> = results.into_iter().flat_map(|(list, _)| list).collect();
        latencies.sort_by(f64::total_cmp);
        Self {
            done: latencies.len() as u64,
            failed,
            seconds,
            latencies,
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
}

async fn open(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = tokio::time::timeout(PATIENCE, TcpStream::connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut answer = [0; ANSWER.len()];
    stream.write_all(REQUEST).await?;
    stream.read_exact(&mut answer).await?;
    Ok(())
}

/// So many connections that each ask, wait for the answer and ask again.
pub fn closed(to: SocketAddr, connections: usize, during: Duration) -> Outcome {
    runtime().block_on(async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            let mut stream = open(to).await.expect("connect for the load");
            ask(&mut stream).await.expect("first answer");
            streams.push(stream);
        }
        let started = Instant::now();
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                tokio::spawn(async move {
                    let mut latencies = Vec::with_capacity(1 << 16);
                    while started.elapsed() < during {
                        let asked = Instant::now();
                        if ask(&mut stream).await.is_err() {
                            return (latencies, 1);
                        }
                        latencies.push(asked.elapsed().as_secs_f64() * 1e6);
                    }
                    (latencies, 0)
                })
            })
            .collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.expect("load"));
        }
        Outcome::new(results, started)
    })
}

/// One connection after the other, so many at once, each with one request.
pub fn connections(to: SocketAddr, at_once: usize, during: Duration) -> Outcome {
    runtime().block_on(async move {
        let started = Instant::now();
        let tasks: Vec<_> = (0..at_once)
            .map(|_| {
                tokio::spawn(async move {
                    let (mut latencies, mut failed) = (Vec::with_capacity(1 << 12), 0);
                    while started.elapsed() < during {
                        let asked = Instant::now();
                        let one = async { ask(&mut open(to).await?).await };
                        match one.await {
                            Ok(()) => latencies.push(asked.elapsed().as_secs_f64() * 1e6),
                            Err(_) => failed += 1,
                        }
                    }
                    (latencies, failed)
                })
            })
            .collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.expect("load"));
        }
        Outcome::new(results, started)
    })
}

/// So many requests a second over so many connections, at times fixed beforehand. Blocking threads: the timers of an
/// event loop are too coarse. They inherit the place of the thread that calls.
pub fn rate(to: SocketAddr, connections: usize, per_second: f64, during: Duration) -> Outcome {
    let begin = Instant::now() + Duration::from_millis(200);
    let step = Duration::from_secs_f64(connections as f64 / per_second);
    let threads: Vec<_> = (0..connections)
        .map(|number| {
            let first = begin + step.mul_f64(number as f64 / connections as f64);
            std::thread::spawn(move || on_time(to, first, step, begin + during))
        })
        .collect();
    let results = threads
        .into_iter()
        .map(|thread| thread.join().expect("load"))
        .collect();
    Outcome::new(results, begin)
}

fn on_time(to: SocketAddr, first: Instant, step: Duration, end: Instant) -> (Vec<f64>, u64) {
    let Ok(mut stream) = std::net::TcpStream::connect_timeout(&to, PATIENCE) else {
        return (Vec::new(), 1);
    };
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut latencies = Vec::new();
    let mut due = first;
    while due < end {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut answer = [0; ANSWER.len()];
        if stream.write_all(REQUEST).is_err() || stream.read_exact(&mut answer).is_err() {
            return (latencies, 1);
        }
        latencies.push(due.elapsed().as_secs_f64() * 1e6);
        due += step;
    }
    (latencies, 0)
}

/// One stream; `swallowed` is the other end's count.
pub fn bulk(to: SocketAddr, during: Duration, swallowed: &AtomicU64) -> Outcome {
    let mut stream = std::net::TcpStream::connect_timeout(&to, PATIENCE).expect("connect for the load");
    let portion = vec![7; 128 << 10];
    let started = Instant::now();
    let before = swallowed.load(Ordering::Relaxed);
    let mut failed = 0;
    while started.elapsed() < during {
        if stream.write_all(&portion).is_err() {
            failed = 1;
            break;
        }
    }
    Outcome {
        done: swallowed.load(Ordering::Relaxed) - before,
        failed,
        seconds: started.elapsed().as_secs_f64(),
        latencies: Vec::new(),
    }
}

/// Opens so many connections, asks once on each, and keeps them until told otherwise. Gives how many there are.
pub fn hold(to: SocketAddr, connections: usize, enough: &Arc<AtomicBool>, opened: impl FnOnce(usize)) {
    runtime().block_on(async move {
        let mut streams = Vec::new();
        for _ in 0..connections {
            let Ok(mut stream) = open(to).await else { break };
            if ask(&mut stream).await.is_err() {
                break;
            }
            streams.push(stream);
        }
        opened(streams.len());
        while !enough.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// Asks until there is an answer, with this pause after each failure; gives when it came.
pub fn first_answer(to: SocketAddr, patience: Duration, pause: Duration) -> Option<Instant> {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if let Ok(mut stream) = std::net::TcpStream::connect_timeout(&to, patience) {
            let _ = stream.set_read_timeout(Some(patience));
            let mut answer = [0; ANSWER.len()];
            if stream.write_all(REQUEST).is_ok() && stream.read_exact(&mut answer).is_ok() {
                return Some(Instant::now());
            }
        }
        std::thread::sleep(pause);
    }
    None
}
