//! The graph of waits between containers, and its cycles.
//!
//! Nodes are events that have to happen, an edge says that one event waits for another and why. A cycle is a
//! deadlock: the pod hangs, or continues only because something in the cycle fails.

use std::collections::{BTreeMap, VecDeque};

use super::probe_paths::{self, Path, ProbeReport};
use super::{ActorReport, Reach};
use crate::mesh::{CapturePoint, Gate, Mode, Setup};
use crate::needs::Need;
use crate::sim::{Actor, Part};
use remora_pod::spec::{Handler, Hook, Kind, PodView, ProbeKind, Slot};

/// Maximum number of reported cycles; a hostile document could have thousands.
const MAX_CYCLES: usize = 32;

/// An event that has to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The container's process exists.
    Start(Slot),
    /// The init container has ended well, or the native sidecar counts as started.
    Settled(Slot),
    /// Its startup probe has succeeded.
    StartupProbe(Slot),
    /// Its postStart hook has ended.
    PostStart(Slot),
    /// Its traffic reaches its destination.
    Network(Slot),
    /// The proxy takes traffic.
    ProxyUp,
    /// The API shows the pod's address.
    Address,
}

impl Node {
    /// The container it is about.
    pub const fn slot(self) -> Option<Slot> {
        match self {
            Self::Start(s)
            | Self::Settled(s)
            | Self::StartupProbe(s)
            | Self::PostStart(s)
            | Self::Network(s) => Some(s),
            Self::ProxyUp | Self::Address => None,
        }
    }

    /// In words.
    pub fn describe(self, view: &PodView) -> String {
        let name = |s: Slot| view.containers.get(s).map_or("?", |c| c.name.as_str());
        match self {
            Self::Start(s) => format!("the start of {}", name(s)),
            Self::Settled(s) if view.containers.get(s).is_some_and(|c| c.kind == Kind::Sidecar) => {
                format!("{} counting as started", name(s))
            }
            Self::Settled(s) => format!("the end of {}", name(s)),
            Self::StartupProbe(s) => format!("the startup probe of {}", name(s)),
            Self::PostStart(s) => format!("the postStart hook of {}", name(s)),
            Self::Network(s) => format!("network for {}", name(s)),
            Self::ProxyUp => "the proxy taking traffic".to_owned(),
            Self::Address => "the pod's address in the API".to_owned(),
        }
    }
}

/// One event waits for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The event that waits.
    pub from: Node,
    /// The event that it waits for.
    pub to: Node,
    /// The reason.
    pub why: &'static str,
    /// False if it depends on an inferred need for the network.
    pub certain: bool,
}

/// A wait that never ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    /// The edges, each beginning where the one before ends.
    pub edges: Vec<Edge>,
    /// False if one of the edges depends on an inferred need.
    pub certain: bool,
}

impl Cycle {
    /// The container whose wait for the mesh closes the cycle.
    pub fn culprit(&self) -> Option<Slot> {
        self.edges.first().and_then(|e| e.from.slot())
    }

    /// The node whose wait for the mesh closes the cycle.
    pub fn begins(&self) -> Option<Node> {
        self.edges.first().map(|e| e.from)
    }
}

/// All cycles, one per container they begin in.
pub(super) fn cycles(
    view: &PodView,
    setup: &Setup,
    actors: &[ActorReport],
    probes: &[ProbeReport],
    address_before_hooks: bool,
) -> Vec<Cycle> {
    if setup.mode == Mode::None {
        return Vec::new();
    }
    let graph = Graph {
        view,
        setup,
        actors,
        probes,
        address_before_hooks,
        edges: Vec::new(),
    }
    .build();
    let from = by_origin(&graph);
    let mut ways: BTreeMap<Node, BTreeMap<Node, usize>> = BTreeMap::new();
    let mut out: Vec<Cycle> = Vec::new();
    for edge in &graph {
        // A cycle is reported at the wait that the mesh introduces.
        if !matches!(edge.to, Node::ProxyUp | Node::Address) && !is_agent_wait(edge, setup) {
            continue;
        }
        if out.len() >= MAX_CYCLES || out.iter().any(|c| c.edges.contains(edge)) {
            continue;
        }
        let ways = ways
            .entry(edge.to)
            .or_insert_with(|| ways_from(&graph, &from, edge.to));
        if let Some(back) = way_back(&graph, ways, edge) {
            let edges: Vec<Edge> = std::iter::once(edge.clone()).chain(back).collect();
            let certain = edges.iter().all(|e| e.certain);
            out.push(Cycle { edges, certain });
        }
    }
    out
}

