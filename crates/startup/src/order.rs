//! Plans the order in which the containers of a pod start.
//!
//! Order is not a side effect of who appended what: every container has a [`Role`] that gives its usual place,
//! and constraints that must hold (capture before proxy, a copy before its user, `start-after`, a declared need
//! for network). [`plan`] walks the usual order and pulls forward only what a constraint asks for, so a list
//! that satisfies everything stays as it is, planning twice changes nothing, and containers nobody spoke about
//! keep their relative order. What cannot be satisfied is reported, never guessed around.
//!
//! Pure: names and roles in, positions and problems out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a container is for, as far as order is concerned. Declared in the usual order of an init list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Checks that somebody captured the pod's traffic.
    Validation,
    /// Captures the pod's traffic, in front of a native proxy.
    Capture,
    /// The proxy.
    Proxy,
    /// Prepares core dumps of the proxy.
    CoreDump,
    /// Collects telemetry of the pod.
    Collector,
    /// Copies an agent into a volume; needs nothing.
    AgentCopy,
    /// The user's own.
    User,
    /// Clones and changes a web server's configuration; the user's containers may render it first.
    WebAgent,
    /// Captures the pod's traffic with a classic proxy: last, so that nothing runs captured and without proxy.
    LateCapture,
    /// As [`Role::CoreDump`], with a classic proxy.
    LateCoreDump,
}

/// What kind of network a container needs while it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Straight out, past the mesh.
    Direct,
    /// Through the proxy.
    Mesh,
    /// None at all.
    Nothing,
    /// Nobody said.
    Unknown,
}

/// One container of a list to be ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Container name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// What network it needs.
    pub need: Need,
    /// Containers of the same list that must start before, as the user declared.
    pub start_after: Vec<String>,
    /// Containers of the same list whose work it uses (an agent it loads, say).
    pub uses: Vec<String>,
    /// Its traffic is not captured (it runs as the proxy's user, say).
    pub exempt: bool,
}

/// When the traffic of a pod is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// Never.
    Never,
    /// By an init container.
    ByInit,
    /// By a native proxy, when it starts.
    ByProxy,
    /// Before any container exists: a CNI plugin.
    Sandbox,
}

/// Where the proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyPlace {
    /// Nowhere.
    None,
    /// Among the main containers.
    Main,
    /// Among the init containers, kept running.
    Native,
}

/// A constraint that cannot hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The container needs network and would run captured without a proxy.
    NoNetwork {
        /// The container.
        name: String,
        /// What it declared.
        need: Need,
    },
    /// It asked to bypass the mesh and will go through it.
    NotDirect {
        /// The container.
        name: String,
    },
    /// Constraints contradict each other; the user's are left out.
    Contradiction {
        /// The containers of the cycle, in order.
        cycle: Vec<String>,
    },
    /// It names a container that is not there.
    UnknownContainer {
        /// The container with the declaration.
        name: String,
        /// What it names.
        unknown: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork { need: Need::Mesh, .. } => f.write_str(
                "needs the mesh while it starts, but the proxy starts only after every init container; \
                 use a native sidecar (--native on)",
            ),
            Self::NoNetwork {
                need: Need::Direct, ..
            } => f.write_str(
                "needs the network while it starts, but its traffic is captured and no proxy runs yet; use a \
                 native sidecar, exclude what it calls (traffic.sidecar.istio.io/excludeOutboundPorts or \
                 excludeOutboundIPRanges), or run it as uid 1337",
            ),
            Self::NoNetwork { name, .. } => write!(
                f,
                "has no network while it runs: its traffic is captured and no proxy runs yet; use a native \
                 sidecar, exclude what it calls, run it as uid 1337, or declare remora.dev/network.{name}: none"
            ),
            Self::NotDirect { .. } => f.write_str(
                "asks for direct network, but traffic is captured before any container starts; it runs after \
                 the proxy and goes through it",
            ),
            Self::Contradiction { cycle } => {
                write!(
                    f,
                    "start order contradicts itself: {}; the declared order is left out",
                    cycle.join(" before ")
                )
            }
            Self::UnknownContainer { name, unknown } => {
                write!(
                    f,
                    "remora.dev/start-after.{name} names {unknown:?}, which is not a container started before it"
                )
            }
        }
    }
}

impl Problem {
    /// The container it is about, if it is about one.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::NoNetwork { name, .. } | Self::NotDirect { name } | Self::UnknownContainer { name, .. } => {
                Some(name)
            }
            Self::Contradiction { .. } => None,
        }
    }
}

/// An order, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Indices into the list that was given.
    pub order: Vec<usize>,
    /// What could not be satisfied.
    pub problems: Vec<Problem>,
}

