//! Puts the containers of an injected pod in order: planned, or as Istio does.

use crate::names::{self, annotation};
use crate::settings::Order;
use crate::warning::Warning;
use remora_pod::view;
use remora_startup::needs;
use remora_startup::order::{self, Capture, Item, Need, Plan, Problem, ProxyPlace, Role};
use serde_json::Value;

/// Orders both lists of a pod.
pub(crate) fn reorder(pod: &mut Value, order: Order, hold: bool, cni: bool, warnings: &mut Vec<Warning>) {
    let proxy = proxy_place(pod);
    match order {
        Order::Istio => {
            as_istio(pod, proxy, hold);
            let items = items(pod, "initContainers", proxy);
            let problems = order::examine(&items, capture_of(pod, cni), proxy);
            warnings.extend(problems.iter().map(explain));
        }
        Order::Safe => as_planned(pod, proxy, hold, cni, warnings),
    }
}

fn proxy_place(pod: &Value) -> ProxyPlace {
    if view::find(view::init_containers(pod), names::PROXY).is_some() {
        ProxyPlace::Native
    } else if view::find(view::containers(pod), names::PROXY).is_some() {
        ProxyPlace::Main
    } else {
        ProxyPlace::None
    }
}

/// istio: by name; everything else keeps its place.
fn as_istio(pod: &mut Value, proxy: ProxyPlace, hold: bool) {
    let native = proxy == ProxyPlace::Native;
    let rank = |name: &str| match (name, native) {
        (names::INIT, true) => 0,
        (names::VALIDATION, _) => 1,
        (names::PROXY, true) => 2,
        (names::CORE_DUMP, true) => 3,
        (names::INIT, false) => 5,
        (names::CORE_DUMP, false) => 6,
        _ => 4,
    };
    sort_init(pod, |c| rank(view::name(c)));
    place_proxy(pod, hold);
}

fn sort_init(pod: &mut Value, rank: impl Fn(&Value) -> u8) {
    if !view::init_containers(pod).is_empty() {
        view::list_mut(pod, &["spec", "initContainers"]).sort_by_key(rank);
    }
}

/// First when the application waits for it, else last, where it does not catch `kubectl exec`.
fn place_proxy(pod: &mut Value, hold: bool) {
    if view::find(view::containers(pod), names::PROXY).is_none() {
        return;
    }
    let rank = |c: &Value| match (view::name(c) == names::PROXY, hold) {
        (true, true) => 0,
        (false, _) => 1,
        (true, false) => 2,
    };
    view::list_mut(pod, &["spec", "containers"]).sort_by_key(rank);
}

fn as_planned(pod: &mut Value, proxy: ProxyPlace, hold: bool, cni: bool, warnings: &mut Vec<Warning>) {
    place_proxy(pod, hold);
    let capture = capture_of(pod, cni);
    let items = items(pod, "initContainers", proxy);
    let plan = order::plan(&items, capture, proxy);
    apply(pod, "initContainers", &plan);
    let main = items_of_main(pod, proxy);
    let main_plan = order::plan_main(&main);
    apply(pod, "containers", &main_plan);
    warnings.extend(plan.problems.iter().chain(&main_plan.problems).map(explain));
    unknown_containers(pod, warnings);
}

/// Puts main containers in the order the user declared; what is wrong with it is said by [`reorder`].
pub(crate) fn order_main(pod: &mut Value) {
    let plan = order::plan_main(&items_of_main(pod, proxy_place(pod)));
    apply(pod, "containers", &plan);
}

fn capture_of(pod: &Value, cni: bool) -> Capture {
    let has = |name: &str| view::find(view::init_containers(pod), name).is_some();
    if view::annotation(pod, annotation::INTERCEPTION_MODE) == Some("NONE") {
        Capture::Never
    } else if has(names::INIT) {
        Capture::ByInit
    } else if captures_itself(pod) {
        Capture::ByProxy
    } else if has(names::VALIDATION) || cni {
        Capture::Sandbox
    } else {
        Capture::Never
    }
}

/// Whether a native proxy captures the traffic before it starts: `istio-iptables FLAGS -- proxy sidecar …`.
fn captures_itself(pod: &Value) -> bool {
    let Some(proxy) = view::find(view::init_containers(pod), names::PROXY) else {
        return false;
    };
    let words = view::list(proxy, &["args"]);
    let is = |word: &Value, text: &str| word.as_str() == Some(text);
    words.first().is_some_and(|w| is(w, "istio-iptables")) && words.iter().any(|w| is(w, "--"))
}

fn apply(pod: &mut Value, list: &str, plan: &Plan) {
    if plan.order.is_sorted() {
        return;
    }
    let list = view::list_mut(pod, &["spec", list]);
    let mut slots: Vec<Option<Value>> = list.drain(..).map(Some).collect();
    list.extend(
        plan.order
            .iter()
            .filter_map(|i| slots.get_mut(*i).and_then(Option::take)),
    );
}

