//! The network states of the containers: every row of the start and stop tables, for every mode.
//!
//! Each row is a test, each mode a column. `N` direct, `B` broken, `P` proxied, `X` excluded, `R` racing; `D` after a
//! state means that the wait never ends; `-` that the case does not exist in that mode.

#![expect(
    clippy::unwrap_used,
    reason = "a test that does not find what it built has failed"
)]

use remora_pod::spec::{Hook, PodView, ProbeKind};
use remora_startup::analysis::{Analysis, Completion, Path, Reach, Stage, Strict, Verdict};
use remora_startup::mesh::Mode;
use remora_startup::sim::{Actor, Part};
use serde_json::{Value, json};

/// Where a test puts an init container.
#[derive(Clone, Copy, PartialEq)]
enum At {
    BeforeCapture,
    AfterCapture,
    AfterProxy,
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers build their values in place"
)]
/// A pod of a mode with one more init container and this application container.
fn pod(mode: Mode, extra: Option<(At, Value)>, app: Value, others: &[Value]) -> Analysis {
    let ready = json!({"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1});
    let user = json!({"runAsUser": 1337, "runAsGroup": 1337});
    let mut proxy = json!({"name": "istio-proxy", "readinessProbe": ready, "securityContext": user});
    let setup = match mode {
        Mode::None | Mode::Ambient => None,
        _ if mode.is_cni() => Some(json!({"name": "istio-validation", "securityContext": user})),
        _ => Some(json!({"name": "istio-init"})),
    };
    let put = |at: At| {
        extra
            .iter()
            .filter(move |(a, _)| *a == at)
            .map(|(_, c)| c.clone())
    };
    let mut inits: Vec<Value> = put(At::BeforeCapture).collect();
    inits.extend(setup);
    inits.extend(put(At::AfterCapture));
    let mut mains = vec![app];
    mains.extend(others.iter().cloned());
    if mode.is_native() {
        proxy["restartPolicy"] = json!("Always");
        proxy["startupProbe"] = ready;
        inits.push(proxy);
    } else if mode.is_hold() {
        proxy["lifecycle"] = json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}});
        mains.insert(0, proxy);
    } else if mode.is_classic() {
        mains.push(proxy);
    }
    inits.extend(put(At::AfterProxy));
    let labels = if mode == Mode::Ambient {
        json!({"istio.io/dataplane-mode": "ambient"})
    } else {
        json!({})
    };
    let pod = json!({
        "kind": "Pod",
        "metadata": {"name": "p", "labels": labels},
        "spec": {"initContainers": inits, "containers": mains},
    });
    let analysis = Analysis::new(PodView::read(&pod), None);
    assert_eq!(analysis.setup.mode, mode, "the test builds the mode it means");
    analysis
}

fn app() -> Value {
    json!({"name": "app", "securityContext": {"runAsUser": 1000}})
}

/// An init container that surely needs the network.
fn needy() -> Value {
    json!({"name": "x", "command": ["curl", "-f", "http://config.default:8080/"]})
}

fn sidecar(more: &Value) -> Value {
    let mut out =
        json!({"name": "x", "restartPolicy": "Always", "command": ["curl", "http://config.default:8080/"]});
    for (key, value) in more.as_object().into_iter().flatten() {
        out[key] = value.clone();
    }
    out
}

fn letters(reaches: &[&Reach]) -> String {
    let one = |r: &&Reach| match r {
        Reach::Direct => 'N',
        Reach::Broken => 'B',
        Reach::Proxied => 'P',
        Reach::Excluded(_) => 'X',
        Reach::Racing => 'R',
    };
    reaches.iter().map(one).collect()
}

/// What the main process of a container meets in a stage, with `D` when its wait never ends.
fn cell(analysis: &Analysis, name: &str, stage: Stage) -> String {
    let slot = analysis.view.slot(name).unwrap();
    let report = analysis.actor(Actor::main(slot)).unwrap();
    let deadlock = analysis.cycles_of(slot).next().is_some();
    format!(
        "{}{}",
        letters(&report.during(stage)),
        if deadlock { "D" } else { "" }
    )
}

