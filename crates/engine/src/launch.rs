//! From a container of a pod to what the runner starts.
//!
//! Everything is decided here, [`crate::pod`] only starts it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use remora_pod::quantity::Quantity;
use remora_pod::{object, view};
use serde_json::Value;

use crate::cgroup::Hierarchy;
use crate::container::external::BUNDLE;
use crate::container::{Capabilities, Mount, Process, Resources, Root, Seccomp, Spec, Stdio};
use crate::environment::{self, ConfigError, Facts};
use crate::image::Image;
use crate::image::user::{Identity, UserError};
use crate::objects::Objects;
use crate::sandbox::Sandbox;
use crate::services::Service;
use crate::volumes::{self, Volume, VolumeError};

/// A container cannot be configured. It waits with `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Its environment refers to something that does not exist.
    #[error("make the environment")]
    Environment(#[from] ConfigError),
    /// A volume.
    #[error("mount the volumes")]
    Volumes(#[from] VolumeError),
    /// A capability nobody knows.
    #[error("{name:?} is no capability")]
    Capability {
        /// As written.
        name: String,
    },
    /// The image's user is given by a name and must not be root.
    #[error("the container must not run as root, and would: it has runAsNonRoot and user {user}")]
    Root {
        /// As whom it would run.
        user: String,
    },
    /// The image's user.
    #[error("find the image's user")]
    User(#[from] UserError),
    /// A seccomp profile that cannot be read.
    #[error("read the seccomp profile {name:?} below {}", root.display())]
    Seccomp {
        /// Which.
        name: String,
        /// Where profiles are.
        root: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A kind of seccomp profile that does not exist.
    #[error("{name:?} is no type of a seccomp profile")]
    SeccompType {
        /// As written.
        name: String,
    },
    /// A limit nobody understands.
    #[error("{text:?} is no quantity")]
    Quantity {
        /// As written.
        text: String,
    },
    /// Room for the container's own changes.
    #[error("make room for the container's files")]
    Room(#[source] std::io::Error),
    /// There is nothing to run.
    #[error("neither the pod nor the image says what to run")]
    NoCommand,
}

/// What a container is started from.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The pod.
    pub pod: &'a Value,
    /// The container in it.
    pub container: &'a Value,
    /// What is known about the pod.
    pub facts: &'a Facts,
    /// What it may refer to.
    pub objects: &'a Objects,
    /// All Services.
    pub services: &'a [Service],
    /// The pod's volumes.
    pub volumes: &'a [Volume],
    /// The image.
    pub image: &'a Image,
    /// The pod's directory.
    pub directory: &'a Path,
    /// Unique among all containers of the run.
    pub id: String,
    /// What it shares with the others of the pod.
    pub sandbox: Arc<Sandbox>,
    /// Where limits are enforced, if they can be.
    pub cgroups: Option<Arc<Hierarchy>>,
    /// Processes and threads of this container alone.
    pub pids: Option<u64>,
    /// The directory that `localhostProfile` is relative to.
    pub seccomp_root: &'a Path,
}

impl Launch<'_> {
    /// What the runner is to start.
    pub fn spec(&self) -> Result<Spec, LaunchError> {
        let variables = self.variables()?;
        let args = environment::command_line(
            self.container,
            &variables,
            &self.image.config.entrypoint,
            &self.image.config.cmd,
        );
        if args.is_empty() {
            return Err(LaunchError::NoCommand);
        }
        let root: Root = self.image.root(&self.private()).map_err(LaunchError::Room)?;
        let mut mounts = self.files();
        mounts.extend(volumes::mounts(
            self.pod,
            self.container,
            self.volumes,
            &self.directory.join("volumes"),
            &variables,
        )?);
        let mut spec = Spec::new(self.id.clone(), root, &[], Arc::clone(&self.sandbox));
        spec.readonly_root = self.flag("readOnlyRootFilesystem") == Some(true);
        spec.mounts = mounts;
        spec.process = self.process(args, variables)?;
        spec.privileged = self.flag("privileged") == Some(true);
        spec.resources = self.resources()?;
        spec.cgroups.clone_from(&self.cgroups);
        spec.seccomp = self.seccomp()?;
        spec.stdio = Stdio::Pipe;
        Ok(spec)
    }

    /// Where another runtime finds what it is to start, and keeps its state.
    pub fn bundle(&self) -> PathBuf {
        self.private().join(BUNDLE)
    }

    /// The container's own directory.
    fn private(&self) -> PathBuf {
        self.directory.join("containers").join(&self.id)
    }

    /// A further process in the container, for a hook or a probe. `$(NAME)` is not replaced in those.
    pub fn further(&self, args: Vec<String>) -> Result<Process, LaunchError> {
        self.process(args, self.variables()?)
    }

    fn variables(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let mut all = self.image.config.env.clone();
        let mut put = |name: &str, value: String| match all.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => all.push((name.to_owned(), value)),
        };
        put("HOSTNAME", volumes::host_name(self.pod));
        let own = environment::variables(self.pod, self.container, self.facts, self.objects, self.services)?;
        for (name, value) in own {
            put(&name, value);
        }
        Ok(all)
    }

    /// `/etc/hosts` and the like, unless the container mounts something there itself.
    fn files(&self) -> Vec<Mount> {
        let own = view::list(self.container, &["volumeMounts"]);
        let taken = |target: &str| own.iter().any(|m| view::text(m, &["mountPath"]) == Some(target));
        [
            ("hosts", "/etc/hosts"),
            ("resolv.conf", "/etc/resolv.conf"),
            ("hostname", "/etc/hostname"),
        ]
        .into_iter()
        .filter(|(_, target)| !taken(target))
        .map(|(name, target)| Mount::bind(self.directory.join(name), target))
        .collect()
    }

    fn process(&self, args: Vec<String>, env: Vec<(String, String)>) -> Result<Process, LaunchError> {
        let who = self.user()?;
        let cwd = view::text(self.container, &["workingDir"])
            .filter(|d| !d.is_empty())
            .or(Some(self.image.config.working_dir.as_str()).filter(|d| !d.is_empty()));
        let mut process = Process::new(args);
        process.env = env;
        process.cwd = PathBuf::from(cwd.unwrap_or("/"));
        if !process.env.iter().any(|(name, _)| name == "HOME") {
            process.env.push(("HOME".to_owned(), who.home));
        }
        process.uid = who.uid;
        process.gid = who.gid;
        process.groups = who.groups;
        process.capabilities = self.capabilities(who.uid)?;
        process.no_new_privileges = self.flag("allowPrivilegeEscalation") == Some(false);
        Ok(process)
    }

    fn security(&self, field: &str) -> Option<&Value> {
        let own = view::at(self.container, &["securityContext", field]);
        let pods = view::at(self.pod, &["spec", "securityContext", field]);
        own.filter(|v| !v.is_null()).or(pods)
    }

    fn flag(&self, field: &str) -> Option<bool> {
        self.security(field)?.as_bool()
    }

    fn number(&self, field: &str) -> Option<u32> {
        self.security(field)?.as_u64().and_then(|n| u32::try_from(n).ok())
    }

    /// k8s: what the pod says goes before what the image says.
    fn user(&self) -> Result<Identity, LaunchError> {
        let mut who = match self.number("runAsUser") {
            Some(uid) => crate::image::user::resolve(&uid.to_string(), &self.image.layers)?,
            None => self.image.user()?,
        };
        let must_not = self.flag("runAsNonRoot") == Some(true);
        if must_not && (who.uid == 0 || !who.numeric) {
            return Err(LaunchError::Root {
                user: self.image.config.user.clone(),
            });
        }
        if let Some(gid) = self.number("runAsGroup") {
            who.gid = gid;
        }
        let pod = |field: &str| view::at(self.pod, &["spec", "securityContext", field]);
        let more = pod("supplementalGroups").and_then(Value::as_array);
        let listed = pod("fsGroup").into_iter().chain(more.into_iter().flatten());
        who.groups
            .extend(listed.filter_map(|g| u32::try_from(g.as_u64()?).ok()));
        Ok(who)
    }

    fn resources(&self) -> Result<Resources, LaunchError> {
        let quantity = |list: &str, name: &str| -> Result<Option<Quantity>, LaunchError> {
            let Some(value) = view::at(self.container, &["resources", list, name]) else {
                return Ok(None);
            };
            let text = view::scalar(value);
            text.parse().map(Some).map_err(|_| LaunchError::Quantity { text })
        };
        let whole = |quantity: Option<Quantity>| quantity.and_then(|q| u64::try_from(q.value()).ok());
        let millis = |quantity: Option<Quantity>| quantity.and_then(|q| u64::try_from(q.millis()).ok());
        Ok(Resources {
            memory: whole(quantity("limits", "memory")?),
            cpu_limit: millis(quantity("limits", "cpu")?),
            cpu_request: millis(quantity("requests", "cpu")?),
            pids: self.pids,
        })
    }

    // k8s: as a kubelet with seccompDefault. A privileged container has no filter, whatever its profile.
    fn seccomp(&self) -> Result<Seccomp, LaunchError> {
        if self.flag("privileged") == Some(true) {
            return Ok(Seccomp::Unconfined);
        }
        let profile = self.security("seccompProfile").unwrap_or(&Value::Null);
        match view::text(profile, &["type"]) {
            None | Some("RuntimeDefault") => Ok(Seccomp::RuntimeDefault),
            Some("Unconfined") => Ok(Seccomp::Unconfined),
            Some("Localhost") => {
                let name = view::text(profile, &["localhostProfile"]).unwrap_or_default();
                let text = crate::seccomp::read_profile(self.seccomp_root, name);
                text.map(Seccomp::Profile).map_err(|source| LaunchError::Seccomp {
                    name: name.to_owned(),
                    root: self.seccomp_root.to_owned(),
                    source,
                })
            }
            Some(other) => Err(LaunchError::SeccompType {
                name: other.to_owned(),
            }),
        }
    }

    /// What of the usual set a process has: an ordinary user has none of it, but may be given some.
    fn capabilities(&self, uid: u32) -> Result<Capabilities, LaunchError> {
        if self.flag("privileged") == Some(true) {
            return Ok(Capabilities::ALL);
        }
        let names = |field: &str| -> Vec<String> {
            let list = view::list(self.container, &["securityContext", "capabilities", field]);
            list.iter().map(view::scalar).collect()
        };
        let (add, drop) = (names("add"), names("drop"));
        let known = Capabilities::changed(&add, &drop).map_err(|_| LaunchError::Capability {
            name: add.iter().chain(&drop).cloned().collect::<Vec<_>>().join(", "),
        })?;
        // k8s: capabilities of a user other than root are lost at the start of the program.
        Ok(if uid == 0 { known } else { Capabilities::NONE })
    }
}

/// The name of a container in messages: `namespace/pod/container`.
pub fn full_name(pod: &Value, container: &Value) -> String {
    let container = view::name(container);
    format!("{}/{}/{container}", object::namespace(pod), object::name(pod))
}
