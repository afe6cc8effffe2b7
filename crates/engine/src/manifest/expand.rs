//! One workload, its pods.
//!
//! k8s: a Deployment's pods are named after a ReplicaSet and a random suffix. Here both come from the content, so that
//! the same documents always give the same names.

use remora_pod::{object, view};
use serde_json::{Value, json};

use super::{Job, Owner, Planned, owner_reference};

/// Letters of generated names, as Kubernetes has them: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `length` letters that depend on a text (FNV-1a, then spread).
fn suffix(text: &str, length: usize) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut out = String::with_capacity(length);
    for _ in 0..length {
        hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let index = usize::try_from(hash >> 33).unwrap_or(0) % LETTERS.len();
        out.push(char::from(LETTERS[index]));
    }
    out
}

fn template(document: &Value, path: &[&str]) -> Value {
    let mut template = view::at(document, path).cloned().unwrap_or_else(|| json!({}));
    if let Some(map) = template.as_object_mut() {
        map.insert("apiVersion".to_owned(), json!("v1"));
        map.insert("kind".to_owned(), json!("Pod"));
    }
    template
}

fn name_it(mut pod: Value, namespace: &str, name: &str) -> Value {
    let metadata = view::map_mut(&mut pod, &["metadata"]);
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("namespace".to_owned(), json!(namespace));
    metadata.remove("generateName");
    pod
}

fn owned(mut pod: Value, kind: &str, name: &str) -> Value {
    view::map_mut(&mut pod, &["metadata"])
        .insert("ownerReferences".to_owned(), json!([owner_reference(kind, name)]));
    pod
}

