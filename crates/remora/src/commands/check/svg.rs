//! The timeline as SVG: one lane a container, the pod's events above, a legend below.
//!
//! States differ by pattern as well as by colour. Every stretch has a title for the mouse and can be reached by
//! keyboard where the picture is part of a page. Colours come from a style sheet that knows light and dark.

use super::lanes::{comes_back, sign};
use super::markup::Escaped;
use super::page::STYLE_OF_PICTURES;
use super::policies::Policy;
use super::scale::Scale;
use super::subject::Subject;
use super::text::mode;
use super::words::{network, time};
use super::{Format, Totals};
use crate::spool::Spool;
use remora_pod::spec::Kind;
use remora_startup::kubelet::{Millis, WaitReason};
use remora_startup::network::NetState;
use remora_startup::timeline::{Doing, Lane, Mark, Segment, Sign, Timeline};
use std::fmt::Write as _;

/// Width of every picture, in its own units.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 242.0;
const RIGHT: f64 = 18.0;
const LANE: f64 = 30.0;
const BAR: f64 = 18.0;
const ROW: f64 = 15.0;
/// Letters are taken to be so wide.
const LETTER: f64 = 6.2;
/// Rows for the pod's events, at most.
const ROWS: usize = 5;

/// Patterns of all pictures of a page.
pub(super) const PATTERNS: &str = "<defs>\
<pattern id=\"p-broken\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<rect class=\"b-ground\" width=\"7\" height=\"7\"/><rect class=\"b-line\" width=\"3\" height=\"7\"/></pattern>\
<pattern id=\"p-excluded\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
<rect class=\"e-ground\" width=\"6\" height=\"6\"/><circle class=\"e-dot\" cx=\"3\" cy=\"3\" r=\"1.4\"/></pattern>\
<pattern id=\"p-direct\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">\
<rect class=\"d-ground\" width=\"5\" height=\"5\"/><rect class=\"d-line\" width=\"5\" height=\"1.6\"/></pattern>\
</defs>";

/// A finished picture.
pub(super) struct Drawing {
    pub(super) height: f64,
    /// What goes inside an `svg` element.
    pub(super) body: String,
}

/// Draws a timeline. An interactive picture can be walked by keyboard and shows details at its foot.
pub(super) fn draw(timeline: &Timeline, interactive: bool) -> Drawing {
    let mut painter = Painter {
        out: String::new(),
        scale: Scale::of(timeline),
        interactive,
        foot: 0.0,
    };
    let top = painter.rows_of(timeline);
    let lanes = f64::from(u32::try_from(timeline.lanes.len()).unwrap_or(u32::MAX));
    let bottom = top + lanes * LANE;
    painter.foot = bottom + 46.0;
    painter.axis(bottom);
    painter.events(timeline, top, bottom);
    let mut y = top;
    for lane in &timeline.lanes {
        painter.lane(lane, y);
        y += LANE;
    }
    painter.legend(bottom + 32.0);
    Drawing {
        height: painter.foot + if interactive { 20.0 } else { 0.0 },
        body: painter.out,
    }
}

struct Painter {
    out: String,
    scale: Scale,
    interactive: bool,
    /// Where details are shown.
    foot: f64,
}

impl Painter {
    fn x(&self, time: Millis) -> f64 {
        LEFT + self.scale.place(time) * (WIDTH - LEFT - RIGHT)
    }

    /// Where the lanes begin, below the rows of event labels.
    fn rows_of(&self, timeline: &Timeline) -> f64 {
        let rows = self
            .labels(timeline)
            .iter()
            .map(|(_, row, ..)| row + 1)
            .max()
            .unwrap_or(0);
        f64::from(u32::try_from(rows).unwrap_or(0)) * ROW + 12.0
    }

    /// Labels of the pod's events: place, row, text, time.
    fn labels(&self, timeline: &Timeline) -> Vec<(f64, usize, &'static str, Millis)> {
        let mut ends = [f64::NEG_INFINITY; ROWS];
        let mut out = Vec::new();
        for mark in &timeline.marks {
            let (_, word) = sign(mark.what);
            let x = self.x(mark.from);
            let start = label_start(x, word);
            let row = ends.iter().position(|end| *end < start).unwrap_or(0);
            if let Some(end) = ends.get_mut(row) {
                *end = start + width_of(word) + 8.0;
            }
            out.push((x, row, word, mark.from));
        }
        out
    }

    fn axis(&mut self, bottom: f64) {
        // Writing to a String cannot fail.
        let _ = write!(
            self.out,
            "<path class=\"axis\" d=\"M{LEFT} {bottom}H{:.1}\"/>",
            WIDTH - RIGHT
        );
        for tick in self.scale.ticks(0.06) {
            let x = self.x(tick);
            let _ = write!(
                self.out,
                "<path class=\"axis\" d=\"M{x:.1} {bottom}v4\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 15.0,
                time(tick)
            );
        }
    }

