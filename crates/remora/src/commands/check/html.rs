//! `--format html`: one page that needs nothing else, for a browser or a mail.

mod sides;

use super::lanes::outcome;
use super::markup::Escaped;
use super::measured;
use super::page::{STYLE_OF_PAGES, STYLE_OF_PICTURES};
use super::policies::{self, Policy};
use super::subject::{Play, Spot, Subject, usual};
use super::svg::{self, PATTERNS, WIDTH};
use super::text::mode;
use super::{Format, Totals};
use crate::spool::Spool;
use remora_startup::findings::{self, Finding, Fixed, Rule, Severity};
use remora_startup::json;
use remora_startup::timeline::Timeline;
use serde_json::Value;
use std::fmt::Write as _;

pub(super) struct Html {
    body: Spool,
    /// They follow the pods, wherever they stand in the input.
    policies: Spool,
}

impl Html {
    pub(super) fn new() -> Self {
        Self {
            body: Spool::new(),
            policies: Spool::new(),
        }
    }
}

impl Format for Html {
    fn pod(&mut self, subject: &Subject<'_>) -> anyhow::Result<()> {
        let mut out = String::new();
        heading(&mut out, subject);
        if let Some(course) = subject.measured {
            measured::chart(&mut out, course);
            picture(
                &mut out,
                &course.predicted,
                "What the model predicts, if the proxy and init containers take as long as they did.",
            );
        }
        match &subject.assumed {
            _ if subject.measured.is_some() => {}
            Some(play) => chart(&mut out, play, "under the stated assumptions"),
            None => chart(&mut out, &subject.usual(), USUAL),
        }
        for finding in &subject.report.findings {
            article(&mut out, subject, finding);
        }
        if !subject.is_clean() {
            repair(&mut out, subject);
        }
        network(&mut out, subject);
        out.push_str("</section>\n");
        self.body.push(&out)
    }

    fn policy(&mut self, policy: &Policy<'_>) -> anyhow::Result<()> {
        let mut out = String::new();
        let state = if policy.findings.is_empty() {
            " <span class=\"ok\">✓ enforced as written</span>"
        } else {
            ""
        };
        let line = policy.place().line;
        let _ = writeln!(
            out,
            "<h3>{}{state}</h3><p class=\"dim\">{}:{line}</p>",
            Escaped(&policy.name),
            Escaped(policy.origin.file),
        );
        for finding in &policy.findings {
            article_of_policy(&mut out, policy, finding);
        }
        self.policies.push(&out)
    }

    fn close(self: Box<Self>, totals: &Totals) -> anyhow::Result<Spool> {
        self.close_as("remora check", totals)
    }
}

impl Html {
    /// The whole page under a title.
    pub(super) fn close_as(self, title: &str, totals: &Totals) -> anyhow::Result<Spool> {
        let mut page = Spool::new();
        page.push(&format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>{title}</title>\n<style>{STYLE_OF_PAGES}{STYLE_OF_PICTURES}</style></head>\n\
             <body><svg class=\"remora\" width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">\
             {PATTERNS}</svg><main>\n<h1>{title}</h1>\n<p>{}</p>\n",
            totals.sentence()
        ))?;
        if totals.unchecked > 0 {
            page.push(&format!(
                "<p class=\"error\">{} could not be checked</p>\n",
                totals.unchecked
            ))?;
        }
        page.append(self.body)?;
        if totals.policies > 0 {
            page.push("<section><h2>Policies</h2><p class=\"dim\">Objects that are not pods.</p>\n")?;
            page.append(self.policies)?;
            page.push("</section>\n")?;
        }
        page.push("</main></body></html>\n")?;
        Ok(page)
    }
}

const USUAL: &str = "if the proxy takes 1.5 s to be ready and init containers work for 0.5 s";

fn heading(out: &mut String, subject: &Subject<'_>) {
    let spot = subject.spot(&format!("{}/spec", subject.report.analysis.view.root));
    let state = if subject.is_clean() {
        " <span class=\"ok\">✓ starts and stops</span>"
    } else {
        ""
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<section><h2>{}{state}</h2><p class=\"dim\">{} · {}:{}</p>",
        Escaped(&subject.name),
        Escaped(&mode(subject)),
        Escaped(subject.origin.file),
        spot.line
    );
}

fn chart(out: &mut String, play: &Play, under: &str) {
    let words = format!("What happens {under}; {}.", Escaped(&outcome(play)));
    picture(out, &play.timeline, &words);
}

/// A timeline with words under it.
pub(super) fn picture(out: &mut String, timeline: &Timeline, words: &str) {
    let drawing = svg::draw(timeline, true);
    let _ = writeln!(
        out,
        "<div class=\"chart\"><svg class=\"remora\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"group\" \
         aria-label=\"who has network when\">{}</svg></div>\n<p class=\"dim\">{words} \
         Time is drawn shorter where nothing happens.</p>",
        drawing.height, drawing.body,
    );
}

