//! Probes and hooks for which the kubelet itself connects to the pod, from the node.

use crate::mesh::{CapturePoint, Mode, Setup};
use crate::sim::Part;
use remora_pod::spec::{Container, Handler, Hook, Kind, PodView, ProbeKind, Slot};

/// The path of a connection of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Inside the container; the kubelet does not connect.
    Exec,
    /// Straight to the process.
    Direct,
    /// To the agent in the proxy's container, which probes the process.
    Agent,
    /// Through the proxy.
    Proxy,
    /// Bypasses the node's proxy.
    Bypass,
    /// The kubelet does not support it.
    Impossible,
}

/// The result of a probe or hook under the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It gives the correct result from the first attempt.
    Works,
    /// Refused until the agent or the proxy runs; then it gives the correct result.
    RefusedUntilProxy,
    /// It cannot succeed while the proxy cannot start.
    NeverBeforeProxy,
    /// It always fails.
    Fails,
}

/// What changes when the mesh requires mTLS (STRICT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// Nothing.
    Same,
    /// It always fails, since the kubelet speaks plaintext.
    Fails,
    /// It always succeeds, even when the application is dead.
    Lies,
}

/// One probe or hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The container.
    pub slot: Slot,
    /// The probe or hook.
    pub part: Part,
    /// The path of its connection.
    pub path: Path,
    /// Its result.
    pub verdict: Verdict,
    /// Its result when the mesh requires mTLS.
    pub strict: Strict,
    /// Whether it succeeds although the application does not listen.
    pub lies: bool,
    /// Seconds of refusal after which the container is killed, for liveness and startup probes.
    pub patience: Option<u64>,
}

/// All probes and hooks of the pod, in order of container and part.
pub(super) fn reports(view: &PodView, setup: &Setup) -> Vec<ProbeReport> {
    let mut out = Vec::new();
    for (slot, container) in view.containers.iter().enumerate() {
        for hook in [Hook::PostStart, Hook::PreStop] {
            if let Some(handler) = container.hook(hook) {
                out.push(report(view, setup, slot, Part::Hook(hook), handler));
            }
        }
        for kind in ProbeKind::ALL {
            if let Some(probe) = container.probe(kind) {
                let mut report = report(view, setup, slot, Part::Probe(kind), &probe.handler);
                let patience = probe.period.saturating_mul(probe.failure_threshold);
                let kills = kind != ProbeKind::Readiness;
                report.patience = kills.then(|| probe.initial_delay.saturating_add(patience));
                out.push(report);
            }
        }
    }
    out
}

/// The report about one of them.
pub(super) fn find(reports: &[ProbeReport], slot: Slot, part: Part) -> Option<&ProbeReport> {
    let index = reports
        .binary_search_by_key(&(slot, part), |r| (r.slot, r.part))
        .ok()?;
    reports.get(index)
}

fn report(view: &PodView, setup: &Setup, slot: Slot, part: Part, handler: &Handler) -> ProbeReport {
    let container = &view.containers[slot];
    let path = path(setup, slot, container, part, handler);
    let through = path == Path::Proxy;
    let tcp = matches!(handler, Handler::Tcp(_));
    let strict = match (through, tcp) {
        (true, true) => Strict::Lies,
        (true, false) => Strict::Fails,
        (false, _) => Strict::Same,
    };
    let verdict = verdict(view, setup, slot, container, part, path);
    ProbeReport {
        slot,
        part,
        path,
        verdict,
        strict,
        lies: through && tcp,
        patience: None,
    }
}

fn path(setup: &Setup, slot: Slot, container: &Container, part: Part, handler: &Handler) -> Path {
    let hook = matches!(part, Part::Hook(_));
    match handler {
        Handler::Exec(_) | Handler::Sleep(_) => return Path::Exec,
        Handler::Tcp(_) | Handler::Grpc(_) if hook => return Path::Impossible,
        _ => {}
    }
    let Some(number) = handler.kubelet_port() else {
        return Path::Impossible;
    };
    let own = setup.is_mesh(container);
    let rewritten = setup.mesh.agent_port == Some(number) || setup.rewrites;
    if !own && rewritten && setup.proxy.is_some() && setup.mode != Mode::None {
        return Path::Agent;
    }
    match setup.mode {
        Mode::None => Path::Direct,
        Mode::Ambient => Path::Bypass,
        _ if !setup.capture.captures_inbound(number) => Path::Direct,
        _ if is_before_capture(setup, slot, container, part) => Path::Direct,
        _ => Path::Proxy,
    }
}

/// A native sidecar in front of the container that installs the rules has started before they exist.
fn is_before_capture(setup: &Setup, slot: Slot, container: &Container, part: Part) -> bool {
    let starts = matches!(
        part,
        Part::Probe(ProbeKind::Startup) | Part::Hook(Hook::PostStart)
    );
    let early = matches!(setup.capture_at, CapturePoint::Container(by) if slot < by);
    early && starts && container.kind != Kind::Main
}

fn verdict(
    view: &PodView,
    setup: &Setup,
    slot: Slot,
    container: &Container,
    part: Part,
    path: Path,
) -> Verdict {
    match path {
        Path::Impossible => return Verdict::Fails,
        Path::Exec | Path::Direct | Path::Bypass => return Verdict::Works,
        Path::Agent | Path::Proxy => {}
    }
    let Some(proxy) = setup.proxy else {
        return Verdict::Works;
    };
    let behind = slot > proxy;
    let gated = setup.gate != crate::mesh::Gate::Open;
    // The agent answers as soon as its container runs, the proxy only once it is ready.
    if behind && (gated || path == Path::Agent) {
        return Verdict::Works;
    }
    let blocks = match part {
        Part::Probe(ProbeKind::Startup) => container.kind == Kind::Sidecar,
        Part::Hook(Hook::PostStart) => true,
        _ => false,
    };
    let proxy_waits =
        !behind && (container.kind == Kind::Sidecar || view.containers[proxy].kind == Kind::Main);
    if blocks && proxy_waits {
        Verdict::NeverBeforeProxy
    } else {
        Verdict::RefusedUntilProxy
    }
}
