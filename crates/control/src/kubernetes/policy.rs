//! Istio's policies, as far as a proxy of connections can keep them.
//!
//! What such a proxy cannot see (methods, paths, headers, tokens of requests) makes a rule that allows never match and
//! a rule that denies match without it: in doubt, closed.

use crate::mesh::{self, Action, Match, Rule, Scope};
use remora_pod::selector::Selector;
use remora_pod::{object, view};
use serde_json::{Map, Value};

/// A policy and whom it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) document: mesh::Policy,
    /// `None`: nobody in particular, its scope says it all.
    selector: Option<Selector>,
}

impl Policy {
    /// Whether a workload of its namespace must name it.
    pub(super) fn selects(&self, labels: &Map<String, Value>) -> bool {
        self.selector
            .as_ref()
            .is_some_and(|selector| selector.matches(Some(labels)))
    }
}

/// An `AuthorizationPolicy`. `None`: it neither allows nor denies anything (audit, or another's decision).
pub(super) fn of_authorization(document: &Value, root: &str) -> Option<Policy> {
    let action = match view::text(document, &["spec", "action"]).unwrap_or("ALLOW") {
        "ALLOW" => Action::Allow,
        "DENY" => Action::Deny,
        _ => return None,
    };
    let dry = object::annotation(document, "istio.io/dry-run") == Some("true");
    let rules = view::list(document, &["spec", "rules"]);
    let mut translated: Vec<Rule> = rules.iter().filter_map(|rule| translate(rule, action)).collect();
    if rules.iter().any(is_empty) {
        translated = vec![anybody()];
    }
    let (scope, selector) = scope_of(document, root);
    Some(Policy {
        document: mesh::Policy {
            name: object::name(document).to_owned(),
            namespace: object::namespace(document).to_owned(),
            scope,
            action,
            dry_run: dry,
            rules: translated,
        },
        selector,
    })
}

/// A `PeerAuthentication` that demands certificates, as a denial of connections without one. `None`: it demands none.
pub(super) fn of_peer_authentication(document: &Value, root: &str) -> Option<Policy> {
    let mode = |at: &Value| at["mode"].as_str().map(str::to_owned);
    let general = mode(&document["spec"]["mtls"]).unwrap_or_default() == "STRICT";
    let ports = document["spec"]["portLevelMtls"].as_object();
    let by_port: Vec<(u16, bool)> = ports
        .into_iter()
        .flatten()
        .filter_map(|(port, value)| Some((port.parse().ok()?, mode(value)?.as_str() == "STRICT")))
        .collect();
    let listed = |strict: bool| -> Vec<u16> {
        by_port
            .iter()
            .filter(|(_, is)| *is == strict)
            .map(|(port, _)| *port)
            .collect()
    };
    let without = Match {
        not_principals: vec!["*".to_owned()],
        ..Match::default()
    };
    let to = if general {
        Match {
            not_ports: listed(false),
            ..Match::default()
        }
    } else {
        Match {
            ports: listed(true),
            ..Match::default()
        }
    };
    if !general && to.ports.is_empty() {
        return None;
    }
    let rule = Rule {
        from: vec![without],
        to: if to == Match::default() {
            Vec::new()
        } else {
            vec![to]
        },
        when: Vec::new(),
    };
    let (scope, selector) = scope_of(document, root);
    Some(Policy {
        document: mesh::Policy {
            // istio: the names its control plane gives such translations.
            name: format!("converted_peer_authentication_{}", object::name(document)),
            namespace: object::namespace(document).to_owned(),
            scope,
            action: Action::Deny,
            dry_run: false,
            rules: vec![rule],
        },
        selector,
    })
}

/// Whom a policy is about, and its selector where it has one.
fn scope_of(document: &Value, root: &str) -> (Scope, Option<Selector>) {
    let labels = document["spec"]["selector"]["matchLabels"].as_object();
    match labels.filter(|labels| !labels.is_empty()) {
        Some(labels) => {
            let selector = serde_json::json!({"matchLabels": labels});
            // One that cannot be read selects everybody: in doubt, closed.
            let selector = Selector::parse(Some(&selector)).unwrap_or_default();
            (Scope::Workload, Some(selector))
        }
        None if object::namespace(document) == root => (Scope::Global, None),
        None => (Scope::Namespace, None),
    }
}

