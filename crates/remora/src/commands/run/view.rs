//! The picture of a run on a terminal: its pods, their containers, and what their connections met. No IO.

use super::pods::{PodLine, words};
use super::show::{seconds, style};
use anstyle::{AnsiColor, Style};
use remora_pod::spec::Kind;
use remora_startup::kubelet::{ContainerState, Millis, Phase, WaitReason};
use remora_startup::network::NetState;
use std::fmt::Write as _;

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const SLOW: Style = AnsiColor::Yellow.on_default();
const PLAIN: Style = AnsiColor::Blue.on_default();

/// Columns of the lane of network states.
const LANE: usize = 24;
/// A lane shows this much beyond its last change.
const QUIET: Millis = 400;
/// Longest name that is shown whole.
const NAMES: usize = 44;

/// What there is to draw.
pub(super) struct Scene<'a> {
    pub(super) pods: &'a [PodLine],
    pub(super) published: &'a [String],
    pub(super) now: Millis,
    pub(super) stopping: bool,
}

/// A text with styles that takes so many columns.
#[derive(Default)]
struct Line {
    text: String,
    columns: usize,
    room: usize,
}

impl Line {
    fn new(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Adds as much as there is room for.
    fn push(&mut self, style: Style, text: &str) {
        let fits: String = text.chars().take(self.room - self.columns).collect();
        self.columns += fits.chars().count();
        if !fits.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(self.text, "{style}{fits}{style:#}");
        }
    }

    fn padded(&mut self, style: Style, text: &str, width: usize) {
        self.push(style, &format!("{text:<width$}"));
    }
}

/// The lines of the picture, for a terminal of so many rows and columns.
pub(super) fn frame(scene: &Scene<'_>, (rows, columns): (usize, usize)) -> Vec<String> {
    // A line that fills the last column would be two on some terminals.
    let room = columns.saturating_sub(1);
    let there: Vec<(usize, &PodLine)> = scene
        .pods
        .iter()
        .enumerate()
        .filter(|(_, p)| !p.is_gone() || scene.stopping)
        .collect();
    let names = there.iter().map(|(_, p)| p.name.chars().count()).max();
    let names = names.unwrap_or(0).min(NAMES);
    let mut lines = vec![String::new(), head(scene, room)];
    let left = rows.saturating_sub(lines.len() + scene.published.len() + 2);
    let with_containers = there.len() * 2 <= left;
    let mut order = there.clone();
    if there.len() > left {
        // What is not as it should be must be seen.
        order.sort_by_key(|(_, p)| p.is_ready() || p.phase() == Phase::Succeeded);
    }
    for (id, pod) in order.iter().take(left) {
        lines.push(pod_line(*id, pod, scene.now, names, room));
        if with_containers {
            lines.push(containers_line(pod, room));
        }
    }
    if there.len() > left {
        let mut line = Line::new(room);
        line.push(DIM, &format!("… and {} more: remora ps", there.len() - left));
        lines.push(line.text);
    }
    for text in scene.published {
        let mut line = Line::new(room);
        line.push(BOLD, text);
        lines.push(line.text);
    }
    lines
}

fn head(scene: &Scene<'_>, room: usize) -> String {
    let count = |wanted: &dyn Fn(&PodLine) -> bool| scene.pods.iter().filter(|p| wanted(p)).count();
    let there = count(&|p| !p.is_gone());
    let ready = count(&|p| !p.is_gone() && p.is_ready());
    let done = count(&|p| !p.is_gone() && p.phase() == Phase::Succeeded);
    let mut line = Line::new(room);
    line.push(BOLD, &format!("{:.0} s", seconds(scene.now).floor()));
    line.push(DIM, &format!("   {there} pods, {ready} ready"));
    if done > 0 {
        line.push(DIM, &format!(", {done} completed"));
    }
    let hint = if scene.stopping {
        "   stopping (Ctrl-C again: at once)"
    } else {
        "   Ctrl-C stops"
    };
    line.push(DIM, hint);
    line.text
}

fn pod_line(id: usize, pod: &PodLine, now: Millis, names: usize, room: usize) -> String {
    let mut line = Line::new(room);
    let (ready, total) = pod.readiness();
    let state = pod.state();
    let good = pod.is_ready() || pod.phase() == Phase::Succeeded;
    let bad = ["Error", "BackOff", "Err", "Signal"]
        .iter()
        .any(|w| state.contains(w));
    let how = match (good, bad) {
        (true, _) => GOOD,
        (_, true) => BAD,
        _ => SLOW,
    };
    line.padded(style(id), &short(&pod.name, names), names + 2);
    line.padded(how, &format!("{ready}/{total}"), 5);
    line.padded(how, &state, 18);
    let restarts = match pod.restarts() {
        0 => String::new(),
        n => format!("↻{n}"),
    };
    line.padded(SLOW, &restarts, 5);
    for state in lane(pod, now) {
        let (letter, style) = cell(state.as_ref());
        line.push(style, letter);
    }
    if let Some((_, state)) = pod.network.last() {
        line.push(DIM, &format!(" {}", words(state)));
    }
    line.text
}

