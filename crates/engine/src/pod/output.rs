//! What containers write: to a file in the format of Kubernetes' runtimes, and to whoever watches.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::Receiver;

use crate::container::Container;
use crate::world::{Notice, PodId, Stream, World};

/// A line longer than this is cut into several, so that nobody's output fills the memory.
const LONGEST: u64 = 16 * 1024;

/// Where the output of a container is kept.
pub(crate) fn path(world: &World, pod: PodId, container: &str) -> PathBuf {
    world
        .directory
        .join("logs")
        .join(pod.to_string())
        .join(format!("{container}.log"))
}

/// Carries the output of a container away.
pub(super) fn pump(container: &mut Container, world: &Arc<World>, pod: PodId, name: &str, attempt: u32) {
    let name: Arc<str> = name.into();
    let streams = [
        (container.stdout.take(), Stream::Out),
        (container.stderr.take(), Stream::Err),
    ];
    let file = path(world, pod, &name);
    if attempt == 1
        && let Some(parent) = file.parent()
    {
        // Without the directory the lines are still shown.
        let _ = fs::create_dir_all(parent);
    }
    for (receiver, stream) in streams {
        if let Some(receiver) = receiver {
            let carrier = Carrier {
                world: Arc::clone(world),
                pod,
                name: Arc::clone(&name),
                stream,
                file: file.clone(),
            };
            tokio::spawn(carrier.carry(receiver));
        }
    }
}

struct Carrier {
    world: Arc<World>,
    pod: PodId,
    name: Arc<str>,
    stream: Stream,
    file: PathBuf,
}

impl Carrier {
    async fn carry(self, receiver: Receiver) {
        let mut reader = BufReader::new(receiver);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(LONGEST).read_until(b'\n', &mut line).await;
            if !matches!(read, Ok(n) if n > 0) {
                return;
            }
            let whole = line.last() == Some(&b'\n');
            if whole {
                line.pop();
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            self.keep(&text, whole);
            let notice = Notice::Line {
                pod: self.pod,
                container: Arc::clone(&self.name),
                stream: self.stream,
                text,
            };
            self.world.tell(notice).await;
        }
    }

    /// Adds a line to the file. A full disk loses the line but not the container.
    fn keep(&self, text: &str, whole: bool) {
        let stream = match self.stream {
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
        let opened = OpenOptions::new().append(true).create(true).open(&self.file);
        let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    }
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
    use super::stamp;

    #[test]
    fn times_are_written_as_kubernetes_does() {
        assert_eq!(stamp(0, 5), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(stamp(951_827_696, 0), "2000-02-29T12:34:56.000000000Z");
        assert_eq!(stamp(1_794_787_199, 0), "2026-11-15T23:59:59.000000000Z");
    }
}
