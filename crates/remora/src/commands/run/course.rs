//! What happened to a pod, arranged like a prediction, so that both can be drawn and compared.

use super::pods::PodLine;
use remora_pod::spec::PodView;
use remora_startup::analysis::Analysis;
use remora_startup::json;
use remora_startup::kubelet::Millis;
use remora_startup::network::{Flow, NetState};
use remora_startup::sim::{
    self, Act, Actor, ActorRef, Behaviour, Entry, Intervention, Lane, Part, Role, Scenario, Trace, What,
};
use remora_startup::timeline::{Doing, Timeline};
use serde_json::{Value, json};

/// How long a prediction is looked at beyond what was seen.
const LONGER: Millis = 5000;

/// A pod's course as it was, and as it was to be expected.
#[derive(Debug)]
pub(crate) struct Course {
    /// `namespace/name`.
    pub(crate) name: String,
    pub(crate) document: std::sync::Arc<serde_json::Value>,
    pub(crate) measured: Timeline,
    pub(crate) predicted: Timeline,
    /// Both courses, event by event, as `check --assume` tells one.
    events: Value,
    /// Whether it is gone.
    pub(crate) gone: bool,
    was_deleted: bool,
    pub(crate) ready_after: Option<Millis>,
}

impl Course {
    /// Of a pod that got as far as having a status.
    pub(super) fn of(pod: &PodLine) -> Option<Self> {
        let status = pod.status.clone()?;
        let analysis = Analysis::new(PodView::read(&pod.document), None);
        let entries = with_network(pod, &analysis);
        let end = entries.last().map_or(0, |e| e.at);
        let trace = Trace {
            network: lanes(&entries),
            status,
            gone: pod.is_gone(),
            end,
            entries,
        };
        let was_deleted = trace.entries.iter().any(|e| e.what == What::DeleteRequested);
        let scenario = expected(&analysis, &trace.entries, end);
        let simulated = sim::simulate(&scenario);
        Some(Self {
            name: pod.name.clone(),
            document: std::sync::Arc::clone(&pod.document),
            measured: Timeline::of(&scenario, &trace),
            predicted: Timeline::of(&scenario, &simulated),
            events: json!({"measured": json::trace(&scenario, &trace), "predicted": json::trace(&scenario, &simulated)}),
            gone: pod.is_gone(),
            was_deleted,
            ready_after: pod.ready_at.map(|at| at.saturating_sub(pod.made_at())),
        })
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let mut out = json!({"pod": self.name, "readyAfter": self.ready_after});
        if let (Some(out), Value::Object(events)) = (out.as_object_mut(), self.events.clone()) {
            out.extend(events);
        }
        out
    }

    /// Containers whose connections met something else than expected, with what and what.
    pub(crate) fn surprises(&self) -> Vec<(String, Vec<NetState>, Vec<NetState>)> {
        let lanes = self.measured.lanes.iter().zip(&self.predicted.lanes);
        // What was ended before it began, or before its network changed, says nothing.
        let lanes = lanes.filter(|(seen, _)| seen.segments.iter().any(|s| s.doing == Doing::Running));
        let pairs = lanes.map(|(seen, thought)| (seen.name.clone(), states(seen), states(thought)));
        let same = |seen: &[NetState], thought: &[NetState]| {
            seen == thought || self.was_deleted && thought.starts_with(seen)
        };
        pairs.filter(|(_, seen, thought)| !same(seen, thought)).collect()
    }
}

/// The states of a container's connections one after the other, restarts included, repetitions left out.
fn states(lane: &remora_startup::timeline::Lane) -> Vec<NetState> {
    let mut all: Vec<NetState> = Vec::new();
    for state in lane.segments.iter().filter_map(|s| s.network.clone()) {
        if all.last() != Some(&state) {
            all.push(state);
        }
    }
    all
}

