//! Mounts of this process itself.

use super::{c_path, check};
use std::ffi::CString;
use std::io;
use std::path::Path;
use std::ptr;

/// From now on what this process mounts is seen by nobody but itself and what it starts, and goes with them. What others
/// mount is still seen here. For the calling thread and those it starts.
pub(crate) fn keep_private() -> io::Result<()> {
    super::unshare(libc::CLONE_NEWNS)?;
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: a static path; for a change of propagation the kernel reads nothing else.
    let rc = unsafe { libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) };
    check(rc.into()).map(drop)
}

/// Mounts memory, with options as the kernel's tmpfs takes them.
pub(crate) fn tmpfs(at: &Path, options: &str) -> io::Result<()> {
    let (at, options) = (c_path(at)?, CString::new(options)?);
    let kind = c"tmpfs".as_ptr();
    // SAFETY: all are strings that end and outlive the call.
    let rc = unsafe { libc::mount(kind, at.as_ptr(), kind, 0, options.as_ptr().cast()) };
    check(rc.into()).map(drop)
}

/// Takes a mount away, at the latest when nobody uses it any more.
pub(crate) fn unmount(at: &Path) -> io::Result<()> {
    let at = c_path(at)?;
    // SAFETY: a string that ends and outlives the call.
    check(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) }.into()).map(drop)
}
