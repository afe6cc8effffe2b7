//! How long it takes to capture a pod's traffic, beside the programs others use for it.
//!
//! `cargo bench -p remora --bench capture` (as root; needs the programs of Debian's `iptables` and `nftables`).
//! Every run happens in a network namespace of its own, the contenders take turns, and the typical dual-stack
//! rules are put in: by this program, by `iptables-restore` and then `ip6tables-restore` as Istio does it, and
//! by `nft -f` with the same rules as ours. "Active" is when the kernel has the rules of both families, seen
//! from outside by a thread that does nothing but look.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a program for people who measure"
)]

use remora_capture::apply::Nftables;
use remora_capture::ruleset::{ruleset, script};
use remora_net::Namespace;
use remora_net::nft::Connection;
use remora_rules::explain::{ConnectionState, Direction, Evaluator, Packet};
use remora_rules::options::{Environment, HostFacts, Settings, parse_argv};
use remora_rules::rule::Protocol;
use remora_rules::switch::State;
use remora_rules::{Plan, plan, render};
use remora_testkit::Actor;
use std::hint::black_box;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const ROUNDS: usize = 40;
const FLAGS: &[&str] = &[
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
    "15090,15021,15020",
    "--host-ipv6",
    "yes",
];

fn typical() -> Plan {
    let settings = Settings::read(&parse_argv(FLAGS).unwrap(), &Environment::new()).unwrap();
    plan(&settings.intent(&HostFacts::default()).0)
}

/// One process: what to run, what to feed it.
struct Step {
    command: Vec<String>,
    input: String,
}

struct Contender {
    name: &'static str,
    steps: Vec<Step>,
    /// Whether the rules of both families are there.
    active: fn(&mut Connection) -> bool,
}

fn contenders() -> Vec<Contender> {
    let plan = typical();
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let ours = |connection: &mut Connection| {
        connection
            .tables()
            .is_ok_and(|tables| tables.iter().any(|t| t.name == "remora"))
    };
    let theirs = |connection: &mut Connection| {
        let chains = connection.all_chains().unwrap_or_default();
        chains.iter().filter(|(_, chain)| chain == "ISTIO_OUTPUT").count() == 2
    };
    // Another build of the program (static, say) can be measured in place of this one.
    let other = std::env::var_os("REMORA_BENCH_BINARY").and_then(|path| path.into_string().ok());
    let program = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_remora").to_owned());
    let remora = [&[program.as_str(), "istio-iptables"], FLAGS].concat();
    let restore = |name: &str, rules| Step {
        command: words(&[name, "--noflush"]),
        input: render::restore(rules),
    };
    let script = script::script(&ruleset(&plan), State::Closed);
    vec![
        Contender {
            name: "remora",
            steps: vec![Step {
                command: words(&remora),
                input: String::new(),
            }],
            active: ours,
        },
        Contender {
            name: "iptables-restore + ip6tables-restore",
            steps: vec![
                restore("iptables-restore", &plan.ipv4),
                restore("ip6tables-restore", plan.ipv6.as_ref().unwrap()),
            ],
            active: theirs,
        },
        Contender {
            name: "nft -f",
            steps: vec![Step {
                command: words(&["nft", "-f", "-"]),
                input: script,
            }],
            active: ours,
        },
    ]
}

/// From exec to rules active, and to the end of the last process.
fn once(contender: &Contender) -> (Duration, Duration) {
    let namespace = Namespace::create().expect("run as root");
    let watcher = Actor::root(&namespace);
    let active = contender.active;
    let (ready, go) = channel();
    let (seen, when) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            watcher.run(move || {
                let mut connection = Connection::open().unwrap();
                ready.send(()).unwrap();
                while !active(&mut connection) {}
                seen.send(Instant::now()).unwrap();
            });
        });
        go.recv().unwrap();
        let start = Instant::now();
        for step in &contender.steps {
            let (command, input) = (step.command.clone(), step.input.clone());
            namespace
                .run(move || {
                    let mut child = Command::new(&command[0])
                        .args(&command[1..])
                        .env_clear()
                        .env("PATH", "/usr/sbin:/usr/bin")
                        .stdin(Stdio::piped())
                        .stderr(Stdio::null())
                        .spawn()
                        .unwrap();
                    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                    assert!(child.wait().unwrap().success(), "{command:?}");
                })
                .unwrap();
        }
        let whole = start.elapsed();
        (when.recv().unwrap() - start, whole)
    })
}

