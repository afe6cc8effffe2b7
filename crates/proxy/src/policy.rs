//! Decides whether a connection may be. Pure.
//!
//! 1. A policy that should apply but is missing or not understood: denied.
//! 2. A DENY policy matches: denied.
//! 3. No ALLOW policy applies: allowed.
//! 4. An ALLOW policy matches: allowed; otherwise denied.
//!
//! Within a policy rules are alternatives, clauses of a rule all hold, matches of a clause are alternatives, kinds of
//! a match all hold, values of a kind are alternatives. A policy without rules matches nothing.
//!
//! differs from istio: a match without any condition is ignored there; here it counts as matching in a DENY policy
//! and as not matching in an ALLOW policy, because a proxy that is unsure must refuse.

use remora_mtls::SpiffeId;
use remora_xds::proto::security as proto;
use remora_xds::proto::security::string_match::MatchType;
use std::fmt;
use std::net::IpAddr;

/// What is known of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Who opened it; nobody when it is not encrypted.
    pub source: Option<SpiffeId>,
    /// From where.
    pub source_ip: IpAddr,
    /// To where.
    pub destination_ip: IpAddr,
    /// To which port of the workload.
    pub destination_port: u16,
}

/// What was decided, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be.
    Allow,
    /// It may not, because of this.
    Deny(String),
}

/// What was decided, by which rule, and what would have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// What holds.
    pub verdict: Verdict,
    /// The policy and the number of the rule that decided; nothing where no rule did.
    pub by: Option<Rule>,
    /// What would hold if policies on trial were in force, where that is something else.
    pub dry_run: Option<Verdict>,
}

/// A rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: String,
    /// From 1, in the order of the author's policy; nothing where the rule stands in for what is not understood.
    pub number: Option<usize>,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{} rule {number}", self.policy),
            None => f.write_str(&self.policy),
        }
    }
}

/// A policy that a judgement rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: String,
    /// Whether a match denies.
    pub denies: bool,
    /// How it took part.
    pub part: Part,
    /// Field, fault and consequence of what is not enforced as the author wrote it, if the control plane says so.
    pub not_enforced: Vec<String>,
}

/// How a policy took part in a judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It decided: by this rule of the author, or as a whole.
    Decided(Option<usize>),
    /// None of its rules matches. So many there are.
    NoMatch(usize),
    /// It is the `PeerAuthentication` that the deciding policy was made of.
    Origin,
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = if self.denies { "DENY" } else { "ALLOW" };
        let Self { policy, .. } = self;
        match self.part {
            Part::Decided(Some(number)) => write!(f, "{action} policy {policy}: rule {number} matches"),
            Part::Decided(None) => write!(f, "{action} policy {policy} matches"),
            Part::NoMatch(0) => write!(f, "{action} policy {policy}: it has no rule that can match"),
            Part::NoMatch(1) => write!(f, "{action} policy {policy}: its rule does not match"),
            Part::NoMatch(rules) => write!(f, "{action} policy {policy}: none of its {rules} rules matches"),
            Part::Origin => write!(f, "PeerAuthentication {policy}: mutual TLS is required"),
        }
    }
}

/// Whom a policy protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everybody.
    Global,
    /// Its namespace.
    Namespace,
    /// Those that name it.
    Workload,
}

/// A policy that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `NAMESPACE/NAME`.
    pub key: String,
    /// Where it lives.
    pub namespace: String,
    /// Whom it protects.
    pub scope: Scope,
    deny: bool,
    dry_run: bool,
    rules: Vec<proto::Rule>,
    translation: proto::Translation,
}

/// A policy that is not understood, and so cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// An action of a newer version.
    #[error("action {0} is not known")]
    Action(i32),
    /// A scope of a newer version.
    #[error("scope {0} is not known")]
    Scope(i32),
    /// An address that is none.
    #[error("an address range of {bytes} bytes and length {length} is none")]
    Range {
        /// Bytes of the address.
        bytes: usize,
        /// Bits that count.
        length: u32,
    },
    /// A way of comparing texts of a newer version.
    #[error("a way of comparing texts is not known")]
    Text,
}

