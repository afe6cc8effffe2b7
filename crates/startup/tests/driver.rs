//! The kubelet against a driver that answers late, in any order, and with any outcome.
//!
//! The engine is such a driver. For any reports at any time, the kubelet must not panic, must not spin, and
//! must keep to the order it promises.

use proptest::prelude::*;
use proptest::sample::Index;
use remora_pod::spec::{Kind, PodView, Slot};
use remora_startup::kubelet::{Action, Config, Event, Kubelet, Outcome, StartError};
use serde_json::{Value, json};

/// What the driver does next.
#[derive(Debug, Clone)]
enum Move {
    /// Answers one open request, well or badly.
    Answer(Index, bool),
    /// Lets time pass until the kubelet wants to be woken.
    Wait,
    /// A running container ends.
    End(Index, i32),
    LoseSandbox,
    Delete(Option<u64>),
    RestartKubelet,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        12 => (any::<Index>(), prop::bool::weighted(0.8)).prop_map(|(i, ok)| Move::Answer(i, ok)),
        8 => Just(Move::Wait),
        2 => (any::<Index>(), 0..3).prop_map(|(i, code)| Move::End(i, code)),
        1 => Just(Move::LoseSandbox),
        1 => prop::option::of(0u64..20).prop_map(Move::Delete),
        1 => Just(Move::RestartKubelet),
    ];
    prop::collection::vec(one, 1..150)
}

fn pods() -> impl Strategy<Value = Value> {
    let container = |name: &'static str| {
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            move |(hook, stop, startup, live)| {
                let mut out = json!({"name": name});
                let probe = json!({"httpGet": {"port": 1}, "periodSeconds": 1, "failureThreshold": 2});
                let exec = json!({"exec": {"command": ["x"]}});
                for (wanted, field) in [(hook, "postStart"), (stop, "preStop")] {
                    if wanted {
                        out["lifecycle"][field] = exec.clone();
                    }
                }
                for (wanted, field) in [
                    (startup, "startupProbe"),
                    (live, "livenessProbe"),
                    (live, "readinessProbe"),
                ] {
                    if wanted {
                        out[field] = probe.clone();
                    }
                }
                out
            },
        )
    };
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    let sides = (container("s1"), container("s2"), any::<bool>(), any::<bool>());
    (sides, container("a"), container("b"), policy, any::<bool>()).prop_map(|(sides, a, b, policy, init)| {
        let (mut s1, mut s2, one, two) = sides;
        let mut inits = Vec::new();
        for (side, wanted) in [(&mut s1, one), (&mut s2, two)] {
            side["restartPolicy"] = json!("Always");
            if wanted {
                inits.push(side.clone());
            }
        }
        if init {
            inits.push(json!({"name": "i"}));
        }
        json!({"spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 5,
            "initContainers": inits, "containers": [a, b]}})
    })
}

struct Driver {
    kubelet: Kubelet,
    now: u64,
    open: Vec<Action>,
    running: Vec<bool>,
    sandbox: bool,
}

impl Driver {
    fn new(pod: &Value, on_demand: bool) -> Self {
        let view = PodView::read(pod);
        let running = vec![false; view.containers.len()];
        let config = Config {
            relist_on_demand: on_demand,
            pass_delay: 10,
            ..Config::default()
        };
        Self {
            kubelet: Kubelet::new(view, config),
            now: 0,
            open: Vec::new(),
            running,
            sandbox: false,
        }
    }

    fn send(&mut self, event: Event) -> Result<(), TestCaseError> {
        let finished = self.kubelet.is_finished();
        for action in self.kubelet.step(self.now, event) {
            self.take(&action, finished)?;
            if !matches!(
                action,
                Action::Publish(_) | Action::Record(..) | Action::Removed | Action::AbandonHook(..)
            ) {
                self.open.push(action);
            }
        }
        Ok(())
    }

    /// What a kubelet may ask for, given what is the case.
    fn take(&self, action: &Action, finished: bool) -> Result<(), TestCaseError> {
        prop_assert!(
            !finished || matches!(action, Action::Removed),
            "{action:?} after the end"
        );
        match action {
            Action::Start(slot, _) => {
                prop_assert!(self.sandbox, "start without a sandbox");
                prop_assert!(!self.running[*slot], "{slot} started twice");
                let busy = self.open.iter().any(|a| matches!(a, Action::Start(..)));
                prop_assert!(!busy, "two starts at once");
                self.in_order(*slot)?;
            }
            Action::CreateSandbox => prop_assert!(!self.sandbox, "two sandboxes"),
            Action::Stop(slot, grace) => {
                prop_assert!(self.running[*slot], "{slot} stopped but not running");
                prop_assert!(*grace >= 1000, "no time to stop");
            }
            _ => {}
        }
        Ok(())
    }

