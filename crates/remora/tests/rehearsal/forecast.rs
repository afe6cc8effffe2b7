//! What the model says must happen, however slow the machine: what all of many simulations have in common.

use crate::play::Play;
use crate::stage::Performance;
use remora_startup::network::NetState;
use remora_startup::sim::{Latency, Trace, simulate};
use std::collections::{BTreeMap, BTreeSet};

/// How much later than ideal things may come, and how often that is drawn.
const LATENESS: [(u64, u64); 6] = [(0, 1), (30, 8), (120, 12), (400, 16), (1000, 24), (2500, 24)];

/// A state that lasts no longer may be missed.
const BRIEF: u64 = 250;

/// What can be said for certain.
pub(crate) struct Forecast {
    /// Events of every simulation, with their times.
    runs: Vec<BTreeMap<String, u64>>,
    lanes: BTreeMap<String, BTreeSet<Vec<String>>>,
    phases: BTreeSet<&'static str>,
}

/// Events that processes tell themselves, and what the pod's phase does.
fn counts(id: &str) -> bool {
    [".start", ".exit", ".sigterm", ".captured", ".proxy-ready"]
        .iter()
        .any(|end| id.ends_with(end))
        && !id.starts_with("ctr:")
        || id.starts_with("pod.phase=")
        || id == "pod.gone"
}

/// What somebody may see who looks ten times a second: what lasts shorter than that can be missed.
fn readings(states: &[(u64, NetState)], end: u64) -> Vec<Vec<String>> {
    let ends = states.iter().skip(1).map(|s| s.0).chain([end]);
    let timed: Vec<(&str, bool)> = states
        .iter()
        .zip(ends)
        .map(|((at, state), end)| (state.as_str(), end.saturating_sub(*at) < BRIEF))
        .collect();
    let brief = timed.iter().filter(|(_, brief)| *brief).count().min(6);
    (0..1u32 << brief)
        .map(|missed| {
            let mut nth = 0;
            let mut seen: Vec<String> = Vec::new();
            for (state, brief) in &timed {
                let skipped = *brief && nth < 6 && missed & (1 << nth) != 0;
                nth += usize::from(*brief);
                if !skipped && seen.last().is_none_or(|last| last != state) {
                    seen.push((*state).to_owned());
                }
            }
            seen
        })
        .collect()
}

impl Forecast {
    pub(crate) fn of(play: &Play) -> Self {
        let mut made = Self {
            runs: Vec::new(),
            lanes: BTreeMap::new(),
            phases: BTreeSet::new(),
        };
        for (lateness, draws) in LATENESS {
            for seed in 0..draws {
                let mut scenario = play.scenario.clone();
                scenario.latency = Latency {
                    sandbox: 30,
                    sandbox_stop: 5,
                    start: 15,
                    exec: 10,
                    dial: 5,
                    kubelet_restart: 1,
                    lateness,
                    seed,
                };
                scenario.kubelet.relist_phase = seed * 137 % 1000;
                scenario.kubelet.pass_delay = 100;
                made.add(play, &simulate(&scenario));
            }
        }
        made
    }

    fn add(&mut self, play: &Play, trace: &Trace) {
        let mut run = BTreeMap::new();
        for (at, id) in trace.named(&play.scenario) {
            if counts(&id) {
                run.entry(id).or_insert(at);
            }
        }
        self.runs.push(run);
        for lane in &trace.network {
            let who = trace.name(&play.scenario, lane.who);
            let end = self
                .runs
                .last()
                .and_then(|run| run.get(&format!("{who}.exit")).copied());
            let known = self.lanes.entry(who).or_default();
            known.extend(readings(&lane.states, end.unwrap_or(trace.end)));
        }
        self.phases.insert(trace.status.phase.as_str());
    }

    /// What was seen and cannot be, or was not seen and must be.
    pub(crate) fn wrong(&self, seen: &Performance) -> Vec<String> {
        let mut wrong = Vec::new();
        let found: BTreeSet<&str> = seen
            .events
            .iter()
            .map(|e| e.id.as_str())
            .filter(|id| counts(id))
            .collect();
        let possible: BTreeSet<&str> = self.runs.iter().flatten().map(|(id, _)| id.as_str()).collect();
        for id in found.difference(&possible) {
            wrong.push(format!("{id} happens, which it never does in the model"));
        }
        let certain: Vec<&str> = possible
            .iter()
            .copied()
            .filter(|id| self.runs.iter().all(|run| run.contains_key(*id)))
            .collect();
        for id in certain.iter().filter(|id| !found.contains(*id)) {
            wrong.push(format!("no {id}, which always happens in the model"));
        }
        for first in &certain {
            for second in &certain {
                let always = first != second && self.runs.iter().all(|run| run[*first] < run[*second]);
                if always && found.contains(first) && found.contains(second) {
                    wrong.extend(seen.before(first, second).err());
                }
            }
        }
        for (who, states) in &seen.network {
            let states: Vec<String> = states.iter().map(|(_, s)| s.clone()).collect();
            let known = self.lanes.get(who);
            if !known.is_some_and(|k| k.contains(&states)) {
                wrong.push(format!("{who} sees {states:?}; in the model {known:?}"));
            }
        }
        let phase = seen.status.as_ref().map_or("", |s| s.phase.as_str());
        if !self.phases.contains(phase) {
            wrong.push(format!("final phase {phase}; in the model {:?}", self.phases));
        }
        wrong
    }
}
