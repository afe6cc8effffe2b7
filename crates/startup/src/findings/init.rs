//! Findings about init containers and native sidecars.

use super::fixes::{Change, Fix};
use super::{Case, Found, Severity, pages};
use crate::analysis::{Caveat, Cycle, Node, Reach, Span, Stage};
use crate::mesh::{CapturePoint, Gate};
use crate::needs::Need;
use crate::sim::Actor;
use remora_pod::spec::{Kind, ProbeKind, Slot};

pub(super) fn find(found: &mut Found<'_>) {
    let analysis = found.analysis;
    for slot in analysis.view.init_slots() {
        if analysis.setup.is_mesh(&analysis.view.containers[slot]) {
            continue;
        }
        let gated = startup_deadlock(found, slot);
        if !gated {
            no_network(found, slot);
        }
        plaintext(found, slot);
        breaks_connections(found, slot);
    }
    proxy_that_ends(found);
    open_gate(found);
    slow_gate(found);
}

/// A container's need for the network, and its first network state in the init stage.
fn first_span<'a>(found: &Found<'a>, slot: Slot) -> Option<(&'a Need, &'a Span)> {
    let report = found.analysis.actor(Actor::main(slot))?;
    let span = report.spans.iter().find(|s| s.stage == Stage::Init)?;
    Some((&report.need, span))
}

fn reason(need: &Need) -> String {
    match need {
        Need::Likely(why) => format!("; {why}"),
        _ => String::new(),
    }
}

/// RM001: captured before the proxy can run.
fn no_network(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let Some((need, span)) = first_span(found, slot) else {
        return;
    };
    if span.reach != Reach::Broken || !need.is_possible() {
        return;
    }
    let container = &analysis.view.containers[slot];
    let init = container.kind == Kind::Init;
    let severity = if init && need.is_likely() {
        Severity::Error
    } else {
        Severity::Warning
    };
    let by = capture_words(found);
    let (name, proxy) = (&container.name, analysis.setup.mesh.proxy());
    let cause = format!(
        "{name} runs after {by} and before {proxy} can run{}",
        reason(need)
    );
    let mut consequence = if init {
        "every connection is refused at once; an init container that needs one ends in Init:Error, then \
         Init:CrashLoopBackOff, and the pod never starts"
            .to_owned()
    } else {
        format!("every connection is refused until {proxy} is ready; exports and syncs of that time are lost")
    };
    if span.dns == Reach::Broken {
        consequence.push_str("; names do not resolve either");
    }
    let shop = found.shop();
    let fixes = [
        shop.native(),
        shop.reorder(slot),
        shop.exclude(slot),
        shop.run_as_proxy(slot),
    ];
    let cycle = network_cycle(found, slot);
    let fixes = fixes.into_iter().flatten().collect();
    found.add(Case {
        rule: &pages::RM001,
        severity,
        slot: Some(slot),
        field: String::new(),
        cause,
        consequence,
        cycle,
        fixes,
    });
    wrong_group(found, slot);
}

fn network_cycle(found: &Found<'_>, slot: Slot) -> Option<Cycle> {
    found
        .analysis
        .cycles_of(slot)
        .find(|c| c.begins() == Some(Node::Network(slot)))
        .cloned()
}

fn capture_words(found: &Found<'_>) -> String {
    match found.analysis.setup.capture_at {
        CapturePoint::Container(by) => format!("{} has redirected all traffic", found.name(by)),
        CapturePoint::Sandbox | CapturePoint::Never => "the CNI plugin has redirected all traffic".to_owned(),
    }
}

