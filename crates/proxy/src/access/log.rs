//! Writes lines without anybody waiting for them.
//!
//! Lines go through a bounded queue to a thread of its own. When whoever reads them is too slow, lines are dropped
//! and counted, and a line says how many as soon as there is room again. A connection never waits for its line.

use super::Record;
use super::json::timestamp;
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Lines that wait at most.
const WAITING: usize = 4096;

/// Which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None.
    Off,
    /// Of connections that failed.
    Error,
    /// Of all connections.
    Info,
}

impl Level {
    /// All of them, the quietest first.
    pub const ALL: [Self; 3] = [Self::Off, Self::Error, Self::Info];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Error => "error",
            Self::Info => "info",
        }
    }
}

impl std::str::FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|level| level.word() == text).ok_or(())
    }
}

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// An object of JSON.
    #[default]
    Json,
    /// The time, and words with values.
    Text,
}

#[derive(Debug, Default)]
struct Counts {
    level: AtomicU8,
    queued: AtomicU64,
    dropped: AtomicU64,
    written: Mutex<u64>,
    progress: Condvar,
}

/// Where lines are put.
#[derive(Debug, Clone)]
pub struct Log {
    queue: SyncSender<String>,
    counts: Arc<Counts>,
    format: Format,
}

impl Log {
    /// Writes JSON to `out` on a thread of its own, until the last copy of the log is gone.
    pub fn new(out: impl Write + Send + 'static, level: Level) -> std::io::Result<Self> {
        Self::with_format(out, level, Format::Json)
    }

    /// The same, written in another way.
    pub fn with_format(
        out: impl Write + Send + 'static,
        level: Level,
        format: Format,
    ) -> std::io::Result<Self> {
        let (queue, lines) = sync_channel(WAITING);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write(out, &lines, &shared, format))?;
        let log = Self {
            queue,
            counts,
            format,
        };
        log.set_level(level);
        Ok(log)
    }

    /// Says that a connection is over.
    pub fn record(&self, record: &Record) {
        let needed = if record.error.is_some() {
            Level::Error
        } else {
            Level::Info
        };
        if self.level() < needed {
            return;
        }
        let counter = match self.queue.try_send(self.line(record)) {
            Ok(()) => &self.counts.queued,
            Err(_) => &self.counts.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self, record: &Record) -> String {
        match self.format {
            Format::Json => record.json(),
            Format::Text => format!("{} {record}\n", timestamp(record.began + record.duration)),
        }
    }

    /// Which lines are written.
    pub fn level(&self) -> Level {
        let level = usize::from(self.counts.level.load(Ordering::Relaxed));
        Level::ALL.get(level).copied().unwrap_or(Level::Info)
    }

    /// From now on.
    pub fn set_level(&self, level: Level) {
        self.counts.level.store(level as u8, Ordering::Relaxed);
    }

    /// Lines that nobody will read.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything that was put in is written; says whether that was so in time.
    pub fn flush(&self, patience: Duration) -> bool {
        let wanted = self.counts.queued.load(Ordering::Relaxed);
        let written = self.counts.written.lock().unwrap_or_else(PoisonError::into_inner);
        let end = self
            .counts
            .progress
            .wait_timeout_while(written, patience, |written| *written < wanted)
            .unwrap_or_else(PoisonError::into_inner);
        !end.1.timed_out()
    }
}

fn write(mut out: impl Write, lines: &Receiver<String>, counts: &Counts, format: Format) {
    let mut told = 0;
    while let Ok(line) = lines.recv() {
        // Whoever reads may be gone for good: the queue must not fill up for nobody.
        let _ = out.write_all(line.as_bytes());
        let _ = out.flush();
        *counts.written.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        counts.progress.notify_all();
        let dropped = counts.dropped.load(Ordering::Relaxed);
        if dropped > told {
            // In one piece, as all of them.
            let _ = out.write_all(lost(dropped - told, format).as_bytes());
            told = dropped;
        }
    }
}

/// Says that lines are missing.
fn lost(count: u64, format: Format) -> String {
    const WHAT: &str = "lines were dropped, because they were read too slowly";
    let now = timestamp(SystemTime::now());
    match format {
        Format::Json => {
            let line = serde_json::json!({
                "time": now, "level": "warn", "scope": "access", "message": WHAT, "count": count,
            });
            format!("{line}\n")
        }
        Format::Text => format!("{now} {WHAT}: {count}\n"),
    }
}
