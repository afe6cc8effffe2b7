//! The steps of a pod's life in order, each with its earliest and latest time.
//!
//! Times are relative to the event that a step waits for. They are the delays of a current kubelet when images are
//! present and the machine is not overloaded: a step that the kubelet causes itself takes 0.1 to 0.3 s, one that
//! follows the end of a container up to 1.3 s (one relist per second); before 1.36 every step may take that second.

use super::{Analysis, Anchor, Bound};
use crate::kubelet::Config;
use crate::mesh::{CapturePoint, Mode};
use remora_pod::spec::{Kind, Probe, ProbeKind, Slot};

/// A step in a pod's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The sandbox and its network are made.
    Sandbox,
    /// Traffic is captured from here on.
    Captured,
    /// A container is started.
    Start(Slot),
    /// The API shows the pod's address.
    Address,
    /// A probe is made for the first time.
    Probe(Slot, ProbeKind),
    /// The proxy takes traffic.
    ProxyUp,
    /// A preStop hook begins.
    PreStop(Slot),
    /// A container gets its stop signal.
    Signal(Slot),
    /// A container that does not stop is killed.
    Kill(Slot),
}

/// A step and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// What happens.
    pub step: Step,
    /// When.
    pub when: Bound,
}

/// Time from one start to the next: minimum and maximum in milliseconds.
const START_DELAY: (u64, u64) = (80, 400);
/// Time from the end of a container to the next step, and from any cause on kubelets without on-demand relist: minimum
/// and maximum in milliseconds.
const RELIST_DELAY: (u64, u64) = (80, 1400);
/// Time from the deletion to its first effect: minimum and maximum in milliseconds.
const DELETE_DELAY: (u64, u64) = (0, 1500);

impl Analysis {
    /// The steps of a life without failures, in order.
    pub fn steps(&self, kubelet: &Config) -> Vec<Timed> {
        let own = if kubelet.relist_on_demand {
            START_DELAY
        } else {
            RELIST_DELAY
        };
        let mut out = vec![Timed {
            step: Step::Sandbox,
            when: Bound::at(Anchor::Sandbox),
        }];
        if self.setup.capture_at == CapturePoint::Sandbox {
            out.push(Timed {
                step: Step::Captured,
                when: Bound::at(Anchor::Sandbox),
            });
        }
        for slot in 0..self.view.containers.len() {
            out.push(Timed {
                step: Step::Start(slot),
                when: self.start_of(slot, own),
            });
            if self.setup.capture_at == CapturePoint::Container(slot) {
                let when = Bound {
                    after: Anchor::Started(slot),
                    earliest: 0,
                    latest: None,
                };
                out.push(Timed {
                    step: Step::Captured,
                    when,
                });
            }
            if self.setup.is_proxy(slot) && self.setup.mode != Mode::None {
                let when = Bound {
                    after: Anchor::Started(slot),
                    earliest: 0,
                    latest: None,
                };
                out.push(Timed {
                    step: Step::ProxyUp,
                    when,
                });
            }
            if Some(slot) == self.address_after() {
                let when = Bound::between(self.start_done(slot), 0, own.1);
                out.push(Timed {
                    step: Step::Address,
                    when,
                });
            }
        }
        self.add_probes(&mut out);
        self.add_stop(&mut out);
        out
    }

    /// The container whose start ends the first pass.
    fn address_after(&self) -> Option<Slot> {
        self.view
            .init_slots()
            .next()
            .or_else(|| self.view.main_slots().next_back())
    }

    /// The moment the pass goes on after starting a container.
    fn start_done(&self, slot: Slot) -> Anchor {
        if self.view.containers[slot].post_start.is_some() {
            Anchor::HookEnded(slot)
        } else {
            Anchor::Started(slot)
        }
    }