/// Checks one row: a cell per mode, in the order of [`Mode::ALL`].
fn row(expected: [&str; 8], found: impl Fn(Mode) -> String) {
    for (mode, expected) in Mode::ALL.into_iter().zip(expected) {
        if expected != "-" {
            assert_eq!(found(mode), expected, "in mode {}", mode.as_str());
        }
    }
}

#[test]
fn init_before_the_capture_point() {
    row(["N", "N", "N", "BD", "BD", "N", "BD", "P"], |mode| {
        cell(
            &pod(mode, Some((At::BeforeCapture, needy())), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

#[test]
fn init_after_capture_before_the_proxy() {
    row(["N", "BD", "BD", "BD", "BD", "BD", "BD", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterCapture, needy())), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

#[test]
fn init_after_the_native_proxy() {
    row(["-", "-", "-", "-", "-", "P", "P", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterProxy, needy())), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

#[test]
fn other_native_sidecar_before_capture() {
    row(["N", "NB", "NB", "B", "B", "NB", "B", "P"], |mode| {
        cell(
            &pod(mode, Some((At::BeforeCapture, sidecar(&json!({})))), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

#[test]
fn other_native_sidecar_after_the_proxy() {
    row(["-", "-", "-", "-", "-", "P", "P", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterProxy, sidecar(&json!({})))), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

#[test]
fn other_native_sidecar_once_all_runs() {
    row(["N", "P", "P", "P", "P", "P", "P", "P"], |mode| {
        cell(
            &pod(mode, Some((At::BeforeCapture, sidecar(&json!({})))), app(), &[]),
            "x",
            Stage::Run,
        )
    });
}

fn sidecar_probe(mode: Mode, at: At, port: u16) -> String {
    let probe = json!({"startupProbe": {"httpGet": {"path": "/app-health/x/startupz", "port": port}}});
    let analysis = pod(mode, Some((at, sidecar(&probe))), app(), &[]);
    let slot = analysis.view.slot("x").unwrap();
    if analysis.cycles_of(slot).next().is_some() {
        "D"
    } else {
        "ok"
    }
    .to_owned()
}

#[test]
fn startup_probe_of_a_native_sidecar_rewritten() {
    row(["-", "D", "D", "D", "D", "D", "D", "-"], |m| {
        sidecar_probe(m, At::BeforeCapture, 15020)
    });
    row(["-", "D", "D", "D", "D", "D", "D", "-"], |m| {
        sidecar_probe(m, At::AfterCapture, 15020)
    });
    row(["-", "-", "-", "-", "-", "ok", "ok", "-"], |m| {
        sidecar_probe(m, At::AfterProxy, 15020)
    });
}

#[test]
fn startup_probe_of_a_native_sidecar_not_rewritten() {
    row(["ok", "ok", "ok", "D", "D", "ok", "D", "ok"], |m| {
        sidecar_probe(m, At::BeforeCapture, 8001)
    });
    row(["ok", "D", "D", "D", "D", "D", "D", "ok"], |m| {
        sidecar_probe(m, At::AfterCapture, 8001)
    });
    row(["ok", "-", "-", "-", "-", "ok", "ok", "ok"], |m| {
        sidecar_probe(m, At::AfterProxy, 8001)
    });
}

#[test]
fn exec_startup_probe_of_a_native_sidecar_needing_network() {
    let probe = json!({"startupProbe": {"exec": {"command": ["curl", "http://config.default:8080/"]}}});
    row(["ok", "D", "D", "D", "D", "D", "D", "ok"], |mode| {
        let analysis = pod(mode, Some((At::AfterCapture, sidecar(&probe))), app(), &[]);
        let slot = analysis.view.slot("x").unwrap();
        if analysis.cycles_of(slot).next().is_some() {
            "D"
        } else {
            "ok"
        }
        .to_owned()
    });
}

fn with_post_start(handler: &Value) -> Value {
    json!({"name": "app", "lifecycle": {"postStart": handler}})
}

fn hook_cell(mode: Mode, handler: &Value) -> String {
    let noop = json!({"name": "noop", "command": ["true"]});
    let analysis = pod(
        mode,
        Some((At::BeforeCapture, noop)),
        with_post_start(handler),
        &[],
    );
    let slot = analysis.view.slot("app").unwrap();
    let part = Part::Hook(Hook::PostStart);
    let deadlock = if analysis.cycles_of(slot).next().is_some() {
        "D"
    } else {
        ""
    };
    if let Some(report) = analysis.actor(Actor { slot, part }) {
        return format!("{}{deadlock}", letters(&report.during(Stage::Start)));
    }
    let report = analysis
        .probes
        .iter()
        .find(|p| p.slot == slot && p.part == part)
        .unwrap();
    format!("{:?}{deadlock}", report.verdict)
}

#[test]
fn app_exec_post_start_needing_network() {
    let hook = json!({"exec": {"command": ["sh", "-c", "until curl http://config.default:8080/; do sleep 1; done"]}});
    row(["N", "RD", "P", "RD", "P", "P", "P", "P"], |m| {
        hook_cell(m, &hook)
    });
}

#[test]
fn app_exec_post_start_in_ambient_without_init_container_waits_for_the_address() {
    let hook = json!({"exec": {"command": ["curl", "http://config.default:8080/"]}});
    let analysis = pod(Mode::Ambient, None, with_post_start(&hook), &[]);
    assert!(!analysis.address_before_hooks);
    assert_eq!(analysis.cycles.len(), 1);
}

#[test]
fn app_http_post_start_rewritten() {
    let hook = json!({"httpGet": {"path": "/app-health/app/poststart", "port": 15020}});
    let never = "NeverBeforeProxyD";
    row(
        ["-", never, "Works", never, "Works", "Works", "Works", "-"],
        |m| hook_cell(m, &hook),
    );
}

#[test]
fn app_http_post_start_not_rewritten() {
    let hook = json!({"httpGet": {"path": "/hook", "port": 8000}});
    let never = "NeverBeforeProxyD";
    row(
        ["Works", never, "Works", never, "Works", "Works", "Works", "Works"],
        |m| hook_cell(m, &hook),
    );
}

#[test]
fn app_main_process_first_second() {
    row(["N", "R", "P", "R", "P", "P", "P", "P"], |mode| {
        cell(&pod(mode, None, app(), &[]), "app", Stage::Start)
    });
}

#[test]
fn second_app_behind_one_with_a_post_start() {
    let first = with_post_start(&json!({"sleep": {"seconds": 3}}));
    row(["N", "R", "P", "R", "P", "P", "P", "P"], |mode| {
        cell(
            &pod(mode, None, first.clone(), &[json!({"name": "second"})]),
            "second",
            Stage::Start,
        )
    });
}

#[test]
fn app_restarted_later() {
    row(["N", "P", "P", "P", "P", "P", "P", "P"], |mode| {
        cell(&pod(mode, None, app(), &[]), "app", Stage::Run)
    });
}

#[test]
fn proxy_restarted_later() {
    row(["", "B", "B", "B", "B", "B", "B", ""], |mode| {
        cell(&pod(mode, None, app(), &[]), "app", Stage::ProxyDown)
    });
}

#[test]
fn native_proxy_without_a_gate() {
    for mode in [Mode::Native, Mode::NativeCni] {
        let mut view = pod(mode, Some((At::AfterProxy, needy())), app(), &[]).view;
        let proxy = view.slot("istio-proxy").unwrap();
        view.containers[proxy].startup = None;
        let analysis = Analysis::new(view, None);
        assert_eq!(cell(&analysis, "x", Stage::Init), "R");
        assert_eq!(cell(&analysis, "app", Stage::Start), "R");
    }
}

#[test]
fn exemptions_turn_broken_into_excluded() {
    let as_proxy = json!({"name": "x", "command": ["curl", "http://config.default:8080/"],
        "securityContext": {"runAsUser": 1337}});
    row(["N", "X", "X", "X", "X", "X", "X", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterCapture, as_proxy.clone())), app(), &[]),
            "x",
            Stage::Init,
        )
    });
}

fn probe_of(mode: Mode, probe: &Value, kind: ProbeKind) -> (Path, Verdict, Strict, bool) {
    let container = json!({"name": "app", kind.field(): probe});
    let analysis = pod(mode, None, container, &[]);
    let slot = analysis.view.slot("app").unwrap();
    let report = analysis
        .probes
        .iter()
        .find(|p| p.slot == slot && p.part == Part::Probe(kind))
        .unwrap();
    (report.path, report.verdict, report.strict, report.lies)
}

#[test]
fn readiness_http_rewritten() {
    let probe = json!({"httpGet": {"path": "/app-health/app/readyz", "port": 15020}});
    row(
        [
            "-",
            "RefusedUntilProxy",
            "Works",
            "RefusedUntilProxy",
            "Works",
            "Works",
            "Works",
            "-",
        ],
        |mode| {
            let (path, verdict, strict, lies) = probe_of(mode, &probe, ProbeKind::Readiness);
            assert_eq!((path, strict, lies), (Path::Agent, Strict::Same, false));
            format!("{verdict:?}")
        },
    );
}

#[test]
fn readiness_http_not_rewritten() {
    let probe = json!({"httpGet": {"path": "/ready", "port": 8000}});
    row(
        [
            "Works",
            "RefusedUntilProxy",
            "Works",
            "RefusedUntilProxy",
            "Works",
            "Works",
            "Works",
            "Works",
        ],
        |mode| format!("{:?}", probe_of(mode, &probe, ProbeKind::Readiness).1),
    );
}

#[test]
fn readiness_http_not_rewritten_under_strict() {
    let probe = json!({"httpGet": {"path": "/ready", "port": 8000}});
    row(
        [
            "Same", "Fails", "Fails", "Fails", "Fails", "Fails", "Fails", "Same",
        ],
        |mode| format!("{:?}", probe_of(mode, &probe, ProbeKind::Readiness).2),
    );
}

#[test]
fn readiness_tcp_not_rewritten_lies() {
    let probe = json!({"tcpSocket": {"port": 8000}});
    row(
        ["false", "true", "true", "true", "true", "true", "true", "false"],
        |mode| probe_of(mode, &probe, ProbeKind::Readiness).3.to_string(),
    );
}

#[test]
fn readiness_grpc_fares_as_http() {
    let probe = json!({"grpc": {"port": 8000}});
    row(
        [
            "Same", "Fails", "Fails", "Fails", "Fails", "Fails", "Fails", "Same",
        ],
        |mode| format!("{:?}", probe_of(mode, &probe, ProbeKind::Readiness).2),
    );
}

#[test]
fn exec_probe_has_the_network_of_its_container() {
    let container =
        json!({"name": "app", "readinessProbe": {"exec": {"command": ["curl", "http://a.b:80/"]}}});
    row(["N", "R", "P", "R", "P", "P", "P", "P"], |mode| {
        let analysis = pod(mode, None, container.clone(), &[]);
        let slot = analysis.view.slot("app").unwrap();
        let part = Part::Probe(ProbeKind::Readiness);
        letters(&analysis.actor(Actor { slot, part }).unwrap().during(Stage::Start))
    });
}

#[test]
fn liveness_http_has_limited_patience_with_a_late_proxy() {
    let probe =
        json!({"httpGet": {"path": "/live", "port": 8000}, "periodSeconds": 1, "failureThreshold": 3});
    row(
        [
            "Works",
            "RefusedUntilProxy",
            "Works",
            "RefusedUntilProxy",
            "Works",
            "Works",
            "Works",
            "Works",
        ],
        |mode| {
            let container = json!({"name": "app", "livenessProbe": probe});
            let analysis = pod(mode, None, container, &[]);
            let slot = analysis.view.slot("app").unwrap();
            let report = analysis.probes.iter().find(|p| p.slot == slot).unwrap();
            assert_eq!(report.patience, Some(3));
            format!("{:?}", report.verdict)
        },
    );
}

#[test]
fn the_proxys_own_probes_are_never_captured() {
    row(
        [
            "-", "Direct", "Direct", "Direct", "Direct", "Direct", "Direct", "-",
        ],
        |mode| {
            let analysis = pod(mode, None, app(), &[]);
            let slot = analysis.setup.proxy.unwrap();
            let part = Part::Probe(ProbeKind::Readiness);
            format!(
                "{:?}",
                analysis
                    .probes
                    .iter()
                    .find(|p| p.slot == slot && p.part == part)
                    .unwrap()
                    .path
            )
        },
    );
}

#[test]
fn pre_stop_exec_of_the_app() {
    let container =
        json!({"name": "app", "lifecycle": {"preStop": {"exec": {"command": ["curl", "http://a.b:80/"]}}}});
    row(["N", "PB", "PB", "PB", "PB", "P", "P", "P"], |mode| {
        let analysis = pod(mode, None, container.clone(), &[]);
        let slot = analysis.view.slot("app").unwrap();
        let part = Part::Hook(Hook::PreStop);
        letters(&analysis.actor(Actor { slot, part }).unwrap().during(Stage::Stop))
    });
}

#[test]
fn pre_stop_http_of_the_app_goes_by_the_agent() {
    let hook = json!({"preStop": {"httpGet": {"path": "/app-health/app/prestop", "port": 15020}}});
    let container = json!({"name": "app", "lifecycle": hook});
    row(
        ["-", "Agent", "Agent", "Agent", "Agent", "Agent", "Agent", "-"],
        |mode| {
            let analysis = pod(mode, None, container.clone(), &[]);
            let slot = analysis.view.slot("app").unwrap();
            format!(
                "{:?}",
                analysis.probes.iter().find(|p| p.slot == slot).unwrap().path
            )
        },
    );
}

#[test]
fn app_draining_after_the_stop_signal() {
    row(["N", "PB", "PB", "PB", "PB", "P", "P", "P"], |mode| {
        cell(&pod(mode, None, app(), &[]), "app", Stage::Stop)
    });
}

#[test]
fn other_native_sidecar_while_stopping() {
    row(["N", "PB", "PB", "PB", "PB", "PB", "PB", "P"], |mode| {
        cell(
            &pod(mode, Some((At::BeforeCapture, sidecar(&json!({})))), app(), &[]),
            "x",
            Stage::Stop,
        )
    });
    row(["-", "-", "-", "-", "-", "P", "P", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterProxy, sidecar(&json!({})))), app(), &[]),
            "x",
            Stage::Stop,
        )
    });
}

#[test]
fn pod_deleted_in_the_init_phase() {
    row(["-", "-", "-", "-", "-", "PB", "PB", "P"], |mode| {
        cell(
            &pod(mode, Some((At::AfterProxy, needy())), app(), &[]),
            "x",
            Stage::Stop,
        )
    });
}

#[test]
fn job_whose_main_container_ends() {
    row(
        [
            "Ends",
            "NeverEnds",
            "NeverEnds",
            "NeverEnds",
            "NeverEnds",
            "Ends",
            "Ends",
            "Ends",
        ],
        |mode| {
            let mut view = pod(mode, None, app(), &[]).view;
            view.restart_policy = remora_pod::spec::RestartPolicy::Never;
            format!("{:?}", Analysis::new(view, None).completion)
        },
    );
    assert_eq!(
        pod(Mode::Classic, None, app(), &[]).completion,
        Completion::Service
    );
}

#[test]
fn a_mode_can_be_assumed_for_a_pod_that_is_not_injected() {
    let bare = json!({"spec": {"initContainers": [needy()], "containers": [app()]}});
    row(["N", "N", "N", "BD", "BD", "P", "P", "P"], |mode| {
        let analysis = Analysis::new(PodView::read(&bare), Some(mode));
        assert_eq!(analysis.setup.mode, mode);
        cell(&analysis, "x", Stage::Init)
    });
}

#[test]
fn dns_fails_with_the_rest_only_where_it_is_captured() {
    let mut view = pod(Mode::Cni, Some((At::AfterCapture, needy())), app(), &[]).view;
    let slot = view.slot("x").unwrap();
    let dns = |view: &PodView| {
        Analysis::new(view.clone(), None).spans(Actor::main(slot))[0]
            .dns
            .clone()
    };
    assert_eq!(dns(&view), Reach::Direct);
    let proxy = view.slot("istio-proxy").unwrap();
    view.containers[proxy]
        .env
        .push(("ISTIO_META_DNS_CAPTURE".to_owned(), "true".to_owned()));
    assert_eq!(dns(&view), Reach::Broken);
}
