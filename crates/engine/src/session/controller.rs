//! What a cluster's controllers do: endpoints, names, the mesh, turns and Jobs.

mod delete;
mod jobs;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Instant;

use remora_control::Plane;
use remora_control::mesh::{Document, Snapshots, encode};
use remora_pod::object;
use remora_startup::kubelet::Status;
use remora_startup::network::NetState;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::{Command, Options, SessionError, Targets};
use crate::manifest::{Job, Owner, Planned};
use crate::mesh::{self, Peer};
use crate::pod::{Order, Pod, chain};
use crate::services::{Member, Names, forwards};
use crate::visitor::Visitor;
use crate::world::{Notice, PodId, World};

/// How far a Job is.
#[derive(Debug, Default)]
struct Progress {
    made: u32,
    succeeded: u32,
    failed: u32,
}

/// A pod of the run.
struct Entry {
    planned: Planned,
    document: Arc<Value>,
    orders: Option<mpsc::Sender<Order>>,
    status: Option<Box<Status>>,
    network: NetState,
    made: Instant,
    /// It may not start earlier.
    not_before: Instant,
    /// Nothing more is expected of it.
    ended: bool,
    /// It does not exist any more.
    gone: bool,
    deletion: Deletion,
}

/// What somebody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    No,
    Asked,
    /// And another is made in its place when it is gone.
    AndReplaced,
}

/// Plays the controllers.
pub(super) struct Controller {
    world: Arc<World>,
    options: Options,
    plane: Arc<Plane>,
    /// Who calls pods for those outside, if ports are published.
    pub(super) visitor: Option<Visitor>,
    /// The mesh as it was told last.
    told: Snapshots,
    names: watch::Sender<Arc<Names>>,
    targets: Targets,
    notices: mpsc::Sender<Notice>,
    pods: Vec<Entry>,
    jobs: BTreeMap<(String, String), Progress>,
    members: Vec<Member>,
    tasks: JoinSet<()>,
    /// How many pods were made in place of others.
    replaced: u32,
    /// Those who wait until pods are gone.
    waiting: Vec<(Vec<PodId>, oneshot::Sender<()>)>,
    stopping: bool,
}

impl Controller {
    pub(super) fn new(
        world: Arc<World>,
        options: Options,
        plane: Arc<Plane>,
        names: watch::Sender<Arc<Names>>,
        targets: Targets,
        notices: mpsc::Sender<Notice>,
    ) -> Self {
        Self {
            world,
            options,
            plane,
            visitor: None,
            told: Snapshots::default(),
            names,
            targets,
            notices,
            pods: Vec::new(),
            jobs: BTreeMap::new(),
            members: Vec::new(),
            tasks: JoinSet::new(),
            replaced: 0,
            waiting: Vec::new(),
            stopping: false,
        }
    }

    /// Whether every published port leads to something that is there.
    pub(super) fn check_targets(&self, pods: &[Planned]) -> Result<(), SessionError> {
        for (publish, _) in &self.targets {
            let service = self
                .world
                .services
                .iter()
                .any(|s| is_named(&publish.target, &s.namespace, &s.name));
            let pod = pods.iter().any(|p| leads_to(&publish.target, p));
            if !service && !pod {
                return Err(SessionError::Target {
                    target: publish.target.clone(),
                });
            }
        }
        Ok(())
    }

    pub(super) async fn run(
        mut self,
        planned: Vec<Planned>,
        mut raw: mpsc::Receiver<Notice>,
        mut commands: mpsc::Receiver<Command>,
    ) {
        for one in planned {
            self.add(one).await;
        }
        self.reconcile().await;
        self.start_due();
        loop {
            tokio::select! {
                Some(notice) = raw.recv() => {
                    let notices = waiting(notice, &mut raw);
                    if !self.take(notices).await {
                        return;
                    }
                }
                command = commands.recv() => match command {
                    Some(command) => self.command(command).await,
                    // The session is gone.
                    None => return,
                },
                () = self.next_turn() => self.start_due(),
            }
            if self.stopping && self.pods.iter().all(|p| p.ended) {
                self.tell(Notice::Over).await;
                return;
            }
        }
    }

    async fn tell(&self, notice: Notice) {
        // Whoever watched is gone; the session ends with them.
        let _ = self.notices.send(notice).await;
    }

