//! Findings about the pod and its proxy as a whole.

use super::fixes::{Change, Fix};
use super::{Case, Found, Severity, pages};
use crate::analysis::Caveat;
use crate::mesh::{CapturePoint, Mode};

pub(super) fn find(found: &mut Found<'_>) {
    hold_gives_up(found);
    instrumented_proxy(found);
    not_captured(found);
    not_injected(found);
    unusable_options(found);
}

/// RM018: hold is a delay with a timeout.
fn hold_gives_up(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let gives_up = analysis.actors.iter().any(|a| {
        a.spans
            .iter()
            .any(|s| matches!(s.caveat, Some(Caveat::HoldGivesUp(_) | Caveat::HookLostOnRestart)))
    });
    let (Some(proxy), true) = (analysis.setup.proxy, gives_up) else {
        return;
    };
    let name = analysis.setup.mesh.proxy();
    let cause = format!("only a postStart hook of {name} keeps the others back");
    let consequence = format!(
        "when the hook gives up after {} s, when {name} crashes, or when the kubelet restarts meanwhile, the others \
         start without a proxy and are refused",
        analysis.setup.mesh.wait_seconds
    );
    let gate = analysis.setup.mode.is_native().then(|| {
        let title = format!("give {name} a startup probe");
        Fix::new(
            Change::GateProxy(analysis.setup.mesh),
            title,
            "starts are up to a second slower",
        )
    });
    let fixes = found.shop().native().into_iter().chain(gate).collect();
    let field = "/lifecycle/postStart".to_owned();
    let (severity, slot) = (Severity::Note, Some(proxy));
    found.add(Case {
        rule: &pages::RM018,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM020: the OpenTelemetry operator took the proxy for the application.
fn instrumented_proxy(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let Some(proxy) = analysis.setup.proxy else { return };
    let container = &analysis.view.containers[proxy];
    if !container
        .mounts
        .iter()
        .any(|m| m.starts_with("opentelemetry-auto-instrumentation"))
    {
        return;
    }
    let app = analysis
        .view
        .main_slots()
        .find(|s| *s != proxy)
        .map(|s| found.name(s).to_owned());
    let cause = format!(
        "the instrumentation was put into {}, the first container it found",
        container.name
    );
    let consequence =
        "the application sends no telemetry, and the proxy loads an agent it does not need".to_owned();
    let fix = app.map(|name| {
        let title = format!("name {name} as the container to instrument");
        Fix::new(
            Change::Instrument(name),
            title,
            "takes effect when the pod is created again",
        )
    });
    let field = "/volumeMounts".to_owned();
    let (severity, slot, fixes) = (Severity::Warning, Some(proxy), fix.into_iter().collect());
    found.add(Case {
        rule: &pages::RM020,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

/// RM022: a proxy without traffic.
fn not_captured(found: &mut Found<'_>) {
    let setup = &found.analysis.setup;
    let (Some(why), Some(proxy)) = (setup.exempt, setup.proxy) else {
        return;
    };
    let cause = format!("{} is there, but nothing is captured: {why}", setup.mesh.proxy());
    let consequence = "all traffic passes by the mesh".to_owned();
    let (severity, slot) = (Severity::Note, Some(proxy));
    found.add(Case {
        rule: &pages::RM022,
        severity,
        slot,
        field: String::new(),
        cause,
        consequence,
        cycle: None,
        fixes: Vec::new(),
    });
}

/// RM027: capture options that the program which installs the rules refuses.
fn unusable_options(found: &mut Found<'_>) {
    let setup = &found.analysis.setup;
    let Some(error) = &setup.capture_error else { return };
    let (slot, field, consequence) = match setup.capture_at {
        CapturePoint::Container(slot) => (
            Some(slot),
            "/args",
            format!("{} fails, and no container behind it starts", found.name(slot)),
        ),
        CapturePoint::Sandbox | CapturePoint::Never => (
            None,
            "/metadata/annotations",
            "the node does not install the rules, and the pod does not start".to_owned(),
        ),
    };
    found.add(Case {
        rule: &pages::RM027,
        severity: Severity::Error,
        slot,
        field: field.to_owned(),
        cause: error.to_string(),
        consequence,
        cycle: None,
        fixes: Vec::new(),
    });
}

/// Labels and annotations that request injection into a mesh.
const INJECTION_REQUESTS: [(&str, &str); 4] = [
    ("sidecar.istio.io/inject", "true"),
    ("linkerd.io/inject", "enabled"),
    ("kuma.io/sidecar-injection", "enabled"),
    ("kuma.io/sidecar-injection", "true"),
];

/// RM024: a report without findings about a pod that is not injected yet.
fn not_injected(found: &mut Found<'_>) {
    let analysis = found.analysis;
    let view = &analysis.view;
    if analysis.setup.mode != Mode::None || analysis.setup.proxy.is_some() || found.options.mode.is_some() {
        return;
    }
    let wish = INJECTION_REQUESTS.iter().find_map(|(key, value)| {
        let label = view.label(key) == Some(value);
        let annotation = view.annotation(key) == Some(value);
        (label || annotation).then_some((
            *key,
            if label {
                "/metadata/labels"
            } else {
                "/metadata/annotations"
            },
        ))
    });
    let Some((key, field)) = wish else { return };
    let cause = format!("{key} asks for a mesh, and the document does not have it yet");
    let consequence =
        "what the mesh will do to this pod was not checked; name a mode or inject first".to_owned();
    let (severity, slot, field) = (Severity::Note, None, field.to_owned());
    let fixes = Vec::new();
    found.add(Case {
        rule: &pages::RM024,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}
