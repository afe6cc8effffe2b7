//! The switch, while connections are open.

use crate::bench_pod::{BenchPod, PATIENCE, SILENCE, backends};
use remora_capture::install::Outcome;
use remora_net::socket::TcpOptions;
use remora_rules::options::Backend;
use remora_rules::switch::State;
use remora_testkit::{Pair, exchange};
use std::net::{IpAddr, SocketAddr};

const REDIRECT: &[&str] = &["-i", "*", "-b", "*", "-d", "9090", "--dual-stack"];
const TPROXY: &[&str] = &["-i", "*", "-b", "*", "-d", "9090", "-m", "TPROXY", "--dual-stack"];

fn far(ipv6: bool) -> SocketAddr {
    let ip: IpAddr = if ipv6 { "2001:db8::7" } else { "192.0.2.7" }.parse().unwrap();
    SocketAddr::new(ip, 8080)
}

fn own(pod: &BenchPod, ipv6: bool, port: u16) -> SocketAddr {
    SocketAddr::new(pod.lab.eth0.pod(ipv6), port)
}

fn with_state<'a>(flags: &[&'a str], state: &'a str) -> Vec<&'a str> {
    flags.iter().copied().chain(["--state", state]).collect()
}

/// Opens one connection out and one in, and says where they arrived.
fn open_both(pod: &BenchPod, ipv6: bool, open: &mut Vec<Pair>) -> (String, String) {
    let out = pod.connect(&pod.app, far(ipv6));
    let inward = pod.connect(&pod.world, own(pod, ipv6, 8080));
    let names = (out.name(), inward.name());
    open.extend([out.pair(), inward.pair()]);
    names
}

fn all_alive(open: &mut [Pair], when: &str) {
    for (index, pair) in open.iter_mut().enumerate() {
        exchange(pair).unwrap_or_else(|error| panic!("connection {index} was lost {when}: {error}"));
    }
}

/// Both modes with every back end.
fn all() -> impl Iterator<Item = (&'static str, &'static [&'static str], Backend)> {
    let modes = [("REDIRECT", REDIRECT), ("TPROXY", TPROXY)];
    modes
        .into_iter()
        .flat_map(|(mode, flags)| backends().into_iter().map(move |backend| (mode, flags, backend)))
}

#[test]
fn connections_survive_every_flip() {
    for (mode, flags, backend) in all() {
        for ipv6 in [false, true] {
            let pod = BenchPod::new();
            pod.install(backend, &with_state(flags, "open"));
            let mut open = Vec::new();
            let through = |names: (&str, &str)| (names.0.to_owned(), names.1.to_owned());
            for (state, wanted) in [
                (State::Open, ("world", "app")),
                (State::On, ("out", "in")),
                (State::Open, ("world", "app")),
                (State::Closed, ("out", "in")),
            ] {
                pod.switch(state);
                all_alive(&mut open, &format!("by {state} ({mode}, ipv6 {ipv6})"));
                assert_eq!(
                    open_both(&pod, ipv6, &mut open),
                    through(wanted),
                    "{mode} ipv6 {ipv6} {state}"
                );
            }
            pod.switch(State::Hold);
            all_alive(&mut open, &format!("by hold ({mode}, ipv6 {ipv6})"));
            assert_eq!(open.len(), 8);
        }
    }
}

#[test]
fn held_connections_wait_and_then_arrive() {
    for (mode, flags, backend) in all() {
        let after = if mode == "REDIRECT" {
            State::Open
        } else {
            State::On
        };
        let wanted = if after == State::On {
            ("out", "in")
        } else {
            ("world", "app")
        };
        for ipv6 in [false, true] {
            let pod = BenchPod::new();
            pod.install(backend, &with_state(flags, "hold"));
            let (out, inward) = (far(ipv6), own(&pod, ipv6, 8080));
            let out = pod
                .app
                .run(move || TcpOptions::default().start(out))
                .expect("first packet");
            let inward = pod
                .world
                .run(move || TcpOptions::default().start(inward))
                .expect("first packet");
            let out = out
                .finish(SILENCE)
                .expect("no error")
                .expect_err("the call out waits");
            let inward = inward
                .finish(SILENCE)
                .expect("no error")
                .expect_err("the call in waits");
            // What is exempt does not wait.
            assert_eq!(pod.connect(&pod.proxy, far(ipv6)).name(), "world");
            assert_eq!(pod.connect(&pod.world, own(&pod, ipv6, 9090)).name(), "app");
            assert_eq!(pod.connect(&pod.app, own(&pod, ipv6, 80)).name(), "app");
            pod.switch(after);
            out.finish(PATIENCE)
                .expect("no error")
                .expect("the call out goes on");
            inward
                .finish(PATIENCE)
                .expect("no error")
                .expect("the call in goes on");
            let mut names = [
                pod.watch.next(PATIENCE).unwrap().at,
                pod.watch.next(PATIENCE).unwrap().at,
            ];
            names.sort();
            let mut wanted = [wanted.0.to_owned(), wanted.1.to_owned()];
            wanted.sort();
            assert_eq!(names, wanted, "{mode} {backend:?} ipv6 {ipv6} {after}");
        }
    }
}

#[test]
fn connections_from_before_the_rules_survive_them() {
    for flags in [REDIRECT, TPROXY] {
        for ipv6 in [false, true] {
            let pod = BenchPod::new();
            let mut open = Vec::new();
            assert_eq!(open_both(&pod, ipv6, &mut open), ("world".into(), "app".into()));
            // No packet of theirs has been tracked: the first one the rules see is from the middle.
            pod.install(Backend::Nftables, flags);
            all_alive(&mut open, "by installing the rules late");
            assert_eq!(open_both(&pod, ipv6, &mut open), ("out".into(), "in".into()));
            all_alive(&mut open, "afterwards");
        }
    }
}

#[test]
fn a_run_with_other_flags_loses_nothing_and_keeps_the_state() {
    let pod = BenchPod::new();
    let mut open = Vec::new();
    pod.install(Backend::Nftables, &with_state(REDIRECT, "on"));
    open_both(&pod, false, &mut open);
    pod.switch(State::Open);
    open_both(&pod, false, &mut open);
    let other: Vec<&str> = REDIRECT
        .iter()
        .copied()
        .chain(["-o", "7777", "--redirect-dns", "--capture-all-dns"])
        .collect();
    assert_eq!(pod.install(Backend::Nftables, &other), Outcome::Applied);
    all_alive(&mut open, "by replacing the rules");
    assert_eq!(
        open_both(&pod, false, &mut open),
        ("world".into(), "app".into()),
        "the switch is still open"
    );
    let query = SocketAddr::new("192.0.2.53".parse().unwrap(), 53);
    assert_eq!(
        pod.query(&pod.app, query).as_deref(),
        Some("world"),
        "name queries follow the switch"
    );
    pod.switch(State::On);
    assert_eq!(pod.query(&pod.app, query).as_deref(), Some("dns"));
}

#[test]
fn the_switch_needs_rules() {
    let pod = BenchPod::without_proxy();
    let error = pod.root.run(|| {
        let mut nftables = remora_capture::apply::Nftables::open().expect("netlink");
        let error = nftables.switch(State::On).expect_err("nothing is installed");
        (error.to_string(), error.hint())
    });
    assert!(error.0.contains("no nftables capture rules"), "{error:?}");
    assert!(error.1.is_some());
}
