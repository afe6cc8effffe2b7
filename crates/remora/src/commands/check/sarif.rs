//! `--format sarif`: for code scanning, SARIF 2.1.0.

use super::subject::Subject;
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
}

impl Format for Sarif {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        for finding in &subject.report.findings {
            if !std::mem::take(&mut self.first) {
                self.spool.push(",")?;
            }
            self.spool.push("\n")?;
            self.spool.push(&result(subject, finding).to_string())?;
        }
        Ok(())
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

fn result(subject: &Subject<'_>, finding: &Finding) -> Value {
    let spot = subject.spot(&finding.path);
    let mut message = format!(
        "{}: {}\nYou see: {}",
        subject.name, finding.cause, finding.consequence
    );
    for fix in &finding.fixes {
        let _ = write!(message, "\nFix: {} (but {})", fix.title, fix.trade_off);
    }
    let length = u32::try_from(spot.text.trim_end().chars().count()).unwrap_or(u32::MAX);
    json!({
        "ruleId": finding.rule.code,
        "ruleIndex": findings::rules().position(|r| r.code == finding.rule.code),
        "level": level(finding.severity),
        "message": {"text": message},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(subject.origin.file)},
                "region": {
                    "startLine": spot.line,
                    "startColumn": spot.column,
                    "endColumn": spot.column.max(length) + 1,
                    "snippet": {"text": spot.text},
                },
            },
            "logicalLocations": [{"fullyQualifiedName": subject.pointer(&finding.path)}],
        }],
        "partialFingerprints": {
            "finding/v1": format!("{}/{}/{}/{}", subject.name, finding.rule.code, finding.container, finding.field),
        },
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