fn by_origin(graph: &[Edge]) -> BTreeMap<Node, Vec<usize>> {
    let mut out: BTreeMap<Node, Vec<usize>> = BTreeMap::new();
    for (index, edge) in graph.iter().enumerate() {
        out.entry(edge.from).or_default().push(index);
    }
    out
}

fn is_agent_wait(edge: &Edge, setup: &Setup) -> bool {
    matches!(edge.from, Node::StartupProbe(_) | Node::PostStart(_))
        && setup.proxy.is_some_and(|p| edge.to == Node::Start(p))
}

/// For every node that can be reached from one, the last edge of a shortest way to it.
fn ways_from(graph: &[Edge], from: &BTreeMap<Node, Vec<usize>>, start: Node) -> BTreeMap<Node, usize> {
    let mut last = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for &index in from.get(&at).into_iter().flatten() {
            let to = graph[index].to;
            if to != start && !last.contains_key(&to) {
                last.insert(to, index);
                queue.push_back(to);
            }
        }
    }
    last
}

/// The way from the end of an edge back to its beginning.
fn way_back(graph: &[Edge], ways: &BTreeMap<Node, usize>, edge: &Edge) -> Option<Vec<Edge>> {
    let mut back = Vec::new();
    let mut at = edge.from;
    while at != edge.to {
        let last = &graph[*ways.get(&at)?];
        back.push(last.clone());
        at = last.from;
    }
    back.reverse();
    Some(back)
}

struct Graph<'a> {
    view: &'a PodView,
    setup: &'a Setup,
    actors: &'a [ActorReport],
    probes: &'a [ProbeReport],
    address_before_hooks: bool,
    edges: Vec<Edge>,
}

