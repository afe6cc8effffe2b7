//! An event loop on the calling thread, for commands that are not asynchronous themselves.
//!
//! Leaving it never waits: a name lookup or a plugin that hangs in a thread of its own must not hold up the command
//! that has given up on it.

use std::io;
use std::time::Duration;

/// The event loop.
pub(super) struct Runtime(Option<tokio::runtime::Runtime>);

impl Runtime {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// What `work` comes to, or nothing when it takes longer than `limit`.
    pub(super) fn within<F: Future>(&self, limit: Duration, work: F) -> Option<F::Output> {
        let runtime = self.0.as_ref()?;
        runtime.block_on(async { tokio::time::timeout(limit, work).await.ok() })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Runtime;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn gives_up_and_leaves_without_waiting() {
        let runtime = Runtime::new().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let outcome = runtime.within(Duration::from_millis(10), async {
            tokio::task::spawn_blocking(move || held.recv()).await
        });
        assert!(outcome.is_none());
        // Would hang here if leaving waited for the thread.
        drop(runtime);
        drop(release);
    }

    #[test]
    fn hands_back_what_came_in_time() {
        let runtime = Runtime::new().unwrap();
        assert_eq!(runtime.within(Duration::from_secs(5), async { 7 }), Some(7));
    }
}
