//! The mesh that was found in a pod.

use super::{ISTIO, MESHES, Mesh, Mode};
use crate::network::Capture;
use remora_pod::spec::{Container, Handler, Kind, PodView, Slot};
use remora_rules::flow::CaptureError;
use remora_rules::pod;

/// From when traffic is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturePoint {
    /// Never.
    Never,
    /// With the sandbox, before any container.
    Sandbox,
    /// When this init container runs: one that does nothing else, or a native proxy that does it first of all.
    Container(Slot),
}

/// What delays the containers after the proxy until it is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// A startup probe of a native sidecar: the kubelet waits for it.
    StartupProbe,
    /// A postStart hook: it has a timeout, and is lost when the kubelet restarts.
    Hook,
    /// Nothing.
    Open,
}

/// The mesh of a pod.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The mesh.
    pub mesh: &'static Mesh,
    /// How the mesh is added to the pod.
    pub mode: Mode,
    /// The proxy's container.
    pub proxy: Option<Slot>,
    /// When capture begins.
    pub capture_at: CapturePoint,
    /// What is captured.
    pub capture: Capture,
    /// Why the capture options of the pod cannot be used.
    pub capture_error: Option<CaptureError>,
    /// What delays the containers after the proxy until it is ready.
    pub gate: Gate,
    /// How long the proxy keeps running after its stop signal, in seconds.
    pub drain_seconds: u64,
    /// Whether an injector will still rewrite the probes, because the mesh is assumed and not in the document.
    pub rewrites: bool,
    /// Why a pod that looks meshed is not captured.
    pub exempt: Option<&'static str>,
}

impl Setup {
    /// Reads the mesh from a pod as it is in the document.
    pub fn detect(view: &PodView) -> Self {
        let found = MESHES.iter().find_map(|m| Some((*m, real_proxy(view, m)?)));
        match found {
            Some((mesh, proxy)) => Self::with_proxy(view, mesh, proxy),
            None if is_ambient(view) => Self::ambient(view),
            None => Self::none(),
        }
    }

    /// The mesh of the pod as it is, or as an injector would leave it with this mode: containers that the mode adds and
    /// the pod lacks are added to the view, where an injector puts them. Annotations of the pod override the mode.
    pub fn assume(view: &mut PodView, mode: Option<Mode>) -> Self {
        let Some(mode) = mode else {
            return Self::detect(view);
        };
        let meshed = MESHES.iter().any(|m| real_proxy(view, m).is_some());
        if mode == Mode::Ambient {
            return Self::ambient(view);
        }
        if !meshed && mode != Mode::None {
            view.containers.retain(|c| !is_placeholder(c));
            super::assume::add_mesh(view, &ISTIO, mode);
        }
        let mut setup = Self::detect(view);
        if mode == Mode::None {
            return Self::none();
        }
        if mode.is_cni() && setup.exempt.is_none() {
            setup.capture_at = CapturePoint::Sandbox;
            setup.mode = Mode::of(true, setup.mode.is_native(), setup.mode.is_hold());
        }
        setup
    }

    fn none() -> Self {
        let mesh = &ISTIO;
        Self {
            mesh,
            mode: Mode::None,
            proxy: None,
            capture_at: CapturePoint::Never,
            capture: Capture::default(),
            capture_error: None,
            gate: Gate::Open,
            drain_seconds: mesh.drain_seconds,
            rewrites: false,
            exempt: None,
        }
    }

    fn ambient(view: &PodView) -> Self {
        let exempt = view
            .host_network
            .then_some("the pod shares the network of its node");
        let capture_at = if exempt.is_some() {
            CapturePoint::Never
        } else {
            CapturePoint::Sandbox
        };
        let mode = if exempt.is_some() {
            Mode::None
        } else {
            Mode::Ambient
        };
        Self {
            mode,
            capture_at,
            capture: Capture::ambient(),
            exempt,
            ..Self::none()
        }
    }

