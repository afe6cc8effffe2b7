//! The kubelet, driven by hand.

use serde_json::{Value, json};

use super::{Action, Config, Event, Kubelet, Millis, Outcome, Phase, StartError};
use remora_pod::spec::{Hook, PodView, ProbeKind};

/// A kubelet without latencies, and the time it is driven at.
struct Bench {
    kubelet: Kubelet,
    now: Millis,
}

impl Bench {
    fn new(pod: &Value) -> Self {
        let config = Config {
            relist_phase: 0,
            ..Config::default()
        };
        Self {
            kubelet: Kubelet::new(PodView::read(pod), config),
            now: 0,
        }
    }

    /// Tells it something; returns what it wants done, without publications and records.
    fn send(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.kubelet.step(self.now, event);
        actions.retain(|a| !matches!(a, Action::Publish(_) | Action::Record(..)));
        actions
    }

    /// Lets time pass until it wants something done.
    fn wait(&mut self) -> Vec<Action> {
        for _ in 0..1000 {
            let Some(at) = self.kubelet.next_wakeup(self.now) else {
                return Vec::new();
            };
            self.now = at;
            let actions = self.send(Event::Tick);
            if !actions.is_empty() {
                return actions;
            }
            self.now += 1;
        }
        Vec::new()
    }

    /// Begins the pod and has its sandbox made.
    fn begin(&mut self) -> Vec<Action> {
        assert_eq!(self.send(Event::Assigned), [Action::CreateSandbox]);
        self.send(Event::SandboxCreated)
    }
}

fn two_apps(hook: bool) -> Value {
    let mut first = json!({"name": "a"});
    if hook {
        first["lifecycle"] =
            json!({"postStart": {"exec": {"command": ["x"]}}, "preStop": {"exec": {"command": ["y"]}}});
    }
    json!({"spec": {"containers": [first, {"name": "b"}], "terminationGracePeriodSeconds": 5}})
}

#[test]
fn a_hook_holds_up_the_next_container_and_hides_the_address() {
    let mut bench = Bench::new(&two_apps(true));
    assert_eq!(bench.begin(), [Action::Start(0, 1)]);
    assert_eq!(
        bench.send(Event::Started(0)),
        [Action::RunHook(0, Hook::PostStart)]
    );
    bench.now = 60_000;
    assert_eq!(bench.send(Event::Tick), []);
    assert_eq!(bench.kubelet.status().pod_ip, 0);
    assert_eq!(
        bench.send(Event::HookDone(0, Hook::PostStart, true)),
        [Action::Start(1, 1)]
    );
    bench.send(Event::Started(1));
    bench.wait();
    assert_eq!(
        (bench.kubelet.status().pod_ip, bench.kubelet.status().phase),
        (1, Phase::Running)
    );
}

#[test]
fn a_failed_hook_kills_its_container_and_the_next_one_starts() {
    let mut bench = Bench::new(&two_apps(true));
    bench.begin();
    bench.send(Event::Started(0));
    assert_eq!(
        bench.send(Event::HookDone(0, Hook::PostStart, false)),
        [Action::RunHook(0, Hook::PreStop)]
    );
    assert_eq!(
        bench.send(Event::HookDone(0, Hook::PreStop, true)),
        [Action::Stop(0, 5000)]
    );
    assert_eq!(bench.send(Event::Exited(0, 0)), [Action::Start(1, 1)]);
}

#[test]
fn deletion_waits_for_the_pass() {
    let mut bench = Bench::new(&two_apps(true));
    bench.begin();
    bench.send(Event::Started(0));
    assert_eq!(bench.send(Event::Deleted(None)), []);
    assert_eq!(
        bench.send(Event::HookDone(0, Hook::PostStart, true)),
        [Action::Start(1, 1)]
    );
    let stops = bench.send(Event::Started(1));
    assert_eq!(stops, [Action::RunHook(0, Hook::PreStop), Action::Stop(1, 5000)]);
}

