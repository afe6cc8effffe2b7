//! Everything a person sees goes through here: one place for colours and for readers that went away.

use anstyle::{AnsiColor, Style};
use std::fmt::Display;
use std::io::{self, Write as _};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();

/// Writes the result of a command. A failure is an error of its own kind, see [`is_broken_pipe`].
pub(crate) fn stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Writes what somebody else has to say about a problem.
pub(crate) fn stderr(bytes: &[u8]) {
    let mut stderr = io::stderr().lock();
    // A closed stderr leaves nobody to tell.
    let _ = stderr.write_all(bytes).and_then(|()| stderr.flush());
}

/// Writes text with colours, which are taken out when nobody would see them.
pub(crate) fn styled(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// An error with its causes, each on a line of its own.
pub(crate) fn error(error: &anyhow::Error) {
    let mut text = String::new();
    for (depth, cause) in error.chain().enumerate() {
        if depth > 0 {
            text.push_str("\n  caused by: ");
        }
        text.push_str(&cause.to_string());
    }
    line(ERROR, "error", &text);
}

/// An error that is text already.
pub(crate) fn error_text(text: impl Display) {
    line(ERROR, "error", &text);
}

/// A warning.
pub(crate) fn warning(text: impl Display) {
    line(WARNING, "warning", &text);
}

/// Something good to know.
pub(crate) fn note(text: impl Display) {
    line(NOTE, "note", &text);
}

/// What a person can do about an error.
pub(crate) fn hint(text: impl Display) {
    line(NOTE, "  hint", &text);
}

fn line(style: Style, word: &str, text: &dyn Display) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(anstream::stderr().lock(), "{style}{word}{style:#}: {text}");
}

/// Whether the reader of our output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
