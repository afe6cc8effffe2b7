//! Where others talk to a run: a socket in its directory that only its own user can open.
//!
//! A connection is one request, as a [`frame`](frame::Kind::Request) of JSON; what comes back are frames too, up to
//! an end or a failure. The socket lives as long as the run.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::session::Command;
use crate::world::World;

mod exec;
pub mod frame;
mod pods;
mod serve;

pub use pods::{ContainerInfo, PodInfo, Unknown, named, workload_of};

/// The socket in the directory of a run.
const NAME: &str = "socket";

/// A pod as somebody named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Which {
    /// Its namespace; any if not given.
    pub namespace: Option<String>,
    /// `NAME` or `KIND/NAME`.
    pub name: String,
}

/// What somebody wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// All pods.
    Pods,
    /// What a container wrote.
    Logs {
        /// The pod.
        pod: Which,
        /// The container; the pod's usual one if not given.
        container: Option<String>,
        /// Goes on until the container ends.
        follow: bool,
        /// So many lines of what there is.
        tail: Option<usize>,
        /// Of the start before the last.
        previous: bool,
        /// With times.
        timestamps: bool,
    },
    /// A further process in a container.
    Exec {
        /// The pod.
        pod: Which,
        /// The container; the pod's usual one if not given.
        container: Option<String>,
        /// What to run.
        args: Vec<String>,
        /// Whether it gets input.
        input: bool,
        /// Rows, columns and kind of the terminal it gets.
        terminal: Option<Terminal>,
    },
    /// Delete pods, or what makes them.
    Delete {
        /// Which.
        what: Which,
        /// Seconds to stop in, instead of the pod's own.
        grace: Option<u64>,
        /// Answer when they are gone.
        wait: bool,
    },
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
    /// As in `TERM`.
    pub kind: Option<String>,
}

/// The path of the socket as the kernel takes it however long the directory's is.
fn short(directory: &Path) -> io::Result<(std::fs::File, PathBuf)> {
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(directory)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())).join(NAME);
    Ok((file, path))
}

/// Opens the door of the run in this directory.
pub(crate) fn open(directory: &Path) -> io::Result<UnixListener> {
    let (_held, path) = short(directory)?;
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Knocks at the door of the run in this directory.
pub async fn connect(directory: &Path) -> io::Result<UnixStream> {
    let (_held, path) = short(directory)?;
    UnixStream::connect(path).await
}

/// Answers for ever.
pub(crate) async fn keep(listener: UnixListener, world: Arc<World>, commands: mpsc::Sender<Command>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left for now.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let visit = serve::Visit {
            world: Arc::clone(&world),
            commands: commands.clone(),
        };
        tokio::spawn(visit.answer(stream));
    }
}
