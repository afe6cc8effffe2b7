//! What has to hold for every pod, sensible or not.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use remora_pod::spec::{Hook, Kind, PodView, Slot};
use remora_startup::analysis::{Analysis, Anchor, Reach, Step};
use remora_startup::findings::{Options, Severity, check, fix};
use remora_startup::mesh::Mode;
use remora_startup::network::NetState;
use remora_startup::sim::{Actor, ActorRef, Part, Scenario, What, simulate};
use serde_json::{Map, Value, json};

/// Keys a pod may have, so that nonsense is found where the model looks.
const KEYS: [&str; 33] = [
    "spec",
    "metadata",
    "containers",
    "initContainers",
    "name",
    "image",
    "command",
    "args",
    "env",
    "value",
    "lifecycle",
    "postStart",
    "preStop",
    "exec",
    "httpGet",
    "tcpSocket",
    "sleep",
    "port",
    "startupProbe",
    "livenessProbe",
    "restartPolicy",
    "securityContext",
    "runAsUser",
    "annotations",
    "template",
    "terminationGracePeriodSeconds",
    "periodSeconds",
    "initialDelaySeconds",
    "failureThreshold",
    "timeoutSeconds",
    "seconds",
    "activeDeadlineSeconds",
    "name",
];

fn nonsense() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("istio-proxy"),
        Just("istio-init"),
        Just("Always"),
        Just("Never"),
        Just("curl"),
        Just("http://a:1/"),
        Just(""),
        Just("://:@"),
        Just("x:99999"),
        Just("ä"),
        Just("*"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..5).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 5, |inner| {
        let key = proptest::sample::select(KEYS.to_vec());
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key, inner), 0..6).prop_map(|pairs| Value::Object(
                pairs
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), v))
                    .collect::<Map<_, _>>()
            )),
        ]
    })
}

fn handler() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"exec": {"command": ["true"]}})),
        Just(json!({"exec": {"command": ["curl", "http://config:8080/"]}})),
        Just(json!({"httpGet": {"path": "/x", "port": 8000}})),
        Just(json!({"httpGet": {"path": "/app-health/8000", "port": 15020}})),
        Just(json!({"tcpSocket": {"port": 8000}})),
        (0u64..40).prop_map(|s| json!({"sleep": {"seconds": s}})),
    ]
}

fn probe() -> impl Strategy<Value = Value> {
    let what = handler().prop_filter("probes do not sleep", |h| h.get("sleep").is_none());
    (what, 1u64..12, 1u64..6).prop_map(|(mut probe, period, failures)| {
        probe["periodSeconds"] = json!(period);
        probe["failureThreshold"] = json!(failures);
        probe
    })
}

fn command() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!([])),
        Just(json!(["cp", "-r", "/a", "/b"])),
        Just(json!(["curl", "-f", "http://config.default:8080/"])),
        Just(json!(["sh", "-c", "until nc -z db 5432; do sleep 1; done"])),
        Just(json!(["server", "--upstream", "10.1.2.3:9000"])),
    ]
}

fn container(prefix: &'static str, kind: Kind) -> impl Strategy<Value = Value> {
    let extras = (
        option::weighted(0.3, probe()),
        option::weighted(0.3, probe()),
        option::weighted(0.3, probe()),
    );
    let hooks = (option::weighted(0.3, handler()), option::weighted(0.3, handler()));
    let user = prop_oneof![4 => Just(None), 1 => Just(Some(1337)), 1 => Just(Some(1000))];
    (0u32..1000, command(), user, extras, hooks).prop_map(move |(n, command, user, probes, hooks)| {
        let mut out = json!({"name": format!("{prefix}{n}"), "image": "registry/app:1", "command": command});
        if let Some(user) = user {
            out["securityContext"] = json!({"runAsUser": user});
        }
        if kind == Kind::Sidecar {
            out["restartPolicy"] = json!("Always");
        }
        if kind != Kind::Init {
            let fields = ["startupProbe", "readinessProbe", "livenessProbe"]
                .into_iter()
                .zip([probes.0, probes.1, probes.2]);
            for (field, probe) in fields.filter_map(|(f, p)| Some((f, p?))) {
                out[field] = probe;
            }
            for (field, hook) in [("postStart", hooks.0), ("preStop", hooks.1)] {
                if let Some(hook) = hook {
                    out["lifecycle"][field] = hook;
                }
            }
        }
        out
    })
}

