//! Random flags and random packets: what the evaluator says, what the kernel does with the nftables rules, and
//! what it does with the iptables rules must be the same.

use crate::bench_pod::{BenchPod, WORLD, any_addresses, has_iptables, settings};
use remora_capture::iptables;
use remora_net::Namespace;
use remora_net::socket::TcpOptions;
use remora_rules::explain::{ConnectionState, Direction, Evaluator, Fate, Packet};
use remora_rules::options::{Backend, HostFacts};
use remora_rules::rule::Protocol;
use remora_rules::switch::State;
use remora_rules::{Plan, plan};
use remora_testkit::{Actor, LinkAddresses};
use std::net::{IpAddr, SocketAddr};

const FLAG_SETS: u64 = 40;
const PACKETS: usize = 30;
const PORTS: [u16; 7] = [53, 80, 443, 7000, 8080, 9090, 15008];
const OWNERS: [(u32, u32); 5] = [
    (1000, 1000),
    (1337, 1337),
    (1000, 1337),
    (2000, 202),
    (2000, 2000),
];

/// A small generator (xorshift), so that a failure names a seed that repeats it.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(sides).unwrap()).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }

    fn some(&mut self, from: &[&str]) -> String {
        let chosen: Vec<&str> = from.iter().copied().filter(|_| self.roll(3) == 0).collect();
        chosen.join(",")
    }
}

