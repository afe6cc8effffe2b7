//! The cryptography must not cost tens of milliseconds at its first use.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

/// aws-lc's jitter entropy is left out by `.cargo/config.toml`; with it the first random number costs 40 to 60 ms of
/// CPU. CPU time of this thread is measured, not wall time: other programs do not disturb it.
#[test]
fn the_first_random_number_is_cheap() {
    let before = thread_cpu_ticks();
    remora_mtls::warm_up();
    let spent = thread_cpu_ticks() - before;
    assert!(
        spent <= 2,
        "{spent} ticks of 10 ms: was aws-lc built without AWS_LC_SYS_NO_JITTER_ENTROPY=1?"
    );
}

/// User and system time of this thread, in ticks of the kernel (10 ms).
fn thread_cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
