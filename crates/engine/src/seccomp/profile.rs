//! Profiles in the JSON form that Docker, containerd and Kubernetes share.
//!
//! Calls with the default action are left out; for each other action there is one filter. Calls of a name this
//! machine does not have are passed over, as other runtimes do.

use super::{Filters, Rules, SeccompError, filter, names};
use crate::container::Capabilities;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default)]
    includes: Conditions,
    #[serde(default)]
    excludes: Conditions,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Conditions {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
}

impl Conditions {
    fn arch(&self) -> bool {
        // The names of Go.
        let ours = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        self.arches.iter().any(|a| a == ours)
    }

    fn included(&self, capabilities: Capabilities) -> bool {
        self.caps.iter().all(|c| capabilities.has(c)) && (self.arches.is_empty() || self.arch())
    }

    fn excluded(&self, capabilities: Capabilities) -> bool {
        self.caps.iter().any(|c| capabilities.has(c)) || self.arch()
    }
}

/// An action that can be compared and ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Action {
    Allow,
    Log,
    Trap,
    Errno(u32),
    KillThread,
    KillProcess,
}

impl Action {
    fn read(name: &str, errno: Option<u32>) -> Result<Self, SeccompError> {
        Ok(match name {
            "SCMP_ACT_ALLOW" => Self::Allow,
            "SCMP_ACT_LOG" => Self::Log,
            "SCMP_ACT_TRAP" => Self::Trap,
            "SCMP_ACT_ERRNO" => Self::Errno(errno.unwrap_or(libc::EPERM.cast_unsigned())),
            "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Self::KillThread,
            "SCMP_ACT_KILL_PROCESS" => Self::KillProcess,
            other => return Err(SeccompError::Unsupported(format!("action {other}"))),
        })
    }

    fn compiled(self) -> SeccompAction {
        match self {
            Self::Allow => SeccompAction::Allow,
            Self::Log => SeccompAction::Log,
            Self::Trap => SeccompAction::Trap,
            Self::Errno(number) => SeccompAction::Errno(number),
            Self::KillThread => SeccompAction::KillThread,
            Self::KillProcess => SeccompAction::KillProcess,
        }
    }
}

pub(super) fn filters(json: &str, capabilities: Capabilities) -> Result<Filters, SeccompError> {
    let profile: Profile = serde_json::from_str(json)?;
    let default = Action::read(&profile.default_action, profile.default_errno_ret)?;
    let mut by_action: BTreeMap<Action, Rules> = BTreeMap::new();
    for entry in &profile.syscalls {
        if !entry.includes.included(capabilities) || entry.excludes.excluded(capabilities) {
            continue;
        }
        let action = Action::read(&entry.action, entry.errno_ret)?;
        if action == default {
            continue;
        }
        let rule = entry.rule()?;
        for number in entry
            .names
            .iter()
            .chain(&entry.name)
            .filter_map(|n| names::number(n))
        {
            add(by_action.entry(action).or_default(), number, rule.clone());
        }
    }
    compile(default, by_action)
}

/// The entries that count here, in OCI's form.
pub(super) fn oci(json: &str, capabilities: Capabilities) -> Result<Value, SeccompError> {
    let profile: Profile = serde_json::from_str(json)?;
    let mut raw: Value = serde_json::from_str(json)?;
    let counts =
        |entry: &Entry| entry.includes.included(capabilities) && !entry.excludes.excluded(capabilities);
    let all = raw
        .get_mut("syscalls")
        .and_then(Value::as_array_mut)
        .map(std::mem::take);
    let kept = all.unwrap_or_default().into_iter().zip(&profile.syscalls);
    let kept: Vec<Value> = kept
        .filter(|(_, entry)| counts(entry))
        .map(|(mut value, entry)| {
            let names: Vec<&String> = entry.names.iter().chain(&entry.name).collect();
            value["names"] = json!(names);
            if let Some(fields) = value.as_object_mut() {
                fields.retain(|key, _| matches!(key.as_str(), "names" | "action" | "errnoRet" | "args"));
            }
            value
        })
        .collect();
    let mut document = json!({"defaultAction": profile.default_action, "syscalls": kept});
    if let Some(errno) = profile.default_errno_ret {
        document["defaultErrnoRet"] = errno.into();
    }
    Ok(document)
}

