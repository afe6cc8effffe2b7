//! Istio's policies among the documents: what a proxy will not enforce as written.
//!
//! The translation of the control plane says what that is. A policy has no timeline, so every format tells it beside
//! the pods.

use super::subject::{Origin, Spot, pointer};
use super::words::tame;
use crate::out;
use remora_control::policy::{self, Mesh, Problem};
use remora_pod::{Path, object, workload};
use remora_startup::findings::{Rule, Severity, pages};
use serde_json::Value;

/// A checked policy.
pub(super) struct Policy<'a> {
    pub(super) origin: Origin<'a>,
    /// `AuthorizationPolicy "shop/p"`.
    pub(super) name: String,
    /// Where it is in its document, which may be a list of objects.
    at: Path,
    /// In the order of the document.
    pub(super) findings: Vec<Finding>,
}

/// A field of a policy that is not enforced as written.
pub(super) struct Finding {
    pub(super) rule: &'static Rule,
    pub(super) severity: Severity,
    /// From the root of the policy.
    pub(super) field: Path,
    pub(super) cause: String,
    pub(super) consequence: String,
    pub(super) fix: String,
}

impl Finding {
    fn new(problem: &Problem) -> Self {
        let (rule, severity) = if problem.fault.is_error() {
            (&pages::RM025, Severity::Error)
        } else {
            (&pages::RM026, Severity::Warning)
        };
        Self {
            rule,
            severity,
            field: problem.field.clone(),
            cause: format!("{}: {}", problem.field, problem.fault),
            consequence: problem.consequence.to_string(),
            fix: problem.fault.remedy(),
        }
    }
}

impl Policy<'_> {
    pub(super) fn count(&self, severity: Severity) -> usize {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.severity == severity).count()
    }

    pub(super) fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).min()
    }

    /// Where the policy begins.
    pub(super) fn place(&self) -> Spot {
        self.origin.spot(&self.at)
    }

    pub(super) fn spot(&self, finding: &Finding) -> Spot {
        self.origin.spot(&self.at.concat(&finding.field))
    }

    /// JSON pointer of the field in the whole document.
    pub(super) fn pointer(&self, finding: &Finding) -> String {
        pointer(&self.at.concat(&finding.field))
    }

    /// Tells the findings on standard error, where the output has no place for them.
    pub(super) fn warn(&self) {
        for finding in &self.findings {
            let spot = self.spot(finding);
            let text = format!(
                "{}:{}:{}: {} {}: {}; {}",
                tame(self.origin.file),
                spot.line,
                spot.column,
                finding.rule.code,
                tame(&self.name),
                tame(&finding.cause),
                finding.consequence
            );
            match finding.severity {
                Severity::Error => out::error_text(text),
                Severity::Warning | Severity::Note => out::warning(text),
            }
        }
    }
}

/// The policies of a document: itself, or objects of a list.
pub(super) fn check<'a>(origin: Origin<'a>, document: &Value) -> Vec<Policy<'a>> {
    let Some(items) = workload::items(document) else {
        return of_object(origin, document, Path::root()).into_iter().collect();
    };
    let at = Path::of(&["items"]);
    let numbered = items.iter().enumerate();
    numbered
        .filter_map(|(index, item)| of_object(origin, item, at.join(index)))
        .collect()
}

fn of_object<'a>(origin: Origin<'a>, object: &Value, at: Path) -> Option<Policy<'a>> {
    let problems = policy::problems(object, &Mesh::default())?;
    Some(Policy {
        origin,
        name: object::display_name(object),
        at,
        findings: problems.iter().map(Finding::new).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::commands::check::subject::Origin;
    use remora_pod::yaml::{self, Limits};

    const LIST: &str = "\
apiVersion: v1
kind: List
items:
- kind: Pod
- apiVersion: security.istio.io/v1
  kind: AuthorizationPolicy
  metadata: {name: p, namespace: shop}
  spec:
    rules:
    - to:
      - operation:
          methods: [GET]
          port: ['80']
";

    #[test]
    fn policies_are_found_in_lists_too_and_have_codes_and_places() {
        let raw = yaml::split(LIST).next().unwrap();
        let document = yaml::parse(&raw, Limits::default()).unwrap().unwrap();
        let origin = Origin {
            file: "list.yaml",
            raw: &raw,
            marks: &document.marks,
            written: None,
        };
        let [policy] = &check(origin, &document.value)[..] else {
            panic!("one policy")
        };
        assert_eq!(
            (policy.name.as_str(), policy.place().line),
            ("AuthorizationPolicy \"shop/p\"", 5)
        );
        let found: Vec<(&str, u32, String)> = policy
            .findings
            .iter()
            .map(|f| (f.rule.code, policy.spot(f).line, policy.pointer(f)))
            .collect();
        let start = "/items/1/spec/rules/0/to/0/operation";
        assert_eq!(
            found,
            [
                ("RM025", 13, format!("{start}/port")),
                ("RM026", 12, format!("{start}/methods"))
            ]
        );
        assert!(check(origin, &document.value["items"][0]).is_empty());
    }
}
