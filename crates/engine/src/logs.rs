//! What containers wrote: a file for each start of a container, in the format of Kubernetes' runtimes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::world::{PodId, Stream};

type Open = Arc<Mutex<BTreeSet<PathBuf>>>;

/// All output of a run.
#[derive(Debug)]
pub struct Logs {
    directory: PathBuf,
    /// Changes with every line.
    news: Arc<watch::Sender<u64>>,
    /// Files somebody still writes to.
    open: Open,
}

impl Logs {
    /// Keeps output below a directory, which is there.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            news: Arc::new(watch::channel(0).0),
            open: Open::default(),
        }
    }

    fn of_container(&self, pod: PodId, container: &str) -> PathBuf {
        self.directory.join(pod.to_string()).join(container)
    }

    /// Begins the output of one start of a container. Without a file the lines are still shown.
    pub(crate) fn begin(&self, pod: PodId, container: &str, attempt: u32) -> Writer {
        let directory = self.of_container(pod, container);
        let path = directory.join(format!("{attempt}.log"));
        let file = fs::create_dir_all(&directory)
            .and_then(|()| OpenOptions::new().append(true).create(true).open(&path));
        self.lock().insert(path.clone());
        Writer {
            file: file.ok(),
            path,
            open: Arc::clone(&self.open),
            news: Arc::clone(&self.news),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<PathBuf>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who follow.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// The output of the last start of a container, or of the one before that.
    pub(crate) fn find(&self, pod: PodId, container: &str, previous: bool) -> io::Result<PathBuf> {
        let directory = self.of_container(pod, container);
        let mut starts: Vec<u32> = match fs::read_dir(&directory) {
            Ok(entries) => entries.flatten().filter_map(|e| number(&e.path())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        starts.sort_unstable();
        let wanted = starts.iter().rev().nth(usize::from(previous));
        let wanted = wanted.ok_or(io::ErrorKind::NotFound)?;
        Ok(directory.join(format!("{wanted}.log")))
    }

    /// Reads a file from its beginning, and goes on while it is written.
    pub(crate) fn follow(&self, path: PathBuf) -> io::Result<Follower> {
        Ok(Follower {
            reader: BufReader::new(File::open(&path)?),
            path,
            open: Arc::clone(&self.open),
            news: self.news.subscribe(),
        })
    }
}

fn number(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// Takes the lines of one start of a container.
#[derive(Debug)]
pub(crate) struct Writer {
    file: Option<File>,
    path: PathBuf,
    open: Open,
    news: Arc<watch::Sender<u64>>,
}

impl Writer {
    /// Adds a line. A full disk loses the line but not the container.
    pub(crate) fn keep(&self, stream: Stream, text: &str, whole: bool) {
        let stream = match stream {
            Stream::Out => "stdout",
            Stream::Err => "stderr",
        };
        let part = if whole { "F" } else { "P" };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let line = format!(
            "{} {stream} {part} {text}\n",
            stamp(now.as_secs(), now.subsec_nanos())
        );
        if let Some(mut file) = self.file.as_ref() {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.path);
        self.news.send_modify(|n| *n = n.wrapping_add(1));
    }
}

/// A line as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// When.
    pub(crate) time: String,
    /// Where to.
    pub(crate) stream: Stream,
    /// Text, with the end of the line if the container wrote one.
    pub(crate) text: String,
}

/// Reads one file.
#[derive(Debug)]
pub(crate) struct Follower {
    reader: BufReader<File>,
    path: PathBuf,
    open: Open,
    news: watch::Receiver<u64>,
}

impl Follower {
    /// Everything there is by now.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            // Lines are written whole, so there is never half of one.
            if self.reader.read_until(b'\n', &mut bytes)? == 0 {
                return Ok(lines);
            }
            lines.extend(parse(&String::from_utf8_lossy(&bytes)));
        }
    }

    /// Waits until there may be more. False: there will be no more.
    pub(crate) async fn more(&mut self) -> bool {
        let open = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.contains(&self.path)
        };
        open && self.news.changed().await.is_ok()
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.trim_end_matches('\n').splitn(4, ' ');
    let (time, stream, part) = (words.next()?, words.next()?, words.next()?);
    let text = words.next().unwrap_or_default();
    let end = if part == "F" { "\n" } else { "" };
    Some(Line {
        time: time.to_owned(),
        stream: if stream == "stderr" {
            Stream::Err
        } else {
            Stream::Out
        },
        text: format!("{text}{end}"),
    })
}

/// `2026-11-15T23:59:59.000000001Z` of seconds since 1970.
pub(crate) fn stamp(seconds: u64, nanos: u32) -> String {
    let days = seconds / 86_400;
    let rest = seconds % 86_400;
    // Days since 0000-03-01, in eras of 400 years.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year_of_era + era * 400 + next;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{nanos:09}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::{Logs, Stream, stamp};

    #[test]
    fn each_start_has_lines_of_its_own() {
        let directory = std::env::temp_dir().join(format!("remora-logs-{}", std::process::id()));
        let logs = Logs::new(directory.clone());
        assert!(logs.find(3, "app", false).is_err());
        for (attempt, text) in [(1, "first"), (2, "second")] {
            let writer = logs.begin(3, "app", attempt);
            writer.keep(Stream::Out, text, true);
            writer.keep(Stream::Err, "half", false);
        }
        let read = |previous| {
            let path = logs.find(3, "app", previous).unwrap();
            let lines = logs.follow(path).unwrap().rest().unwrap();
            lines.iter().map(|l| l.text.clone()).collect::<String>()
        };
        let (now, before) = (read(false), read(true));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!((now.as_str(), before.as_str()), ("second\nhalf", "first\nhalf"));
    }

    #[test]
    fn times_are_written_as_kubernetes_does() {
        assert_eq!(stamp(0, 5), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(stamp(951_827_696, 0), "2000-02-29T12:34:56.000000000Z");
        assert_eq!(stamp(1_794_787_199, 0), "2026-11-15T23:59:59.000000000Z");
    }
}
