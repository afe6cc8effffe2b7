//! A progress bar, for work that takes longer than a person likes to wait without a sign.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// Work shorter than this needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Progress through a number of bytes. Silent unless standard error is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    wanted: bool,
}

impl Progress {
    pub(crate) fn new(bytes: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self {
            bar,
            began: Instant::now(),
            wanted: std::io::stderr().is_terminal(),
        }
    }

    /// Counts bytes that are done.
    pub(crate) fn advance(&mut self, bytes: u64, documents: usize) {
        self.bar.inc(bytes);
        if !self.wanted {
            return;
        }
        if self.bar.is_hidden() && self.began.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{documents} documents"));
        }
    }

    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
