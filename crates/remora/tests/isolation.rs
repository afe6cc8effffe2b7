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

/// The least id of this machine that a pod with users of its own has.
const OWN: u32 = 0x4000_0000;

/// A pod with a field more.
fn with(field: &str, manifest: &str) -> String {
    manifest.replace("  restartPolicy", &format!("  {field}\n  restartPolicy"))
}

/// A container that sleeps for so long, after a script.
fn sleeper(script: &str, seconds: u32, more: &str) -> String {
    format!(
        "  containers:
  - name: sleeper
    image: remora
    command: [/bin/sh, -c, '{script}; echo here; exec /bin/sleep {seconds}']
{more}"
    )
}

const PROGRAMS_ONLY: &str = "    volumeMounts: [PROGRAMS]\n";

/// The process that sleeps for so long. While the shell executes it, no process has its command line.
fn sleeping(run: &Running, seconds: u32) -> u32 {
    let began = std::time::Instant::now();
    loop {
        if let [pid] = run.processes(&format!("sleep {seconds}"))[..] {
            return pid;
        }
        assert!(began.elapsed() < running::PATIENCE, "{}", run.said());
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

/// User ids (real, effective, saved, of files) of the process that sleeps for so long, as this machine sees them.
fn users_of(run: &Running, seconds: u32) -> Vec<u32> {
    let pid = sleeping(run, seconds);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// The ids of this machine behind the users of that process: the first, and how many.
fn range_of(run: &Running, seconds: u32) -> (u32, u32) {
    let pid = sleeping(run, seconds);
    let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    assert_eq!(
        map,
        std::fs::read_to_string(format!("/proc/{pid}/gid_map")).unwrap()
    );
    let words: Vec<u32> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!((words.len(), words[0]), (3, 0), "{map}");
    (words[1], words[2])
}

#[test]
fn root_of_a_pod_is_nobody_on_this_machine() {
    use std::os::unix::fs::MetadataExt as _;
    let outside = tempfile::tempdir().unwrap();
    let volumes = format!(
        "  - {{name: host, hostPath: {{path: {}}}}}
  - {{name: empty, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory}}}}",
        outside.path().display()
    );
    let script =
        "for d in host empty memory; do echo x > /$d/made; done; /bin/stat -c %u:%g /*/made; /bin/id -u";
    let mounts =
        "    volumeMounts: [PROGRAMS, {name: host, mountPath: /host}, {name: empty, mountPath: /empty},
      {name: memory, mountPath: /memory}]
";
    let first = pod("one", &sleeper(script, 611, mounts), &volumes);
    let second = pod("two", &sleeper("true", 612, PROGRAMS_ONLY), "");
    let mut run = start(&[first, second], &[]);
    run.wait_until("two pods", |said| said.matches("sleeper | here").count() == 2);
    let said = run.said();
    assert_eq!(said.matches("sleeper | 0:0").count(), 3, "{said}");
    assert!(said.contains("sleeper | 0\n"), "{said}");
    let ranges = [range_of(&run, 611), range_of(&run, 612)];
    for ((range, count), seconds) in ranges.iter().zip([611, 612]) {
        assert!(*range >= OWN && *count == 65_536, "{ranges:?}");
        assert_eq!(users_of(&run, seconds), [*range; 4]);
    }
    assert!(ranges[0].0.abs_diff(ranges[1].0) >= 65_536, "{ranges:?}");
    // On disk it is root's, as for any other pod: what the pod writes is of use after it.
    let made = std::fs::metadata(outside.path().join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 0));
    run.stop();
}

#[test]
fn a_setuid_program_makes_nobody_root_of_this_machine() {
    let containers = format!(
        "  initContainers:
  - name: prepares
    image: remora
    command: [/bin/sh, -c, '/bin/cp /bin/sleep /v/sleep && /bin/chmod 4755 /v/sleep']
    volumeMounts: [PROGRAMS, {{name: v, mountPath: /v}}]
{}",
        sleeper("true", 621, "").replace("/bin/sleep", "/v/sleep")
            + "    securityContext: {runAsUser: 1000}
    volumeMounts: [PROGRAMS, {name: v, mountPath: /v}]
"
    );
    let mut run = start(&[pod("setuid", &containers, "  - {name: v, emptyDir: {}}")], &[]);
    run.wait_for("sleeper | here");
    run.wait_until("the exec", |_| !run.processes("/v/sleep 621").is_empty());
    let (first, _) = range_of(&run, 621);
    assert_eq!(users_of(&run, 621), [first + 1000, first, first, first]);
    run.stop();
}

/// The value is written as it was read: a test that fails changes nothing.
#[test]
fn an_administrator_of_a_pod_cannot_change_this_machine() {
    let script = "/bin/mount -o remount,bind,rw /proc/sys && echo remounted; f=/proc/sys/kernel/core_pattern; \
                  read -r v < $f; echo \"$v\" > $f && echo written || echo refused";
    let security = "    securityContext: {capabilities: {add: [SYS_ADMIN]}}\n";
    let more = format!("{security}{PROGRAMS_ONLY}");
    let manifest = pod("admin", &sleeper(script, 631, &more), "");
    for (manifest, expected) in [
        (with("hostUsers: true", &manifest), "sleeper | written"),
        (manifest, "sleeper | refused"),
    ] {
        let mut run = start(&[manifest], &[]);
        run.wait_for("sleeper | here");
        let said = run.said();
        assert!(
            said.contains("sleeper | remounted") && said.contains(expected),
            "{said}"
        );
        run.stop();
    }
}

