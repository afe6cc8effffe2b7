//! For a terminal: a picture and messages for a pod with findings, one line for a pod without.

use super::lanes;
use super::policies::Policy;
use super::snippet;
use super::subject::{Play, Subject};
use super::words::{COLUMNS, tame, time, wrapped};
use super::{Format, Totals};
use crate::commands::inject::counted;
use crate::spool::Spool;
use anstyle::{AnsiColor, Style};
use remora_startup::findings::Severity;
use remora_startup::mesh::{Mode, Setup};
use std::fmt::Write as _;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default().bold();

pub(super) struct Text {
    spool: Spool,
    verbose: bool,
    /// Without colours, for a file.
    plain: bool,
}

impl Text {
    pub(super) fn new(verbose: bool, plain: bool) -> Self {
        Self {
            spool: Spool::new(),
            verbose,
            plain,
        }
    }

    fn push(&mut self, text: &str) -> anyhow::Result<()> {
        if self.plain {
            self.spool.push(&anstream::adapter::strip_str(text).to_string())
        } else {
            self.spool.push(text)
        }
    }

    fn clean(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        let notes = match subject.count(Severity::Note) {
            0 => String::new(),
            n => format!(", {} (-v)", counted(n, "note")),
        };
        let (name, mode) = (tame(&subject.name), mode(subject));
        self.push(&format!("{GOOD}ok{GOOD:#} {name} ({mode}){notes}\n"))
    }
}

impl Format for Text {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        if subject.is_clean() && subject.assumed.is_none() && !self.verbose {
            return self.clean(subject);
        }
        let mut text = heading(subject);
        match &subject.assumed {
            Some(play) => {
                text.push_str(&picture(play, true));
                text.push_str(&events(play));
            }
            None => text.push_str(&picture(&subject.usual(), false)),
        }
        let mut told = Vec::new();
        for finding in &subject.report.findings {
            if finding.severity != Severity::Note || self.verbose {
                text.push('\n');
                text.push_str(&snippet::render(subject, finding, &mut told));
            }
        }
        if subject.report.findings.is_empty() {
            let _ = writeln!(text, "\n{GOOD}ok{GOOD:#}: nothing found");
        }
        text.push('\n');
        self.push(&text)
    }

    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()> {
        let name = tame(&policy.name);
        if policy.findings.is_empty() {
            return self.push(&format!("{GOOD}ok{GOOD:#} {name} (enforced as written)\n"));
        }
        let title = format!("{name} (not enforced as written)");
        let mut text = headline(&title, policy.origin.file, policy.place().line);
        for finding in &policy.findings {
            text.push('\n');
            text.push_str(&snippet::of_policy(policy, finding));
        }
        text.push('\n');
        self.push(&text)
    }

    fn close(mut self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool> {
        if totals.pods + totals.policies > 0 {
            let mut sentence = totals.sentence();
            if totals.errors + totals.warnings > 0 {
                sentence.push_str("; --explain CODE says more");
            }
            if totals.is_mendable() {
                sentence.push_str(", --fix mends");
            }
            let sentence = wrapped(&sentence, "", "");
            self.push(&format!("{BOLD}{sentence}{BOLD:#}\n"))?;
        }
        Ok(self.spool)
    }
}

/// Which mesh, in words.
pub(super) fn mode(subject: &Subject<'_>) -> String {
    mode_of(&subject.report.analysis.setup)
}

/// The same of a pod that was not checked.
pub(super) fn mode_of(setup: &Setup) -> String {
    match setup.mode {
        Mode::None => setup
            .exempt
            .map_or_else(|| "no mesh".to_owned(), |why| format!("no mesh: {why}")),
        mode => format!("{} {}", setup.mesh.name, mode.as_str()),
    }
}

fn heading(subject: &Subject<'_>) -> String {
    let spot = subject.spot(&format!("{}/spec", subject.report.analysis.view.root));
    let title = format!("{} ({})", tame(&subject.name), mode(subject));
    headline(&title, subject.origin.file, spot.line)
}

fn headline(title: &str, file: &str, line: u32) -> String {
    let place = format!("{}:{line}", tame(file));
    let gap = COLUMNS.saturating_sub(title.chars().count() + place.chars().count());
    if gap < 2 {
        return format!("{BOLD}{title}{BOLD:#}\n{DIM}{place}{DIM:#}\n");
    }
    format!("{BOLD}{title}{BOLD:#}{:gap$}{DIM}{place}{DIM:#}\n", "")
}

fn picture(play: &Play, assumed: bool) -> String {
    let mut text = lanes::draw(&play.timeline);
    let caption = lanes::caption(assumed, play);
    let _ = writeln!(text, "{DIM}{caption}{DIM:#}");
    text
}

/// What happens, by the names an assumptions file uses.
fn events(play: &Play) -> String {
    let mut text = String::from("\n");
    for (at, id) in play.trace.named(&play.scenario) {
        // Conditions of containers repeat what their events say.
        if !id.starts_with("pod.c:") && !id.starts_with("ctr:") {
            let _ = writeln!(text, "{DIM}{:>9}{DIM:#}  {}", time_of(at), tame(&id));
        }
    }
    text
}

fn time_of(at: u64) -> String {
    if at < 60_000 {
        format!("{}.{:03}s", at / 1000, at % 1000)
    } else {
        time(at)
    }
}
