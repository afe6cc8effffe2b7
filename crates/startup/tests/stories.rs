//! Courses of events, played: the rows of the tables that are about time, and the surprises a kubelet has in store.

#![expect(
    clippy::unwrap_used,
    reason = "a test that does not find what it built has failed"
)]

use remora_pod::spec::PodView;
use remora_startup::analysis::Analysis;
use remora_startup::kubelet::Phase;
use remora_startup::mesh::Mode;
use remora_startup::sim::{Act, AssumeError, Intervention, Scenario, Trace, simulate};
use serde_json::{Value, json};

fn scenario(pod: &Value, mode: Mode) -> Scenario {
    let analysis = Analysis::new(PodView::read(pod), Some(mode));
    Scenario {
        horizon: 120_000,
        ..Scenario::usual(&analysis)
    }
}

fn app() -> Value {
    json!({"spec": {"terminationGracePeriodSeconds": 10, "containers": [{"name": "app"}]}})
}

fn after(on: &str, after: u64, act: Act) -> Intervention {
    Intervention {
        on: on.to_owned(),
        after,
        act,
    }
}

fn play(scenario: &Scenario) -> (Trace, Vec<(u64, String)>) {
    let trace = simulate(scenario);
    let named = trace.named(scenario);
    (trace, named)
}

fn time(named: &[(u64, String)], id: &str) -> Option<u64> {
    named.iter().find(|(_, n)| n == id).map(|(at, _)| *at)
}

fn assume(mut scenario: Scenario, stated: &Value) -> Scenario {
    scenario.assume(stated).unwrap();
    scenario
}

fn states(trace: &Trace, scenario: &Scenario, who: &str) -> Vec<&'static str> {
    let lane = trace
        .network
        .iter()
        .find(|l| trace.name(scenario, l.who) == who)
        .unwrap();
    lane.states.iter().map(|(_, s)| s.as_str()).collect()
}

#[test]
fn new_sandbox_starts_from_the_top_in_every_mode() {
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 2, "containers": [{"name": "app"}],
        "initContainers": [{"name": "prepare", "command": ["true"]}]}});
    for mode in Mode::ALL {
        let mut scenario = scenario(&pod, mode);
        scenario
            .interventions
            .push(after("app.start", 3000, Act::LoseSandbox));
        let (trace, named) = play(&scenario);
        let lost = time(&named, "pod.killsandbox").unwrap();
        assert!(
            time(&named, "prepare#2.start").unwrap() > lost,
            "{}",
            mode.as_str()
        );
        assert!(
            time(&named, "app#2.start").unwrap() > time(&named, "prepare#2.exit").unwrap(),
            "{}",
            mode.as_str()
        );
        assert_eq!(trace.status.phase, Phase::Running, "{}", mode.as_str());
    }
}

