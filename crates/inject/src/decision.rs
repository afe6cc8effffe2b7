//! Whether a pod is injected at all.

use crate::names::{annotation, label};
use crate::settings::InjectConfig;
use crate::warning::Warning;
use remora_pod::selector::Selector;
use remora_pod::view;
use serde_json::Value;
use std::fmt;

/// Namespaces whose pods are never injected.
const SYSTEM_NAMESPACES: [&str; 4] = [
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "local-path-storage",
];

/// Why a pod is not injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// It uses the node's network (`hostNetwork`), which must not be captured.
    HostNetwork,
    /// It is in a namespace of the cluster's own.
    SystemNamespace,
    /// The pod, a selector or the policy disables injection.
    Disabled,
    /// The injector is not switched on.
    NotAsked,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostNetwork => "has host networking enabled",
            Self::SystemNamespace => "is in a system namespace",
            Self::Disabled => "has sidecar injection disabled",
            Self::NotAsked => "asks for no injection",
        })
    }
}

/// Decides about one pod; first hit wins.
///
/// Host network: no; system namespace: no; label, else annotation, `true`/`false`: that; a never-selector
/// matches: no; an always-selector matches: yes; else the policy. A policy that is neither `enabled` nor `disabled`
/// injects no pod.
pub(crate) fn decide(
    pod: &Value,
    namespace: &str,
    config: &InjectConfig,
    warnings: &mut Vec<Warning>,
) -> Result<(), Skip> {
    if pod["spec"]["hostNetwork"].as_bool() == Some(true) {
        return Err(Skip::HostNetwork);
    }
    if SYSTEM_NAMESPACES.contains(&namespace) {
        return Err(Skip::SystemNamespace);
    }
    let wanted = explicit(pod, warnings)
        .or_else(|| matches_any(&config.never_inject, pod, warnings).then_some(false))
        .or_else(|| matches_any(&config.always_inject, pod, warnings).then_some(true));
    let by_policy = match config.policy.as_str() {
        "enabled" => true,
        "disabled" => false,
        other => {
            let text =
                format!("injection policy {other:?} is neither enabled nor disabled: nothing is injected");
            warnings.push(Warning::pod("bad-policy", text));
            return Err(Skip::Disabled);
        }
    };
    if wanted.unwrap_or(by_policy) {
        Ok(())
    } else {
        Err(Skip::Disabled)
    }
}

fn explicit(pod: &Value, warnings: &mut Vec<Warning>) -> Option<bool> {
    let (what, text) = match view::label(pod, label::INJECT) {
        Some(text) => ("label", text),
        None => ("annotation", view::annotation(pod, annotation::INJECT)?),
    };
    match text {
        "true" => Some(true),
        "false" => Some(false),
        "" => None,
        other => {
            let text = format!(
                "{what} {}: {other:?} is neither \"true\" nor \"false\" and is ignored",
                annotation::INJECT
            );
            warnings.push(Warning::pod("bad-inject-value", text));
            None
        }
    }
}

/// istio: an empty selector matches nothing here, unlike everywhere else.
fn matches_any(selectors: &[Value], pod: &Value, warnings: &mut Vec<Warning>) -> bool {
    let labels = view::at(pod, &["metadata", "labels"]).and_then(Value::as_object);
    selectors
        .iter()
        .any(|source| match Selector::parse(Some(source)) {
            Ok(selector) => !selector.is_empty() && selector.matches(labels),
            Err(error) => {
                warnings.push(Warning::pod(
                    "bad-selector",
                    format!("injection selector is skipped: {error}"),
                ));
                false
            }
        })
}
