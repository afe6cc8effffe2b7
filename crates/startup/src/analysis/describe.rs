//! The analysis in words.

use super::{Anchor, Bound, Caveat, Completion, Cycle, Stage, Step};
use crate::kubelet::Millis;
use remora_pod::spec::PodView;

impl Stage {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Start => "start",
            Self::Run => "run",
            Self::ProxyDown => "proxy-down",
            Self::Stop => "stop",
        }
    }
}

impl Completion {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Ends => "ends",
            Self::NeverEnds => "never-ends",
        }
    }
}

impl Anchor {
    /// In words.
    pub fn describe(self, view: &PodView) -> String {
        let name = |slot| {
            view.containers
                .get(slot)
                .map_or("?", |c: &remora_pod::spec::Container| c.name.as_str())
        };
        match self {
            Self::Sandbox => "the sandbox exists".to_owned(),
            Self::Captured => "traffic is captured".to_owned(),
            Self::Started(slot) => format!("{} starts", name(slot)),
            Self::Ended(slot) => format!("{} ends", name(slot)),
            Self::HookEnded(slot) => format!("the postStart hook of {} ends", name(slot)),
            Self::ProbeSucceeded(slot) => format!("the startup probe of {} succeeds", name(slot)),
            Self::ProxyUp => "the proxy is ready".to_owned(),
            Self::ProxyGone => "the proxy is gone".to_owned(),
            Self::Deleted => "the pod is deleted".to_owned(),
            Self::MainsGone => "the last main container has ended".to_owned(),
        }
    }
}

impl Bound {
    /// In words: `when app starts`, `0.1 to 2.1 s after the proxy is ready`.
    pub fn describe(self, view: &PodView) -> String {
        let after = self.after.describe(view);
        match (self.earliest, self.latest) {
            (0, Some(0)) => format!("when {after}"),
            (earliest, Some(latest)) if earliest == latest => format!("{} s after {after}", seconds(latest)),
            (earliest, Some(latest)) => {
                format!("{} to {} s after {after}", seconds(earliest), seconds(latest))
            }
            (0, None) => format!("some time after {after}"),
            (earliest, None) => format!("at least {} s after {after}", seconds(earliest)),
        }
    }
}

fn seconds(time: Millis) -> String {
    let tenths = time % 1000 / 100;
    if tenths == 0 {
        (time / 1000).to_string()
    } else {
        format!("{}.{tenths}", time / 1000)
    }
}

impl Caveat {
    /// In words.
    pub fn describe(self) -> String {
        match self {
            Self::Plaintext => "plaintext without mesh identity; peers that demand mTLS refuse".to_owned(),
            Self::HoldGivesUp(seconds) => {
                format!("unless the proxy takes longer than {seconds} s or crashes")
            }
            Self::HookLostOnRestart => "unless the kubelet restarts meanwhile".to_owned(),
            Self::ConnectionsBreak => "connections opened before break".to_owned(),
            Self::AwaitsAddress => "each connection waits for the pod's address, at most 5 s".to_owned(),
        }
    }
}

impl Cycle {
    /// In words, one line per wait.
    pub fn describe(&self, view: &PodView) -> Vec<String> {
        let line = |e: &super::Edge| {
            format!(
                "{} waits for {}: {}",
                e.from.describe(view),
                e.to.describe(view),
                e.why
            )
        };
        self.edges.iter().map(line).collect()
    }
}

impl Step {
    /// In words.
    pub fn describe(self, view: &PodView) -> String {
        let name = |slot| {
            view.containers
                .get(slot)
                .map_or("?", |c: &remora_pod::spec::Container| c.name.as_str())
        };
        match self {
            Self::Sandbox => "the sandbox is made".to_owned(),
            Self::Captured => "traffic is captured".to_owned(),
            Self::Start(slot) => format!("{} is started", name(slot)),
            Self::Address => "the API shows the pod's address".to_owned(),
            Self::Probe(slot, kind) => format!("the first {} of {}", kind.field(), name(slot)),
            Self::ProxyUp => "the proxy is ready".to_owned(),
            Self::PreStop(slot) => format!("the preStop hook of {} begins", name(slot)),
            Self::Signal(slot) => format!("{} gets the stop signal", name(slot)),
            Self::Kill(slot) => format!("{} is killed if it still runs", name(slot)),
        }
    }
}
