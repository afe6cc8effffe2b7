//! Pods that really ran: what happened beside what was to be expected, as text and as a page.

use super::Format as _;
use super::html::Html;
use super::lanes;
use super::subject::{Origin, Subject};
use super::text::mode_of;
use super::words::{tame, time, wrapped};
use super::{Totals, markup::Escaped};
use crate::commands::run::Course;
use crate::spool::Spool;
use anstyle::{AnsiColor, Style};
use remora_pod::Path;
use remora_pod::spec::PodView;
use remora_pod::yaml::{self, Limits};
use remora_startup::analysis::Analysis;
use remora_startup::findings::Options;
use remora_startup::network::NetState;
use std::fmt::Write as _;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const ODD: Style = AnsiColor::Yellow.on_default().bold();

/// One line: how long it took, and whether its network was as expected.
pub(crate) fn line(course: &Course, width: usize) -> String {
    let name = tame(&course.name);
    let ready = course.ready_after.map_or_else(
        || format!("not ready: {}", course.measured.status),
        |at| {
            format!(
                "ready after {:.2} s",
                std::time::Duration::from_millis(at).as_secs_f64()
            )
        },
    );
    let surprises = course.surprises();
    let (style, words) = if surprises.is_empty() {
        (GOOD, "network as predicted".to_owned())
    } else {
        (ODD, told(&surprises))
    };
    format!("{name:width$}  {ready:<19}  {style}{words}{style:#}\n")
}

fn told(surprises: &[(String, Vec<NetState>, Vec<NetState>)]) -> String {
    let list = |states: &[NetState]| match states {
        [] => "none".to_owned(),
        states => states
            .iter()
            .map(NetState::as_str)
            .collect::<Vec<_>>()
            .join(" → "),
    };
    let one = |(name, seen, thought): &(String, Vec<NetState>, Vec<NetState>)| {
        format!("{name}: {}, predicted {}", list(seen), list(thought))
    };
    surprises.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Both pictures.
pub(crate) fn pictures(course: &Course) -> String {
    let analysis = Analysis::new(PodView::read(&course.document), None);
    let title = format!("{} ({})", tame(&course.name), mode_of(&analysis.setup));
    let mut text = format!("\n{BOLD}{title}{BOLD:#}\n");
    let end = if course.gone {
        "in the end the pod was gone".to_owned()
    } else {
        format!("in the end: {}", course.measured.status)
    };
    let measured = wrapped(&format!("measured; {end}"), "      ", "      ");
    let predicted = wrapped(
        "predicted by the model of remora check, if the proxy and init containers take as long as they did",
        "      ",
        "      ",
    );
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{}{DIM}{measured}{DIM:#}\n{}{DIM}{predicted}{DIM:#}\n",
        lanes::draw(&course.measured),
        lanes::draw(&course.predicted),
    );
    text
}

/// The page that `check --format html` writes, with what was measured.
pub(crate) fn page(courses: &[Course]) -> anyhow::Result<Spool> {
    let options = Options::default();
    let mut html = Html::new();
    let mut totals = Totals::default();
    for course in courses {
        // Findings point at lines, so the pod is read from a text as `check` would read it.
        let text = yaml::write(&course.document);
        for raw in yaml::split(&text) {
            let Ok(Some(document)) = yaml::parse(&raw, Limits::default()) else {
                continue;
            };
            let origin = Origin {
                file: &course.name,
                raw: &raw,
                marks: &document.marks,
                written: None,
            };
            let mut subject = Subject::check(origin, &document.value, Path::root(), &options);
            subject.measured = Some(course);
            totals.count(&subject);
            html.pod(&subject)?;
        }
    }
    html.close_as("remora run", &totals)
}

/// What happened and what was to be expected, event by event, for programs.
pub(crate) fn events(courses: &[Course]) -> anyhow::Result<Spool> {
    let pods: Vec<_> = courses.iter().map(Course::json).collect();
    let mut spool = Spool::new();
    spool.push(&format!("{:#}\n", serde_json::json!({ "pods": pods })))?;
    Ok(spool)
}

/// The chart of what was measured.
pub(super) fn chart(out: &mut String, course: &Course) {
    let ready = course
        .ready_after
        .map_or_else(String::new, |at| format!(" Ready after {}.", time(at)));
    let surprises = course.surprises();
    let network = if surprises.is_empty() {
        "The network of every container was as predicted.".to_owned()
    } else {
        format!("Not as predicted: {}.", told(&surprises))
    };
    super::html::picture(
        out,
        &course.measured,
        &format!("What happened, measured.{ready} {}", Escaped(&network)),
    );
}
