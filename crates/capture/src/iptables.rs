//! The iptables back end: the `iptables-restore` programs, for kernels or policies that require them.
//!
//! The text goes to the programs' standard input, never through a shell. Remora's rules in built-in chains carry a
//! comment with a fingerprint, which distinguishes them from the rules of other programs; its own chains are
//! recognised by their names. Each table is replaced in one step, but the tables of both families one after the
//! other: the programs offer no larger transaction, and this is a reason to prefer nftables.

mod gate;
mod listed;
mod program;
mod text;

use crate::install::Outcome;
pub use listed::ForeignRule;
use program::Programs;
pub use program::Variant;
use remora_rules::Plan;
use remora_rules::options::{Backend, InitialState, Settings};
use remora_rules::rule::Family;
use remora_rules::switch::State;
use std::io;
use std::path::Path;

/// Why the iptables programs failed.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program is not installed.
    #[error("find the program {name}")]
    Missing {
        /// The program.
        name: String,
    },
    /// The program could not be started.
    #[error("run {name}")]
    Run {
        /// The program.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program failed.
    #[error("{name} failed with {meaning}: {stderr}")]
    Failed {
        /// The program.
        name: String,
        /// What its exit code means.
        meaning: &'static str,
        /// Its standard error.
        stderr: String,
    },
}

impl IptablesError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing { .. } => {
                Some("install the iptables package, or use the nftables back end, which needs no program")
            }
            Self::Failed { stderr, .. }
                if stderr.contains("Permission denied") || stderr.contains("not permitted") =>
            {
                Some("the container needs the capabilities NET_ADMIN and NET_RAW")
            }
            _ => None,
        }
    }
}

/// The variant of the programs that is used for a family.
pub fn detect(backend: Backend, family: Family) -> Result<Variant, IptablesError> {
    Programs::choose(backend, family, None).map(|programs| programs.variant())
}

// istio: on the host, all pods and kube-proxy share the node's lock file and would wait for each other. The lock
// protects the tables of one namespace, so a file per namespace is enough (iptables >= 1.8.6).
fn lock(settings: &Settings) -> Option<&Path> {
    settings
        .network_namespace
        .as_deref()
        .filter(|_| settings.cni_mode)
}

/// Installs the plan's rules for both address families.
pub fn install(backend: Backend, settings: &Settings, plan: &Plan) -> Result<Outcome, IptablesError> {
    let mut outcome = Outcome::Unchanged;
    for family in [Family::V4, Family::V6] {
        let rules = match family {
            Family::V4 => Some(plan.ipv4.as_slice()),
            Family::V6 => plan.ipv6.as_deref(),
        };
        let programs = match (Programs::choose(backend, family, lock(settings)), rules) {
            (Ok(programs), _) => programs,
            // No rules are needed, and there is no program that could have left rules behind.
            (Err(_), None) => continue,
            (Err(error), Some(_)) => return Err(error),
        };
        let saved = programs.save()?;
        let rules = rules.unwrap_or_default();
        let switch = switch_for(settings, &saved);
        if !settings.force_apply && text::is_installed(&saved, rules, switch) {
            continue;
        }
        programs.restore(&text::replacement(&saved, rules, switch))?;
        outcome = Outcome::Applied;
    }
    Ok(outcome)
}

/// The rules are identical to Istio's unless the settings ask for a switch. An installed switch is kept.
fn switch_for(settings: &Settings, saved: &str) -> Option<State> {
    match settings.state {
        InitialState::Set(state) => Some(state),
        InitialState::Keep => gate::state_of(saved),
    }
}

/// Flips the switch, family by family; `false` if there is none.
pub fn switch(state: State) -> Result<bool, IptablesError> {
    let mut found = false;
    for family in [Family::V4, Family::V6] {
        for programs in Programs::present(None, family, None) {
            if let Some(text) = programs
                .save()
                .ok()
                .and_then(|saved| gate::flip_input(&saved, state))
            {
                programs.restore(&text)?;
                found = true;
            }
        }
    }
    Ok(found)
}

/// The state of the switch, if the iptables back end installed one.
pub fn state() -> Option<State> {
    let all = Programs::present(None, Family::V4, None);
    all.iter()
        .find_map(|programs| gate::state_of(&programs.save().ok()?))
}

/// Why rules that the iptables programs list could not be turned back into a plan.
#[derive(Debug, thiserror::Error)]
pub enum ListedError {
    /// The rules cannot be listed.
    #[error(transparent)]
    Programs(#[from] IptablesError),
    /// A rule in remora's chains is not one that remora writes.
    #[error("understand the rules of this network namespace")]
    Foreign(#[from] ForeignRule),
}

/// The plan that corresponds to the installed iptables rules, remora's or Istio's; `None` if there are none.
///
/// It has no routing part, which the iptables programs do not manage.
pub fn plan() -> Result<Option<Plan>, ListedError> {
    let mut found = [Vec::new(), Vec::new()];
    for (family, rules) in [Family::V4, Family::V6].into_iter().zip(&mut found) {
        for programs in Programs::present(None, family, None) {
            let listed = listed::rules(&programs.save()?)?;
            // `iptables` is an alias of one of the other two variants.
            if rules.is_empty() {
                *rules = listed;
            }
        }
    }
    let [ipv4, ipv6] = found;
    let nothing = ipv4.is_empty() && ipv6.is_empty();
    Ok((!nothing).then(|| Plan {
        ipv4,
        ipv6: (!ipv6.is_empty()).then_some(ipv6),
        route: None,
    }))
}

/// The input for `iptables-restore` that removes remora's rules, given the output of `iptables-save`.
pub fn removal(saved: &str) -> String {
    text::replacement(saved, &[], None)
}

/// Whether the legacy programs have been used in this namespace.
pub fn has_legacy_tables() -> bool {
    [Family::V4, Family::V6]
        .into_iter()
        .any(program::has_legacy_tables)
}

/// Removes remora's rules and chains from every variant.
pub fn remove(settings: &Settings) -> Result<(), IptablesError> {
    for family in [Family::V4, Family::V6] {
        for programs in Programs::present(settings.backend, family, lock(settings)) {
            // A variant that this kernel does not support has no rules to remove.
            let Ok(saved) = programs.save() else { continue };
            if text::has_own_rules(&saved) {
                programs.restore(&text::replacement(&saved, &[], None))?;
            }
        }
    }
    Ok(())
}
