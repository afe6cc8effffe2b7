//! The environment, read once.

use std::ffi::OsString;
use std::path::PathBuf;

/// A variable of the environment, if it is set. What is not text comes out garbled, to be judged rather than ignored.
pub(crate) fn variable(name: &str) -> Option<String> {
    raw(name).map(|value| value.to_string_lossy().into_owned())
}

/// A variable that lists files, as `PATH` does.
pub(crate) fn paths(name: &str) -> Vec<PathBuf> {
    let value = raw(name).unwrap_or_default();
    std::env::split_paths(&value)
        .filter(|path| !path.as_os_str().is_empty())
        .collect()
}

/// Whether this process belongs to root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn raw(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// All variables that are text; the others cannot be any of ours.
pub(crate) fn all() -> Vec<(String, String)> {
    let unicode =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(unicode).collect()
}
