//! What changed, pod by pod: `inject --diff`, `check --fix=diff`.

use crate::out;
use anstyle::{AnsiColor, Style};
use remora_pod::{Path, yaml};
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
pub(crate) struct Diff {
    text: String,
    changed: usize,
    unchanged: usize,
}

impl Diff {
    /// Notes what became of one pod of a document.
    pub(crate) fn add(&mut self, workload: &str, pod: &Path, before: &Value, after: &Value) {
        let part = |document: &Value| pod.get(document).map(yaml::write).unwrap_or_default();
        let (old, new) = (part(before), part(after));
        if old == new {
            self.unchanged += 1;
            return;
        }
        self.changed += 1;
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{HEADING}{workload}{HEADING:#}");
        self.lines(&old, &new);
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

    pub(crate) fn print(self) -> anyhow::Result<()> {
        out::styled(&self.finish())?;
        Ok(())
    }

    /// The changes and their number, with colours.
    pub(crate) fn finish(mut self) -> String {
        let _ = writeln!(
            self.text,
            "{} changed, {} unchanged",
            self.changed, self.unchanged
        );
        self.text
    }
}