    fn events(&mut self, timeline: &Timeline, top: f64, bottom: f64) {
        for (x, row, word, at) in self.labels(timeline) {
            let y = 12.0 + f64::from(u32::try_from(row).unwrap_or(0)) * ROW;
            let start = label_start(x, word);
            let _ = write!(
                self.out,
                "<g class=\"event\"><title>{word} at {}</title><path d=\"M{x:.1} {:.1}V{bottom}\"/>\
                 <text x=\"{start:.1}\" y=\"{y:.1}\">{word}</text></g>",
                time(at),
                (y + 3.0).min(top),
            );
        }
    }

    fn lane(&mut self, lane: &Lane, y: f64) {
        let kind = match lane.kind {
            Kind::Init => "init",
            Kind::Sidecar => "side",
            Kind::Main => "main",
        };
        let base = y + LANE / 2.0;
        let name = super::words::fitted(&lane.name, 28);
        let _ = write!(
            self.out,
            "<text class=\"kind\" x=\"4\" y=\"{:.1}\">{kind}</text>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\"><title>{}</title>{}</text>",
            base + 4.0,
            LEFT - 10.0,
            base + 4.0,
            Escaped(&lane.name),
            Escaped(&name),
        );
        for segment in &lane.segments {
            self.segment(lane, segment, base);
        }
        for mark in &lane.marks {
            self.mark(lane, mark, base);
        }
    }

    fn segment(&mut self, lane: &Lane, segment: &Segment, base: f64) {
        let (x, end) = (self.x(segment.from), self.x(segment.to));
        let (class, words) = state_of(segment);
        let detail = format!(
            "{}, {} to {}: {words}",
            lane.name,
            time(segment.from),
            time(segment.to)
        );
        let shape = match segment.doing {
            Doing::Ended(code) => {
                let (letter, class) = if code == 0 {
                    ("✓", "well")
                } else {
                    ("✗", "badly")
                };
                let code = if code == 0 {
                    String::new()
                } else {
                    code.to_string()
                };
                let rest = if comes_back(lane, segment) {
                    format!("<path d=\"M{:.1} {base:.1}H{end:.1}\"/>", (x + 22.0).min(end))
                } else {
                    String::new()
                };
                format!(
                    "{rest}<text class=\"end {class}\" x=\"{:.1}\" y=\"{:.1}\">{letter}{code}</text>",
                    x + 2.0,
                    base + 4.0
                )
            }
            Doing::Waiting(_) => format!("<path d=\"M{x:.1} {base:.1}H{end:.1}\"/>"),
            Doing::Running | Doing::Draining => format!(
                "<rect{} x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>",
                if segment.doing == Doing::Draining {
                    " class=\"stops\""
                } else {
                    ""
                },
                base - BAR / 2.0,
                (end - x).max(1.5)
            ),
        };
        self.stretch(class, &detail, &shape);
    }

    /// A shape with a title and, in a page, a detail line for the keyboard.
    fn stretch(&mut self, class: &str, detail: &str, shape: &str) {
        let detail = Escaped(detail);
        let _ = write!(self.out, "<g class=\"seg {class}\"");
        if self.interactive {
            let _ = write!(self.out, " tabindex=\"0\" role=\"img\" aria-label=\"{detail}\"");
        }
        let _ = write!(self.out, "><title>{detail}</title>{shape}");
        if self.interactive {
            let _ = write!(
                self.out,
                "<text class=\"detail\" x=\"4\" y=\"{:.1}\">{detail}</text>",
                self.foot + 12.0
            );
        }
        self.out.push_str("</g>");
    }

