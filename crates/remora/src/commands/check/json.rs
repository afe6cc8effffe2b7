//! `--format json`: everything, for programs.
//!
//! `docs/check.md` describes the fields. They may be added to, not changed; a change would raise `version`.

use super::policies::{Finding, Policy};
use super::subject::Subject;
use super::{Format, Totals};
use crate::spool::Spool;
use remora_startup::json;
use serde_json::{Value, json};

pub(super) struct Json {
    spool: Spool,
    first: bool,
    /// They follow the pods, wherever they stand in the input.
    policies: Spool,
    first_policy: bool,
}

impl Json {
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut spool = Spool::new();
        spool.push("{\"version\":1,\"pods\":[")?;
        Ok(Self {
            spool,
            first: true,
            policies: Spool::new(),
            first_policy: true,
        })
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

    fn policy(&mut self, told: &Policy<'_>) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.first_policy) {
            self.policies.push(",")?;
        }
        self.policies.push("\n")?;
        self.policies.push(&policy(told).to_string())
    }

    fn close(self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool> {
        let Self {
            mut spool, policies, ..
        } = *self;
        let summary = json!({
            "pods": totals.pods,
            "policies": totals.policies,
            "clean": totals.clean,
            "errors": totals.errors,
            "warnings": totals.warnings,
            "notes": totals.notes,
            "unchecked": totals.unchecked,
        });
        spool.push("\n],\"policies\":[")?;
        spool.append(policies)?;
        spool.push(&format!("\n],\"summary\":{summary}}}\n"))?;
        Ok(spool)
    }
}

fn policy(policy: &Policy<'_>) -> Value {
    let finding = |finding: &Finding| {
        let spot = policy.spot(finding);
        json!({
            "code": finding.rule.code,
            "title": finding.rule.title,
            "severity": finding.severity.as_str(),
            "file": policy.origin.file,
            "line": spot.line,
            "column": spot.column,
            "path": policy.pointer(finding),
            "cause": finding.cause,
            "consequence": finding.consequence,
            "fixes": [{"title": finding.fix, "tradeOff": "", "drastic": false}],
        })
    };
    json!({
        "file": policy.origin.file,
        "document": policy.origin.raw.index + 1,
        "line": policy.place().line,
        "object": policy.name,
        "findings": policy.findings.iter().map(finding).collect::<Vec<_>>(),
    })
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
