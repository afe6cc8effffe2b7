//! `PeerAuthentication`: which workloads demand mutual TLS, on which ports.
//!
//! The narrowest one decides: mesh, namespace, workload, port. Of several with the same reach the oldest decides.
//! `UNSET` inherits. Without any, plaintext is accepted.
//!
//! As istiod does for ztunnel, a workload names the policies that follow: one that is the same for all workloads
//! ([`STATIC_STRICT`]), or one for the `PeerAuthentication` whose ports differ.

use super::problem::{Consequence, Fault, Problem, summary};
use super::reader::Reader;
use crate::mesh::{Action, Match, Policy, Rule, Scope, Translation, Visibility};
use remora_pod::path::Path;
use remora_pod::selector::Selector;
use remora_pod::{object, view};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// istio: the name of the policy of workloads that demand mutual TLS on all ports. Kubernetes names have no `_`.
pub const STATIC_STRICT: &str = "istio_converted_static_strict";

/// What is demanded of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What the wider policy demands.
    Unset,
    /// Plaintext and mutual TLS are both accepted.
    Permissive,
    /// Mutual TLS.
    Strict,
}

/// One that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAuthentication {
    name: String,
    namespace: String,
    /// The API server's time in UTC, which sorts as text.
    created: String,
    selector: Option<Selector>,
    /// Whether it is for single workloads: it has a selector, or may have been meant to have one.
    narrow: bool,
    mode: Mode,
    ports: BTreeMap<u16, Mode>,
    /// What is not enforced as written.
    not_enforced: Vec<String>,
    /// Who is sent what becomes of it.
    visibility: Visibility,
}

/// Reads a document, and says what is not enforced as written.
pub fn read(document: &Value, root_namespace: &str) -> (PeerAuthentication, Vec<Problem>) {
    let mut reader = Reader::new(Consequence::Strict);
    let at = Path::of(&["spec"]);
    let none = Map::new();
    let spec = match document.get("spec") {
        None | Some(Value::Null) => &none,
        Some(value) => reader
            .object(value, &at, &["selector", "mtls", "portLevelMtls"])
            .unwrap_or(&none),
    };
    let selector = reader.selector(spec, &at);
    let mode = mode(&mut reader, spec.get("mtls"), &at.join("mtls"));
    let ports = ports(&mut reader, spec.get("portLevelMtls"), &at.join("portLevelMtls"));
    // Whatever the part that was not understood was meant to say: it is not less than this.
    let understood = reader.problems.iter().all(|problem| !problem.fault.is_error());
    let mut read = PeerAuthentication {
        name: object::name(document).to_owned(),
        namespace: object::namespace(document).to_owned(),
        created: view::text(document, &["metadata", "creationTimestamp"])
            .unwrap_or_default()
            .to_owned(),
        // The selector may be what was not understood: then it is for every workload of its namespace, and no wider
        // policy takes precedence.
        narrow: !understood || !matches!(selector, Ok(None)),
        selector: selector.ok().flatten(),
        mode: if understood { mode } else { Mode::Strict },
        ports: if understood { ports } else { BTreeMap::new() },
        not_enforced: Vec::new(),
        visibility: if object::namespace(document) == root_namespace {
            Visibility::Public
        } else {
            Visibility::Namespace
        },
    };
    read.limit_reach(&mut reader, &at, root_namespace);
    read.not_enforced = summary(&reader.problems).lines();
    (read, reader.problems)
}

fn mode(reader: &mut Reader, mtls: Option<&Value>, at: &Path) -> Mode {
    let Some(mtls) = mtls.filter(|mtls| !mtls.is_null()) else {
        return Mode::Unset;
    };
    let mode = reader
        .object(mtls, at, &["mode"])
        .and_then(|mtls| mtls.get("mode"));
    let at = at.join("mode");
    match mode {
        None | Some(Value::Null) => Mode::Unset,
        Some(Value::String(mode)) => match mode.as_str() {
            "UNSET" => Mode::Unset,
            "PERMISSIVE" => Mode::Permissive,
            "STRICT" => Mode::Strict,
            "DISABLE" => {
                let fault = Fault::NotEnforced {
                    why: "mutual TLS stays possible where it is disabled",
                    remedy: "write PERMISSIVE, which is what is enforced",
                };
                reader.report_with(at, fault, Consequence::Permissive);
                Mode::Permissive
            }
            other => {
                let text = other.to_owned();
                let expected = "UNSET, DISABLE, PERMISSIVE or STRICT";
                reader.report(at, Fault::Value { text, expected });
                Mode::Strict
            }
        },
        Some(_) => {
            reader.report(at, Fault::Type { expected: "a string" });
            Mode::Strict
        }
    }
}

