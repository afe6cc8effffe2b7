//! User, group, capabilities and descriptor limit of the program.

use crate::sys;
use std::io;

/// May change rules, routes and addresses.
pub const NET_ADMIN: u8 = 12;
/// May use raw and transparent sockets.
pub const NET_RAW: u8 = 13;
/// May become another user.
pub const SETUID: u8 = 7;
/// May become another group.
pub const SETGID: u8 = 6;

/// Whether the calling thread has a capability in effect.
pub fn has(capability: u8) -> bool {
    // The thread's own status: capabilities belong to threads, not to processes.
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    set & (1 << capability) != 0
}

/// The soft limit of open descriptors (`RLIMIT_NOFILE`).
pub fn descriptor_limit() -> io::Result<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Ok(u64::MAX),
        number => number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Effective user and group of the calling thread.
pub fn ids() -> (u32, u32) {
    sys::ids()
}

/// Changes user and group of the calling thread only. It cannot change back.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    if has(SETGID) {
        sys::clear_thread_groups()?;
    }
    sys::set_thread_ids(uid, gid)
}

/// Drops all capabilities of the calling thread, also for programs that it executes later. They cannot be regained.
/// Must be called before other threads start.
pub fn drop_capabilities() -> io::Result<()> {
    sys::set_no_new_privileges()?;
    sys::clear_thread_capabilities()
}

/// Raises the soft limit of open descriptors to the hard limit and returns it.
///
/// The usual soft limit of 1024 protects programs that use `select`. The parent process sets the hard limit.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    sys::raise_descriptor_limit()
}

#[cfg(test)]
mod tests {
    use super::{NET_ADMIN, SETUID, drop_capabilities, has};

    #[test]
    fn dropped_capabilities_cannot_be_regained() {
        // Capabilities belong to threads: this thread is not used afterwards.
        std::thread::spawn(|| {
            drop_capabilities().unwrap();
            assert!(!has(NET_ADMIN) && !has(SETUID));
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            // Not even for what root executes.
            let child = std::process::Command::new("grep")
                .args(["CapEff", "/proc/self/status"])
                .output();
            let told = String::from_utf8(child.unwrap().stdout).unwrap();
            assert_eq!(told.trim_start_matches("CapEff:").trim(), "0000000000000000");
        })
        .join()
        .unwrap();
    }
}
