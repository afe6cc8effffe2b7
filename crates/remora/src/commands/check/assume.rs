//! `--assume`: a simulation under the user's assumptions.

use super::subject::{Play, set_kubelet};
use anyhow::bail;
use remora_startup::analysis::Analysis;
use remora_startup::findings::Options;
use remora_startup::sim::Scenario;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// What the user assumes, for pods of any shape.
pub(super) struct Assumptions {
    file: String,
    stated: Value,
    /// Processes no pod has had yet.
    unmet: BTreeSet<String>,
    pods: usize,
}

impl Assumptions {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut stated = match crate::commands::inject::document(path)? {
            Value::Null => Value::Object(serde_json::Map::new()),
            stated => stated,
        };
        for act in stated
            .get_mut("do")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            spell_on(act);
        }
        let named = stated.get("processes").and_then(Value::as_object);
        Ok(Self {
            unmet: named.into_iter().flat_map(|m| m.keys().cloned()).collect(),
            file: path.display().to_string(),
            stated,
            pods: 0,
        })
    }

    /// Plays a pod. Assumptions about containers it does not have are left out; see [`Self::finish`].
    pub(super) fn play(&mut self, analysis: &Analysis, options: &Options) -> anyhow::Result<Play> {
        self.pods += 1;
        let mut stated = self.stated.clone();
        let mut met = Vec::new();
        if let Some(processes) = stated.get_mut("processes").and_then(Value::as_object_mut) {
            processes.retain(|name, _| {
                let container = name.split_once('/').map_or(name.as_str(), |(c, _)| c);
                analysis.view.slot(container).is_some()
            });
            met.extend(processes.keys().cloned());
        }
        // Who says when the pod is deleted, or how long to look, does not want it deleted after a few seconds.
        let own_course = stated.get("do").is_some() || stated.get("until").is_some();
        let mut scenario = if own_course {
            Scenario::usual(analysis)
        } else {
            Scenario::life(analysis)
        };
        set_kubelet(&mut scenario, options);
        if let Err(error) = scenario.assume(&stated) {
            bail!("{}: {error} ({})", self.file, error.hint());
        }
        for name in met {
            self.unmet.remove(&name);
        }
        Ok(Play::of(scenario))
    }

    /// An assumption about a container that no pod has is a mistake.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        if self.pods == 0 || self.unmet.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.unmet.iter().map(String::as_str).collect();
        bail!("{}: no pod has a process {}", self.file, names.join(", "))
    }
}

/// In YAML as Kubernetes reads it, `on` without quotes is a word for true.
fn spell_on(act: &mut Value) {
    if let Some(act) = act.as_object_mut()
        && !act.contains_key("on")
        && let Some(event) = act.remove("true")
    {
        act.insert("on".to_owned(), event);
    }
}
