//! Clocks, memory and order statistics.

use std::time::Duration;

/// Memory of this process, in bytes.
pub(crate) fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// Time the calling thread was on a CPU.
pub(crate) fn cpu(task: &str) -> Duration {
    let text = std::fs::read_to_string(format!("{task}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Where the kernel tells about the calling thread.
pub(crate) fn task() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    format!("/proc/{}", link.display())
}

/// The value below which this part of all lies.
pub(crate) fn quantile(sorted: &[Duration], part: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}
