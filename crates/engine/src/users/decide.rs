//! Whether a pod has users of its own.

use remora_pod::view;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

use super::IDS;

/// Why a pod shares the users of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It has a namespace of the machine (k8s: `hostNetwork`, `hostPID`, `hostIPC`).
    HostNamespace(&'static str),
    /// A container is privileged.
    Privileged(String),
    /// Another runtime runs its containers.
    Runtime,
    /// The machine cannot, with what it answered.
    Machine(String),
    /// An id that is not among those of a pod.
    Id {
        /// Where it is written.
        field: &'static str,
        /// Which.
        id: u64,
    },
    /// A setting that the kernel shows only to network namespaces of the machine's users.
    Sysctl(String),
    /// The file system of a volume cannot show other ids than those on disk.
    Volume {
        /// The name of the volume.
        name: String,
        /// Where it is on this machine.
        path: PathBuf,
        /// What the kernel answered.
        error: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNamespace(field) => write!(f, "the pod has {field}: true"),
            Self::Privileged(container) => write!(f, "container {container:?} is privileged"),
            Self::Runtime => f.write_str("--runtime runs the containers"),
            Self::Machine(answer) => write!(f, "this machine cannot: {answer}"),
            Self::Id { field, id } => write!(f, "{field} {id} is not below {IDS}"),
            Self::Sysctl(name) => {
                write!(
                    f,
                    "the kernel has sysctl {name} only for network namespaces of its own users"
                )
            }
            Self::Volume { name, path, error } => write!(
                f,
                "the file system of volume {name:?} ({}) cannot be mounted with mapped ids: {error}",
                path.display()
            ),
        }
    }
}

/// What a pod asks for, whatever the machine can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// The users of the machine.
    Machine,
    /// Users of its own, or the pod fails.
    Must,
    /// Users of its own if that is possible.
    Should,
    /// Two things that exclude each other.
    Contradiction(Reason),
}

/// What is to be done about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It has users of its own.
    Own,
    /// It shares the machine's, as it asks for or as its other fields imply.
    Machine,
    /// It shares the machine's because of this, which has to be reported.
    Fallback(Reason),
    /// It cannot run.
    Refused(Reason),
}

/// What is known of this machine and a pod's volumes on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Another runtime runs the containers.
    pub runtime: bool,
    /// Whether the kernel does all that is needed.
    pub machine: Result<(), String>,
    /// Volumes of the pod that cannot be mounted with mapped ids: name, place, answer of the kernel.
    pub unmapped: Vec<(String, PathBuf, String)>,
    /// Settings of the pod that this machine has, and a network namespace of other users has not.
    pub hidden: Vec<String>,
}

const HOST_NAMESPACES: [&str; 3] = ["hostNetwork", "hostPID", "hostIPC"];

impl Wish {
    /// Of a pod; `own` is what a pod without `hostUsers` means.
    pub fn of(pod: &Value, own: bool) -> Self {
        let asked = view::at(pod, &["spec", "hostUsers"]).and_then(Value::as_bool);
        let must = match asked {
            Some(false) => true,
            None if own => false,
            Some(true) | None => return Self::Machine,
        };
        match (must, implied(pod)) {
            (true, Some(reason)) => Self::Contradiction(reason),
            (true, None) => Self::Must,
            (false, Some(_)) => Self::Machine,
            (false, None) => Self::Should,
        }
    }

    /// What comes of it on this machine.
    pub fn decide(self, pod: &Value, facts: &Facts) -> Decision {
        let must = match self {
            Self::Machine => return Decision::Machine,
            Self::Contradiction(reason) => return Decision::Refused(reason),
            Self::Must => true,
            Self::Should => false,
        };
        match (obstacle(pod, facts), must) {
            (None, _) => Decision::Own,
            (Some(reason), true) => Decision::Refused(reason),
            (Some(reason), false) => Decision::Fallback(reason),
        }
    }
}

/// What only the machine's users can have.
fn implied(pod: &Value) -> Option<Reason> {
    let is_true = |value: &Value, path: &[&str]| view::at(value, path) == Some(&Value::Bool(true));
    let host = HOST_NAMESPACES
        .into_iter()
        .find(|field| is_true(pod, &["spec", field]));
    let containers = view::containers(pod).iter().chain(view::init_containers(pod));
    let mut privileged = containers.filter(|c| is_true(c, &["securityContext", "privileged"]));
    host.map(Reason::HostNamespace).or_else(|| {
        let container = privileged.next()?;
        Some(Reason::Privileged(view::name(container).to_owned()))
    })
}

fn obstacle(pod: &Value, facts: &Facts) -> Option<Reason> {
    if facts.runtime {
        return Some(Reason::Runtime);
    }
    if let Err(answer) = &facts.machine {
        return Some(Reason::Machine(answer.clone()));
    }
    let volume = || {
        let (name, path, error) = facts.unmapped.first()?.clone();
        Some(Reason::Volume { name, path, error })
    };
    let sysctl = || facts.hidden.first().cloned().map(Reason::Sysctl);
    high_id(pod).or_else(sysctl).or_else(volume)
}