/// k8s: `rules: [{}]` matches everything.
fn is_empty(rule: &Value) -> bool {
    ["from", "to", "when"]
        .iter()
        .all(|field| view::list(rule, &[field]).is_empty())
}

fn anybody() -> Rule {
    let everything = Match {
        destination_ips: vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
        ..Match::default()
    };
    Rule {
        from: Vec::new(),
        to: vec![everything],
        when: Vec::new(),
    }
}

/// `None`: it can never match.
fn translate(rule: &Value, action: Action) -> Option<Rule> {
    let allows = action == Action::Allow;
    let foreign = |unseen: bool| unseen && allows;
    let mut from = Vec::new();
    for source in view::list(rule, &["from"]) {
        let source = &source["source"];
        if foreign(has(
            source,
            &[
                "requestPrincipals",
                "notRequestPrincipals",
                "remoteIpBlocks",
                "notRemoteIpBlocks",
            ],
        )) {
            continue;
        }
        from.push(Match {
            namespaces: texts(source, "namespaces"),
            not_namespaces: texts(source, "notNamespaces"),
            principals: texts(source, "principals"),
            not_principals: texts(source, "notPrincipals"),
            source_ips: texts(source, "ipBlocks"),
            not_source_ips: texts(source, "notIpBlocks"),
            ..Match::default()
        });
    }
    let mut to = Vec::new();
    for operation in view::list(rule, &["to"]) {
        let operation = &operation["operation"];
        let unseen = ["hosts", "notHosts", "methods", "notMethods", "paths", "notPaths"];
        if foreign(has(operation, &unseen)) {
            continue;
        }
        to.push(Match {
            ports: ports(operation, "ports"),
            not_ports: ports(operation, "notPorts"),
            ..Match::default()
        });
    }
    let missing = |field: &str, kept: &[Match]| kept.is_empty() && !view::list(rule, &[field]).is_empty();
    if missing("from", &from) || missing("to", &to) {
        return None;
    }
    let when = conditions(rule, allows)?;
    // Alternatives of which one matches everything: the list decides nothing.
    for list in [&mut from, &mut to] {
        if list.contains(&Match::default()) {
            list.clear();
        }
    }
    if from.is_empty() && to.is_empty() && when.is_empty() {
        return Some(anybody());
    }
    Some(Rule { from, to, when })
}

/// The conditions of `when`, all of which must hold. `None`: one of them cannot be seen, and the rule allows.
fn conditions(rule: &Value, allows: bool) -> Option<Vec<Match>> {
    let mut all = Vec::new();
    for condition in view::list(rule, &["when"]) {
        let mut seen = Match::default();
        let (values, not_values) = (texts(condition, "values"), texts(condition, "notValues"));
        match condition["key"].as_str() {
            Some("source.principal") => (seen.principals, seen.not_principals) = (values, not_values),
            Some("source.namespace") => (seen.namespaces, seen.not_namespaces) = (values, not_values),
            Some("source.ip") => (seen.source_ips, seen.not_source_ips) = (values, not_values),
            Some("destination.ip") => (seen.destination_ips, seen.not_destination_ips) = (values, not_values),
            Some("destination.port") => {
                (seen.ports, seen.not_ports) = (ports(condition, "values"), ports(condition, "notValues"));
            }
            _ if allows => return None,
            _ => {}
        }
        all.push(seen);
    }
    all.retain(|m| *m != Match::default());
    Some(all)
}

fn has(value: &Value, fields: &[&str]) -> bool {
    fields.iter().any(|field| !view::list(value, &[field]).is_empty())
}

fn texts(value: &Value, field: &str) -> Vec<String> {
    let list = view::list(value, &[field]).iter();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn ports(value: &Value, field: &str) -> Vec<u16> {
    let list = view::list(value, &[field]).iter();
    list.filter_map(|port| port.as_str()?.parse().ok()).collect()
}
