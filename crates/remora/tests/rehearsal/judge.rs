//! What was seen against what is expected.

use crate::stage::Performance;
use serde_json::Value;

/// States other than the four that count are forgotten when they last no longer than this.
const TRANSIENT: f64 = 1200.0;
/// Times told by the engine are cut to whole milliseconds.
const COARSE: f64 = 1.5;
const STATES: [&str; 4] = ["direct", "broken", "proxied", "excluded"];

impl Performance {
    /// Makes of what connections met what it means.
    pub(crate) fn settle(&mut self) {
        let marks: Vec<(f64, bool)> = self
            .events
            .iter()
            .filter_map(|e| match e.id.as_str() {
                "cni.cni-del" => Some((e.at, false)),
                id if id.ends_with(".captured") => Some((e.at, true)),
                _ => None,
            })
            .collect();
        let end = self.events.last().map_or(0.0, |e| e.at);
        for (lane, states) in &mut self.network {
            let who = lane.split(':').next().unwrap_or_default();
            let exit = format!("{who}.exit");
            let end = self.events.iter().find(|e| e.id == exit).map_or(end, |e| e.at);
            let ends: Vec<f64> = states.iter().skip(1).map(|s| s.0).chain([end]).collect();
            let mut settled: Vec<(f64, String)> = Vec::new();
            for ((at, state), until) in states.drain(..).zip(ends) {
                let captured = marks
                    .iter()
                    .rev()
                    .find(|(mark, _)| *mark <= at)
                    .is_some_and(|m| m.1);
                let state = match state.as_str() {
                    "direct" if captured => "excluded".to_owned(),
                    _ => state,
                };
                let passing = !STATES.contains(&state.as_str()) && until - at < TRANSIENT;
                let same = settled.last().is_some_and(|(_, last)| *last == state);
                if !passing && !same {
                    settled.push((at, state));
                }
            }
            *states = settled;
        }
    }

    /// The nth event of a name: `~2` is the second.
    fn find(&self, id: &str) -> Option<(f64, bool)> {
        let id = id.replace("#1.", ".");
        let (id, nth) = match id.split_once('~') {
            Some((id, n)) => (id, n.parse().unwrap_or(1)),
            None => (id.as_str(), 1),
        };
        let found = self.events.iter().filter(|e| e.id == id).nth(nth - 1);
        found.map(|e| (e.at, e.coarse))
    }

    /// Whether one thing came before another.
    pub(crate) fn before(&self, first: &str, second: &str) -> Result<(), String> {
        let (a, a_coarse) = self.find(first).ok_or_else(|| format!("no {first}"))?;
        let (b, b_coarse) = self.find(second).ok_or_else(|| format!("no {second}"))?;
        let slack = if a_coarse || b_coarse { COARSE } else { 0.0 };
        if a < b + slack {
            Ok(())
        } else {
            Err(format!("not {first} < {second} ({a:.1} and {b:.1} ms)"))
        }
    }

    pub(crate) fn states(&self, actor: &str) -> Vec<&str> {
        let states = self.network.get(actor).map_or(&[][..], Vec::as_slice);
        states.iter().map(|(_, state)| state.as_str()).collect()
    }

    /// What does not hold of `order`, `never`, `network` and `final_phase`.
    pub(crate) fn wrong(&self, expected: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        for order in strings(&expected["order"]) {
            match order.split_once(" < ") {
                Some((first, second)) => wrong.extend(self.before(first, second).err()),
                None => wrong.push(format!("unreadable order {order:?}")),
            }
        }
        for id in strings(&expected["never"]) {
            if self.find(&id).is_some() {
                wrong.push(format!("{id} happens"));
            }
        }
        for (actor, states) in expected["network"].as_object().into_iter().flatten() {
            let (states, found) = (strings(states), self.states(actor));
            if found != states {
                wrong.push(format!("{actor} sees {found:?} instead of {states:?}"));
            }
        }
        let phase = self.status.as_ref().map_or("", |s| s.phase.as_str());
        let wanted = &expected["final_phase"];
        if wanted != phase && !strings(wanted).iter().any(|w| w == phase) {
            wrong.push(format!("final phase {phase} instead of {wanted}"));
        }
        wrong
    }
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().map_or(&[][..], Vec::as_slice);
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    items.iter().map(text).collect()
}
