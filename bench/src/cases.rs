//! What is measured.

use crate::contender::{Contender, Running, Way, remora};
use crate::load::{self, Outcome};
use crate::process::Usage;
use crate::table::Numbers;
use crate::world::World;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Of one load.
    pub seconds: f64,
    /// Of everything.
    pub repetitions: usize,
}

impl Effort {
    fn during(self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

fn used(running: &Running) -> Usage {
    let all = running.proxies.iter().map(|proxy| proxy.usage());
    all.fold(Usage::default(), |sum, one| Usage {
        user: sum.user + one.user,
        system: sum.system + one.system,
    })
}

/// Runs a load; gives what came of it and what the proxies used: user and system seconds.
fn measured(running: &Running, work: impl FnOnce() -> Outcome) -> (Outcome, Usage) {
    let before = used(running);
    let outcome = work();
    let after = used(running);
    let usage = Usage {
        user: after.user - before.user,
        system: after.system - before.system,
    };
    (outcome, usage)
}

/// The loads of [`steady`].
pub const LOADS: [&str; 4] = ["closed", "rate", "connections", "bulk"];

/// Requests, latency, new connections and bytes of one contender, once.
pub fn steady(
    world: &World,
    who: &Contender,
    way: Way,
    effort: Effort,
    loads: &[String],
    numbers: &mut Numbers,
) {
    let row = format!("{} {}", who.name(), way.name());
    let running = who.start(world, way, 0);
    let (to, uid, during) = (who.http(), who.uid(), effort.during());
    world.load(uid, move || load::closed(to, 32, Duration::from_millis(300)));
    let mut failed = 0;
    for name in loads {
        let mut add = |column, value| numbers.add(&row, column, value);
        let (outcome, usage) = measured(&running, || {
            let (sink, swallowed) = (who.sink(), Arc::clone(&world.swallowed));
            match name.as_str() {
                "closed" => world.load(uid, move || load::closed(to, 32, during)),
                "rate" => world.load(uid, move || load::rate(to, 16, 2000.0, during)),
                "connections" => world.load(uid, move || load::connections(to, 16, during)),
                _ => world.load(uid, move || load::bulk(sink, during, &swallowed)),
            }
        });
        let each = usage.total() * 1e6 / outcome.done as f64;
        match name.as_str() {
            "closed" => {
                add("rps", outcome.per_second());
                add("cpu_request", each);
                add("kernel", usage.system / usage.total());
            }
            "rate" => {
                add("p50", outcome.percentile(0.5));
                add("p99", outcome.percentile(0.99));
            }
            "connections" => {
                add("connections", outcome.per_second());
                add("cpu_connection", each);
            }
            _ => {
                add("gbit", outcome.per_second() * 8.0 / 1e9);
                add("cpu_gb", each * 1e3);
            }
        }
        failed += outcome.failed;
    }
    numbers.add(&row, "failed", failed as f64);
}

/// From the start of the program to the first answer through it, and its memory a second later.
pub fn start(world: &World, who: &Contender, way: Way, services: usize, numbers: &mut Numbers) {
    let row = format!("{} {}, {services} services", who.name(), way.name());
    let mut running = who.start_server(world, way, services);
    settle(&running);
    let (to, uid) = (who.http(), who.uid());
    let prepare = world.preparation(uid);
    let (go, wait) = channel();
    // The one who asks is ready before the program starts.
    let asking = std::thread::spawn(move || {
        prepare();
        wait.recv().expect("start");
        load::first_answer(to, Duration::from_secs(30), Duration::from_micros(200))
    });
    who.start_client(world, way, services, &mut running);
    go.send(()).expect("start");
    let answered = asking.join().expect("load").expect("an answer");
    let client = &running.proxies[0];
    numbers.add(&row, "first", (answered - client.started).as_secs_f64() * 1e3);
    numbers.add(&row, "first_cpu", client.exact() * 1e3);
    std::thread::sleep(Duration::from_secs(1));
    let memory = client.memory();
    numbers.add(&row, "idle", memory.resident / 1024.0);
    numbers.add(&row, "idle_dirty", memory.dirty / 1024.0);
}

/// Waits until the programs have nothing to do.
fn settle(running: &Running) {
    let exact = || running.proxies.iter().map(|proxy| proxy.exact()).sum::<f64>();
    let mut before = -1.0;
    for _ in 0..100 {
        let now = exact();
        if now > 0.0 && now - before < 0.001 {
            return;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Memory of both proxies with so many idle connections.
fn idle(world: &World, who: &Contender, running: &Running, connections: usize) -> [f64; 2] {
    let (to, uid) = (who.http(), who.uid());
    let enough = Arc::new(AtomicBool::new(false));
    let (told, opened) = channel();
    let (prepare, stop) = (world.preparation(uid), Arc::clone(&enough));
    let holding = std::thread::spawn(move || {
        prepare();
        load::hold(to, connections, &stop, |count| told.send(count).expect("told"));
    });
    let count = opened.recv().expect("connections");
    assert_eq!(
        count,
        connections,
        "{} did not hold {connections} connections",
        who.name()
    );
    std::thread::sleep(Duration::from_millis(500));
    let memory = [0, 1].map(|place| running.proxies[place].memory().resident);
    enough.store(true, Ordering::Relaxed);
    holding.join().expect("load");
    memory
}

/// KB for each idle connection, on each side.
pub fn connections(world: &World, who: &Contender, way: Way, numbers: &mut Numbers) {
    let row = format!("{} {}", who.name(), way.name());
    let running = who.start(world, way, 0);
    let few = idle(world, who, &running, 100);
    let many = idle(world, who, &running, 1000);
    numbers.add(&row, "kb_client", (many[0] - few[0]) / 900.0);
    numbers.add(&row, "kb_server", (many[1] - few[1]) / 900.0);
}

/// How remora grows with what it knows.
pub fn services(world: &World, who: &Contender, count: usize, effort: Effort, numbers: &mut Numbers) {
    let row = format!("{count} services");
    let running = who.start(world, Way::Mtls, count);
    settle(&running);
    let (to, uid, during) = (who.http(), who.uid(), effort.during());
    // As at the start: when what only the start needed has been given back.
    std::thread::sleep(Duration::from_secs(1));
    numbers.add(&row, "idle", running.proxies[0].memory().resident / 1024.0);
    let (closed, usage) = measured(&running, || world.load(uid, move || load::closed(to, 32, during)));
    numbers.add(&row, "cpu_request", usage.total() * 1e6 / closed.done as f64);
    settle(&running);
    let before = running.proxies[0].exact();
    let rounds = 5;
    for version in 1..=rounds {
        world.write("mesh.yaml", &remora::mesh(Way::Mtls, count, version));
        std::thread::sleep(Duration::from_millis(300 + count as u64 / 5));
        settle(&running);
    }
    let cost = (running.proxies[0].exact() - before) / rounds as f64;
    numbers.add(&row, "update", cost * 1e6);
}

/// How remora grows with open connections.
pub fn open_connections(world: &World, who: &Contender, count: usize, effort: Effort, numbers: &mut Numbers) {
    let row = format!("{count} connections");
    let running = who.start(world, Way::Mtls, 0);
    let (to, uid, during) = (who.http(), who.uid(), effort.during());
    let enough = Arc::new(AtomicBool::new(false));
    let (told, opened) = channel();
    let (prepare, stop) = (world.preparation(uid), Arc::clone(&enough));
    let holding = std::thread::spawn(move || {
        prepare();
        load::hold(to, count, &stop, |count| told.send(count).expect("told"));
    });
    assert_eq!(
        opened.recv().expect("connections"),
        count,
        "connections were refused"
    );
    settle(&running);
    numbers.add(&row, "client", running.proxies[0].memory().resident / 1024.0);
    numbers.add(&row, "server", running.proxies[1].memory().resident / 1024.0);
    let (closed, usage) = measured(&running, || world.load(uid, move || load::closed(to, 32, during)));
    numbers.add(&row, "cpu_request", usage.total() * 1e6 / closed.done as f64);
    enough.store(true, Ordering::Relaxed);
    holding.join().expect("load");
}