#[test]
fn probes_begin_after_the_pass_that_started_the_container() {
    let pod = json!({"spec": {"containers": [
        {"name": "app", "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1}},
        {"name": "slow", "lifecycle": {"postStart": {"sleep": {"seconds": 5}}}}]}});
    for mode in [
        Mode::None,
        Mode::Classic,
        Mode::ClassicHold,
        Mode::Native,
        Mode::Ambient,
    ] {
        let (_, named) = play(&Scenario {
            horizon: 15_000,
            ..scenario(&pod, mode)
        });
        let ready = time(&named, "pod.c:app:ready=True").unwrap();
        assert!(
            ready >= time(&named, "slow.start").unwrap() + 5000,
            "{}",
            mode.as_str()
        );
    }
}

#[test]
fn hard_eviction_keeps_the_order_for_a_second_only() {
    let mut scenario = assume(
        scenario(&app(), Mode::Native),
        &json!({"processes": {"app": {"drains": null}}}),
    );
    scenario
        .interventions
        .push(after("app.start", 2000, Act::Delete(Some(1))));
    let (_, named) = play(&scenario);
    let deleted = time(&named, "pod.delete-request").unwrap();
    let proxy = time(&named, "istio-proxy.sigterm").unwrap() - deleted;
    assert!(
        (1000..1300).contains(&proxy),
        "the proxy is told after one second, not after the app: {proxy}"
    );
    let killed = time(&named, "ctr:app.exit").unwrap() - deleted;
    assert!(
        (2000..2300).contains(&killed),
        "two seconds are always left: {killed}"
    );
}

#[test]
fn job_that_fails_ends_only_with_a_native_proxy() {
    let pod = json!({"kind": "Job", "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "app"}]}}}});
    let ends = [Mode::None, Mode::Native, Mode::NativeCni, Mode::Ambient];
    for mode in Mode::ALL {
        let scenario = assume(
            scenario(&pod, mode),
            &json!({"processes": {"app": {"exit": 3}}, "until": "60s"}),
        );
        let (trace, _) = play(&scenario);
        let expected = if ends.contains(&mode) {
            Phase::Failed
        } else {
            Phase::Running
        };
        assert_eq!(trace.status.phase, expected, "{}", mode.as_str());
        if expected == Phase::Running {
            assert_eq!(trace.status.kubectl(&scenario.view), "Error", "{}", mode.as_str());
        }
    }
}

#[test]
fn slow_proxy_holds_back_a_native_pod_and_breaks_a_classic_one() {
    let slow = json!({"processes": {"istio-proxy": {"ready": "20s"}}, "until": "40s"});
    let native = assume(scenario(&app(), Mode::Native), &slow);
    let (trace, named) = play(&native);
    assert!(time(&named, "app.start").unwrap() > 20_000);
    assert_eq!(states(&trace, &native, "app"), ["proxied"]);
    let classic = assume(scenario(&app(), Mode::Classic), &slow);
    let (trace, named) = play(&classic);
    assert!(time(&named, "app.start").unwrap() < 3000);
    assert_eq!(states(&trace, &classic, "app"), ["broken", "proxied"]);
}

#[test]
fn hold_gives_up_after_a_minute_and_the_app_starts_without_a_proxy() {
    let never = json!({"processes": {"istio-proxy": {"ready": "1000s"}}, "until": "80s"});
    let scenario = assume(scenario(&app(), Mode::ClassicHold), &never);
    let (trace, named) = play(&scenario);
    let hook = time(&named, "istio-proxy/postStart.exit").unwrap();
    assert!(time(&named, "app.start").unwrap() > hook);
    assert!(time(&named, "ev.FailedPostStartHook:istio-proxy").is_some());
    assert_eq!(states(&trace, &scenario, "app"), ["broken"]);
}

#[test]
fn missing_image_of_a_held_proxy_does_not_stop_the_app() {
    let missing = json!({"processes": {"istio-proxy": {"imageMissing": true}}, "until": "30s"});
    let held = assume(scenario(&app(), Mode::ClassicHold), &missing);
    let (trace, named) = play(&held);
    assert!(time(&named, "app.start").is_some());
    assert_eq!(
        trace.status.phase,
        Phase::Pending,
        "a container that never ran keeps the pod Pending"
    );
    let native = assume(scenario(&app(), Mode::Native), &missing);
    let (trace, named) = play(&native);
    assert!(
        time(&named, "app.start").is_none(),
        "a native proxy is a full stop"
    );
    assert_eq!(trace.status.kubectl(&native.view), "Init:ErrImagePull");
}

#[test]
fn crash_back_off_is_nothing_then_ten_then_twenty_seconds() {
    let crash = json!({"processes": {"app": {"deaths": 9, "life": 100}}, "until": "60s"});
    let (_, named) = play(&assume(scenario(&app(), Mode::None), &crash));
    let gap = |n: u32| {
        let exit = if n == 2 {
            "app.exit".to_owned()
        } else {
            format!("app#{}.exit", n - 1)
        };
        time(&named, &format!("app#{n}.start")).unwrap() - time(&named, &exit).unwrap()
    };
    assert!(gap(2) < 2000, "{}", gap(2));
    assert!((10_000..16_000).contains(&gap(3)), "{}", gap(3));
    assert!((20_000..31_000).contains(&gap(4)), "{}", gap(4));
}

#[test]
fn older_kubelets_take_up_to_a_second_per_step() {
    let pod = json!({"spec": {"initContainers": [
        {"name": "a", "restartPolicy": "Always"}, {"name": "b", "restartPolicy": "Always"}], "containers": [{"name": "app"}]}});
    let steps = |version: &str| {
        let stated = json!({"kubelet": {"version": version}, "until": "20s"});
        let (_, named) = play(&assume(scenario(&pod, Mode::None), &stated));
        let starts = named
            .iter()
            .filter(|(_, n)| n.rsplit('.').next() == Some("start"))
            .count();
        assert_eq!(starts, 3, "each container is started once");
        time(&named, "app.start").unwrap() - time(&named, "a.start").unwrap()
    };
    assert!(steps("1.37") < 500);
    assert!(steps("1.34") > 1000);
}

#[test]
fn delete_while_a_hook_hangs_waits_for_the_hook() {
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 3, "containers": [
        {"name": "app", "lifecycle": {"postStart": {"exec": {"command": ["hang"]}}}}, {"name": "second"}]}});
    let mut scenario = assume(
        scenario(&pod, Mode::None),
        &json!({"processes": {"app/postStart": {"lives": "30s"}}}),
    );
    scenario
        .interventions
        .push(after("app/postStart.start", 1000, Act::Delete(None)));
    let (trace, named) = play(&scenario);
    let hook = time(&named, "app/postStart.exit").unwrap();
    assert!(time(&named, "second.start").unwrap() > hook, "the pass goes on");
    assert!(time(&named, "app.sigterm").unwrap() > time(&named, "second.start").unwrap());
    assert!(trace.gone);
}

