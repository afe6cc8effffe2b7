//! Installing again, installing otherwise, removing.

use crate::bench_pod::{BenchPod, backends, has_iptables};
use remora_capture::install::Outcome;
use remora_net::netlink::{Protocol, Socket};
use remora_net::{address, route};
use remora_rules::options::Backend;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Command;

const ONE: &[&str] = &[
    "-i",
    "*",
    "-b",
    "*",
    "-d",
    "9090",
    "-m",
    "TPROXY",
    "--dual-stack",
    "--drop-invalid",
    "-c",
    "net9",
];
const OTHER: &[&str] = &[
    "-i",
    "10.0.0.0/8",
    "-b",
    "80",
    "-t",
    "99",
    "-r",
    "77",
    "-m",
    "TPROXY",
];

/// Runs a program in the pod and returns what it printed.
fn run(pod: &BenchPod, program: &'static str, args: &'static [&'static str]) -> String {
    let output = pod.root.run(move || Command::new(program).args(args).output());
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything outside netfilter that capture may change.
fn surroundings(pod: &BenchPod) -> String {
    pod.root.run(|| {
        let mut socket = Socket::open(Protocol::Route).expect("netlink");
        let mut addresses = address::list(&mut socket).expect("addresses");
        // Link-local ones come by themselves, and when they like.
        addresses
            .retain(|assigned| !matches!(assigned.address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        let mut text = format!("{addresses:?}\n");
        for family in [route::Family::V4, route::Family::V6] {
            let ours = |table: u32| ![254, 255].contains(&table);
            let routes = route::routes(&mut socket, family).expect("routes");
            let routes: Vec<_> = routes.into_iter().filter(|route| ours(route.table)).collect();
            let rules = route::mark_rules(&mut socket, family).expect("rules");
            writeln!(text, "{routes:?} {rules:?}").expect("text");
        }
        text
    })
}

/// The rules of every kind, without what counts packets or tells the time.
fn rules(pod: &BenchPod) -> Vec<String> {
    let mut lines = Vec::new();
    let programs: [(&str, &[&str]); 5] = [
        ("nft", &["-s", "list", "ruleset"]),
        ("iptables-nft-save", &[]),
        ("ip6tables-nft-save", &[]),
        ("iptables-legacy-save", &[]),
        ("ip6tables-legacy-save", &[]),
    ];
    for (program, args) in programs {
        let text = run(pod, program, args);
        let told = text.lines().filter(|line| !line.starts_with('#'));
        lines.extend(told.map(|line| format!("{program}: {}", line.split(" [").next().unwrap_or(line))));
    }
    lines
}

#[test]
fn a_second_run_changes_nothing() {
    if !has_iptables() {
        return;
    }
    for backend in backends() {
        let pod = BenchPod::without_proxy();
        assert_eq!(pod.install(backend, ONE), Outcome::Applied, "{backend:?}");
        let before = (rules(&pod), surroundings(&pod));
        assert_eq!(pod.install(backend, ONE), Outcome::Unchanged, "{backend:?}");
        assert_eq!((rules(&pod), surroundings(&pod)), before, "{backend:?}");
        let forced: Vec<&str> = ONE.iter().copied().chain(["--force-apply"]).collect();
        assert_eq!(pod.install(backend, &forced), Outcome::Applied, "{backend:?}");
        assert_eq!((rules(&pod), surroundings(&pod)), before, "{backend:?}");
    }
}

#[test]
fn other_flags_replace_the_rules_as_if_they_were_the_first() {
    if !has_iptables() {
        return;
    }
    for backend in backends() {
        let fresh = BenchPod::without_proxy();
        fresh.install(backend, OTHER);
        let pod = BenchPod::without_proxy();
        pod.install(backend, ONE);
        pod.install(backend, OTHER);
        let meaningful = |pod: &BenchPod| -> Vec<String> {
            // A table that was used once stays, with nothing in it.
            rules(pod)
                .into_iter()
                .filter(|line| line.contains("-A ") || line.starts_with("nft: "))
                .filter(|line| !line.contains("chain") && !line.contains("table"))
                .collect()
        };
        assert_eq!(
            without_empty(&meaningful(&pod)),
            without_empty(&meaningful(&fresh)),
            "{backend:?}"
        );
        assert_eq!(surroundings(&pod), surroundings(&fresh), "{backend:?}");
    }
}

fn without_empty(lines: &[String]) -> Vec<&String> {
    let noise = ["nft: ", "nft: \t}", "nft: }"];
    lines
        .iter()
        .filter(|line| !noise.contains(&line.as_str()) && !line.contains("type "))
        .collect()
}

#[test]
fn other_peoples_rules_are_left_alone() {
    if !has_iptables() {
        return;
    }
    for backend in backends() {
        let pod = BenchPod::without_proxy();
        run(
            &pod,
            "nft",
            &[
                "add table inet theirs; add chain inet theirs output { type nat hook output priority -99; }; add rule inet theirs output tcp dport 1 accept",
            ],
        );
        run(
            &pod,
            "iptables-nft",
            &[
                "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", "2", "-j", "RETURN",
            ],
        );
        run(
            &pod,
            "iptables-legacy",
            &[
                "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", "3", "-j", "RETURN",
            ],
        );
        run(&pod, "iptables-legacy", &["-t", "nat", "-N", "THEIRS"]);
        let theirs = |pod: &BenchPod| -> Vec<String> {
            let marks = ["dport 1 ", "dport 2 ", "dport 3 ", "THEIRS", "theirs"];
            rules(pod)
                .into_iter()
                .filter(|line| marks.iter().any(|mark| line.contains(mark)))
                .collect()
        };
        let before = theirs(&pod);
        assert!(before.len() >= 4, "{before:?}");
        pod.install(backend, ONE);
        assert_eq!(theirs(&pod), before, "{backend:?}: installed");
        pod.install(backend, OTHER);
        assert_eq!(theirs(&pod), before, "{backend:?}: replaced");
        pod.install(backend, &["--cleanup-only"]);
        assert_eq!(theirs(&pod), before, "{backend:?}: removed");
    }
}

#[test]
fn cleanup_leaves_nothing() {
    if !has_iptables() {
        return;
    }
    for backend in backends() {
        let pod = BenchPod::without_proxy();
        let before = surroundings(&pod);
        pod.install(backend, ONE);
        pod.install(backend, OTHER);
        assert_ne!(surroundings(&pod), before);
        // Without any of the flags it was installed with.
        assert_eq!(
            pod.install(Backend::Nftables, &["--cleanup-only"]),
            Outcome::Removed
        );
        assert_eq!(surroundings(&pod), before, "{backend:?}");
        let left: Vec<String> = rules(&pod)
            .into_iter()
            .filter(|line| line.contains("-A ") || line.contains("ISTIO") || line.contains("remora"))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "{backend:?}");
        assert_eq!(
            pod.install(Backend::Nftables, &["--cleanup-only"]),
            Outcome::Removed,
            "twice is no error"
        );
    }
}

#[test]
fn changing_the_back_end_does_not_capture_twice() {
    if !has_iptables() {
        return;
    }
    for (first, then) in [
        (Backend::IptablesNft, Backend::Nftables),
        (Backend::IptablesLegacy, Backend::Nftables),
        (Backend::Nftables, Backend::IptablesNft),
    ] {
        let pod = BenchPod::without_proxy();
        pod.install(first, ONE);
        pod.install(then, ONE);
        let all = rules(&pod);
        let nftables = all.iter().any(|line| line.contains("table inet remora"));
        let iptables = all.iter().any(|line| line.contains("-A ISTIO_OUTPUT"));
        assert_eq!(
            (nftables, iptables),
            (then == Backend::Nftables, then != Backend::Nftables),
            "{first:?} {then:?}"
        );
    }
}

/// The script that a dry run prints, fed to the nft program, is the same table.
#[test]
fn the_script_and_the_transaction_are_the_same() {
    if !has_iptables() {
        return;
    }
    let sets: [&'static [&'static str]; 4] = [
        ONE,
        OTHER,
        &[
            "-i",
            "10.1.0.0/12,2001:db8::/33",
            "-x",
            "10.2.0.0/15",
            "-q",
            "1:2",
            "-k",
            "vm0,tap+",
            "--host-ipv6",
            "yes",
        ],
        &[
            "-i",
            "*",
            "-b",
            "*",
            "--redirect-dns",
            "--host-dns",
            "10.0.0.10,fd00::a",
            "-u",
            "1,2",
            "-g",
            "3",
            "--host-ipv6",
            "yes",
        ],
    ];
    for flags in sets {
        let pod = BenchPod::without_proxy();
        let settings = crate::bench_pod::settings(Backend::Nftables, flags, &[]).unwrap();
        let script = pod.root.run(move || {
            let plan = remora_capture::install::prepare(&settings).expect("plan").plan;
            let state = remora_rules::switch::State::Closed;
            remora_capture::ruleset::script::script(&remora_capture::ruleset(&plan), state)
        });
        let status = pod.root.run(move || {
            use std::io::Write;
            let mut child = Command::new("nft")
                .args(["-f", "-"])
                .stdin(std::process::Stdio::piped())
                .spawn()?;
            child.stdin.take().expect("pipe").write_all(script.as_bytes())?;
            child.wait()
        });
        assert!(status.expect("nft").success(), "{flags:?}");
        assert_eq!(
            pod.install(Backend::Nftables, flags),
            Outcome::Unchanged,
            "{flags:?}"
        );
    }
}
