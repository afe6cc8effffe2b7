//! The mesh part of an injection: templates, the user's own definitions, and what depends on both.
//!
//! Decided first ([`Mesh::plan`], which only reads the pod), then done ([`Mesh::apply`]).

use crate::error::{InjectError, shown};
use crate::names::{self, annotation, label};
use crate::native;
use crate::overrides::{self, Overrides, Status};
use crate::probes::{self, Rewrite};
use crate::prometheus::{self, parse_bool};
use crate::proxy_config::ProxyConfig;
use crate::reorder;
use crate::settings::Settings;
use crate::sidecar::Inputs;
use crate::template;
use crate::warning::Warning;
use crate::workload::Workload;
use remora_pod::{merge, view};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The mesh injection of one pod.
pub(crate) struct Mesh<'a> {
    settings: &'a Settings,
    workload: &'a Workload,
    status: Option<Status>,
    config: Cow<'a, ProxyConfig>,
    native: bool,
    hold: bool,
    network: String,
}

/// What is to be merged into a pod.
pub(crate) struct Plan {
    template: Value,
    status: String,
    tproxy: bool,
    cni: bool,
    tail: BTreeMap<String, String>,
}

impl<'a> Mesh<'a> {
    pub(crate) fn new(
        workload: &'a Workload,
        settings: &'a Settings,
        native: bool,
        pod: &Value,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, InjectError> {
        choice(settings, "gate", ["probe", "hook"])?;
        choice(settings, "capture", ["init", "sidecar"])?;
        let status = Status::of(pod);
        let config = effective_config(pod, settings)?;
        let native = native::of_pod(pod, native, warnings);
        let hold = wants_hold(&config, settings, native, warnings);
        let network = view::label(pod, label::NETWORK)
            .filter(|n| !n.is_empty())
            .or_else(|| settings.extra_env.get("ISTIO_META_NETWORK").map(String::as_str))
            .map_or_else(|| settings.values.text(&["global", "network"]), str::to_owned);
        Ok(Self {
            settings,
            workload,
            status,
            config,
            native,
            hold,
            network,
        })
    }

    /// Renders the templates; nothing is changed yet.
    pub(crate) fn plan(&self, pod: &Value, warnings: &mut Vec<Warning>) -> Result<Plan, InjectError> {
        let tail = self.environment_tail();
        let port = self.settings.mesh.proxy.status_port();
        let view = overrides::original_view(pod, self.status.as_ref(), port);
        let inputs = Inputs::new(
            self.settings,
            &view,
            self.workload,
            &self.config,
            (self.native, self.hold),
            &tail,
        );
        if inputs.status == "0" {
            let text = "the status port is 0: the proxy has no probes, so nothing waits until it is ready";
            warnings.push(Warning::pod("status-port-zero", text));
        }
        if let Some(why) = inputs.cannot_capture() {
            let text =
                format!("the sidecar was to capture the traffic itself, but {why}; istio-init does it");
            warnings.push(Warning::pod("capture-by-init", text));
        }
        let template = self.render(&inputs)?;
        let status = self.status_text(&template);
        Ok(Plan {
            template,
            status,
            tproxy: inputs.is_tproxy(),
            cni: inputs.cni,
            tail,
        })
    }

    /// Merges the templates into the pod and applies all steps that depend on the whole pod.
    pub(crate) fn apply(
        &self,
        plan: Plan,
        pod: &mut Value,
        warnings: &mut Vec<Warning>,
    ) -> Result<(), InjectError> {
        let own = self.merge(plan.template, pod);
        couple_user_ids(pod, &own, plan.tproxy);
        self.append_environment(pod, &plan.tail);
        prometheus::merge(pod, self.settings)?;
        prometheus::set_secure_port(pod);
        reorder::reorder(pod, self.settings.order, self.hold, plan.cni, warnings);
        self.rewrite_probes(pod, warnings);
        for (key, value) in &self.settings.config.injected_annotations {
            view::set_annotation(pod, key, value.as_str());
        }
        view::set_annotation(pod, annotation::STATUS, plan.status);
        Ok(())
    }

    /// Template over pod, then the user's own definitions over both. Returns the latter.
    fn merge(&self, template: Value, pod: &mut Value) -> Overrides {
        if let Some(status) = &self.status {
            overrides::drop_owned_fields(pod, status);
        }
        move_proxy(pod, &template);
        let own = match self.status {
            Some(_) => Overrides::stored(pod),
            None => Overrides::found(pod, &template),
        };
        if own.is_empty() {
            // A status annotation of the manifest does not describe this pod, and a later pass would rely on it.
            view::map_mut(pod, &["metadata", "annotations"]).remove(annotation::OVERRIDES);
            *pod = merge::merge(pod.take(), template);
        } else {
            *pod = merge::merge(pod.take(), template.clone());
            own.apply(pod, &template);
            view::set_annotation(pod, annotation::OVERRIDES, own.render());
        }
        own
    }

    /// All templates, as one pod patch.
    fn render(&self, inputs: &Inputs<'_>) -> Result<Value, InjectError> {
        let config = &self.settings.config;
        let mut patch = Value::Null;
        for name in self.template_names(inputs.pod) {
            let part = match config.templates.get(&name) {
                Some(text) => template::render(&name, text, inputs)
                    .map_err(|source| InjectError::Template { name, source })?,
                None if name == "sidecar" => inputs.build(),
                None => {
                    return Err(InjectError::UnknownTemplate {
                        name,
                        have: self.known_templates(),
                    });
                }
            };
            let part = merge_into_proxy(&patch, part);
            patch = if patch.is_null() {
                part
            } else {
                merge::merge(patch, part)
            };
        }
        Ok(patch)
    }

    fn template_names(&self, pod: &Value) -> Vec<String> {
        let config = &self.settings.config;
        let wanted: Vec<String> = match view::annotation(pod, annotation::TEMPLATES) {
            Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
            None if config.default_templates.is_empty() => vec!["sidecar".to_owned()],
            None => config.default_templates.clone(),
        };
        wanted
            .into_iter()
            .flat_map(|name| config.aliases.get(&name).cloned().unwrap_or_else(|| vec![name]))
            .collect()
    }

    fn known_templates(&self) -> Vec<String> {
        let mut names: Vec<String> = self.settings.config.templates.keys().cloned().collect();
        names.push("sidecar".to_owned());
        names.sort();
        names.dedup();
        names
    }

    /// Variables at the end of the proxy's environment.
    ///
    /// istio: cluster and network given by values, URL or label are moved there.
    fn environment_tail(&self) -> BTreeMap<String, String> {
        let mut tail = self.settings.extra_env.clone();
        let cluster = self
            .settings
            .values
            .text(&["global", "multiCluster", "clusterName"]);
        if !cluster.is_empty() {
            tail.entry("ISTIO_META_CLUSTER_ID".to_owned()).or_insert(cluster);
        }
        if !self.network.is_empty() {
            tail.insert("ISTIO_META_NETWORK".to_owned(), self.network.clone());
        }
        tail
    }

    fn append_environment(&self, pod: &mut Value, tail: &BTreeMap<String, String>) {
        if !self.network.is_empty() {
            view::set_label(pod, label::NETWORK, self.network.as_str());
        }
        let Some(proxy) = view::container_mut(pod, names::PROXY) else {
            return;
        };
        let env = view::list_mut(proxy, &["env"]);
        // Variables of later steps go behind these, also in a second pass.
        let late = ["ISTIO_PROMETHEUS_ANNOTATIONS", "ISTIO_KUBE_APP_PROBERS"];
        let kept: Vec<Value> = late
            .iter()
            .filter_map(|name| view::find(env, name).cloned())
            .collect();
        env.retain(|v| !tail.contains_key(view::name(v)) && !late.contains(&view::name(v)));
        env.extend(
            tail.iter()
                .map(|(name, value)| json!({"name": name, "value": value})),
        );
        env.extend(kept);
    }

    fn rewrite_probes(&self, pod: &mut Value, warnings: &mut Vec<Warning>) {
        let by_default = self
            .settings
            .values
            .flag(&["sidecarInjectorWebhook", "rewriteAppHTTPProbe"]);
        let wanted = view::annotation(pod, annotation::REWRITE_PROBES)
            .and_then(parse_bool)
            .unwrap_or(by_default);
        if !wanted {
            return;
        }
        let mesh_port = self.config.status_port();
        let own_port = view::annotation(pod, annotation::STATUS_PORT).and_then(|p| p.parse().ok());
        if own_port == Some(0) {
            // differs from istio: it writes probes to port 0, which no API server takes.
            return;
        }
        let rewrite = Rewrite {
            agent_port: own_port.unwrap_or(mesh_port),
            mesh_status_port: mesh_port,
            repairs: self.settings.repairs(),
            native: self.native,
        };
        probes::rewrite(pod, &rewrite, warnings);
    }

    /// istio: names in the order of its own document, null for what is empty.
    fn status_text(&self, template: &Value) -> String {
        let names = |key: &str| {
            let names: Vec<&str> = view::list(template, &["spec", key])
                .iter()
                .map(view::name)
                .collect();
            if names.is_empty() {
                Value::Null
            } else {
                json!(names)
            }
        };
        format!(
            "{{\"initContainers\":{},\"containers\":{},\"volumes\":{},\"imagePullSecrets\":{},\"revision\":{}}}",
            names("initContainers"),
            names("containers"),
            names("volumes"),
            names("imagePullSecrets"),
            json!(self.settings.revision_name())
        )
    }
}

/// A remora annotation with two possible values, or not set.
fn choice(settings: &Settings, name: &str, words: [&str; 2]) -> Result<(), InjectError> {
    let given = settings.values.text(&["remora", name]);
    if given.is_empty() || words.contains(&given.as_str()) {
        return Ok(());
    }
    let [one, other] = words;
    let text = format!(
        "values: remora.{name} must be {one} or {other}, not {}",
        shown(&given)
    );
    Err(InjectError::Malformed(text))
}

fn effective_config<'a>(pod: &Value, settings: &'a Settings) -> Result<Cow<'a, ProxyConfig>, InjectError> {
    let Some(text) = view::annotation(pod, annotation::PROXY_CONFIG) else {
        return Ok(Cow::Borrowed(&settings.mesh.proxy));
    };
    settings
        .mesh
        .proxy
        .with_annotation(text)
        .map(Cow::Owned)
        .map_err(|error| InjectError::Annotation {
            name: annotation::PROXY_CONFIG.to_owned(),
            value: crate::error::shown(text),
            problem: error.to_string(),
        })
}