#[test]
fn assumptions_that_make_no_sense_are_refused() {
    let mut scenario = scenario(&app(), Mode::Classic);
    let mut refuse = |stated: Value| scenario.assume(&stated).unwrap_err();
    assert_eq!(
        refuse(json!({"processes": {"nobody": {}}})),
        AssumeError::NoProcess("nobody".to_owned())
    );
    assert_eq!(
        refuse(json!({"processes": {"app": {"ready": "1s"}}})),
        AssumeError::UnknownKey("ready".to_owned())
    );
    assert_eq!(
        refuse(json!({"unti": 1})),
        AssumeError::UnknownKey("unti".to_owned())
    );
    let error = refuse(json!({"until": "soon"}));
    assert_eq!(
        error.to_string(),
        "reading the assumptions: until should be a time"
    );
    assert!(!error.hint().is_empty());
}

#[test]
fn a_life_can_be_drawn_without_gaps() {
    use remora_startup::timeline::{Doing, Sign, Timeline};
    let pod = json!({"spec": {"terminationGracePeriodSeconds": 10,
        "initContainers": [{"name": "fetch", "command": ["curl", "http://config:8080/"]}], "containers": [{"name": "app"}]}});
    for mode in Mode::ALL {
        let analysis = Analysis::new(PodView::read(&pod), Some(mode));
        let scenario = Scenario::life(&analysis);
        let timeline = Timeline::of(&scenario, &simulate(&scenario));
        assert_eq!(timeline.lanes.len(), scenario.view.containers.len());
        for lane in &timeline.lanes {
            let mut at = 0;
            for segment in &lane.segments {
                assert_eq!(segment.from, at, "{} in {}", lane.name, mode.as_str());
                assert!(segment.to > segment.from);
                at = segment.to;
            }
            assert_eq!(at, timeline.end, "{} in {}", lane.name, mode.as_str());
        }
        let app = timeline.lanes.iter().find(|l| l.name == "app").unwrap();
        let ran = app.segments.iter().any(|s| s.doing == Doing::Running);
        // With CNI and a classic proxy the init container never gets what it needs.
        assert_eq!(
            ran,
            !matches!(mode, Mode::Cni | Mode::CniHold),
            "{}",
            mode.as_str()
        );
        let captured = timeline.marks.iter().any(|m| m.what == Sign::Captured);
        assert_eq!(captured, mode != Mode::None, "{}", mode.as_str());
        assert_eq!(
            timeline.marks.iter().any(|m| m.what == Sign::Gone),
            ran,
            "{}",
            mode.as_str()
        );
    }
}
