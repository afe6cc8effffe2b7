//! The mesh as this proxy knows it: workloads, services and policies, and a signal when any of them changes.
//!
//! A resource that is not understood is refused and what was known of it stays. A policy that was never understood
//! is remembered as such: the workloads it may protect are closed until it can be kept. Those are the workloads of its
//! scope, or, where that cannot be read, of its namespace; all, where that is the root namespace or unknown.

mod hosts;
mod read;
mod tables;

pub use read::{AppProtocol, Gateway, GatewayName, Place, Service, ServicePort, Tunnel, Workload};
use tables::Tables;

use crate::balance::Endpoint;
use crate::dns::names::Directory;
use crate::policy::{Connection, Ground, Judgement, Policy, Verdict};
use remora_xds::delta::{Change, Encoded, Received};
use remora_xds::server::Snapshots;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;
use tokio::sync::watch;

/// What discovery said. Shared by all connections.
#[derive(Debug)]
pub struct Mesh {
    tables: RwLock<Tables>,
    changes: watch::Sender<u64>,
    changed_at: Mutex<Option<SystemTime>>,
}

/// What an address means.
#[derive(Debug, Clone)]
pub enum Destination {
    /// A workload itself.
    Workload(Arc<Workload>),
    /// A service, with the workloads behind the port that was dialled.
    Service(Arc<Service>, Arc<[Endpoint]>),
    /// Nothing of the mesh.
    Unknown,
}

impl Default for Mesh {
    fn default() -> Self {
        Self::new(tables::USUAL_ROOT)
    }
}

impl Mesh {
    /// A mesh with this root namespace, of which nothing is known yet.
    pub fn new(root_namespace: &str) -> Self {
        Self {
            tables: RwLock::new(Tables::new(root_namespace)),
            changes: watch::channel(0).0,
            changed_at: Mutex::default(),
        }
    }
}

impl Mesh {
    /// Takes the mesh as a control plane in the same process has it, without discovery in between: `next` instead of
    /// `last`. Gives what it refuses, with reasons.
    pub fn exchange(&self, last: &Snapshots, next: &Snapshots) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        for (type_url, there) in next {
            let before = last.get(type_url).cloned().unwrap_or_default();
            let fresh = there.iter().filter(|now| before.get(now.name()) != Some(*now));
            let update = |now: &Arc<Encoded>| Change::Update {
                name: now.name().to_owned(),
                bytes: now.bytes().to_vec(),
            };
            let gone = before.iter().filter(|known| there.get(known.name()).is_none());
            let remove = |known: &Arc<Encoded>| Change::Remove {
                name: known.name().to_owned(),
            };
            let changes: Vec<Change> = fresh.map(update).chain(gone.map(remove)).collect();
            if !changes.is_empty() {
                refused.extend(self.apply(&Received::of(type_url, changes)));
            }
        }
        refused
    }

    /// Takes what discovery brought; gives what it refuses, with reasons.
    pub fn apply(&self, received: &Received) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        for change in &received.changes {
            let result = match (received.type_url.as_str(), change) {
                (ADDRESS, Change::Update { name, bytes }) => tables.address(name, bytes),
                (ADDRESS, Change::Remove { name }) => {
                    drop(tables.remove_address(name));
                    Ok(())
                }
                (AUTHORIZATION, Change::Update { name, bytes }) => tables.policy(name, bytes),
                (AUTHORIZATION, Change::Remove { name }) => {
                    tables.remove_policy(name);
                    Ok(())
                }
                _ => Ok(()),
            };
            if let (Err(error), Change::Update { name, .. }) = (result, change) {
                refused.push((name.clone(), error.to_string()));
            }
        }
        tables.settle();
        drop(tables);
        *self.changed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(SystemTime::now());
        self.changes.send_modify(|count| *count += 1);
        refused
    }

    /// Signals every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// When discovery last said something.
    pub fn changed_at(&self) -> Option<SystemTime> {
        *self.changed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an address and port mean.
    pub fn destination(&self, address: IpAddr, port: u16) -> Destination {
        self.read(|tables| tables.destination(address, port))
    }

    /// The workload at an address.
    pub fn workload(&self, address: IpAddr) -> Option<Arc<Workload>> {
        self.read(|tables| tables.workload(address))
    }

    /// The workload with a uid.
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Workload>> {
        self.read(|tables| tables.by_uid(uid))
    }

    /// The service with a key, `NAMESPACE/HOSTNAME`.
    pub fn service(&self, key: &str) -> Option<Arc<Service>> {
        self.read(|tables| tables.service(key))
    }

    /// The service with a DNS name. Of several, the one of this namespace.
    pub fn service_named(&self, hostname: &str, namespace: &str) -> Option<Arc<Service>> {
        self.read(|tables| tables.service_named(hostname, namespace))
    }

    /// The workloads behind a port of a service.
    pub fn endpoints(&self, service: &str, port: u16) -> Arc<[Endpoint]> {
        self.read(|tables| tables.endpoints(service, port))
    }

    /// Everything that runs, in order of uid.
    pub fn workloads(&self) -> Vec<Arc<Workload>> {
        self.read(Tables::workloads)
    }

    /// All services, in order of key.
    pub fn services(&self) -> Vec<Arc<Service>> {
        self.read(Tables::services)
    }

    /// All policies that were understood.
    pub fn policies(&self) -> Vec<Policy> {
        self.read(Tables::policies)
    }

    /// Policies that were never understood, by name. The workloads they may protect accept nothing.
    pub fn broken_policies(&self) -> Vec<String> {
        self.read(Tables::broken)
    }

    /// A policy that a workload names and that was not told.
    pub fn missing_policy(&self, workload: &Workload) -> Option<String> {
        self.read(|tables| tables.missing_policy(workload))
    }

    /// What would hold for a connection if policies on trial were in force, where that is something else.
    pub fn on_trial(&self, connection: &Connection) -> Option<Verdict> {
        self.read(|tables| tables.on_trial(connection))
    }

    /// Whether a connection to a workload may be, and because of what.
    pub fn judge(&self, connection: &Connection) -> Judgement {
        self.read(|tables| tables.judge(connection))
    }

    /// The policies that a judgement of a connection to this address rests on.
    pub fn grounds(&self, destination: IpAddr, judgement: &Judgement) -> Vec<Ground> {
        self.read(|tables| tables.grounds(destination, judgement))
    }

    /// Whether a connection to a workload may be.
    pub fn verdict(&self, connection: &Connection) -> Verdict {
        self.judge(connection).verdict
    }

    /// Looks at the names of the mesh, all of one moment.
    pub fn names<T>(&self, look: impl FnOnce(&dyn Directory) -> T) -> T {
        self.read(|tables| look(tables))
    }

    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
