//! Recorded network states against the analysis: it must allow every state that a real pod had.
//!
//! The same recordings as `recordings`, read by the part of the model that knows nothing about how long things take.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use remora_pod::spec::{Hook, PodView, ProbeKind};
use remora_startup::analysis::{ActorReport, Analysis, Caveat, Reach};
use remora_startup::mesh::Mode;
use remora_startup::sim::{Actor, Part};
use serde_json::Value;

#[path = "recordings/yaml.rs"]
mod yaml;

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let given = std::env::var_os("REMORA_RECORDINGS").map(PathBuf::from);
    let root =
        given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/kubelet"));
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)
        .map(|entries| {
            entries
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.join("summary.yaml").is_file())
                .collect()
        })
        .unwrap_or_default();
    folders.sort();
    if folders.is_empty() {
        _ = writeln!(out, "no recordings under {}: nothing to check", root.display());
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for folder in &folders {
        match check(folder) {
            Ok(()) => passed += 1,
            Err(reason) => {
                failed += 1;
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                _ = writeln!(out, "{name}: {reason}");
            }
        }
    }
    _ = writeln!(out, "{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn check(folder: &Path) -> Result<(), String> {
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|e| format!("reading {name}: {e}"));
    let summary = yaml::read(&read("summary.yaml")?)?;
    let text = read("pod.yaml")?;
    let mut view = PodView::read(&yaml::read(&text)?);
    // The rules of the recorded plugin stand in a comment; give them to the pod as it would ask for them.
    let excludes = |key: &str| {
        let at = text.find(&format!("\"{key}="))? + key.len() + 2;
        text[at..].split('"').next().map(str::to_owned)
    };
    if let Some(ports) = excludes("exclport") {
        view.annotations
            .push(("traffic.sidecar.istio.io/excludeOutboundPorts".to_owned(), ports));
    }
    if let Some(range) = excludes("exclcidr") {
        let range = range.replace("TARGET2IP", "10.9.9.9");
        view.annotations.push((
            "traffic.sidecar.istio.io/excludeOutboundIPRanges".to_owned(),
            range,
        ));
    }
    let captured = text.contains("# CNI capture arguments");
    let mode = if text.contains("\"ambient\": true") {
        Some(Mode::Ambient)
    } else {
        None
    };
    let analysis = Analysis::new(view, mode);
    if captured && analysis.setup.mode == Mode::None {
        return Err("captured, but no mesh found".to_owned());
    }
    let network = summary["network"].as_object().into_iter().flatten();
    for (name, states) in network {
        // A flow exempt by its destination is a matter of the destination, not of the process.
        if name.contains(':') {
            continue;
        }
        let report = actor(&analysis, name).ok_or_else(|| format!("no process {name}"))?;
        for state in states.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !report.spans.iter().any(|s| allows(&s.reach, s.caveat, state)) {
                let known: Vec<&str> = report.spans.iter().map(|s| s.reach.as_str()).collect();
                return Err(format!("{name} saw {state}, of {known:?}"));
            }
        }
    }
    Ok(())
}

fn allows(reach: &Reach, caveat: Option<Caveat>, state: &str) -> bool {
    let delayed = matches!(caveat, Some(Caveat::HoldGivesUp(_) | Caveat::HookLostOnRestart));
    match reach {
        Reach::Racing => state == "broken" || state == "proxied",
        Reach::Proxied => state == "proxied" || (delayed && state == "broken"),
        other => other.as_str() == state,
    }
}

/// The process a recording names: `app`, `app/preStop`, `c-exec/execReadiness#3`.
fn actor<'a>(analysis: &'a Analysis, name: &str) -> Option<&'a ActorReport> {
    let name = name.split('#').next()?;
    let (container, part) = name.split_once('/').map_or((name, None), |(c, p)| (c, Some(p)));
    let slot = analysis.view.slot(container)?;
    let part = match part {
        None => Part::Main,
        Some("postStart") => Part::Hook(Hook::PostStart),
        Some("preStop") => Part::Hook(Hook::PreStop),
        Some(probe) if probe.to_lowercase().contains("startup") => Part::Probe(ProbeKind::Startup),
        Some(probe) if probe.to_lowercase().contains("live") => Part::Probe(ProbeKind::Liveness),
        Some(_) => Part::Probe(ProbeKind::Readiness),
    };
    analysis.actor(Actor { slot, part })
}