impl Policy {
    /// Checks everything, so that evaluation cannot fail.
    pub fn new(message: proto::Authorization) -> Result<Self, PolicyError> {
        let deny = match proto::Action::try_from(message.action) {
            Ok(proto::Action::Allow) => false,
            Ok(proto::Action::Deny) => true,
            Err(_) => return Err(PolicyError::Action(message.action)),
        };
        let scope = match proto::Scope::try_from(message.scope) {
            Ok(proto::Scope::Global) => Scope::Global,
            Ok(proto::Scope::Namespace) => Scope::Namespace,
            Ok(proto::Scope::WorkloadSelector) => Scope::Workload,
            Err(_) => return Err(PolicyError::Scope(message.scope)),
        };
        let clauses = message.rules.iter().flat_map(|rule| &rule.clauses);
        clauses.flat_map(|clause| &clause.matches).try_for_each(check)?;
        Ok(Self {
            key: format!("{}/{}", message.namespace, message.name),
            namespace: message.namespace,
            scope,
            deny,
            dry_run: message.dry_run,
            rules: message.rules,
            translation: message.translation.unwrap_or_default(),
        })
    }

    /// The first rule that matches.
    fn matches(&self, connection: &Connection) -> Option<Rule> {
        let one = |m: &proto::Match| {
            if *m == proto::Match::default() {
                self.deny
            } else {
                holds(m, connection)
            }
        };
        let clause = |c: &proto::Clause| match c.matches.as_slice() {
            [] => self.deny,
            matches => matches.iter().any(one),
        };
        let found = self
            .rules
            .iter()
            .position(|rule| rule.clauses.iter().all(clause))?;
        Some(Rule {
            policy: self.key.clone(),
            number: self.number(found),
        })
    }

    /// The number of a rule in the author's policy.
    fn number(&self, index: usize) -> Option<usize> {
        if self.translation.synthetic_rules {
            return None;
        }
        // In order, so each one moves those behind it.
        let mut number = index;
        for left_out in &self.translation.left_out_rules {
            let before = usize::try_from(*left_out).is_ok_and(|left_out| left_out <= number);
            number += usize::from(before);
        }
        Some(number + 1)
    }

    /// What is not enforced as the author wrote it: field, fault and consequence of each part.
    pub fn not_enforced(&self) -> &[String] {
        &self.translation.not_enforced
    }

    /// The `PeerAuthentication` it was made of, `NAMESPACE/NAME`; empty for other policies.
    pub fn peer_authentication(&self) -> &str {
        &self.translation.peer_authentication
    }

    fn ground(&self, part: Part) -> Ground {
        Ground {
            policy: self.key.clone(),
            denies: self.deny,
            part,
            not_enforced: self.not_enforced().to_vec(),
        }
    }

    /// Whether a match denies.
    pub fn denies(&self) -> bool {
        self.deny
    }

    /// Whether it only says what it would do.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Its rules, as discovery sent them.
    pub fn rules(&self) -> &[proto::Rule] {
        &self.rules
    }
}

/// Decides over the policies that apply to a workload.
pub fn decide<'a>(policies: impl Iterator<Item = &'a Policy> + Clone, connection: &Connection) -> Verdict {
    judge(policies, connection).verdict
}

/// Decides, and says by what; also what policies on trial would have decided.
pub fn judge<'a>(policies: impl Iterator<Item = &'a Policy> + Clone, connection: &Connection) -> Judgement {
    let on_trial = policies.clone().any(|policy| policy.dry_run);
    let (verdict, by) = weigh(policies.clone().filter(|policy| !policy.dry_run), connection);
    let dry_run = on_trial
        .then(|| weigh(policies, connection).0)
        .filter(|other| *other != verdict);
    Judgement { verdict, by, dry_run }
}

/// The policies that a judgement rests on: the one that decided, or those of which none allows.
pub fn grounds<'a>(policies: impl Iterator<Item = &'a Policy>, judgement: &Judgement) -> Vec<Ground> {
    let in_force = policies.filter(|policy| !policy.dry_run);
    match (&judgement.by, &judgement.verdict) {
        (Some(rule), _) => {
            let decided = in_force.filter(|policy| policy.key == rule.policy);
            let part = Part::Decided(rule.number);
            decided.map(|policy| policy.ground(part)).collect()
        }
        (None, Verdict::Deny(_)) => {
            let allowing = in_force.filter(|policy| !policy.deny);
            let ground = |policy: &Policy| policy.ground(Part::NoMatch(policy.rules.len()));
            allowing.map(ground).collect()
        }
        (None, Verdict::Allow) => Vec::new(),
    }
}

