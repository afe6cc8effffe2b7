//! Pods that somebody deletes, and those a cluster's controllers make in their place.

use tokio::sync::oneshot;

use super::{Controller, Deletion};
use crate::door::{PodInfo, Unknown, Which, named};
use crate::manifest::Owner;
use crate::pod::Order;
use crate::world::PodId;

/// What happens when a pod is deleted and what made it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    None,
    /// Another is made while it still stops.
    AtOnce,
    /// Another is made when it is gone.
    Afterwards,
}

/// k8s: a ReplicaSet does not count pods that are being deleted; a StatefulSet needs the name, a DaemonSet the node.
/// A Job counts its pods itself.
fn replacement(owner: &Owner) -> Replacement {
    match owner {
        Owner::Nobody | Owner::Job(_) => Replacement::None,
        Owner::Service { kind, .. } => match kind.as_str() {
            "StatefulSet" | "DaemonSet" => Replacement::Afterwards,
            _ => Replacement::AtOnce,
        },
    }
}

impl Controller {
    /// All pods that exist.
    pub(super) fn list(&self) -> Vec<PodInfo> {
        let there = self.pods.iter().enumerate().filter(|(_, entry)| !entry.gone);
        let info = |(id, entry): (PodId, &super::Entry)| {
            let status = entry.status.as_deref();
            let mut info = PodInfo::new(id, &entry.document, &entry.planned.owner, status);
            entry.network.as_str().clone_into(&mut info.network);
            let shown = status.is_some_and(|s| s.pod_ip != 0);
            info.address = self.world.address_of(id).filter(|_| shown);
            info.age_millis = u64::try_from(entry.made.elapsed().as_millis()).unwrap_or(u64::MAX);
            info
        };
        there.map(info).collect()
    }

    /// Deletes what is named; what that is.
    pub(super) async fn delete(
        &mut self,
        what: &Which,
        grace: Option<u64>,
        gone: oneshot::Sender<()>,
    ) -> Result<Vec<String>, Unknown> {
        let pods = self.list();
        let (found, workload) = named(&pods, what)?;
        let ids: Vec<PodId> = found.iter().map(|info| info.id).collect();
        let names = match workload {
            Some(workload) => vec![workload],
            None => found.iter().map(|info| format!("Pod/{}", info.name)).collect(),
        };
        let with_owner = what.name.contains('/') && !names.iter().any(|n| n.starts_with("Pod/"));
        for id in &ids {
            self.delete_pod(*id, grace, with_owner).await;
        }
        self.waiting.push((ids, gone));
        self.told_gone();
        Ok(names)
    }

    async fn delete_pod(&mut self, id: PodId, grace: Option<u64>, with_owner: bool) {
        let planned = self.pods[id].planned.clone();
        let again = match replacement(&planned.owner) {
            _ if with_owner => Replacement::None,
            found => found,
        };
        // A second request only makes it quicker.
        let first = !self.pods[id].ended && self.pods[id].deletion == Deletion::No;
        if first || with_owner {
            self.pods[id].deletion = if again == Replacement::Afterwards {
                Deletion::AndReplaced
            } else {
                Deletion::Asked
            };
        }
        if self.pods[id].orders.is_none() {
            self.left(id).await;
        } else {
            self.order(id, Order::Delete(grace)).await;
        }
        if with_owner && let Owner::Job(_) = &planned.owner {
            self.pods[id].ended = true;
        }
        if first && again == Replacement::AtOnce {
            self.make_another(id).await;
        }
    }

    /// A pod does not exist any more.
    pub(super) async fn left(&mut self, id: PodId) {
        if self.pods[id].gone {
            return;
        }
        self.pods[id].gone = true;
        if !self.pods[id].ended {
            self.pods[id].ended = true;
            if matches!(self.pods[id].planned.owner, Owner::Job(_)) {
                self.count_job(id, false).await;
            }
        }
        if self.pods[id].deletion == Deletion::AndReplaced {
            self.make_another(id).await;
        }
        self.told_gone();
    }

    async fn make_another(&mut self, id: PodId) {
        if self.stopping {
            return;
        }
        self.replaced += 1;
        let planned = self.pods[id].planned.instead(self.replaced);
        let new = self.pods.len();
        self.add(planned).await;
        // Those who wait for their turn wait for the new one.
        for entry in &mut self.pods {
            if entry.planned.after == Some(id) && entry.orders.is_none() {
                entry.planned.after = Some(new);
            }
        }
        self.start_due();
    }

    fn told_gone(&mut self) {
        let pods = &self.pods;
        let done = |ids: &[PodId]| ids.iter().all(|id| pods[*id].gone);
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(ids, _)| done(ids));
        self.waiting = waiting;
        for (_, sender) in ready {
            // Whoever waited may have gone away.
            let _ = sender.send(());
        }
    }
}
