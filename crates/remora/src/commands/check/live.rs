//! What runs in a cluster, as input: of pods that are made alike one, and templates of which no pod runs.

use super::Args;
use crate::cluster::{Cluster, Kind};
use crate::input::{Input, Source};
use crate::out;
use anyhow::bail;
use remora_inject::{Workload, native};
use remora_pod::{object, view, yaml};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const PODS: Kind = Kind("", "v1", "Pod", "pods");
const TEMPLATES: [Kind; 5] = [
    Kind("apps", "v1", "Deployment", "deployments"),
    Kind("apps", "v1", "StatefulSet", "statefulsets"),
    Kind("apps", "v1", "DaemonSet", "daemonsets"),
    Kind("batch", "v1", "CronJob", "cronjobs"),
    Kind("batch", "v1", "Job", "jobs"),
];

/// What was found.
pub(super) struct Found {
    pub(super) input: Input,
    /// The oldest kubelet there.
    pub(super) kubelet: Option<String>,
}

/// Asks the cluster.
pub(super) fn find(args: &Args) -> anyhow::Result<Found> {
    if args.fix.is_some() {
        bail!("--fix changes manifests: give them with -f");
    }
    let cluster = Cluster::connect_or_own(args.kubeconfig.as_deref(), args.context.as_deref())?;
    let namespace = args.namespace.as_deref().filter(|_| !args.all_namespaces);
    let pods = cluster.list(PODS, namespace, "")?;
    let mut templates = Vec::new();
    for kind in TEMPLATES {
        match cluster.list(kind, namespace, "") {
            Ok(found) => templates.extend(found),
            // Pods tell most of it, and rights to see them are the usual ones.
            Err(error) => out::warning(format!("{error:#}; looking at pods only")),
        }
    }
    if pods.is_empty() && templates.is_empty() {
        let place = namespace.map_or_else(|| "the cluster".to_owned(), |n| format!("namespace {n:?}"));
        out::note(format!("nothing runs in {place}"));
    }
    let objects = chosen(&pods, templates);
    let sources = objects.iter().map(source).collect();
    Ok(Found {
        input: Input { sources },
        kubelet: oldest(&cluster),
    })
}

/// Who may not see nodes gets the answers for recent ones.
fn oldest(cluster: &Cluster) -> Option<String> {
    let nodes = match cluster.kubelet_versions() {
        Ok(nodes) => nodes,
        Err(error) => {
            out::note(format!("{error:#}; taking its kubelets for recent ones"));
            return None;
        }
    };
    let known = nodes
        .into_iter()
        .filter(|(_, version)| native::minor(version).is_some());
    known
        .map(|(_, version)| version)
        .min_by_key(|version| native::minor(version))
}

/// One pod of each kind, and workloads without any, in order of namespace and name.
fn chosen(pods: &[Value], templates: Vec<Value>) -> Vec<Value> {
    let mut alike: BTreeMap<(String, String, String), &Value> = BTreeMap::new();
    let mut owners: BTreeSet<(String, String)> = BTreeSet::new();
    for pod in pods.iter().filter(|pod| !is_over(pod)) {
        let namespace = object::namespace(pod).to_owned();
        owners.insert((namespace.clone(), Workload::of_pod(pod).name));
        owners.extend(owner(pod).map(|(_, name)| (namespace.clone(), name)));
        let key = (namespace, made_by(pod), revision(pod));
        let first = alike.entry(key).or_insert(pod);
        if object::name(pod) < object::name(first) {
            *first = pod;
        }
    }
    let mut all: Vec<Value> = alike.into_values().cloned().collect();
    let idle = templates.into_iter().filter(|template| {
        let key = (
            object::namespace(template).to_owned(),
            object::name(template).to_owned(),
        );
        // A job of a cron job is told as that.
        !owners.contains(&key) && !is_over(template) && owner(template).is_none()
    });
    all.extend(idle);
    let place = |one: &Value| (object::namespace(one).to_owned(), object::name(one).to_owned());
    all.sort_by_key(place);
    all
}

/// Ended for good: nobody starts it again.
fn is_over(document: &Value) -> bool {
    view::text(document, &["status", "phase"]) == Some("Succeeded")
        || !document["status"]["completionTime"].is_null()
}

/// Uid and name of what makes it.
fn owner(document: &Value) -> Option<(String, String)> {
    let owners = view::list(document, &["metadata", "ownerReferences"]);
    let one = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((one["uid"].as_str()?.to_owned(), one["name"].as_str()?.to_owned()))
}

fn made_by(pod: &Value) -> String {
    owner(pod).map_or_else(|| object::name(pod).to_owned(), |(uid, _)| uid)
}

/// Pods of one maker differ while it is being changed.
fn revision(pod: &Value) -> String {
    object::label(pod, "controller-revision-hash")
        .unwrap_or_default()
        .to_owned()
}

/// `NAMESPACE/KIND/NAME`, and the object as `kubectl` would print it.
fn source(document: &Value) -> Source {
    let mut shown = document.clone();
    if let Some(object) = shown.as_object_mut() {
        object.remove("status");
    }
    let kind = document["kind"].as_str().unwrap_or_default().to_ascii_lowercase();
    let name = format!(
        "{}/{kind}/{}",
        object::namespace(document),
        object::name(document)
    );
    Source::of_text(name, yaml::write(&shown))
}

#[cfg(test)]
mod tests {
    use super::chosen;
    use serde_json::{Value, json};

    fn pod(name: &str, owner: &str, hash: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": {"controller-revision-hash": hash},
            "ownerReferences": [{"controller": true, "uid": owner, "name": owner, "kind": "StatefulSet"}]}})
    }

    fn template(kind: &str, name: &str) -> Value {
        json!({"kind": kind, "metadata": {"name": name, "namespace": "shop"}})
    }

    #[test]
    fn pods_made_alike_are_told_once_and_workloads_without_pods_by_their_template() {
        let mut over = pod("work-x", "work", "");
        over["status"] = json!({"phase": "Succeeded"});
        let pods = [
            pod("db-1", "db", "a"),
            pod("db-0", "db", "a"),
            pod("db-2", "db", "b"),
            over,
        ];
        let mut done = template("Job", "done");
        done["status"] = json!({"completionTime": "2026-01-01T00:00:00Z"});
        let templates = vec![
            template("StatefulSet", "db"),
            template("CronJob", "nightly"),
            done,
        ];
        let names: Vec<Value> = chosen(&pods, templates)
            .into_iter()
            .map(|one| one["metadata"]["name"].clone())
            .collect();
        assert_eq!(names, ["db-0", "db-2", "nightly"]);
    }
}
