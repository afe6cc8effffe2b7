//! Files that are looked at again and again.

use crate::look::{self, Look};
use std::path::PathBuf;
use std::time::Duration;

/// A person who changes a file waits longer than that.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    seen: Vec<Look>,
}

impl Files {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        let seen = look(&paths);
        Self { paths, seen }
    }

    /// Ready when one of them is not as it was, and is the same twice: whoever writes it is done. Never without files.
    pub(super) async fn changed(&mut self) {
        if self.paths.is_empty() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK).await;
            let mut now = look(&self.paths);
            if now == self.seen {
                continue;
            }
            loop {
                tokio::time::sleep(LOOK).await;
                let next = look(&self.paths);
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

fn look(paths: &[PathBuf]) -> Vec<Look> {
    paths.iter().map(|path| look::at(path)).collect()
}
