//! Policies: who may connect to whom.

use super::{MeshError, Visibility, octets};
use crate::policy::Consequence;
use remora_xds::proto::security as proto;
use remora_xds::proto::security::string_match::MatchType;
use serde::Deserialize;
use std::net::IpAddr;

/// Allows or denies connections that one of its rules matches.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Whom it protects.
    #[serde(default)]
    pub scope: Scope,
    /// Which proxies are sent a policy that is not global: those of its namespace, or all, because workloads of other
    /// namespaces name it.
    #[serde(default = "own_namespace")]
    pub visibility: Visibility,
    /// What a match means.
    #[serde(default)]
    pub action: Action,
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// Any of them. None at all: the policy matches nothing.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// How it was made, for explanations.
    #[serde(skip)]
    pub translation: Translation,
}

/// How the author's policy became the one that proxies enforce. It decides about no connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translation {
    /// Field, fault and consequence of what is not enforced as written.
    pub not_enforced: Vec<String>,
    /// The author's rules that are missing, by index, in order.
    pub left_out_rules: Vec<u32>,
    /// The rules are not the author's.
    pub synthetic_rules: bool,
    /// The `PeerAuthentication` it was made of, `NAMESPACE/NAME`; empty for other policies.
    pub peer_authentication: String,
}

impl Translation {
    fn encode(&self) -> Option<proto::Translation> {
        (*self != Self::default()).then(|| proto::Translation {
            not_enforced: self.not_enforced.clone(),
            left_out_rules: self.left_out_rules.clone(),
            synthetic_rules: self.synthetic_rules,
            peer_authentication: self.peer_authentication.clone(),
        })
    }
}

fn own_namespace() -> Visibility {
    Visibility::Namespace
}

/// Whom a policy protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All workloads of the mesh.
    Global,
    /// All of its namespace.
    #[default]
    Namespace,
    /// The workloads that name it.
    Workload,
}

/// What a match means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// The connection is allowed; others are not.
    #[default]
    Allow,
    /// The connection is denied, whatever else allows it.
    Deny,
}

/// All lists that are given must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Any of these callers.
    #[serde(default)]
    pub from: Vec<Match>,
    /// Any of these destinations.
    #[serde(default)]
    pub to: Vec<Match>,
    /// All of these, besides.
    #[serde(default)]
    pub when: Vec<Match>,
}

/// All kinds that are given must match, by any of their values. Texts may be `*` (anything present), `x*`, `*x`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Match {
    /// Namespaces of callers.
    pub namespaces: Vec<String>,
    /// None of these.
    pub not_namespaces: Vec<String>,
    /// Callers, as `TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
    pub principals: Vec<String>,
    /// None of these.
    pub not_principals: Vec<String>,
    /// Accounts of callers, `NAMESPACE/ACCOUNT`, of any trust domain.
    pub service_accounts: Vec<String>,
    /// None of these.
    pub not_service_accounts: Vec<String>,
    /// Where connections come from, `ADDRESS` or `ADDRESS/LENGTH`.
    pub source_ips: Vec<String>,
    /// None of these.
    pub not_source_ips: Vec<String>,
    /// Where they go to.
    pub destination_ips: Vec<String>,
    /// None of these.
    pub not_destination_ips: Vec<String>,
    /// Ports of the workload.
    pub ports: Vec<u16>,
    /// None of these.
    pub not_ports: Vec<u16>,
}

impl Policy {
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What is served where the policy cannot be encoded: nothing is allowed, or everything is denied.
    pub(super) fn stand_in(&self, error: &MeshError) -> Self {
        let (rules, consequence) = match self.action {
            Action::Allow => (Vec::new(), Consequence::PolicyAllowsNothing),
            Action::Deny => (
                vec![crate::policy::authorization::anything()],
                Consequence::DeniesEverything,
            ),
        };
        Self {
            rules,
            translation: Translation {
                not_enforced: vec![format!("{error}; {consequence}")],
                synthetic_rules: true,
                ..self.translation.clone()
            },
            ..self.clone()
        }
    }

