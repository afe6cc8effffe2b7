//! Readiness of the sidecar: it can be queried at any time, and awaited without polling.

use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;
use tokio::sync::watch;

/// Stages that must be reached once before the sidecar is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The sockets listen.
    Sockets,
    /// The sidecar has a certificate.
    Certificate,
    /// Discovery delivered the whole configuration once.
    Configuration,
    /// The proxy accepts connections.
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

/// Progress of the sidecar's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    reached: Vec<Stage>,
    /// The last error on the way to a stage.
    trouble: BTreeMap<Stage, String>,
    /// Set while the configuration comes from disk: when the control plane last confirmed it.
    kept: Option<SystemTime>,
    stopping: bool,
}

impl State {
    /// Stages that are not reached yet.
    pub fn missing(&self) -> Vec<Stage> {
        let missing = |stage: &Stage| !self.reached.contains(stage);
        Stage::ALL.into_iter().filter(missing).collect()
    }

    /// Whether the sidecar is ready.
    pub fn is_ready(&self) -> bool {
        !self.stopping && self.missing().is_empty()
    }

    /// Whether the sidecar is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Response of the readiness endpoint: status and body.
    pub fn answer(&self, now: SystemTime) -> (u16, serde_json::Value) {
        let (status, mut answer) = self.evaluate();
        if let Some(confirmed) = self.kept {
            let age = now.duration_since(confirmed).unwrap_or_default().as_secs();
            answer["configuration"] = json!({"from": "last good", "age_seconds": age});
        }
        (status, answer)
    }

    fn evaluate(&self) -> (u16, serde_json::Value) {
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

/// Readiness, shared by the tasks that reach the stages and by those that report them.
#[derive(Debug, Clone)]
pub struct Readiness(watch::Sender<State>);

impl Default for Readiness {
    fn default() -> Self {
        Self(watch::channel(State::default()).0)
    }
}

impl Readiness {
    /// Marks a stage as reached. It stays reached: a later failure is reported as trouble and does not reset it.
    pub fn reach(&self, stage: Stage) {
        self.0.send_if_modified(|state| {
            let new = !state.reached.contains(&stage);
            if new {
                state.reached.push(stage);
            }
            state.trouble.remove(&stage).is_some() || new
        });
    }

    /// Records an error on the way to a stage.
    pub fn trouble(&self, stage: Stage, why: String) {
        self.0.send_modify(|state| {
            state.trouble.insert(stage, why);
        });
    }

    /// Uses the configuration from disk, unless discovery already delivered one. Returns whether it is used.
    pub fn use_last_good(&self, confirmed: SystemTime) -> bool {
        self.0.send_if_modified(|state| {
            let needed = !state.reached.contains(&Stage::Configuration);
            if needed {
                state.reached.push(Stage::Configuration);
                state.kept = Some(confirmed);
            }
            needed
        })
    }

    /// Marks the configuration that is being loaded as one from disk.
    pub fn set_last_good(&self, confirmed: SystemTime) {
        self.0.send_modify(|state| state.kept = Some(confirmed));
    }

    /// The control plane confirmed the current configuration.
    pub fn confirmed(&self) {
        self.0.send_if_modified(|state| state.kept.take().is_some());
    }

    /// The sidecar stops: it is never ready again.
    pub fn stop(&self) {
        self.0.send_modify(|state| state.stopping = true);
    }

    /// Current state.
    pub fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Completes when a stage is reached.
    pub async fn reached(&self, stage: Stage) {
        let mut states = self.0.subscribe();
        // `self` holds the sender, so the channel stays open.
        let _ = states.wait_for(|state| state.reached.contains(&stage)).await;
    }

    /// Completes when waiting longer cannot help: the sidecar is ready, or stopping.
    pub async fn settled(&self) {
        let mut states = self.0.subscribe();
        // `self` holds the sender, so the channel stays open.
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
    fn a_kept_configuration_is_reported_with_its_age_until_the_control_plane_confirms_it() {
        let readiness = Readiness::default();
        assert!(readiness.use_last_good(NOW));
        let (_, answer) = readiness.state().answer(NOW + Duration::from_secs(90));
        assert_eq!(
            answer["configuration"],
            json!({"from": "last good", "age_seconds": 90})
        );
        assert_eq!(answer["missing"], json!(["sockets", "certificate", "proxy"]));
        readiness.confirmed();
        assert_eq!(readiness.state().answer(NOW).1.get("configuration"), None);
        assert!(!readiness.use_last_good(NOW), "there is a better one");
    }
}