type Flags = (Vec<String>, Vec<(&'static str, String)>);

fn flags(dice: &mut Dice) -> Flags {
    const RANGES: [&str; 6] = [
        "192.0.2.0/24",
        "198.51.0.0/15",
        "127.0.0.53/32",
        "10.1.0.0/16",
        "2001:db8:1::/48",
        "fd00:1::/31",
    ];
    let tproxy = dice.roll(3) == 0;
    let mut flags: Vec<String> = Vec::new();
    let mut add = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    let list = dice.some(&["80", "8080", "7000:9090", "53"]);
    add("-b", if dice.roll(2) == 0 { "*".into() } else { list });
    add("-d", dice.some(&["80", "9090", "15008"]));
    let list = dice.some(&RANGES);
    let list = if dice.roll(6) == 0 {
        "0.0.0.0/0,::/0".into()
    } else {
        list
    };
    add("-i", if dice.roll(2) == 0 { "*".into() } else { list });
    add("-x", dice.some(&RANGES));
    add("-q", dice.some(&["80", "443:7000"]));
    add("-o", dice.some(&["53", "8080", "7000:7001"]));
    add("-u", dice.pick(&["1337", "1337,2000", "2000"]).into());
    add("-g", dice.pick(&["1337", "202", "1337,202"]).into());
    add(
        "-m",
        if tproxy {
            "TPROXY".into()
        } else {
            "REDIRECT".into()
        },
    );
    add("-c", dice.pick(&["", "", "net1", "net+"]).into());
    add("-k", dice.pick(&["", "", "vm0"]).into());
    add("--host-ipv6", dice.pick(&["yes", "yes", "no"]).into());
    match dice.roll(4) {
        0 => flags.extend(["--redirect-dns".into(), "--capture-all-dns".into()]),
        1 => flags.extend([
            "--redirect-dns".into(),
            "--host-dns".into(),
            "192.0.2.53,127.0.0.53,2001:db8::53".into(),
        ]),
        _ => {}
    }
    if dice.roll(4) == 0 {
        flags.push("--drop-invalid".into());
    }
    let mut env = Vec::new();
    if dice.roll(4) == 0 {
        env.push(("ISTIO_OUTBOUND_OWNER_GROUPS", dice.some(&["202", "1000", "2000"])));
    } else {
        env.push(("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", dice.some(&["202", "1000"])));
    }
    if dice.roll(4) == 0 {
        env.push(("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.0/8".into()));
    }
    (flags, env)
}

/// The sender, the packet, and where it goes without capture rules.
#[derive(Debug, Clone, Copy)]
struct Probe {
    packet: Packet<'static>,
    bind: Option<IpAddr>,
    sender: Sender,
    undisturbed: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Pod(u32, u32),
    World,
    Net1,
    Vm0,
}

const ETH0: LinkAddresses = LinkAddresses::numbered(1);
const NET1: LinkAddresses = LinkAddresses::numbered(2);
const VM0: LinkAddresses = LinkAddresses::numbered(3);

fn probe(dice: &mut Dice) -> Probe {
    if dice.roll(3) == 0 {
        inbound(dice)
    } else {
        outbound(dice)
    }
}

fn packet(
    direction: Direction<'static>,
    protocol: Protocol,
    source: IpAddr,
    to: SocketAddr,
) -> Packet<'static> {
    Packet {
        direction,
        protocol,
        source: SocketAddr::new(source, 40_000),
        destination: to,
        owner: None,
        mark: 0,
        connection_mark: 0,
        state: ConnectionState::New,
    }
}

fn outbound(dice: &mut Dice) -> Probe {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    // Destination, interface, source, where it ends up.
    let ways: [(IpAddr, &'static str, IpAddr, &'static str); 13] = [
        (ip("192.0.2.7"), "eth0", ETH0.pod(false), "world"),
        (ip("192.0.2.53"), "eth0", ETH0.pod(false), "world"),
        (ip("198.51.3.4"), "eth0", ETH0.pod(false), "world"),
        (ip("203.0.113.9"), "eth0", ETH0.pod(false), "world"),
        (ip("2001:db8:1::9"), "eth0", ETH0.pod(true), "world"),
        (ip("2001:db8::53"), "eth0", ETH0.pod(true), "world"),
        (NET1.peer(false), "net1", NET1.pod(false), "net1"),
        (NET1.peer(true), "net1", NET1.pod(true), "net1"),
        (ip("127.0.0.1"), "lo", ip("127.0.0.1"), "app"),
        (ip("127.0.0.53"), "lo", ip("127.0.0.1"), "app"),
        (ip("::1"), "lo", ip("::1"), "app"),
        (ETH0.pod(false), "lo", ETH0.pod(false), "app"),
        (ETH0.pod(true), "lo", ETH0.pod(true), "app"),
    ];
    let (to, interface, mut source, undisturbed) = ways[dice.roll(ways.len())];
    // DNS queries over UDP, to servers that are not on the pod's link.
    let udp = dice.roll(5) == 0 && undisturbed != "net1";
    let port = if udp { 53 } else { PORTS[dice.roll(PORTS.len())] };
    let mut bind = None;
    if interface == "lo" && dice.roll(4) == 0 {
        let passthrough = if to.is_ipv4() { ip("127.0.0.6") } else { ip("::6") };
        (bind, source) = (Some(passthrough), passthrough);
    }
    let owner = OWNERS[dice.roll(OWNERS.len())];
    let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
    let mut packet = packet(
        Direction::Out { interface },
        protocol,
        source,
        SocketAddr::new(to, port),
    );
    packet.owner = Some(owner);
    Probe {
        packet,
        bind,
        sender: Sender::Pod(owner.0, owner.1),
        undisturbed,
    }
}

fn inbound(dice: &mut Dice) -> Probe {
    let ipv6 = dice.roll(2) == 0;
    let far: IpAddr = if ipv6 { "2001:db8:1::9" } else { "192.0.2.7" }.parse().unwrap();
    let (sender, interface, source, to, undisturbed) = match dice.roll(4) {
        0 | 1 => (Sender::World, "eth0", ETH0.peer(ipv6), ETH0.pod(ipv6), "app"),
        2 => (Sender::Net1, "net1", NET1.peer(ipv6), NET1.pod(ipv6), "app"),
        _ if dice.roll(2) == 0 => (Sender::Vm0, "vm0", VM0.peer(ipv6), VM0.pod(ipv6), "app"),
        _ => (Sender::Vm0, "vm0", VM0.peer(ipv6), far, "world"),
    };
    let to = SocketAddr::new(to, PORTS[dice.roll(PORTS.len())]);
    let packet = packet(Direction::In { interface }, Protocol::Tcp, source, to);
    Probe {
        packet,
        bind: None,
        sender,
        undisturbed,
    }
}

fn predicted(plan: &Plan, probe: &Probe) -> &'static str {
    match Evaluator::new(plan, State::Closed).decide(&probe.packet).fate {
        Fate::Untouched => probe.undisturbed,
        Fate::Redirected(15001) => "out",
        Fate::Redirected(15006) | Fate::Transparent(15006) => "in",
        Fate::Redirected(15053) => "dns",
        other => panic!("no such outcome is possible here: {other:?}"),
    }
}

/// With TPROXY the answers to connections that the pod merely passes on are delivered to the pod itself, by
/// Istio's rules as by ours: such a connection begins as predicted and never completes.
fn answers_get_lost(plan: &Plan, probe: &Probe) -> bool {
    plan.route.is_some() && probe.sender == Sender::Vm0 && predicted(plan, probe) == "world"
}

/// A pod with three links, and all senders.
struct Surroundings {
    pod: BenchPod,
    owners: Vec<((u32, u32), Actor)>,
    net1: Actor,
    vm0: Actor,
}