/// The end of a name says more than its beginning.
fn short(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let rest: String = name.chars().skip(length + 1 - width).collect();
    format!("…{rest}")
}

/// The same letters as in the pictures of `check`.
const fn cell(state: Option<&NetState>) -> (&'static str, Style) {
    match state {
        None => ("·", DIM),
        Some(NetState::Direct) => ("▒", PLAIN),
        Some(NetState::Excluded(_)) => ("░", SLOW),
        Some(NetState::Proxied) => ("█", GOOD),
        Some(NetState::Broken) => ("x", BAD),
    }
}

/// What connections met in each of the equal parts of the pod's time up to a while after the last change.
fn lane(pod: &PodLine, now: Millis) -> Vec<Option<NetState>> {
    let from = pod.made_at();
    let last = pod.network.last().map_or(now, |(at, _)| *at);
    let span = now.min(last.saturating_add(QUIET.max((last - from.min(last)) / 3))) - from.min(now);
    let cells = Millis::try_from(LANE).unwrap_or(1);
    let part = |index: Millis| {
        let (begin, end) = (from + span * index / cells, from + span * (index + 1) / cells);
        let inside = pod
            .network
            .iter()
            .filter(|(at, _)| *at >= begin && *at < end.max(begin + 1));
        let before = pod.network.iter().rev().find(|(at, _)| *at <= begin);
        // A moment without network must not be lost between two long ones.
        let broken = inside.clone().find(|(_, s)| *s == NetState::Broken);
        broken
            .or(before)
            .or_else(|| inside.clone().next_back())
            .map(|(_, s)| s.clone())
    };
    (0..cells).map(part).collect()
}

fn containers_line(pod: &PodLine, room: usize) -> String {
    let mut line = Line::new(room);
    line.push(DIM, "   ");
    let statuses = pod.status.iter().flat_map(|s| &s.containers);
    for (container, status) in pod.view.containers.iter().zip(statuses) {
        let (sign, style) = match status.state {
            ContainerState::Running if status.ready => ("●", GOOD),
            ContainerState::Running => ("◐", SLOW),
            ContainerState::Terminated(0) => ("✓", DIM),
            ContainerState::Terminated(_) | ContainerState::Waiting(WaitReason::CrashLoopBackOff) => {
                ("✗", BAD)
            }
            ContainerState::Waiting(_) => ("○", DIM),
        };
        line.push(style, sign);
        line.push(DIM, &format!(" {}", container.name));
        if container.kind == Kind::Init {
            line.push(DIM, " (init)");
        }
        line.push(DIM, "   ");
    }
    line.text
}

#[cfg(test)]
mod tests {
    use super::{Scene, frame};
    use crate::commands::run::pods::PodLine;
    use remora_engine::manifest::Owner;
    use remora_startup::network::NetState;
    use remora_startup::sim::What;
    use serde_json::json;
    use std::sync::Arc;

    fn pods(count: usize) -> Vec<PodLine> {
        let pod = |i: usize| {
            let document = json!({"metadata": {"name": format!("pod-with-a-rather-long-name-{i}"), "namespace": "shop"},
                "spec": {"containers": [{"name": "app"}]}});
            let mut pod = PodLine::new(Arc::new(document), Owner::Nobody);
            pod.happened(0, What::Created);
            pod.happened(100, What::SandboxReady);
            pod.network.push((300, NetState::Broken));
            pod.network.push((600, NetState::Proxied));
            pod
        };
        (0..count).map(pod).collect()
    }

    fn drawn(count: usize, size: (usize, usize)) -> Vec<String> {
        let pods = pods(count);
        let published = ["web:80 is published on http://127.0.0.1:80".to_owned()];
        let scene = Scene {
            pods: &pods,
            published: &published,
            now: 5000,
            stopping: false,
        };
        let lines = frame(&scene, size);
        let plain = |line: &String| anstream::adapter::strip_str(line).to_string();
        lines.iter().map(plain).collect()
    }

    #[test]
    fn a_picture_fits_every_terminal() {
        for count in [0, 1, 5, 200] {
            for size in [(1, 1), (5, 20), (24, 80), (60, 300)] {
                let lines = drawn(count, size);
                assert!(
                    lines.len() <= size.0.max(4),
                    "{count} on {size:?}: {}",
                    lines.len()
                );
                let longest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
                assert!(longest < size.1.max(1) + 1, "{count} on {size:?}: {longest}");
            }
        }
    }

    #[test]
    fn the_lane_shows_every_state_and_then_stands_still() {
        let lines = drawn(1, (24, 160));
        let lane = lines[2].strip_suffix(" through the proxy").unwrap();
        let first: String = lane.chars().filter(|c| "·▒x█".contains(*c)).collect();
        let order: String = first.chars().fold(String::new(), |mut seen, c| {
            if !seen.ends_with(c) {
                seen.push(c);
            }
            seen
        });
        assert_eq!(order, "·▒x█", "{first}");
        assert!(lines[4].starts_with("web:80"), "{lines:?}");
    }
}
