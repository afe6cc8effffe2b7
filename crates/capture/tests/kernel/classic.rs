//! The configurations that the command of Istio 1.5 was tested with, by what they do to packets.
//!
//! Where today's rules deliberately differ from that time's, the expectation is today's: inbound ports that
//! are listed go to the inbound port (then: to the outbound one), a virtual machine's IPv6 is redirected like
//! its IPv4 (then: returned by mistake), and nothing is exempt but what is said (then: port 22).

use crate::bench_pod::{BenchPod, backends};
use remora_testkit::Actor;
use std::net::{IpAddr, SocketAddr};

/// Who connects.
#[derive(Debug, Clone, Copy)]
enum Who {
    App,
    /// This user and group.
    User(u32, u32),
    World,
    Machine,
}

/// Where to.
#[derive(Debug, Clone, Copy)]
enum To {
    /// An address in the range that some cases include.
    Inside,
    /// Any other address.
    Far,
    /// The pod's own address.
    Own,
    Loopback,
}

struct Case {
    name: &'static str,
    flags: &'static [&'static str],
    ipv6: bool,
    outcomes: &'static [(Who, To, u16, &'static str)],
}

const PROXY: Who = Who::User(1337, 1337);

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { name: "IPv6, no inbound ports", flags: &["-b", ""], ipv6: true, outcomes: &[
        (Who::World, To::Own, 80, "app"), (Who::App, To::Far, 80, "world"), (PROXY, To::Own, 80, "in"), (Who::App, To::Own, 80, "app"),
    ] },
    Case { name: "IPv6, inbound ports", flags: &["-b", "80,8080"], ipv6: true, outcomes: &[
        (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 8080, "in"), (Who::World, To::Own, 9090, "app"), (Who::App, To::Far, 80, "world"),
    ] },
    Case { name: "IPv6, all destinations, virtual machines", flags: &["-b", "80", "-i", "*", "-k", "eth9,vm0"], ipv6: true, outcomes: &[
        (Who::App, To::Far, 80, "out"), (PROXY, To::Far, 80, "world"), (Who::App, To::Loopback, 80, "app"), (Who::Machine, To::Far, 443, "out"),
    ] },
    Case { name: "IPv6, ranges", flags: &["-b", "80", "-d", "8080", "-i", "2001:db8:a::/48", "-k", "eth9,vm0"], ipv6: true, outcomes: &[
        (Who::App, To::Inside, 80, "out"), (Who::App, To::Far, 80, "world"), (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 8080, "app"),
        (Who::Machine, To::Inside, 80, "out"), (Who::Machine, To::Far, 80, "world"),
    ] },
    Case { name: "IPv6, users and groups", flags: &["-b", "80", "-u", "3,4", "-g", "1,2", "-i", "2001:db8:a::/48"], ipv6: true, outcomes: &[
        (Who::User(3, 9), To::Inside, 80, "world"), (Who::User(4, 9), To::Inside, 80, "world"), (Who::User(9, 1), To::Inside, 80, "world"),
        (Who::User(9, 2), To::Inside, 80, "world"), (PROXY, To::Inside, 80, "out"), (Who::User(3, 9), To::Own, 80, "in"),
    ] },
    Case { name: "all destinations", flags: &["-i", "*"], ipv6: false, outcomes: &[
        (Who::App, To::Far, 80, "out"), (Who::App, To::Loopback, 80, "app"), (Who::App, To::Own, 80, "app"), (PROXY, To::Far, 80, "world"), (Who::World, To::Own, 80, "app"),
    ] },
    Case { name: "all destinations, virtual machines", flags: &["-i", "*", "-k", "eth9,vm0"], ipv6: false, outcomes: &[
        (Who::Machine, To::Far, 80, "out"), (Who::Machine, To::Own, 80, "out"), (Who::World, To::Own, 80, "app"), (Who::App, To::Far, 80, "out"),
    ] },
    Case { name: "ranges", flags: &["-i", "198.51.100.0/24"], ipv6: false, outcomes: &[
        (Who::App, To::Inside, 80, "out"), (Who::App, To::Far, 80, "world"), (PROXY, To::Inside, 80, "world"),
    ] },
    Case { name: "ranges, virtual machines", flags: &["-i", "198.51.100.0/24", "-k", "eth9,vm0"], ipv6: false, outcomes: &[
        (Who::Machine, To::Inside, 80, "out"), (Who::Machine, To::Far, 80, "world"), (Who::App, To::Inside, 80, "out"),
    ] },
    Case { name: "inbound ports", flags: &["-b", "80,8080"], ipv6: false, outcomes: &[
        (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 8080, "in"), (Who::World, To::Own, 9090, "app"),
    ] },
    Case { name: "all inbound ports", flags: &["-b", "*"], ipv6: false, outcomes: &[
        (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 9090, "in"), (Who::App, To::Own, 80, "app"),
    ] },
    Case { name: "inbound ports, TPROXY", flags: &["-b", "80,8080", "-m", "TPROXY"], ipv6: false, outcomes: &[
        (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 8080, "in"), (Who::World, To::Own, 9090, "app"),
    ] },
    Case { name: "all inbound ports, TPROXY", flags: &["-b", "*", "-m", "TPROXY"], ipv6: false, outcomes: &[
        (Who::World, To::Own, 80, "in"), (Who::World, To::Own, 9090, "in"), (Who::App, To::Own, 80, "app"),
    ] },
    Case { name: "users and groups", flags: &["-i", "*", "-u", "3,4", "-g", "1,2"], ipv6: false, outcomes: &[
        (Who::User(3, 9), To::Far, 80, "world"), (Who::User(4, 9), To::Far, 80, "world"), (Who::User(9, 1), To::Far, 80, "world"),
        (Who::User(9, 2), To::Far, 80, "world"), (PROXY, To::Far, 80, "out"), (Who::User(3, 9), To::Own, 80, "in"),
    ] },
    Case { name: "no inbound ports", flags: &["-b", ""], ipv6: false, outcomes: &[
        (Who::World, To::Own, 80, "app"), (Who::World, To::Own, 8080, "app"), (Who::App, To::Far, 80, "world"),
    ] },
];