fn items(pod: &Value, list: &str, proxy: ProxyPlace) -> Vec<Item> {
    let containers = view::list(pod, &["spec", list]);
    containers
        .iter()
        .map(|container| {
            let name = view::name(container).to_owned();
            let role = role(&name, proxy);
            Item {
                role,
                need: if role == Role::User {
                    need(pod, container)
                } else {
                    usual_need(role)
                },
                start_after: start_after(pod, &name, list),
                uses: agents_used(container, containers),
                exempt: is_exempt(pod, container),
                name,
            }
        })
        .collect()
}

/// Main containers start after all init containers, so naming one of those asks for nothing.
fn items_of_main(pod: &Value, proxy: ProxyPlace) -> Vec<Item> {
    let mut items = items(pod, "containers", proxy);
    for item in &mut items {
        item.start_after
            .retain(|name| view::find(view::init_containers(pod), name).is_none());
    }
    items
}

fn role(name: &str, proxy: ProxyPlace) -> Role {
    let classic = proxy == ProxyPlace::Main;
    match name {
        names::VALIDATION => Role::Validation,
        names::INIT if classic => Role::LateCapture,
        names::INIT => Role::Capture,
        names::PROXY => Role::Proxy,
        names::CORE_DUMP if classic => Role::LateCoreDump,
        names::CORE_DUMP => Role::CoreDump,
        "otc-container" => Role::Collector,
        _ if name.starts_with("opentelemetry-auto-instrumentation") => Role::AgentCopy,
        _ if name.starts_with("otel-agent-") => Role::WebAgent,
        _ => Role::User,
    }
}

/// Copying files needs no network; a collector does.
fn usual_need(role: Role) -> Need {
    if role == Role::Collector {
        Need::Unknown
    } else {
        Need::Nothing
    }
}

fn need(pod: &Value, container: &Value) -> Need {
    let name = view::name(container);
    match view::annotation(pod, &format!("{}{name}", annotation::NETWORK_PREFIX)) {
        Some("direct") => Need::Direct,
        Some("mesh") => Need::Mesh,
        Some("none") => Need::Nothing,
        _ if only_touches_files(container) => Need::Nothing,
        _ => Need::Unknown,
    }
}

/// A command that copies or changes files needs no network, and users need not declare that.
fn only_touches_files(container: &Value) -> bool {
    let words = |key: &str| {
        view::list(container, &[key])
            .iter()
            .map(view::scalar)
            .collect::<Vec<_>>()
    };
    let command = [words("command"), words("args")].concat();
    matches!(needs::of_command(&command), needs::Need::No(_))
}

fn start_after(pod: &Value, name: &str, list: &str) -> Vec<String> {
    let Some(text) = view::annotation(pod, &format!("{}{name}", annotation::START_AFTER_PREFIX)) else {
        return Vec::new();
    };
    let twice = list == "containers" && view::find(view::init_containers(pod), name).is_some();
    if twice {
        Vec::new()
    } else {
        text.split(',').map(|n| n.trim().to_owned()).collect()
    }
}

/// Agents are copied into a volume of the same name; a container that mounts it loads the agent.
fn agents_used(container: &Value, containers: &[Value]) -> Vec<String> {
    let own = view::name(container);
    view::list(container, &["volumeMounts"])
        .iter()
        .map(view::name)
        .filter(|volume| volume.starts_with("opentelemetry-auto-instrumentation") && *volume != own)
        .filter(|volume| {
            view::find(containers, volume).is_some() && !own.starts_with("opentelemetry-auto-instrumentation")
        })
        .map(str::to_owned)
        .collect()
}

/// The rules exempt every process that runs as the proxy's user or group.
fn is_exempt(pod: &Value, container: &Value) -> bool {
    ["runAsUser", "runAsGroup"].iter().any(|key| {
        let own = view::at(container, &["securityContext", key]);
        let id = own.or_else(|| view::at(pod, &["spec", "securityContext", key]));
        id.and_then(Value::as_i64) == Some(names::PROXY_ID)
    })
}

fn explain(problem: &Problem) -> Warning {
    let code = match problem {
        Problem::NoNetwork { .. } => "init-without-network",
        Problem::NotDirect { .. } => "not-direct",
        Problem::Contradiction { .. } => "order-contradiction",
        Problem::UnknownContainer { .. } => "order-unknown-container",
    };
    match problem.container() {
        Some(name) => Warning::container(code, name, problem.to_string()),
        None => Warning::pod(code, problem.to_string()),
    }
}

/// Declarations about containers the pod does not have.
fn unknown_containers(pod: &Value, warnings: &mut Vec<Warning>) {
    let annotations = view::at(pod, &["metadata", "annotations"]).and_then(Value::as_object);
    for key in annotations.into_iter().flat_map(|map| map.keys()) {
        let name = key
            .strip_prefix(annotation::NETWORK_PREFIX)
            .or_else(|| key.strip_prefix(annotation::START_AFTER_PREFIX));
        if let Some(name) = name
            && view::container(pod, name).is_none()
        {
            let text = format!("annotation {key} is about a container the pod does not have");
            warnings.push(Warning::pod("order-unknown-container", text));
        }
    }
}
