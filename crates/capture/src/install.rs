//! One run of the command, whichever back end: find out, compare, change if needed.

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
    /// The host could not be looked at.
    #[error("look at the host")]
    Facts(#[from] FactsError),
    /// nftables, routes or addresses.
    #[error("set traffic capture up")]
    Apply(#[from] ApplyError),
    /// The iptables programs.
    #[error("set traffic capture up with iptables")]
    Iptables(#[from] IptablesError),
}

impl InstallError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Facts(error) => error.hint(),
            Self::Apply(error) => error.hint(),
            Self::Iptables(error) => error.hint(),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was as it should be.
    Unchanged,
    /// The rules were put in, or replaced others of ours.
    Applied,
    /// Everything of ours was removed.
    Removed,
}

/// What the settings mean on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// What to do.
    pub intent: Intent,
    /// The rules that do it.
    pub plan: Plan,
    /// What is worth a word.
    pub warnings: Vec<String>,
}

/// Looks at the host and plans for it.
pub fn prepare(settings: &Settings) -> Result<Prepared, InstallError> {
    let host = facts::gather(settings)?;
    let (intent, warnings) = settings.intent(&host);
    Ok(Prepared {
        plan: plan(&intent),
        intent,
        warnings,
    })
}

/// Puts the plan into the calling thread's namespace.
pub fn install(settings: &Settings, plan: &Plan) -> Result<Outcome, InstallError> {
    match settings.backend.unwrap_or(Backend::Nftables) {
        Backend::Nftables => install_nftables(&mut Nftables::open()?, settings, plan),
        other => {
            apply::add_routes(plan)?;
            let outcome = iptables::install(other, settings, plan)?;
            apply::remove_routes(Some(plan))?;
            // What the other back end may have put in would capture everything twice.
            if let Ok(mut nftables) = Nftables::open()
                && let Ok(Some(_)) = nftables.installed()
            {
                nftables.remove()?;
            }
            Ok(outcome)
        }
    }
}

/// Puts the plan in by nftables, over a connection that the caller keeps.
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
    // What the other back end, or Istio itself, may have put in would capture everything twice.
    if nftables.has_iptables_chains()? || iptables::has_legacy_tables() {
        iptables::remove(settings)?;
    }
    Ok(outcome)
}

/// Flips the switch of the calling thread's namespace, whichever back end put it there.
pub fn switch(state: State) -> Result<(), InstallError> {
    match Nftables::open()?.switch(state) {
        Err(ApplyError::NotInstalled) if iptables::switch(state)? => Ok(()),
        other => Ok(other?),
    }
}

/// Removes everything of ours from the calling thread's namespace, whichever back end put it there.
pub fn remove(settings: &Settings) -> Result<Outcome, InstallError> {
    let mut nftables = Nftables::open()?;
    match nftables.installed() {
        Ok(Some(_)) => nftables.remove()?,
        Err(error) if error.is_permission() => return Err(error.into()),
        // A kernel without nf_tables has no rules of ours in it.
        Ok(None) | Err(_) => {}
    }
    iptables::remove(settings)?;
    apply::remove_routes(None)?;
    Ok(Outcome::Removed)
}
