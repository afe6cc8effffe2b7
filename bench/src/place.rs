//! Where threads run, and ahead of whom.
//!
//! Proxies share one CPU, everything else the other, so that what a proxy costs shows in throughput too. With
//! `--realtime` all of them go ahead of other programs of the machine, in turns among themselves.

use std::process::{Command, Stdio};

/// The CPU of the proxies.
pub const PROXIES: usize = 0;
/// The CPU of load and origins.
pub const LOAD: usize = 1;

/// Puts the calling thread, and every process it starts, on a CPU.
pub fn here(cpu: usize, realtime: bool) {
    let Ok(link) = std::fs::read_link("/proc/thread-self") else {
        return;
    };
    let Some(thread) = link.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    tool("taskset", &["-p", "-c", &cpu.to_string(), thread]);
    if realtime {
        tool("chrt", &["-r", "-p", "1", thread]);
    }
}

fn tool(name: &str, arguments: &[&str]) {
    let status = Command::new(name)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{name} {arguments:?} failed: is util-linux installed, and is this root on a machine with two CPUs?"
    );
}
