//! A pod as an injector would leave it, to analyse a mesh that the pod is not in yet.

use super::{Mesh, Mode};
use remora_pod::spec::{Container, Handler, Kind, PodView, Probe};

/// Adds the containers of a mode in the positions an injector gives them; honours the pod's annotations.
pub(super) fn add_mesh(view: &mut PodView, mesh: &'static Mesh, mode: Mode) {
    let wants = |name: &str, value: &str| view.annotation(name).is_some_and(|v| sets_value(v, value));
    let native = mode.is_native() || mesh.native.is_some_and(|(n, v)| wants(n, v));
    let hold = !native && (mode.is_hold() || wants(mesh.hold.0, mesh.hold.1));
    let setup_name = if mode.is_cni() {
        mesh.dialect.validation[0]
    } else {
        mesh.dialect.capture[0]
    };
    let mut rules = assumed_container(setup_name, Kind::Init);
    if mode.is_cni() {
        (rules.uid, rules.gid) = (Some(mesh.uid()), mesh.gid());
    } else {
        rules.uid = Some(0);
    }
    let mut proxy = assumed_container(mesh.proxy(), if native { Kind::Sidecar } else { Kind::Main });
    (proxy.uid, proxy.gid) = (Some(mesh.uid()), mesh.gid());
    let ready = ready_probe(mesh);
    proxy.readiness = Some(ready.clone());
    if native {
        proxy.startup = Some(ready);
    }
    if hold {
        proxy.post_start = Some(Handler::Exec(mesh.wait.iter().map(|w| (*w).to_owned()).collect()));
    }
    // istio: with a native proxy everything of the mesh goes first; otherwise istio-init goes last so that the
    // init containers of the user still have plain network, and the validation of CNI goes first.
    let inits = view.init_slots().end;
    if native {
        view.containers.insert(0, proxy);
        view.containers.insert(0, rules);
        return;
    }
    let at = if mode.is_cni() { 0 } else { inits };
    view.containers.insert(at, rules);
    let at = if hold { inits + 1 } else { view.containers.len() };
    view.containers.insert(at, proxy);
}

/// Whether an annotation sets the wanted value, in any notation of YAML or JSON.
pub(crate) fn sets_value(value: &str, wanted: &str) -> bool {
    let squeeze = |text: &str| {
        text.chars()
            .filter(|c| !matches!(c, ' ' | '"' | '\'' | '\n'))
            .collect::<String>()
    };
    squeeze(value).contains(&squeeze(wanted))
}

// istio: period 1, timeout 3, and 600 failures before it gives up.
fn ready_probe(mesh: &Mesh) -> Probe {
    Probe {
        handler: Handler::Http {
            path: mesh.ready.0.to_owned(),
            port: Some(mesh.ready.1),
        },
        initial_delay: 0,
        period: 1,
        timeout: 3,
        success_threshold: 1,
        failure_threshold: 600,
        grace_seconds: None,
    }
}

/// A container that is not in the document.
fn assumed_container(name: &str, kind: Kind) -> Container {
    Container {
        name: name.to_owned(),
        kind,
        path: String::new(),
        own_restart: None,
        restart_rules: Vec::new(),
        image: String::new(),
        command: Vec::new(),
        env: Vec::new(),
        uid: None,
        gid: None,
        own_ids: (None, None),
        ports: Vec::new(),
        mounts: Vec::new(),
        capabilities: Vec::new(),
        startup: None,
        readiness: None,
        liveness: None,
        post_start: None,
        pre_stop: None,
    }
}
