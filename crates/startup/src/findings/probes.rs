//! Findings about probes.

use super::fixes::{Change, Fix, Shop};
use super::{Case, Found, Severity, pages};
use crate::analysis::{Path, ProbeReport, Strict, Verdict};
use crate::sim::Part;
use remora_pod::spec::{Kind, ProbeKind};

/// Maximum time until a proxy is ready, in seconds, as is typical; a probe that fails earlier kills a healthy
/// application.
const TYPICAL_PROXY_START: u64 = 30;

pub(super) fn find(found: &mut Found<'_>) {
    for report in &found.analysis.probes {
        let container = &found.analysis.view.containers[report.slot];
        let Part::Probe(kind) = report.part else { continue };
        if container.kind == Kind::Init || found.analysis.setup.is_mesh(container) {
            continue;
        }
        through_the_proxy(found, report, kind);
        killed_before_proxy_ready(found, report, kind);
    }
}

/// RM011: a probe that was not rewritten.
fn through_the_proxy(found: &mut Found<'_>, report: &ProbeReport, kind: ProbeKind) {
    let deadlocked = report.verdict == Verdict::NeverBeforeProxy;
    if report.path != Path::Proxy || report.strict == Strict::Same || deadlocked {
        return;
    }
    let analysis = found.analysis;
    let name = found.name(report.slot).to_owned();
    let field = kind.field();
    let cause = format!(
        "the {field} of {name} goes through {}",
        analysis.setup.mesh.proxy()
    );
    let strict = found.options.strict;
    let (severity, consequence) = match report.strict {
        Strict::Lies => (
            Severity::Warning,
            format!("the proxy accepts the connection even when {name} is dead: the probe never fails"),
        ),
        _ if strict => (Severity::Error, fails_text(kind)),
        _ => (
            Severity::Note,
            format!(
                "works while plaintext is allowed; once the mesh demands mTLS, {}",
                fails_text(kind)
            ),
        ),
    };
    let handler = analysis.view.containers[report.slot]
        .probe(kind)
        .map(|p| &p.handler);
    let port = handler.and_then(remora_pod::spec::Handler::kubelet_port);
    let fix = port.map(|port| {
        let title = format!("leave inbound port {port} alone");
        let cost = "callers of this port talk plaintext to the application; injecting again with probe rewriting is better";
        Fix::new(Change::ExcludeInbound(analysis.setup.mesh, port), title, cost)
    });
    let path = format!(
        "/{field}/{}",
        handler.map_or("", remora_pod::spec::Handler::field)
    );
    let (slot, fixes) = (Some(report.slot), fix.into_iter().collect());
    found.add(Case {
        rule: &pages::RM011,
        severity,
        slot,
        field: path,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}

fn fails_text(kind: ProbeKind) -> String {
    match kind {
        ProbeKind::Readiness => "it fails for ever and the pod is never Ready",
        ProbeKind::Liveness | ProbeKind::Startup => {
            "it fails for ever and the container is restarted in a loop"
        }
    }
    .to_owned()
}

/// RM013: a healthy application killed because the proxy is late.
fn killed_before_proxy_ready(found: &mut Found<'_>, report: &ProbeReport, kind: ProbeKind) {
    let analysis = found.analysis;
    let container = &analysis.view.containers[report.slot];
    let protected = kind == ProbeKind::Liveness && container.startup.is_some();
    let Some(patience) = report.patience.filter(|p| *p < TYPICAL_PROXY_START) else {
        return;
    };
    if report.verdict != Verdict::RefusedUntilProxy || protected {
        return;
    }
    let (name, proxy) = (container.name.clone(), analysis.setup.mesh.proxy());
    let cause = format!(
        "the {} of {name} is refused until {proxy} runs, and gives up after {patience} s",
        kind.field()
    );
    let consequence =
        format!("when {proxy} takes longer, {name} is killed while healthy, and its restarts back off");
    let shop = Shop {
        view: &analysis.view,
        setup: &analysis.setup,
        options: found.options,
    };
    let own = (kind == ProbeKind::Liveness).then(|| {
        let title = format!("give {name} a startup probe");
        Fix::new(
            Change::StartupLikeLiveness(name),
            title,
            "a dead application is noticed later at its start",
        )
    });
    let fixes = [shop.native(), shop.hold(), own].into_iter().flatten().collect();
    let (severity, slot) = (Severity::Warning, Some(report.slot));
    let field = format!("/{}", kind.field());
    found.add(Case {
        rule: &pages::RM013,
        severity,
        slot,
        field,
        cause,
        consequence,
        cycle: None,
        fixes,
    });
}
