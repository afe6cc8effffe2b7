//! As the first process of a pid namespace.

use super::process::{PATIENCE, binary};
use super::scene::{Pod, Scene};
use std::process::Command;
use std::time::{Duration, Instant};

/// Children of a process, with the letter of their state.
fn children(pid: u32) -> Vec<(u32, char)> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|child| {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
            let state = stat.rsplit_once(") ")?.1.chars().next()?;
            Some((child.parse().ok()?, state))
        })
        .collect()
}

#[test]
fn a_thousand_orphans_leave_no_zombie() {
    let scene = Scene::new();
    let mut start = scene.start(Pod::Web, Scene::env(Pod::Web));
    // Root makes the namespace; what becomes of the sidecar's rights is another test's business.
    start.uid = 0;
    start.env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(binary()).args(["proxy", "sidecar"]);
    let unshare = start.run(command);
    scene.readiness(Pod::Web, |status, _| status == 503);
    let (sidecar, _) = children(unshare.pid())[0];
    // Each `( … & )` leaves a process behind whose parent is gone.
    let script = "i=0; while [ $i -lt 1000 ]; do (true &); i=$((i+1)); done";
    let made = Command::new("nsenter")
        .args([
            "--target",
            &sidecar.to_string(),
            "--pid",
            "--mount",
            "sh",
            "-c",
            script,
        ])
        .status()
        .unwrap();
    assert!(made.success());
    let started = Instant::now();
    loop {
        let left = children(sidecar);
        if left.is_empty() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{left:?}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
    // The sidecar itself never noticed.
    assert_eq!(scene.ask(Pod::Web, 15021, "/healthz/ready").unwrap().0, 503);
}
