//! Network namespaces.
//!
//! A thread that enters a namespace is a thread of its own that ends with the work, so that no other part of
//! the program ever finds itself in the wrong place. Sockets made inside stay bound to the namespace and may
//! be used from anywhere afterwards.

use crate::sys;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// A network namespace; it lives at least as long as this value.
#[derive(Debug, Clone)]
pub struct Namespace {
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// The namespace of a process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(format!("/proc/{pid}/ns/net"))
    }

    /// The namespace at a path, like `/run/netns/NAME` or what CNI hands over.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            fd: Arc::new(File::open(path)?.into()),
        })
    }

    /// A new namespace with nothing in it but a loopback interface that is down.
    pub fn create() -> io::Result<Self> {
        let thread = std::thread::Builder::new().name("netns".into());
        let made = std::thread::scope(|scope| {
            let work = || {
                sys::unshare(libc::CLONE_NEWNET)?;
                Self::current()
            };
            thread
                .spawn_scoped(scope, work)
                .map(std::thread::ScopedJoinHandle::join)
        })?;
        made.map_err(|_| io::Error::other("the thread that makes a namespace died"))?
    }

    /// Runs `work` inside the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let thread = std::thread::Builder::new().name("netns".into());
        let done = std::thread::scope(|scope| {
            let work = || {
                sys::setns(self.fd.as_fd(), libc::CLONE_NEWNET)?;
                Ok(work())
            };
            thread
                .spawn_scoped(scope, work)
                .map(std::thread::ScopedJoinHandle::join)
        })?;
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into the namespace for good.
    pub fn enter(&self) -> io::Result<()> {
        sys::setns(self.fd.as_fd(), libc::CLONE_NEWNET)
    }
}

impl From<OwnedFd> for Namespace {
    /// The namespace behind a descriptor.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