    fn with_proxy(view: &PodView, mesh: &'static Mesh, proxy: Slot) -> Self {
        let container = &view.containers[proxy];
        let native = container.kind != Kind::Main;
        let gate = gate(view, mesh, proxy);
        let by = view
            .init_slots()
            .find(|s| mesh.capture().contains(&view.containers[*s].name.as_str()))
            .or_else(|| (native && pod::arguments(container, mesh.dialect).is_some()).then_some(proxy));
        let exempt = exempt(view, container);
        let capture_at = match (exempt, by) {
            (Some(_), _) => CapturePoint::Never,
            (None, Some(slot)) => CapturePoint::Container(slot),
            (None, None) => CapturePoint::Sandbox,
        };
        let hold = gate == Gate::Hook && !native;
        let mode = if exempt.is_some() {
            Mode::None
        } else {
            Mode::of(by.is_none(), native, hold)
        };
        let (capture, capture_error) = Capture::of_pod(view, mesh.dialect);
        // istio: the agent takes the drain time from its environment.
        let drain = container
            .env("TERMINATION_DRAIN_DURATION_SECONDS")
            .and_then(|v| v.parse().ok());
        let drain_seconds = drain.unwrap_or(mesh.drain_seconds);
        // istio: rewriting is on unless the pod turns it off.
        let wanted = view.annotation("sidecar.istio.io/rewriteAppHTTPProbers") != Some("false");
        let rewrites = container.path.is_empty() && mesh.agent_port.is_some() && wanted;
        Self {
            mesh,
            mode,
            proxy: Some(proxy),
            capture_at,
            capture,
            capture_error,
            gate,
            drain_seconds,
            rewrites,
            exempt,
        }
    }

    /// Whether the proxy's container is this one.
    pub fn is_proxy(&self, slot: Slot) -> bool {
        self.proxy == Some(slot)
    }

    /// Whether this container belongs to the mesh rather than to the user.
    pub fn is_mesh(&self, container: &Container) -> bool {
        let name = container.name.as_str();
        name == self.mesh.proxy()
            || self.mesh.capture().contains(&name)
            || self.mesh.dialect.validation.contains(&name)
    }

    /// Whether traffic is captured when this container starts.
    pub fn captured_at_start(&self, slot: Slot) -> bool {
        match self.capture_at {
            CapturePoint::Never => false,
            CapturePoint::Sandbox => true,
            CapturePoint::Container(by) => slot > by,
        }
    }
}

fn is_ambient(view: &PodView) -> bool {
    view.label("istio.io/dataplane-mode") == Some("ambient")
        || view.annotation("istio.io/dataplane-mode") == Some("ambient")
        || view.annotation("ambient.istio.io/redirection") == Some("enabled")
}

fn exempt(view: &PodView, proxy: &Container) -> Option<&'static str> {
    if view.host_network {
        return Some("the pod shares the network of its node");
    }
    if view.annotation("sidecar.istio.io/interceptionMode") == Some("NONE") {
        return Some("interceptionMode is NONE");
    }
    // istio: `proxy sidecar` is captured, `proxy router` is a gateway and takes its traffic itself.
    let role = proxy
        .command
        .iter()
        .skip_while(|w| *w != "proxy")
        .nth(1)
        .map(String::as_str);
    matches!(role, Some("router" | "waypoint" | "ztunnel")).then_some("the proxy is a gateway")
}

/// The proxy's container, unless it is only there to be filled in by an injector.
fn real_proxy(view: &PodView, mesh: &Mesh) -> Option<Slot> {
    view.slot(mesh.proxy())
        .filter(|s| !is_placeholder(&view.containers[*s]))
}

// istio: a user may list the proxy with the image `auto` to change what the injector writes.
fn is_placeholder(container: &Container) -> bool {
    container.image == "auto" && MESHES.iter().any(|m| m.proxy() == container.name)
}

/// A gate counts only where the kubelet honours it: a startup probe on a native sidecar; a hook that waits on
/// a native sidecar or on a main container with others behind it.
fn gate(view: &PodView, mesh: &Mesh, proxy: Slot) -> Gate {
    let container = &view.containers[proxy];
    let native = container.kind == Kind::Sidecar;
    let waits = matches!(&container.post_start, Some(Handler::Exec(command)) if is_wait(mesh, command));
    if native && container.startup.is_some() {
        return Gate::StartupProbe;
    }
    let followed = native || view.main_slots().any(|s| s > proxy);
    if waits && followed { Gate::Hook } else { Gate::Open }
}

fn is_wait(mesh: &Mesh, command: &[String]) -> bool {
    let program = mesh
        .wait
        .first()
        .and_then(|w| w.rsplit('/').next())
        .unwrap_or_default();
    let words = || command.iter().flat_map(|c| c.split_whitespace());
    words().any(|w| w.rsplit('/').next() == Some(program) || w == "wait" || w.ends_with("await"))
}
