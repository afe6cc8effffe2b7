//! A finding in the style of a compiler's message: headline, place, source line, and what follows from it.

use super::policies::{self, Policy};
use super::subject::{Spot, Subject};
use super::words::{COLUMNS, tame, wrapped};
use anstyle::{AnsiColor, Style};
use remora_startup::analysis::Cycle;
use remora_startup::findings::{Finding, Rule, Severity};
use std::fmt::Write as _;

const BOLD: Style = Style::new().bold();
const RULER: Style = AnsiColor::Blue.on_default().bold();
const HELP: Style = AnsiColor::Green.on_default().bold();

pub(super) const fn style_of(severity: Severity) -> Style {
    match severity {
        Severity::Error => AnsiColor::Red.on_default().bold(),
        Severity::Warning => AnsiColor::Yellow.on_default().bold(),
        Severity::Note => AnsiColor::Cyan.on_default().bold(),
    }
}

/// Columns of a place that are shown at least…
const LEAST_SHOWN: usize = 24;
/// …and of what is before it, when its line is too long.
const MARGIN: usize = 12;

/// The message. Fixes that were told before are only named.
pub(super) fn render<'f>(subject: &Subject<'_>, finding: &'f Finding, told: &mut Vec<&'f str>) -> String {
    let spot = subject.spot(&finding.path);
    let mut message = Message::new(finding.rule, finding.severity, subject.origin.file, &spot);
    message.item("why", &tame(&finding.cause));
    message.item("you see", &tame(&finding.consequence));
    if let Some(cycle) = &finding.cycle {
        message.item("deadlock", &tame(&circle(subject, cycle)));
    }
    for (number, fix) in (1..).zip(&finding.fixes) {
        if told.contains(&fix.title.as_str()) {
            message.fix(number, &format!("{} (see above)", tame(&fix.title)), "");
        } else {
            message.fix(number, &tame(&fix.title), &tame(&fix.trade_off));
            told.push(&fix.title);
        }
    }
    message.out
}

/// The message about a field of a policy.
pub(super) fn of_policy(policy: &Policy<'_>, finding: &policies::Finding) -> String {
    let spot = policy.spot(finding);
    let mut message = Message::new(finding.rule, finding.severity, policy.origin.file, &spot);
    message.item("why", &tame(&finding.cause));
    message.item("you see", &finding.consequence);
    message.fix(1, &tame(&finding.fix), "");
    message.out
}

/// The waits in one sentence.
fn circle(subject: &Subject<'_>, cycle: &Cycle) -> String {
    let view = &subject.report.analysis.view;
    let mut text = String::new();
    for (number, edge) in cycle.edges.iter().enumerate() {
        let (from, to) = (edge.from.describe(view), edge.to.describe(view));
        if number == 0 {
            let _ = write!(text, "{from} waits for {to}");
        } else {
            let _ = write!(text, ", which waits for {to}");
        }
    }
    text
}

struct Message {
    out: String,
    gutter: usize,
}

impl Message {
    /// Headline, place and source line.
    fn new(rule: &Rule, severity: Severity, file: &str, spot: &Spot) -> Self {
        let mut message = Self {
            out: String::new(),
            gutter: spot.line.to_string().len(),
        };
        message.head(rule, severity, file, spot);
        message.source(severity, spot);
        message
    }

    fn head(&mut self, rule: &Rule, severity: Severity, file: &str, spot: &Spot) {
        let (style, word) = (style_of(severity), severity.as_str());
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.out,
            "{style}{word}[{}]{style:#}{BOLD}: {}{BOLD:#}",
            rule.code, rule.title
        );
        let (gutter, file) = (self.gutter, tame(file));
        let _ = writeln!(
            self.out,
            "{:gutter$}{RULER}-->{RULER:#} {file}:{}:{}",
            "", spot.line, spot.column
        );
    }

    fn source(&mut self, severity: Severity, spot: &Spot) {
        let gutter = self.gutter;
        let column = usize::try_from(spot.column).unwrap_or(1).max(1) - 1;
        let room = COLUMNS.saturating_sub(gutter + 3);
        // A document in one line: the part that matters.
        let left_out = if column + LEAST_SHOWN > room {
            column - MARGIN.min(column)
        } else {
            0
        };
        let line: String = tame(&spot.text).chars().skip(left_out).take(room).collect();
        let shown = line.trim_end();
        let column = column - left_out;
        let carets = shown.chars().count().saturating_sub(column).max(1);
        let style = style_of(severity);
        let _ = writeln!(self.out, "{:gutter$} {RULER}|{RULER:#}", "");
        let number = spot.line;
        let _ = writeln!(self.out, "{RULER}{number:>gutter$} |{RULER:#} {shown}");
        let _ = writeln!(
            self.out,
            "{:gutter$} {RULER}|{RULER:#} {:column$}{style}{}{style:#}",
            "",
            "",
            "^".repeat(carets)
        );
    }

    fn item(&mut self, word: &str, text: &str) {
        let indent = " ".repeat(self.gutter + 3 + word.len() + 2);
        let body = wrapped(text, &indent, &indent);
        let body = body.trim_start();
        let gutter = self.gutter;
        let _ = writeln!(
            self.out,
            "{:gutter$} {RULER}={RULER:#} {BOLD}{word}{BOLD:#}: {body}",
            ""
        );
    }

    fn fix(&mut self, number: usize, title: &str, cost: &str) {
        let word = format!("fix {number}");
        let indent = " ".repeat(self.gutter + 3 + word.len() + 2);
        let body = wrapped(title, &indent, &indent);
        let gutter = self.gutter;
        let _ = writeln!(
            self.out,
            "{:gutter$} {RULER}={RULER:#} {HELP}{word}{HELP:#}: {}",
            "",
            body.trim_start()
        );
        if !cost.is_empty() {
            let _ = writeln!(self.out, "{}", wrapped(&format!("but {cost}"), &indent, &indent));
        }
    }
}
