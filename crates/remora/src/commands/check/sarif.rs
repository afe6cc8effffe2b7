//! `--format sarif`: for code scanning, SARIF 2.1.0.

use super::policies::{self, Policy};
use super::subject::{Spot, Subject};
use super::{Format, Totals};
use crate::spool::Spool;
use remora_startup::findings::{self, Finding, Rule, Severity};
use serde_json::{Value, json};
use std::fmt::Write as _;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) struct Sarif {
    spool: Spool,
    first: bool,
}

impl Sarif {
    pub(super) fn new() -> anyhow::Result<Self> {
        let rules: Vec<Value> = findings::rules().map(rule).collect();
        let driver = json!({
            "name": "remora",
            "version": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        });
        let mut spool = Spool::new();
        spool.push(&format!(
            "{{\"$schema\":\"{SCHEMA}\",\"version\":\"2.1.0\",\"runs\":[{{\"tool\":{{\"driver\":{driver}}},\
             \"columnKind\":\"unicodeCodePoints\",\"results\":["
        ))?;
        Ok(Self { spool, first: true })
    }

    fn push(&mut self, result: &Value) -> anyhow::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.spool.push(",")?;
        }
        self.spool.push("\n")?;
        self.spool.push(&result.to_string())
    }
}

impl Format for Sarif {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        let mut findings = subject.report.findings.iter();
        findings.try_for_each(|finding| self.push(&result_of_pod(subject, finding)))
    }

    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()> {
        let mut findings = policy.findings.iter();
        findings.try_for_each(|finding| self.push(&result_of_policy(policy, finding)))
    }

    fn close(mut self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool> {
        let invocation = json!({"executionSuccessful": totals.unchecked == 0});
        self.spool
            .push(&format!("\n],\"invocations\":[{invocation}]}}]}}\n"))?;
        Ok(self.spool)
    }
}

fn rule(rule: &Rule) -> Value {
    let help = format!("{}\n\n{}\n\n{}", rule.why, rule.seen, rule.remedy);
    json!({
        "id": rule.code,
        "name": rule.title,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.what},
        "help": {"text": help, "markdown": rule.page()},
    })
}

fn result_of_pod(subject: &Subject<'_>, finding: &Finding) -> Value {
    let mut message = format!(
        "{}: {}\nYou see: {}",
        subject.name, finding.cause, finding.consequence
    );
    for fix in &finding.fixes {
        let _ = write!(message, "\nFix: {} (but {})", fix.title, fix.trade_off);
    }
    let fingerprint = format!(
        "{}/{}/{}/{}",
        subject.name, finding.rule.code, finding.container, finding.field
    );
    result(&Told {
        rule: finding.rule,
        severity: finding.severity,
        message,
        file: subject.origin.file,
        spot: subject.spot(&finding.path),
        pointer: subject.pointer(&finding.path),
        fingerprint,
    })
}

fn result_of_policy(policy: &Policy<'_>, finding: &policies::Finding) -> Value {
    let message = format!(
        "{}: {}\nYou see: {}\nFix: {}",
        policy.name, finding.cause, finding.consequence, finding.fix
    );
    result(&Told {
        rule: finding.rule,
        severity: finding.severity,
        message,
        file: policy.origin.file,
        spot: policy.spot(finding),
        pointer: policy.pointer(finding),
        fingerprint: format!("{}/{}/{}", policy.name, finding.rule.code, finding.field),
    })
}

/// What a result says, of whatever kind of object.
struct Told<'a> {
    rule: &'static Rule,
    severity: Severity,
    message: String,
    file: &'a str,
    spot: Spot,
    pointer: String,
    fingerprint: String,
}

fn result(told: &Told<'_>) -> Value {
    let spot = &told.spot;
    let length = u32::try_from(spot.text.trim_end().chars().count()).unwrap_or(u32::MAX);
    json!({
        "ruleId": told.rule.code,
        "ruleIndex": findings::rules().position(|rule| rule.code == told.rule.code),
        "level": level(told.severity),
        "message": {"text": told.message},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(told.file)},
                "region": {
                    "startLine": spot.line,
                    "startColumn": spot.column,
                    "endColumn": spot.column.max(length) + 1,
                    "snippet": {"text": spot.text},
                },
            },
            "logicalLocations": [{"fullyQualifiedName": told.pointer}],
        }],
        "partialFingerprints": {"finding/v1": told.fingerprint},
    })
}

const fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// A file name as a relative reference.
fn uri(file: &str) -> String {
    let mut out = String::new();
    for byte in file.trim_start_matches("./").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}