fn ports(reader: &mut Reader, value: Option<&Value>, at: &Path) -> BTreeMap<u16, Mode> {
    let mut ports = BTreeMap::new();
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return ports;
    };
    let Some(by_port) = value.as_object() else {
        reader.report(
            at.clone(),
            Fault::Type {
                expected: "an object",
            },
        );
        return ports;
    };
    if by_port.is_empty() {
        reader.report(at.clone(), Fault::Empty);
    }
    for (port, mtls) in by_port {
        let at = at.join(port.as_str());
        let mode = mode(reader, Some(mtls), &at);
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(number) = port.parse().ok().filter(|number| digits && *number > 0) {
            ports.insert(number, mode);
        } else {
            let text = port.clone();
            let expected = "a port number";
            reader.report(at, Fault::Value { text, expected });
        }
    }
    ports
}

/// The name of the policy that the ports of a `PeerAuthentication` become.
pub(crate) fn converted_name(name: &str) -> String {
    // istio: the name its control plane gives such a translation.
    format!("converted_peer_authentication_{name}")
}

impl PeerAuthentication {
    /// Ports are for policies with a selector, and selectors for namespaces other than the root. istio: elsewhere they
    /// are ignored. differs from istio: a demand for mutual TLS among what is ignored there holds for all ports.
    fn limit_reach(&mut self, reader: &mut Reader, at: &Path, root_namespace: &str) {
        let demands = |ports: &BTreeMap<u16, Mode>| ports.values().any(|mode| *mode == Mode::Strict);
        let consequence = |strict| {
            if strict {
                Consequence::Strict
            } else {
                Consequence::NoEffect
            }
        };
        if !self.narrow && !self.ports.is_empty() {
            let strict = demands(&self.ports);
            let fault = Fault::Conflict {
                why: "ports need a selector",
                remedy: "add a selector, or write mtls for all ports",
            };
            reader.report_with(at.join("portLevelMtls"), fault, consequence(strict));
            self.mode = if strict { Mode::Strict } else { self.mode };
            self.ports.clear();
        }
        if self.narrow && self.namespace == root_namespace {
            let strict = self.mode == Mode::Strict || demands(&self.ports);
            let fault = Fault::NotEnforced {
                why: "a selector in the root namespace can only require mutual TLS where no narrower policy decides",
                remedy: "move the policy to the namespace of the workloads",
            };
            reader.report_with(at.join("selector"), fault, consequence(strict));
            self.mode = if strict { Mode::Strict } else { Mode::Unset };
            self.ports.clear();
        }
    }

    fn selects(&self, labels: &Map<String, Value>) -> bool {
        self.selector
            .as_ref()
            .is_none_or(|selector| selector.matches(Some(labels)))
    }

    fn is_older(&self, other: &Self) -> bool {
        // istio: of the same age, by name.
        (&self.created, &self.name) < (&other.created, &other.name)
    }

    /// The name of the policy that its ports become.
    pub fn policy_name(&self) -> String {
        converted_name(&self.name)
    }

    /// The policy of the workloads it decides for, if some of their ports differ from the others. `inherited` is what
    /// wider policies demand.
    pub fn policy(&self, inherited: Mode) -> Option<Policy> {
        let general = self.mode.or(inherited);
        let differing: Vec<u16> = self
            .ports
            .iter()
            .filter(|(_, mode)| (mode.or(general) == Mode::Strict) != (general == Mode::Strict))
            .map(|(port, _)| *port)
            .collect();
        if differing.is_empty() {
            return None;
        }
        let to = if general == Mode::Strict {
            Match {
                not_ports: differing,
                ..Match::default()
            }
        } else {
            Match {
                ports: differing,
                ..Match::default()
            }
        };
        Some(self.converted(vec![Rule {
            to: vec![to],
            ..unauthenticated()
        }]))
    }

    /// What proxies are sent of it: the policy of workloads whose ports differ, or, where that is the same for all
    /// workloads, what is not enforced as written. The latter is for explanations; it has no rules, and no workload
    /// names it.
    pub fn document(&self, inherited: Mode) -> Option<Policy> {
        let told = || (!self.not_enforced.is_empty()).then(|| self.converted(Vec::new()));
        self.policy(inherited).or_else(told)
    }

    fn converted(&self, rules: Vec<Rule>) -> Policy {
        Policy {
            name: self.policy_name(),
            namespace: self.namespace.clone(),
            scope: Scope::Workload,
            visibility: self.visibility,
            action: Action::Deny,
            dry_run: false,
            rules,
            translation: Translation {
                not_enforced: self.not_enforced.clone(),
                synthetic_rules: true,
                peer_authentication: format!("{}/{}", self.namespace, self.name),
                ..Translation::default()
            },
        }
    }
}