/// What the model makes of the pod when its processes take as long as they did, and it is deleted when it was.
fn expected(analysis: &Analysis, entries: &[Entry], end: Millis) -> Scenario {
    let mut scenario = Scenario::usual(analysis);
    scenario.horizon = end.saturating_add(LONGER);
    let last = analysis.view.main_slots().next_back();
    let at = |wanted: &dyn Fn(&What) -> bool| entries.iter().find(|e| wanted(&e.what)).map(|e| e.at);
    for (actor, behaviour) in &mut scenario.actors {
        let started = at(&|what| matches!(what, What::Started(who) if who.actor == *actor));
        let Some(started) = started else { continue };
        if let Role::Proxy { ready_after, .. } = &mut behaviour.role {
            let ready = at(&|what| matches!(what, What::ProxyReady(who) if who.actor == *actor));
            *ready_after = ready.map_or(*ready_after, |ready| ready.saturating_sub(started));
        } else if behaviour.lives.is_some() {
            lived(behaviour, *actor, entries);
        }
    }
    let deleted = at(&|what| *what == What::DeleteRequested);
    if let (Some(slot), Some(deleted)) = (last, deleted) {
        let started = at(&|what| matches!(what, What::Started(who) if who.actor == Actor::main(slot)));
        // A pod that did not get so far was deleted in between.
        let (on, since) = match started.filter(|s| *s <= deleted) {
            Some(started) => (format!("{}.start", analysis.view.containers[slot].name), started),
            None => ("pod.create".to_owned(), 0),
        };
        scenario.interventions.push(Intervention {
            on,
            after: deleted - since,
            act: Act::Delete(None),
        });
    }
    scenario
}

/// A process that ends by itself takes as long as it did, and fails as often.
fn lived(behaviour: &mut Behaviour, actor: Actor, entries: &[Entry]) {
    let mut begun = 0;
    let (mut failed, mut ended) = (Vec::new(), None);
    for entry in entries {
        match entry.what {
            What::Started(who) if who.actor == actor => begun = entry.at,
            What::Exited(who, 0, false) if who.actor == actor => ended = Some(entry.at - begun),
            What::Exited(who, code, false) if who.actor == actor => failed.push((entry.at - begun, code)),
            _ => {}
        }
    }
    let Some((life, code)) = failed.first().copied() else {
        behaviour.lives = ended.or(behaviour.lives);
        return;
    };
    behaviour.must_connect = false;
    if ended.is_some() {
        behaviour.lives = ended;
        behaviour.early_deaths = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        behaviour.early_life = life;
    } else {
        behaviour.lives = Some(life);
        behaviour.exit_code = code;
    }
}

/// The measured states of the pod's network as each container met them, and times from the pod's beginning.
fn with_network(pod: &PodLine, analysis: &Analysis) -> Vec<Entry> {
    let begin = pod.made_at();
    let mut news = pod.network.iter().peekable();
    let mut now: Option<&NetState> = None;
    let mut running: Vec<ActorRef> = Vec::new();
    let mut out = Vec::new();
    for entry in &pod.entries {
        while let Some((at, state)) = news.next_if(|(at, _)| *at <= entry.at) {
            now = Some(state);
            let seen = running.iter().map(|who| meets(analysis, *who, state));
            out.extend(seen.map(|what| Entry {
                at: at.saturating_sub(begin),
                what,
            }));
        }
        let at = entry.at.saturating_sub(begin);
        out.push(Entry {
            at,
            what: entry.what.clone(),
        });
        match &entry.what {
            What::Started(who) if is_application(analysis, *who) => {
                running.push(*who);
                out.extend(now.map(|state| Entry {
                    at,
                    what: meets(analysis, *who, state),
                }));
            }
            What::Exited(who, ..) => running.retain(|r| r != who),
            _ => {}
        }
    }
    out
}

/// The states of the network by process.
fn lanes(entries: &[Entry]) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for entry in entries {
        let What::Network(who, _, state) = &entry.what else {
            continue;
        };
        let news = (entry.at, state.clone());
        match lanes.iter_mut().find(|lane| lane.who == *who) {
            Some(lane) if lane.states.last().is_some_and(|(_, last)| last == state) => {}
            Some(lane) => lane.states.push(news),
            None => lanes.push(Lane {
                who: *who,
                target: None,
                states: vec![news],
            }),
        }
    }
    lanes
}

/// The mesh's own containers are not its subjects.
fn is_application(analysis: &Analysis, who: ActorRef) -> bool {
    let container = &analysis.view.containers[who.actor.slot];
    who.actor.part == Part::Main && !analysis.setup.is_mesh(container)
}

/// What a container's connections meet when the pod's network is in this state: rules spare some users.
fn meets(analysis: &Analysis, who: ActorRef, state: &NetState) -> What {
    let container = &analysis.view.containers[who.actor.slot];
    let flow = Flow {
        uid: container.uid,
        gid: container.gid,
        ..Flow::default()
    };
    let spared = analysis.setup.capture.exempt(&flow);
    let state = match (state, spared) {
        (NetState::Broken | NetState::Proxied, Some(why)) => NetState::Excluded(why),
        (state, _) => state.clone(),
    };
    What::Network(who, 0, state)
}
