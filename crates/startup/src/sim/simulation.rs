//! The virtual clock, the processes, and the kubelet between them.

use std::collections::{BTreeMap, VecDeque};

use super::actor::{Actor, Part};
use super::process::{Pid, Process};
use super::trace::{Change, Entry, Lane, Namer, Trace, What, changes};
use super::{Act, Scenario};
use crate::kubelet::{Action, Event, Kubelet, Millis, Outcome, Status};
use crate::network::Capture;
use remora_pod::spec::{Handler, Hook, PodView, ProbeKind, Slot};

pub(super) const KILLED_EXIT_CODE: i32 = 137;
/// Maximum number of events: more than any realistic scenario has, so that every simulation ends.
const MAX_EVENTS: usize = 500_000;

/// A scheduled event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    SandboxUp,
    SandboxDown,
    Launch(Slot),
    LaunchHook(Slot, Hook),
    LaunchProbe(Slot, ProbeKind),
    HookOver(Slot, Hook, bool),
    ProbeOver(Slot, ProbeKind, Outcome),
    Timeout(Pid),
    ProxyReady(Pid),
    RulesIn(Pid),
    Poll(Pid),
    Sample(Pid),
    End(Pid),
    Stopped(Pid),
    Kill(Pid),
    Intervene(usize),
    KubeletBack,
}

pub(super) struct Simulation<'a> {
    pub(super) scenario: &'a Scenario,
    namer: Namer<'a>,
    pub(super) now: Millis,
    queue: BTreeMap<(Millis, u64), Due>,
    sequence: u64,
    /// State of the generator of lateness.
    drawn: u64,
    kubelet: Kubelet,
    pub(super) inbox: VecDeque<Event>,
    kubelet_down: bool,
    pub(super) processes: Vec<Process>,
    pub(super) starts: BTreeMap<Actor, u32>,
    pub(super) capture: Option<Capture>,
    /// Counts changes that break connections: new rules, a proxy's death.
    pub(super) upheavals: u64,
    entries: Vec<Entry>,
    pub(super) network: Vec<Lane>,
    fired: Vec<bool>,
    seen: Status,
    gone: bool,
    over: bool,
}