impl Mode {
    fn or(self, inherited: Self) -> Self {
        if self == Self::Unset { inherited } else { self }
    }
}

/// What is demanded of connections to a workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// The policies that the workload names.
    pub policies: Vec<String>,
    /// The one that requires mutual TLS, `NAMESPACE/NAME`, if it is not enforced as written.
    pub strict_by: Option<String>,
}

/// Those that can decide for workloads of one namespace.
pub struct Candidates<'a> {
    root_namespace: &'a str,
    mesh: Option<&'a PeerAuthentication>,
    namespace: Option<&'a PeerAuthentication>,
    narrow: Vec<&'a PeerAuthentication>,
    /// Of the root namespace, with a selector.
    tightening: Vec<&'a PeerAuthentication>,
}

impl<'a> Candidates<'a> {
    /// `own` are those of the namespace, `root` those of the root namespace. In the root namespace both are the same.
    pub fn new(
        namespace: &str,
        own: impl Iterator<Item = &'a PeerAuthentication>,
        root_namespace: &'a str,
        root: impl Iterator<Item = &'a PeerAuthentication>,
    ) -> Self {
        let (tightening, wide): (Vec<_>, Vec<_>) = root.partition(|policy| policy.narrow);
        let (narrow, inner): (Vec<_>, Vec<_>) = own
            .filter(|_| namespace != root_namespace)
            .partition(|policy| policy.narrow);
        Self {
            root_namespace,
            mesh: oldest(wide.into_iter()),
            namespace: oldest(inner.into_iter()),
            narrow,
            tightening,
        }
    }

    /// What holds for workloads that no narrow policy selects.
    pub fn inherited(&self) -> Mode {
        let mesh = self.mesh.map_or(Mode::Unset, |policy| policy.mode);
        let namespace = self.namespace.map_or(Mode::Unset, |policy| policy.mode);
        namespace.or(mesh).or(Mode::Permissive)
    }

    /// What is demanded of connections to a workload with these labels.
    pub fn demand(&self, labels: &Map<String, Value>) -> Demand {
        let narrow = oldest(
            self.narrow
                .iter()
                .copied()
                .filter(|policy| policy.selects(labels)),
        );
        let own = narrow.map_or(Mode::Unset, |policy| policy.mode);
        let converted = narrow.and_then(|policy| policy.policy(self.inherited()));
        let decided = self.namespace.is_some_and(|policy| policy.mode != Mode::Unset) || own != Mode::Unset;
        let tightens = |policy: &&&PeerAuthentication| policy.mode == Mode::Strict && policy.selects(labels);
        let tightening = self.tightening.iter().find(tightens).copied();
        let tightening = tightening.filter(|_| !decided);
        let strict = own.or(self.inherited()) == Mode::Strict && converted.is_none();
        let widest = [narrow, self.namespace, self.mesh].into_iter().flatten();
        let decisive = widest
            .filter(|_| strict)
            .find(|policy| policy.mode != Mode::Unset);
        let mut demand = Demand::default();
        if strict || tightening.is_some() {
            let by = decisive.or(tightening);
            let by = by.filter(|policy| !policy.not_enforced.is_empty());
            demand.strict_by = by.map(|policy| format!("{}/{}", policy.namespace, policy.name));
            let name = format!("{}/{STATIC_STRICT}", self.root_namespace);
            demand.policies.push(name);
        }
        let name = converted.map(|policy| format!("{}/{}", policy.namespace, policy.name));
        demand.policies.extend(name);
        demand
    }
}

fn oldest<'a>(all: impl Iterator<Item = &'a PeerAuthentication>) -> Option<&'a PeerAuthentication> {
    all.reduce(|first, second| if second.is_older(first) { second } else { first })
}

/// The policy of workloads that demand mutual TLS on all ports.
pub fn static_strict(root_namespace: &str) -> Policy {
    Policy {
        name: STATIC_STRICT.to_owned(),
        namespace: root_namespace.to_owned(),
        scope: Scope::Workload,
        visibility: Visibility::Public,
        action: Action::Deny,
        dry_run: false,
        rules: vec![unauthenticated()],
        translation: Translation {
            synthetic_rules: true,
            ..Translation::default()
        },
    }
}

/// Matches connections without a certificate.
fn unauthenticated() -> Rule {
    Rule {
        from: vec![Match {
            not_principals: vec!["*".to_owned()],
            ..Match::default()
        }],
        to: Vec::new(),
        when: Vec::new(),
    }
}
