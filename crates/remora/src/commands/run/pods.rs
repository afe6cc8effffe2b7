//! The pods of a run, as far as somebody outside knows them.

use remora_engine::manifest::Owner;
use remora_pod::object;
use remora_pod::spec::{Kind, PodView, RestartPolicy};
use remora_startup::kubelet::{ContainerStatus, Millis, Phase, Status};
use remora_startup::network::NetState;
use remora_startup::sim::{Entry, What};
use serde_json::Value;
use std::sync::Arc;

/// A pod as it is shown.
#[derive(Debug)]
pub(crate) struct PodLine {
    pub(super) name: String,
    pub(super) document: Arc<Value>,
    pub(super) view: PodView,
    owner: Owner,
    pub(super) status: Option<Status>,
    /// Everything that happened to it, in order of time.
    pub(super) entries: Vec<Entry>,
    /// What connections met, from when on; nothing before there is a network.
    pub(super) network: Vec<(Millis, NetState)>,
    pub(super) shown: String,
    pub(super) ready_at: Option<Millis>,
    gone: bool,
    /// A Job made another pod in place of this one.
    pub(crate) was_replaced: bool,
}

impl PodLine {
    pub(super) fn new(document: Arc<Value>, owner: Owner) -> Self {
        Self {
            name: format!("{}/{}", object::namespace(&document), object::name(&document)),
            view: PodView::read(&document),
            document,
            owner,
            status: None,
            entries: Vec::new(),
            network: Vec::new(),
            shown: String::new(),
            ready_at: None,
            gone: false,
            was_replaced: false,
        }
    }

    /// Takes notice of something that happened.
    pub(super) fn happened(&mut self, at: Millis, what: What) {
        if what == What::SandboxReady {
            self.network.push((at, NetState::Direct));
        }
        self.entries.push(Entry { at, what });
    }

    pub(super) fn leave(&mut self) {
        self.gone = true;
    }

    pub(crate) fn phase(&self) -> Phase {
        self.status.as_ref().map_or(Phase::Pending, |s| s.phase)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|s| s.ready)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.phase().is_terminal() || self.gone
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether it is a pod that comes to an end by itself.
    pub(crate) fn is_meant_to_end(&self) -> bool {
        ends(&self.view, &self.owner)
    }

    pub(super) fn job(&self) -> Option<&str> {
        match &self.owner {
            Owner::Job(job) => Some(&job.name),
            _ => None,
        }
    }

    /// When it was made.
    pub(super) fn made_at(&self) -> Millis {
        self.entries.first().map_or(0, |e| e.at)
    }

    pub(super) fn restarts(&self) -> u32 {
        let containers = self.status.iter().flat_map(|s| &s.containers);
        containers.map(ContainerStatus::restarts).sum()
    }

    /// Ready containers and all that count, as in `1/2`.
    pub(super) fn readiness(&self) -> (u32, u32) {
        let statuses = self.status.iter().flat_map(|s| &s.containers);
        let counted = self
            .view
            .containers
            .iter()
            .zip(statuses)
            .filter(|(c, _)| c.kind != Kind::Init);
        counted.fold((0, 0), |(r, t), (_, s)| (r + u32::from(s.ready), t + 1))
    }

    /// As `kubectl get pods` has it.
    pub(super) fn state(&self) -> String {
        match &self.status {
            None => "Pending".to_owned(),
            Some(_) if self.gone => "Gone".to_owned(),
            Some(status) => status.kubectl(&self.view),
        }
    }

    /// What is worth a line when it changes.
    pub(super) fn summary(&self) -> String {
        if self.status.is_none() || self.status.as_ref().is_some_and(|s| s.deleting) {
            return self.state();
        }
        let (ready, total) = self.readiness();
        let restarts = match self.restarts() {
            0 => String::new(),
            n => format!(", {n} restarts"),
        };
        format!("{ready}/{total} {}{restarts}", self.state())
    }
}

fn ends(view: &PodView, owner: &Owner) -> bool {
    matches!(owner, Owner::Job(_)) || view.restart_policy != RestartPolicy::Always
}

/// Whether a pod comes to an end by itself.
pub(super) fn is_meant_to_end(document: &Value, owner: &Owner) -> bool {
    ends(&PodView::read(document), owner)
}

/// Words for what connections of a pod meet.
pub(super) const fn words(state: &NetState) -> &'static str {
    match state {
        NetState::Direct => "direct",
        NetState::Broken => "captured, no proxy listens",
        NetState::Proxied => "through the proxy",
        NetState::Excluded(_) => "excluded",
    }
}
