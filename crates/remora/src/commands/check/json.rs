//! `--format json`: everything, for programs.
//!
//! `docs/check.md` describes the fields. They may be added to, not changed; a change would raise `version`.

use super::subject::Subject;
use super::{Format, Totals};
use crate::spool::Spool;
use remora_startup::json;
use serde_json::{Value, json};

pub(super) struct Json {
    spool: Spool,
    first: bool,
}

impl Json {
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut spool = Spool::new();
        spool.push("{\"version\":1,\"pods\":[")?;
        Ok(Self { spool, first: true })
    }
}

impl Format for Json {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.spool.push(",")?;
        }
        self.spool.push("\n")?;
        self.spool.push(&pod(subject).to_string())
    }

    fn close(mut self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool> {
        let summary = json!({
            "pods": totals.pods,
            "clean": totals.clean,
            "errors": totals.errors,
            "warnings": totals.warnings,
            "notes": totals.notes,
            "unchecked": totals.unchecked,
        });
        self.spool.push(&format!("\n],\"summary\":{summary}}}\n"))?;
        Ok(self.spool)
    }
}

fn pod(subject: &Subject<'_>) -> Value {
    let mut value = json::report(&subject.report);
    let spot = subject.spot(&format!("{}/spec", subject.report.analysis.view.root));
    let place = json!({
        "file": subject.origin.file,
        "document": subject.origin.raw.index + 1,
        "line": spot.line,
        "object": subject.name,
    });
    merge(&mut value, place);
    let findings = value["findings"].as_array_mut();
    for (written, finding) in findings.into_iter().flatten().zip(&subject.report.findings) {
        let spot = subject.spot(&finding.path);
        let place = json!({
            "file": subject.origin.file,
            "line": spot.line,
            "column": spot.column,
            "path": subject.pointer(&finding.path),
        });
        merge(written, place);
    }
    if let Some(play) = &subject.assumed {
        let simulation = json::trace(&play.scenario, &play.trace);
        merge(&mut value, json!({ "simulation": simulation }));
    }
    value
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
