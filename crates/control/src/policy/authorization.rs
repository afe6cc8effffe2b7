//! `AuthorizationPolicy`.

use super::Mesh;
use super::attribute::{self, Attribute, Conditions, Field, OPERATION, SOURCE, Surroundings};
use super::problem::{Consequence, Fault, Problem, summary};
use super::reader::Reader;
use crate::mesh::{Action, Match, Policy, Rule, Scope, Translation, Visibility};
use remora_pod::object;
use remora_pod::path::Path;
use remora_pod::selector::Selector;
use serde_json::{Map, Value};

const SPEC: [&str; 6] = [
    "selector",
    "targetRef",
    "targetRefs",
    "rules",
    "action",
    "provider",
];
/// What the author of a condition on something else can do.
const SEEN: &str =
    "write conditions on connections: principals, namespaces, service accounts, addresses, ports";
const DRY_RUN: &str = "istio.io/dry-run";

/// An `AuthorizationPolicy` as a proxy enforces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    /// `None`: it has no effect on sidecars.
    pub policy: Option<Policy>,
    /// The workloads that must name the policy. `None`: its scope says which ones.
    pub selector: Option<Selector>,
    /// What is not enforced as written.
    pub problems: Vec<Problem>,
}

/// Translates a document.
pub fn translate(document: &Value, mesh: &Mesh) -> Authorization {
    let namespace = object::namespace(document);
    let mut translator = Translator {
        reader: Reader::new(Consequence::PolicyAllowsNothing),
        denies: false,
        left_out_rules: Vec::new(),
        synthetic_rules: false,
        around: Surroundings {
            namespace,
            trust_domains: &mesh.trust_domains,
        },
    };
    let effect = translator.policy(document);
    let problems = translator.reader.problems;
    let translation = Translation {
        not_enforced: summary(&problems).lines(),
        left_out_rules: translator.left_out_rules,
        synthetic_rules: translator.synthetic_rules,
        ..Translation::default()
    };
    let Some(effect) = effect else {
        return Authorization {
            policy: None,
            selector: None,
            problems,
        };
    };
    let in_root = namespace == mesh.root_namespace;
    let (scope, visibility) = match (&effect.selector, in_root) {
        // istio: in the root namespace a selector selects workloads of all namespaces.
        (Some(_), true) => (Scope::Workload, Visibility::Public),
        (Some(_), false) => (Scope::Workload, Visibility::Namespace),
        (None, true) => (Scope::Global, Visibility::Public),
        (None, false) => (Scope::Namespace, Visibility::Namespace),
    };
    Authorization {
        policy: Some(Policy {
            name: object::name(document).to_owned(),
            namespace: namespace.to_owned(),
            scope,
            visibility,
            action: effect.action,
            dry_run: effect.dry_run,
            rules: effect.rules,
            translation,
        }),
        selector: effect.selector,
        problems,
    }
}

/// What becomes of a policy that applies to sidecars.
struct Effect {
    action: Action,
    dry_run: bool,
    rules: Vec<Rule>,
    selector: Option<Selector>,
}

struct Translator<'a> {
    reader: Reader,
    /// Whether a match denies. CUSTOM denies what it matches, because no external authorizer is asked.
    denies: bool,
    /// Rules that match no connection, by index.
    left_out_rules: Vec<u32>,
    /// Whether the rules stand in for what is not understood.
    synthetic_rules: bool,
    around: Surroundings<'a>,
}

/// What the `action` of a policy means here.
enum Meaning {
    Allow,
    Deny,
    Custom,
    Audit,
    Unknown,
}