fn count(document: &Value, path: &[&str], default: u32) -> u32 {
    let number = view::at(document, path).and_then(Value::as_u64);
    number.map_or(default, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn planned(pod: Value, owner: Owner) -> Planned {
    Planned {
        pod,
        owner,
        after: None,
    }
}

pub(super) fn pod(document: &Value, namespace: &str) -> Planned {
    let generated = view::text(document, &["metadata", "generateName"]);
    let name = match (view::text(document, &["metadata", "name"]), generated) {
        (Some(name), _) => name.to_owned(),
        (None, Some(prefix)) => format!("{prefix}{}", suffix(&document.to_string(), 5)),
        (None, None) => "pod".to_owned(),
    };
    planned(name_it(document.clone(), namespace, &name), Owner::Nobody)
}

pub(super) fn deployment(document: &Value, namespace: &str) -> Vec<Planned> {
    let (kind, name) = (object::kind(document), object::name(document));
    let template = template(document, &["spec", "template"]);
    let hash = suffix(&template.to_string(), 9);
    let set = if kind == "Deployment" {
        format!("{name}-{hash}")
    } else {
        name.to_owned()
    };
    let owner_kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
    let make = |index: u32| {
        let pod_name = format!("{set}-{}", suffix(&format!("{set}/{index}"), 5));
        let mut pod = owned(name_it(template.clone(), namespace, &pod_name), owner_kind, &set);
        if kind == "Deployment" {
            view::set_label(&mut pod, "pod-template-hash", hash.clone());
        }
        planned(pod, service(kind, name))
    };
    (0..count(document, &["spec", "replicas"], 1)).map(make).collect()
}

fn service(kind: &str, name: &str) -> Owner {
    Owner::Service {
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

/// `first`: the place of the first pod in the list of all.
pub(super) fn stateful_set(document: &Value, namespace: &str, first: usize) -> Vec<Planned> {
    let name = object::name(document);
    let ordered = view::text(document, &["spec", "podManagementPolicy"]) != Some("Parallel");
    let subdomain = view::text(document, &["spec", "serviceName"]).unwrap_or_default();
    let start = count(document, &["spec", "ordinals", "start"], 0);
    let mut template = template(document, &["spec", "template"]);
    for claim in view::list(document, &["spec", "volumeClaimTemplates"]) {
        let volume = json!({"name": object::name(claim), "emptyDir": {}});
        view::list_mut(&mut template, &["spec", "volumes"]).push(volume);
    }
    let make = |index: u32| {
        let pod_name = format!("{name}-{}", start + index);
        let mut pod = owned(
            name_it(template.clone(), namespace, &pod_name),
            "StatefulSet",
            name,
        );
        let spec = view::map_mut(&mut pod, &["spec"]);
        spec.insert("hostname".to_owned(), json!(pod_name));
        spec.insert("subdomain".to_owned(), json!(subdomain));
        view::set_label(&mut pod, "statefulset.kubernetes.io/pod-name", pod_name.clone());
        view::set_label(
            &mut pod,
            "apps.kubernetes.io/pod-index",
            (start + index).to_string(),
        );
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        Planned {
            after: (ordered && index > 0).then(|| first + place - 1),
            ..planned(pod, service("StatefulSet", name))
        }
    };
    (0..count(document, &["spec", "replicas"], 1)).map(make).collect()
}

pub(super) fn daemon_set(document: &Value, namespace: &str) -> Planned {
    let name = object::name(document);
    let template = template(document, &["spec", "template"]);
    let pod_name = format!("{name}-{}", suffix(&template.to_string(), 5));
    let pod = owned(name_it(template, namespace, &pod_name), "DaemonSet", name);
    planned(pod, service("DaemonSet", name))
}

/// As many pods as may run at the beginning; [`again`] makes those that follow.
pub(super) fn job(document: &Value, namespace: &str) -> Vec<Planned> {
    let spec = view::at(document, &["spec"]).cloned().unwrap_or_default();
    of_job(object::name(document), &spec, namespace)
}

pub(super) fn cron_job(document: &Value, namespace: &str) -> Vec<Planned> {
    let spec = view::at(document, &["spec", "jobTemplate", "spec"]).cloned();
    of_job(
        &format!("{}-now", object::name(document)),
        &spec.unwrap_or_default(),
        namespace,
    )
}

fn of_job(name: &str, spec: &Value, namespace: &str) -> Vec<Planned> {
    let parallelism = count(spec, &["parallelism"], 1);
    let job = Job {
        name: name.to_owned(),
        completions: count(spec, &["completions"], parallelism.max(1)),
        parallelism,
        backoff_limit: count(spec, &["backoffLimit"], 6),
    };
    let mut pod = template(spec, &["template"]);
    let deadline = view::at(spec, &["activeDeadlineSeconds"]).cloned();
    if let Some(deadline) = deadline {
        let own = view::map_mut(&mut pod, &["spec"]);
        own.entry("activeDeadlineSeconds").or_insert(deadline);
    }
    let pod = owned(pod, "Job", name);
    let first = job.parallelism.min(job.completions);
    let make = |index| planned(numbered(&pod, namespace, &job, index), Owner::Job(job.clone()));
    (0..first).map(make).collect()
}

fn numbered(pod: &Value, namespace: &str, job: &Job, index: u32) -> Value {
    let name = &job.name;
    let pod_name = format!("{name}-{}", suffix(&format!("{namespace}/{name}/{index}"), 5));
    let mut pod = name_it(pod.clone(), namespace, &pod_name);
    for key in ["batch.kubernetes.io/job-name", "job-name"] {
        view::set_label(&mut pod, key, name.clone());
    }
    pod
}

impl Planned {
    /// The pod that what made this one makes in its place; `count` is another each time.
    #[must_use]
    pub(crate) fn instead(&self, count: u32) -> Self {
        let name = object::name(&self.pod);
        let keeps_name = matches!(&self.owner, Owner::Service { kind, .. } if kind == "StatefulSet");
        let stem = name.rsplit_once('-').map_or(name, |(stem, _)| stem);
        let new = if keeps_name {
            name.to_owned()
        } else {
            format!("{stem}-{}", suffix(&format!("{name}/{count}"), 5))
        };
        let namespace = object::namespace(&self.pod).to_owned();
        Self {
            pod: name_it(self.pod.clone(), &namespace, &new),
            ..self.clone()
        }
    }

    /// The pod a Job makes in place of this one, the nth of the Job.
    #[must_use]
    pub fn again(&self, index: u32) -> Self {
        let Owner::Job(job) = &self.owner else {
            return self.clone();
        };
        let namespace = object::namespace(&self.pod).to_owned();
        Self {
            pod: numbered(&self.pod, &namespace, job, index),
            owner: self.owner.clone(),
            after: None,
        }
    }
}