impl Graph<'_> {
    fn add(&mut self, from: Node, to: Node, why: &'static str) {
        self.edges.push(Edge {
            from,
            to,
            why,
            certain: true,
        });
    }

    fn build(mut self) -> Vec<Edge> {
        for slot in 0..self.view.containers.len() {
            self.order(slot);
            self.add_start_done(slot);
            self.hook(slot);
        }
        if let Some(proxy) = self.setup.proxy {
            self.add(
                Node::ProxyUp,
                Node::Start(proxy),
                "the proxy listens only when its container runs",
            );
            if self.setup.mesh.needs_pod_ip {
                self.add(
                    Node::ProxyUp,
                    Node::Address,
                    "the control plane serves it once it knows the address",
                );
            }
        }
        if !self.address_before_hooks {
            self.address();
        }
        self.edges
    }

    /// k8s: inits in order, then mains in order, each main after the hook of the one before.
    fn order(&mut self, slot: Slot) {
        let Some(before) = slot.checked_sub(1) else { return };
        match (self.view.containers[before].kind, self.view.containers[slot].kind) {
            (Kind::Main, _) => {
                let why = "main containers start one after another";
                self.add(Node::Start(slot), Node::Start(before), why);
                if self.view.containers[before].post_start.is_some() {
                    self.add(
                        Node::Start(slot),
                        Node::PostStart(before),
                        "a postStart hook holds up all behind it",
                    );
                }
            }
            (Kind::Init, _) => {
                self.add(
                    Node::Start(slot),
                    Node::Settled(before),
                    "an init container has to end before the next",
                );
            }
            (Kind::Sidecar, _) => {
                let why = "a native sidecar has to have started before the next";
                self.add(Node::Start(slot), Node::Settled(before), why);
            }
        }
    }

    fn add_start_done(&mut self, slot: Slot) {
        let container = &self.view.containers[slot];
        match container.kind {
            Kind::Main => {}
            Kind::Init => {
                self.add(Node::Settled(slot), Node::Start(slot), "it has to run");
                self.needs_network(
                    Node::Settled(slot),
                    Actor::main(slot),
                    "it needs network to do its work",
                );
            }
            Kind::Sidecar => {
                self.add(Node::Settled(slot), Node::Start(slot), "it has to run");
                if container.startup.is_some() {
                    let why = "it counts as started once its startup probe succeeds";
                    self.add(Node::Settled(slot), Node::StartupProbe(slot), why);
                    self.probe(slot);
                }
                if container.post_start.is_some() {
                    self.add(
                        Node::Settled(slot),
                        Node::PostStart(slot),
                        "its postStart hook has to end",
                    );
                }
            }
        }
    }

    fn probe(&mut self, slot: Slot) {
        let node = Node::StartupProbe(slot);
        let part = Part::Probe(ProbeKind::Startup);
        self.add(node, Node::Start(slot), "there is nothing to probe before");
        match probe_paths::find(self.probes, slot, part).map(|r| r.path) {
            Some(Path::Exec) => self.needs_network(node, Actor { slot, part }, "its command needs network"),
            path => self.add_kubelet_connection(node, path),
        }
    }

    fn add_kubelet_connection(&mut self, from: Node, path: Option<Path>) {
        let Some(proxy) = self.setup.proxy else { return };
        match path {
            Some(Path::Agent) => self.add(
                from,
                Node::Start(proxy),
                "it was rewritten to the agent beside the proxy",
            ),
            Some(Path::Proxy) => self.add(from, Node::ProxyUp, "the request is captured and needs the proxy"),
            _ => {}
        }
    }

    fn hook(&mut self, slot: Slot) {
        let Some(handler) = &self.view.containers[slot].post_start else {
            return;
        };
        let node = Node::PostStart(slot);
        self.add(node, Node::Start(slot), "the hook runs beside the process");
        if self.setup.is_proxy(slot) {
            if self.setup.gate == Gate::Hook {
                self.add(node, Node::ProxyUp, "the hook waits for the proxy");
            }
            return;
        }
        let part = Part::Hook(Hook::PostStart);
        if matches!(handler, Handler::Exec(_)) {
            self.needs_network(node, Actor { slot, part }, "the hook needs network");
        } else {
            let path = probe_paths::find(self.probes, slot, part).map(|r| r.path);
            self.add_kubelet_connection(node, path);
        }
    }

    /// Without an init container the address is published after the first pass, hooks included.
    fn address(&mut self) {
        let first_pass = match self.view.init_slots().next() {
            Some(first) => first..first + 1,
            None => self.view.main_slots(),
        };
        for slot in first_pass {
            if self.view.containers[slot].post_start.is_some() {
                let why = "the first pass publishes nothing before its hooks have ended";
                self.add(Node::Address, Node::PostStart(slot), why);
            }
        }
    }

    fn needs_network(&mut self, from: Node, who: Actor, why: &'static str) {
        let Some(report) = self.actors.iter().find(|a| a.actor == who) else {
            return;
        };
        let certain = report.need.is_likely();
        let Some(first) = report.spans.first() else { return };
        if matches!(report.need, Need::No(_)) {
            return;
        }
        let captured = matches!(first.reach, Reach::Broken | Reach::Racing | Reach::Proxied);
        let ambient = self.setup.mode == Mode::Ambient;
        if !captured || self.setup.capture_at == CapturePoint::Never || (ambient && self.address_before_hooks)
        {
            return;
        }
        let slot = who.slot;
        self.edges.push(Edge {
            from,
            to: Node::Network(slot),
            why,
            certain,
        });
        let (to, because) = if ambient {
            (
                Node::Address,
                "the node's proxy waits until it knows the pod's address",
            )
        } else {
            (Node::ProxyUp, "its traffic is captured and needs the proxy")
        };
        if !self
            .edges
            .iter()
            .any(|e| e.from == Node::Network(slot) && e.to == to)
        {
            self.edges.push(Edge {
                from: Node::Network(slot),
                to,
                why: because,
                certain: true,
            });
        }
    }
}