/// Whether the application waits for a classic proxy.
///
/// istio: ProxyConfig or values; native sidecars ignore it.
/// differs from istio: in the planned order the application waits unless a setting says no, because the planned
/// order exists to prevent applications from starting before the proxy.
fn wants_hold(config: &ProxyConfig, settings: &Settings, native: bool, warnings: &mut Vec<Warning>) -> bool {
    let value = settings.values.proxy("holdApplicationUntilProxyStarts");
    let asked = config.hold() == Some(true) || crate::values::truthy(value);
    if native {
        if asked {
            let text = "holdApplicationUntilProxyStarts has no effect with a native sidecar: it starts before the \
                        application anyway";
            warnings.push(Warning::pod("hold-ignored", text));
        }
        return false;
    }
    let refused = config.hold() == Some(false) || (!value.is_null() && !crate::values::truthy(value));
    asked || (settings.repairs() && !refused)
}

/// Brings the user's `istio-proxy` into the list where the template has it.
fn move_proxy(pod: &mut Value, template: &Value) {
    let in_init = |v: &Value| view::find(view::init_containers(v), names::PROXY).is_some();
    let in_main = |v: &Value| view::find(view::containers(v), names::PROXY).is_some();
    let (from, to) = if in_init(template) && in_main(pod) {
        ("containers", "initContainers")
    } else if in_main(template) && in_init(pod) {
        ("initContainers", "containers")
    } else {
        return;
    };
    let list = view::list_mut(pod, &["spec", from]);
    let Some(position) = list.iter().position(|c| view::name(c) == names::PROXY) else {
        return;
    };
    let mut proxy = list.remove(position);
    if to == "containers" {
        view::map_mut(&mut proxy, &[]).remove("restartPolicy");
    }
    if view::find(view::list(pod, &["spec", to]), names::PROXY).is_none() {
        view::list_mut(pod, &["spec", to]).push(proxy);
    }
}

