//! The other back end: the `iptables-restore` programs, for kernels or policies that want them.
//!
//! The text goes to the programs' standard input, never through a shell. Our rules in built-in chains carry a
//! comment with a fingerprint, so that they can be told from everybody else's; our own chains are known by
//! their names. Each table is replaced in one step, but the tables of both families one after the other:
//! that is the best these programs offer, and a reason to prefer nftables.

mod gate;
mod listed;
mod program;
mod text;

use crate::install::Outcome;
pub use listed::Foreign;
use program::Programs;
pub use program::Variant;
use remora_rules::Plan;
use remora_rules::options::{Backend, InitialState, Settings};
use remora_rules::rule::Family;
use remora_rules::switch::State;
use std::io;
use std::path::Path;

/// Why the programs could not do it.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// There is no such program.
    #[error("find the program {name}")]
    Missing {
        /// The program.
        name: String,
    },
    /// It could not be started.
    #[error("run {name}")]
    Run {
        /// The program.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It failed.
    #[error("{name} failed with {meaning}: {stderr}")]
    Failed {
        /// The program.
        name: String,
        /// What its exit code means.
        meaning: &'static str,
        /// What it said.
        stderr: String,
    },
}

impl IptablesError {
    /// What a person can do about it.
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

/// Which programs would be used for a family.
pub fn detect(backend: Backend, family: Family) -> Result<Variant, IptablesError> {
    Programs::choose(backend, family, None).map(|programs| programs.variant())
}

// istio: on the host, the node's lock is everybody's, and pods would wait for each other and for kube-proxy. The
// lock protects the tables of one namespace, so the namespace's own file will do (iptables >= 1.8.6).
fn lock(settings: &Settings) -> Option<&Path> {
    settings
        .network_namespace
        .as_deref()
        .filter(|_| settings.cni_mode)
}

/// Makes the rules of both families what the plan says.
pub fn install(backend: Backend, settings: &Settings, plan: &Plan) -> Result<Outcome, IptablesError> {
    let mut outcome = Outcome::Unchanged;
    for family in [Family::V4, Family::V6] {
        let rules = match family {
            Family::V4 => Some(plan.ipv4.as_slice()),
            Family::V6 => plan.ipv6.as_deref(),
        };
        let programs = match (Programs::choose(backend, family, lock(settings)), rules) {
            (Ok(programs), _) => programs,
            // Nothing wanted, and no program that could have left anything behind.
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

/// The rules are Istio's own as long as nobody asks for a switch; once there is one, it stays.
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
            if let Some(text) = programs.save().ok().and_then(|saved| gate::flip(&saved, state)) {
                programs.restore(&text)?;
                found = true;
            }
        }
    }
    Ok(found)
}

/// The state of the switch, if the iptables programs put one in.
pub fn state() -> Option<State> {
    let all = Programs::present(None, Family::V4, None);
    all.iter()
        .find_map(|programs| gate::state_of(&programs.save().ok()?))
}

/// Why nothing can be said about rules the iptables programs know.
#[derive(Debug, thiserror::Error)]
pub enum ListedError {
    /// They cannot be listed.
    #[error(transparent)]
    Programs(#[from] IptablesError),
    /// They are not all ours.
    #[error("understand the rules of this network namespace")]
    Foreign(#[from] Foreign),
}

/// The plan that rules put in by the iptables programs carry out, ours or Istio's; none if there are none.
///
/// Without the routing part, which is not theirs.
pub fn plan() -> Result<Option<Plan>, ListedError> {
    let mut found = [Vec::new(), Vec::new()];
    for (family, rules) in [Family::V4, Family::V6].into_iter().zip(&mut found) {
        for programs in Programs::present(None, family, None) {
            let listed = listed::rules(&programs.save()?)?;
            // `iptables` is one of the other two under another name.
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

/// The text that would remove everything of ours from what `iptables-save` printed.
pub fn removal(saved: &str) -> String {
    text::replacement(saved, &[], None)
}

/// Whether the legacy programs have been used in this namespace.
pub fn has_legacy_tables() -> bool {
    [Family::V4, Family::V6]
        .into_iter()
        .any(program::has_legacy_tables)
}

/// Removes our rules and chains, from whichever variant has them.
pub fn remove(settings: &Settings) -> Result<(), IptablesError> {
    for family in [Family::V4, Family::V6] {
        for programs in Programs::present(settings.backend, family, lock(settings)) {
            // A variant whose kernel side is missing has no rules of ours.
            let Ok(saved) = programs.save() else { continue };
            if text::has_remains(&saved) {
                programs.restore(&text::replacement(&saved, &[], None))?;
            }
        }
    }
    Ok(())
}