    fn mark(&mut self, lane: &Lane, mark: &Mark, base: f64) {
        let x = self.x(mark.from);
        let lasts = |words: &str| format!("{}: {words}, {} to {}", lane.name, time(mark.from), time(mark.to));
        let at = |words: &str| format!("{}: {words} at {}", lane.name, time(mark.from));
        match mark.what {
            Sign::Hook(hook) => {
                let width = (self.x(mark.to) - x).max(3.0);
                let y = base - BAR / 2.0 - 4.0;
                let shape = format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"4\"/>");
                self.stretch("hook", &lasts(&format!("{} hook", hook.field())), &shape);
            }
            Sign::ContainerReady if lane.kind != Kind::Init => {
                let y = base + BAR / 2.0;
                let shape = format!("<path d=\"M{x:.1} {y:.1}l-4 5h8z\"/>");
                self.stretch("ready", &at("counts as ready"), &shape);
            }
            Sign::HookFailed(_) | Sign::ConnectionBroken | Sign::Unhealthy => {
                let (_, words) = sign(mark.what);
                // Probes of a process that is still starting fail all the time.
                let class = if mark.what == Sign::Unhealthy {
                    "probe"
                } else {
                    "fault"
                };
                let y = base - 4.0;
                let shape = format!("<path d=\"M{:.1} {y:.1}l8 8m0 -8l-8 8\"/>", x - 4.0);
                self.stretch(class, &at(words), &shape);
            }
            _ => {}
        }
    }

    fn legend(&mut self, y: f64) {
        let items = [
            ("waits", "waits"),
            ("runs", "runs (mesh)"),
            ("direct", "direct"),
            ("broken", "connections refused"),
            ("proxied", "through the proxy"),
            ("excluded", "not captured"),
            ("backoff", "backs off"),
            ("hook", "hook"),
        ];
        let mut x = 4.0;
        self.out.push_str("<g class=\"legend\">");
        for (class, words) in items {
            let shape = if matches!(class, "waits" | "backoff") {
                format!("<path d=\"M{x:.1} {y:.1}h22\"/>")
            } else {
                format!(
                    "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"22\" height=\"12\"/>",
                    y - 6.0
                )
            };
            let _ = write!(
                self.out,
                "<g class=\"seg {class}\">{shape}</g><text x=\"{:.1}\" y=\"{:.1}\">{words}</text>",
                x + 27.0,
                y + 4.0
            );
            x += 27.0 + width_of(words) + 16.0;
        }
        let _ = write!(
            self.out,
            "<g class=\"seg ready\"><path d=\"M{:.1} {:.1}l-4 6h8z\"/></g><text x=\"{:.1}\" y=\"{:.1}\">ready</text></g>",
            x + 4.0,
            y - 3.0,
            x + 12.0,
            y + 4.0
        );
        if self.interactive {
            let _ = write!(
                self.out,
                "<text class=\"hint\" x=\"4\" y=\"{:.1}\">Point at a stretch, or reach it by Tab, for details.</text>",
                self.foot + 12.0
            );
        }
    }
}

/// Labels near the right edge end at their event instead of beginning there.
fn label_start(x: f64, word: &str) -> f64 {
    let width = width_of(word);
    if x + width > WIDTH {
        WIDTH - width - 2.0
    } else {
        x + 2.0
    }
}

fn width_of(word: &str) -> f64 {
    f64::from(u32::try_from(word.chars().count()).unwrap_or(0)) * LETTER
}

/// The class and the words of a stretch.
fn state_of(segment: &Segment) -> (&'static str, String) {
    let class = match (&segment.doing, &segment.network) {
        (Doing::Waiting(WaitReason::CrashLoopBackOff | WaitReason::PostStartHookError), _) => "backoff",
        (Doing::Waiting(_), _) => "waits",
        (Doing::Ended(_), _) => "ended",
        (_, None) => "runs",
        (_, Some(NetState::Direct)) => "direct",
        (_, Some(NetState::Broken)) => "broken",
        (_, Some(NetState::Proxied)) => "proxied",
        (_, Some(NetState::Excluded(_))) => "excluded",
    };
    let doing = match segment.doing {
        Doing::Waiting(reason) => return (class, format!("waits ({})", reason.as_str())),
        Doing::Ended(code) => return (class, format!("has ended with code {code}")),
        Doing::Running => "runs",
        Doing::Draining => "is stopping",
    };
    let words = segment.network.as_ref().map(network);
    let words = words.map_or_else(|| doing.to_owned(), |w| format!("{doing}; connections {w}"));
    (class, words)
}

/// `--format svg`: the pictures of all pods in one file, one below the other.
pub(super) struct Svg {
    body: Spool,
    height: f64,
}

impl Svg {
    pub(super) fn new() -> Self {
        Self {
            body: Spool::new(),
            height: 0.0,
        }
    }
}

impl Format for Svg {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        let drawing = match &subject.assumed {
            Some(play) => draw(&play.timeline, false),
            None => draw(&subject.usual().timeline, false),
        };
        let title = format!("{} ({})", subject.name, mode(subject));
        self.body.push(&format!(
            "<g transform=\"translate(0 {:.1})\"><text class=\"title\" x=\"4\" y=\"16\">{}</text>\
             <g transform=\"translate(0 26)\">{}</g></g>\n",
            self.height,
            Escaped(&title),
            drawing.body
        ))?;
        self.height += drawing.height + 44.0;
        Ok(())
    }

    /// There is nothing to draw.
    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()> {
        policy.warn();
        Ok(())
    }

    fn close(self: Box<Self>, _totals: &Totals) -> anyhow::Result<Spool> {
        let mut spool = Spool::new();
        let height = self.height.max(1.0);
        spool.push(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"remora\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"who has network when\">\n\
             <style>{STYLE_OF_PICTURES}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{PATTERNS}\n"
        ))?;
        spool.append(self.body)?;
        spool.push("</svg>\n")?;
        Ok(spool)
    }
}