#[test]
fn a_pod_and_a_flag_decide_about_users() {
    let plain = pod("plain", &sleeper("true", 641, PROGRAMS_ONLY), "");
    let host = with(
        "hostUsers: true",
        &pod("host", &sleeper("true", 642, PROGRAMS_ONLY), ""),
    );
    let own = with(
        "hostUsers: false",
        &pod("own", &sleeper("true", 643, PROGRAMS_ONLY), ""),
    );
    let network = with(
        "hostNetwork: true",
        &pod("network", &sleeper("true", 644, PROGRAMS_ONLY), ""),
    );
    let both = with(
        "hostUsers: false",
        &with(
            "hostPID: true",
            &pod("both", &sleeper("true", 645, PROGRAMS_ONLY), ""),
        ),
    );
    let pods = [plain, host, own, network, both];
    for (args, separate) in [(&[][..], [641, 643].as_slice()), (&["--host-users"], &[643])] {
        let mut run = start(&pods, args);
        run.wait_until("four pods", |said| said.matches("sleeper | here").count() == 4);
        for seconds in 641..=644 {
            let is_own = users_of(&run, seconds)[0] >= OWN;
            assert_eq!(is_own, separate.contains(&seconds), "{args:?} {seconds}");
        }
        let refused = "hostUsers: false asks for a user namespace, which the pod cannot have: the pod has hostPID: true";
        run.wait_for(refused);
        assert!(run.processes("sleep 645").is_empty());
        assert!(!run.said().contains("share the users"), "{}", run.said());
        run.stop();
    }
}

/// sysfs cannot be mounted with other ids.
#[test]
fn what_is_impossible_is_reported_once_or_refused() {
    let mounts = "    volumeMounts: [PROGRAMS, {name: kernel, mountPath: /kernel}]\n";
    let pod = |name: &str, seconds| {
        let volume = "  - {name: kernel, hostPath: {path: /sys/kernel}}";
        pod(name, &sleeper("true", seconds, mounts), volume)
    };
    let must = with("hostUsers: false", &pod("must", 653));
    let mut run = start(&[pod("one", 651), pod("two", 652), must], &[]);
    run.wait_until("two pods", |said| said.matches("sleeper | here").count() == 2);
    let reason = "the file system of volume \"kernel\" (/sys/kernel) cannot be mounted with mapped ids";
    run.wait_for(&format!("which the pod cannot have: {reason}"));
    let said = run.said();
    let line = format!("and others alike share the users of this machine, root included: {reason}");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    assert_eq!((users_of(&run, 651)[0], users_of(&run, 652)[0]), (0, 0));
    assert!(run.processes("sleep 653").is_empty());
    run.stop();
}

/// Everything that a pod can do with the machine's users it can do with its own.
#[test]
fn a_pod_with_users_of_its_own_lacks_nothing() {
    let script = "echo out > /dev/stdout; echo err > /dev/stderr; : > /dev/shm/a; : > /dev/mqueue/a; /bin/hostname; \
                  /bin/cat /proc/sys/kernel/shmmni /proc/sys/net/core/somaxconn; /bin/stat -c %u:%g:%a /group /dev /dev/shm; \
                  /bin/ls /proc/1/cmdline; echo n > /new; /bin/id -G; /bin/readlink /sys/class/net/eth0";
    let more = "    volumeMounts: [PROGRAMS, {name: group, mountPath: /group}, {name: group, mountPath: /part, subPath: a/b}]
";
    let context = "shareProcessNamespace: true
  securityContext: {fsGroup: 4242, sysctls: [{name: kernel.shmmni, value: \"4001\"},
    {name: net.core.somaxconn, value: \"4002\"}]}";
    let manifest = with(
        context,
        &pod(
            "whole",
            &sleeper(script, 661, more),
            "  - {name: group, emptyDir: {}}",
        ),
    );
    let mut run = start(&[with("hostUsers: false", &manifest)], &[]);
    run.wait_for("sleeper | here");
    run.wait_for("sleeper ! err\n");
    let said = run.said();
    for line in [
        "out",
        "whole",
        "4001",
        "4002",
        "0:4242:2777",
        "0:0:755",
        "0:0:1777",
        "/proc/1/cmdline",
        "0 4242",
    ] {
        assert!(said.contains(&format!("sleeper | {line}\n")), "{line}: {said}");
    }
    assert!(
        said.contains("sleeper | ../../devices/virtual/net/eth0"),
        "{said}"
    );
    let exec = run.ask(&[
        "exec",
        "whole",
        "--",
        "/bin/sh",
        "-c",
        "echo more > /more; /bin/stat -c %u /more /new; read -r _ first count < /proc/self/uid_map; echo $count",
    ]);
    assert_eq!(exec, "0\n0\n65536\n");
    run.stop();
}
