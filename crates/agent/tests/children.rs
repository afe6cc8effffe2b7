//! Child processes and orphans. A separate test binary, because it reaps every descendant.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_agent::children::Children;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

#[tokio::test]
async fn everybody_learns_how_their_child_ended_and_orphans_do_not_disturb() {
    let children = Children::adopt().unwrap();
    let sh = |script: &str| children.spawn(Command::new("sh").args(["-c", script])).unwrap();
    // Leaves an orphan behind, which ends after its parent.
    let mut parent = sh("(sleep 0.05; exit 3) & exit 4");
    let mut seven = sh("exit 7");
    let mut killed = sh("sleep 60");
    killed.signal(9).unwrap();
    assert_eq!(seven.ended().await.code(), Some(7));
    assert_eq!(seven.ended().await.code(), Some(7), "asked again");
    assert_eq!(parent.ended().await.code(), Some(4));
    assert_eq!(killed.ended().await.signal(), Some(9));
    // The pid may belong to another process by now: no signal is sent.
    killed.signal(9).unwrap();
}
