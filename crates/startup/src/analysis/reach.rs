//! Network states of every process, stage by stage.

use super::stop;
use super::{ActorReport, Anchor, Bound, Caveat, Reach, Span, Stage};
use crate::mesh::{CapturePoint, Gate, Mode, Setup};
use crate::needs::{self, Destination, Need};
use crate::network::{Exempt, Flow};
use crate::sim::{Actor, Part};
use remora_pod::spec::{Container, Handler, Hook, Kind, PodView, ProbeKind, Slot};

/// Time from the proxy's readiness to the start of the containers that wait for its startup probe, in addition to the
/// probe's period: minimum and maximum in milliseconds.
const DELAY_AFTER_PROBE: (u64, u64) = (100, 1100);
/// The same for a postStart hook, which polls twice a second.
const DELAY_AFTER_HOOK: (u64, u64) = (200, 800);

/// All processes of the pod.
pub(super) fn actors(view: &PodView, setup: &Setup, needs: &[Need]) -> Vec<ActorReport> {
    let mut out = Vec::new();
    for (slot, container) in view.containers.iter().enumerate() {
        let place = ContainerInPod {
            view,
            setup,
            slot,
            container,
        };
        out.push(place.main(needs[slot].clone()));
        for hook in [Hook::PostStart, Hook::PreStop] {
            if let Some(Handler::Exec(command)) = container.hook(hook) {
                out.push(place.exec(Part::Hook(hook), command));
            }
        }
        for kind in ProbeKind::ALL {
            if let Some(Handler::Exec(command)) = container.probe(kind).map(|p| &p.handler) {
                out.push(place.exec(Part::Probe(kind), command));
            }
        }
    }
    out
}

/// k8s: with an init container the address is published by the pass after it started, unless that pass is held up
/// by the postStart hook of a native sidecar in first place.
pub(super) fn address_before_hooks(view: &PodView) -> bool {
    let first = view.init_slots().next();
    first.is_some_and(|s| view.containers[s].kind != Kind::Sidecar || view.containers[s].post_start.is_none())
}

/// One container in its pod.
pub(super) struct ContainerInPod<'a> {
    pub(super) view: &'a PodView,
    pub(super) setup: &'a Setup,
    pub(super) slot: Slot,
    pub(super) container: &'a Container,
}