impl Translator<'_> {
    /// `None`: the policy has no effect on sidecars.
    fn policy(&mut self, document: &Value) -> Option<Effect> {
        let at = Path::of(&["spec"]);
        let none = Map::new();
        let spec = match document.get("spec") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(spec)) => spec,
            Some(_) => {
                // Not even the action is known.
                self.reader.report(
                    at,
                    Fault::Type {
                        expected: "an object",
                    },
                );
                return Some(self.closed());
            }
        };
        let mut meaning = self.action(spec, &at);
        if matches!(meaning, Meaning::Audit) || self.is_for_gateways(spec, &at) {
            return None;
        }
        self.denies = matches!(meaning, Meaning::Deny | Meaning::Custom);
        let before = self.reader.problems.len();
        let unknown = self.spec_fields(spec, &at, &meaning);
        if unknown && !spec.contains_key("action") {
            // The field that is not understood may have been meant to be this one.
            meaning = Meaning::Unknown;
        }
        // Which workloads are meant may be unknown: all of them then.
        let selector = self.selector(spec, &at).unwrap_or_default();
        let tainted = self.reader.problems.len() > before;
        let rules = self.rules(spec, &at, tainted);
        let rules = if tainted && !self.denies {
            self.synthetic_rules = true;
            Vec::new()
        } else {
            rules
        };
        Some(self.effect(&meaning, document, rules, selector))
    }

    fn effect(
        &mut self,
        meaning: &Meaning,
        document: &Value,
        rules: Vec<Rule>,
        selector: Option<Selector>,
    ) -> Effect {
        if matches!(meaning, Meaning::Unknown) {
            return Effect {
                selector,
                ..self.closed()
            };
        }
        Effect {
            action: if self.denies { Action::Deny } else { Action::Allow },
            dry_run: self.dry_run(document, meaning),
            rules,
            selector,
        }
    }

    /// What it was meant to do is not known, so everything is denied. An ALLOW policy without rules would not be
    /// enough: other ALLOW policies may admit what this one was meant to deny.
    fn closed(&mut self) -> Effect {
        self.synthetic_rules = true;
        Effect {
            action: Action::Deny,
            dry_run: false,
            rules: vec![anything()],
            selector: None,
        }
    }

    fn action(&mut self, spec: &Map<String, Value>, at: &Path) -> Meaning {
        let at = at.join("action");
        let Some(value) = spec.get("action").filter(|value| !value.is_null()) else {
            return Meaning::Allow;
        };
        match value.as_str() {
            Some("ALLOW") => Meaning::Allow,
            Some("DENY") => Meaning::Deny,
            Some("CUSTOM") => {
                let fault = Fault::NotEnforced {
                    why: "no external authorizer is asked",
                    remedy: "write ALLOW or DENY rules",
                };
                self.reader.report_with(at, fault, Consequence::Denies);
                Meaning::Custom
            }
            Some("AUDIT") => {
                let fault = Fault::NotEnforced {
                    why: "connections are not audited",
                    remedy: "use the access log of the proxies, and remove the policy",
                };
                self.reader.report_with(at, fault, Consequence::NoEffect);
                Meaning::Audit
            }
            text => {
                let fault = match text {
                    Some(text) => Fault::Value {
                        text: text.to_owned(),
                        expected: "ALLOW, DENY, CUSTOM or AUDIT",
                    },
                    None => Fault::Type { expected: "a string" },
                };
                self.reader.report_with(at, fault, Consequence::DeniesEverything);
                Meaning::Unknown
            }
        }
    }

    /// Whether a policy names gateways or waypoints instead of workloads. istio: it is none of a sidecar's then.
    fn is_for_gateways(&mut self, spec: &Map<String, Value>, at: &Path) -> bool {
        let given = |field: &&str| {
            let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            spec.get(*field).is_some_and(|value| !empty(value))
        };
        let Some(field) = ["targetRef", "targetRefs"].into_iter().find(given) else {
            return false;
        };
        let selector = spec.get("selector").filter(|value| !value.is_null());
        if selector.is_some() {
            // One of the two is a mistake. The workloads of the selector are closed rather than left open.
            return false;
        }
        let sound = if field == "targetRef" {
            spec[field].is_object()
        } else {
            spec[field].is_array()
        };
        let fault = if sound {
            Fault::NotEnforced {
                why: "policies for gateways and waypoints are not enforced",
                remedy: "write a selector where the policy is for workloads",
            }
        } else {
            Fault::Type {
                expected: if field == "targetRef" {
                    "an object"
                } else {
                    "a list"
                },
            }
        };
        self.reader
            .report_with(at.join(field), fault, Consequence::NotApplied);
        true
    }

    /// Fields of the policy as a whole, beside those that have a function of their own. Says whether one is unknown.
    fn spec_fields(&mut self, spec: &Map<String, Value>, at: &Path, meaning: &Meaning) -> bool {
        let unknown = spec.keys().any(|field| !SPEC.contains(&field.as_str()));
        let consequence = match (self.denies, unknown && !spec.contains_key("action")) {
            (true, _) => Consequence::ConditionIgnored,
            (false, true) => Consequence::DeniesEverything,
            (false, false) => Consequence::PolicyAllowsNothing,
        };
        for (field, value) in spec {
            let fault = match field.as_str() {
                known if value.is_null() && SPEC.contains(&known) => continue,
                "provider" if !matches!(meaning, Meaning::Custom) => Fault::Conflict {
                    why: "only CUSTOM has a provider",
                    remedy: "remove the provider",
                },
                "targetRef" | "targetRefs" if value.as_array().is_some_and(Vec::is_empty) => Fault::Empty,
                "targetRef" | "targetRefs" => Fault::Conflict {
                    why: "selector and targetRefs exclude each other",
                    remedy: "remove one of the two",
                },
                known if SPEC.contains(&known) => continue,
                _ => Fault::UnknownField,
            };
            self.reader
                .report_with(at.join(field.as_str()), fault, consequence);
        }
        unknown
    }

    fn selector(&mut self, spec: &Map<String, Value>, at: &Path) -> Result<Option<Selector>, ()> {
        self.reader.consequence = if self.denies {
            Consequence::SelectsEverything
        } else {
            Consequence::PolicyAllowsNothing
        };
        self.reader.selector(spec, at)
    }

    /// Go's `strconv.ParseBool`. A policy that may or may not be on trial is in force.
    fn dry_run(&mut self, document: &Value, meaning: &Meaning) -> bool {
        let Some(value) = object::annotations(document).and_then(|all| all.get(DRY_RUN)) else {
            return false;
        };
        let at = Path::of(&["metadata", "annotations", DRY_RUN]);
        let fault = match value.as_str() {
            Some("1" | "t" | "T" | "TRUE" | "true" | "True") if matches!(meaning, Meaning::Custom) => {
                Fault::Conflict {
                    why: "a dry run is for ALLOW and DENY",
                    remedy: "remove the annotation",
                }
            }
            Some("1" | "t" | "T" | "TRUE" | "true" | "True") => return true,
            Some("0" | "f" | "F" | "FALSE" | "false" | "False") => return false,
            Some(text) => Fault::Value {
                text: text.to_owned(),
                expected: "true or false",
            },
            None => Fault::Type { expected: "a string" },
        };
        self.reader.report_with(at, fault, Consequence::NoEffect);
        false
    }

    fn rules(&mut self, spec: &Map<String, Value>, spec_at: &Path, tainted: bool) -> Vec<Rule> {
        let at = spec_at.join("rules");
        let rules = match spec.get("rules") {
            // The field that is not understood may have been meant to be this one.
            None | Some(Value::Null) if tainted && self.denies => {
                self.synthetic_rules = true;
                return vec![anything()];
            }
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(rules)) => rules,
            Some(_) => {
                let consequence = if self.denies {
                    Consequence::DeniesEverything
                } else {
                    Consequence::PolicyAllowsNothing
                };
                let fault = Fault::Type { expected: "a list" };
                self.reader.report_with(at, fault, consequence);
                self.synthetic_rules = true;
                return if self.denies { vec![anything()] } else { Vec::new() };
            }
        };
        let mut translated = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            match self.rule(rule, &at.join(index)) {
                Some(rule) => translated.push(rule),
                None => self.left_out_rules.extend(u32::try_from(index)),
            }
        }
        translated
    }

    /// `None`: it matches no connection.
    fn rule(&mut self, value: &Value, at: &Path) -> Option<Rule> {
        self.reader.consequence = if self.denies {
            Consequence::ConditionIgnored
        } else {
            Consequence::RuleAllowsNothing
        };
        let before = self.reader.problems.len();
        let none = Map::new();
        let rule = self
            .reader
            .object(value, at, &["from", "to", "when"])
            .unwrap_or(&none);
        let from = self.alternatives(rule, at, "from", "source", &SOURCE);
        let to = self.alternatives(rule, at, "to", "operation", &OPERATION);
        let when = self.conditions(rule, at);
        if !self.denies && self.reader.problems.len() > before {
            return None;
        }
        let (from, to, when) = (from?, to?, when?);
        if from.is_empty() && to.is_empty() && when.is_empty() {
            return Some(anything());
        }
        Some(Rule { from, to, when })
    }

    /// The entries of `from` or `to`, one of which must match. Empty: there is no condition. `None`: none can match.
    fn alternatives(
        &mut self,
        rule: &Map<String, Value>,
        at: &Path,
        list: &str,
        entry: &str,
        fields: &[Field],
    ) -> Option<Vec<Match>> {
        let at = at.join(list);
        let Some(value) = rule.get(list) else {
            return Some(Vec::new());
        };
        let Some(entries) = self.reader.list(value, &at) else {
            return Some(Vec::new());
        };
        let mut matches = Vec::new();
        for (index, value) in entries.iter().enumerate() {
            matches.extend(self.entry(value, &at.join(index), entry, fields));
        }
        if matches.is_empty() {
            return None;
        }
        // Alternatives of which one matches everything: the list decides nothing.
        if matches.contains(&Match::default()) {
            matches.clear();
        }
        Some(matches)
    }

    /// One entry of a list. A part that cannot be read is left out, which is right for DENY; ALLOW rules with a
    /// problem are dropped as a whole.
    fn entry(&mut self, value: &Value, at: &Path, name: &str, fields: &[Field]) -> Option<Match> {
        let everything = Some(Match::default());
        let Some(entry) = self.reader.object(value, at, &[name]) else {
            return everything;
        };
        let at = at.join(name);
        let Some(inner) = entry.get(name) else {
            self.reader.report(at, Fault::Empty);
            return everything;
        };
        let known: Vec<&str> = fields.iter().map(|field| field.name).collect();
        let Some(inner) = self.reader.object(inner, &at, &known) else {
            return everything;
        };
        if inner.is_empty() {
            self.reader.report(at, Fault::Empty);
            return everything;
        }
        let accounts = self.accounts_conflict(inner, &at);
        let mut conditions = Conditions::default();
        for field in fields {
            let Some(value) = inner.get(field.name) else {
                continue;
            };
            if accounts && field.attribute == Attribute::ServiceAccount {
                continue;
            }
            self.field(
                field.attribute,
                field.negated,
                value,
                &at.join(field.name),
                &mut conditions,
            );
        }
        conditions.finish()
    }

    /// istio: `serviceAccounts` cannot be combined with `principals` or `namespaces`.
    fn accounts_conflict(&mut self, source: &Map<String, Value>, at: &Path) -> bool {
        let mut accounts = ["serviceAccounts", "notServiceAccounts"].into_iter();
        let others = ["principals", "notPrincipals", "namespaces", "notNamespaces"];
        let Some(field) = accounts.find(|field| source.contains_key(*field)) else {
            return false;
        };
        let conflict = others.iter().any(|other| source.contains_key(*other));
        if conflict {
            let fault = Fault::Conflict {
                why: "serviceAccounts exclude principals and namespaces",
                remedy: "write serviceAccounts alone, or in a source of their own",
            };
            self.reader.report(at.join(field), fault);
        }
        conflict
    }

    /// One list of values. A list with a problem is left out as a whole.
    fn field(&mut self, attribute: Attribute, negated: bool, value: &Value, at: &Path, to: &mut Conditions) {
        let Some(values) = self.reader.texts(value, at) else {
            return;
        };
        if let Attribute::Unseen(why) = attribute {
            self.reader
                .report(at.clone(), Fault::NotEnforced { why, remedy: SEEN });
            return;
        }
        let mut sound = true;
        for (index, text) in values.iter().enumerate() {
            if let Some(expected) = attribute.refused(text, self.around) {
                sound = false;
                let text = (*text).to_owned();
                self.reader
                    .report(at.join(index), Fault::Value { text, expected });
            }
        }
        if sound {
            to.add(attribute, negated, &values, self.around);
        }
    }

    /// The entries of `when`, all of which must hold. `None`: one of them never does.
    fn conditions(&mut self, rule: &Map<String, Value>, at: &Path) -> Option<Vec<Match>> {
        let at = at.join("when");
        let Some(value) = rule.get("when") else {
            return Some(Vec::new());
        };
        let entries = self.reader.list(value, &at).unwrap_or_default();
        let read: Vec<Option<Match>> = entries
            .iter()
            .enumerate()
            .map(|(index, value)| self.condition(value, &at.join(index)))
            .collect();
        let mut all = read.into_iter().collect::<Option<Vec<Match>>>()?;
        all.retain(|condition| *condition != Match::default());
        Some(all)
    }

    fn condition(&mut self, value: &Value, at: &Path) -> Option<Match> {
        let mut conditions = Conditions::default();
        if let Some(condition) = self.reader.object(value, at, &["key", "values", "notValues"])
            && let Some(attribute) = self.key(condition, &at.join("key"))
        {
            let lists = [("values", false), ("notValues", true)];
            if lists.iter().all(|(name, _)| !condition.contains_key(*name)) {
                self.reader.report(at.join("values"), Fault::Empty);
            }
            for (name, negated) in lists {
                if let Some(value) = condition.get(name) {
                    self.field(attribute, negated, value, &at.join(name), &mut conditions);
                }
            }
        }
        conditions.finish()
    }

    fn key(&mut self, condition: &Map<String, Value>, at: &Path) -> Option<Attribute> {
        let fault = match condition.get("key") {
            None => Fault::Empty,
            Some(Value::String(key)) => match attribute::of_key(key) {
                Some(attribute) => return Some(attribute),
                None => Fault::Value {
                    text: key.clone(),
                    expected: "an attribute of the API",
                },
            },
            Some(_) => Fault::Type { expected: "a string" },
        };
        self.reader.report(at.clone(), fault);
        None
    }
}

/// A rule that matches every connection. Proxies disagree about what a rule without conditions means.
pub(crate) fn anything() -> Rule {
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
