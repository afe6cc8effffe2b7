use super::{Follower, Logs, Rotation, Stream, stamp};
use std::path::Path;
use tempfile::TempDir;

fn logs(rotation: Option<Rotation>) -> (TempDir, Logs) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let logs = match rotation {
        None => Logs::new(path),
        Some(rotation) => Logs::with_rotation(path, rotation),
    };
    (directory, logs)
}

/// Everything that can be read now.
fn rest(follower: &mut Follower) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let lines = follower.some().unwrap();
        if lines.is_empty() {
            return all;
        }
        all.extend(lines.into_iter().map(|line| line.text));
    }
}

fn files(directory: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect()
}

#[test]
fn each_start_has_lines_of_its_own() {
    let (_directory, logs) = logs(None);
    assert!(logs.find(3, "app", false).is_err());
    for (attempt, text) in [(1, "first"), (2, "second")] {
        let writer = logs.begin(3, "app", attempt);
        writer.keep(Stream::Out, text, true);
        writer.keep(Stream::Err, "half", false);
    }
    let read = |previous| {
        let path = logs.find(3, "app", previous).unwrap();
        rest(&mut logs.follow(path).unwrap()).concat()
    };
    assert_eq!(
        (read(false), read(true)),
        ("second\nhalf".into(), "first\nhalf".into())
    );
}

/// Small enough to have many segments.
const SMALL: Rotation = Rotation { bytes: 400, files: 5 };

#[test]
fn the_output_of_a_container_has_an_end() {
    let (directory, logs) = logs(Some(SMALL));
    for attempt in 1..=4 {
        let writer = logs.begin(0, "app", attempt);
        for number in 0..1000 {
            writer.keep(Stream::Out, &format!("line {number}"), true);
        }
    }
    let sizes = files(&directory.path().join("0/app"));
    // This start and the one before, as many segments as are kept of each.
    assert_eq!(sizes.len(), 10);
    assert!(sizes.iter().all(|size| *size <= SMALL.bytes), "{sizes:?}");
    for previous in [false, true] {
        let path = logs.find(0, "app", previous).unwrap();
        let lines = rest(&mut logs.follow(path).unwrap());
        let first = 1000 - lines.len();
        let expected: Vec<String> = (first..1000).map(|n| format!("line {n}\n")).collect();
        assert_eq!(lines, expected);
        assert!(lines.len() > 4 * 6, "{}", lines.len());
    }
}

/// Whatever the order of writing and reading, and wherever segments end.
#[test]
fn a_follower_sees_every_line_once() {
    let mut random = 1u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    for bytes in [1, 60, 100, 333, 400, 5000] {
        let (_directory, logs) = logs(Some(Rotation { bytes, files: 5 }));
        let writer = logs.begin(0, "app", 1);
        let path = logs.find(0, "app", false).unwrap();
        let mut follower = logs.follow(path).unwrap();
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            // At most so many lines that the oldest of them is still there.
            for _ in 0..below(5) {
                let text = "x".repeat(usize::try_from(below(50)).unwrap());
                let text = format!("{}{text}", written.len());
                writer.keep(Stream::Out, &text, true);
                written.push(format!("{text}\n"));
            }
            read.extend(rest(&mut follower));
        }
        drop(writer);
        read.extend(rest(&mut follower));
        assert_eq!(read, written, "segments of {bytes} bytes");
    }
}

#[test]
fn a_follower_that_is_too_slow_goes_on_with_the_oldest_that_is_left() {
    let (_directory, logs) = logs(Some(SMALL));
    let writer = logs.begin(0, "app", 1);
    writer.keep(Stream::Out, "line 0", true);
    let mut follower = logs.follow(logs.find(0, "app", false).unwrap()).unwrap();
    for number in 1..1000 {
        writer.keep(Stream::Out, &format!("line {number}"), true);
    }
    let lines = rest(&mut follower);
    assert_eq!(lines.first().unwrap(), "line 0\n");
    assert_eq!(lines.last().unwrap(), "line 999\n");
    let numbers: Vec<u32> = lines.iter().map(|l| l[5..].trim().parse().unwrap()).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

#[tokio::test]
async fn a_follower_ends_with_the_writer() {
    let (_directory, logs) = logs(Some(SMALL));
    let writer = logs.begin(0, "app", 1);
    let mut follower = logs.follow(logs.find(0, "app", false).unwrap()).unwrap();
    for _ in 0..100 {
        writer.keep(Stream::Out, "line", true);
    }
    logs.tell();
    assert!(follower.more().await);
    drop(writer);
    assert!(!follower.more().await);
    assert!(!rest(&mut follower).is_empty());
}

#[test]
fn times_are_written_as_kubernetes_does() {
    assert_eq!(stamp(0, 5), "1970-01-01T00:00:00.000000005Z");
    assert_eq!(stamp(951_827_696, 0), "2000-02-29T12:34:56.000000000Z");
    assert_eq!(stamp(1_794_787_199, 0), "2026-11-15T23:59:59.000000000Z");
}
