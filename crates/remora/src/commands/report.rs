//! What the capture commands say besides their result, on standard error.

use crate::out;
use remora_capture::apply::{ApplyError, LiveError};
use remora_capture::install::InstallError;
use std::process::ExitCode;

/// What was done.
pub(crate) fn note(text: &str) {
    out::note(text);
}

/// Things that were accepted and are worth a word.
pub(crate) fn warnings(texts: &[String]) {
    for text in texts {
        out::warning(text);
    }
}

/// What a person can do about it.
pub(crate) fn hint(text: &str) {
    out::hint(text);
}

/// The exit code of a capture command: every error is 1, after its message, causes and hint.
pub(crate) fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if out::is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    out::error(&error);
    let hint_of = |cause: &(dyn std::error::Error + 'static)| {
        let install = cause.downcast_ref::<InstallError>().and_then(InstallError::hint);
        let live = cause.downcast_ref::<LiveError>().and_then(|error| match error {
            LiveError::Apply(error) => error.hint(),
            LiveError::Unreadable(_) => None,
        });
        install
            .or(live)
            .or_else(|| cause.downcast_ref::<ApplyError>().and_then(ApplyError::hint))
    };
    if let Some(text) = error.chain().find_map(hint_of) {
        hint(text);
    }
    ExitCode::from(1)
}