/// A template's `istio-proxy` is merged with the existing one, in whichever list that is.
///
/// differs from istio: it would make a second container of the same name, which no API server takes.
fn merge_into_proxy(so_far: &Value, mut part: Value) -> Value {
    if view::find(view::init_containers(so_far), names::PROXY).is_none() {
        return part;
    }
    if view::find(view::containers(&part), names::PROXY).is_none() {
        return part;
    }
    let list = view::list_mut(&mut part, &["spec", "containers"]);
    if let Some(position) = list.iter().position(|c| view::name(c) == names::PROXY) {
        let fragment = list.remove(position);
        view::list_mut(&mut part, &["spec", "initContainers"]).push(fragment);
    }
    part
}

/// The capture rules exempt the proxy's user; if the pod changes that user, the rules' arguments must name it.
fn couple_user_ids(pod: &mut Value, own: &Overrides, tproxy: bool) {
    let context = own.get(names::PROXY).and_then(|c| c.get("securityContext"));
    let id = |key: &str| context.and_then(|c| c.get(key)).and_then(Value::as_i64);
    let Some(user) = id("runAsUser") else { return };
    if user != 0 {
        for name in [names::INIT, names::VALIDATION] {
            if let Some(container) = view::container_mut(pod, name) {
                set_user_argument(container, user);
            }
        }
    }
    if let Some(validation) = view::container_mut(pod, names::VALIDATION) {
        let context = view::map_mut(validation, &["securityContext"]);
        context.insert("runAsUser".to_owned(), json!(user));
        if let Some(group) = id("runAsGroup") {
            context.insert("runAsGroup".to_owned(), json!(group));
        }
    }
    if tproxy && let Some(proxy) = view::container_mut(pod, names::PROXY) {
        view::map_mut(proxy, &["securityContext"]).insert("runAsUser".to_owned(), json!(0));
    }
}

fn set_user_argument(container: &mut Value, user: i64) {
    let Some(args) = container
        .as_object_mut()
        .and_then(|c: &mut Map<String, Value>| c.get_mut("args"))
    else {
        return;
    };
    let Some(args) = args.as_array_mut() else { return };
    if let Some(position) = args.iter().position(|a| a.as_str() == Some("-u"))
        && let Some(value) = args.get_mut(position + 1)
    {
        *value = json!(user.to_string());
    }
}
