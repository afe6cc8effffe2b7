//! What containers wrote: files for each start of a container, in the format of Kubernetes' runtimes.
//!
//! The output of a start is cut into segments that never change their names: `1.log`, `1.log.1`, `1.log.2`. The writer
//! removes the oldest; a follower reads one segment to its end and goes on with the next, so it neither loses nor
//! repeats a line as long as it is not more than all segments behind.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::world::{PodId, Stream};

type Open = Arc<Mutex<BTreeSet<PathBuf>>>;

/// Lines that are read at a time, so that a long output is not held in memory.
const LINES_AT_A_TIME: usize = 4096;

/// How much of the output of one start of a container is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    /// Bytes of a segment.
    pub(crate) bytes: u64,
    /// Segments.
    pub(crate) files: u64,
}

/// The defaults of a kubelet (`containerLogMaxSize`, `containerLogMaxFiles`).
const ROTATION: Rotation = Rotation {
    bytes: 10 << 20,
    files: 5,
};

/// All output of a run.
#[derive(Debug)]
pub struct Logs {
    directory: PathBuf,
    rotation: Rotation,
    /// Changes with every line.
    news: Arc<watch::Sender<u64>>,
    /// First segments of outputs that are still written.
    open: Open,
}

impl Logs {
    /// Keeps output below a directory, which is there.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self::with_rotation(directory, ROTATION)
    }

    fn with_rotation(directory: PathBuf, rotation: Rotation) -> Self {
        Self {
            directory,
            rotation,
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
        let file = fs::create_dir_all(&directory).and_then(|()| append(&path));
        remove_older(&directory, attempt);
        lock(&self.open).insert(path.clone());
        Writer {
            segment: Mutex::new(Segment {
                file: file.ok(),
                number: 0,
                bytes: 0,
            }),
            path,
            rotation: self.rotation,
            open: Arc::clone(&self.open),
            news: Arc::clone(&self.news),
        }
    }

    /// Wakes those who follow.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// The output of the last start of a container, or of the one before that, by its first segment.
    pub(crate) fn find(&self, pod: PodId, container: &str, previous: bool) -> io::Result<PathBuf> {
        let directory = self.of_container(pod, container);
        let starts: BTreeSet<u32> = names(&directory)?.map(|(attempt, _)| attempt).collect();
        let wanted = starts.iter().rev().nth(usize::from(previous));
        let wanted = wanted.ok_or(io::ErrorKind::NotFound)?;
        Ok(directory.join(format!("{wanted}.log")))
    }

    /// Reads an output from its oldest segment, and goes on while it is written.
    pub(crate) fn follow(&self, path: PathBuf) -> io::Result<Follower> {
        let (number, file) = oldest(&path, 0)?;
        Ok(Follower {
            reader: BufReader::new(file),
            number,
            path,
            open: Arc::clone(&self.open),
            news: self.news.subscribe(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// The path of a segment; the first one has no number.
fn segment(path: &Path, number: u64) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Which start and segment a file name stands for.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let (attempt, number) = name.split_once(".log")?;
    let number = match number {
        "" => 0,
        more => more.strip_prefix('.')?.parse().ok()?,
    };
    Some((attempt.parse().ok()?, number))
}

/// All segments of all starts of a container.
fn names(directory: &Path) -> io::Result<impl Iterator<Item = (u32, u64)> + use<>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    let entries = entries.into_iter().flatten().flatten();
    Ok(entries.filter_map(|entry| parse_name(entry.file_name().to_str()?)))
}

/// Opens the oldest segment of an output that is there and has at least this number.
fn oldest(path: &Path, least: u64) -> io::Result<(u64, File)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let attempt = name.and_then(parse_name).map(|(attempt, _)| attempt);
    let directory = path.parent().unwrap_or(path);
    let segments: BTreeSet<u64> = names(directory)?
        .filter(|(other, number)| Some(*other) == attempt && *number >= least)
        .map(|(_, number)| number)
        .collect();
    for number in segments {
        match File::open(segment(path, number)) {
            // The writer removed it just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return Ok((number, other?)),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Removes what starts before the previous one left.
// k8s: a kubelet keeps one ended container of each, and its log with it.
fn remove_older(directory: &Path, attempt: u32) {
    for (other, number) in names(directory).into_iter().flatten() {
        if other.saturating_add(1) < attempt {
            // What stays is removed with the run.
            let _ = fs::remove_file(segment(&directory.join(format!("{other}.log")), number));
        }
    }
}

/// What is written to.
#[derive(Debug)]
struct Segment {
    file: Option<File>,
    number: u64,
    bytes: u64,
}

/// Takes the lines of one start of a container.
#[derive(Debug)]
pub(crate) struct Writer {
    segment: Mutex<Segment>,
    path: PathBuf,
    rotation: Rotation,
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
        let mut segment = lock(&self.segment);
        let size = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let full = segment.bytes > 0 && segment.bytes.saturating_add(size) > self.rotation.bytes;
        if full && self.rotate(&mut segment).is_err() {
            return;
        }
        if let Some(mut file) = segment.file.as_ref() {
            let _ = file.write_all(line.as_bytes());
            segment.bytes = segment.bytes.saturating_add(size);
        }
    }

    /// Goes on in a new segment. The one before is complete by the time the new one exists.
    fn rotate(&self, current: &mut Segment) -> io::Result<()> {
        let number = current.number.saturating_add(1);
        let file = append(&segment(&self.path, number))?;
        if let Some(outdated) = number.checked_sub(self.rotation.files) {
            match fs::remove_file(segment(&self.path, outdated)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *current = Segment {
            file: Some(file),
            number,
            bytes: 0,
        };
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.path);
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

/// Reads the output of one start of a container.
#[derive(Debug)]
pub(crate) struct Follower {
    reader: BufReader<File>,
    /// The segment that is read.
    number: u64,
    /// The first segment.
    path: PathBuf,
    open: Open,
    news: watch::Receiver<u64>,
}

impl Follower {
    /// Some of what there is by now; nothing if all was read.
    pub(crate) fn some(&mut self) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        loop {
            self.read(&mut lines)?;
            if !lines.is_empty() {
                return Ok(lines);
            }
            let Some((number, file)) = self.next()? else {
                return Ok(lines);
            };
            // Written after the end of this segment was seen, and before the next one was made.
            self.read(&mut lines)?;
            if !lines.is_empty() {
                return Ok(lines);
            }
            self.number = number;
            self.reader = BufReader::new(file);
        }
    }

    /// Reads lines of this segment.
    fn read(&mut self, lines: &mut Vec<Line>) -> io::Result<()> {
        let mut bytes = Vec::new();
        while lines.len() < LINES_AT_A_TIME {
            bytes.clear();
            // Lines are written whole, so there is never half of one.
            if self.reader.read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            lines.extend(parse(&String::from_utf8_lossy(&bytes)));
        }
        Ok(())
    }

    /// The segment after this one. If the writer has removed it already, the oldest that is left.
    fn next(&self) -> io::Result<Option<(u64, File)>> {
        match oldest(&self.path, self.number.saturating_add(1)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Waits until there may be more. False: there will be no more.
    pub(crate) async fn more(&mut self) -> bool {
        let open = lock(&self.open).contains(&self.path);
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
mod tests;
