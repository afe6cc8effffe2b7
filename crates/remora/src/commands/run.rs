//! `remora run`: the pods of manifests on this machine, with their mesh.

mod args;
mod course;
mod images;
mod place;
mod pods;
mod power;
mod prepare;
mod runtime;
mod screen;
mod show;
mod until;
mod view;

pub(crate) use args::{ABOUT, AFTER, Args};
pub(crate) use course::Course;

use crate::commands::check::measured;
use crate::commands::instance::{image_store, seccomp_root, state_dir};
use crate::input::Input;
use crate::{commands::inject, out};
use anyhow::{Context as _, bail};
use args::ImagesChoice;
use place::Place;
use remora_engine::manifest::Manifest;
use remora_engine::registry::Settings as RegistrySettings;
use remora_engine::rootless::Privileges;
use remora_engine::session::{Command, Options, Session, SessionError};
use remora_engine::world::{Isolation, Notice};
use remora_startup::kubelet::Config;
use show::Show;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use until::{Until, Verdict};

/// So few pods are drawn without being asked for.
const FEW: usize = 2;
/// How often the picture on a terminal is drawn.
const FRAME: Duration = Duration::from_millis(80);
/// How long pods may take to stop after the second request.
const AT_ONCE: u64 = 1;
/// How long to wait for the end of everything beyond the pods' own grace periods.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Before this process becomes root of a user namespace: places are its user's.
    let (base, store) = (
        state_dir(args.state_dir.as_ref())?,
        image_store(args.image_store.as_ref())?,
    );
    let isolation = Isolation {
        pids: Some(args.pod_pids_limit).filter(|limit| *limit > 0),
        seccomp_root: seccomp_root(args.seccomp_profile_root.as_ref())?,
        own_users: !args.host_users,
    };
    if args.filename.is_empty() && !args.clean {
        bail!("filename not specified (see --filename or -f)");
    }
    let foreign = args.runtime.as_deref().map(runtime::find).transpose()?;
    let privileges = power::acquire()?;
    if args.clean {
        let cleaned = place::clean(&base)?;
        out::note(format_args!("removed the remains of {cleaned} runs"));
        if args.filename.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let input = Input::find(&args.filename, args.recursive)?;
    let inventory = inject::survey(&input, args.namespace.as_deref());
    let manifest = prepare::manifest(args, &input, &inventory)?;
    for note in &manifest.notes {
        out::note(note);
    }
    for report in remora_engine::mesh::reports(&manifest.policies) {
        out::warning(report);
    }
    for error in &manifest.errors {
        out::error_text(error);
    }
    if !manifest.errors.is_empty() {
        bail!(
            "{} objects are not valid; nothing was started",
            manifest.errors.len()
        );
    }
    if manifest.pods.is_empty() {
        bail!("there is no pod in these manifests");
    }
    if args.until == Until::Complete
        && !manifest
            .pods
            .iter()
            .any(|p| pods::is_meant_to_end(&p.pod, &p.owner))
    {
        bail!("--until complete: no pod in these manifests comes to an end by itself");
    }
    power::suffices(privileges, &manifest)?;
    if foreign.is_some() && privileges != Privileges::Root {
        bail!("--runtime works for root only; without it this user's pods are run by remora itself");
    }
    images::take_in(&args.image_archive, &store)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(live(args, manifest, &base, (store, isolation), foreign))
}

async fn live(
    args: &Args,
    manifest: Manifest,
    base: &Path,
    (store, isolation): (PathBuf, Isolation),
    foreign: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    // Before anything is there that would have to be cleaned up.
    let mut signals = Signals::new()?;
    let place = Place::take(base)?;
    let mut options = options(args, &place, store, isolation)?;
    options.runtime = foreign;
    let mut session = Session::start(manifest, options).await.map_err(explain)?;
    let mut show = Show::new(args);
    for (wanted, at) in args.publish.iter().zip(&session.published) {
        show.publish(&wanted.target, wanted.port, *at);
    }
    let verdict = watch(args, &mut session, &mut show, &mut signals).await;
    stop(&mut session, &mut show, &mut signals).await;
    session.end().await;
    place.remove()?;
    show.close();
    show.summary();
    tell(args, &show)?;
    Ok(verdict.exit_code())
}