fn weigh<'a>(
    policies: impl Iterator<Item = &'a Policy> + Clone,
    connection: &Connection,
) -> (Verdict, Option<Rule>) {
    let mut denying = policies.clone().filter(|policy| policy.deny);
    if let Some(rule) = denying.find_map(|policy| policy.matches(connection)) {
        return (Verdict::Deny(format!("denied by {}", rule.policy)), Some(rule));
    }
    let mut allowing = policies.filter(|policy| !policy.deny).peekable();
    if allowing.peek().is_none() {
        return (Verdict::Allow, None);
    }
    match allowing.find_map(|policy| policy.matches(connection)) {
        Some(rule) => (Verdict::Allow, Some(rule)),
        None => (Verdict::Deny("no policy allows it".to_owned()), None),
    }
}

fn check(m: &proto::Match) -> Result<(), PolicyError> {
    let texts = [&m.namespaces, &m.not_namespaces, &m.principals, &m.not_principals];
    if texts
        .iter()
        .any(|list| list.iter().any(|text| text.match_type.is_none()))
    {
        return Err(PolicyError::Text);
    }
    let ranges = [
        &m.source_ips,
        &m.not_source_ips,
        &m.destination_ips,
        &m.not_destination_ips,
    ];
    for range in ranges.into_iter().flatten() {
        let (bytes, length) = (range.address.len(), range.length);
        let bits = if bytes == 4 { 32 } else { 128 };
        if !matches!(bytes, 4 | 16) || length > bits {
            return Err(PolicyError::Range { bytes, length });
        }
    }
    Ok(())
}

fn holds(m: &proto::Match, connection: &Connection) -> bool {
    let principal = connection.source.as_ref().map(SpiffeId::principal);
    let account = connection.source.as_ref().and_then(SpiffeId::service_account);
    let namespace = account.map(|(namespace, _)| namespace);
    let named = |a: &proto::ServiceAccountMatch| account == Some((&*a.namespace, &*a.service_account));
    let port = u32::from(connection.destination_port);
    kind(&m.namespaces, &m.not_namespaces, |t| text(t, namespace))
        && kind(&m.principals, &m.not_principals, |t| text(t, principal))
        && kind(&m.service_accounts, &m.not_service_accounts, named)
        && kind(&m.source_ips, &m.not_source_ips, |r| {
            within(r, connection.source_ip)
        })
        && kind(&m.destination_ips, &m.not_destination_ips, |r| {
            within(r, connection.destination_ip)
        })
        && kind(&m.destination_ports, &m.not_destination_ports, |p| *p == port)
}

fn kind<T>(any: &[T], none: &[T], matches: impl Fn(&T) -> bool) -> bool {
    (any.is_empty() || any.iter().any(&matches)) && !none.iter().any(&matches)
}

fn text(pattern: &proto::StringMatch, value: Option<&str>) -> bool {
    // istio: policies may write principals with or without the scheme.
    let bare = |text: &str| text.strip_prefix("spiffe://").unwrap_or(text).to_owned();
    match (&pattern.match_type, value) {
        (_, None) | (None, _) => false,
        (Some(MatchType::Exact(exact)), Some(value)) => bare(exact) == value,
        (Some(MatchType::Prefix(prefix)), Some(value)) => value.starts_with(&bare(prefix)),
        (Some(MatchType::Suffix(suffix)), Some(value)) => value.ends_with(suffix),
        (Some(MatchType::Presence(_)), Some(value)) => !value.is_empty(),
    }
}

fn within(range: &proto::Address, address: IpAddr) -> bool {
    let bits = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte))
    };
    let octets = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    if octets.len() != range.address.len() {
        return false;
    }
    let width = u32::try_from(octets.len() * 8).unwrap_or(128);
    let shift = width.saturating_sub(range.length);
    // A length of 0 is everything; shifting all 128 bits out is not defined.
    shift >= 128 || bits(&octets) >> shift == bits(&range.address) >> shift
}

#[cfg(test)]
mod tests;
