//! The timeline for a terminal: one line a container, one column a stretch of time.
//!
//! What a column shows is told apart by letters and fills first and by colour besides, and it all fits 80 columns.

use super::scale::Scale;
use super::subject::Play;
use super::words::{COLUMNS, fitted, time, wrapped};
use anstyle::{AnsiColor, Style};
use remora_pod::spec::Kind;
use remora_startup::kubelet::{Millis, WaitReason};
use remora_startup::network::NetState;
use remora_startup::timeline::{Doing, Lane, Segment, Sign, Timeline};
use std::fmt::Write as _;

/// Columns for names, at most.
const NAMES: usize = 26;
/// Columns before the names.
const KINDS: usize = 6;

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const DIRECT: Style = AnsiColor::Blue.on_default();
const BROKEN: Style = AnsiColor::Red.on_default().bold();
const PROXIED: Style = AnsiColor::Green.on_default();
const EXCLUDED: Style = AnsiColor::Yellow.on_default();
const PLAIN: Style = AnsiColor::Cyan.on_default();

/// What one column shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    letter: char,
    style: Style,
    /// The more important of several things in one column is shown.
    weight: u8,
}

const fn cell(letter: char, style: Style, weight: u8) -> Cell {
    Cell {
        letter,
        style,
        weight,
    }
}

const NOTHING: Cell = cell(' ', DIM, 0);
const WAITS: Cell = cell('·', DIM, 1);
const BACKS_OFF: Cell = cell('z', DIM, 2);
const RUNS: Cell = cell('─', PLAIN, 3);
const ENDS_WELL: Cell = cell('✓', BOLD, 8);
const ENDS_BADLY: Cell = cell('!', BROKEN, 9);
const SIGNAL: Cell = cell('T', BOLD, 7);

const fn network(state: &NetState) -> Cell {
    match state {
        NetState::Direct => cell('▒', DIRECT, 4),
        NetState::Excluded(_) => cell('░', EXCLUDED, 4),
        NetState::Proxied => cell('█', PROXIED, 5),
        NetState::Broken => cell('x', BROKEN, 6),
    }
}

fn lasting(segment: &Segment) -> Cell {
    match segment.doing {
        Doing::Waiting(WaitReason::CrashLoopBackOff | WaitReason::PostStartHookError) => BACKS_OFF,
        Doing::Waiting(_) => WAITS,
        Doing::Ended(_) => NOTHING,
        Doing::Running | Doing::Draining => segment.network.as_ref().map_or(RUNS, network),
    }
}

/// The picture, with a legend of what is in it.
pub(super) fn draw(timeline: &Timeline) -> String {
    let scale = Scale::of(timeline);
    let longest = timeline.lanes.iter().map(|l| l.name.chars().count()).max();
    let names = longest.unwrap_or(0).clamp(4, NAMES);
    let width = COLUMNS - KINDS - names - 1;
    let mut picture = Picture {
        out: String::new(),
        scale,
        names,
        width,
        shown: Vec::new(),
    };
    picture.axis();
    picture.events(timeline);
    for lane in &timeline.lanes {
        picture.lane(lane);
    }
    picture.legend(timeline);
    picture.out
}

struct Picture {
    out: String,
    scale: Scale,
    names: usize,
    width: usize,
    /// Letters that need a word of explanation.
    shown: Vec<char>,
}

impl Picture {
    fn column(&self, time: Millis) -> usize {
        place_in(self.scale.place(time), self.width)
    }

    fn label(&mut self, kind: &str, name: &str) {
        let (kinds, names) = (KINDS - 1, self.names);
        let name = fitted(name, names);
        // Writing to a String cannot fail.
        let _ = write!(
            self.out,
            "{DIM}{kind:<kinds$}{DIM:#} {BOLD}{name:<names$}{BOLD:#} "
        );
    }

    fn axis(&mut self) {
        let mut line = vec![' '; self.width];
        let mut free = 0;
        for tick in self.scale.ticks(0.0) {
            let label: Vec<char> = time(tick).chars().collect();
            let at = self.column(tick);
            if at < free || at + label.len() > self.width {
                continue;
            }
            free = at + label.len() + 2;
            for (place, letter) in line.iter_mut().skip(at).zip(label) {
                *place = letter;
            }
        }
        self.label("time", "");
        let line: String = line.into_iter().collect();
        let _ = writeln!(self.out, "{DIM}{}{DIM:#}", line.trim_end());
    }

    fn events(&mut self, timeline: &Timeline) {
        let mut line = vec![' '; self.width];
        for mark in &timeline.marks {
            let (letter, _) = sign(mark.what);
            let at = self.column(mark.from);
            let free = line.iter().enumerate().skip(at).find(|(_, c)| **c == ' ');
            let Some(index) = free.map(|(i, _)| i) else {
                continue;
            };
            if let Some(place) = line.get_mut(index) {
                *place = letter;
            }
        }
        self.label("pod", "");
        let line: String = line.into_iter().collect();
        let _ = writeln!(self.out, "{BOLD}{}{BOLD:#}", line.trim_end());
    }

