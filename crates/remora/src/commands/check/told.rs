//! What a check has to say about one pod, for commands that ask something else.

use super::snippet;
use super::subject::{Origin, Subject};
use anyhow::Context as _;
use remora_pod::Path;
use remora_pod::yaml::{self, Limits};
use remora_startup::findings::{Finding, Options, Severity};
use serde_json::{Value, json};

/// Findings, for people and for programs.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) json: Value,
}

/// What is wrong with a pod: with this container, if anything is, else with all of it. `file` is for messages.
pub(crate) fn told(pod: &Value, file: &str, container: Option<&str>) -> anyhow::Result<Told> {
    let mut shown = pod.clone();
    if let Some(object) = shown.as_object_mut() {
        object.remove("status");
    }
    let text = yaml::write(&shown);
    let raw = yaml::split(&text).next().context("the pod is empty")?;
    let document = yaml::parse(&raw, Limits::default()).map_err(|error| anyhow::anyhow!("{error}"))?;
    let document = document.context("the pod is empty")?;
    let origin = Origin {
        file,
        raw: &raw,
        marks: &document.marks,
        written: None,
    };
    let options = Options::default();
    let subject = Subject::check(origin, &document.value, Path::root(), &options);
    let serious = |finding: &&Finding| finding.severity != Severity::Note;
    let all: Vec<&Finding> = subject.report.findings.iter().filter(serious).collect();
    let blamed: Vec<&Finding> = all
        .iter()
        .copied()
        .filter(|finding| container == Some(finding.container.as_str()))
        .collect();
    let chosen = if blamed.is_empty() { all } else { blamed };
    let mut before = Vec::new();
    let pages: Vec<String> = chosen
        .iter()
        .map(|finding| snippet::render(&subject, finding, &mut before))
        .collect();
    let entries = chosen.iter().map(|finding| {
        let fixes: Vec<&str> = finding.fixes.iter().map(|fix| fix.title.as_str()).collect();
        json!({"code": finding.rule.code, "severity": finding.severity.as_str(), "container": finding.container,
            "cause": finding.cause, "consequence": finding.consequence, "fixes": fixes})
    });
    Ok(Told {
        json: entries.collect(),
        text: pages.join("\n"),
    })
}