/// Orders the init containers of a pod.
pub fn plan(items: &[Item], capture: Capture, proxy: ProxyPlace) -> Plan {
    let mut problems = Vec::new();
    let hard = mesh_edges(items, capture, proxy);
    let declared = declared_edges(items, capture, proxy, &mut problems);
    let mut edges = hard.clone();
    edges.extend(declared.iter().copied());
    let usual = usual_order(items);
    let order = match sort(&usual, &edges, items.len()) {
        Ok(order) => order,
        Err(cycle) => {
            problems.push(Problem::Contradiction {
                cycle: named(items, &cycle),
            });
            sort(&usual, &hard, items.len()).unwrap_or(usual)
        }
    };
    problems.extend(network_problems(items, &order, capture, proxy));
    Plan { order, problems }
}

/// What is wrong with an order as it stands; nothing is moved.
pub fn examine(items: &[Item], capture: Capture, proxy: ProxyPlace) -> Vec<Problem> {
    let as_is: Vec<usize> = (0..items.len()).collect();
    network_problems(items, &as_is, capture, proxy)
}

/// Orders main containers: the proxy first when the others are to wait for it, else where it stands.
///
/// The kubelet starts them in this order, each after the previous one's postStart hook.
pub fn plan_main(items: &[Item]) -> Plan {
    let mut problems = Vec::new();
    let edges = declared_order(items, &mut problems);
    let usual: Vec<usize> = (0..items.len()).collect();
    match sort(&usual, &edges, items.len()) {
        Ok(order) => Plan { order, problems },
        Err(cycle) => {
            problems.push(Problem::Contradiction {
                cycle: named(items, &cycle),
            });
            Plan {
                order: usual,
                problems,
            }
        }
    }
}

fn named(items: &[Item], indices: &[usize]) -> Vec<String> {
    indices
        .iter()
        .filter_map(|i| items.get(*i))
        .map(|item| item.name.clone())
        .collect()
}

fn usual_order(items: &[Item]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| items.get(*i).map(|item| item.role));
    order
}

/// `(a, b)`: a starts before b.
type Edge = (usize, usize);

/// What must hold whatever the user declares: the chain of mesh containers, and copies before their users.
fn mesh_edges(items: &[Item], capture: Capture, proxy: ProxyPlace) -> Vec<Edge> {
    let mut edges = Vec::new();
    let with = |role: Role| {
        items
            .iter()
            .enumerate()
            .filter(move |(_, i)| i.role == role)
            .map(|(i, _)| i)
    };
    if proxy == ProxyPlace::Native {
        for (proxy, _) in items.iter().enumerate().filter(|(_, i)| i.role == Role::Proxy) {
            edges.extend(
                with(Role::Capture)
                    .chain(with(Role::Validation))
                    .map(|c| (c, proxy)),
            );
        }
    }
    // Nothing runs captured and without a proxy unless it must: late capture follows everything.
    if capture == Capture::ByInit && proxy == ProxyPlace::Main {
        for late in with(Role::LateCapture) {
            edges.extend(
                items
                    .iter()
                    .enumerate()
                    .filter(|(_, i)| i.role < Role::LateCapture && i.need != Need::Nothing)
                    .map(|(i, _)| (i, late)),
            );
        }
    }
    let places = places(items);
    for (index, item) in items.iter().enumerate() {
        let used = item.uses.iter().filter_map(|name| places.get(name.as_str()));
        edges.extend(used.map(|used| (*used, index)));
    }
    edges
}

fn declared_edges(
    items: &[Item],
    capture: Capture,
    proxy: ProxyPlace,
    problems: &mut Vec<Problem>,
) -> Vec<Edge> {
    let mut edges = declared_order(items, problems);
    let with = |role: Role| -> Vec<usize> {
        let numbered = items.iter().enumerate();
        numbered.filter(|(_, i)| i.role == role).map(|(i, _)| i).collect()
    };
    let (captures, proxies) = (with(Role::Capture), with(Role::Proxy));
    for (index, item) in items.iter().enumerate() {
        match (item.need, capture, proxy) {
            (Need::Direct, Capture::ByInit, _) if !item.exempt => {
                edges.extend(captures.iter().map(|capture| (index, *capture)));
            }
            (Need::Direct, Capture::ByProxy, _) if !item.exempt => {
                edges.extend(proxies.iter().map(|proxy| (index, *proxy)));
            }
            (Need::Mesh, _, ProxyPlace::Native) => {
                edges.extend(proxies.iter().map(|proxy| (*proxy, index)));
            }
            _ => {}
        }
    }
    edges
}

