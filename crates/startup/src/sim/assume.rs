//! Assumptions a user states, as a document.
//!
//! ```json
//! {
//!   "processes": {
//!     "istio-proxy": {"ready": "5s"},
//!     "app": {"lives": "2s", "exit": 1, "deaths": 3},
//!     "app/postStart": {"lives": "10s"}
//!   },
//!   "do": [{"on": "app.start", "after": "3s", "act": "delete", "grace": 5}],
//!   "kubelet": {"version": "1.34"},
//!   "until": "2m"
//! }
//! ```
//!
//! Times are numbers of milliseconds or texts such as `500ms`, `5s`, `2m`.

use serde_json::{Map, Value};

use super::{Act, Actor, Behaviour, Intervention, Role, Scenario};
use crate::kubelet::{Config, Millis, StartError};

/// Why assumptions cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssumeError {
    /// A name that is not a process of the pod.
    #[error("reading the assumptions: the pod has no process {0:?}")]
    NoProcess(String),
    /// An unknown key.
    #[error("reading the assumptions: unknown key {0:?}")]
    UnknownKey(String),
    /// A value of the wrong kind.
    #[error("reading the assumptions: {0} should be {1}")]
    WrongValue(String, &'static str),
}

impl AssumeError {
    /// What the user can do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::NoProcess(_) => {
                "name a container, or a hook or probe of one: app, app/postStart, app/startupProbe"
            }
            Self::UnknownKey(_) => "the page on assumptions lists all keys",
            Self::WrongValue(..) => "times are milliseconds or texts such as 500ms, 5s, 2m",
        }
    }
}

impl Scenario {
    /// Applies the user's assumptions to the scenario.
    pub fn assume(&mut self, stated: &Value) -> Result<(), AssumeError> {
        for (key, value) in map(stated, "the document")? {
            match key.as_str() {
                "processes" => self.assume_processes(map(value, key)?)?,
                "do" => self.assume_acts(value)?,
                "kubelet" => self.assume_kubelet(map(value, key)?)?,
                "until" => self.horizon = time(value, key)?,
                _ => return Err(AssumeError::UnknownKey(key.clone())),
            }
        }
        Ok(())
    }

    fn assume_processes(&mut self, stated: &Map<String, Value>) -> Result<(), AssumeError> {
        for (name, traits) in stated {
            let actor = Actor::parse(name, |c| self.view.slot(c));
            let actor = actor.ok_or_else(|| AssumeError::NoProcess(name.clone()))?;
            let mut behaviour = self.behaviour(actor);
            for (key, value) in map(traits, name)? {
                set(&mut behaviour, key, value)?;
            }
            *self = self.clone().with(actor.slot, actor.part, behaviour);
        }
        Ok(())
    }

    fn assume_acts(&mut self, stated: &Value) -> Result<(), AssumeError> {
        let list = stated.as_array().ok_or_else(|| wrong("do", "a list"))?;
        for one in list {
            let on = one["on"]
                .as_str()
                .ok_or_else(|| wrong("on", "the name of an event"))?;
            let after = if one["after"].is_null() {
                0
            } else {
                time(&one["after"], "after")?
            };
            let act = match one["act"].as_str() {
                Some("delete") => Act::Delete(one["grace"].as_u64()),
                Some("lose-sandbox") => Act::LoseSandbox,
                Some("restart-kubelet") => Act::RestartKubelet,
                Some("quit-proxy") => Act::QuitProxy,
                Some("end") => Act::End,
                _ => {
                    return Err(wrong(
                        "act",
                        "delete, lose-sandbox, restart-kubelet, quit-proxy or end",
                    ));
                }
            };
            self.interventions.push(Intervention {
                on: on.to_owned(),
                after,
                act,
            });
        }
        Ok(())
    }

    fn assume_kubelet(&mut self, stated: &Map<String, Value>) -> Result<(), AssumeError> {
        for (key, value) in stated {
            match key.as_str() {
                "version" => {
                    let version = value
                        .as_str()
                        .ok_or_else(|| wrong(key, "a version such as 1.34"))?;
                    let pass_delay = self.kubelet.pass_delay;
                    self.kubelet = Config {
                        pass_delay,
                        ..Config::for_version(version)
                    };
                }
                "start" => self.latency.start = time(value, key)?,
                "sandbox" => self.latency.sandbox = time(value, key)?,
                _ => return Err(AssumeError::UnknownKey(key.clone())),
            }
        }
        Ok(())
    }
}

fn set(behaviour: &mut Behaviour, key: &str, value: &Value) -> Result<(), AssumeError> {
    let flag = || value.as_bool().ok_or_else(|| wrong(key, "true or false"));
    let number = || {
        value
            .as_i64()
            .and_then(|n| i32::try_from(n).ok())
            .ok_or_else(|| wrong(key, "a number"))
    };
    match key {
        "lives" => {
            behaviour.lives = if value.is_null() {
                None
            } else {
                Some(time(value, key)?)
            }
        }
        "exit" => behaviour.exit_code = number()?,
        "deaths" => behaviour.early_deaths = u32::try_from(number()?).map_err(|_| wrong(key, "a number"))?,
        "life" => behaviour.early_life = time(value, key)?,
        "needsNetwork" => behaviour.must_connect = flag()?,
        "healthy" => behaviour.healthy = flag()?,
        "listensAfter" => behaviour.listens_after = time(value, key)?,
        "drains" => {
            behaviour.drains = if value.is_null() {
                None
            } else {
                Some(time(value, key)?)
            }
        }
        "stopExit" => behaviour.stop_code = number()?,
        "imageMissing" => behaviour.unavailable = flag()?.then_some(StartError::ImagePull),
        "ready" | "strict" => return set_proxy(behaviour, key, value),
        _ => return Err(AssumeError::UnknownKey(key.to_owned())),
    }
    Ok(())
}

fn set_proxy(behaviour: &mut Behaviour, key: &str, value: &Value) -> Result<(), AssumeError> {
    let Role::Proxy { ready_after, strict } = &mut behaviour.role else {
        return Err(AssumeError::UnknownKey(key.to_owned()));
    };
    if key == "ready" {
        *ready_after = time(value, key)?;
    } else {
        *strict = value.as_bool().ok_or_else(|| wrong(key, "true or false"))?;
    }
    Ok(())
}

fn wrong(key: &str, expected: &'static str) -> AssumeError {
    AssumeError::WrongValue(key.to_owned(), expected)
}

fn map<'v>(value: &'v Value, key: &str) -> Result<&'v Map<String, Value>, AssumeError> {
    value.as_object().ok_or_else(|| wrong(key, "a mapping"))
}

/// Milliseconds, or a text with a unit.
fn time(value: &Value, key: &str) -> Result<Millis, AssumeError> {
    let error = || wrong(key, "a time");
    if let Some(number) = value.as_u64() {
        return Ok(number);
    }
    let text = value.as_str().ok_or_else(error)?.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "ms" | "" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err(error()),
    };
    digits
        .trim()
        .parse::<Millis>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(error)
}
