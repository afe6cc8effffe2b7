//! From documents to pods: what a cluster's controllers would make of them, on one node.
//!
//! Pure. Each Deployment, ReplicaSet, StatefulSet, DaemonSet, Job and (when asked for) CronJob becomes pods with the
//! names, labels and owners their controllers give; each Service, ConfigMap, Secret and Namespace is kept for the pods
//! to refer to; every other kind is named and left out.

use std::collections::BTreeSet;

use remora_pod::{object, workload};
use serde_json::{Value, json};

use crate::objects::{Objects, key};
use crate::services::{self, Service};

mod expand;

/// Kinds that mean something to other documents only, and are no news.
const SILENT: &[&str] = &["Namespace", "ServiceAccount", "Instrumentation"];

/// A pod to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The pod, complete: name, namespace, labels, owner.
    pub pod: Value,
    /// What made it.
    pub owner: Owner,
    /// The pod that has to be ready before this one is made, by its place in the list.
    pub after: Option<usize>,
}

/// What made a pod, and what that means for its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The pod was written as such.
    Nobody,
    /// A controller that wants it to run for ever.
    Service {
        /// `Deployment`, `StatefulSet`, …
        kind: String,
        /// Its name.
        name: String,
    },
    /// A Job.
    Job(Job),
}

/// What a Job wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// How many pods have to succeed.
    pub completions: u32,
    /// How many may run at a time.
    pub parallelism: u32,
    /// How many failures are too many, less one.
    pub backoff_limit: u32,
}

/// Everything a run consists of.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    /// The pods, in order.
    pub pods: Vec<Planned>,
    /// Services, with addresses.
    pub services: Vec<Service>,
    /// What pods may refer to.
    pub objects: Objects,
    /// Istio's policies.
    pub policies: Vec<Value>,
    /// Namespaces anything is in.
    pub namespaces: BTreeSet<String>,
    /// What was left out, and why: one sentence each.
    pub notes: Vec<String>,
    /// What an API server would have refused, one sentence each: with any of these nothing can be run.
    pub errors: Vec<String>,
}

/// How documents are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'a> {
    /// The namespace of documents that name none.
    pub namespace: &'a str,
    /// Whether each CronJob runs once, now.
    pub cron_now: bool,
}

impl Manifest {
    /// Reads documents, of which injected ones are already injected.
    pub fn read(documents: &[Value], reading: Reading<'_>) -> Self {
        let mut manifest = Self::default();
        let mut found_services = Vec::new();
        for document in documents {
            manifest.take(document, reading, &mut found_services);
        }
        manifest.services = services::read(&found_services, reading.namespace);
        manifest
    }

    fn take(&mut self, document: &Value, reading: Reading<'_>, services: &mut Vec<Value>) {
        if let Some(items) = workload::items(document) {
            for item in items {
                self.take(item, reading, services);
            }
            return;
        }
        let (namespace, name) = key(document, reading.namespace);
        let kind = object::kind(document);
        if kind != "Namespace" {
            self.namespaces.insert(namespace.clone());
        }
        match kind {
            "Service" => services.push(document.clone()),
            "PeerAuthentication" | "AuthorizationPolicy" => {
                let mut policy = document.clone();
                policy["metadata"]["namespace"] = json!(namespace);
                self.policies.push(policy);
            }
            "ConfigMap" | "Secret" => {
                let kept = self.objects.add(document, reading.namespace);
                self.errors.extend(kept.err().map(|e| e.to_string()));
            }
            "Pod" => self.pods.push(expand::pod(document, &namespace)),
            "Deployment" | "ReplicaSet" | "ReplicationController" => {
                self.pods.extend(expand::deployment(document, &namespace));
            }
            "StatefulSet" => {
                let made = expand::stateful_set(document, &namespace, self.pods.len());
                self.pods.extend(made);
            }
            "DaemonSet" => self.pods.push(expand::daemon_set(document, &namespace)),
            "Job" => self.pods.extend(expand::job(document, &namespace)),
            "CronJob" if reading.cron_now => self.pods.extend(expand::cron_job(document, &namespace)),
            "CronJob" => self.notes.push(format!(
                "CronJob {namespace}/{name} waits for its schedule; --now runs it once"
            )),
            silent if SILENT.contains(&silent) => {}
            other => self.notes.push(format!(
                "{} {namespace}/{name} means nothing here and is left out",
                if other.is_empty() {
                    "a document without kind,"
                } else {
                    other
                }
            )),
        }
    }

    /// Service accounts of all pods, with their namespaces.
    pub fn accounts(&self) -> BTreeSet<(String, String)> {
        let of = |planned: &Planned| {
            let account = crate::environment::service_account(&planned.pod).to_owned();
            (object::namespace(&planned.pod).to_owned(), account)
        };
        self.pods.iter().map(of).collect()
    }
}

/// An owner reference as controllers write it.
fn owner_reference(kind: &str, name: &str) -> Value {
    let api = match kind {
        "Job" => "batch/v1",
        "ReplicationController" => "v1",
        _ => "apps/v1",
    };
    json!({"apiVersion": api, "kind": kind, "name": name, "controller": true, "blockOwnerDeletion": true, "uid": ""})
}

#[cfg(test)]
mod tests;