/// A pod of any mode with user containers in any place, as injectors and webhooks leave them.
fn pod() -> impl Strategy<Value = Value> {
    let init = prop_oneof![container("init-", Kind::Init), container("side-", Kind::Sidecar)];
    let policy = prop_oneof![3 => Just("Always"), 1 => Just("OnFailure"), 1 => Just("Never")];
    let mode = proptest::sample::select(Mode::ALL.to_vec());
    let kind = prop_oneof![2 => Just("Pod"), 1 => Just("Job")];
    (mode, vec(init, 0..4), vec(container("app-", Kind::Main), 1..3), policy, kind, any::<[prop::sample::Index; 3]>(), any::<bool>())
        .prop_map(|(mode, mut inits, mut mains, policy, kind, places, gated)| {
            unique(&mut inits);
            unique(&mut mains);
            add_mesh(mode, &mut inits, &mut mains, places, gated);
            let labels = if mode == Mode::Ambient { json!({"istio.io/dataplane-mode": "ambient"}) } else { json!({}) };
            let template = json!({"metadata": {"labels": labels}, "spec":
                {"restartPolicy": policy, "terminationGracePeriodSeconds": 10, "initContainers": inits, "containers": mains}});
            if kind == "Job" {
                json!({"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}})
            } else {
                let mut pod = template;
                pod["kind"] = json!("Pod");
                pod
            }
        })
}

fn unique(list: &mut Vec<Value>) {
    let mut seen = Vec::new();
    list.retain(|c| {
        !seen.contains(&c["name"]) && {
            seen.push(c["name"].clone());
            true
        }
    });
}

fn add_mesh(
    mode: Mode,
    inits: &mut Vec<Value>,
    mains: &mut Vec<Value>,
    places: [prop::sample::Index; 3],
    gated: bool,
) {
    if matches!(mode, Mode::None | Mode::Ambient) {
        return;
    }
    let ready = json!({"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1, "failureThreshold": 600});
    let user = json!({"runAsUser": 1337, "runAsGroup": 1337});
    let mut proxy = json!({"name": "istio-proxy", "readinessProbe": ready, "securityContext": user});
    let name = if mode.is_cni() {
        "istio-validation"
    } else {
        "istio-init"
    };
    let user = if mode.is_cni() {
        user
    } else {
        json!({"runAsUser": 0})
    };
    let at = places[0].index(inits.len() + 1);
    inits.insert(at, json!({"name": name, "securityContext": user}));
    if mode.is_native() {
        proxy["restartPolicy"] = json!("Always");
        if gated {
            proxy["startupProbe"] = ready;
        }
        let after = at + 1 + places[1].index(inits.len() - at);
        inits.insert(after, proxy);
    } else if mode.is_hold() {
        proxy["lifecycle"] = json!({"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}});
        mains.insert(0, proxy);
    } else {
        mains.insert(places[2].index(mains.len() + 1), proxy);
    }
}

fn letter(state: &NetState) -> Reach {
    match state {
        NetState::Direct => Reach::Direct,
        NetState::Broken => Reach::Broken,
        NetState::Proxied => Reach::Proxied,
        NetState::Excluded(why) => Reach::Excluded(why.clone()),
    }
}

fn allowed(reach: &Reach, seen: &Reach) -> bool {
    reach == seen || (*reach == Reach::Racing && matches!(seen, Reach::Broken | Reach::Proxied))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, max_global_rejects: 1_000_000, ..ProptestConfig::default() })]

    #[test]
    fn nonsense_is_survived(document in nonsense(), mode in option::of(proptest::sample::select(Mode::ALL.to_vec()))) {
        let options = Options { mode, ..Options::default() };
        let fixed = fix(&document, &options);
        let scenario = Scenario { horizon: 20_000, ..Scenario::usual(&fixed.report.analysis) };
        _ = simulate(&scenario).named(&scenario);
    }

    #[test]
    fn fixing_leaves_no_error_that_has_a_fix(document in pod()) {
        let fixed = fix(&document, &Options::default());
        let left: Vec<_> = fixed.report.findings.iter().filter(|f| f.severity == Severity::Error && !f.fixes.is_empty()).collect();
        prop_assert!(left.is_empty(), "{left:#?} after {:?} in {:#}", fixed.applied, fixed.document);
    }

    #[test]
    fn fixing_twice_changes_nothing(document in pod()) {
        let once = fix(&document, &Options::default());
        let twice = fix(&once.document, &Options::default());
        prop_assert_eq!(&twice.document, &once.document);
        prop_assert!(twice.applied.is_empty());
    }

    #[test]
    fn checking_is_deterministic(document in pod()) {
        let (a, b) = (check(&document, &Options::default()), check(&document, &Options::default()));
        prop_assert_eq!(a.findings, b.findings);
    }

    #[test]
    fn what_the_simulation_shows_the_analysis_allows(document in pod()) {
        let analysis = Analysis::new(PodView::read(&document), None);
        let scenario = Scenario { horizon: 40_000, ..Scenario::usual(&analysis) };
        let trace = simulate(&scenario);
        for lane in &trace.network {
            let spans = analysis.spans(lane.who.actor);
            for (at, state) in &lane.states {
                let seen = letter(state);
                prop_assert!(
                    spans.iter().any(|s| allowed(&s.reach, &seen)),
                    "{} sees {} at {at}, of {:?}", trace.name(&scenario, lane.who), state.as_str(), spans
                );
            }
            let first_time = lane.who.instance == 1 && lane.who.actor.part == Part::Main;
            if let (true, Some((_, first)), Some(span)) = (first_time, lane.states.first(), spans.first()) {
                prop_assert!(
                    allowed(&span.reach, &letter(first)),
                    "{} first sees {}, not {:?}", trace.name(&scenario, lane.who), first.as_str(), span.reach
                );
            }
        }
    }

    #[test]
    fn the_simulation_keeps_to_the_bounds_of_the_steps(document in pod(), old in any::<bool>()) {
        let analysis = Analysis::new(PodView::read(&document), None);
        let mut scenario = Scenario::life(&analysis);
        scenario.kubelet.relist_on_demand = !old;
        let trace = simulate(&scenario);
        let first = |wanted: &dyn Fn(&What) -> bool| trace.entries.iter().find(|e| wanted(&e.what)).map(|e| e.at);
        let main = |w: &ActorRef, slot: Slot| w.instance == 1 && w.actor == Actor::main(slot);
        let of = |anchor: Anchor| match anchor {
            Anchor::Sandbox => first(&|w| *w == What::SandboxReady),
            Anchor::Captured => first(&|w| matches!(w, What::Captured(_))),
            Anchor::Started(slot) => first(&|w| matches!(w, What::Started(who) if main(who, slot))),
            // Only an end that went well lets the next one start.
            Anchor::Ended(slot) => first(&|w| matches!(w, What::Exited(who, 0, _) if who.actor == Actor::main(slot))),
            Anchor::Deleted => first(&|w| *w == What::DeleteRequested),
            _ => None,
        };
        for timed in analysis.steps(&scenario.kubelet) {
            let at = match timed.step {
                Step::Start(slot) => of(Anchor::Started(slot)),
                Step::Captured => of(Anchor::Captured),
                Step::PreStop(slot) => {
                    let part = Part::Hook(Hook::PreStop);
                    let deleted = of(Anchor::Deleted);
                    let at = trace.entries.iter().filter(|e| Some(e.at) >= deleted && deleted.is_some());
                    at.filter(|e| matches!(&e.what, What::Started(w) if w.actor == Actor { slot, part })).map(|e| e.at).next()
                }
                _ => None,
            };
            let (Some(at), Some(after)) = (at, of(timed.when.after)) else { continue };
            // A pass that was under way when the pod was deleted, or a restart, may lie between.
            let troubled = matches!(timed.step, Step::PreStop(_))
                || trace.entries.iter().any(|e| e.at < at && matches!(e.what, What::Recorded(_, "BackOff" | "Killing")));
            let since = at.checked_sub(after);
            prop_assert!(since.is_some_and(|s| s >= timed.when.earliest), "{timed:?} at {at} after {after}");
            if !troubled {
                prop_assert!(since.zip(timed.when.latest).is_none_or(|(s, l)| s <= l), "{timed:?} at {at} after {after}");
            }
        }
    }

    #[test]
    fn a_deadlock_of_init_containers_keeps_the_mains_from_starting(document in pod()) {
        let analysis = Analysis::new(PodView::read(&document), None);
        let stuck = analysis.cycles.iter().any(|c| {
            let init = c.culprit().is_some_and(|s| analysis.view.containers[s].kind != Kind::Main);
            let hook = c.edges.iter().any(|e| matches!(e.from, remora_startup::analysis::Node::PostStart(_)));
            c.certain && init && !hook
        });
        prop_assume!(stuck);
        let scenario = Scenario { horizon: 40_000, ..Scenario::usual(&analysis) };
        let trace = simulate(&scenario);
        let mains = analysis.view.main_slots();
        let started = trace.entries.iter().any(|e| matches!(e.what, What::Started(w) if mains.contains(&w.actor.slot)));
        prop_assert!(!started);
    }
}
