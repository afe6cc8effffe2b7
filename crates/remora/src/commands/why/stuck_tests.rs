use super::{Course, Standing, look, warnings};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-11-16T03:00:00Z".parse().unwrap()
}

/// Two init containers, a native sidecar between them, and two containers.
fn pod(inits: &Value, mains: &Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "initContainers": [{"name": "istio-init"}, {"name": "istio-proxy", "restartPolicy": "Always", "startupProbe": {}},
                {"name": "migrate"}],
            "containers": [{"name": "web", "readinessProbe": {}, "lifecycle": {"postStart": {}}}, {"name": "log"}]},
        "status": {"phase": "Pending", "initContainerStatuses": inits, "containerStatuses": mains}})
}

fn ended(name: &str, code: i64) -> Value {
    json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": if code == 0 {"Completed"} else {"Error"}}}})
}

fn running(name: &str, started: bool, ready: bool) -> Value {
    json!({"name": name, "started": started, "ready": ready, "state": {"running": {"startedAt": "2026-11-16T02:55:50Z"}}})
}

fn waiting(name: &str, reason: &str) -> Value {
    json!({"name": name, "ready": false, "state": {"waiting": {"reason": reason}}})
}

fn stuck(pod: &Value) -> Standing {
    let standing = look(pod, now());
    assert_eq!(standing.course, Course::Stuck, "{standing:?}");
    standing
}

#[test]
fn the_first_container_that_is_not_done_holds_up_the_rest() {
    let mut migrate = running("migrate", true, false);
    migrate["restartCount"] = json!(3);
    migrate["lastState"] = json!({"terminated": {"exitCode": 7}});
    let inits = json!([
        ended("istio-init", 0),
        running("istio-proxy", true, true),
        migrate
    ]);
    let standing = stuck(&pod(&inits, &json!([waiting("web", "PodInitializing")])));
    assert_eq!(
        standing.what,
        "waits for init container \"migrate\" (3 of 3), which has run for 4 min 10 s; it ended and was started again \
         3 times, last with code 7"
    );
    assert_eq!(
        (standing.container.as_str(), standing.behind),
        ("migrate", vec!["web".to_owned(), "log".to_owned()])
    );
}

#[test]
fn a_sidecar_is_done_when_it_has_started_not_when_it_ends() {
    let inits = json!([ended("istio-init", 0), running("istio-proxy", false, false)]);
    let standing = stuck(&pod(&inits, &json!([])));
    assert_eq!(
        standing.what,
        "waits for sidecar \"istio-proxy\" (2 of 3), which has run for 4 min 10 s without passing its startup probe"
    );
}

#[test]
fn containers_wait_for_hooks_images_and_probes() {
    let inits = json!([
        ended("istio-init", 0),
        running("istio-proxy", true, true),
        ended("migrate", 0)
    ]);
    let held = pod(
        &inits,
        &json!([running("web", true, true), waiting("log", "ContainerCreating")]),
    );
    assert!(stuck(&held).what.contains("postStart hook of container \"web\""));
    let missing = pod(&inits, &json!([waiting("web", "ImagePullBackOff")]));
    assert_eq!(
        stuck(&missing).what,
        "waits for container \"web\", which does not run: ImagePullBackOff"
    );
    let unready = pod(
        &inits,
        &json!([running("web", true, false), running("log", true, true)]),
    );
    assert!(
        stuck(&unready)
            .what
            .ends_with("has run for 4 min 10 s and is not ready")
    );
}

#[test]
fn pods_without_a_node_pods_that_leave_and_pods_that_are_well() {
    let mut one = pod(&json!([]), &json!([]));
    one["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available:\n 3 Insufficient cpu."}]);
    assert_eq!(
        stuck(&one).what,
        "has no node: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    );
    let mut leaving = pod(
        &json!([running("istio-proxy", true, true)]),
        &json!([ended("web", 0)]),
    );
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-16T02:59:30Z");
    leaving["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    assert_eq!(
        stuck(&leaving).what,
        "is to end since 30 s (grace 30 s); still running: istio-proxy"
    );
    let inits = json!([
        ended("istio-init", 0),
        running("istio-proxy", true, true),
        ended("migrate", 0)
    ]);
    let mut well = pod(
        &inits,
        &json!([running("web", true, true), running("log", true, true)]),
    );
    well["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(look(&well, now()).course, Course::Fine);
    well["status"]["conditions"] =
        json!([{"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"}]);
    assert_eq!(stuck(&well).what, "runs and is not ready: ReadinessGatesNotReady");
    let mut evicted = well.clone();
    evicted["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
    assert_eq!(stuck(&evicted).what, "failed: Evicted: low on memory");
}

#[test]
fn nonsense_is_looked_at_without_a_panic() {
    for odd in [
        json!({}),
        json!({"spec": 1, "status": []}),
        json!({"spec": {"initContainers": [null]}}),
    ] {
        stuck(&odd);
    }
}

#[test]
fn warnings_are_told_newest_last() {
    let event = |kind: &str, reason: &str, at: &str, count: u64| json!({"type": kind, "reason": reason, "message": "m", "lastTimestamp": at, "count": count});
    let events = [
        event("Warning", "Unhealthy", "2026-11-16T02:59:50Z", 12),
        event("Normal", "Pulled", "2026-11-16T02:59:55Z", 1),
        event("Warning", "FailedMount", "2026-11-16T02:00:00Z", 1),
    ];
    assert_eq!(
        warnings(&events, now()),
        [
            "FailedMount: m, 1 h 0 min ago",
            "Unhealthy: m (12 times), 10 s ago"
        ]
    );
}