impl Surroundings {
    fn new() -> Self {
        let mut pod = BenchPod::new();
        let (net1, _) = pod.lab.attach("net1", 2);
        let (vm0, _) = pod.lab.attach("vm0", 3);
        remora_testkit::forwarding(&pod.lab.pod);
        let beside = |namespace: &Namespace| {
            remora_testkit::answer_for_everyone(namespace, WORLD);
            Actor::root(namespace)
        };
        let (net1, vm0) = (beside(&net1), beside(&vm0));
        let root = Actor::root(&pod.lab.pod);
        for any in any_addresses() {
            pod.also_listen(&net1, "net1", SocketAddr::new(any, WORLD));
            for port in [443, 7000, 15008] {
                pod.also_listen(&root, "app", SocketAddr::new(any, port));
            }
        }
        let owners = OWNERS
            .iter()
            .map(|owner| (*owner, Actor::new(&pod.lab.pod, owner.0, owner.1)))
            .collect();
        Self {
            pod,
            owners,
            net1,
            vm0,
        }
    }

    /// The passthrough source must exist whether IPv6 is captured or not.
    fn add_passthrough(&self) {
        self.pod.root.run(|| {
            let mut socket = remora_net::link::socket().expect("netlink");
            let interface = remora_net::link::index("lo").expect("lo");
            let address = "::6".parse().expect("address");
            let wanted = remora_net::address::InterfaceAddress {
                interface,
                address,
                prefix: 128,
            };
            match remora_net::address::add(&mut socket, wanted) {
                Err(error) if !error.exists() => panic!("add ::6: {error}"),
                _ => {}
            }
        });
    }

    fn observed(&self, probe: &Probe) -> String {
        let sender = match probe.sender {
            Sender::World => &self.pod.world,
            Sender::Net1 => &self.net1,
            Sender::Vm0 => &self.vm0,
            Sender::Pod(uid, gid) => {
                &self
                    .owners
                    .iter()
                    .find(|(owner, _)| *owner == (uid, gid))
                    .unwrap()
                    .1
            }
        };
        match probe.packet.protocol {
            Protocol::Tcp => {
                let bind = probe.bind.map(|ip| SocketAddr::new(ip, 0));
                let options = TcpOptions {
                    bind,
                    ..TcpOptions::default()
                };
                self.pod
                    .connect_with(sender, probe.packet.destination, options)
                    .name()
            }
            Protocol::Udp => self
                .pod
                .query_from(sender, probe.bind, probe.packet.destination)
                .unwrap_or_else(|| "nowhere".into()),
        }
    }
}

/// What the programs list when nothing is captured.
const EMPTY: Plan = Plan {
    ipv4: Vec::new(),
    ipv6: None,
    route: None,
};

#[test]
fn evaluator_nftables_and_iptables_agree() {
    let has_programs = has_iptables();
    for seed in 1..=FLAG_SETS {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (given, env) = flags(&mut dice);
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let resolved =
            settings(Backend::Nftables, &given, &env).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let plan = plan(&resolved.intent(&HostFacts::default()).0);
        let probes: Vec<Probe> = (0..PACKETS).map(|_| probe(&mut dice)).collect();
        let program = if seed % 2 == 0 {
            Backend::IptablesNft
        } else {
            Backend::IptablesLegacy
        };
        for backend in [Backend::Nftables]
            .into_iter()
            .chain(has_programs.then_some(program))
        {
            let surroundings = Surroundings::new();
            surroundings
                .pod
                .try_install(backend, &given, &env)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            if backend != Backend::Nftables {
                let listed = surroundings
                    .pod
                    .root
                    .run(iptables::plan)
                    .expect("listed rules")
                    .unwrap_or(EMPTY);
                for probe in &probes {
                    let fate = |plan: &Plan| Evaluator::new(plan, State::Closed).decide(&probe.packet).fate;
                    assert_eq!(
                        fate(&listed),
                        fate(&plan),
                        "seed {seed} as {backend:?} lists it\nflags {given:?}\n{probe:?}"
                    );
                }
            }
            surroundings.add_passthrough();
            for probe in probes.iter().filter(|probe| !answers_get_lost(&plan, probe)) {
                let (predicted, observed) = (predicted(&plan, probe), surroundings.observed(probe));
                assert_eq!(
                    observed, predicted,
                    "seed {seed} {backend:?}\nflags {given:?}\nenvironment {env:?}\n{probe:?}"
                );
            }
        }
    }
}
