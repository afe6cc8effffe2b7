//! User namespaces of pods: root's pods do not have root's power.
//!
//! `decide` says without IO whether a pod has users of its own, from what the pod asks for and what this machine can
//! do. [`Users`] knows the latter, looks once, and gives each pod ids that no other pod has. [`UserNamespace`] is one
//! such namespace, with the network, ipc and uts namespaces that belong to it: in namespaces that belong to the
//! machine's users the root of a pod could neither write rules nor change settings.

mod decide;
mod make;
mod probe;

pub use decide::{Decision, Facts, Reason, Wish};
pub use make::UserNamespace;

use crate::container::StartError;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// How many ids a pod has.
// k8s: the kubelet gives 65536 to each pod.
pub const IDS: u32 = 1 << 16;

/// Where ids of pods begin, and how many pods can have some: above what `/etc/subuid` usually lists, and below 2³¹
/// because some programs read ids as signed numbers.
const FIRST: u32 = 0x4000_0000;
const PODS: u32 = 0x2fff;

/// Which ids are taken; those of a pod are free again when its namespace is gone.
#[derive(Debug)]
struct Pool {
    next: u32,
    taken: BTreeSet<u32>,
}

impl Pool {
    /// A place that is free, from the next on, so that ids come back as late as possible.
    fn take(&mut self) -> Option<u32> {
        let free = (0..PODS)
            .map(|step| (self.next + step) % PODS)
            .find(|place| !self.taken.contains(place))?;
        self.next = (free + 1) % PODS;
        self.taken.insert(free);
        Some(free)
    }
}

/// Ids of this machine that stand for the ids 0 to 65535 of one pod.
#[derive(Debug)]
pub struct Ids {
    place: u32,
    pool: Arc<Mutex<Pool>>,
}

impl Ids {
    /// The id of this machine that stands for 0.
    pub fn first(&self) -> u32 {
        FIRST + self.place * IDS
    }

    /// The id of this machine that stands for an id of the pod.
    pub fn outside(&self, id: u32) -> Option<u32> {
        (id < IDS).then(|| self.first() + id)
    }
}

impl Drop for Ids {
    fn drop(&mut self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.taken.remove(&self.place);
    }
}

/// Ids for the pods of a run, and what is known of this machine.
#[derive(Debug)]
pub struct Users {
    pool: Arc<Mutex<Pool>>,
    facts: OnceCell<Result<(), String>>,
    /// Reasons that were reported.
    said: Mutex<BTreeSet<String>>,
}

impl Default for Users {
    fn default() -> Self {
        Self {
            // Two runs at a time begin at different places.
            pool: Arc::new(Mutex::new(Pool {
                next: std::process::id().wrapping_mul(0x9e37_79b1) % PODS,
                taken: BTreeSet::new(),
            })),
            facts: OnceCell::new(),
            said: Mutex::new(BTreeSet::new()),
        }
    }
}

impl Users {
    /// Ids that no other pod of this run has.
    pub fn ids(&self) -> Result<Ids, StartError> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let place = pool.take().ok_or_else(|| StartError::Sandbox {
            source: std::io::Error::other("all ids for pods are in use"),
        })?;
        drop(pool);
        Ok(Ids {
            place,
            pool: Arc::clone(&self.pool),
        })
    }

    /// Whether pods can have users of their own here, with images and files in these directories; why not otherwise.
    pub(crate) async fn machine(&self, images: &Path, run: &Path) -> &Result<(), String> {
        self.facts.get_or_init(|| probe::look(self, images, run)).await
    }

    /// Whether a reason is new. Each is reported once a run.
    pub(crate) fn is_new(&self, reason: &Reason) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.insert(reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_pods_do_not_overlap() {
        let users = Users::default();
        let all: Vec<Ids> = (0..200).map(|_| users.ids().unwrap()).collect();
        let firsts: BTreeSet<u32> = all.iter().map(Ids::first).collect();
        assert_eq!(firsts.len(), all.len());
        let firsts: Vec<u32> = firsts.into_iter().collect();
        assert!(firsts.windows(2).all(|pair| pair[1] - pair[0] >= IDS));
        assert!(firsts.iter().all(|first| *first >= FIRST));
        let last = FIRST + (PODS - 1) * IDS + (IDS - 1);
        assert!(last < 0x7000_0000);
        assert_eq!(all[0].outside(65_535), Some(all[0].first() + 65_535));
        assert_eq!(all[0].outside(65_536), None);
    }

    #[test]
    fn ids_come_back_late_and_run_out() {
        let users = Users::default();
        let first = users.ids().unwrap().place;
        let rest: Vec<Ids> = (0..PODS).map(|_| users.ids().unwrap()).collect();
        assert_eq!(rest.last().unwrap().place, first);
        users.ids().unwrap_err();
        drop(rest);
        users.ids().unwrap();
    }

    #[test]
    fn a_reason_is_new_once() {
        let users = Users::default();
        assert!(users.is_new(&Reason::Runtime));
        assert!(!users.is_new(&Reason::Runtime));
        assert!(users.is_new(&Reason::Machine("x".into())));
    }
}
