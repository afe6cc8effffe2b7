//! Opens the access log. A separate thread writes it, so that connections do not wait for the output.

use crate::log::Log;
use crate::settings::AccessLog;
use remora_proxy::access;
use remora_proxy::access::log::Level;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// The access log; without a file it is off until it is enabled through the admin port.
pub(crate) fn open(settings: &AccessLog, log: &Log) -> Option<access::Log> {
    let level = if settings.file.is_some() {
        Level::Info
    } else {
        Level::Off
    };
    let opened = target(settings.file.as_deref())
        .and_then(|out| access::Log::with_format(out, level, settings.format));
    let file = settings.file.as_deref().unwrap_or("/dev/stdout");
    opened
        .inspect_err(|error| log.warning(format_args!("there is no access log: {file}: {error}")))
        .ok()
}

// istio: accessLogFile; standard streams are handled by name, because a container may not be able to open them as files.
fn target(file: Option<&str>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match file {
        None | Some("/dev/stdout") => Box::new(io::stdout()),
        Some("/dev/stderr") => Box::new(io::stderr()),
        Some(path) => Box::new(OpenOptions::new().append(true).create(true).open(path)?),
    })
}
