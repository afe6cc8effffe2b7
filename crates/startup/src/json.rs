//! Reports and traces as JSON documents, for tools.
//!
//! Names of fields are part of the interface: they may be added, not changed.

use serde_json::{Value, json};

use crate::analysis::{ActorReport, Analysis, Cycle, Reach, Span};
use crate::findings::{Finding, Report};
use crate::needs::Need;
use crate::network::NetState;
use crate::sim::{Actor, Scenario, Trace};
use remora_pod::spec::{Kind, PodView};

/// A report with the analysis it rests on.
pub fn report(report: &Report) -> Value {
    let Analysis {
        view,
        setup,
        actors,
        cycles,
        completion,
        address_before_hooks,
        ..
    } = &report.analysis;
    json!({
        "pod": view.name,
        "kind": view.document_kind,
        "mesh": setup.mesh.name,
        "mode": setup.mode.as_str(),
        "completion": completion.as_str(),
        "addressBeforeHooks": address_before_hooks,
        "containers": containers(view),
        "steps": steps(&report.analysis),
        "processes": actors.iter().map(|a| process(view, a)).collect::<Vec<_>>(),
        "deadlocks": cycles.iter().map(|c| cycle(view, c)).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(|f| finding(view, f)).collect::<Vec<_>>(),
    })
}

fn steps(analysis: &Analysis) -> Vec<Value> {
    let view = &analysis.view;
    let steps = analysis.steps(&crate::kubelet::Config::default());
    steps
        .iter()
        .map(|t| json!({"step": t.step.describe(view), "when": t.when.describe(view)}))
        .collect()
}

fn containers(view: &PodView) -> Vec<Value> {
    let one = |c: &remora_pod::spec::Container| json!({"name": c.name, "kind": kind(c.kind), "path": c.path});
    view.containers.iter().map(one).collect()
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Init => "init",
        Kind::Sidecar => "sidecar",
        Kind::Main => "main",
    }
}

fn name(view: &PodView, actor: Actor) -> String {
    let container = view.containers.get(actor.slot).map_or("", |c| c.name.as_str());
    actor
        .part
        .name()
        .map_or_else(|| container.to_owned(), |part| format!("{container}/{part}"))
}

fn process(view: &PodView, report: &ActorReport) -> Value {
    let (need, why) = match &report.need {
        Need::No(why) => ("no", Some((*why).to_owned())),
        Need::Likely(why) => ("likely", Some(why.clone())),
        Need::Unknown => ("unknown", None),
    };
    json!({
        "process": name(view, report.actor),
        "needsNetwork": need,
        "because": why,
        "network": report.spans.iter().map(|s| span(view, s)).collect::<Vec<_>>(),
    })
}

fn span(view: &PodView, span: &Span) -> Value {
    let reason = match &span.reach {
        Reach::Excluded(why) => Some(why.to_string()),
        _ => None,
    };
    json!({
        "stage": span.stage.as_str(),
        "state": span.reach.as_str(),
        "reason": reason,
        "dns": span.dns.as_str(),
        "from": span.from.describe(view),
        "until": span.until.describe(view),
        "caveat": span.caveat.map(crate::analysis::Caveat::describe),
    })
}

fn cycle(view: &PodView, cycle: &Cycle) -> Value {
    json!({"certain": cycle.certain, "waits": cycle.describe(view)})
}

fn finding(view: &PodView, finding: &Finding) -> Value {
    let fixes: Vec<Value> = finding
        .fixes
        .iter()
        .map(|f| json!({"title": f.title, "tradeOff": f.trade_off, "drastic": f.drastic}))
        .collect();
    json!({
        "code": finding.rule.code,
        "title": finding.rule.title,
        "severity": finding.severity.as_str(),
        "container": finding.container,
        "path": finding.path,
        "cause": finding.cause,
        "consequence": finding.consequence,
        "deadlock": finding.cycle.as_ref().map(|c| cycle(view, c)),
        "fixes": fixes,
    })
}

/// A simulation.
pub fn trace(scenario: &Scenario, trace: &Trace) -> Value {
    let events: Vec<Value> = trace
        .named(scenario)
        .into_iter()
        .map(|(at, id)| json!({"at": at, "event": id}))
        .collect();
    let state = |(at, state): &(u64, NetState)| json!({"from": at, "state": state.as_str()});
    let network: Vec<Value> = trace
        .network
        .iter()
        .map(|lane| {
            let states: Vec<Value> = lane.states.iter().map(state).collect();
            json!({"process": trace.name(scenario, lane.who), "target": lane.target, "states": states})
        })
        .collect();
    json!({
        "events": events,
        "network": network,
        "phase": trace.status.phase.as_str(),
        "status": trace.status.kubectl(&scenario.view),
        "gone": trace.gone,
        "end": trace.end,
    })
}
