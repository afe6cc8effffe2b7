//! What is wrong with a pod, why, what a user would see, and what to do about it.
//!
//! [`check`] reads a document, analyses it and returns findings with stable codes. Each points at a container and a
//! field (as a JSON pointer, which whoever read the file can turn into a line) and carries fixes in order of
//! preference; [`fix`](fn@fix) applies the best ones. [`rules`] explains every code at length.

use serde_json::Value;

use crate::analysis::{Analysis, Cycle};
use crate::mesh::Mode;
use crate::view::{PodView, Slot};

mod apply;
mod edit;
mod fixes;
mod init;
mod mains;
mod pages;
mod pages_more;
mod pod;
mod probes;
mod repair;
mod stop;

pub use apply::{ApplyError, apply};
pub use fixes::{Change, Fix, Place};
pub use pages::{Rule, rule, rules, rules_about_policies};
pub use repair::{Applied, Fixed, fix};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The pod will not start, not end, or not do its work.
    Error,
    /// It depends on timing, or on something the document does not tell.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// How to check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The mode to assume; `None`: the one found in the pod.
    pub mode: Option<Mode>,
    /// Version of the kubelets, such as `1.32`; `None`: recent.
    pub kubelet: Option<String>,
    /// Whether the mesh demands mTLS of everybody.
    pub strict: bool,
}

impl Options {
    /// Whether native sidecars exist on these kubelets.
    pub fn native_possible(&self) -> bool {
        let minor = self
            .kubelet
            .as_deref()
            .and_then(|v| v.trim_start_matches('v').split('.').nth(1));
        // k8s: on by default from 1.29 on.
        minor
            .and_then(|m| m.trim_end_matches('+').parse::<u32>().ok())
            .is_none_or(|m| m >= 29)
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Its code and everything that is always true of it.
    pub rule: &'static Rule,
    /// How bad it is here.
    pub severity: Severity,
    /// Name of the container, empty when it is about the pod.
    pub container: String,
    /// The field, relative to the container: `/lifecycle/postStart`; empty for the whole container.
    pub field: String,
    /// JSON pointer of the field in the document.
    pub path: String,
    /// Why it happens.
    pub cause: String,
    /// What a user sees.
    pub consequence: String,
    /// The waits that close a circle, when they do.
    pub cycle: Option<Cycle>,
    /// What can be done, best first.
    pub fixes: Vec<Fix>,
}

impl Finding {
    /// Whether two findings are about the same thing, even after containers have moved.
    pub fn is_about_the_same_as(&self, other: &Self) -> bool {
        self.rule.code == other.rule.code && self.container == other.container && self.field == other.field
    }
}

/// The outcome of a check.
#[derive(Debug, Clone)]
pub struct Report {
    /// What the findings rest on.
    pub analysis: Analysis,
    /// The findings, worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst finding.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).min()
    }
}

/// Checks a pod, or the pod template in a workload.
pub fn check(document: &Value, options: &Options) -> Report {
    check_view(PodView::read(document), options)
}

/// Checks a pod that has been read already.
pub fn check_view(view: PodView, options: &Options) -> Report {
    let analysis = Analysis::new(view, options.mode);
    let mut found = Found {
        analysis: &analysis,
        options,
        findings: Vec::new(),
    };
    init::find(&mut found);
    mains::find(&mut found);
    pod::find(&mut found);
    probes::find(&mut found);
    stop::find(&mut found);
    let mut findings = found.findings;
    findings.sort_by(|a, b| (a.severity, a.rule.code).cmp(&(b.severity, b.rule.code)));
    Report { analysis, findings }
}

/// Findings as they are found.
struct Found<'a> {
    analysis: &'a Analysis,
    options: &'a Options,
    findings: Vec<Finding>,
}

/// The parts of a finding that differ from case to case.
struct Case {
    code: &'static str,
    severity: Severity,
    slot: Option<Slot>,
    field: String,
    cause: String,
    consequence: String,
    cycle: Option<Cycle>,
    fixes: Vec<Fix>,
}

impl<'a> Found<'a> {
    /// Where the fixes for this pod come from.
    fn shop(&self) -> fixes::Shop<'a> {
        fixes::Shop {
            view: &self.analysis.view,
            setup: &self.analysis.setup,
            options: self.options,
        }
    }

    fn add(&mut self, case: Case) {
        let Some(rule) = rule(case.code) else { return };
        let container = case.slot.and_then(|s| self.analysis.view.containers.get(s));
        let root = &self.analysis.view.root;
        // A container that was only thought in has no place in the document; the pod's own has to do.
        let base = container.map(|c| c.path.as_str()).filter(|p| !p.is_empty());
        let path = match (base, case.slot) {
            (Some(base), _) => format!("{base}{}", case.field),
            (None, None) => format!("{root}{}", case.field),
            (None, Some(_)) => format!("{root}/spec"),
        };
        self.findings.push(Finding {
            rule,
            severity: case.severity,
            container: container.map(|c| c.name.clone()).unwrap_or_default(),
            field: case.field,
            path,
            cause: case.cause,
            consequence: case.consequence,
            cycle: case.cycle,
            fixes: case.fixes,
        });
    }

    fn name(&self, slot: Slot) -> &str {
        self.analysis
            .view
            .containers
            .get(slot)
            .map_or("", |c| c.name.as_str())
    }
}
