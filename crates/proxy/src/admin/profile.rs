//! CPU time, threads and memory: from samples, the kernel and the allocator.

use remora_net::profile::{Sampling, encode};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use std::{fs, io};

const LONGEST: Duration = Duration::from_secs(30);
/// Of `/proc/self/status`.
const SHOWN: [&str; 6] = ["VmRSS", "VmHWM", "RssAnon", "RssFile", "VmSwap", "Threads"];

/// What the kernel counts for the process, and the allocator for the heap.
pub(super) fn memory() -> Value {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let kernel: Map<String, Value> = lines
        .filter(|(name, _)| SHOWN.contains(name))
        .map(|(name, value)| (name.to_owned(), value.trim().into()))
        .collect();
    let heap = remora_net::memory::heap().map(|heap| {
        json!({
            "fromKernel": heap.from_kernel,
            "inUse": heap.in_use,
            "free": heap.free,
            "mapped": heap.mapped,
        })
    });
    let runtime = tokio::runtime::Handle::current().metrics();
    json!({
        "kernel": kernel,
        "heap": heap,
        "tasks": runtime.num_alive_tasks(),
        "workers": runtime.num_workers(),
    })
}

/// What every thread did in this time, in ticks of the kernel's clock (a hundredth of a second).
pub(super) async fn threads(time: Duration) -> Value {
    let time = time.min(LONGEST);
    let before = ticks();
    tokio::time::sleep(time).await;
    let list = ticks().into_iter().map(|(id, (name, state, user, system))| {
        let (user_before, system_before) = before.get(&id).map_or((0, 0), |(_, _, u, s)| (*u, *s));
        json!({
            "id": id,
            "name": name,
            "state": state,
            "userTicks": user.saturating_sub(user_before),
            "systemTicks": system.saturating_sub(system_before),
        })
    });
    json!({"seconds": time.as_secs(), "threads": list.collect::<Vec<_>>()})
}

/// Where the process spent its CPU time meanwhile, for `pprof`.
pub(super) async fn cpu(time: Duration) -> io::Result<Vec<u8>> {
    let sampling = Sampling::start()?;
    tokio::time::sleep(time.min(LONGEST)).await;
    let counts = sampling.finish()?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    Ok(encode(&counts, &maps))
}

type Thread = (String, String, u64, u64);

/// Name, state, and time in user and kernel mode of every thread.
fn ticks() -> BTreeMap<u64, Thread> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return BTreeMap::new();
    };
    let read = |entry: fs::DirEntry| {
        let id: u64 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((id, parse(&stat)?))
    };
    tasks.flatten().filter_map(read).collect()
}

/// A name may contain anything, also the parentheses around it.
fn parse(stat: &str) -> Option<Thread> {
    let (before, rest) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.to_owned();
    let user = fields.nth(10)?.parse().ok()?;
    let system = fields.next()?.parse().ok()?;
    Some((name.to_owned(), state, user, system))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_threads_line_is_read_whatever_its_name() {
        let line = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 111 222 15 16\n";
        let expected = ("a) b (c".to_owned(), "R".to_owned(), 111, 222);
        assert_eq!(super::parse(line), Some(expected));
        assert_eq!(super::parse("7 (x) R 1 2"), None);
        assert!(super::ticks().len() > 1);
    }
}
