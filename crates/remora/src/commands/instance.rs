//! Runs that go on, and how they are talked to.

use crate::{out, settings};
use anyhow::{Context as _, anyhow, bail};
use remora_engine::door::frame::{self, Kind};
use remora_engine::door::{self, PodInfo, Request, Which, named};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use tokio::net::UnixStream;

/// The file in a run's directory that the run holds locked.
pub(crate) const LOCK: &str = "lock";

/// Which run is meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// The run, by the number `remora ps` shows, when several go on
    #[arg(long, value_name = "RUN")]
    run: Option<String>,

    /// Where runs keep their files (default: as `remora run` has it)
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// Where this user's runs keep their files.
pub(crate) fn state_dir(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    given.map_or_else(|| Ok(base()?.join("runs")), |path| whole(path))
}

/// Where this user's images are kept.
pub(crate) fn image_store(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    given.map_or_else(|| Ok(base()?.join("images")), |path| whole(path))
}

/// Where seccomp profiles are that pods name with `localhostProfile`.
pub(crate) fn seccomp_root(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    given.map_or_else(|| Ok(base()?.join("seccomp")), |path| whole(path))
}

/// Containers have another idea of what a path begins with.
fn whole(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}

/// Root's things are the machine's, everybody else's are their own.
fn base() -> anyhow::Result<PathBuf> {
    if settings::is_root() {
        return Ok(PathBuf::from("/var/lib/remora"));
    }
    if let Some(data) = settings::variable("XDG_DATA_HOME") {
        return Ok(Path::new(&data).join("remora"));
    }
    let home = settings::variable("HOME")
        .context("HOME is not set: choose places by --state-dir and --image-store")?;
    Ok(Path::new(&home).join(".local/share/remora"))
}

/// A run that goes on.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) id: String,
    directory: PathBuf,
}

impl Where {
    /// Runs that are meant: all, or the one that was named.
    pub(crate) fn running(&self) -> anyhow::Result<Vec<Instance>> {
        let base = state_dir(self.state_dir.as_ref())?;
        let mut all = running(&base)?;
        if let Some(id) = &self.run {
            all.retain(|i| i.id == *id);
            if all.is_empty() {
                bail!("no run {id} goes on in {}", base.display());
            }
        }
        Ok(all)
    }

    /// The run that has a pod, or something that makes pods, of that name.
    pub(crate) async fn with(&self, which: &Which) -> anyhow::Result<Instance> {
        let mut all = self.running()?;
        if all.len() > 1 {
            let (mut found, mut problem) = (Vec::new(), None);
            for instance in all {
                match named(&instance.pods().await?, which) {
                    Ok(_) => found.push(instance),
                    Err(unknown) => problem = Some(unknown),
                }
            }
            if let Some(unknown) = problem.filter(|_| found.is_empty()) {
                return Err(unknown.into());
            }
            all = found;
        }
        let ids: Vec<String> = all.iter().map(|i| i.id.clone()).collect();
        match (all.pop(), all.is_empty()) {
            (None, _) => Err(nothing_runs()),
            (Some(only), true) => Ok(only),
            _ => bail!(
                "{} is in several runs ({}); choose one with --run",
                which.name,
                ids.join(", ")
            ),
        }
    }
}

pub(crate) fn nothing_runs() -> anyhow::Error {
    anyhow!("no run goes on; start one with `remora run -f FILE`")
}

/// Runs whose lock somebody holds.
fn running(base: &Path) -> anyhow::Result<Vec<Instance>> {
    let entries = match std::fs::read_dir(base) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("look into {}", base.display())),
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let directory = entry.path();
        let Ok(lock) = File::open(directory.join(LOCK)) else {
            continue;
        };
        if lock.try_lock_shared().is_err() {
            let id = entry.file_name().to_string_lossy().into_owned();
            found.push(Instance { id, directory });
        }
    }
    found.sort_by_key(|i| (i.id.len(), i.id.clone()));
    Ok(found)
}

impl Instance {
    /// Asks for something; the answer comes over the stream.
    pub(crate) async fn ask(&self, request: &Request) -> anyhow::Result<UnixStream> {
        let mut stream = door::connect(&self.directory)
            .await
            .with_context(|| format!("talk to the run {}: it has not begun, or is ending", self.id))?;
        let bytes = serde_json::to_vec(request).context("write the request")?;
        frame::send(&mut stream, Kind::Request, &bytes)
            .await
            .with_context(|| format!("talk to the run {}", self.id))?;
        Ok(stream)
    }

    /// All pods of the run.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<PodInfo>> {
        let mut stream = self.ask(&Request::Pods).await?;
        let answer = until_answered(&mut stream).await?;
        serde_json::from_value(answer).context("read the pods of the run; is it another version of remora?")
    }
}

/// Shows output as it comes; the answer at the end.
pub(crate) async fn until_answered(stream: &mut UnixStream) -> anyhow::Result<Value> {
    loop {
        let piece = frame::receive(stream).await.context("read what the run says")?;
        match piece {
            Some((Kind::Out, bytes)) => out::stdout(&bytes)?,
            Some((Kind::Err, bytes)) => out::stderr(&bytes),
            Some((Kind::Fail, bytes)) => bail!("{}", String::from_utf8_lossy(&bytes)),
            Some((Kind::Answer, bytes)) => return serde_json::from_slice(&bytes).context("read the answer"),
            Some(_) => {}
            None => bail!("the run ended"),
        }
    }
}

/// A runtime for one command.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}
