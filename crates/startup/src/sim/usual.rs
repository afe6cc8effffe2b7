//! The default scenario: what is assumed of a pod without stated assumptions.

use super::{Act, Actor, Behaviour, Intervention, Part, Role, Scenario, Target};
use crate::analysis::{ActorReport, Analysis};
use crate::kubelet::Millis;
use crate::mesh::{CapturePoint, Setup};
use crate::needs;
use remora_pod::spec::{Container, Handler, Hook, Kind, ProbeKind};

/// From the start of a proxy to its readiness.
const PROXY_READY_AFTER: Millis = 1500;
/// How long an init container runs.
const INIT_DURATION: Millis = 500;
/// How long the main container of a Job runs.
const JOB_DURATION: Millis = 5000;
/// How long a pod runs before it is deleted.
const POD_RUN_DURATION: Millis = 6000;
/// How long a hook tries to connect.
const HOOK_TIMEOUT: Millis = 3000;

impl Scenario {
    /// The default scenario of a whole life: the pod starts, runs for a few seconds, and is deleted unless it ends by
    /// itself. A pod that cannot start is simulated for half a minute.
    pub fn life(analysis: &Analysis) -> Self {
        let mut scenario = Self::usual(analysis);
        scenario.horizon = 30_000;
        let last = analysis
            .view
            .main_slots()
            .next_back()
            .map(|s| analysis.view.containers[s].name.clone());
        if let (Some(last), false) = (last, analysis.view.batch) {
            let on = format!("{last}.start");
            scenario.interventions.push(Intervention {
                on,
                after: POD_RUN_DURATION,
                act: Act::Delete(None),
            });
            scenario.horizon = scenario
                .horizon
                .saturating_add(analysis.view.grace_seconds.min(60) * 1000);
        }
        scenario
    }

    /// A scenario in which every process behaves as its kind usually does: the proxy is ready after 1.5 s, init
    /// containers work for half a second and fail without the network they probably need, mains stay.
    pub fn usual(analysis: &Analysis) -> Self {
        let mut scenario = Self::new(analysis.view.clone());
        let setup = &analysis.setup;
        if setup.capture_at == CapturePoint::Sandbox {
            scenario.at_sandbox = Some(setup.capture.clone());
        }
        for report in &analysis.actors {
            let container = &analysis.view.containers[report.actor.slot];
            let behaviour = match report.actor.part {
                Part::Main => main(analysis, container, report),
                part => command(setup, report, part),
            };
            scenario.actors.push((report.actor, behaviour));
        }
        scenario
    }
}

fn main(analysis: &Analysis, container: &Container, report: &ActorReport) -> Behaviour {
    let setup = &analysis.setup;
    if setup.is_proxy(report.actor.slot) {
        let drains = if container.kind == Kind::Main {
            setup.drain_seconds.saturating_mul(1000)
        } else {
            0
        };
        let role = Role::Proxy {
            ready_after: PROXY_READY_AFTER,
            strict: false,
        };
        let itself = setup.capture_at == CapturePoint::Container(report.actor.slot);
        return Behaviour {
            role,
            captures: itself.then(|| setup.capture.clone()),
            drains: Some(drains),
            ..Behaviour::default()
        };
    }
    if setup.capture_at == CapturePoint::Container(report.actor.slot) {
        return Behaviour {
            role: Role::Capture(setup.capture.clone()),
            ..Behaviour::default()
        };
    }
    let lives = match container.kind {
        Kind::Init => Some(INIT_DURATION),
        Kind::Main if analysis.view.batch => Some(JOB_DURATION),
        Kind::Main | Kind::Sidecar => None,
    };
    let needy = container.kind == Kind::Init && report.need.is_likely();
    let targets = if setup.is_mesh(container) {
        Vec::new()
    } else {
        targets(container)
    };
    Behaviour {
        lives,
        must_connect: needy && !targets.is_empty(),
        targets,
        listens: ports(setup, container),
        drains: Some(500),
        ..Behaviour::default()
    }
}

fn command(setup: &Setup, report: &ActorReport, part: Part) -> Behaviour {
    if setup.is_proxy(report.actor.slot) && part == Part::Hook(Hook::PostStart) {
        let role = Role::AwaitProxy(setup.mesh.wait_seconds * 1000);
        return Behaviour {
            role,
            ..Behaviour::default()
        };
    }
    if !report.need.is_likely() {
        return Behaviour::default_of(part);
    }
    let target = Target {
        name: "network".to_owned(),
        address: None,
        port: None,
    };
    Behaviour {
        lives: Some(if matches!(part, Part::Probe(_)) {
            500
        } else {
            HOOK_TIMEOUT
        }),
        targets: vec![target],
        must_connect: true,
        ends_connected: true,
        ..Behaviour::default()
    }
}

/// The first known destination, or an arbitrary one: its network state is of interest even if the process never
/// connects.
fn targets(container: &Container) -> Vec<Target> {
    let known = needs::destinations(container);
    let first = known.first();
    let name = first.map_or_else(|| "network".to_owned(), ToString::to_string);
    vec![Target {
        name,
        address: first.and_then(needs::Destination::address),
        port: first.and_then(|d| d.port),
    }]
}

/// Every port that probes and hooks of the kubelet, or the agent on its behalf, may connect to.
fn ports(setup: &Setup, container: &Container) -> Vec<u16> {
    let declared = container.ports.iter().map(|(_, p)| *p);
    let probed = ProbeKind::ALL
        .into_iter()
        .filter_map(|k| container.probe(k))
        .map(|p| &p.handler);
    let hooked = [Hook::PostStart, Hook::PreStop]
        .into_iter()
        .filter_map(|h| container.hook(h));
    let dialled = probed.chain(hooked).filter_map(|handler| match handler {
        Handler::Http { path, port } if *port == setup.mesh.agent_port => path
            .strip_prefix("/app-health/")
            .and_then(|rest| rest.split('/').next()?.parse().ok()),
        other => other.kubelet_port(),
    });
    let mut ports: Vec<u16> = declared.chain(dialled).collect();
    if ports.is_empty() {
        // A port for the agent to probe, where probes were rewritten and no port is declared.
        ports.push(8080);
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

impl Actor {
    /// The actor a word names: `app`, `app/postStart`, `app/readinessProbe`.
    pub(super) fn parse(word: &str, slot: impl Fn(&str) -> Option<usize>) -> Option<Self> {
        let (container, part) = word.split_once('/').map_or((word, None), |(c, p)| (c, Some(p)));
        let slot = slot(container)?;
        let part = match part {
            None => Part::Main,
            Some(name) => {
                let hooks = [Hook::PostStart, Hook::PreStop].map(Part::Hook);
                let probes = ProbeKind::ALL.map(Part::Probe);
                hooks.into_iter().chain(probes).find(|p| p.name() == Some(name))?
            }
        };
        Some(Self { slot, part })
    }
}