fn median(mut times: Vec<Duration>) -> (f64, f64, f64) {
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    (
        ms(times[times.len() / 2]),
        ms(times[0]),
        ms(times[times.len() - 1]),
    )
}

fn line(name: &str, times: Vec<Duration>) -> f64 {
    let (middle, least, most) = median(times);
    println!("  {name:<42} {middle:9.3} ms   ({least:.3} - {most:.3})");
    middle
}

fn processes() {
    let contenders = contenders();
    let mut active = vec![Vec::new(); contenders.len()];
    let mut whole = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (index, contender) in contenders.iter().enumerate() {
            let (first, second) = once(contender);
            active[index].push(first);
            whole[index].push(second);
        }
    }
    for (title, times) in [("from exec to rules active", active), ("whole process", whole)] {
        println!("{title} (median of {ROUNDS}, least - most)");
        let middles: Vec<f64> = contenders
            .iter()
            .zip(times)
            .map(|(contender, times)| line(contender.name, times))
            .collect();
        for (contender, middle) in contenders.iter().zip(&middles).skip(1) {
            println!(
                "  remora is {:.1} x faster than {}",
                middle / middles[0],
                contender.name
            );
        }
    }
}

fn in_process() {
    println!("in one process, over an open connection (median of 200, least - most)");
    let namespace = Namespace::create().expect("run as root");
    Actor::root(&namespace).run(|| {
        let plan = typical();
        let mut nftables = Nftables::open().unwrap();
        let mut timed = |name: &str, work: &mut dyn FnMut(&mut Nftables, usize)| {
            let times = (0..200).map(|round| {
                let start = Instant::now();
                work(&mut nftables, round);
                start.elapsed()
            });
            line(name, times.collect())
        };
        timed("plan, encode, replace the rules", &mut |nftables, _| {
            nftables.replace(&ruleset(&plan), State::Closed).unwrap();
        });
        timed("flip the switch", &mut |nftables, round| {
            let state = if round % 2 == 0 { State::On } else { State::Hold };
            nftables.switch(state).unwrap();
        });
        timed("read the rules back and compare", &mut |nftables, _| {
            assert!(
                remora_capture::verify::verify(nftables, &ruleset(&plan))
                    .unwrap()
                    .is_empty()
            );
        });
    });
}

fn explain_rate() {
    const TOTAL: usize = 5_000_000;
    let plan = typical();
    let evaluator = Evaluator::new(&plan, State::On);
    let packets: Vec<Packet<'_>> = (0..1024u16)
        .map(|n| {
            let [high, low] = n.to_be_bytes();
            let destination = SocketAddr::new(IpAddr::from([10, 96, high, low]), 1 + n);
            let outward = n % 3 != 0;
            Packet {
                direction: if outward {
                    Direction::Out { interface: "eth0" }
                } else {
                    Direction::In { interface: "eth0" }
                },
                protocol: if n % 7 == 0 { Protocol::Udp } else { Protocol::Tcp },
                source: SocketAddr::new(IpAddr::from([10, 1, 0, 2]), 40_000),
                destination,
                owner: outward.then_some(if n % 5 == 0 { (1337, 1337) } else { (1000, 1000) }),
                mark: 0,
                connection_mark: 0,
                state: ConnectionState::New,
            }
        })
        .collect();
    let start = Instant::now();
    for packet in packets.iter().cycle().take(TOTAL) {
        black_box(evaluator.decide(black_box(packet)));
    }
    let rate = TOTAL as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("explain: {rate:.1} M packets/s on one core");
}

fn main() {
    processes();
    in_process();
    explain_rate();
}
