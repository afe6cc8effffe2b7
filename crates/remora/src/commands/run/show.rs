//! What a person sees of a run: a line for every change, and what containers write if it is asked for.

use super::args::Args;
use crate::out;
use anstyle::{AnsiColor, Style};
use remora_engine::manifest::Owner;
use remora_engine::world::{Notice, PodId, Stream};
use remora_pod::object;
use remora_startup::kubelet::{Millis, Phase, Status};
use remora_startup::network::NetState;
use remora_startup::sim::What;
use remora_startup::view::{PodView, RestartPolicy};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Instant;

const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Magenta,
    AnsiColor::BrightCyan,
];

/// A pod as it is shown.
#[derive(Debug)]
pub(crate) struct PodLine {
    name: String,
    view: PodView,
    owner: Owner,
    status: Option<Status>,
    network: NetState,
    shown: String,
    ready_at: Option<Millis>,
    gone: bool,
    /// A Job made another pod in place of this one.
    pub(crate) was_replaced: bool,
}

impl PodLine {
    fn new(document: &Value, owner: Owner) -> Self {
        Self {
            name: format!("{}/{}", object::namespace(document), object::name(document)),
            view: PodView::read(document),
            owner,
            status: None,
            network: NetState::Direct,
            shown: String::new(),
            ready_at: None,
            gone: false,
            was_replaced: false,
        }
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

    fn job(&self) -> Option<&str> {
        match &self.owner {
            Owner::Job(job) => Some(&job.name),
            _ => None,
        }
    }

    /// What is worth a line when it changes.
    fn summary(&self) -> String {
        let Some(status) = &self.status else {
            return "Pending".to_owned();
        };
        if status.deleting {
            return "Terminating".to_owned();
        }
        let counted = self.view.containers.iter().zip(&status.containers);
        let counted = counted.filter(|(c, _)| c.kind != remora_startup::view::Kind::Init);
        let (ready, total) = counted.fold((0, 0), |(r, t), (_, s)| (r + u32::from(s.ready), t + 1));
        let restarts: u32 = status
            .containers
            .iter()
            .map(remora_startup::kubelet::ContainerStatus::restarts)
            .sum();
        let mut text = format!("{ready}/{total} {}", status.kubectl(&self.view));
        if restarts > 0 {
            let _ = write!(text, ", {restarts} restarts");
        }
        text
    }
}

fn ends(view: &PodView, owner: &Owner) -> bool {
    matches!(owner, Owner::Job(_)) || view.restart_policy != RestartPolicy::Always
}

/// Whether a pod comes to an end by itself.
pub(super) fn is_meant_to_end(document: &Value, owner: &Owner) -> bool {
    ends(&PodView::read(document), owner)
}

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct Show {
    pods: Vec<PodLine>,
    logs: bool,
    began: Instant,
    width: usize,
}

impl Show {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            pods: Vec::new(),
            logs: args.logs,
            began: Instant::now(),
            width: 0,
        }
    }

    pub(super) fn pods(&self) -> &[PodLine] {
        &self.pods
    }

    pub(super) fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Added(_, document, owner) => self.add(&document, owner),
            Notice::Status(id, status) => self.status(id, *status),
            Notice::Network(id, _, state) => self.network(id, state),
            Notice::Line {
                pod,
                container,
                stream,
                text,
            } => self.line(pod, &container, stream, &text),
            Notice::Trouble(_, text) => out::warning(text),
            Notice::Gone(id) => {
                if let Some(pod) = self.pods.get_mut(id) {
                    pod.gone = true;
                }
            }
            Notice::Happened(id, _, What::Recorded(slot, reason)) => self.recorded(id, slot, reason),
            Notice::Happened(..) | Notice::Over => {}
        }
    }

    fn add(&mut self, document: &Value, owner: Owner) {
        let pod = PodLine::new(document, owner);
        if let Some(job) = pod.job() {
            let failed = |p: &&mut PodLine| p.job() == Some(job) && p.phase() == Phase::Failed;
            for replaced in self.pods.iter_mut().filter(failed) {
                replaced.was_replaced = true;
            }
        }
        self.width = self.width.max(pod.name.len());
        self.pods.push(pod);
    }

    fn status(&mut self, id: PodId, status: Status) {
        let now = Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX);
        let Some(pod) = self.pods.get_mut(id) else { return };
        if status.ready && pod.ready_at.is_none() {
            pod.ready_at = Some(now);
        }
        pod.status = Some(status);
        let text = pod.summary();
        if text != pod.shown {
            pod.shown.clone_from(&text);
            self.say(id, &text);
        }
        if self.pods.iter().all(|p| p.is_ready() || p.has_ended()) && self.pods[id].ready_at == Some(now) {
            out::note(format_args!("everything is ready after {:.1} s", seconds(now)));
        }
    }

    fn network(&mut self, id: PodId, state: NetState) {
        let words = match state {
            NetState::Direct => "network: direct",
            NetState::Broken => "network: captured, no proxy listens",
            NetState::Proxied => "network: through the proxy",
            NetState::Excluded(_) => "network: excluded",
        };
        if let Some(pod) = self.pods.get_mut(id) {
            pod.network = state;
        }
        self.say(id, words);
    }

    fn recorded(&self, id: PodId, slot: Option<usize>, reason: &str) {
        const QUIET: [&str; 3] = ["Started", "Killing", "Unhealthy"];
        if QUIET.contains(&reason) {
            return;
        }
        let container = slot.and_then(|s| self.pods.get(id)?.view.containers.get(s));
        let name = container.map_or("", |c| c.name.as_str());
        self.say(id, &format!("{reason} {name}"));
    }

    fn say(&self, id: PodId, text: &str) {
        let style = style(id);
        let at = self.began.elapsed().as_secs_f64();
        let name = self.pods.get(id).map_or("", |p| p.name.as_str());
        let width = self.width;
        // A closed terminal ends the run by its own signal.
        let _ = out::styled(&format!("{at:7.2}s {style}{name:width$}{style:#}  {text}\n"));
    }

    fn line(&self, id: PodId, container: &str, stream: Stream, text: &str) {
        if !self.logs {
            return;
        }
        let style = style(id);
        let name = self.pods.get(id).map_or("", |p| p.name.as_str());
        let mark = match stream {
            Stream::Out => "|",
            Stream::Err => "!",
        };
        let _ = out::styled(&format!("{style}{name} {container} {mark}{style:#} {text}\n"));
    }

    /// What there is to say at the end.
    pub(super) fn summary(&self) {
        let ready = self.pods.iter().filter_map(|p| p.ready_at).max();
        if let Some(at) = ready {
            out::note(format_args!("the last pod was ready after {:.1} s", seconds(at)));
        }
    }
}

fn seconds(millis: Millis) -> f64 {
    std::time::Duration::from_millis(millis).as_secs_f64()
}

fn style(id: PodId) -> Style {
    COLOURS[id % COLOURS.len()].on_default()
}
