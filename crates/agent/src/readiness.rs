//! Whether the sidecar may be used, as an event: asked at any moment, waited for without polling.

use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;
use tokio::sync::watch;

/// What must have happened once before the pod may use its sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The sockets listen.
    Sockets,
    /// There is a certificate.
    Certificate,
    /// Discovery said everything once.
    Configuration,
    /// Connections are taken.
    Proxy,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Sockets, Self::Certificate, Self::Configuration, Self::Proxy];
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sockets => "sockets",
            Self::Certificate => "certificate",
            Self::Configuration => "configuration",
            Self::Proxy => "proxy",
        })
    }
}

/// How far the sidecar has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    reached: Vec<Stage>,
    /// The last thing that went wrong on the way to a stage.
    trouble: BTreeMap<Stage, String>,
    /// The configuration is a kept one, which the control plane stood by last at that time.
    kept: Option<SystemTime>,
    stopping: bool,
}

impl State {
    /// Stages that are still to come.
    pub fn missing(&self) -> Vec<Stage> {
        let missing = |stage: &Stage| !self.reached.contains(stage);
        Stage::ALL.into_iter().filter(missing).collect()
    }

    /// Whether the sidecar may be used.
    pub fn is_ready(&self) -> bool {
        !self.stopping && self.missing().is_empty()
    }

    /// Whether it is on its way out.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// What readiness answers: a status and why.
    pub fn answer(&self, now: SystemTime) -> (u16, serde_json::Value) {
        let (status, mut answer) = self.judge();
        if let Some(confirmed) = self.kept {
            let age = now.duration_since(confirmed).unwrap_or_default().as_secs();
            answer["configuration"] = json!({"from": "last good", "age_seconds": age});
        }
        (status, answer)
    }

    fn judge(&self) -> (u16, serde_json::Value) {
        if self.stopping {
            return (503, json!({"ready": false, "reason": "stopping"}));
        }
        let missing = self.missing();
        let Some(first) = missing.first() else {
            return (200, json!({"ready": true}));
        };
        let trouble: BTreeMap<String, &String> = missing
            .iter()
            .filter_map(|stage| Some((stage.to_string(), self.trouble.get(stage)?)))
            .collect();
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let mut answer = json!({"ready": false, "reason": format!("waiting for {first}"), "missing": names});
        if !trouble.is_empty() {
            answer["trouble"] = json!(trouble);
        }
        (503, answer)
    }
}

/// Shared by everybody who brings readiness about or asks for it.
#[derive(Debug, Clone)]
pub struct Readiness(watch::Sender<State>);

impl Default for Readiness {
    fn default() -> Self {
        Self(watch::channel(State::default()).0)
    }
}

impl Readiness {
    /// A stage is reached. It is never left again: what is lost later is trouble, not a step back.
    pub fn reach(&self, stage: Stage) {
        self.0.send_if_modified(|state| {
            let new = !state.reached.contains(&stage);
            if new {
                state.reached.push(stage);
            }
            state.trouble.remove(&stage).is_some() || new
        });
    }

    /// Something went wrong on the way to a stage.
    pub fn trouble(&self, stage: Stage, why: String) {
        self.0.send_modify(|state| {
            state.trouble.insert(stage, why);
        });
    }

    /// Makes do with a kept configuration, if there is no other. Says whether that was so.
    pub fn make_do(&self, confirmed: SystemTime) -> bool {
        self.0.send_if_modified(|state| {
            let needed = !state.reached.contains(&Stage::Configuration);
            if needed {
                state.reached.push(Stage::Configuration);
                state.kept = Some(confirmed);
            }
            needed
        })
    }

    /// The configuration that is on its way in is a kept one.
    pub fn ages(&self, confirmed: SystemTime) {
        self.0.send_modify(|state| state.kept = Some(confirmed));
    }

    /// The control plane stands by the configuration in force.
    pub fn confirmed(&self) {
        self.0.send_if_modified(|state| state.kept.take().is_some());
    }

    /// From now on the sidecar is not ready, for good.
    pub fn stop(&self) {
        self.0.send_modify(|state| state.stopping = true);
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Ready when a stage is reached.
    pub async fn reached(&self, stage: Stage) {
        let mut states = self.0.subscribe();
        // The sender lives as long as we do.
        let _ = states.wait_for(|state| state.reached.contains(&stage)).await;
    }

    /// Ready when the answer of readiness can no longer become better: ready, or stopping.
    pub async fn settled(&self) {
        let mut states = self.0.subscribe();
        // The sender lives as long as we do.
        let _ = states.wait_for(|state| state.is_ready() || state.stopping).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{Readiness, Stage};
    use serde_json::json;
    use std::time::{Duration, SystemTime};

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn the_answer_names_what_is_missing_and_why() {
        let readiness = Readiness::default();
        readiness.reach(Stage::Sockets);
        readiness.trouble(Stage::Certificate, "connection refused".to_owned());
        assert_eq!(
            readiness.state().answer(NOW),
            (
                503,
                json!({
                    "ready": false,
                    "reason": "waiting for certificate",
                    "missing": ["certificate", "configuration", "proxy"],
                    "trouble": {"certificate": "connection refused"},
                })
            )
        );
    }

    #[test]
    fn ready_once_everything_is_there_and_never_again_after_the_stop() {
        let readiness = Readiness::default();
        for stage in [Stage::Configuration, Stage::Certificate, Stage::Sockets] {
            readiness.reach(stage);
            assert_eq!(readiness.state().answer(NOW).0, 503);
        }
        readiness.reach(Stage::Proxy);
        assert_eq!(readiness.state().answer(NOW), (200, json!({"ready": true})));
        readiness.trouble(Stage::Certificate, "later".to_owned());
        assert!(
            readiness.state().is_ready(),
            "trouble after a stage is no step back"
        );
        readiness.stop();
        assert_eq!(
            readiness.state().answer(NOW),
            (503, json!({"ready": false, "reason": "stopping"}))
        );
    }

    #[test]
    fn a_kept_configuration_is_said_with_its_age_until_the_control_plane_stands_by_it() {
        let readiness = Readiness::default();
        assert!(readiness.make_do(NOW));
        let (_, answer) = readiness.state().answer(NOW + Duration::from_secs(90));
        assert_eq!(
            answer["configuration"],
            json!({"from": "last good", "age_seconds": 90})
        );
        assert_eq!(answer["missing"], json!(["sockets", "certificate", "proxy"]));
        readiness.confirmed();
        assert_eq!(readiness.state().answer(NOW).1.get("configuration"), None);
        assert!(!readiness.make_do(NOW), "there is a better one");
    }
}
