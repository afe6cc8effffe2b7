//! The policies of a cluster, and which workloads name them.

use super::conditions::Verdict;
use super::status_writer::Verdicts;
use super::world::{Key, Kind};
use crate::mesh::{Document, Name, Policy};
use crate::policy::peer_authentication::{self, Candidates, Demand, PeerAuthentication};
use crate::policy::{Authorization, Mesh, Problem, authorization};
use remora_mtls::TrustDomains;
use remora_pod::object;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// What became different, by name.
pub(super) type Changes = Vec<(Name, Option<Document>)>;

/// The pods that may name other policies now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Affected {
    Nothing,
    Namespace(String),
    Everything,
}

/// A policy as it is enforced, for its author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which kind of policy.
    pub kind: Kind,
    /// Which one.
    pub key: Key,
    /// `metadata.generation`: what the author wrote, without its status.
    pub generation: i64,
    /// What is not enforced as written. Empty: everything is.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = &self.key;
        write!(f, "{:?} {namespace}/{name}", self.kind)?;
        if self.problems.is_empty() {
            return f.write_str(" is enforced as written");
        }
        f.write_str(" is not enforced as written")?;
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "{} {problem}", if index == 0 { ":" } else { "." })?;
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Policies {
    mesh: Mesh,
    authorizations: BTreeMap<Key, Attached>,
    peers: BTreeMap<Key, PeerAuthentication>,
    /// What the peer authentications became, by name, as it was last told.
    converted: BTreeMap<String, Policy>,
    peers_changed: bool,
    /// What was reported of each, and what is still to be reported.
    reported: BTreeMap<(Kind, Key), (i64, Vec<Problem>)>,
    reports: Vec<Report>,
    /// What the status of each policy that changed must say.
    verdicts: Verdicts,
}

/// An authorization policy and what it was made of: it is translated again when the trust domains change.
#[derive(Debug)]
struct Attached {
    source: Value,
    translated: Authorization,
}

impl Policies {
    pub(super) fn new(mesh: Mesh) -> Self {
        Self {
            mesh,
            authorizations: BTreeMap::new(),
            peers: BTreeMap::new(),
            converted: BTreeMap::new(),
            peers_changed: false,
            reported: BTreeMap::new(),
            reports: Vec::new(),
            verdicts: Verdicts::new(),
        }
    }

    pub(super) fn put_authorization(&mut self, key: Key, document: &Value) -> (Changes, Affected) {
        let translated = authorization::translate(document, &self.mesh);
        self.note(Kind::AuthorizationPolicy, &key, document, &translated.problems);
        let source = slimmed(document);
        self.attach(key, source, translated)
    }

    fn attach(&mut self, key: Key, source: Value, translated: Authorization) -> (Changes, Affected) {
        let before = self.authorizations.get(&key).map(|attached| &attached.translated);
        if before == Some(&translated) {
            self.authorizations.insert(key, Attached { source, translated });
            return (Vec::new(), Affected::Nothing);
        }
        let selects = |policy: &Authorization| policy.selector.is_some();
        let named = selects(&translated) || before.is_some_and(selects);
        let known = before.is_some_and(|before| before.policy.is_some());
        let next = translated.policy.clone().map(Document::Policy);
        let changes = if next.is_some() || known {
            vec![(policy_name(&key), next)]
        } else {
            Vec::new()
        };
        let affected = self.affected(&key, named);
        self.authorizations.insert(key, Attached { source, translated });
        (changes, affected)
    }

    pub(super) fn put_peer(&mut self, key: Key, document: &Value) -> Affected {
        let (policy, problems) = peer_authentication::read(document, &self.mesh.root_namespace);
        self.note(Kind::PeerAuthentication, &key, document, &problems);
        if self.peers.get(&key) == Some(&policy) {
            return Affected::Nothing;
        }
        let affected = self.affected(&key, true);
        self.peers.insert(key, policy);
        self.peers_changed = true;
        affected
    }

    pub(super) fn remove(&mut self, kind: Kind, key: &Key) -> (Changes, Affected) {
        self.reported.remove(&(kind, key.clone()));
        self.verdicts.insert((kind, key.clone()), None);
        let nothing = (Vec::new(), Affected::Nothing);
        if kind == Kind::PeerAuthentication {
            if self.peers.remove(key).is_none() {
                return nothing;
            }
            self.peers_changed = true;
            return (Vec::new(), self.affected(key, true));
        }
        let Some(Attached { translated, .. }) = self.authorizations.remove(key) else {
            return nothing;
        };
        let gone = translated.policy.map(|_| (policy_name(key), None));
        let affected = self.affected(key, translated.selector.is_some());
        (gone.into_iter().collect(), affected)
    }

    pub(super) fn keys(&self, kind: Kind) -> Vec<Key> {
        if kind == Kind::PeerAuthentication {
            self.peers.keys().cloned().collect()
        } else {
            self.authorizations.keys().cloned().collect()
        }
    }

    /// Whether workloads name it, or did.
    fn affected(&self, (namespace, _): &Key, named: bool) -> Affected {
        if !named {
            Affected::Nothing
        } else if *namespace == self.mesh.root_namespace {
            Affected::Everything
        } else {
            Affected::Namespace(namespace.clone())
        }
    }

