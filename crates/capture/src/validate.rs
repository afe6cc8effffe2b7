//! Checks that capture works, by comparing rules and by probing.
//!
//! First the rules are read back and compared. Then real connections on every path (inbound and outbound, both
//! families, DNS queries) must arrive at the proxy's ports, where the check itself listens. A check that lacks a
//! privilege is reported as not checked, and never counts as passed.

mod probe;

use crate::apply::Nftables;
use crate::facts;
use crate::ruleset::ruleset;
use crate::verify::{Difference, verify};
use remora_rules::Plan;
use remora_rules::intent::Intent;
use remora_rules::options::Settings;
use std::fmt;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The check found what it expected.
    Passed,
    /// The check failed, with the reason.
    Failed(String),
    /// The check was not made, with the reason.
    NotChecked(String),
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub what: String,
    /// How it ended.
    pub verdict: Verdict,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Passed => write!(f, "ok: {}", self.what),
            Verdict::Failed(why) => write!(f, "failed: {}: {why}", self.what),
            Verdict::NotChecked(why) => write!(f, "not checked: {}: {why}", self.what),
        }
    }
}

/// Whether capture works: nothing failed, and something passed.
pub fn passed(checks: &[Check]) -> bool {
    let failed = checks
        .iter()
        .any(|check| matches!(check.verdict, Verdict::Failed(_)));
    !failed && checks.iter().any(|check| check.verdict == Verdict::Passed)
}

/// Checks the calling thread's namespace.
pub fn validate(settings: &Settings, intent: &Intent, plan: &Plan) -> Vec<Check> {
    let mut checks = check_rules(plan);
    checks.extend(probe::run(settings, intent, plan));
    checks
}

fn check_rules(plan: &Plan) -> Vec<Check> {
    let what = || "the rules in the kernel".to_owned();
    let not_checked = |why: String| {
        vec![Check {
            what: what(),
            verdict: Verdict::NotChecked(why),
        }]
    };
    let mut numbered = plan.clone();
    if let Err(error) = facts::resolve_owners(&mut numbered) {
        return not_checked(error.to_string());
    }
    let differences = Nftables::open().and_then(|mut nftables| verify(&mut nftables, &ruleset(&numbered)));
    match differences {
        Err(error) => {
            let why = if error.is_permission() {
                "needs the capability NET_ADMIN".into()
            } else {
                error.to_string()
            };
            not_checked(why)
        }
        Ok(differences) if differences.is_empty() => vec![Check {
            what: what(),
            verdict: Verdict::Passed,
        }],
        // The iptables programs or Istio may have installed the rules: only the probes can show it.
        Ok(differences) if differences == [Difference::NoTable] => {
            not_checked("there are none of ours in nftables".into())
        }
        Ok(differences) => {
            let failed = |found: &Difference| Check {
                what: what(),
                verdict: Verdict::Failed(found.to_string()),
            };
            differences.iter().map(failed).collect()
        }
    }
}
