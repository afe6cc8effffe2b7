//! What a person sees of a run. On a terminal the pods as they are now, below what there is to say; elsewhere a line
//! for every change. What containers write comes besides, if it is asked for.

use super::args::Args;
use super::pods::{PodLine, words};
use super::screen::Screen;
use super::view;
use crate::out;
use anstyle::{AnsiColor, Style};
use remora_engine::manifest::Owner;
use remora_engine::world::{Notice, PodId, Stream};
use remora_startup::kubelet::{Millis, Phase, Status};
use remora_startup::network::NetState;
use remora_startup::sim::What;
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Magenta,
    AnsiColor::BrightCyan,
];
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct Show {
    pods: Vec<PodLine>,
    logs: bool,
    began: Instant,
    width: usize,
    screen: Option<Screen>,
    /// Where published ports are.
    published: Vec<String>,
    stopping: bool,
    said_ready: bool,
}

impl Show {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            pods: Vec::new(),
            logs: args.logs,
            began: Instant::now(),
            width: 0,
            screen: (!args.plain).then(Screen::find).flatten(),
            published: Vec::new(),
            stopping: false,
            said_ready: false,
        }
    }

    pub(super) fn pods(&self) -> &[PodLine] {
        &self.pods
    }

    /// Whether the picture has to be drawn from time to time.
    pub(super) fn is_live(&self) -> bool {
        self.screen.is_some()
    }

    pub(super) fn now(&self) -> Millis {
        Millis::try_from(self.began.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }

    /// A port that leads into the run.
    pub(super) fn publish(&mut self, target: &str, port: u16, at: std::net::SocketAddr) {
        let text = format!("{target}:{port} is published on http://{at}");
        if self.screen.is_some() {
            self.published.push(text);
        } else {
            out::note(text);
        }
    }

    /// Draws the pods as they are now, where there is a terminal.
    pub(super) fn draw(&mut self) {
        let now = self.now();
        if let Some(screen) = &mut self.screen {
            let scene = view::Scene {
                pods: &self.pods,
                published: &self.published,
                now,
                stopping: self.stopping,
            };
            screen.draw(&view::frame(&scene, Screen::size()));
        }
    }

    /// From now on everything is being stopped.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        if self.screen.is_none() {
            out::note("stopping");
        }
    }

    pub(super) fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Added(_, document, owner) => self.add(document, owner),
            Notice::Status(id, status) => self.status(id, *status),
            Notice::Network(id, at, state) => self.network(id, at, state),
            Notice::Line {
                pod,
                container,
                stream,
                text,
            } => self.line(pod, &container, stream, &text),
            Notice::Trouble(_, text) => self.above(WARNING, "warning", &text),
            Notice::Gone(id) => {
                if let Some(pod) = self.pods.get_mut(id) {
                    pod.leave();
                }
            }
            Notice::Happened(id, at, what) => self.happened(id, at, what),
            Notice::Over => {}
        }
    }

    fn add(&mut self, document: Arc<Value>, owner: Owner) {
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

    fn happened(&mut self, id: PodId, at: Millis, what: What) {
        if let What::Recorded(slot, reason) = what {
            self.recorded(id, slot, reason);
        }
        if let Some(pod) = self.pods.get_mut(id) {
            pod.happened(at, what);
        }
    }

    fn status(&mut self, id: PodId, status: Status) {
        let now = self.now();
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
        let ready = self.pods.iter().all(|p| p.is_ready() || p.has_ended());
        if ready && !self.said_ready && !self.stopping {
            self.said_ready = true;
            let text = format!("everything is ready after {:.1} s", seconds(now));
            self.above(NOTE, "note", &text);
        }
    }

    fn network(&mut self, id: PodId, at: Millis, state: NetState) {
        self.say(id, &format!("network: {}", words(&state)));
        if let Some(pod) = self.pods.get_mut(id) {
            pod.network.push((at, state));
        }
    }

    fn recorded(&mut self, id: PodId, slot: Option<usize>, reason: &str) {
        const QUIET: [&str; 3] = ["Started", "Killing", "Unhealthy"];
        if QUIET.contains(&reason) {
            return;
        }
        let container = slot.and_then(|s| self.pods.get(id)?.view.containers.get(s));
        let text = format!("{reason} {}", container.map_or("", |c| c.name.as_str()));
        let line = self.stamped(id, &text);
        self.print(&line);
    }

    /// A line for a change, where no picture shows it.
    fn say(&mut self, id: PodId, text: &str) {
        if self.screen.is_none() {
            let line = self.stamped(id, text);
            self.print(&line);
        }
    }

    fn stamped(&self, id: PodId, text: &str) -> String {
        let style = style(id);
        let at = self.began.elapsed().as_secs_f64();
        let name = self.pods.get(id).map_or("", |p| p.name.as_str());
        let width = self.width;
        format!("{at:7.2}s {style}{name:width$}{style:#}  {text}\n")
    }

    fn line(&mut self, id: PodId, container: &str, stream: Stream, text: &str) {
        if !self.logs {
            return;
        }
        let style = style(id);
        let name = self.pods.get(id).map_or("", |p| p.name.as_str());
        let mark = match stream {
            Stream::Out => "|",
            Stream::Err => "!",
        };
        let line = format!("{style}{name} {container} {mark}{style:#} {text}\n");
        self.print(&line);
    }

    /// Something that is said once.
    fn above(&mut self, style: Style, word: &str, text: &str) {
        if self.screen.is_some() {
            self.print(&format!("{style}{word}{style:#}: {text}\n"));
        } else if word == "warning" {
            out::warning(text);
        } else {
            out::note(text);
        }
    }

    fn print(&mut self, line: &str) {
        match &mut self.screen {
            Some(screen) => screen.print(line),
            // A closed terminal ends the run by its own signal.
            None => drop(out::styled(line)),
        }
    }

    /// Takes the picture away: what is to be said in the end says it all.
    pub(super) fn close(&mut self) {
        if let Some(mut screen) = self.screen.take() {
            screen.draw(&[]);
        }
    }

    /// What there is to say at the end.
    pub(super) fn summary(&self) {
        let ready = self.pods.iter().filter_map(|p| p.ready_at).max();
        if let Some(at) = ready {
            out::note(format_args!("the last pod was ready after {:.1} s", seconds(at)));
        }
    }
}

pub(super) fn seconds(millis: Millis) -> f64 {
    std::time::Duration::from_millis(millis).as_secs_f64()
}

pub(super) fn style(id: PodId) -> Style {
    COLOURS[id % COLOURS.len()].on_default()
}
