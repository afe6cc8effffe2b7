//! One container as the model sees it.

use serde_json::Value;

use super::probe::{Handler, Hook, Probe, ProbeKind};
use super::{RestartPolicy, items, text};

/// The kind of a container in the order of start and stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: stays, and the next one starts once it has started.
    Sidecar,
    /// An entry of `containers`.
    Main,
}

/// A rule that restarts a container by its exit code, regardless of its restart policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartRule {
    /// Whether the code has to be among those listed, or must not be.
    pub listed: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
}

impl RestartRule {
    fn read(raw: &Value) -> Option<Self> {
        let on = &raw["exitCodes"];
        let listed = match on["operator"].as_str()? {
            "In" => true,
            "NotIn" => false,
            _ => return None,
        };
        let code = |v: &Value| v.as_i64().and_then(|n| i32::try_from(n).ok());
        let restarts = matches!(raw["action"].as_str(), Some("Restart" | "RestartAllContainers"));
        restarts.then(|| Self {
            listed,
            codes: items(&on["values"]).iter().filter_map(code).collect(),
        })
    }

    /// Whether it applies to this exit code.
    pub fn applies(&self, code: i32) -> bool {
        self.codes.contains(&code) == self.listed
    }
}

/// A container, defaulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// `name`, may be empty in a broken document.
    pub name: String,
    /// Init container, native sidecar or main container.
    pub kind: Kind,
    /// JSON pointer of the container in the document.
    pub path: String,
    /// Its own restart policy, in place of the pod's; k8s: allowed from 1.35 on.
    pub own_restart: Option<RestartPolicy>,
    /// Rules that override its restart policy.
    pub restart_rules: Vec<RestartRule>,
    /// `image`.
    pub image: String,
    /// `command` followed by `args`.
    pub command: Vec<String>,
    /// Literal environment values; entries taken from elsewhere have an empty value.
    pub env: Vec<(String, String)>,
    /// `runAsUser` of the container, else of the pod. `None`: the image decides.
    pub uid: Option<i64>,
    /// `runAsGroup` of the container, else of the pod. `None`: the image decides.
    pub gid: Option<i64>,
    /// `runAsUser` and `runAsGroup` of the container itself.
    pub own_ids: (Option<i64>, Option<i64>),
    /// Named and numbered `ports`.
    pub ports: Vec<(String, u16)>,
    /// Names of the volumes it mounts.
    pub mounts: Vec<String>,
    /// Added capabilities.
    pub capabilities: Vec<String>,
    /// Startup probe.
    pub startup: Option<Probe>,
    /// Readiness probe.
    pub readiness: Option<Probe>,
    /// Liveness probe.
    pub liveness: Option<Probe>,
    /// `lifecycle.postStart`.
    pub post_start: Option<Handler>,
    /// `lifecycle.preStop`.
    pub pre_stop: Option<Handler>,
}

impl Container {
    pub(super) fn read(raw: &Value, pod_security: &Value, init: bool, path: String) -> Self {
        let kind = match (init, raw["restartPolicy"].as_str()) {
            (false, _) => Kind::Main,
            (true, Some("Always")) => Kind::Sidecar,
            (true, _) => Kind::Init,
        };
        let security = &raw["securityContext"];
        let own_or_pod = |key: &str| security[key].as_i64().or_else(|| pod_security[key].as_i64());
        let ports = ports(&raw["ports"]);
        let probe = |key: &str| Probe::read(&raw[key], &ports);
        let hook = |key: &str| Handler::read(&raw["lifecycle"][key], &ports);
        let strings = |value: &Value| items(value).iter().map(text).collect::<Vec<_>>();
        let mut command = strings(&raw["command"]);
        command.extend(strings(&raw["args"]));
        Self {
            name: text(&raw["name"]),
            kind,
            own_restart: raw["restartPolicy"]
                .as_str()
                .map(|_| super::restart_policy(&raw["restartPolicy"])),
            restart_rules: items(&raw["restartPolicyRules"])
                .iter()
                .filter_map(RestartRule::read)
                .collect(),
            image: text(&raw["image"]),
            command,
            env: items(&raw["env"])
                .iter()
                .map(|e| (text(&e["name"]), text(&e["value"])))
                .collect(),
            uid: own_or_pod("runAsUser"),
            gid: own_or_pod("runAsGroup"),
            own_ids: (security["runAsUser"].as_i64(), security["runAsGroup"].as_i64()),
            mounts: items(&raw["volumeMounts"])
                .iter()
                .map(|m| text(&m["name"]))
                .collect(),
            capabilities: strings(&security["capabilities"]["add"]),
            startup: probe("startupProbe"),
            readiness: probe("readinessProbe"),
            liveness: probe("livenessProbe"),
            post_start: hook("postStart"),
            pre_stop: hook("preStop"),
            ports,
            path,
        }
    }

    /// The probe of this kind.
    pub fn probe(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Startup => self.startup.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
            ProbeKind::Liveness => self.liveness.as_ref(),
        }
    }

    /// The lifecycle hook of this kind.
    pub fn hook(&self, hook: Hook) -> Option<&Handler> {
        match hook {
            Hook::PostStart => self.post_start.as_ref(),
            Hook::PreStop => self.pre_stop.as_ref(),
        }
    }

    /// The literal value of an environment variable; the last entry of a name wins.
    pub fn env(&self, name: &str) -> Option<&str> {
        self.env
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// Whether any word of the command line contains one of these, ignoring case.
    pub fn command_mentions(&self, words: &[&str]) -> bool {
        self.command.iter().any(|arg| mentions(arg, words))
    }
}

/// Whether a text contains one of these words, ignoring case. The words are in lower case.
pub fn mentions(text: &str, words: &[&str]) -> bool {
    let text = text.to_ascii_lowercase();
    words.iter().any(|w| text.contains(w))
}

fn ports(value: &Value) -> Vec<(String, u16)> {
    let number = |p: &Value| p["containerPort"].as_u64().and_then(|n| u16::try_from(n).ok());
    items(value)
        .iter()
        .filter_map(|p| Some((text(&p["name"]), number(p)?)))
        .collect()
}