fn declared_order(items: &[Item], problems: &mut Vec<Problem>) -> Vec<Edge> {
    let mut edges = Vec::new();
    let places = places(items);
    for (index, item) in items.iter().enumerate() {
        for before in &item.start_after {
            match places.get(before.as_str()) {
                Some(position) if *position != index => edges.push((*position, index)),
                _ => problems.push(Problem::UnknownContainer {
                    name: item.name.clone(),
                    unknown: before.clone(),
                }),
            }
        }
    }
    edges
}

/// Where each name stands; of several containers with one name, the first.
fn places(items: &[Item]) -> BTreeMap<&str, usize> {
    let mut places = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        places.entry(item.name.as_str()).or_insert(index);
    }
    places
}

/// Emits the usual order, each item after what it waits for. `Err` is a cycle.
fn sort(usual: &[usize], edges: &[Edge], count: usize) -> Result<Vec<usize>, Vec<usize>> {
    let rank: BTreeMap<usize, usize> = usual
        .iter()
        .enumerate()
        .map(|(rank, item)| (*item, rank))
        .collect();
    let mut waits: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (before, after) in edges {
        waits.entry(*after).or_default().push(*before);
    }
    for list in waits.values_mut() {
        list.sort_by_key(|item| rank.get(item));
        list.dedup();
    }
    let mut walk = Walk {
        waits: &waits,
        entered: BTreeSet::new(),
        done: BTreeSet::new(),
        open: Vec::new(),
        order: Vec::with_capacity(count),
    };
    for item in usual {
        walk.visit(*item)?;
    }
    Ok(walk.order)
}

/// A depth-first walk. It keeps its own stack: a chain of constraints may be longer than the stack of a thread.
struct Walk<'a> {
    waits: &'a BTreeMap<usize, Vec<usize>>,
    entered: BTreeSet<usize>,
    done: BTreeSet<usize>,
    /// Items that wait for the one behind them, and how many of their own waits were looked at.
    open: Vec<(usize, usize)>,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Emits an item after everything it waits for.
    fn visit(&mut self, item: usize) -> Result<(), Vec<usize>> {
        self.enter(item)?;
        while let Some((item, looked_at)) = self.open.last_mut() {
            let item = *item;
            let before = self
                .waits
                .get(&item)
                .and_then(|list| list.get(*looked_at))
                .copied();
            *looked_at += 1;
            if let Some(before) = before {
                self.enter(before)?;
            } else {
                self.open.pop();
                self.done.insert(item);
                self.order.push(item);
            }
        }
        Ok(())
    }

    /// Opens an item, unless it was emitted. `Err`: it is open, so it waits for itself.
    fn enter(&mut self, item: usize) -> Result<(), Vec<usize>> {
        if self.done.contains(&item) {
            return Ok(());
        }
        if self.entered.insert(item) {
            self.open.push((item, 0));
            return Ok(());
        }
        let behind = self.open.iter().rev().map(|(open, _)| *open);
        let mut cycle = vec![item];
        cycle.extend(behind.take_while(|open| *open != item));
        cycle.push(item);
        Err(cycle)
    }
}

/// Who would run captured without a proxy, in this order.
fn network_problems(items: &[Item], order: &[usize], capture: Capture, proxy: ProxyPlace) -> Vec<Problem> {
    let mut captured = capture == Capture::Sandbox;
    let mut proxied = false;
    let mut problems = Vec::new();
    for item in order.iter().filter_map(|i| items.get(*i)) {
        match item.role {
            Role::Capture | Role::LateCapture => captured = captured || capture == Capture::ByInit,
            Role::Proxy => proxied = proxy == ProxyPlace::Native,
            Role::User | Role::Collector => {
                problems.extend(item.network_problem(captured, proxied, capture, proxy));
            }
            _ => {}
        }
    }
    problems
}

impl Item {
    fn network_problem(
        &self,
        captured: bool,
        proxied: bool,
        capture: Capture,
        proxy: ProxyPlace,
    ) -> Option<Problem> {
        let name = self.name.clone();
        if self.need == Need::Nothing || proxy == ProxyPlace::None || capture == Capture::Never {
            return None;
        }
        if self.need == Need::Mesh && !proxied {
            return Some(Problem::NoNetwork {
                name,
                need: self.need,
            });
        }
        if self.exempt {
            return None;
        }
        if captured && !proxied {
            return Some(Problem::NoNetwork {
                name,
                need: self.need,
            });
        }
        (self.need == Need::Direct && proxied).then_some(Problem::NotDirect { name })
    }
}

#[cfg(test)]
mod tests;
