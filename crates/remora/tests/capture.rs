//! The capture commands through the real binary. Those that touch a kernel do it in namespaces made here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; the helpers of this file are tests too"
)]

use remora_capture::apply::Nftables;
use remora_capture::install::prepare;
use remora_capture::{ruleset, verify};
use remora_net::netlink::{Protocol, Socket};
use remora_net::route;
use remora_rules::options::{Environment, Kind, OPTIONS, Settings, Spec, parse_argv};
use remora_testkit::{Actor, Lab};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

/// The program with an environment that has nothing but a path.
fn remora(args: &[&str]) -> Command {
    let mut command = Command::new(REMORA);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

fn run(args: &[&str]) -> Output {
    remora(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A copy of the program that every user may run, wherever this one is.
struct ForAnyone(std::path::PathBuf);

impl ForAnyone {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("remora-test-{}-{name}", std::process::id()));
        // By another program: a file that a thread of this one still has open for writing cannot be run.
        let copied = Command::new("install")
            .args(["-m", "755", REMORA])
            .arg(&path)
            .status()
            .unwrap();
        assert!(copied.success());
        Self(path)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/");
        command
    }
}

impl Drop for ForAnyone {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the program in the pod of a lab.
fn run_in(lab: &Lab, args: &[&str]) -> Output {
    let path = format!("/proc/{}/fd/{}", std::process::id(), lab.pod.as_fd().as_raw_fd());
    remora(args).env("NETWORK_NAMESPACE", path).output().unwrap()
}

#[test]
fn a_dry_run_prints_and_touches_nothing() {
    let output = run(&[
        "istio-iptables",
        "-i",
        "*",
        "-b",
        "80",
        "--dry-run",
        "--host-ipv6",
        "yes",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let sections: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(sections, ["# ipv4", "# ipv6"]);
    assert!(text.contains("\n* nat\n-N ISTIO_INBOUND\n"), "{text}");
    assert!(
        text.contains("\n-A ISTIO_INBOUND -p tcp --dport 80 -j ISTIO_IN_REDIRECT\n"),
        "{text}"
    );

    let output = run(&[
        "istio-iptables",
        "-n",
        "--host-ipv6=no",
        "--native-nftables",
        "--state=hold",
    ]);
    let text = stdout(&output);
    assert!(
        text.starts_with("# nft\nadd table inet remora\ndelete table inet remora\ntable inet remora {\n"),
        "{text}"
    );
    assert!(text.contains("elements = { tcp : drop, udp : drop }"), "{text}");

    let output = run(&["istio-iptables", "-n", "--host-ipv6=no", "-f=false"]);
    assert!(stdout(&output).contains("\niptables -t nat -A OUTPUT -j ISTIO_OUTPUT\n"));
}

#[test]
fn bad_values_are_exit_1_and_nothing_is_applied() {
    let lab = Lab::new();
    let output = run_in(&lab, &["istio-iptables", "-i", "*", "-b", "eighty"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "error: flag --istio-inbound-ports: \"eighty\" is not a port (1-65535)\n"
    );
    let output = remora(&["istio-iptables", "--dry-run"])
        .env("ISTIO_SERVICE_CIDR", "10.0.0.0/99")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: environment variable ISTIO_SERVICE_CIDR: \"10.0.0.0/99\""));
    let output = run_in(&lab, &["istio-iptables", "--no-such-flag"]);
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(1), "error: unknown flag --no-such-flag\n")
    );
    let path = format!("/proc/{}/fd/{}", std::process::id(), lab.pod.as_fd().as_raw_fd());
    assert_eq!(
        stdout(&run(&["capture", "status", "--network-namespace", &path])),
        "not installed, or by iptables without a switch\n"
    );
}

/// Manifests of Istio 1.5 call the program by this name, which the image provides as a link.
#[test]
fn the_program_answers_to_its_classic_names() {
    use std::os::unix::process::CommandExt;
    let mut command = remora(&["-p", "15009", "-i", "*", "-n", "--host-ipv6", "no"]);
    let output = command.arg0("/usr/local/bin/istio-iptables").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("--to-ports 15009"),
        "{}",
        stdout(&output)
    );
    let output = remora(&["--dry-run"])
        .arg0("istio-clean-iptables")
        .output()
        .unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_pod_explains_itself() {
    let path = std::env::temp_dir().join(format!("remora-test-{}-pod.json", std::process::id()));
    let pod = r#"{"kind": "Pod", "metadata": {"annotations": {"traffic.sidecar.istio.io/excludeOutboundPorts": "3306"}},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy", "securityContext": {"runAsUser": 1400}}]}}"#;
    std::fs::write(&path, pod).unwrap();
    let file = path.to_str().unwrap();
    let explain = |args: &[&str]| {
        stdout(&run(&[
            &["capture", "explain", "--pod", file, "--format", "json"],
            args,
        ]
        .concat()))
    };
    let captured = explain(&["--to", "192.0.2.1:80"]);
    let excluded = explain(&["--to", "192.0.2.1:3306"]);
    let proxy = explain(&["--to", "192.0.2.1:80", "--uid", "1400"]);
    let inbound = explain(&["--from", "[2001:db8::9]:999", "--port", "8080"]);
    let probe = explain(&["--from", "192.0.2.9:999", "--port", "15021"]);
    std::fs::remove_file(&path).unwrap();
    assert!(
        captured.contains("\"fate\": \"redirected\"") && captured.contains("\"port\": 15001"),
        "{captured}"
    );
    assert!(
        excluded.contains("-A ISTIO_OUTPUT -p tcp --dport 3306 -j RETURN"),
        "{excluded}"
    );
    assert!(proxy.contains("\"fate\": \"untouched\""), "{proxy}");
    assert!(inbound.contains("\"port\": 15006"), "{inbound}");
    assert!(probe.contains("\"fate\": \"untouched\""), "{probe}");
}

/// The command line is read by one reader for this program and by another for pods: they must agree.
#[test]
fn both_readers_of_the_command_line_agree() {
    let sets: [&[&str]; 3] = [
        &[
            "-p", "15009", "-z=15007", "-e15010", "-u", "1,2", "-g", "", "-m", "TPROXY", "-b", "*", "-d",
            "80,", "-c", "a,b",
        ],
        &[
            "-i",
            "10.0.0.0/8",
            "-x",
            "10.1.0.0/16",
            "-q",
            "1:2",
            "-o",
            "9",
            "-k",
            "vm0",
            "-t",
            "0x10",
            "-r",
            "9",
            "--drop-invalid",
        ],
        &[
            "--redirect-dns=true",
            "--capture-all-dns",
            "-i",
            "*",
            "-i",
            "",
            "--log_as_json",
            "--vklog",
            "9",
        ],
    ];
    for flags in sets {
        let dry = ["-n", "--host-ipv6", "yes"];
        let early = run(&[&["istio-iptables"], flags, &dry].concat());
        // Through clap: the same flags for another command.
        let late = run(&[&["capture", "rules"], flags, &dry].concat());
        assert_eq!(
            (early.status.code(), late.status.code()),
            (Some(0), Some(0)),
            "{}{}",
            stderr(&early),
            stderr(&late)
        );
        assert_eq!(stdout(&early), stdout(&late), "{flags:?}");
    }
}

#[test]
fn every_flag_of_the_table_is_a_flag_of_the_command() {
    let help = stdout(&run(&["istio-iptables", "--help"]));
    let is_flag = |spec: &&Spec| !spec.ignored && !matches!(spec.kind, Kind::Variable(_));
    for spec in OPTIONS.iter().filter(is_flag) {
        let long = format!("--{}", spec.long);
        assert!(help.contains(&long), "{long}");
        if let Some(short) = spec.short {
            assert!(help.contains(&format!("-{short}, {long}")), "{long}");
        }
    }
    let ignored: Vec<String> = OPTIONS
        .iter()
        .filter(|spec| spec.ignored)
        .map(|spec| format!("--{}=x", spec.long))
        .collect();
    let args: Vec<&str> = ["istio-iptables", "-n", "--host-ipv6=no"]
        .into_iter()
        .chain(ignored.iter().map(String::as_str))
        .collect();
    assert_eq!(run(&args).status.code(), Some(0));
}

#[test]
fn installing_switching_explaining_and_cleaning() {
    let lab = Lab::new();
    let flags = ["istio-iptables", "-i", "*", "-b", "*", "--dual-stack"];
    let output = run_in(&lab, &flags);
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "note: the rules are in place\n")
    );
    assert_eq!(
        stderr(&run_in(&lab, &flags)),
        "note: the rules are already in place\n"
    );
    let path = format!("/proc/{}/fd/{}", std::process::id(), lab.pod.as_fd().as_raw_fd());
    let at = ["--network-namespace", path.as_str()];
    let capture = |args: &[&str]| run(&[&["capture"], args, &at[..]].concat());
    assert!(stdout(&capture(&["status"])).ends_with("switch: closed\n"));
    assert_eq!(capture(&["switch", "hold"]).status.code(), Some(0));
    assert!(stdout(&capture(&["status"])).ends_with("switch: hold\n"));
    let told = stdout(&capture(&["explain", "--live", "--to", "192.0.2.1:80"]));
    assert!(told.starts_with("tcp to 192.0.2.1:80 by eth0: held"), "{told}");
    let told = stdout(&capture(&[
        "explain",
        "--live",
        "--to",
        "192.0.2.1:80",
        "--uid",
        "1337",
        "--format",
        "json",
    ]));
    assert!(
        told.contains("\"fate\": \"untouched\"") && told.contains("--uid-owner 1337 -j RETURN"),
        "{told}"
    );
    assert_eq!(run_in(&lab, &["istio-clean-iptables"]).status.code(), Some(0));
    assert_eq!(
        stdout(&capture(&["status"])),
        "not installed, or by iptables without a switch\n"
    );
    let output = capture(&["switch", "on"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("hint: install them with"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn validation_says_what_is_missing_with_code_126() {
    let lab = Lab::new();
    let flags = [
        "istio-iptables",
        "-i",
        "*",
        "-b",
        "*",
        "--dual-stack",
        "--redirect-dns",
        "--capture-all-dns",
    ];
    let validate = [
        "--run-validation",
        "--skip-rule-apply",
        "--probe-timeout",
        "200ms",
    ];
    let output = run_in(&lab, &[&flags[..], &validate].concat());
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
    assert_eq!(
        stderr(&output).matches("failed: ").count(),
        8,
        "{}",
        stderr(&output)
    );
    let output = run_in(&lab, &[&flags[..], &["--run-validation"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("ok: ").count(), 9, "{}", stderr(&output));
    // As the injected validation container runs: the proxy's user, without any capability.
    let user = Actor::new(&lab.pod, 1337, 1337);
    let args: Vec<String> = flags.iter().chain(&validate).map(ToString::to_string).collect();
    let program = ForAnyone::new("validation");
    let mut command = program.command();
    let output = user.run(move || command.args(args).output()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("ok: ").count(), 2, "{}", stderr(&output));
}

#[test]
fn without_privileges_the_missing_one_is_named() {
    let lab = Lab::new();
    let user = Actor::new(&lab.pod, 1000, 1000);
    let program = ForAnyone::new("privileges");
    let mut command = program.command();
    let output = user
        .run(move || command.args(["istio-iptables", "-i", "*"]).output())
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("hint: the container needs the capability NET_ADMIN"),
        "{}",
        stderr(&output)
    );
}

/// In a user namespace nobody needs to be root: a plain user captures the traffic of a namespace of its own.
#[test]
fn a_plain_user_captures_its_own_namespace() {
    let lab = Lab::new();
    let user = Actor::new(&lab.pod, 1000, 1000);
    let program = ForAnyone::new("userns");
    let mut command = Command::new("unshare");
    command.args(["-U", "-r", "-n"]).arg(&program.0);
    command.args(["istio-iptables", "-i", "*", "-b", "*", "--host-ipv6", "yes"]);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/");
    let output = user.run(move || command.output()).unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "note: the rules are in place\n")
    );
}

/// Killed at any moment, the program leaves the old rules or the new ones, and the routes they need.
#[test]
fn kill_9_leaves_old_rules_or_new_ones() {
    let lab = Lab::new();
    let sets: [&[&str]; 2] = [
        &["-i", "*", "-b", "*", "-m", "TPROXY", "--dual-stack"],
        &[
            "-i",
            "10.0.0.0/8",
            "-b",
            "80",
            "-m",
            "TPROXY",
            "-t",
            "99",
            "-r",
            "77",
            "--dual-stack",
            "--drop-invalid",
        ],
    ];
    let inside = Actor::root(&lab.pod);
    let wanted: Vec<_> = sets
        .iter()
        .map(|flags| {
            let settings = Settings::read(&parse_argv(flags).unwrap(), &Environment::new()).unwrap();
            let plan = inside.run(move || prepare(&settings)).unwrap().plan;
            (ruleset(&plan), plan.route.unwrap())
        })
        .collect();
    let path = format!("/proc/{}/fd/{}", std::process::id(), lab.pod.as_fd().as_raw_fd());
    let command = |flags: &[&str]| {
        let mut command = remora(&[&["istio-iptables"], flags].concat());
        command.env("NETWORK_NAMESPACE", &path).stderr(Stdio::null());
        command
    };
    // How long an undisturbed run takes here and now: the kills are spread over that time.
    let start = Instant::now();
    assert!(command(sets[0]).status().unwrap().success());
    let whole = start.elapsed().max(Duration::from_millis(1));
    let mut seen = [0, 0];
    let mut current = 0;
    for round in 0..80 {
        let mut child = command(sets[1 - current]).spawn().unwrap();
        let deadline = Instant::now() + whole * round / 60;
        while Instant::now() < deadline {
            std::hint::spin_loop();
        }
        // Some are left alone, so that there is something to go back from however slow the machine is.
        if round % 10 != 9 {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let expected = wanted.clone();
        let found = inside.run(move || {
            let mut nftables = Nftables::open().unwrap();
            let is = |nftables: &mut Nftables, index: usize| {
                verify::verify(nftables, &expected[index].0).unwrap().is_empty()
            };
            let found = [is(&mut nftables, 0), is(&mut nftables, 1)];
            let index = usize::from(found[1]);
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let rules = route::mark_rules(&mut socket, route::Family::V4).unwrap();
            let route = expected[index].1;
            assert!(
                rules
                    .iter()
                    .any(|rule| (rule.mark, rule.table) == (route.mark, route.table)),
                "no route for the rules"
            );
            found
        });
        assert!(
            found[0] != found[1],
            "round {round}: neither the old rules nor the new ones, or both: {found:?}"
        );
        current = usize::from(found[1]);
        seen[current] += 1;
    }
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "the kills hit both before and after the change: {seen:?}"
    );
}
