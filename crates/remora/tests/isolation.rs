//! What keeps the pods of a run apart from this machine when their manifests do not ask for anything.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use running::Running;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A pod whose containers have the programs of this machine.
fn pod(name: &str, containers: &str, volumes: &str) -> String {
    let containers = containers.replace(
        "PROGRAMS",
        "{name: bin, mountPath: /bin}, {name: lib, mountPath: /lib}, {name: lib64, mountPath: /lib64}",
    );
    format!(
        "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
{containers}
  volumes:
  - {{name: bin, hostPath: {{path: /bin}}}}
  - {{name: lib, hostPath: {{path: /lib}}}}
  - {{name: lib64, hostPath: {{path: /lib64}}}}
{volumes}
"
    )
}

fn start(pods: &[String], args: &[&str]) -> Running {
    Running::start(
        &pods.concat(),
        &[&["--inject", "never", "--plain"], args].concat(),
    )
}

/// The lines of a container's status about its filter of system calls.
fn filter_of(run: &Running, container: &str) -> String {
    let line = format!("{container} | Seccomp:");
    run.wait_for(&line);
    let said = run.said();
    let found = said.lines().find_map(|text| text.split_once(&line));
    found.unwrap().1.trim().to_owned()
}

#[test]
fn system_calls_are_filtered_unless_the_pod_says_otherwise() {
    let container = |name: &str, security: &str| {
        format!(
            "  - name: {name}
    image: remora
    command: [/bin/grep, '^Seccomp:', /proc/self/status]
    securityContext: {security}
    volumeMounts: [PROGRAMS]
"
        )
    };
    let containers = [
        container("usual", "{}"),
        container("asked", "{seccompProfile: {type: RuntimeDefault}}"),
        container("without", "{seccompProfile: {type: Unconfined}}"),
        container(
            "mighty",
            "{privileged: true, seccompProfile: {type: RuntimeDefault}}",
        ),
    ];
    let pod = pod("calls", &format!("  containers:\n{}", containers.concat()), "");
    let mut run = start(&[pod], &[]);
    for (name, mode) in [("usual", "2"), ("asked", "2"), ("without", "0"), ("mighty", "0")] {
        assert_eq!(filter_of(&run, name), mode, "{name}");
    }
    run.stop();
}

/// A container that stays.
const SLEEPER: &str = "  containers:
  - name: sleeper
    image: remora
    command: [/bin/sh, -c, 'echo here; exec /bin/sleep 600']
    volumeMounts: [PROGRAMS]
";

/// Directories of the run's control groups whose name begins so.
fn groups(run: &Running, name: &str) -> Vec<PathBuf> {
    let own = format!("/remora-{}.", run.pid());
    let mut found = Vec::new();
    let mut stack = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let path = entry.path();
                let ours = path.to_str().is_some_and(|p| p.contains(&own));
                if ours && entry.file_name().to_string_lossy().starts_with(name) {
                    found.push(path.clone());
                }
                stack.push(path);
            }
        }
    }
    found
}

#[test]
fn a_pod_has_a_limit_of_processes() {
    for (args, expected) in [(&[][..], "4096\n"), (&["--pod-pids-limit", "77"], "77\n")] {
        let mut run = start(&[pod("few", SLEEPER, "")], args);
        run.wait_for("sleeper | here");
        let read = |dir: PathBuf| std::fs::read_to_string(dir.join("pids.max")).ok();
        let limits: Vec<String> = groups(&run, "pod-").into_iter().filter_map(read).collect();
        assert_eq!(limits, [expected], "{args:?}");
        run.stop();
        assert_eq!(groups(&run, "pod-"), Vec::<PathBuf>::new());
    }
}

fn bytes_below(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap();
    let size = |entry: std::fs::DirEntry| {
        if entry.file_type().unwrap().is_dir() {
            bytes_below(&entry.path())
        } else {
            entry.metadata().unwrap().len()
        }
    };
    entries.map(|entry| size(entry.unwrap())).sum()
}