impl ContainerInPod<'_> {
    fn main(&self, need: Need) -> ActorReport {
        let actor = Actor {
            slot: self.slot,
            part: Part::Main,
        };
        let mut spans = match self.container.kind {
            Kind::Init => vec![self.init_span()],
            Kind::Sidecar => self.sidecar_spans(),
            Kind::Main => self.main_spans(),
        };
        let known = needs::destinations(self.container);
        spans.extend(stop::spans(self));
        self.apply_exemptions(&mut spans, &known);
        let need = if self.setup.is_mesh(self.container) {
            Need::No("it belongs to the mesh")
        } else {
            need
        };
        ActorReport { actor, need, spans }
    }

    /// A command inside the container: same user, same network, its own moment.
    fn exec(&self, part: Part, command: &[String]) -> ActorReport {
        let mut spans = match self.container.kind {
            Kind::Main => self.main_spans(),
            Kind::Init | Kind::Sidecar => self.sidecar_spans(),
        };
        if part == Part::Hook(Hook::PreStop) {
            // It also runs when the container alone is killed, by a probe or a failed hook, at any time.
            spans.extend(stop::spans(self));
        }
        if part == Part::Hook(Hook::PostStart) {
            self.await_address(&mut spans);
        }
        self.apply_exemptions(&mut spans, &[]);
        let need = needs::of_command(command);
        let waits = self.setup.is_proxy(self.slot);
        let need = if waits {
            Need::No("it asks the proxy in its own pod")
        } else {
            need
        };
        ActorReport {
            actor: Actor {
                slot: self.slot,
                part,
            },
            need,
            spans,
        }
    }

    /// Ambient: the node proxy learns of the pod from the API, which does not show it before the first pass ends.
    fn await_address(&self, spans: &mut [Span]) {
        if self.setup.mode == Mode::Ambient
            && !address_before_hooks(self.view)
            && let Some(first) = spans.first_mut()
        {
            first.caveat = Some(Caveat::AwaitsAddress);
        }
    }

    /// The network state when this container starts.
    pub(super) fn at_start(&self) -> (Reach, Option<Caveat>) {
        if !self.setup.captured_at_start(self.slot) {
            let plaintext = self.setup.mode != Mode::None;
            return (Reach::Direct, plaintext.then_some(Caveat::Plaintext));
        }
        if self.setup.mode == Mode::Ambient {
            return (Reach::Proxied, None);
        }
        let native = self.setup.mode.is_native();
        let behind = self.setup.proxy.is_some_and(|p| p < self.slot);
        let gave = Caveat::HoldGivesUp(self.setup.mesh.wait_seconds);
        match (behind, self.setup.gate) {
            (true, Gate::StartupProbe) => (Reach::Proxied, None),
            (true, Gate::Hook) if native => (Reach::Proxied, Some(Caveat::HookLostOnRestart)),
            (true, Gate::Hook) => (Reach::Proxied, Some(gave)),
            (true, Gate::Open) => (Reach::Racing, None),
            // The proxy comes later: in the same pass for a main container, not before this one ends otherwise.
            (false, _) if self.container.kind == Kind::Main => (Reach::Racing, None),
            (false, _) => (Reach::Broken, None),
        }
    }

    fn gate_bound(&self) -> Bound {
        let period = self
            .setup
            .proxy
            .and_then(|p| self.view.containers[p].startup.as_ref())
            .map_or(1, |s| s.period);
        match self.setup.gate {
            Gate::StartupProbe => {
                let latest = DELAY_AFTER_PROBE.1.saturating_add(period.saturating_mul(1000));
                Bound::between(Anchor::ProxyUp, DELAY_AFTER_PROBE.0, latest)
            }
            Gate::Hook => Bound::between(Anchor::ProxyUp, DELAY_AFTER_HOOK.0, DELAY_AFTER_HOOK.1),
            Gate::Open => Bound::at(Anchor::Started(self.slot)),
        }
    }

    fn span(&self, stage: Stage, reach: Reach, from: Bound, until: Bound, caveat: Option<Caveat>) -> Span {
        let dns = if self.setup.capture.captures_dns() {
            reach.clone()
        } else {
            Reach::Direct
        };
        Span {
            stage,
            reach,
            dns,
            from,
            until,
            caveat,
        }
    }

    fn starting_at(&self, reach: &Reach) -> Bound {
        if *reach == Reach::Proxied && self.setup.mode != Mode::Ambient {
            self.gate_bound()
        } else {
            Bound::at(Anchor::Started(self.slot))
        }
    }

    fn init_span(&self) -> Span {
        let (reach, caveat) = self.at_start();
        let from = self.starting_at(&reach);
        self.span(
            Stage::Init,
            reach,
            from,
            Bound::at(Anchor::Ended(self.slot)),
            caveat,
        )
    }

    fn start_span(&self) -> Span {
        let (reach, caveat) = self.at_start();
        let from = self.starting_at(&reach);
        let until = if reach == Reach::Racing {
            Anchor::ProxyUp
        } else {
            Anchor::Deleted
        };
        self.span(Stage::Start, reach, from, Bound::at(until), caveat)
    }

    fn main_spans(&self) -> Vec<Span> {
        let mut out = vec![self.start_span()];
        out.extend(self.steady_spans());
        out
    }

    fn sidecar_spans(&self) -> Vec<Span> {
        let (reach, caveat) = self.at_start();
        let from = self.starting_at(&reach);
        let later = matches!(self.setup.capture_at, CapturePoint::Container(by) if by > self.slot);
        let mut out = Vec::new();
        match reach {
            Reach::Direct if later => {
                out.push(self.span(
                    Stage::Init,
                    Reach::Direct,
                    from,
                    Bound::at(Anchor::Captured),
                    caveat,
                ));
                let (from, until) = (Bound::at(Anchor::Captured), Bound::at(Anchor::ProxyUp));
                let broken = Some(Caveat::ConnectionsBreak);
                out.push(self.span(Stage::Init, Reach::Broken, from, until, broken));
            }
            Reach::Broken | Reach::Racing => {
                out.push(self.span(Stage::Init, reach, from, Bound::at(Anchor::ProxyUp), caveat));
            }
            _ => out.push(self.span(Stage::Init, reach, from, Bound::at(Anchor::Deleted), caveat)),
        }
        out.extend(self.steady_spans());
        out
    }

    /// Once everything has started, and when the proxy dies later.
    fn steady_spans(&self) -> Vec<Span> {
        let until = Bound::at(Anchor::Deleted);
        if self.setup.capture_at == CapturePoint::Never {
            let from = Bound::at(Anchor::Started(self.slot));
            return vec![self.span(Stage::Run, Reach::Direct, from, until, None)];
        }
        let mut out = vec![self.span(
            Stage::Run,
            Reach::Proxied,
            Bound::at(Anchor::ProxyUp),
            until,
            None,
        )];
        if self.setup.proxy.is_some() && !self.setup.is_proxy(self.slot) {
            let (from, until) = (Bound::at(Anchor::ProxyGone), Bound::at(Anchor::ProxyUp));
            let breaks = Some(Caveat::ConnectionsBreak);
            out.push(self.span(Stage::ProxyDown, Reach::Broken, from, until, breaks));
        }
        out
    }

    pub(super) fn stop_span(&self, reach: Reach, from: Bound, until: Bound) -> Span {
        self.span(Stage::Stop, reach, from, until, None)
    }

    /// Why no flow of this container is captured, if that is so.
    pub(super) fn exemption(&self, known: &[Destination]) -> Option<Exempt> {
        let anywhere = Flow {
            uid: self.container.uid,
            gid: self.container.gid,
            ..Flow::default()
        };
        let rules = &self.setup.capture;
        let to = |d: &Destination| {
            rules.exempt(&Flow {
                address: d.address(),
                port: d.port,
                ..anywhere.clone()
            })
        };
        if known.is_empty() {
            return rules.exempt(&anywhere);
        }
        let reasons: Option<Vec<Exempt>> = known.iter().map(to).collect();
        reasons?.into_iter().next()
    }

    fn apply_exemptions(&self, spans: &mut [Span], known: &[Destination]) {
        let Some(reason) = self.exemption(known) else {
            return;
        };
        let by_user = matches!(reason, Exempt::Uid(_) | Exempt::Gid(_));
        for span in spans {
            if span.reach != Reach::Direct {
                span.reach = Reach::Excluded(reason.clone());
                span.caveat = None;
                if by_user {
                    span.dns = Reach::Direct;
                }
            }
        }
    }
}