impl<'a> Simulation<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let kubelet = Kubelet::new(scenario.view.clone(), scenario.kubelet.clone());
        let seen = kubelet.status().clone();
        Self {
            scenario,
            namer: Namer::new(scenario),
            now: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            drawn: scenario.latency.seed,
            kubelet,
            inbox: VecDeque::from([Event::Assigned]),
            kubelet_down: false,
            processes: Vec::new(),
            starts: BTreeMap::new(),
            capture: None,
            upheavals: 0,
            entries: Vec::new(),
            network: Vec::new(),
            fired: vec![false; scenario.interventions.len()],
            seen,
            gone: false,
            over: false,
        }
    }

    pub(super) fn view(&self) -> &PodView {
        &self.scenario.view
    }

    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    pub(super) fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    pub(super) fn run(mut self) -> Trace {
        self.record(What::Created);
        self.record(What::Published(Change::Phase(self.seen.phase)));
        self.deliver_events();
        let mut events = 0;
        while !self.over && events < MAX_EVENTS && self.advance() {
            events += 1;
        }
        Trace {
            entries: self.entries,
            network: self.network,
            status: self.seen,
            gone: self.gone,
            end: self.now,
        }
    }

    /// Advances the clock to the next scheduled event; false if there is none before the end.
    fn advance(&mut self) -> bool {
        let own = self.queue.first_key_value().map(|((at, _), _)| *at);
        let kubelet = if self.kubelet_down {
            None
        } else {
            self.kubelet.next_wakeup(self.now)
        };
        let kubelet = kubelet.filter(|_| !self.kubelet.is_finished());
        let Some(next) = own.into_iter().chain(kubelet).min() else {
            return false;
        };
        if next > self.scenario.horizon {
            self.now = self.scenario.horizon;
            return false;
        }
        self.now = self.now.max(next);
        if own == Some(next)
            && let Some((_, due)) = self.queue.pop_first()
        {
            self.handle_due(due);
        } else {
            self.inbox.push_back(Event::Tick);
        }
        self.deliver_events();
        true
    }

    pub(super) fn schedule(&mut self, after: Millis, due: Due) {
        self.sequence += 1;
        let at = self.now.saturating_add(after).saturating_add(self.random_delay());
        self.queue.insert((at, self.sequence), due);
    }

    /// The random delay of the next event.
    fn random_delay(&mut self) -> Millis {
        if self.scenario.latency.lateness == 0 {
            return 0;
        }
        // splitmix64: every seed is a good one.
        self.drawn = self.drawn.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.drawn;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % (self.scenario.latency.lateness + 1)
    }

    /// Delivers pending events to the kubelet and executes its actions, until there are none left.
    fn deliver_events(&mut self) {
        while !self.kubelet_down
            && let Some(event) = self.inbox.pop_front()
        {
            for action in self.kubelet.step(self.now, event) {
                self.execute(action);
            }
        }
    }

    pub(super) fn record(&mut self, what: What) {
        for index in 0..self.fired.len() {
            let wish = &self.scenario.interventions[index];
            if !self.fired[index] && self.namer.id(&what) == wish.on {
                self.fired[index] = true;
                self.schedule(wish.after, Due::Intervene(index));
            }
        }
        self.entries.push(Entry { at: self.now, what });
    }

    fn execute(&mut self, action: Action) {
        let latency = &self.scenario.latency;
        match action {
            Action::CreateSandbox => self.schedule(latency.sandbox, Due::SandboxUp),
            Action::StopSandbox => self.schedule(latency.sandbox_stop, Due::SandboxDown),
            Action::Start(slot, _) => self.schedule(latency.start, Due::Launch(slot)),
            Action::RunHook(slot, hook) => self.run_hook(slot, hook),
            Action::RunProbe(slot, kind) => self.run_probe(slot, kind),
            Action::Stop(slot, grace) => self.stop(slot, grace),
            Action::Publish(status) => {
                for change in changes(&self.seen, &status) {
                    self.record(What::Published(change));
                }
                self.seen = *status;
            }
            Action::Record(slot, reason) => self.record(What::Recorded(slot, reason)),
            Action::Removed => {
                self.gone = true;
                self.record(What::Removed);
            }
            Action::AbandonHook(..) => {}
        }
    }

    fn run_hook(&mut self, slot: Slot, hook: Hook) {
        let latency = &self.scenario.latency;
        match self.scenario.view.containers[slot].hook(hook) {
            Some(Handler::Exec(_)) => self.schedule(latency.exec, Due::LaunchHook(slot, hook)),
            Some(Handler::Sleep(seconds)) => {
                self.schedule(seconds.saturating_mul(1000), Due::HookOver(slot, hook, true));
            }
            Some(_) => self.schedule(latency.dial, Due::LaunchHook(slot, hook)),
            None => self.schedule(0, Due::HookOver(slot, hook, true)),
        }
    }

    fn run_probe(&mut self, slot: Slot, kind: ProbeKind) {
        let Some(probe) = self.scenario.view.containers[slot].probe(kind) else {
            return;
        };
        if matches!(probe.handler, Handler::Exec(_)) {
            self.schedule(self.scenario.latency.exec, Due::LaunchProbe(slot, kind));
        } else {
            let outcome = self.dial_probe(self.now, &probe.handler);
            self.schedule(2, Due::ProbeOver(slot, kind, outcome));
        }
    }

    fn stop(&mut self, slot: Slot, grace: Millis) {
        let Some(pid) = self.main_of(slot) else { return };
        if !self.processes[pid].signalled {
            self.processes[pid].signalled = true;
            self.record(What::Signalled(self.processes[pid].who));
            if let Some(drain) = self.processes[pid].behaviour.drains {
                self.schedule(drain.max(1), Due::Stopped(pid));
            }
        }
        self.schedule(grace, Due::Kill(pid));
    }

    pub(super) fn main_of(&self, slot: Slot) -> Option<Pid> {
        let wanted = Actor {
            slot,
            part: Part::Main,
        };
        self.processes
            .iter()
            .rposition(|p| p.alive && p.who.actor == wanted)
    }

    fn handle_due(&mut self, due: Due) {
        match due {
            Due::SandboxUp => self.sandbox_up(),
            Due::SandboxDown => {
                self.capture = None;
                self.record(What::SandboxRemoved);
                self.inbox.push_back(Event::SandboxStopped);
            }
            Due::Launch(slot) => self.launch_container(slot),
            Due::LaunchHook(slot, hook) => self.launch_hook(slot, hook),
            Due::LaunchProbe(slot, kind) => self.launch_probe(slot, kind),
            Due::HookOver(slot, hook, ok) => self.inbox.push_back(Event::HookDone(slot, hook, ok)),
            Due::ProbeOver(slot, kind, outcome) => self.inbox.push_back(Event::Probed(slot, kind, outcome)),
            Due::Timeout(pid) | Due::Kill(pid) => self.end(pid, KILLED_EXIT_CODE, true),
            Due::ProxyReady(pid) if self.processes[pid].alive => {
                self.processes[pid].ready = true;
                self.record(What::ProxyReady(self.processes[pid].who));
            }
            Due::RulesIn(pid) => self.install_rules(pid),
            Due::Poll(pid) => self.poll(pid),
            Due::Sample(pid) => self.sample(pid),
            Due::End(pid) => self.end(pid, self.processes[pid].own_code(), false),
            Due::Stopped(pid) => self.end(pid, self.processes[pid].behaviour.stop_code, false),
            Due::Intervene(index) => self.intervene(index),
            Due::KubeletBack => {
                self.kubelet_down = false;
                self.inbox.push_front(Event::Restarted);
            }
            Due::ProxyReady(_) => {}
        }
    }

    fn sandbox_up(&mut self) {
        self.capture.clone_from(&self.scenario.at_sandbox);
        if let Some(capture) = &self.capture {
            if capture.is_ambient() {
                self.record(What::NodeProxyReady);
            }
            self.record(What::Captured(None));
        }
        self.record(What::SandboxReady);
        self.inbox.push_back(Event::SandboxCreated);
    }

    fn intervene(&mut self, index: usize) {
        match self.scenario.interventions[index].act {
            Act::Delete(grace) => {
                self.record(What::DeleteRequested);
                self.inbox.push_back(Event::Deleted(grace));
            }
            Act::LoseSandbox => {
                self.record(What::SandboxLost);
                self.inbox.push_back(Event::SandboxLost);
            }
            Act::RestartKubelet => {
                self.kubelet_down = true;
                self.record(What::KubeletRestarted);
                self.schedule(self.scenario.latency.kubelet_restart, Due::KubeletBack);
            }
            Act::QuitProxy => {
                if let Some(pid) = self.processes.iter().position(Process::is_proxy) {
                    self.record(What::ProxyQuit(self.processes[pid].who));
                    self.end(pid, 0, false);
                }
            }
            Act::End => self.over = true,
        }
    }
}
