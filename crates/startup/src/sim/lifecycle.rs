//! Processes from their start to their end, and their network state in between.

use super::actor::{Actor, ActorRef, Part};
use super::behaviour::Role;
use super::process::{Pid, Process};
use super::simulation::{Due, KILLED_EXIT_CODE, Simulation};
use super::trace::{What, lanes_of};
use crate::kubelet::{Event, Millis, Outcome};
use crate::network::{self, Flow, NetState};
use remora_pod::spec::{Handler, Hook, ProbeKind, Slot};

const SAMPLE_INTERVAL: Millis = 100;
const HOOK_POLL_INTERVAL: Millis = 500;
const CAPTURE_DURATION: Millis = 8;

impl Simulation<'_> {
    pub(super) fn launch_container(&mut self, slot: Slot) {
        let actor = Actor {
            slot,
            part: Part::Main,
        };
        if let Some(error) = self.scenario.behaviour(actor).unavailable {
            self.inbox.push_back(Event::StartFailed(slot, error));
            return;
        }
        self.inbox.push_back(Event::Started(slot));
        self.launch(actor);
    }

    pub(super) fn launch_hook(&mut self, slot: Slot, hook: Hook) {
        let handler = self.scenario.view.containers[slot].hook(hook);
        match handler {
            Some(Handler::Exec(_)) if self.main_of(slot).is_some() => {
                self.launch(Actor {
                    slot,
                    part: Part::Hook(hook),
                });
            }
            Some(handler) if !matches!(handler, Handler::Exec(_)) => {
                let ok = self.dial_hook(self.now, handler);
                self.inbox.push_back(Event::HookDone(slot, hook, ok));
            }
            _ => self.inbox.push_back(Event::HookDone(slot, hook, false)),
        }
    }

    pub(super) fn launch_probe(&mut self, slot: Slot, kind: ProbeKind) {
        if self.main_of(slot).is_none() {
            self.inbox.push_back(Event::Probed(slot, kind, Outcome::Failure));
            return;
        }
        let pid = self.launch(Actor {
            slot,
            part: Part::Probe(kind),
        });
        let timeout = self.scenario.view.containers[slot]
            .probe(kind)
            .map_or(1, |p| p.timeout);
        self.schedule(timeout.saturating_mul(1000), Due::Timeout(pid));
    }

    fn launch(&mut self, actor: Actor) -> Pid {
        let instance = self.starts.entry(actor).or_insert(0);
        *instance += 1;
        let who = ActorRef {
            actor,
            instance: *instance,
        };
        let behaviour = self.scenario.behaviour(actor);
        self.network.extend(lanes_of(who, &behaviour));
        let pid = self.processes.len();
        let process = Process::new(who, behaviour, self.now);
        let (role, lives) = (process.behaviour.role.clone(), process.behaviour.lives);
        let early = process.dies_early().then_some(process.behaviour.early_life);
        let listens = process.is_proxy();
        let captures = listens && process.behaviour.captures.is_some();
        self.processes.push(process);
        self.record(What::Started(who));
        match role {
            Role::Proxy { ready_after, .. } if listens => {
                self.record(What::AgentUp(who));
                self.schedule(ready_after, Due::ProxyReady(pid));
            }
            Role::App | Role::Proxy { .. } => {}
            Role::Capture(_) => self.schedule(CAPTURE_DURATION, Due::RulesIn(pid)),
            Role::AwaitProxy(_) => self.schedule(0, Due::Poll(pid)),
        }
        if captures {
            self.schedule(CAPTURE_DURATION, Due::RulesIn(pid));
        }
        if let Some(early) = early {
            self.schedule(early, Due::End(pid));
        } else if let Some(lives) = lives {
            self.schedule(lives, Due::End(pid));
        }
        self.sample(pid);
        pid
    }

    pub(super) fn install_rules(&mut self, pid: Pid) {
        let process = &self.processes[pid];
        let (rules, ends) = match (&process.behaviour.role, &process.behaviour.captures) {
            (Role::Capture(rules), _) => (rules, true),
            (_, Some(rules)) => (rules, false),
            _ => return,
        };
        // The rules of a restarted proxy are already installed.
        if !process.alive || (!ends && self.capture.as_ref() == Some(rules)) {
            return;
        }
        let who = process.who;
        self.capture = Some(rules.clone());
        self.upheavals += 1;
        self.record(What::Captured(Some(who)));
        if ends {
            self.schedule(2, Due::End(pid));
        }
    }

    pub(super) fn poll(&mut self, pid: Pid) {
        let process = &self.processes[pid];
        let Role::AwaitProxy(limit) = process.behaviour.role else {
            return;
        };
        if !process.alive {
            return;
        }
        if self.proxy_up() {
            self.end(pid, 0, false);
        } else if self.now.saturating_sub(process.started) >= limit {
            self.end(pid, 1, false);
        } else {
            let left = process.started.saturating_add(limit).saturating_sub(self.now);
            self.schedule(HOOK_POLL_INTERVAL.min(left), Due::Poll(pid));
        }
    }

    fn proxy_up(&self) -> bool {
        self.processes.iter().any(|p| p.is_proxy() && p.ready)
    }

    fn state_of(&self, pid: Pid, target: usize) -> NetState {
        let Some(capture) = &self.capture else {
            return NetState::Direct;
        };
        let process = &self.processes[pid];
        let container = &self.scenario.view.containers[process.who.actor.slot];
        let to = &process.behaviour.targets[target];
        let flow = Flow {
            uid: container.uid,
            gid: container.gid,
            address: to.address,
            port: to.port,
            udp: false,
        };
        network::state(capture, &flow, self.proxy_up())
    }

    /// Records the network state of a process, as a process that connects repeatedly sees it.
    pub(super) fn sample(&mut self, pid: Pid) {
        if !self.processes[pid].alive {
            return;
        }
        let who = self.processes[pid].who;
        let mut works = false;
        for target in 0..self.processes[pid].behaviour.targets.len() {
            let state = self.state_of(pid, target);
            works |= state.works();
            if target == 0 {
                self.keep_connection(pid, &state);
            }
            if self.processes[pid].seen[target].as_ref() != Some(&state) {
                self.processes[pid].seen[target] = Some(state.clone());
                self.record_state(who, target, state.clone());
                self.record(What::Network(who, target, state));
            }
        }
        let process = &mut self.processes[pid];
        process.connected_once |= works;
        if works && process.behaviour.ends_connected {
            self.schedule(1, Due::End(pid));
        } else if !process.seen.is_empty() {
            self.schedule(SAMPLE_INTERVAL, Due::Sample(pid));
        }
    }

    fn record_state(&mut self, who: ActorRef, target: usize, state: NetState) {
        let now = self.now;
        if let Some(lane) = self.network.iter_mut().filter(|l| l.who == who).nth(target) {
            lane.states.push((now, state));
        }
    }

    /// A persistent connection breaks at its next packet when rules are installed or its proxy ends.
    fn keep_connection(&mut self, pid: Pid, state: &NetState) {
        let upheavals = self.upheavals;
        let process = &mut self.processes[pid];
        if !process.behaviour.keeps_connection {
            return;
        }
        let who = process.who;
        match &process.connection {
            Some((_, then)) if *then != upheavals => {
                process.connection = None;
                self.record(What::ConnectionBroken(who));
            }
            None if state.works() => {
                process.connection = Some((state.clone(), upheavals));
                self.record(What::ConnectionOpened(who));
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self, pid: Pid, code: i32, killed: bool) {
        if !self.processes[pid].alive {
            return;
        }
        let early = self.processes[pid].dies_early() && !self.processes[pid].signalled;
        let code = if early && !killed { 1 } else { code };
        if self.processes[pid].is_proxy() && self.processes[pid].ready {
            self.upheavals += 1;
        }
        self.processes[pid].alive = false;
        let who = self.processes[pid].who;
        self.record(What::Exited(who, code, killed));
        let slot = who.actor.slot;
        match who.actor.part {
            Part::Main => {
                self.inbox.push_back(Event::Exited(slot, code));
                self.end_execs(slot);
            }
            Part::Hook(hook) => self.inbox.push_back(Event::HookDone(slot, hook, code == 0)),
            Part::Probe(kind) => {
                let outcome = if code == 0 {
                    Outcome::Success
                } else {
                    Outcome::Failure
                };
                self.inbox.push_back(Event::Probed(slot, kind, outcome));
            }
        }
    }

    /// Commands running in a container die with it.
    fn end_execs(&mut self, slot: Slot) {
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive && self.processes[pid].who.actor.slot == slot {
                self.end(pid, KILLED_EXIT_CODE, true);
            }
        }
    }
}