    async fn add(&mut self, planned: Planned) {
        let document = Arc::new(planned.pod.clone());
        if let Owner::Job(job) = &planned.owner {
            self.progress(&planned, job).made += 1;
        }
        let id = self.pods.len();
        self.tell(Notice::Added(id, Arc::clone(&document), planned.owner.clone()))
            .await;
        self.pods.push(Entry {
            planned,
            document,
            orders: None,
            status: None,
            network: NetState::Direct,
            made: Instant::now(),
            not_before: Instant::now(),
            ended: false,
            gone: false,
            deletion: Deletion::No,
        });
    }

    fn progress(&mut self, planned: &Planned, job: &Job) -> &mut Progress {
        let key = (object::namespace(&planned.pod).to_owned(), job.name.clone());
        self.jobs.entry(key).or_default()
    }

    /// Starts what may start: everything but pods whose turn has not come.
    fn start_due(&mut self) {
        if self.stopping {
            return;
        }
        let now = Instant::now();
        for id in 0..self.pods.len() {
            let entry = &self.pods[id];
            let ready = |other: PodId| {
                let status = self.pods.get(other).and_then(|e| e.status.as_ref());
                status.is_some_and(|s| s.ready)
            };
            let due = entry.planned.after.is_none_or(ready) && entry.not_before <= now;
            if entry.orders.is_none() && due && !entry.ended {
                self.start(id);
            }
        }
    }

    /// Ready when a pod that has to wait may start.
    fn next_turn(&self) -> impl Future<Output = ()> + use<> {
        let now = Instant::now();
        let waits = |entry: &&Entry| entry.orders.is_none() && !entry.ended && entry.not_before > now;
        let next = self.pods.iter().filter(waits).map(|entry| entry.not_before).min();
        async move {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        }
    }

    fn start(&mut self, id: PodId) {
        let (sender, receiver) = mpsc::channel(16);
        let entry = &mut self.pods[id];
        entry.orders = Some(sender);
        let pod = Pod::new(
            id,
            Arc::clone(&self.world),
            entry.planned.pod.clone(),
            self.options.kubelet.clone(),
        );
        self.tasks.spawn(pod.run(receiver));
    }

