//! Watches files by polling.

use crate::file_stamp::{self, FileStamp};
use std::path::PathBuf;
use std::time::Duration;

/// Interval between two checks of the files; short for a user who edits one.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    seen: Vec<FileStamp>,
}

impl Files {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let seen = stamps(&paths);
        Self { paths, seen }
    }

    /// Completes when a file has changed and two consecutive checks are equal, so that the writer has finished. Never
    /// completes without files.
    pub(super) async fn changed(&mut self) {
        if self.paths.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let mut now = stamps(&self.paths);
            if now == self.seen {
                continue;
            }
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let next = stamps(&self.paths);
                if next == now {
                    break;
                }
                now = next;
            }
            self.seen = now;
            return;
        }
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<FileStamp> {
    paths.iter().map(|path| file_stamp::read(path)).collect()
}