#[test]
fn a_missing_image_stops_init_containers_and_not_mains() {
    let mut bench = Bench::new(&two_apps(false));
    bench.begin();
    assert_eq!(
        bench.send(Event::StartFailed(0, StartError::ImagePull)),
        [Action::Start(1, 1)]
    );
    let init = json!({"spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}});
    let mut bench = Bench::new(&init);
    bench.begin();
    assert_eq!(bench.send(Event::StartFailed(0, StartError::ImagePull)), []);
    assert_eq!(bench.wait(), [Action::Start(0, 1)], "it is tried again");
}

fn sidecars() -> Value {
    let side = |name: &str| json!({"name": name, "restartPolicy": "Always"});
    json!({"spec": {"terminationGracePeriodSeconds": 4, "initContainers": [side("s1"), side("s2")],
        "containers": [{"name": "app"}]}})
}

/// All three containers running.
fn running_sidecars() -> Bench {
    let mut bench = Bench::new(&sidecars());
    assert_eq!(bench.begin(), [Action::Start(0, 1)]);
    assert_eq!(bench.send(Event::Started(0)), [Action::Start(1, 1)]);
    assert_eq!(bench.send(Event::Started(1)), [Action::Start(2, 1)]);
    bench.send(Event::Started(2));
    bench
}

#[test]
fn sidecars_stop_after_the_mains_from_last_to_first() {
    let mut bench = running_sidecars();
    assert_eq!(bench.send(Event::Deleted(None)), [Action::Stop(2, 4000)]);
    assert_eq!(bench.send(Event::Exited(2, 0)), [Action::Stop(1, 4000)]);
    assert_eq!(bench.send(Event::Exited(1, 0)), [Action::Stop(0, 4000)]);
    assert_eq!(bench.send(Event::Exited(0, 9)), [Action::StopSandbox]);
    assert_eq!(bench.send(Event::SandboxStopped), [Action::Removed]);
    assert_eq!(
        bench.kubelet.status().phase,
        Phase::Succeeded,
        "exit codes of sidecars do not count"
    );
}

#[test]
fn one_grace_period_is_shared_and_two_seconds_are_left() {
    let mut bench = running_sidecars();
    bench.send(Event::Deleted(None));
    assert_eq!(
        bench.wait(),
        [Action::Stop(0, 2000), Action::Stop(1, 2000)],
        "their turn never came"
    );
    assert_eq!(bench.now, 4000);
}

#[test]
fn a_later_deletion_can_only_shorten_the_time_left() {
    let mut bench = running_sidecars();
    bench.send(Event::Deleted(None));
    assert_eq!(bench.send(Event::Deleted(Some(60))), [], "longer is ignored");
    assert_eq!(bench.send(Event::Deleted(Some(1))), [Action::Stop(2, 2000)]);
}

#[test]
fn a_sidecar_is_restarted_whatever_the_policy_until_the_mains_are_done() {
    let mut pod = sidecars();
    pod["spec"]["restartPolicy"] = json!("Never");
    let mut bench = Bench::new(&pod);
    bench.begin();
    bench.send(Event::Started(0));
    bench.send(Event::Started(1));
    bench.send(Event::Started(2));
    bench.now += 10;
    assert_eq!(
        bench.send(Event::Exited(0, 1)),
        [],
        "an end is found by the next look at the runtime"
    );
    assert_eq!(bench.wait(), [Action::Start(0, 2)]);
    bench.send(Event::Started(0));
    bench.now += 10;
    bench.send(Event::Exited(2, 0));
    assert_eq!(bench.wait(), [Action::Stop(1, 4000)], "the pod has done its work");
}

#[test]
fn a_startup_probe_holds_the_successors_of_a_sidecar() {
    let mut pod = sidecars();
    pod["spec"]["initContainers"][0]["startupProbe"] = json!({"httpGet": {"port": 1}, "periodSeconds": 1});
    let mut bench = Bench::new(&pod);
    bench.begin();
    bench.send(Event::Started(0));
    assert_eq!(bench.wait(), [Action::RunProbe(0, ProbeKind::Startup)]);
    assert_eq!(
        bench.send(Event::Probed(0, ProbeKind::Startup, Outcome::Failure)),
        []
    );
    assert_eq!(bench.wait(), [Action::RunProbe(0, ProbeKind::Startup)]);
    assert_eq!(
        bench.send(Event::Probed(0, ProbeKind::Startup, Outcome::Success)),
        [Action::Start(1, 1)]
    );
}

#[test]
fn a_restarted_kubelet_forgets_the_hook_it_was_waiting_for() {
    let mut bench = Bench::new(&two_apps(true));
    bench.begin();
    bench.send(Event::Started(0));
    assert_eq!(bench.send(Event::Restarted), [Action::Start(1, 1)]);
}

#[test]
fn a_failing_init_container_fails_the_pod_only_under_never() {
    let pod = |policy: &str| json!({"spec": {"restartPolicy": policy, "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}});
    for (policy, expected) in [("Always", Action::Start(0, 2)), ("Never", Action::StopSandbox)] {
        let mut bench = Bench::new(&pod(policy));
        bench.begin();
        bench.send(Event::Started(0));
        bench.now += 10;
        bench.send(Event::Exited(0, 1));
        assert_eq!(bench.wait(), [expected], "{policy}");
    }
}

#[test]
fn events_that_make_no_sense_are_ignored() {
    let mut bench = Bench::new(&two_apps(true));
    for event in [
        Event::Started(7),
        Event::Exited(7, 0),
        Event::HookDone(7, Hook::PostStart, true),
        Event::Probed(7, ProbeKind::Liveness, Outcome::Failure),
        Event::SandboxCreated,
        Event::SandboxStopped,
        Event::SandboxLost,
        Event::Restarted,
    ] {
        assert_eq!(bench.send(event), [], "{event:?}");
    }
    assert_eq!(bench.send(Event::Assigned), [Action::CreateSandbox]);
}

#[test]
fn a_forced_deletion_removes_the_object_at_once_and_the_containers_later() {
    let mut bench = Bench::new(&two_apps(true));
    bench.begin();
    bench.send(Event::Started(0));
    assert_eq!(bench.send(Event::Deleted(Some(0))), [Action::Removed]);
    assert_eq!(
        bench.send(Event::HookDone(0, Hook::PostStart, true)),
        [Action::Start(1, 1)]
    );
}

#[test]
fn a_container_may_have_its_own_policy_and_rules() {
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [
        {"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]},
        {"name": "b", "restartPolicy": "OnFailure"}]}});
    for (slot, code, restarts) in [(0, 42, true), (0, 1, false), (1, 1, true), (1, 0, false)] {
        let mut bench = Bench::new(&pod);
        bench.begin();
        bench.send(Event::Started(0));
        bench.send(Event::Started(1));
        bench.now += 10;
        bench.send(Event::Exited(slot, code));
        let expected = if restarts {
            vec![Action::Start(slot, 2)]
        } else {
            Vec::new()
        };
        assert_eq!(bench.wait(), expected, "{slot} with {code}");
    }
}
