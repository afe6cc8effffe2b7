//! `--fix`: the manifests with the best fixes applied, everything else as it was written.

use super::Totals;
use super::args::FixChoice;
use super::subject::{Origin, Subject};
use super::words::tame;
use crate::commands::inject::diff::Diff;
use crate::out;
use crate::spool::Spool;
use remora_pod::workload::Workload;
use remora_pod::yaml;
use remora_startup::findings::{self, Applied, Options, Severity};
use serde_json::Value;
use std::path::Path;

/// Mended documents, on their way out.
pub(super) struct Fixes {
    how: FixChoice,
    spool: Spool,
    diff: Diff,
}

impl Fixes {
    pub(super) fn new(how: FixChoice) -> Self {
        Self {
            how,
            spool: Spool::new(),
            diff: Diff::default(),
        }
    }

    /// Mends the pods of a document. Counted is what is left.
    pub(super) fn document(
        &mut self,
        origin: Origin<'_>,
        value: &Value,
        pods: &[Workload],
        options: &Options,
        totals: &mut Totals,
    ) -> anyhow::Result<()> {
        let mut mended = value.clone();
        for workload in pods {
            let mut subject = Subject::check(origin, value, workload.object.clone(), options);
            let fixed = findings::fix(subject.object, options);
            for applied in &fixed.applied {
                tell(&subject, applied);
            }
            subject.report = fixed.report;
            remaining(&subject);
            totals.count(&subject);
            if let Some(object) = workload.object.get_mut(&mut mended) {
                *object = fixed.document;
            }
            self.diff
                .add(&tame(&subject.name), &workload.template, value, &mended);
        }
        let as_written = mended == *origin.written.unwrap_or(value);
        if self.how == FixChoice::Diff {
            return Ok(());
        }
        if as_written {
            self.spool
                .push(origin.raw.body().trim_end_matches(['\n', '\r']))?;
            self.spool.push("\n---\n")
        } else {
            self.spool.push(&yaml::write(&mended))?;
            self.spool.push("---\n")
        }
    }

    pub(super) fn release(mut self, target: Option<&Path>) -> anyhow::Result<()> {
        match (self.how, target) {
            (FixChoice::Print, target) => self.spool.release(target),
            (FixChoice::Diff, None) => self.diff.print(),
            (FixChoice::Diff, target) => {
                let text = self.diff.finish();
                self.spool
                    .push(&anstream::adapter::strip_str(&text).to_string())?;
                self.spool.release(target)
            }
        }
    }
}

/// What was done, and what it costs.
fn tell(subject: &Subject<'_>, applied: &Applied) {
    let of = match applied.container.as_str() {
        "" => String::new(),
        name => format!(" of {}", tame(name)),
    };
    out::note(format!(
        "{}: {}: {}{of}: {}; {}",
        tame(subject.origin.file),
        tame(&subject.name),
        applied.code,
        tame(&applied.title),
        tame(&applied.trade_off)
    ));
}

/// What no fix helps against.
fn remaining(subject: &Subject<'_>) {
    for finding in &subject.report.findings {
        let text = format!(
            "{}: {}: {}: {}",
            tame(subject.origin.file),
            tame(&subject.name),
            finding.rule.code,
            tame(&finding.cause)
        );
        match finding.severity {
            Severity::Error => out::error_text(text),
            Severity::Warning => out::warning(text),
            Severity::Note => {}
        }
    }
}