/// The first id a pod names that is not among its own.
fn high_id(pod: &Value) -> Option<Reason> {
    let contexts = std::iter::once(view::at(pod, &["spec", "securityContext"])).chain(
        view::containers(pod)
            .iter()
            .chain(view::init_containers(pod))
            .map(|container| view::at(container, &["securityContext"])),
    );
    let mut named = contexts.flatten().flat_map(|context| {
        let one = ["runAsUser", "runAsGroup", "fsGroup"].map(|field| (field, context.get(field)));
        let more = view::list(context, &["supplementalGroups"]).iter();
        let more = more.map(|group| ("supplementalGroups", Some(group)));
        one.into_iter().chain(more).collect::<Vec<_>>()
    });
    named.find_map(|(field, value)| {
        let id = value?.as_u64().filter(|id| *id >= u64::from(IDS))?;
        Some(Reason::Id { field, id })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn facts() -> Facts {
        Facts {
            runtime: false,
            machine: Ok(()),
            unmapped: Vec::new(),
            hidden: Vec::new(),
        }
    }

    fn decide(spec: &Value, own: bool, facts: &Facts) -> Decision {
        let pod = json!({"spec": spec});
        Wish::of(&pod, own).decide(&pod, facts)
    }

    #[test]
    fn what_a_pod_asks_for_comes_first() {
        for own in [true, false] {
            let usual = if own { Decision::Own } else { Decision::Machine };
            assert_eq!(decide(&json!({}), own, &facts()), usual);
            assert_eq!(decide(&json!({"hostUsers": null}), own, &facts()), usual);
            assert_eq!(decide(&json!({"hostUsers": false}), own, &facts()), Decision::Own);
            assert_eq!(
                decide(&json!({"hostUsers": true}), own, &facts()),
                Decision::Machine
            );
        }
    }

    #[test]
    fn what_belongs_to_the_machine_keeps_the_machines_users() {
        let privileged = json!([{"name": "p", "securityContext": {"privileged": true}}]);
        let cases = [
            (json!({"hostNetwork": true}), Reason::HostNamespace("hostNetwork")),
            (json!({"hostPID": true}), Reason::HostNamespace("hostPID")),
            (json!({"hostIPC": true}), Reason::HostNamespace("hostIPC")),
            (
                json!({"containers": privileged.clone()}),
                Reason::Privileged("p".into()),
            ),
            (
                json!({"initContainers": privileged}),
                Reason::Privileged("p".into()),
            ),
        ];
        for (mut spec, reason) in cases {
            assert_eq!(decide(&spec, true, &facts()), Decision::Machine, "{spec}");
            spec["hostUsers"] = json!(false);
            assert_eq!(decide(&spec, false, &facts()), Decision::Refused(reason));
        }
        for spec in [
            json!({"hostNetwork": false, "hostPID": null}),
            json!({"containers": [{"securityContext": {"privileged": false}}]}),
        ] {
            assert_eq!(decide(&spec, true, &facts()), Decision::Own);
        }
    }

    #[test]
    fn what_is_impossible_is_reported_or_refused() {
        let volume = ("data".to_owned(), PathBuf::from("/nfs"), "no".to_owned());
        let id = |field, id| Reason::Id { field, id };
        let cases = [
            (
                json!({}),
                Facts {
                    runtime: true,
                    ..facts()
                },
                Reason::Runtime,
            ),
            (
                json!({}),
                Facts {
                    machine: Err("no".into()),
                    ..facts()
                },
                Reason::Machine("no".into()),
            ),
            (
                json!({}),
                Facts {
                    unmapped: vec![volume],
                    ..facts()
                },
                Reason::Volume {
                    name: "data".into(),
                    path: "/nfs".into(),
                    error: "no".into(),
                },
            ),
            (
                json!({"securityContext": {"fsGroup": 65536}}),
                facts(),
                id("fsGroup", 65_536),
            ),
            (
                json!({"securityContext": {"supplementalGroups": [1, 70000]}}),
                facts(),
                id("supplementalGroups", 70_000),
            ),
            (
                json!({"containers": [{"securityContext": {"runAsUser": 1_000_660_000}}]}),
                facts(),
                id("runAsUser", 1_000_660_000),
            ),
            (
                json!({"initContainers": [{"securityContext": {"runAsGroup": 70000}}]}),
                facts(),
                id("runAsGroup", 70_000),
            ),
            (
                json!({}),
                Facts {
                    hidden: vec!["net.core.xfrm_acq_expires".into()],
                    ..facts()
                },
                Reason::Sysctl("net.core.xfrm_acq_expires".into()),
            ),
        ];
        for (mut spec, facts, reason) in cases {
            let usual = decide(&spec, true, &facts);
            assert_eq!(usual, Decision::Fallback(reason.clone()), "{spec}");
            assert_eq!(decide(&spec, false, &facts), Decision::Machine);
            spec["hostUsers"] = json!(false);
            assert_eq!(decide(&spec, true, &facts), Decision::Refused(reason));
        }
        let highest =
            json!({"securityContext": {"runAsUser": 65535, "fsGroup": 0, "supplementalGroups": [65535]}});
        assert_eq!(decide(&highest, true, &facts()), Decision::Own);
    }
}
