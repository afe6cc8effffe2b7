//! The end of the pod: when each container loses the network, and whether the pod ends at all.
//!
//! k8s: without native sidecars all containers get the stop signal at the same time, so a classic proxy exits when
//! its drain is over, even if the application still sends. A native proxy is stopped after the mains, and after the
//! native sidecars listed after it; those before it outlive it.

use super::reach::ContainerInPod;
use super::{Anchor, Bound, Completion, Reach, Span};
use crate::mesh::{CapturePoint, Mode, Setup};
use remora_pod::spec::{Kind, PodView, RestartPolicy};

/// The network states of a container while the pod is being stopped.
pub(super) fn spans(place: &ContainerInPod<'_>) -> Vec<Span> {
    let from = Bound::at(Anchor::Deleted);
    let until = Bound::at(Anchor::Ended(place.slot));
    let setup = place.setup;
    if setup.capture_at == CapturePoint::Never {
        return vec![place.stop_span(Reach::Direct, from, until)];
    }
    let (Some(proxy), false) = (setup.proxy, setup.mode == Mode::Ambient) else {
        return vec![place.stop_span(Reach::Proxied, from, until)];
    };
    if proxy == place.slot {
        return Vec::new();
    }
    let kind = place.container.kind;
    if kind == Kind::Init && !setup.captured_at_start(place.slot) {
        return vec![place.stop_span(Reach::Direct, from, until)];
    }
    if setup.mode.is_classic() && kind == Kind::Init {
        return vec![place.stop_span(Reach::Broken, from, until)];
    }
    let outlives = match kind {
        Kind::Main => setup.mode.is_classic(),
        Kind::Sidecar => setup.mode.is_classic() || place.slot < proxy,
        // Deleted while it runs: it and the last native sidecar get the signal together.
        Kind::Init => true,
    };
    if !outlives {
        return vec![place.stop_span(Reach::Proxied, from, until)];
    }
    let drain = if setup.mode.is_classic() {
        setup.drain_seconds.saturating_mul(1000)
    } else {
        0
    };
    let grace = place.view.grace_seconds.saturating_mul(1000);
    let gone = Bound::between(Anchor::Deleted, drain.min(grace), grace.saturating_add(2000));
    vec![
        place.stop_span(Reach::Proxied, from, gone),
        place.stop_span(Reach::Broken, Bound::at(Anchor::ProxyGone), until),
    ]
}

/// Whether a pod that runs to completion ends.
pub(super) fn completion(view: &PodView, setup: &Setup) -> Completion {
    if view.restart_policy == RestartPolicy::Always {
        return Completion::Service;
    }
    let proxy_is_main = setup.proxy.is_some_and(|p| view.containers[p].kind == Kind::Main);
    if proxy_is_main {
        Completion::NeverEnds
    } else {
        Completion::Ends
    }
}
