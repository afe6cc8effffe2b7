//! A picture at the foot of a terminal that is drawn again and again, and lines that go by above it.

use crate::{out, settings};
use rustix::termios::tcgetwinsize;
use std::io::{self, IsTerminal as _};

/// The terminal.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The picture that is there now, and how many lines it has.
    lines: Vec<String>,
}

impl Screen {
    /// The terminal we write to, if it is one that can be drawn on.
    pub(super) fn find() -> Option<Self> {
        let able = settings::variable("TERM").is_some_and(|term| term != "dumb");
        (io::stdout().is_terminal() && able).then(Self::default)
    }

    /// Rows and columns.
    pub(super) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => (24, 80),
        }
    }

    /// Back to where the picture begins, and nothing below.
    fn erased(&self) -> String {
        match self.lines.len() {
            0 => String::new(),
            n => format!("\x1b[{n}A\r\x1b[J"),
        }
    }

    /// Replaces the picture.
    pub(super) fn draw(&mut self, lines: &[String]) {
        if lines == self.lines {
            return;
        }
        let text = format!("\x1b[?25l{}{}\x1b[?25h", self.erased(), joined(lines));
        self.lines = lines.to_vec();
        put(&text);
    }

    /// Lets a line go by above the picture.
    pub(super) fn print(&mut self, line: &str) {
        put(&format!("{}{line}{}", self.erased(), joined(&self.lines)));
    }
}

fn joined(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    if !lines.is_empty() {
        text.push('\n');
    }
    text
}

fn put(text: &str) {
    // A closed terminal ends the run by its own signal.
    let _ = out::styled(text);
}