    fn lane(&mut self, lane: &Lane) {
        let mut cells = vec![NOTHING; self.width];
        for segment in &lane.segments {
            let (from, to) = (self.column(segment.from), self.column(segment.to));
            let all = lasting(segment);
            for index in from..=to.max(from) {
                // The last column belongs to whatever comes next.
                if index < to || index == from {
                    put(&mut cells, index, all);
                }
            }
            if matches!(segment.doing, Doing::Ended(_)) && comes_back(lane, segment) {
                for index in from..to {
                    put(&mut cells, index, BACKS_OFF);
                }
            }
            match segment.doing {
                Doing::Draining => put(&mut cells, from, SIGNAL),
                Doing::Ended(0) => put(&mut cells, from, ENDS_WELL),
                Doing::Ended(_) => put(&mut cells, from, ENDS_BADLY),
                Doing::Waiting(_) | Doing::Running => {}
            }
        }
        let kind = match lane.kind {
            Kind::Init => "init",
            Kind::Sidecar => "side",
            Kind::Main => "main",
        };
        self.label(kind, &lane.name);
        while cells.last() == Some(&NOTHING) {
            cells.pop();
        }
        self.paint(&cells);
    }

    fn paint(&mut self, cells: &[Cell]) {
        let mut style = None;
        for cell in cells {
            if !self.shown.contains(&cell.letter) {
                self.shown.push(cell.letter);
            }
            if style != Some(cell.style) {
                if let Some(style) = style {
                    let _ = write!(self.out, "{style:#}");
                }
                let _ = write!(self.out, "{}", cell.style);
                style = Some(cell.style);
            }
            self.out.push(cell.letter);
        }
        if let Some(style) = style {
            let _ = write!(self.out, "{style:#}");
        }
        self.out.push('\n');
    }

    fn legend(&mut self, timeline: &Timeline) {
        let words = [
            (WAITS, "waits"),
            (RUNS, "runs (mesh)"),
            (cell('▒', DIRECT, 0), "direct"),
            (cell('x', BROKEN, 0), "connections refused"),
            (cell('█', PROXIED, 0), "through the proxy"),
            (cell('░', EXCLUDED, 0), "not captured"),
            (BACKS_OFF, "backs off"),
            (SIGNAL, "stop signal"),
            (ENDS_WELL, "ends well"),
            (ENDS_BADLY, "fails"),
        ];
        let mut signs: Vec<(char, &str)> = Vec::new();
        for mark in &timeline.marks {
            let known = sign(mark.what);
            if !signs.contains(&known) {
                signs.push(known);
            }
        }
        let of_lanes = words
            .iter()
            .filter(|(c, _)| self.shown.contains(&c.letter))
            .map(|(c, word)| (c.letter, *word));
        for line in [signs.clone(), of_lanes.collect()] {
            // A letter and its words stay on one line.
            let items: Vec<String> = line
                .iter()
                .map(|(letter, word)| format!("{letter}\u{a0}{}", word.replace(' ', "\u{a0}")))
                .collect();
            let line = wrapped_items(&items);
            let _ = writeln!(self.out, "{DIM}{line}{DIM:#}");
        }
    }
}

fn wrapped_items(items: &[String]) -> String {
    let separated: Vec<String> = items.iter().map(|i| format!("{i}\u{a0}")).collect();
    let indent = " ".repeat(KINDS);
    let mut text = String::new();
    let mut line: Vec<&str> = Vec::new();
    let mut width = KINDS;
    for item in &separated {
        let needs = item.chars().count() + 1;
        if width + needs > COLUMNS && !line.is_empty() {
            let _ = writeln!(text, "{indent}{}", line.join(" ").trim_end_matches('\u{a0}'));
            line.clear();
            width = KINDS;
        }
        width += needs;
        line.push(item);
    }
    let _ = write!(text, "{indent}{}", line.join(" ").trim_end_matches('\u{a0}'));
    text.replace('\u{a0}', " ")
}

fn put(cells: &mut [Cell], index: usize, new: Cell) {
    if let Some(old) = cells.get_mut(index)
        && new.weight >= old.weight
    {
        *old = new;
    }
}

/// The column of a place between 0 and 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a place is between 0 and 1 and a line has fewer than 100 columns"
)]
fn place_in(place: f64, width: usize) -> usize {
    ((place * width as f64) as usize).min(width.saturating_sub(1))
}

/// The letter and the words for something that happens to the pod.
pub(super) const fn sign(sign: Sign) -> (char, &'static str) {
    match sign {
        Sign::Sandbox => ('S', "sandbox"),
        Sign::SandboxLost => ('L', "sandbox lost"),
        Sign::Captured => ('C', "traffic captured"),
        Sign::ProxyReady => ('P', "proxy ready"),
        Sign::Address => ('A', "address known"),
        Sign::Ready => ('R', "pod ready"),
        Sign::Deleted => ('D', "deleted"),
        Sign::Gone => ('G', "gone"),
        Sign::Started => ('s', "counts as started"),
        Sign::ContainerReady => ('r', "container ready"),
        Sign::Hook(_) => ('h', "hook"),
        Sign::HookFailed(_) => ('f', "hook failed"),
        Sign::ConnectionBroken => ('b', "connection lost"),
        Sign::Unhealthy => ('u', "probe failed"),
    }
}

/// A line that says what the picture assumes.
pub(super) fn caption(assumed: bool, play: &Play) -> String {
    let under = if assumed {
        "under your assumptions"
    } else {
        "if the proxy takes 1.5 s and init containers 0.5 s (--assume)"
    };
    wrapped(&format!("{under}; {}", outcome(play)), "      ", "      ")
}

/// Whether the container is started again after it has ended.
pub(super) fn comes_back(lane: &Lane, ended: &Segment) -> bool {
    let after = lane.segments.iter().filter(|s| s.from >= ended.to);
    after.into_iter().any(|s| s.doing == Doing::Running)
}

/// What has become of the pod.
pub(super) fn outcome(play: &Play) -> String {
    if play.trace.gone {
        "in the end the pod is gone".to_owned()
    } else {
        format!("in the end kubectl shows {}", play.timeline.status)
    }
}