fn address(pod: &BenchPod, case: &Case, who: Who, to: To) -> IpAddr {
    let pick = |v4: &str, v6: &str| -> IpAddr { if case.ipv6 { v6 } else { v4 }.parse().unwrap() };
    match (to, who) {
        (To::Inside, _) => pick("198.51.100.7", "2001:db8:a::7"),
        (To::Far, _) => pick("192.0.2.7", "2001:db8:b::7"),
        (To::Loopback, _) => pick("127.0.0.1", "::1"),
        (To::Own, Who::Machine) => pick("10.3.0.2", "fd00:3::2"),
        (To::Own, _) => pod.lab.eth0.pod(case.ipv6),
    }
}

#[test]
fn the_classic_configurations_capture_the_same_packets() {
    for case in CASES {
        for backend in backends() {
            let pod = BenchPod::new();
            let (machine, _) = pod.lab.attach("vm0", 3);
            let machine = Actor::root(&machine);
            remora_testkit::forwarding(&pod.lab.pod);
            let family = ["--host-ipv6", if case.ipv6 { "yes" } else { "no" }];
            pod.install(backend, &[case.flags, &family].concat());
            for (who, to, port, wanted) in case.outcomes {
                let user;
                let sender = match who {
                    Who::App => &pod.app,
                    Who::World => &pod.world,
                    Who::Machine => &machine,
                    Who::User(uid, gid) => {
                        user = Actor::new(&pod.lab.pod, *uid, *gid);
                        &user
                    }
                };
                let to_address = SocketAddr::new(address(&pod, case, *who, *to), *port);
                let arrived = pod.connect(sender, to_address).name();
                assert_eq!(
                    arrived, *wanted,
                    "{} ({backend:?}): {who:?} to {to_address}",
                    case.name
                );
            }
        }
    }
}