#[test]
fn the_output_of_a_container_does_not_fill_the_disk() {
    let flood = "  containers:
  - name: flood
    image: remora
    command: [/bin/sh, -c, '/bin/head -c 80000000 /dev/zero | /bin/tr \"\\0\" x; echo; echo the-end']
    volumeMounts: [PROGRAMS]
";
    // Without --logs: the run is not to repeat it all.
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["run", "-f", "-", "--plain", "--inject", "never", "--state-dir"]);
    command.arg(state.path()).arg("--image-store");
    command.arg(remora_testkit::shared_folder().join("images"));
    let mut run = Running::spawn(command, state, &pod("loud", flood, ""));
    run.wait_for("Completed");
    let logs = run.state().join(run.pid().to_string()).join("logs");
    let (size, most) = (bytes_below(&logs), 5 * (10 << 20));
    assert!(size <= most, "{size} bytes");
    // The newest part is there, and can be read as ever.
    assert!(size > most / 2, "{size} bytes");
    assert_eq!(run.ask(&["logs", "--tail", "1", "loud"]), "the-end\n");
    let all = run.ask(&["logs", "loud"]);
    assert!(
        all.len() as u64 > most / 2 && all.ends_with("x\nthe-end\n"),
        "{} bytes",
        all.len()
    );
    run.stop();
}

#[test]
fn a_seccomp_profile_comes_from_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("profiles");
    std::fs::create_dir(&root).unwrap();
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}"#;
    std::fs::write(root.join("own.json"), profile).unwrap();
    let outside = dir.path().join("outside.json");
    std::fs::write(&outside, profile).unwrap();
    let pods: Vec<String> = [
        ("inside", "own.json"),
        ("outside", outside.to_str().unwrap()),
        ("up", "../outside.json"),
    ]
    .map(|(name, path)| {
        let security = format!("{{seccompProfile: {{type: Localhost, localhostProfile: {path:?}}}}}");
        let containers = SLEEPER.replace(
            "    image",
            &format!("    securityContext: {security}\n    image"),
        );
        pod(name, &containers, "")
    })
    .into();
    let mut run = start(&pods, &["--seccomp-profile-root", root.to_str().unwrap()]);
    run.wait_for("shop/inside sleeper | here");
    for name in ["outside", "up"] {
        run.wait_until(name, |said| {
            let refused = |line: &str| {
                line.contains(&format!("shop/{name}")) && line.contains("read the seccomp profile")
            };
            said.lines().any(refused)
        });
        assert!(!run.said().contains(&format!("shop/{name} sleeper | here")));
    }
    run.stop();
}

/// No race is needed: the link is there before the other container starts.
#[test]
fn a_sub_path_through_a_link_of_another_container_makes_nothing_outside() {
    let outside = tempfile::tempdir().unwrap();
    let containers = format!(
        "  initContainers:
  - name: links
    image: remora
    command: [/bin/ln, -s, {}, /v/x]
    volumeMounts: [PROGRAMS, {{name: v, mountPath: /v}}]
  containers:
  - name: victim
    image: remora
    command: [/bin/sh, -c, 'echo started']
    volumeMounts: [PROGRAMS, {{name: v, mountPath: /data, subPath: x/made-by-a-container}}]
",
        outside.path().display()
    );
    let mut run = start(&[pod("escape", &containers, "  - {name: v, emptyDir: {}}")], &[]);
    run.wait_for("a link in the volume leads out of the volume");
    assert!(!run.said().contains("victim | started"));
    run.stop();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// A pod that wants to be kept apart better than can be done does not run at all.
#[test]
fn a_pod_that_asks_for_users_of_its_own_is_refused() {
    let manifest =
        pod("apart", SLEEPER, "").replace("  restartPolicy", "  hostUsers: false\n  restartPolicy");
    let mut run = start(&[manifest], &[]);
    run.wait_for("hostUsers: false asks for a user namespace");
    assert!(!run.said().contains("sleeper | here"));
    run.stop();
}