/// What happened beside what was to be expected.
fn tell(args: &Args, show: &Show) -> anyhow::Result<()> {
    let courses: Vec<Course> = show.pods().iter().filter_map(Course::of).collect();
    let width = courses.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for course in &courses {
        text.push_str(&measured::line(course, width));
    }
    let few = courses.len() <= FEW;
    for course in &courses {
        if args.timeline || few {
            text.push_str(&measured::pictures(course));
        }
    }
    out::styled(&text)?;
    if let Some(path) = &args.report {
        let report = if path.extension().is_some_and(|e| e == "json") {
            measured::events(&courses)?
        } else {
            measured::page(&courses)?
        };
        report.release(Some(path))?;
        out::note(format_args!("the report is in {}", path.display()));
    } else if !few && !args.timeline {
        out::note("--timeline draws all of them, --report FILE.html makes a page");
    }
    Ok(())
}

fn options(args: &Args, place: &Place, store: PathBuf, isolation: Isolation) -> anyhow::Result<Options> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let divided = |millis: u64| millis / args.fast_backoff.max(1);
    let usual = Config::default();
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    // Names of the outside are of use only to those who can go there.
    let upstream = if args.egress {
        remora_engine::dns::servers(&resolver)
    } else {
        Vec::new()
    };
    Ok(Options {
        directory: place.directory().to_owned(),
        store,
        registries: RegistrySettings {
            insecure: args.insecure_registry.clone(),
            ..RegistrySettings::default()
        },
        credentials: place::credentials()?,
        pull_first: args.images == ImagesChoice::Pull,
        publish: args.publish.clone(),
        kubelet: Config {
            first_backoff: divided(usual.first_backoff),
            max_backoff: divided(usual.max_backoff),
            error_retry: divided(usual.error_retry),
            ..usual
        },
        resolver,
        egress: args.egress,
        upstream,
        secret: place::random()?,
        cpu_millis: i128::try_from(processors).unwrap_or(1) * 1000,
        memory: place::memory(),
        plugin: None,
        private_mounts: true,
        runtime: None,
        isolation,
    })
}

fn explain(error: SessionError) -> anyhow::Error {
    let hint = error.hint();
    let error = anyhow::Error::from(error);
    match hint {
        Some(hint) => error.context(format!("cannot run pods here; {hint}")),
        None => error,
    }
}

/// The signals that ask for an end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Shows what happens until the end that was asked for.
async fn watch(args: &Args, session: &mut Session, show: &mut Show, signals: &mut Signals) -> Verdict {
    let deadline = tokio::time::sleep(args.until.deadline(args.timeout));
    tokio::pin!(deadline);
    let mut frames = tokio::time::interval(FRAME);
    loop {
        tokio::select! {
            _ = frames.tick(), if show.is_live() => show.draw(),
            notice = session.notices.recv() => {
                let Some(notice) = notice else { return Verdict::Broken };
                // Before the first status not all pods may be known.
                let counts = matches!(notice, Notice::Status(..) | Notice::Gone(_));
                show.take(notice);
                if counts && let Some(verdict) = args.until.reached(show.pods()) {
                    return verdict;
                }
            }
            () = signals.next() => return until::at_the_end(show.pods()),
            () = &mut deadline => return args.until.late(show.pods()),
        }
    }
}

/// Stops everything; a second signal makes it quick, a third ends it at once.
async fn stop(session: &mut Session, show: &mut Show, signals: &mut Signals) {
    show.draw();
    show.stop();
    // The receiver lives as long as the session.
    let _ = session.commands.send(Command::Stop(None)).await;
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    let mut asked = 0;
    let mut frames = tokio::time::interval(FRAME);
    loop {
        tokio::select! {
            _ = frames.tick(), if show.is_live() => show.draw(),
            notice = session.notices.recv() => match notice {
                Some(Notice::Over) | None => return,
                Some(notice) => show.take(notice),
            },
            () = signals.next() => {
                asked += 1;
                if asked > 1 {
                    return;
                }
                let _ = session.commands.send(Command::Stop(Some(AT_ONCE))).await;
            }
            () = &mut patience => {
                out::warning("some pods did not stop in time and are ended");
                return;
            }
        }
    }
}