/// Several entries for a call: any of them may match. One without conditions always does.
fn add(rules: &mut Rules, number: i64, rule: Option<SeccompRule>) {
    match (rules.get_mut(&number), rule) {
        (None, rule) => {
            rules.insert(number, rule.into_iter().collect());
        }
        (Some(known), Some(rule)) if !known.is_empty() => known.push(rule),
        (Some(known), _) => known.clear(),
    }
}

fn compile(default: Action, by_action: BTreeMap<Action, Rules>) -> Result<Filters, SeccompError> {
    let mut filters = Filters::new();
    if default != Action::Allow {
        // What any entry means gets past the first filter; those of stricter actions are stopped by theirs.
        let mut named = Rules::new();
        for (number, list) in by_action.values().flatten() {
            if list.is_empty() {
                add(&mut named, *number, None);
            }
            for rule in list {
                add(&mut named, *number, Some(rule.clone()));
            }
        }
        filters.push(filter(named, SeccompAction::Allow, default.compiled())?);
    }
    for (action, rules) in by_action
        .into_iter()
        .filter(|(action, _)| *action != Action::Allow)
    {
        filters.push(filter(rules, action.compiled(), SeccompAction::Allow)?);
    }
    Ok(filters)
}

impl Entry {
    fn rule(&self) -> Result<Option<SeccompRule>, SeccompError> {
        let args = self.args.as_deref().unwrap_or_default();
        if args.is_empty() {
            return Ok(None);
        }
        let wrong = |e: seccompiler::BackendError| SeccompError::Compile(e.to_string());
        let mut conditions = Vec::new();
        for arg in args {
            let (op, value) = arg.comparison()?;
            let condition = SeccompCondition::new(arg.index, SeccompCmpArgLen::Qword, op, value);
            conditions.push(condition.map_err(wrong)?);
        }
        SeccompRule::new(conditions).map(Some).map_err(wrong)
    }
}

impl Argument {
    fn comparison(&self) -> Result<(SeccompCmpOp, u64), SeccompError> {
        let op = match self.op.as_str() {
            "SCMP_CMP_EQ" => SeccompCmpOp::Eq,
            "SCMP_CMP_NE" => SeccompCmpOp::Ne,
            "SCMP_CMP_LT" => SeccompCmpOp::Lt,
            "SCMP_CMP_LE" => SeccompCmpOp::Le,
            "SCMP_CMP_GT" => SeccompCmpOp::Gt,
            "SCMP_CMP_GE" => SeccompCmpOp::Ge,
            // The first value is the mask.
            "SCMP_CMP_MASKED_EQ" => return Ok((SeccompCmpOp::MaskedEq(self.value), self.value_two)),
            other => return Err(SeccompError::Unsupported(format!("comparison {other}"))),
        };
        Ok((op, self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let caps = Capabilities::default();
        for json in [
            "",
            "{}",
            r#"{"defaultAction":"SCMP_ACT_DANCE"}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_ERRNO",
                "args":[{"index":9,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
        ] {
            assert!(filters(json, caps).is_err(), "{json}");
        }
    }

    #[test]
    fn capabilities_decide_about_entries() {
        let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
            {"names":["mount"],"action":"SCMP_ACT_ERRNO","excludes":{"caps":["CAP_SYS_ADMIN"]}}]}"#;
        assert_eq!(filters(json, Capabilities::ALL).unwrap().len(), 0);
        assert_eq!(filters(json, Capabilities::NONE).unwrap().len(), 1);
    }
}
