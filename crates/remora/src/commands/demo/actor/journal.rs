//! What actors write down.

use anyhow::Context as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;
use tokio::sync::Notify;

/// The file that all actors of a pod write to.
const FILE: &str = "events";
/// More starts of one actor than any rehearsal has.
const MOST: u32 = 1000;

/// One actor's access to it.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    name: String,
    instance: u32,
    quit: Rc<Notify>,
}

impl Journal {
    /// Opens it, and takes the next number of this actor's instances.
    pub(super) fn open(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let path = directory.join(FILE);
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let instance = number(directory, name)
            .with_context(|| format!("count the instances of {name} in {}", directory.display()))?;
        Ok(Self {
            file,
            name: name.to_owned(),
            instance,
            quit: Rc::default(),
        })
    }

    pub(super) const fn instance(&self) -> u32 {
        self.instance
    }

    /// Notified when the actor is asked to quit.
    pub(super) fn quit(&self) -> Rc<Notify> {
        Rc::clone(&self.quit)
    }

    /// Adds a line; whole, since it is one write to a file that only grows.
    pub(super) fn write(&self, event: &str) {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let line = format!("{} {} {} {event}\n", now.as_nanos(), self.name, self.instance);
        // Whoever reads it misses the line; the play goes on.
        let _ = (&self.file).write_all(line.as_bytes());
    }
}

/// The first number nobody has taken.
fn number(directory: &Path, name: &str) -> std::io::Result<u32> {
    let name = name.replace('/', ".");
    for instance in 1..MOST {
        let path = directory.join(format!("{name}.{instance}"));
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => return Ok(instance),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::StorageFull.into())
}
