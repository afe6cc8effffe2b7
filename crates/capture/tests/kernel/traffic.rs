//! Which connections are captured and which are not.

use crate::bench_pod::{APP, Arrival, BenchPod, backends};
use remora_net::socket::TcpOptions;
use remora_rules::options::Backend;
use remora_testkit::Actor;
use std::net::{IpAddr, SocketAddr};

const TYPICAL: &[&str] = &[
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    "-i",
    "*",
    "-x",
    "",
    "-b",
    "*",
    "-d",
    "15090,9090",
    "--dual-stack",
];

fn at(ip: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

fn everywhere(ipv6: bool) -> IpAddr {
    if ipv6 {
        "2001:db8::7".parse().unwrap()
    } else {
        "192.0.2.7".parse().unwrap()
    }
}

fn loopback(ipv6: bool) -> IpAddr {
    if ipv6 {
        "::1".parse().unwrap()
    } else {
        "127.0.0.1".parse().unwrap()
    }
}

fn passthrough(ipv6: bool) -> IpAddr {
    if ipv6 {
        "::6".parse().unwrap()
    } else {
        "127.0.0.6".parse().unwrap()
    }
}

/// Runs a check for every back end and family.
fn for_all(check: impl Fn(Backend, bool)) {
    for backend in backends() {
        for ipv6 in [false, true] {
            check(backend, ipv6);
        }
    }
}

#[track_caller]
fn expect(arrival: &Arrival, name: &str, original: Option<SocketAddr>, what: &str) {
    assert_eq!(arrival.name(), name, "{what}");
    if let (Some(wanted), Arrival::At { original, .. }) = (original, arrival) {
        assert_eq!(*original, Some(wanted), "{what}: original destination");
    }
}

#[test]
fn redirect_captures_what_istio_captures() {
    for_all(|backend, ipv6| {
        let what = |text: &str| format!("{text} ({backend:?}, ipv6 {ipv6})");
        let pod = BenchPod::new();
        pod.install(backend, TYPICAL);
        let own = pod.lab.eth0.pod(ipv6);
        let far = at(everywhere(ipv6), 8080);

        let arrival = pod.connect(&pod.app, far);
        expect(&arrival, "out", Some(far), &what("the application calls out"));
        let arrival = pod.connect(&pod.world, at(own, 8080));
        expect(&arrival, "in", Some(at(own, 8080)), &what("somebody calls in"));
        let Arrival::At { from, .. } = &arrival else {
            unreachable!()
        };
        assert_eq!(
            from.ip(),
            pod.lab.eth0.peer(ipv6),
            "{}",
            what("the caller's address is kept")
        );
        expect(
            &pod.connect(&pod.world, at(own, 9090)),
            "app",
            None,
            &what("an excluded inbound port"),
        );
        expect(
            &pod.connect(&pod.proxy, far),
            "world",
            None,
            &what("the proxy calls out"),
        );
        expect(
            &pod.connect(&pod.app, at(loopback(ipv6), 80)),
            "app",
            None,
            &what("the application calls loopback"),
        );
        expect(
            &pod.connect(&pod.app, at(own, 80)),
            "app",
            None,
            &what("the application calls its own address"),
        );
        let arrival = pod.connect(&pod.proxy, at(own, 80));
        expect(
            &arrival,
            "in",
            Some(at(own, 80)),
            &what("the proxy calls its own pod"),
        );
        let bound = TcpOptions {
            bind: Some(at(passthrough(ipv6), 0)),
            ..TcpOptions::default()
        };
        let arrival = pod.connect_with(&pod.proxy, at(own, 80), bound);
        expect(
            &arrival,
            "app",
            None,
            &what("the proxy passes a connection through"),
        );
        let Arrival::At { from, .. } = &arrival else {
            unreachable!()
        };
        assert_eq!(from.ip(), passthrough(ipv6));
        let group = Actor::new(&pod.lab.pod, APP.0, 1337);
        expect(
            &pod.connect(&group, far),
            "world",
            None,
            &what("the proxy's group under another user"),
        );
        assert_eq!(
            pod.query(&pod.app, at(everywhere(ipv6), 53)).as_deref(),
            Some("world"),
            "no DNS capture asked for"
        );
    });
}

#[test]
fn without_a_proxy_captured_connections_are_refused() {
    for_all(|backend, ipv6| {
        let pod = BenchPod::without_proxy();
        pod.install(backend, TYPICAL);
        let own = pod.lab.eth0.pod(ipv6);
        for (actor, to) in [
            (&pod.app, at(everywhere(ipv6), 8080)),
            (&pod.world, at(own, 8080)),
        ] {
            assert_eq!(
                pod.connect(actor, to).name(),
                "ConnectionRefused",
                "{backend:?} {to}"
            );
        }
        assert_eq!(pod.connect(&pod.world, at(own, 9090)).name(), "app");
        assert_eq!(
            pod.connect(&pod.proxy, at(everywhere(ipv6), 8080)).name(),
            "world"
        );
    });
}

#[test]
fn ports_ranges_and_interfaces_are_included_and_excluded() {
    for_all(|backend, ipv6| {
        let pod = BenchPod::new();
        let (other, addresses) = pod.lab.attach("net1", 2);
        let secondary = Actor::root(&other);
        let (included, excluded) = if ipv6 {
            ("2001:db8:1::/48", "2001:db8:1:2::/64")
        } else {
            ("198.51.0.0/16", "198.51.100.0/23")
        };
        let flags = [
            "-i",
            included,
            "-x",
            excluded,
            "-q",
            "7000,7100:7200",
            "-o",
            "8081",
            "-b",
            "8080,80",
            "-c",
            "net1",
            "--dual-stack",
        ];
        pod.install(backend, &flags);
        let ip = |v4: &str, v6: &str| -> IpAddr {
            if ipv6 {
                v6.parse().unwrap()
            } else {
                v4.parse().unwrap()
            }
        };
        let inside = ip("198.51.1.1", "2001:db8:1:1::1");
        let out = [
            (at(inside, 443), "out"),
            (at(inside, 8081), "world"),
            (at(ip("198.51.101.1", "2001:db8:1:2::1"), 443), "world"),
            (at(everywhere(ipv6), 443), "world"),
            (at(everywhere(ipv6), 7000), "out"),
            (at(everywhere(ipv6), 7001), "world"),
            (at(everywhere(ipv6), 7150), "out"),
            (at(everywhere(ipv6), 7201), "world"),
        ];
        for (to, name) in out {
            expect(
                &pod.connect(&pod.app, to),
                name,
                None,
                &format!("{backend:?} {to}"),
            );
        }
        let own = pod.lab.eth0.pod(ipv6);
        for (to, name) in [(at(own, 8080), "in"), (at(own, 80), "in"), (at(own, 9090), "app")] {
            expect(
                &pod.connect(&pod.world, to),
                name,
                None,
                &format!("{backend:?} inbound {to}"),
            );
        }
        let to = at(addresses.pod(ipv6), 8080);
        expect(
            &pod.connect(&secondary, to),
            "app",
            None,
            &format!("{backend:?} inbound on the excluded interface"),
        );
    });
}

#[test]
fn tproxy_keeps_both_addresses() {
    for_all(|backend, ipv6| {
        let what = |text: &str| format!("{text} ({backend:?}, ipv6 {ipv6})");
        let pod = BenchPod::new();
        pod.install(
            backend,
            &["-i", "*", "-b", "*", "-d", "9090", "-m", "TPROXY", "--dual-stack"],
        );
        let own = pod.lab.eth0.pod(ipv6);
        let arrival = pod.connect(&pod.world, at(own, 8080));
        expect(&arrival, "in", Some(at(own, 8080)), &what("somebody calls in"));
        let Arrival::At { from, .. } = &arrival else {
            unreachable!()
        };
        let client = *from;
        assert_eq!(client.ip(), pod.lab.eth0.peer(ipv6));

        // The proxy dials the application from the client's address; the answer must come back to it.
        let options = TcpOptions {
            bind: Some(at(client.ip(), 0)),
            transparent: true,
            mark: Some(1337),
            ..TcpOptions::default()
        };
        let privileged = Actor::root(&pod.lab.pod);
        let arrival = pod.connect_with(&privileged, at(own, 8080), options);
        expect(
            &arrival,
            "app",
            None,
            &what("the proxy speaks to the application as the client"),
        );
        let Arrival::At { from, pair, .. } = arrival else {
            unreachable!()
        };
        assert_eq!(
            from.ip(),
            client.ip(),
            "{}",
            what("the application sees the client")
        );
        let mut pair = pair;
        remora_testkit::exchange(&mut pair).expect("bytes both ways");

        expect(
            &pod.connect(&pod.world, at(own, 9090)),
            "app",
            None,
            &what("an excluded inbound port"),
        );
        expect(
            &pod.connect(&pod.app, at(everywhere(ipv6), 80)),
            "out",
            None,
            &what("the application calls out"),
        );
        expect(
            &pod.connect(&pod.app, at(own, 80)),
            "app",
            None,
            &what("the application calls its own address"),
        );
        expect(
            &pod.connect(&pod.proxy, at(own, 80)),
            "in",
            None,
            &what("the proxy calls its own pod"),
        );
        expect(
            &pod.connect(&pod.proxy, at(everywhere(ipv6), 80)),
            "world",
            None,
            &what("the proxy calls out"),
        );
    });
}

#[test]
fn tproxy_without_a_listener_never_reaches_the_application() {
    for backend in backends() {
        let pod = BenchPod::without_proxy();
        pod.install(backend, &["-i", "*", "-b", "*", "-m", "TPROXY", "--dual-stack"]);
        for ipv6 in [false, true] {
            let to = at(pod.lab.eth0.pod(ipv6), 8080);
            let result = pod
                .world
                .run(move || TcpOptions::default().connect(to, crate::bench_pod::SILENCE));
            assert_eq!(
                result.map(drop).map_err(|e| e.kind()),
                Err(std::io::ErrorKind::TimedOut),
                "{backend:?}"
            );
        }
    }
}

#[test]
fn name_queries_go_to_the_agent() {
    for_all(|backend, ipv6| {
        let pod = BenchPod::new();
        let (server, other) = if ipv6 {
            ("2001:db8::53", "2001:db8::54")
        } else {
            ("192.0.2.53", "192.0.2.54")
        };
        let (server, other): (IpAddr, IpAddr) = (server.parse().unwrap(), other.parse().unwrap());
        let text = server.to_string();
        pod.install(
            backend,
            &[
                "-i",
                "*",
                "-b",
                "*",
                "--redirect-dns",
                "--host-dns",
                &text,
                "--dual-stack",
            ],
        );
        let what = |text: &str| format!("{text} ({backend:?}, ipv6 {ipv6})");
        assert_eq!(
            pod.query(&pod.app, at(server, 53)).as_deref(),
            Some("dns"),
            "{}",
            what("query")
        );
        assert_eq!(
            pod.query(&pod.app, at(other, 53)).as_deref(),
            Some("world"),
            "{}",
            what("query to another server")
        );
        assert_eq!(
            pod.query(&pod.proxy, at(server, 53)).as_deref(),
            Some("world"),
            "{}",
            what("the agent's own query")
        );
        expect(
            &pod.connect(&pod.app, at(server, 53)),
            "dns",
            Some(at(server, 53)),
            &what("query over TCP"),
        );
        expect(
            &pod.connect(&pod.app, at(other, 53)),
            "out",
            None,
            &what("TCP to another server"),
        );
        pod.install(
            backend,
            &[
                "-i",
                "*",
                "-b",
                "*",
                "--redirect-dns",
                "--capture-all-dns",
                "--dual-stack",
            ],
        );
        assert_eq!(
            pod.query(&pod.app, at(other, 53)).as_deref(),
            Some("dns"),
            "{}",
            what("all queries")
        );
        assert_eq!(
            pod.query(&pod.proxy, at(other, 53)).as_deref(),
            Some("world"),
            "{}",
            what("the agent's own query")
        );
    });
}

#[test]
fn groups_of_processes_are_chosen() {
    for backend in backends() {
        let pod = BenchPod::new();
        let flags = ["-i", "*", "-b", "*"];
        let to = at(everywhere(false), 80);
        let group = |gid| Actor::new(&pod.lab.pod, 1000, gid);
        pod.try_install(backend, &flags, &[("ISTIO_OUTBOUND_OWNER_GROUPS", "202,203")])
            .unwrap();
        assert_eq!(pod.connect(&group(202), to).name(), "out", "{backend:?}");
        assert_eq!(pod.connect(&group(203), to).name(), "out", "{backend:?}");
        assert_eq!(pod.connect(&group(204), to).name(), "world", "{backend:?}");
        pod.try_install(
            backend,
            &flags,
            &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "202,root")],
        )
        .unwrap();
        assert_eq!(pod.connect(&group(202), to).name(), "world", "{backend:?}");
        assert_eq!(pod.connect(&group(204), to).name(), "out", "{backend:?}");
        assert_eq!(
            pod.connect(&group(0), to).name(),
            "world",
            "{backend:?}: a group by name"
        );
    }
}

#[test]
fn virtual_machines_count_as_outbound() {
    for_all(|backend, ipv6| {
        let pod = BenchPod::new();
        let (machine, addresses) = pod.lab.attach("vm0", 3);
        let machine = Actor::root(&machine);
        remora_testkit::forwarding(&pod.lab.pod);
        pod.install(backend, &["-i", "*", "-b", "*", "-k", "vm0", "--dual-stack"]);
        let far = at(everywhere(ipv6), 80);
        expect(
            &pod.connect(&machine, far),
            "out",
            Some(far),
            &format!("{backend:?} ipv6 {ipv6}"),
        );
        let own = at(addresses.pod(ipv6), 80);
        expect(
            &pod.connect(&machine, own),
            "out",
            Some(own),
            &format!("{backend:?} ipv6 {ipv6}"),
        );
    });
}