    /// Other trust domains are those of the mesh: principals are expanded again.
    pub(super) fn trust(&mut self, trust_domains: TrustDomains) -> Vec<(Changes, Affected)> {
        if self.mesh.trust_domains == trust_domains {
            return Vec::new();
        }
        self.mesh.trust_domains = trust_domains;
        let all = std::mem::take(&mut self.authorizations);
        let mut updates = Vec::new();
        for (key, Attached { source, translated }) in all {
            let again = authorization::translate(&source, &self.mesh);
            self.note(Kind::AuthorizationPolicy, &key, &source, &again.problems);
            let kept = Attached {
                source: source.clone(),
                translated,
            };
            self.authorizations.insert(key.clone(), kept);
            updates.push(self.attach(key, source, again));
        }
        updates
    }

    /// What the peer authentications become, where that is different from before.
    pub(super) fn settle(&mut self) -> Changes {
        if !std::mem::take(&mut self.peers_changed) {
            return Vec::new();
        }
        let mut next = BTreeMap::new();
        let mut add = |policy: Policy| next.insert(format!("{}/{}", policy.namespace, policy.name), policy);
        // istio: there as soon as any peer authentication is, so that a workload that names it need not wait for it.
        if !self.peers.is_empty() {
            add(peer_authentication::static_strict(&self.mesh.root_namespace));
        }
        for ((namespace, _), peer) in &self.peers {
            let inherited = self.candidates(namespace).inherited();
            peer.document(inherited).map(&mut add);
        }
        let gone = self.converted.keys().filter(|name| !next.contains_key(*name));
        let gone: Changes = gone.map(|name| (Name::Policy(name.clone()), None)).collect();
        let fresh = next
            .iter()
            .filter(|(name, policy)| self.converted.get(*name) != Some(policy));
        let fresh = fresh.map(|(name, policy)| {
            let document = Document::Policy(policy.clone());
            (Name::Policy(name.clone()), Some(document))
        });
        let changes = gone.into_iter().chain(fresh).collect();
        self.converted = next;
        changes
    }

    /// The policies that a workload must name, and who requires mutual TLS.
    pub(super) fn demand(&self, namespace: &str, labels: &Map<String, Value>) -> Demand {
        let root = &self.mesh.root_namespace;
        let wide = (namespace != root).then(|| inside(&self.authorizations, root));
        let all = inside(&self.authorizations, namespace).chain(wide.into_iter().flatten());
        let selected = all.filter(|(_, attached)| {
            let selector = attached.translated.selector.as_ref();
            selector.is_some_and(|selector| selector.matches(Some(labels)))
        });
        let mut policies: Vec<String> = selected
            .map(|((namespace, name), _)| format!("{namespace}/{name}"))
            .collect();
        let peers = self.candidates(namespace).demand(labels);
        policies.extend(peers.policies);
        Demand { policies, ..peers }
    }

    fn candidates(&self, namespace: &str) -> Candidates<'_> {
        let root = &self.mesh.root_namespace;
        let own = inside(&self.peers, namespace).map(|(_, peer)| peer);
        let wide = inside(&self.peers, root).map(|(_, peer)| peer);
        Candidates::new(namespace, own, root, wide)
    }

    /// A policy was seen. It is reported when it is new or different; its status is compared each time, because other
    /// clients write it as well.
    fn note(&mut self, kind: Kind, key: &Key, document: &Value, problems: &[Problem]) {
        let generation = generation(document);
        let now = (generation, problems.to_vec());
        let place = (kind, key.clone());
        let verdict = Verdict::new(document, problems);
        self.verdicts.insert(place.clone(), Some(verdict));
        if self.reported.get(&place) != Some(&now) {
            self.reported.insert(place, now);
            self.reports.push(Report {
                kind,
                key: key.clone(),
                generation,
                problems: problems.to_vec(),
            });
        }
    }

    /// Policies that were seen for the first time or changed, since the last call.
    pub(super) fn reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Policies that were seen or removed since the last call, with what their status says and must say.
    pub(super) fn verdicts(&mut self) -> Verdicts {
        std::mem::take(&mut self.verdicts)
    }
}

fn inside<'a, T>(
    all: &'a BTreeMap<Key, T>,
    namespace: &str,
) -> impl Iterator<Item = (&'a Key, &'a T)> + use<'a, T> {
    let from = (namespace.to_owned(), String::new());
    let namespace = namespace.to_owned();
    all.range(from..)
        .take_while(move |((there, _), _)| *there == namespace)
}

/// The document that proxies get of a policy.
pub(super) fn document_name(kind: Kind, key: &Key) -> Name {
    let (namespace, name) = key;
    match kind {
        Kind::PeerAuthentication => Name::Policy(format!(
            "{namespace}/{}",
            peer_authentication::converted_name(name)
        )),
        _ => policy_name(key),
    }
}

fn policy_name((namespace, name): &Key) -> Name {
    Name::Policy(format!("{namespace}/{name}"))
}

pub(super) fn generation(document: &Value) -> i64 {
    document["metadata"]["generation"].as_i64().unwrap_or_default()
}

/// What a translation depends on, and what its status condition depends on.
fn slimmed(document: &Value) -> Value {
    let mut slim = json!({"metadata": {
        "name": object::name(document),
        "namespace": object::namespace(document),
        "generation": generation(document),
        "resourceVersion": document["metadata"]["resourceVersion"],
        "annotations": document["metadata"]["annotations"],
    }});
    if let Some(spec) = document.get("spec") {
        slim["spec"] = spec.clone();
    }
    if let Some(conditions) = document["status"].get("conditions") {
        slim["status"] = json!({"conditions": conditions});
    }
    slim
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
