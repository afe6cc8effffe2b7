//! What this user may do on this machine, and whether that is enough.

use anyhow::bail;
use remora_engine::manifest::{Manifest, Planned};
use remora_engine::mesh::is_meshed;
use remora_engine::rootless::{self, Privileges};
use remora_pod::{object, view};
use serde_json::Value;

/// What to do for more users than one.
const REMEDY: &str = "install newuidmap (package uidmap) and give this user further ids, as root: \
     usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER; or run remora as root";

/// Becomes able to run pods: as root, or as root of a user namespace. No thread may have been started before.
pub(super) fn acquire() -> anyhow::Result<Privileges> {
    rootless::acquire().map_err(|error| {
        let hint = error.hint();
        anyhow::Error::from(error).context(format!("pods cannot be run by this user; {hint}"))
    })
}

/// Whether every container can have the user it needs.
pub(super) fn suffices(privileges: Privileges, manifest: &Manifest) -> anyhow::Result<()> {
    if !matches!(privileges, Privileges::UserNamespace { ids: 1 }) {
        return Ok(());
    }
    let needy = manifest
        .pods
        .iter()
        .find_map(|planned| Some((planned, needs(&planned.pod)?)));
    if let Some((Planned { pod, .. }, user)) = needy {
        let name = format!("{}/{}", object::namespace(pod), object::name(pod));
        bail!("pod {name} needs user {user}, and there are no ids here but your own; {REMEDY}");
    }
    Ok(())
}

/// A user besides root that a pod needs: the proxy's, or one it names.
fn needs(pod: &Value) -> Option<u64> {
    // istio: the sidecar runs as 1337.
    if is_meshed(pod) {
        return Some(1337);
    }
    let of = |value: &Value| view::at(value, &["securityContext", "runAsUser"]).and_then(Value::as_u64);
    let lists = ["initContainers", "containers"];
    let containers = lists.iter().flat_map(|list| view::list(pod, &["spec", list]));
    let own = containers.filter_map(of);
    own.chain(pod.get("spec").and_then(of)).find(|user| *user != 0)
}