    pub(super) fn encode(&self) -> Result<proto::Authorization, MeshError> {
        let scope = match self.scope {
            Scope::Global => proto::Scope::Global,
            Scope::Namespace => proto::Scope::Namespace,
            Scope::Workload => proto::Scope::WorkloadSelector,
        };
        let action = match self.action {
            Action::Allow => proto::Action::Allow,
            Action::Deny => proto::Action::Deny,
        };
        let rules = self.rules.iter().map(|rule| self.rule(rule));
        Ok(proto::Authorization {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            scope: scope.into(),
            action: action.into(),
            rules: rules.collect::<Result<_, _>>()?,
            dry_run: self.dry_run,
            translation: self.translation.encode(),
        })
    }

    /// A rule or a match without conditions is refused: proxies disagree about what it means.
    fn rule(&self, rule: &Rule) -> Result<proto::Rule, MeshError> {
        let lists = [&rule.from, &rule.to];
        let empty = lists.iter().all(|list| list.is_empty()) && rule.when.is_empty()
            || lists.iter().any(|list| list.contains(&Match::default()))
            || rule.when.contains(&Match::default());
        if empty {
            return Err(MeshError::EmptyRule { name: self.key() });
        }
        let alternatives = lists
            .into_iter()
            .map(Vec::as_slice)
            .filter(|list| !list.is_empty());
        let besides = rule.when.iter().map(std::slice::from_ref);
        let clauses = alternatives.chain(besides).map(|list| {
            let matches = list.iter().map(Match::encode).collect::<Result<_, _>>()?;
            Ok(proto::Clause { matches })
        });
        Ok(proto::Rule {
            clauses: clauses.collect::<Result<_, MeshError>>()?,
        })
    }
}

impl Match {
    fn encode(&self) -> Result<proto::Match, MeshError> {
        let numbers = |ports: &[u16]| ports.iter().copied().map(u32::from).collect();
        Ok(proto::Match {
            namespaces: texts(&self.namespaces),
            not_namespaces: texts(&self.not_namespaces),
            principals: texts(&self.principals),
            not_principals: texts(&self.not_principals),
            service_accounts: accounts(&self.service_accounts)?,
            not_service_accounts: accounts(&self.not_service_accounts)?,
            source_ips: ranges(&self.source_ips)?,
            not_source_ips: ranges(&self.not_source_ips)?,
            destination_ips: ranges(&self.destination_ips)?,
            not_destination_ips: ranges(&self.not_destination_ips)?,
            destination_ports: numbers(&self.ports),
            not_destination_ports: numbers(&self.not_ports),
        })
    }
}

fn texts(patterns: &[String]) -> Vec<proto::StringMatch> {
    let pattern = |text: &String| {
        let kind = if text == "*" {
            MatchType::Presence(proto::Presence {})
        } else if let Some(prefix) = text.strip_suffix('*') {
            MatchType::Prefix(prefix.to_owned())
        } else if let Some(suffix) = text.strip_prefix('*') {
            MatchType::Suffix(suffix.to_owned())
        } else {
            MatchType::Exact(text.clone())
        };
        proto::StringMatch {
            match_type: Some(kind),
        }
    };
    patterns.iter().map(pattern).collect()
}

fn accounts(texts: &[String]) -> Result<Vec<proto::ServiceAccountMatch>, MeshError> {
    let account = |text: &String| match text.split_once('/') {
        Some((namespace, account)) if !namespace.is_empty() && !account.is_empty() => {
            Ok(proto::ServiceAccountMatch {
                namespace: namespace.to_owned(),
                service_account: account.to_owned(),
            })
        }
        _ => Err(MeshError::Account { text: text.clone() }),
    };
    texts.iter().map(account).collect()
}

fn ranges(texts: &[String]) -> Result<Vec<proto::Address>, MeshError> {
    texts.iter().map(|text| range(text)).collect()
}

/// Whether a text is an address, or an address and a length.
pub(crate) fn is_range(text: &str) -> bool {
    range(text).is_ok()
}

fn range(text: &str) -> Result<proto::Address, MeshError> {
    let failed = || MeshError::Range {
        text: text.to_owned(),
    };
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| failed())?;
    let longest: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => longest,
        // Digits only: Rust would also take a sign.
        Some(given) if !given.bytes().all(|byte| byte.is_ascii_digit()) => return Err(failed()),
        Some(given) => given.parse().ok().filter(|n| *n <= longest).ok_or_else(failed)?,
    };
    Ok(proto::Address {
        address: octets(address),
        length: length.into(),
    })
}
