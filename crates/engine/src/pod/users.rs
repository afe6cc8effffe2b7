//! The users of a pod: its own, or this machine's.

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::{HomeError, home, pod_name};
use crate::sandbox::sysctl_path;
use crate::users::{Decision, Facts, UserNamespace, Wish};
use crate::volumes;
use crate::world::{Notice, PodId, World};

/// A user namespace for the pod, if it is to have one. `elsewhere`: its volumes outside of the run's directory.
pub(super) async fn of(
    world: &World,
    pod: &Value,
    id: PodId,
    elsewhere: &[(String, PathBuf)],
) -> Result<Option<Arc<UserNamespace>>, HomeError> {
    // The users of a user namespace are apart from the machine's already.
    if crate::sys::in_user_namespace() {
        return Ok(None);
    }
    let wish = Wish::of(pod, world.isolation.own_users);
    if wish == Wish::Machine {
        return Ok(None);
    }
    let (made, facts) = look(world, pod, elsewhere).await?;
    match wish.decide(pod, &facts) {
        Decision::Own => Ok(made),
        Decision::Machine => Ok(None),
        Decision::Refused(reason) => Err(HomeError::Users(reason)),
        Decision::Fallback(reason) => {
            if world.users.is_new(&reason) {
                let name = pod_name(pod);
                let text = format!(
                    "{name} and others alike share the users of this machine, root included: {reason}"
                );
                world.tell(Notice::Trouble(Some(id), text)).await;
            }
            Ok(None)
        }
    }
}

/// What this machine can do for the pod; the namespace is made on the way, because volumes are tried with it.
async fn look(
    world: &World,
    pod: &Value,
    elsewhere: &[(String, PathBuf)],
) -> Result<(Option<Arc<UserNamespace>>, Facts), HomeError> {
    let mut facts = Facts {
        runtime: world.runtime.is_some(),
        machine: Ok(()),
        unmapped: Vec::new(),
        hidden: Vec::new(),
    };
    if facts.runtime {
        return Ok((None, facts));
    }
    let images = world.provision.store.root();
    facts
        .machine
        .clone_from(world.users.machine(images, &world.directory).await);
    if facts.machine.is_err() {
        return Ok((None, facts));
    }
    let (name, sysctls) = (volumes::host_name(pod), home::sysctls(pod));
    let made = UserNamespace::create(world.users.ids()?, &name, &sysctls).await?;
    let unmapped = elsewhere.iter().filter_map(|(name, path)| {
        let error = crate::sys::can_map(path, made.as_fd()).err()?;
        Some((name.clone(), path.clone(), error.to_string()))
    });
    facts.unmapped = unmapped.collect();
    facts.hidden = hidden(&made, &sysctls).map_err(HomeError::Enter)?;
    Ok((Some(made), facts))
}

/// Settings of the network that the kernel does not show to other users than the machine's.
fn hidden(made: &UserNamespace, sysctls: &[(String, String)]) -> io::Result<Vec<String>> {
    let names = sysctls.iter().map(|(name, _)| name);
    let mut names: Vec<String> = names.filter(|name| name.starts_with("net.")).cloned().collect();
    if names.is_empty() {
        return Ok(names);
    }
    let exists = |name: &str| sysctl_path(name).exists();
    names.retain(|name| exists(name));
    made.network().run(|| {
        names.retain(|name| !exists(name));
        names
    })
}