    /// Draws the conclusions of what happened, then hands it on: who hears that a pod is ready finds its Service there.
    /// False when nobody watches any more.
    async fn take(&mut self, notices: Vec<Notice>) -> bool {
        let mut changed = false;
        for notice in &notices {
            changed |= self.note(notice).await;
        }
        if changed {
            self.reconcile().await;
            self.start_due();
        }
        for notice in notices {
            if self.notices.send(notice).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Whether Services, names and the mesh may have to follow.
    async fn note(&mut self, notice: &Notice) -> bool {
        match notice {
            Notice::Status(id, status) => {
                self.pods[*id].status = Some(status.clone());
                self.follow_job(*id).await;
                true
            }
            Notice::Gone(id) => {
                self.left(*id).await;
                true
            }
            Notice::Network(id, _, state) => {
                self.pods[*id].network = state.clone();
                false
            }
            _ => false,
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Order(id, order) => self.order(id, order).await,
            Command::List(reply) => {
                // Whoever asked may have gone away.
                let _ = reply.send(self.list());
            }
            Command::Delete {
                what,
                grace,
                reply,
                gone,
            } => {
                let _ = reply.send(self.delete(&what, grace, gone).await);
            }
            Command::Stop(grace) => {
                self.stopping = true;
                for id in 0..self.pods.len() {
                    if self.pods[id].orders.is_none() {
                        self.pods[id].ended = true;
                    }
                    self.order(id, Order::Delete(grace)).await;
                }
            }
        }
    }

    async fn order(&self, id: PodId, order: Order) {
        if let Some(orders) = self.pods.get(id).and_then(|e| e.orders.as_ref()) {
            // A pod that is gone takes no orders.
            let _ = orders.send(order).await;
        }
    }

    /// Brings Services, names, the mesh and published ports in line with the pods.
    async fn reconcile(&mut self) {
        let members: Vec<(PodId, Member)> = (0..self.pods.len())
            .filter_map(|id| Some((id, self.member(id)?)))
            .collect();
        let list: Vec<Member> = members.iter().map(|(_, m)| m.clone()).collect();
        if list == self.members && !self.members.is_empty() {
            return;
        }
        self.members = list;
        let services = &self.world.services;
        let forwards = forwards(services, &self.members);
        let written = self.world.node.forward(&forwards);
        if let Err(error) = written {
            self.tell(Notice::Trouble(None, chain(&error))).await;
        }
        let names = Names::new(services, &self.members);
        self.names.send_replace(Arc::new(names));
        let peers: Vec<Peer<'_>> = members
            .iter()
            .zip(&self.members)
            .map(|((id, _), member)| Peer {
                pod: &self.pods[*id].document,
                member,
            })
            .collect();
        let described = mesh::documents(services, &peers, &self.world.policies);
        let told = match described {
            Ok(documents) => self.tell_mesh(&documents),
            Err(error) => Err(format!("describe the mesh: {error}")),
        };
        if let Err(error) = told {
            self.tell(Notice::Trouble(None, error)).await;
        }
        self.retarget();
    }

    /// Tells sidecars by discovery, and published ports at once.
    fn tell_mesh(&mut self, documents: &[Document]) -> Result<(), String> {
        self.plane.publish(documents).map_err(|error| chain(&error))?;
        let Some(visitor) = &self.visitor else {
            return Ok(());
        };
        let next = encode(documents, mesh::TRUST_DOMAIN).map_err(|error| chain(&error))?;
        let refused = visitor.mesh().exchange(&self.told, &next);
        self.told = next;
        match refused.first() {
            Some((name, why)) => Err(format!("published ports do not understand {name}: {why}")),
            None => Ok(()),
        }
    }

    /// A pod as Services see it, once the API shows its address.
    fn member(&self, id: PodId) -> Option<Member> {
        let entry = &self.pods[id];
        let status = entry.status.as_ref()?;
        if entry.ended || status.pod_ip == 0 || status.phase.is_terminal() {
            return None;
        }
        let address = self.world.address_of(id)?;
        let ready = status.ready && !status.deleting;
        Some(Member::read(&entry.document, address, ready))
    }

    fn retarget(&self) {
        for (publish, sender) in &self.targets {
            sender.send_replace(self.target(&publish.target, publish.port));
        }
    }

    fn target(&self, name: &str, port: u16) -> Option<SocketAddrV4> {
        let service = self
            .world
            .services
            .iter()
            .find(|s| is_named(name, &s.namespace, &s.name));
        if let Some(address) = service.and_then(|s| s.address) {
            return Some(SocketAddrV4::new(address, port));
        }
        let member = (0..self.pods.len())
            .filter(|id| leads_to(name, &self.pods[*id].planned))
            .find_map(|id| self.member(id));
        member.map(|m| SocketAddrV4::new(m.address, port))
    }
}

/// A notice and those that came since. The state of many pods changes at once when a run begins; what follows from it
/// (rules of the node, names, what every proxy is told) costs the more the more pods there are, and is the same for all.
fn waiting(first: Notice, raw: &mut mpsc::Receiver<Notice>) -> Vec<Notice> {
    let mut notices = vec![first];
    // No longer than the backlog was: those who tell must not be able to keep this from acting.
    for _ in 0..raw.len() {
        notices.extend(raw.try_recv().ok());
    }
    notices
}

/// Whether a name as typed means this object.
fn is_named(typed: &str, namespace: &str, name: &str) -> bool {
    match typed.split_once('/') {
        Some((wanted, rest)) => wanted == namespace && rest == name,
        None => typed == name,
    }
}

/// Whether a name as typed means this pod or what made it.
fn leads_to(typed: &str, planned: &Planned) -> bool {
    let namespace = object::namespace(&planned.pod);
    let owner = match &planned.owner {
        Owner::Service { name, .. } => name.as_str(),
        Owner::Job(job) => job.name.as_str(),
        Owner::Nobody => "",
    };
    is_named(typed, namespace, object::name(&planned.pod)) || is_named(typed, namespace, owner)
}

#[cfg(test)]
mod tests {
    use super::waiting;
    use crate::world::Notice;
    use tokio::sync::mpsc;

    /// Conclusions were drawn for each notice alone: of fifty pods that start at once, fifty times those of fifty pods.
    #[tokio::test]
    async fn what_came_meanwhile_is_taken_at_one_go() {
        let (sender, mut inbox) = mpsc::channel(8);
        for id in 0..5 {
            sender.send(Notice::Gone(id)).await.unwrap();
        }
        let first = inbox.recv().await.unwrap();
        let ids: Vec<_> = waiting(first, &mut inbox)
            .into_iter()
            .map(|notice| match notice {
                Notice::Gone(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        sender.send(Notice::Gone(5)).await.unwrap();
        let first = inbox.recv().await.unwrap();
        assert_eq!(waiting(first, &mut inbox).len(), 1);
    }
}
