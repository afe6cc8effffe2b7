//! Measures remora beside Envoy, nginx and nothing at all. See README.md.

mod cases;
mod certificates;
mod chart;
mod contender;
mod load;
mod origin;
mod place;
mod process;
mod report;
mod table;
mod world;

use cases::Effort;
use contender::{Contender, Way, nginx};
use std::path::PathBuf;
use world::World;

const USAGE: &str = "\
usage: bench/run [OPTIONS] [PART...]

Parts: steady (requests, latency, new connections, bytes), start (time to the first answer, idle memory),
connections (memory for each), services and open (growth; remora only), sidecar (from exec to ready, and what a wait
adds; bench/run knows it). All by default.
On their own: control, pods, and soak, faults and floods, which count what is lost while things fail (see README.md).

  --remora PATH      the binary (bench/run builds one)
  --envoy PATH       Envoy; looked for in PATH otherwise, left out if there is none
  --also NAME=PATH   another build of remora to compare with, as often as you like
  --only NAMES       contenders, separated by commas: direct,remora,envoy,nginx
  --ways NAMES       plain,mtls
  --loads NAMES      of steady: closed,rate,connections,bulk
  --repetitions N    how often everything is measured (5)
  --seconds S        how long each load lasts (1.5)
  --realtime         ahead of other programs of the machine (SCHED_RR)
  --out DIRECTORY    where results go (bench/results)
  --words TEXT       about the machine, for the report
";

/// What was asked for.
struct Options {
    remora: PathBuf,
    envoy: Option<PathBuf>,
    also: Vec<(String, PathBuf)>,
    only: Vec<String>,
    ways: Vec<Way>,
    loads: Vec<String>,
    parts: Vec<String>,
    effort: Effort,
    realtime: bool,
    out: PathBuf,
    words: String,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        remora: PathBuf::new(),
        envoy: None,
        also: Vec::new(),
        only: Vec::new(),
        ways: vec![Way::Plain, Way::Mtls],
        loads: cases::LOADS.map(str::to_owned).into(),
        parts: Vec::new(),
        effort: Effort {
            seconds: 1.5,
            repetitions: 5,
        },
        realtime: false,
        out: "bench/results".into(),
        words: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let wrong = || format!("{word} needs a number");
        match word.as_str() {
            "--remora" => options.remora = value()?.into(),
            "--envoy" => options.envoy = Some(value()?.into()),
            "--also" => options.also.push(another(&value()?)?),
            "--ways" => {
                let names = value()?;
                let asked = |way: &Way| names.split(',').any(|name| name.eq_ignore_ascii_case(way.name()));
                options.ways.retain(asked);
            }
            "--only" => options.only = value()?.split(',').map(str::to_lowercase).collect(),
            "--loads" => options.loads = value()?.split(',').map(str::to_owned).collect(),
            "--repetitions" => options.effort.repetitions = value()?.parse().map_err(|_| wrong())?,
            "--seconds" => options.effort.seconds = value()?.parse().map_err(|_| wrong())?,
            "--realtime" => options.realtime = true,
            "--out" => options.out = value()?.into(),
            "--words" => options.words = value()?,
            "steady" | "start" | "connections" | "services" | "open" => options.parts.push(word),
            _ => return Err(USAGE.to_owned()),
        }
    }
    if options.remora.as_os_str().is_empty() {
        return Err(USAGE.to_owned());
    }
    Ok(options)
}

fn another(words: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = words.split_once('=').ok_or("--also needs NAME=PATH")?;
    if name.is_empty() || name.contains(' ') {
        return Err(format!("--also: {name:?} is no name"));
    }
    Ok((name.to_owned(), path.into()))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

fn contenders(options: &Options) -> Result<Vec<Contender>, String> {
    let mut all = vec![Contender::Direct];
    let own = ("remora".to_owned(), options.remora.clone());
    for (name, path) in std::iter::once(&own).chain(&options.also) {
        if !path.is_file() {
            return Err(format!("{name}: there is no program {}", path.display()));
        }
        // A build often lies where only its builder can look, and the proxy's user has to start it.
        all.push(Contender::Remora(name.clone(), remora_testkit::reachable(path)));
    }
    all.extend(
        options
            .envoy
            .clone()
            .or_else(|| in_path("envoy"))
            .map(Contender::Envoy),
    );
    if nginx::installed() {
        all.push(Contender::Nginx);
    }
    all.retain(|one| options.only.is_empty() || options.only.contains(&one.name().to_lowercase()));
    Ok(all)
}

fn main() {
    if let Err(words) = run() {
        eprintln!("{words}");
        std::process::exit(2);
    }
}

fn run() -> Result<(), String> {
    let options = options()?;
    let who = contenders(&options)?;
    let world = World::new(&options.remora, options.realtime);
    let asked = |part: &str| options.parts.is_empty() || options.parts.iter().any(|one| one == part);
    let mut results = report::Results::default();
    for repetition in 1..=options.effort.repetitions {
        eprintln!("repetition {repetition} of {}", options.effort.repetitions);
        for one in &who {
            measure(&world, one, &asked, &options, &mut results);
        }
    }
    for one in who.iter().filter(|one| one.name() == "remora") {
        grow(&world, one, &asked, options.effort, &mut results);
    }
    report::write(
        &options.out,
        &options.words,
        options.realtime,
        options.effort,
        &results,
    );
    Ok(())
}

fn measure(
    world: &World,
    one: &Contender,
    asked: &impl Fn(&str) -> bool,
    options: &Options,
    results: &mut report::Results,
) {
    let proxied = *one != Contender::Direct;
    for &way in &options.ways {
        if asked("steady") && (proxied || way == Way::Plain) {
            cases::steady(
                world,
                one,
                way,
                options.effort,
                &options.loads,
                &mut results.steady,
            );
        }
        if asked("connections") && proxied {
            cases::connections(world, one, way, &mut results.connections);
        }
    }
    if asked("start") && proxied {
        cases::start(world, one, Way::Plain, 0, &mut results.start);
        // nginx knows no services.
        let services = if *one == Contender::Nginx { 0 } else { 100 };
        cases::start(world, one, Way::Mtls, services, &mut results.start);
    }
}

fn grow(
    world: &World,
    one: &Contender,
    asked: &impl Fn(&str) -> bool,
    effort: Effort,
    results: &mut report::Results,
) {
    for _ in 0..effort.repetitions.min(3) {
        if asked("services") {
            for count in [1, 100, 1000, 10_000] {
                cases::services(world, one, count, effort, &mut results.services);
            }
        }
        if asked("open") {
            for count in [1, 100, 1000, 5000] {
                cases::open_connections(world, one, count, effort, &mut results.open);
            }
        }
    }
}
