//! Keeps the file up to date with the current configuration.

use super::{Contents, Found, Place, file};
use crate::log::Log;
use crate::metrics::AgentMetrics;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// Delay before a write, so that changes that arrive together are written together.
const WRITE_DELAY: Duration = Duration::from_millis(50);
/// Minimum time between two writes: a mesh that changes constantly must not keep the disk busy.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval for recording in the file that the control plane still confirms it.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(30);

/// Shared by the tasks that receive discovery and the task that writes.
#[derive(Debug, Clone)]
pub(crate) struct Keeper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    owner: String,
    longest: Duration,
    contents: Mutex<Contents>,
    /// Number of changes, and whether the control plane is connected and confirms them.
    state: watch::Sender<State>,
    metrics: Arc<AgentMetrics>,
    log: Log,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    changes: u64,
    live: bool,
}

impl Keeper {
    /// `owner` names pod, identity and control plane: a file with another owner is not used.
    pub(crate) fn new(
        place: &Place,
        name: &str,
        owner: String,
        metrics: Arc<AgentMetrics>,
        log: Log,
    ) -> Self {
        Self(Arc::new(Shared {
            path: place.directory.join(name),
            owner,
            longest: place.longest,
            contents: Mutex::default(),
            state: watch::Sender::default(),
            metrics,
            log,
        }))
    }

    /// Loads the file, if it is usable. Its contents become the current ones.
    pub(crate) fn load(&self) -> Option<Found> {
        let Shared {
            path, owner, longest, ..
        } = &*self.0;
        match file::read(path, owner, *longest, SystemTime::now()) {
            Ok(found) => {
                let found = found?;
                self.lock().clone_from(&found.contents);
                Some(found)
            }
            Err(error) => {
                self.0.log.warning(format_args!(
                    "the last good configuration in {} is not used: {error}",
                    path.display()
                ));
                None
            }
        }
    }

    /// Reads the current contents.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the current contents.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Contents)) {
        change(&mut self.lock());
        self.0.state.send_modify(|state| state.changes += 1);
    }

    /// Sets whether the control plane confirms the contents. Only then they are written.
    pub(crate) fn live(&self, live: bool) {
        let changed = self.0.state.send_if_modified(|state| {
            let other = state.live != live;
            state.live = live;
            other
        });
        if changed {
            let now = SystemTime::now();
            self.0
                .metrics
                .configuration_is(if live { None } else { Some(now) });
        }
    }

    /// The control plane last confirmed the current configuration at that time.
    pub(crate) fn not_live_since(&self, time: SystemTime) {
        self.0.metrics.configuration_is(Some(time));
    }

    /// Writes changes indefinitely.
    pub(crate) async fn keep(self) {
        let mut states = self.0.state.subscribe();
        let (mut written, mut said) = (None, String::new());
        loop {
            let timeout = tokio::time::timeout(CONFIRM_INTERVAL, states.changed()).await;
            if matches!(timeout, Ok(Err(_))) {
                return;
            }
            tokio::time::sleep(WRITE_DELAY).await;
            let state = *states.borrow_and_update();
            if !state.live {
                continue;
            }
            let fresh = written == Some(state.changes);
            let keeper = self.clone();
            let done = tokio::task::spawn_blocking(move || keeper.save(fresh)).await;
            match done.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
                Ok(()) => {
                    written = Some(state.changes);
                    said.clear();
                }
                Err(error) => {
                    written = None;
                    self.failed(&error, &mut said);
                }
            }
            tokio::time::sleep(MIN_WRITE_INTERVAL).await;
        }
    }

    /// `fresh`: the contents are already on disk, only the confirmation is recorded.
    fn save(&self, fresh: bool) -> std::io::Result<()> {
        let Shared { path, owner, .. } = &*self.0;
        if fresh && file::confirm(path, SystemTime::now()).is_ok() {
            return Ok(());
        }
        let body = file::encode(owner, &self.lock())?;
        file::write(path, &body)
    }

    /// Logs an error, unless it is the same as the last one.
    fn failed(&self, error: &std::io::Error, said: &mut String) {
        self.0.metrics.failed_snapshots.count();
        let text = error.to_string();
        if text != *said {
            self.0.log.warning(format_args!(
                "the configuration is not kept in {}: {text}",
                self.0.path.display()
            ));
            *said = text;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Contents> {
        self.0.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
