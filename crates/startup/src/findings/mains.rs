//! Findings about main containers at their start.

use super::fixes::{Change, Fix};
use super::{Case, Found, Severity, pages};
use crate::analysis::{Cycle, Node, Path, Reach, Stage};
use crate::network::Exempt;
use crate::sim::{Actor, Part};
use remora_pod::spec::{Handler, Hook, Kind, Slot};

pub(super) fn find(found: &mut Found<'_>) {
    let analysis = found.analysis;
    for slot in 0..analysis.view.containers.len() {
        if analysis.setup.is_mesh(&analysis.view.containers[slot]) {
            continue;
        }
        post_start(found, slot);
        if analysis.view.containers[slot].kind == Kind::Main {
            before_proxy(found, slot);
            bypasses(found, slot);
        }
    }
    hidden_address(found);
}

/// RM002: a main container that starts before the proxy listens.
fn before_proxy(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let Some(report) = analysis.actor(Actor::main(slot)) else {
        return;
    };
    let racing = report.during(Stage::Start).contains(&&Reach::Racing);
    // A native proxy without a gate is RM008, which is reported once for the pod.
    if !racing || !report.need.is_possible() || analysis.setup.mode.is_native() {
        return;
    }
    let (name, proxy) = (found.name(slot).to_owned(), analysis.setup.mesh.proxy());
    let cause = format!("{name} is started before {proxy} listens, and its traffic is captured already");
    let consequence =
        "connections of the first seconds are refused; an application that does not retry exits, and \
                       shows Error or CrashLoopBackOff until the proxy happens to be faster"
            .to_owned();
    let shop = found.shop();
    let fixes = [shop.native(), shop.hold(), shop.exclude(slot)]
        .into_iter()
        .flatten()
        .collect();
    let (severity, slot) = (Severity::Warning, Some(slot));
    found.add(Case {
        rule: &pages::RM002,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM004, RM015, RM016: postStart hooks.
fn post_start(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let container = &analysis.view.containers[slot];
    let Some(handler) = &container.post_start else {
        return;
    };
    let through_hook = |c: &&Cycle| {
        c.edges.iter().any(|e| e.from == Node::PostStart(slot))
            && c.edges.iter().all(|e| e.to != Node::Address)
    };
    let cycle = analysis.cycles_of(slot).find(through_hook).cloned();
    let report = analysis.probe(slot, Part::Hook(Hook::PostStart));
    if report.is_some_and(|r| r.path == Path::Impossible) {
        impossible_hook(found, slot, Hook::PostStart);
    } else if let Some(cycle) = cycle {
        hook_deadlock(found, slot, cycle);
    } else if matches!(handler, Handler::Http { .. }) {
        racing_hook(found, slot);
    }
}

fn drop_hook(found: &Found<'_>, slot: Slot, hook: Hook) -> Fix {
    let name = found.name(slot).to_owned();
    let title = format!("drop the {} hook of {name}", hook.field());
    Fix::new(
        Change::DropHook(name, hook),
        title,
        "whatever the hook does has to be done elsewhere",
    )
}

fn hook_deadlock(found: &mut Found<'_>, slot: Slot, cycle: Cycle) {
    let analysis = found.analysis;
    let (name, proxy) = (found.name(slot).to_owned(), analysis.setup.mesh.proxy());
    let severity = if cycle.certain {
        Severity::Error
    } else {
        Severity::Warning
    };
    let cause =
        format!("the postStart hook of {name} needs {proxy}, which is not started before the hook ends");
    let consequence = format!(
        "the hook is refused; when it gives up, {name} is killed and restarted (FailedPostStartHook); when it does \
         not, the pod hangs in PodInitializing and cannot even be deleted"
    );
    let shop = found.shop();
    let drop = drop_hook(found, slot, Hook::PostStart);
    let fixes = [shop.native(), shop.hold(), shop.reorder(slot), Some(drop)]
        .into_iter()
        .flatten()
        .collect();
    let field = "/lifecycle/postStart".to_owned();
    let (slot, cycle) = (Some(slot), Some(cycle));
    found.add(Case {
        rule: &pages::RM004,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle,
        fixes,
    });
}

/// RM015: a hook that the kubelet does not support.
pub(super) fn impossible_hook(found: &mut Found<'_>, slot: Slot, hook: Hook) {
    let name = found.name(slot).to_owned();
    let what = found.analysis.view.containers[slot]
        .hook(hook)
        .map_or("", Handler::field);
    let cause = format!(
        "the {} hook of {name} is a {what}, which kubelets cannot run",
        hook.field()
    );
    let (severity, consequence) = match hook {
        Hook::PostStart => {
            let text =
                format!("the hook fails each time, {name} is killed and shows PostStartHookError for ever");
            (Severity::Error, text)
        }
        Hook::PreStop => (
            Severity::Warning,
            "the hook fails each time (FailedPreStopHook) and does nothing".to_owned(),
        ),
    };
    let fixes = vec![drop_hook(found, slot, hook)];
    let field = format!("/lifecycle/{}", hook.field());
    let slot = Some(slot);
    found.add(Case {
        rule: &pages::RM015,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM016: an HTTP hook sends one request, a moment after the start.
fn racing_hook(found: &mut Found<'_>, slot: Slot) {
    let name = found.name(slot).to_owned();
    let cause = format!("the postStart request to {name} is made once, right after its process was started");
    let consequence =
        format!("if {name} does not listen by then, the hook fails and {name} is killed and restarted");
    let fixes = vec![drop_hook(found, slot, Hook::PostStart)];
    let field = "/lifecycle/postStart/httpGet".to_owned();
    let (severity, slot) = (Severity::Warning, Some(slot));
    found.add(Case {
        rule: &pages::RM016,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM009: something waits for an address that the first pass hides.
fn hidden_address(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let through = |c: &&Cycle| {
        c.edges
            .iter()
            .any(|e| e.to == Node::Address || e.from == Node::Address)
    };
    let Some(cycle) = analysis.cycles.iter().find(through).cloned() else {
        return;
    };
    let severity = if cycle.certain {
        Severity::Error
    } else {
        Severity::Warning
    };
    let hook = cycle.edges.iter().find_map(|e| match e.from {
        Node::PostStart(slot) => Some(slot),
        _ => None,
    });
    let name = hook.map_or("a container", |s| found.name(s)).to_owned();
    let cause = format!(
        "the pod's address is not in the API before the postStart hook of {name} ends, and that hook waits for it"
    );
    let consequence =
        "the hook runs until it gives up; meanwhile the pod shows ContainerCreating and no address"
            .to_owned();
    let fix = Fix::new(
        Change::NoopInit,
        "put an init container that does nothing in front",
        "one more container at each start; its image needs a `true` command",
    );
    let (fixes, cycle) = (vec![fix], Some(cycle));
    let field = "/lifecycle/postStart".to_owned();
    found.add(Case {
        rule: &pages::RM009,
        severity,
        slot: hook,
        field,
        cause,
        consequence,
        cycle,
        fixes,
    });
}

/// RM010: a main container with the proxy's identity.
fn bypasses(found: &mut Found<'_>, slot: Slot) {
    let analysis = found.analysis;
    let Some(report) = analysis.actor(Actor::main(slot)) else {
        return;
    };
    let exempt = report.spans.iter().find_map(|s| match &s.reach {
        Reach::Excluded(reason @ (Exempt::Uid(_) | Exempt::Gid(_))) => Some(reason.clone()),
        _ => None,
    });
    let Some(exempt) = exempt else { return };
    let (what, field) = match exempt {
        Exempt::Gid(gid) => (format!("group {gid}"), "/securityContext/runAsGroup"),
        Exempt::Uid(uid) => (format!("user {uid}"), "/securityContext/runAsUser"),
        _ => return,
    };
    let name = found.name(slot).to_owned();
    let cause = format!("{name} runs as {what}, which the rules leave alone because it is the proxy's");
    let consequence =
        "all its traffic passes by the mesh for ever: no mTLS, no policy, no telemetry".to_owned();
    let title = format!("drop the user and group of {name}");
    let fix = Fix::new(Change::ClearUser(name), title, "it runs as the user of its image");
    let (severity, slot) = (Severity::Warning, Some(slot));
    let (fixes, field) = (vec![fix], field.to_owned());
    found.add(Case {
        rule: &pages::RM010,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}
