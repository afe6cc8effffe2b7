//! Findings about the end of the pod.

use super::fixes::{Change, Fix};
use super::{Case, Found, Severity, pages};
use crate::analysis::{Completion, Path, Reach, Stage};
use crate::sim::{Actor, Part};
use remora_pod::spec::{Handler, Hook, Kind, Slot};

pub(super) fn find(found: &mut Found<'_>) {
    never_ends(found);
    for slot in 0..found.analysis.view.containers.len() {
        if found
            .analysis
            .setup
            .is_mesh(&found.analysis.view.containers[slot])
        {
            continue;
        }
        loses_network(found, slot);
        long_pre_stop(found, slot);
        impossible_pre_stop(found, slot);
    }
}

/// RM005: a Job that never ends.
fn never_ends(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let (Completion::NeverEnds, Some(proxy)) = (analysis.completion, analysis.setup.proxy) else {
        return;
    };
    let severity = if analysis.view.batch {
        Severity::Error
    } else {
        Severity::Warning
    };
    let name = analysis.setup.mesh.proxy();
    let cause = format!("{name} is a main container and does not end when the others have");
    let consequence =
        "the pod stays Running and shows NotReady; its Job never completes, and a CronJob piles up"
            .to_owned();
    let fixes = found.shop().native().into_iter().collect();
    let slot = Some(proxy);
    found.add(Case {
        rule: &pages::RM005,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM006 for mains, RM012 for native sidecars: the proxy ends first.
fn loses_network(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let container = &analysis.view.containers[slot];
    let Some(report) = analysis.actor(Actor::main(slot)) else {
        return;
    };
    let loses = report.during(Stage::Stop).contains(&&Reach::Broken) && report.need.is_possible();
    if !loses || container.kind == Kind::Init {
        return;
    }
    let (name, proxy) = (container.name.clone(), analysis.setup.mesh.proxy());
    let shop = found.shop();
    if container.kind == Kind::Main {
        let drain = analysis.setup.drain_seconds;
        let works = container.pre_stop.is_some();
        let severity = if works { Severity::Warning } else { Severity::Note };
        let cause = format!("{proxy} gets its stop signal together with {name} and is gone after {drain} s");
        let consequence =
            format!("whatever {name} still sends after that is refused: last requests, offsets, telemetry");
        let fixes = shop.native().into_iter().collect();
        let field = if works { "/lifecycle/preStop" } else { "" }.to_owned();
        let slot = Some(slot);
        found.add(Case {
            rule: &pages::RM006,
            severity,
            slot,
            field,
            cause,
            consequence,
            cycle: None,
            fixes,
        });
        return;
    }
    let cause = format!("{name} is stopped after {proxy}");
    let consequence = format!("{name} has no network while it shuts down; buffered data is lost");
    let fixes = [shop.native(), shop.reorder(slot)]
        .into_iter()
        .flatten()
        .collect();
    let (severity, slot) = (Severity::Warning, Some(slot));
    found.add(Case {
        rule: &pages::RM012,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM017: a preStop hook that uses up the grace period.
fn long_pre_stop(found: &mut Found<'_>, slot: Slot) {
    let view = &found.analysis.view;
    let Some(Handler::Sleep(seconds)) = view.containers[slot].pre_stop else {
        return;
    };
    let grace = view.grace_seconds;
    if seconds < grace {
        return;
    }
    let name = view.containers[slot].name.clone();
    let cause = format!("the preStop hook of {name} sleeps {seconds} s, and the pod has {grace} s to stop");
    let consequence =
        format!("{name} gets its stop signal when the time is over, and is killed two seconds later");
    let wanted = seconds.saturating_add(30);
    let fix = Fix::new(
        Change::Grace(wanted),
        format!("give the pod {wanted} s to stop"),
        "stopping may take that long",
    );
    let (severity, slot, fixes) = (Severity::Warning, Some(slot), vec![fix]);
    let field = "/lifecycle/preStop".to_owned();
    found.add(Case {
        rule: &pages::RM017,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

fn impossible_pre_stop(found: &mut Found<'_>, slot: Slot) {
    let part = Part::Hook(Hook::PreStop);
    let report = found.analysis.probe(slot, part);
    if report.is_some_and(|r| r.path == Path::Impossible) {
        super::mains::impossible_hook(found, slot, Hook::PreStop);
    }
}