    /// Init containers one after another: a later one is not begun while an earlier regular one runs.
    fn in_order(&self, slot: Slot) -> Result<(), TestCaseError> {
        let view = self.kubelet.view();
        for earlier in view.init_slots().filter(|s| *s < slot) {
            let blocks = view.containers[earlier].kind == Kind::Init && self.running[earlier];
            prop_assert!(!blocks, "{slot} started while {earlier} runs");
        }
        Ok(())
    }

    fn answer(&mut self, which: usize, ok: bool) -> Result<(), TestCaseError> {
        let action = self.open.remove(which);
        let event = match action {
            Action::CreateSandbox => {
                self.sandbox = ok;
                if ok {
                    Event::SandboxCreated
                } else {
                    Event::SandboxFailed
                }
            }
            Action::StopSandbox => {
                self.sandbox = false;
                Event::SandboxStopped
            }
            Action::Start(slot, _) if ok => {
                self.running[slot] = true;
                Event::Started(slot)
            }
            Action::Start(slot, _) => Event::StartFailed(slot, StartError::ImagePull),
            Action::RunHook(slot, hook) => Event::HookDone(slot, hook, ok),
            Action::RunProbe(slot, kind) => {
                Event::Probed(slot, kind, if ok { Outcome::Success } else { Outcome::Failure })
            }
            Action::Stop(slot, _) if self.running[slot] => {
                self.running[slot] = false;
                Event::Exited(slot, if ok { 0 } else { 137 })
            }
            _ => Event::Tick,
        };
        self.send(event)
    }

    fn wait(&mut self) -> Result<(), TestCaseError> {
        let Some(at) = self.kubelet.next_wakeup(self.now) else {
            return Ok(());
        };
        prop_assert!(at >= self.now);
        self.now = at;
        // Woken as often as it asks, it must come to rest within the same instant.
        for round in 0.. {
            self.send(Event::Tick)?;
            if self
                .kubelet
                .next_wakeup(self.now)
                .is_none_or(|next| next > self.now)
            {
                break;
            }
            prop_assert!(round < 20, "it spins at {}", self.now);
        }
        Ok(())
    }

    fn make(&mut self, one: &Move) -> Result<(), TestCaseError> {
        match one {
            Move::Answer(_, _) if self.open.is_empty() => Ok(()),
            Move::Answer(index, ok) => self.answer(index.index(self.open.len()), *ok),
            Move::Wait => self.wait(),
            Move::End(index, code) => {
                let running: Vec<Slot> = (0..self.running.len()).filter(|s| self.running[*s]).collect();
                if running.is_empty() {
                    return Ok(());
                }
                let slot = running[index.index(running.len())];
                self.running[slot] = false;
                self.send(Event::Exited(slot, *code))
            }
            Move::LoseSandbox => self.send(Event::SandboxLost),
            Move::Delete(grace) => self.send(Event::Deleted(*grace)),
            Move::RestartKubelet => {
                // Earlier requests are forgotten; starts that are in progress still complete.
                self.open
                    .retain(|a| matches!(a, Action::Start(..) | Action::CreateSandbox | Action::StopSandbox));
                while !self.open.is_empty() {
                    self.answer(0, true)?;
                    self.open.retain(|a| {
                        matches!(a, Action::Start(..) | Action::CreateSandbox | Action::StopSandbox)
                    });
                }
                self.send(Event::Restarted)
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_driver_is_survived(pod in pods(), moves in moves(), on_demand in any::<bool>()) {
        let mut driver = Driver::new(&pod, on_demand);
        driver.send(Event::Assigned)?;
        for one in &moves {
            driver.make(one)?;
        }
    }

    #[test]
    fn a_deleted_pod_ends(pod in pods(), moves in moves(), on_demand in any::<bool>()) {
        let mut driver = Driver::new(&pod, on_demand);
        driver.send(Event::Assigned)?;
        for one in &moves {
            driver.make(one)?;
        }
        driver.send(Event::Deleted(None))?;
        for _ in 0..400 {
            while !driver.open.is_empty() {
                driver.answer(0, true)?;
            }
            if driver.kubelet.is_finished() {
                break;
            }
            driver.wait()?;
        }
        prop_assert!(driver.kubelet.is_finished(), "{:?}", driver.kubelet);
        prop_assert!(!driver.running.contains(&true), "nothing runs on");
    }
}