/// The beginning of an article: what, where, and the line.
fn open_article(out: &mut String, rule: &Rule, severity: Severity, file: &str, spot: &Spot) {
    let severity = severity.as_str();
    let _ = write!(
        out,
        "<article class=\"{severity}\"><h4>{severity} {}: {}</h4><p class=\"place\"><code>{}:{}:{}</code></p>\
         <pre><span class=\"dim\">{} │</span> {}</pre>",
        rule.code,
        Escaped(rule.title),
        Escaped(file),
        spot.line,
        spot.column,
        spot.line,
        Escaped(spot.text.trim_end()),
    );
}

fn close_article(out: &mut String, rule: &Rule) {
    let _ = writeln!(
        out,
        "<details><summary>About {}</summary><p>{}</p><p>{}</p><p>{}</p></details></article>",
        rule.code,
        Escaped(rule.what),
        Escaped(rule.why),
        Escaped(rule.remedy),
    );
}

fn article_of_policy(out: &mut String, policy: &Policy<'_>, finding: &policies::Finding) {
    open_article(
        out,
        finding.rule,
        finding.severity,
        policy.origin.file,
        &policy.spot(finding),
    );
    let _ = write!(
        out,
        "<dl><dt>why</dt><dd>{}</dd><dt>you see</dt><dd>{}</dd><dt>fix</dt><dd>{}</dd></dl>",
        Escaped(&finding.cause),
        Escaped(&finding.consequence),
        Escaped(&finding.fix),
    );
    close_article(out, finding.rule);
}

fn article(out: &mut String, subject: &Subject<'_>, finding: &Finding) {
    let spot = subject.spot(&finding.path);
    open_article(out, finding.rule, finding.severity, subject.origin.file, &spot);
    let _ = write!(
        out,
        "<dl><dt>why</dt><dd>{}</dd><dt>you see</dt><dd>{}</dd>",
        Escaped(&finding.cause),
        Escaped(&finding.consequence),
    );
    if let Some(cycle) = &finding.cycle {
        out.push_str("<dt>deadlock</dt><dd>");
        for wait in cycle.describe(&subject.report.analysis.view) {
            let _ = write!(out, "{}<br>", Escaped(&wait));
        }
        out.push_str("</dd>");
    }
    if !finding.fixes.is_empty() {
        out.push_str("<dt>fixes</dt><dd><ol>");
        for fix in &finding.fixes {
            let _ = write!(
                out,
                "<li>{}<span>but {}</span></li>",
                Escaped(&fix.title),
                Escaped(&fix.trade_off)
            );
        }
        out.push_str("</ol></dd>");
    }
    out.push_str("</dl>");
    close_article(out, finding.rule);
}

/// What the best fixes make of the pod.
fn repair(out: &mut String, subject: &Subject<'_>) {
    let fixed = findings::fix(subject.object, subject.options);
    if fixed.applied.is_empty() {
        out.push_str("<h3>No fix is known that can be applied by itself</h3>\n");
        return;
    }
    out.push_str("<h3>After the best fixes</h3><ol>");
    for applied in &fixed.applied {
        let _ = write!(
            out,
            "<li>{} <span>{}: {}</span></li>",
            Escaped(&applied.title),
            applied.code,
            Escaped(&applied.trade_off)
        );
    }
    out.push_str("</ol>\n");
    chart(out, &usual(&fixed.report, subject.options), USUAL);
    left_over(out, &fixed);
    let template = |object: &Value| {
        let root = subject.report.analysis.view.root.as_str();
        object
            .pointer(root)
            .map(remora_pod::yaml::write)
            .unwrap_or_default()
    };
    sides::write(out, &template(subject.object), &template(&fixed.document));
}

fn left_over(out: &mut String, fixed: &Fixed) {
    let left: Vec<String> = fixed
        .report
        .findings
        .iter()
        .map(|f| format!("{} {}", f.severity.as_str(), f.rule.code))
        .collect();
    let words = if left.is_empty() {
        "Nothing is left to complain about.".to_owned()
    } else {
        format!("What is left: {}.", left.join(", "))
    };
    let _ = writeln!(out, "<p>{}</p>", Escaped(&words));
}

/// Who has network when, in any course of events.
fn network(out: &mut String, subject: &Subject<'_>) {
    let report = json::report(&subject.report);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    out.push_str(
        "<details><summary>Who has network when, in any course of events</summary><div class=\"scroll\"><table>\
         <tr><th>process</th><th>stage</th><th>connections</th><th>from</th><th>until</th><th></th></tr>",
    );
    for process in rows("processes") {
        for span in process["network"].as_array().into_iter().flatten() {
            let state = match span["reason"].as_str() {
                Some(why) => format!("{} ({why})", text(&span["state"])),
                None => text(&span["state"]),
            };
            let cells = [
                text(&process["process"]),
                text(&span["stage"]),
                state,
                text(&span["from"]),
                text(&span["until"]),
                text(&span["caveat"]),
            ];
            out.push_str("<tr>");
            for cell in &cells {
                let _ = write!(out, "<td>{}</td>", Escaped(cell));
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</table></div></details>\n");
}
