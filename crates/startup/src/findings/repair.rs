//! Applies the best fixes until no finding with a fix is left.

use serde_json::Value;

use super::{Finding, Options, Report, Severity, apply, check};

/// Maximum number of rounds. Each round removes a finding or sets one aside, so only a pod with very many containers
/// reaches it.
const MAX_REPAIR_ROUNDS: usize = 1000;

/// A fix that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The code of the finding.
    pub code: &'static str,
    /// The container, empty for the pod.
    pub container: String,
    /// The title of the fix.
    pub title: String,
    /// The trade-off.
    pub trade_off: String,
}

/// A repaired document.
#[derive(Debug, Clone)]
pub struct Fixed {
    /// The document after all fixes.
    pub document: Value,
    /// The applied fixes, in order.
    pub applied: Vec<Applied>,
    /// The findings that are left.
    pub report: Report,
}

/// Applies the best fix of every error and warning that has one. A fix that does not remove its finding, or that
/// makes something worse, is reverted and the next one tried. Fixes that remove something are used against
/// errors only. Fixing a fixed document changes nothing.
pub fn fix(document: &Value, options: &Options) -> Fixed {
    let mut document = document.clone();
    let mut applied = Vec::new();
    let mut report = check(&document, options);
    let mut hopeless: Vec<Finding> = Vec::new();
    for _ in 0..MAX_REPAIR_ROUNDS {
        let known = |f: &Finding| hopeless.iter().any(|h| h.is_about_the_same_as(f));
        let open = report
            .findings
            .iter()
            .find(|f| f.severity != Severity::Note && !known(f));
        let Some(finding) = open.cloned() else { break };
        match mend(&document, options, &report, &finding) {
            Some((better, done, after)) => {
                document = better;
                applied.push(done);
                report = after;
                // A finding that could not be fixed before may be fixable now.
                hopeless.clear();
            }
            None => hopeless.push(finding),
        }
    }
    Fixed {
        document,
        applied,
        report,
    }
}

/// The document with the first fix that removes this finding and adds nothing worse.
fn mend(
    document: &Value,
    options: &Options,
    before: &Report,
    finding: &Finding,
) -> Option<(Value, Applied, Report)> {
    for fix in &finding.fixes {
        if fix.drastic && finding.severity != Severity::Error {
            continue;
        }
        let mut changed = document.clone();
        if apply(fix, &mut changed).is_err() || changed == *document {
            continue;
        }
        let after = check(&changed, options);
        if !has(&after, finding) && weight(&after) < weight(before) {
            let done = Applied {
                code: finding.rule.code,
                container: finding.container.clone(),
                title: fix.title.clone(),
                trade_off: fix.trade_off.clone(),
            };
            return Some((changed, done, after));
        }
    }
    None
}

fn has(report: &Report, finding: &Finding) -> bool {
    report.findings.iter().any(|f| f.is_about_the_same_as(finding))
}

/// Errors first, then warnings.
fn weight(report: &Report) -> (usize, usize) {
    let count = |severity| report.findings.iter().filter(|f| f.severity == severity).count();
    (count(Severity::Error), count(Severity::Warning))
}