/// RM021: a supplementary group of the proxy exempts no process.
fn wrong_group(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let Some(gid) = analysis
        .setup
        .mesh
        .gid()
        .filter(|g| analysis.view.extra_gids.contains(g))
    else {
        return;
    };
    let cause = format!(
        "the pod lists group {gid} as fsGroup or supplementary group; the rules look at the primary group"
    );
    let consequence = format!(
        "{} is captured all the same, and its connections are refused",
        found.name(slot)
    );
    let fixes = found.shop().run_as_proxy(slot).into_iter().collect();
    let field = "/securityContext".to_owned();
    let severity = Severity::Warning;
    found.add(Case {
        rule: &pages::RM021,
        severity,
        slot: Some(slot),
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM003: a startup probe that needs the proxy, in front of the proxy. True when there is one.
fn startup_deadlock(found: &mut Found<'_>, slot: Slot) -> bool {
    let analysis = found.analysis;
    let through_probe = |c: &&Cycle| c.edges.iter().any(|e| e.from == Node::StartupProbe(slot));
    let Some(cycle) = analysis.cycles_of(slot).find(through_probe).cloned() else {
        return false;
    };
    let container = &analysis.view.containers[slot];
    let proxy = analysis.setup.mesh.proxy();
    let severity = if cycle.certain {
        Severity::Error
    } else {
        Severity::Warning
    };
    let cause = format!(
        "the startup probe of {} needs {proxy}, which cannot start before it succeeds",
        container.name
    );
    let consequence = format!(
        "the probe is refused until its threshold, {} is killed and started again, for ever; the pod stays in Init",
        container.name
    );
    let shop = found.shop();
    let drop = Fix::new(
        Change::DropProbe(container.name.clone(), ProbeKind::Startup),
        format!("drop the startup probe of {}", container.name),
        "what follows starts as soon as its process exists, ready or not",
    );
    let fixes = [shop.native(), shop.reorder(slot), Some(drop)]
        .into_iter()
        .flatten()
        .collect();
    let field = format!("/{}", ProbeKind::Startup.field());
    let (slot, cycle) = (Some(slot), Some(cycle));
    found.add(Case {
        rule: &pages::RM003,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle,
        fixes,
    });
    true
}

/// RM007: works, but outside the mesh.
fn plaintext(found: &mut Found<'_>, slot: Slot) {
    let Some((need, span)) = first_span(found, slot) else {
        return;
    };
    if span.caveat != Some(Caveat::Plaintext) || !need.is_likely() {
        return;
    }
    let cause = format!(
        "{} runs before traffic is redirected{}",
        found.name(slot),
        reason(need)
    );
    let consequence =
        "its connections are plaintext without mesh identity; peers that demand mTLS reset them".to_owned();
    let fixes = found.shop().native().into_iter().collect();
    let (severity, slot) = (Severity::Note, Some(slot));
    found.add(Case {
        rule: &pages::RM007,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM019: open connections break when the rules are installed.
fn breaks_connections(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let Some(report) = analysis.actor(Actor::main(slot)) else {
        return;
    };
    let breaks = report
        .spans
        .iter()
        .any(|s| s.stage == Stage::Init && s.caveat == Some(Caveat::ConnectionsBreak));
    if !breaks || !report.need.is_possible() {
        return;
    }
    let name = found.name(slot).to_owned();
    let cause = format!(
        "{name} starts before {}",
        capture_words(found).replace("has redirected", "redirects")
    );
    let consequence = format!(
        "connections {name} opened before hang or are reset at their next packet, and new ones are refused until {} \
         is ready",
        analysis.setup.mesh.proxy()
    );
    let shop = found.shop();
    let fixes = [shop.native(), shop.reorder(slot)]
        .into_iter()
        .flatten()
        .collect();
    let (severity, slot) = (Severity::Warning, Some(slot));
    found.add(Case {
        rule: &pages::RM019,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM023: a native proxy that lost its `restartPolicy: Always`.
fn proxy_that_ends(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let Some(proxy) = analysis
        .setup
        .proxy
        .filter(|p| analysis.view.containers[*p].kind == Kind::Init)
    else {
        return;
    };
    let name = analysis.setup.mesh.proxy();
    let cause = format!("{name} is an init container without `restartPolicy: Always`");
    let consequence =
        "the API refuses its probes and hooks; without them the pod waits in Init for its end, which \
                       never comes"
            .to_owned();
    let title = format!("give {name} `restartPolicy: Always`");
    let fixes = vec![Fix::new(
        Change::MakeStay(analysis.setup.mesh),
        title,
        "needs Kubernetes 1.29 or later",
    )];
    let (severity, slot) = (Severity::Error, Some(proxy));
    found.add(Case {
        rule: &pages::RM023,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM008: a native proxy that no container waits for.
fn open_gate(found: &mut Found<'_>) {
    let setup = &found.analysis.setup;
    let (Some(proxy), true, Gate::Open) = (setup.proxy, setup.mode.is_native(), setup.gate) else {
        return;
    };
    let name = setup.mesh.proxy();
    let cause = format!("{name} is a native sidecar without a startup probe or a waiting hook");
    let consequence =
        "what follows starts as soon as its process exists, and is refused until it listens".to_owned();
    let fix = Fix::new(
        Change::GateProxy(setup.mesh),
        format!("give {name} a startup probe"),
        "the containers behind it start up to a second later",
    );
    let (severity, slot) = (Severity::Warning, Some(proxy));
    let fixes = vec![fix];
    found.add(Case {
        rule: &pages::RM008,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM014: a gate whose probe period is too long.
fn slow_gate(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let (Some(proxy), Gate::StartupProbe) = (analysis.setup.proxy, analysis.setup.gate) else {
        return;
    };
    let Some(period) = analysis.view.containers[proxy]
        .startup
        .as_ref()
        .map(|p| p.period)
        .filter(|p| *p > 1)
    else {
        return;
    };
    let name = analysis.setup.mesh.proxy();
    let cause = format!("the startup probe of {name} is made every {period} s");
    let consequence = format!("every start of the pod waits up to {period} s after the proxy is ready");
    let change = Change::ProbePeriod(name.to_owned(), ProbeKind::Startup, 1);
    let fixes = vec![Fix::new(
        change,
        format!("probe {name} every second"),
        "a request a second until it is ready",
    )];
    let field = format!("/{}/periodSeconds", ProbeKind::Startup.field());
    let (severity, slot) = (Severity::Note, Some(proxy));
    found.add(Case {
        rule: &pages::RM014,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}
