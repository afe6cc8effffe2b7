//! One run of the command with either back end: read the facts, compare, change if needed.

use crate::apply::{self, ApplyError, Nftables};
use crate::facts::{self, FactsError};
use crate::iptables::{self, IptablesError};
use crate::ruleset::ruleset;
use crate::verify::verify;
use remora_rules::intent::Intent;
use remora_rules::options::{Backend, InitialState, Settings};
use remora_rules::switch::State;
use remora_rules::{Plan, plan};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The facts about the host could not be read.
    #[error("look at the host")]
    Facts(#[from] FactsError),
    /// nftables, routes or addresses could not be changed.
    #[error("set traffic capture up")]
    Apply(#[from] ApplyError),
    /// The iptables programs failed.
    #[error("set traffic capture up with iptables")]
    Iptables(#[from] IptablesError),
}

impl InstallError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Facts(error) => error.hint(),
            Self::Apply(error) => error.hint(),
            Self::Iptables(error) => error.hint(),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The rules were installed already.
    Unchanged,
    /// The rules were installed, or replaced earlier rules of remora.
    Applied,
    /// Everything that remora had installed was removed.
    Removed,
}

/// The plan for the settings on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// What the settings ask to capture.
    pub intent: Intent,
    /// The rules that implement the intent.
    pub plan: Plan,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Reads the facts about the host and makes the plan for it.
pub fn prepare(settings: &Settings) -> Result<Prepared, InstallError> {
    let host = facts::read_facts(settings)?;
    let (intent, warnings) = settings.intent(&host);
    Ok(Prepared {
        plan: plan(&intent),
        intent,
        warnings,
    })
}

/// Installs the plan in the calling thread's network namespace.
pub fn install(settings: &Settings, plan: &Plan) -> Result<Outcome, InstallError> {
    match settings.backend.unwrap_or(Backend::Nftables) {
        Backend::Nftables => install_nftables(&mut Nftables::open()?, settings, plan),
        other => {
            apply::add_routes(plan)?;
            let outcome = iptables::install(other, settings, plan)?;
            apply::remove_routes(Some(plan))?;
            // Rules that the other back end may have installed would capture every connection twice.
            if let Ok(mut nftables) = Nftables::open()
                && let Ok(Some(_)) = nftables.installed()
            {
                nftables.remove()?;
            }
            Ok(outcome)
        }
    }
}

/// Installs the plan with nftables, over a connection that the caller keeps open.
pub fn install_nftables(
    nftables: &mut Nftables,
    settings: &Settings,
    plan: &Plan,
) -> Result<Outcome, InstallError> {
    let mut numbered = plan.clone();
    facts::resolve_owners(&mut numbered)?;
    let wanted = ruleset(&numbered);
    let there = nftables.installed()?;
    let current = there.as_ref().and_then(|there| there.state);
    let state = match settings.state {
        InitialState::Set(state) => state,
        InitialState::Keep => current.unwrap_or(State::Closed),
    };
    let fresh = there.is_none();
    let same = there.is_some_and(|there| there.comment == wanted.comment())
        && !settings.force_apply
        && verify(nftables, &wanted)?.is_empty();
    // Routes before rules: a marked packet must find its table from the first one on.
    apply::add_routes(&numbered)?;
    let outcome = if !same {
        if !(fresh && nftables.create(&wanted, state)?) {
            nftables.replace(&wanted, state)?;
        }
        Outcome::Applied
    } else if current == Some(state) {
        Outcome::Unchanged
    } else {
        nftables.switch(state)?;
        Outcome::Applied
    };
    apply::remove_routes(Some(&numbered))?;
    // Rules that the other back end or Istio may have installed would capture every connection twice.
    if nftables.has_iptables_chains()? || iptables::has_legacy_tables() {
        iptables::remove(settings)?;
    }
    Ok(outcome)
}

/// Flips the switch in the calling thread's namespace, for either back end.
pub fn switch(state: State) -> Result<(), InstallError> {
    match Nftables::open()?.switch(state) {
        Err(ApplyError::NotInstalled) if iptables::switch(state)? => Ok(()),
        other => Ok(other?),
    }
}

/// Removes everything that remora installed in the calling thread's namespace, with either back end.
pub fn remove(settings: &Settings) -> Result<Outcome, InstallError> {
    let mut nftables = Nftables::open()?;
    match nftables.installed() {
        Ok(Some(_)) => nftables.remove()?,
        Err(error) if error.is_permission() => return Err(error.into()),
        // A kernel without nf_tables has no nftables rules to remove.
        Ok(None) | Err(_) => {}
    }
    iptables::remove(settings)?;
    apply::remove_routes(None)?;
    Ok(Outcome::Removed)
}