    fn start_of(&self, slot: Slot, own: (u64, u64)) -> Bound {
        let Some(before) = slot.checked_sub(1) else {
            return Bound::between(Anchor::Sandbox, 0, START_DELAY.1);
        };
        let container = &self.view.containers[before];
        match (container.kind, &container.startup) {
            // Within one pass the kubelet needs no relist.
            (Kind::Main, _) => Bound::between(self.start_done(before), START_DELAY.0, START_DELAY.1),
            (Kind::Init, _) => Bound::between(Anchor::Ended(before), RELIST_DELAY.0, RELIST_DELAY.1),
            (Kind::Sidecar, Some(_)) => Bound::between(Anchor::ProbeSucceeded(before), own.0, RELIST_DELAY.1),
            (Kind::Sidecar, None) => Bound::between(self.start_done(before), own.0, own.1),
        }
    }

    /// k8s: probes tick from the first pass on, so the first one comes between the delay and a period after it, once
    /// the pass that started the container is over. The readiness probe runs immediately.
    fn add_probes(&self, out: &mut Vec<Timed>) {
        for (slot, container) in self.view.containers.iter().enumerate() {
            if container.kind == Kind::Init {
                continue;
            }
            let last = if container.kind == Kind::Main {
                self.view.containers.len() - 1
            } else {
                slot
            };
            for kind in ProbeKind::ALL {
                let Some(probe) = container.probe(kind) else {
                    continue;
                };
                let after = match (kind, &container.startup) {
                    (ProbeKind::Startup, _) | (_, None) => self.start_done(last),
                    (_, Some(_)) => Anchor::ProbeSucceeded(slot),
                };
                let (earliest, latest) = first_attempt(probe, kind);
                out.push(Timed {
                    step: Step::Probe(slot, kind),
                    when: Bound::between(after, earliest, latest),
                });
            }
        }
    }

    fn add_stop(&self, out: &mut Vec<Timed>) {
        let grace = self.view.grace_seconds.saturating_mul(1000);
        for (slot, container) in self
            .view
            .containers
            .iter()
            .enumerate()
            .filter(|(_, c)| c.kind != Kind::Init)
        {
            if container.pre_stop.is_some() {
                out.push(Timed {
                    step: Step::PreStop(slot),
                    when: Bound::between(Anchor::Deleted, DELETE_DELAY.0, DELETE_DELAY.1),
                });
            }
        }
        let sidecars = self
            .view
            .init_slots()
            .rev()
            .filter(|s| self.view.containers[*s].kind == Kind::Sidecar);
        let mut turn = Anchor::Deleted;
        for slot in self.view.main_slots().chain(sidecars) {
            let container = &self.view.containers[slot];
            let own = if container.pre_stop.is_some() { grace } else { 0 };
            let when = match container.kind {
                Kind::Sidecar => Bound::between(turn, 0, grace.saturating_add(DELETE_DELAY.1)),
                Kind::Init | Kind::Main => Bound::between(
                    Anchor::Deleted,
                    DELETE_DELAY.0,
                    own.saturating_add(DELETE_DELAY.1),
                ),
            };
            out.push(Timed {
                step: Step::Signal(slot),
                when,
            });
            let latest = grace.saturating_add(2000).saturating_add(DELETE_DELAY.1);
            out.push(Timed {
                step: Step::Kill(slot),
                when: Bound::between(Anchor::Deleted, 2000, latest),
            });
            let last_main = slot + 1 == self.view.containers.len();
            turn = if last_main || container.kind == Kind::Main {
                Anchor::MainsGone
            } else {
                Anchor::Ended(slot)
            };
        }
    }
}

fn first_attempt(probe: &Probe, kind: ProbeKind) -> (u64, u64) {
    let delay = probe.initial_delay.saturating_mul(1000);
    let wait = if kind == ProbeKind::Readiness && delay == 0 {
        0
    } else {
        probe.period.saturating_mul(1000)
    };
    (
        if kind == ProbeKind::Startup { delay } else { 0 },
        delay.saturating_add(wait).saturating_add(RELIST_DELAY.1),
    )
}
