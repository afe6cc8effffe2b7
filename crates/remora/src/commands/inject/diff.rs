//! `--diff`: what changed, pod by pod.

use crate::out;
use anstyle::{AnsiColor, Style};
use remora_inject::ObjectReport;
use remora_pod::yaml;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};
use std::fmt::Write as _;

const ADDED: Style = AnsiColor::Green.on_default();
const REMOVED: Style = AnsiColor::Red.on_default();
const HEADING: Style = Style::new().bold();
/// Lines around a change.
const CONTEXT: usize = 3;

/// Changes that are collected for printing.
#[derive(Default)]
pub(super) struct Diff {
    text: String,
    changed: usize,
    unchanged: usize,
}

impl Diff {
    /// Notes what became of the pods of a document.
    pub(super) fn add(&mut self, before: &Value, after: &Value, report: &ObjectReport) {
        for pod in &report.pods {
            if !pod.changed {
                self.unchanged += 1;
                continue;
            }
            self.changed += 1;
            let part = |document: &Value| pod.path.get(document).map(yaml::write).unwrap_or_default();
            let (old, new) = (part(before), part(after));
            // Writing to a String cannot fail.
            let _ = writeln!(self.text, "{HEADING}{}{HEADING:#}", pod.workload);
            self.lines(&old, &new);
        }
    }

    fn lines(&mut self, old: &str, new: &str) {
        let diff = TextDiff::from_lines(old, new);
        for group in diff.grouped_ops(CONTEXT) {
            let _ = writeln!(self.text, "  ...");
            for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
                let line = change.value().trim_end_matches('\n');
                let _ = match change.tag() {
                    ChangeTag::Insert => writeln!(self.text, "{ADDED}+ {line}{ADDED:#}"),
                    ChangeTag::Delete => writeln!(self.text, "{REMOVED}- {line}{REMOVED:#}"),
                    ChangeTag::Equal => writeln!(self.text, "  {line}"),
                };
            }
        }
    }

    pub(super) fn print(mut self) -> anyhow::Result<()> {
        let _ = writeln!(
            self.text,
            "{} changed, {} unchanged",
            self.changed, self.unchanged
        );
        out::styled(&self.text)?;
        Ok(())
    }
}
