//! `remora why POD`: where a pod of a cluster is stuck, by what the API server knows of it, in the words of `check`.

use super::stuck::{self, Course, Standing};
use crate::cluster::{Cluster, Kind};
use crate::commands::check;
use crate::out;
use anyhow::bail;
use k8s_openapi::jiff::Timestamp;
use remora_pod::object;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

const PODS: Kind = Kind("", "v1", "Pod", "pods");
const EVENTS: Kind = Kind("", "v1", "Event", "events");
/// The sidecar's port that says what is missing, and how many of its last lines are shown.
const READY: u16 = 15021;
const LINES: i64 = 5;

/// Where to look.
pub(super) struct Question<'a> {
    /// `NAME`, `NAMESPACE/NAME` or `pod/NAME`.
    pub(super) pod: &'a str,
    pub(super) namespace: Option<&'a str>,
    pub(super) kubeconfig: Option<&'a Path>,
    pub(super) context: Option<&'a str>,
    pub(super) json: bool,
}

/// Everything there is to say.
struct Story {
    name: String,
    standing: Standing,
    warnings: Vec<String>,
    /// What the sidecar says of itself.
    sidecar: Vec<String>,
    findings: check::Told,
}

/// Looks and tells; whether the pod is well.
pub(super) fn ask(question: &Question<'_>) -> anyhow::Result<bool> {
    let cluster = Cluster::connect_or_own(question.kubeconfig, question.context)?;
    let (namespace, name) = place(question, &cluster);
    let pod = find(&cluster, &namespace, name)?;
    let story = story(&cluster, &namespace, &pod)?;
    if question.json {
        out::stdout(format!("{:#}\n", story.json()).as_bytes())?;
    } else {
        out::styled(&story.text())?;
    }
    Ok(story.standing.course == Course::Fine)
}

fn place<'a>(question: &Question<'a>, cluster: &Cluster) -> (String, &'a str) {
    let (before, name) = question.pod.split_once('/').unwrap_or(("", question.pod));
    let written = Some(before).filter(|text| !matches!(*text, "" | "pod" | "pods" | "po"));
    let namespace = question.namespace.or(written).map(str::to_owned);
    (namespace.unwrap_or_else(|| cluster.default_namespace()), name)
}

/// The pod, or one of the workload that is called so.
fn find(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<Value> {
    if let Some(pod) = cluster.get(PODS, namespace, name)? {
        return Ok(pod);
    }
    let prefix = format!("{name}-");
    let mut alike = cluster.list(PODS, Some(namespace), "")?;
    alike.retain(|pod| object::name(pod).starts_with(&prefix));
    let now = Timestamp::now();
    // The one with a problem, if there is one.
    alike.sort_by_key(|pod| stuck::look(pod, now).course == Course::Fine);
    if let Some(pod) = alike.into_iter().next() {
        out::note(format!(
            "there is no pod {name:?}; looking at {:?}",
            object::name(&pod)
        ));
        return Ok(pod);
    }
    let events = cluster.list(EVENTS, Some(namespace), "reason=FailedCreate")?;
    let about = |event: &&Value| {
        let object = event["involvedObject"]["name"].as_str().unwrap_or_default();
        object == name || object.starts_with(&prefix)
    };
    let refused: Vec<Value> = events.iter().filter(about).cloned().collect();
    match stuck::warnings(&refused, now).last() {
        Some(why) => {
            bail!("there is no pod {name:?} in namespace {namespace:?}: it could not be created. {why}")
        }
        None => {
            bail!("there is no pod {name:?} in namespace {namespace:?}, nor one that begins with {prefix:?}")
        }
    }
}

fn story(cluster: &Cluster, namespace: &str, pod: &Value) -> anyhow::Result<Story> {
    let now = Timestamp::now();
    let name = object::name(pod);
    let standing = stuck::look(pod, now);
    let about = format!("involvedObject.kind=Pod,involvedObject.name={name}");
    let events = cluster
        .list(EVENTS, Some(namespace), &about)
        .unwrap_or_else(|error| {
            out::warning(format!("{error:#}"));
            Vec::new()
        });
    let blamed = Some(standing.container.as_str()).filter(|name| !name.is_empty());
    let findings = match standing.course {
        Course::Fine => check::Told::default(),
        Course::Stuck => check::told(pod, &format!("{namespace}/pod/{name}"), blamed)?,
    };
    let sidecar = if standing.course == Course::Stuck && is_running(pod, "istio-proxy") {
        sidecar(cluster, namespace, name)
    } else {
        Vec::new()
    };
    Ok(Story {
        name: format!("{namespace}/{name}"),
        warnings: stuck::warnings(&events, now),
        standing,
        sidecar,
        findings,
    })
}

fn is_running(pod: &Value, container: &str) -> bool {
    ["initContainerStatuses", "containerStatuses"]
        .iter()
        .flat_map(|list| remora_pod::view::list(pod, &["status", list]))
        .any(|status| status["name"] == container && !status["state"]["running"].is_null())
}

/// What the sidecar answers and said last. Rights to ask may be missing: then it is left away.
fn sidecar(cluster: &Cluster, namespace: &str, pod: &str) -> Vec<String> {
    let mut said = Vec::new();
    match cluster.ask(namespace, pod, READY, "/healthz/ready") {
        Ok(_) => said.push("it is ready".to_owned()),
        Err(error) => said.push(format!("it is not ready: {error:#}")),
    }
    match cluster.logs(namespace, pod, "istio-proxy", LINES) {
        Ok(text) => said.extend(text.lines().map(str::to_owned)),
        Err(error) => said.push(format!("its log cannot be read: {error:#}")),
    }
    said
}

impl Story {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "pod {} {}", self.name, check::tame(&self.standing.what));
        if !self.standing.behind.is_empty() {
            let _ = writeln!(text, "  behind it: {}", self.standing.behind.join(", "));
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "  event: {}", check::tame(warning));
        }
        for line in &self.sidecar {
            let _ = writeln!(text, "  sidecar: {}", check::tame(line));
        }
        if !self.findings.text.is_empty() {
            let _ = write!(text, "\n{}", self.findings.text);
        }
        text
    }

    fn json(&self) -> Value {
        json!({"pod": self.name, "fine": self.standing.course == Course::Fine, "what": self.standing.what,
            "container": self.standing.container, "behind": self.standing.behind, "events": self.warnings,
            "sidecar": self.sidecar, "findings": self.findings.json})
    }
}
