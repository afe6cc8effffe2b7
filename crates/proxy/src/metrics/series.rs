//! Counters by label, found without copying a label that is known.

use crate::access::Direction;
use crate::mesh::{Service, Workload};
use remora_mtls::SpiffeId;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Series kept apart.
pub const MOST_SERIES: usize = 1000;
const UNKNOWN: &str = "unknown";
const OTHER: &str = "other";
/// Labels that say who, and those that are from a short list anyway.
const NAMED: usize = 19;
const COUNT: usize = NAMED + 4;

/// What tells connections apart.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// Whose side counts.
    pub direction: Direction,
    /// Who opens.
    pub source: Option<&'a Workload>,
    /// Whom that proved to be.
    pub source_id: Option<&'a SpiffeId>,
    /// Who answers.
    pub destination: Option<&'a Workload>,
    /// Whom that proved to be.
    pub destination_id: Option<&'a SpiffeId>,
    /// What was dialled.
    pub service: Option<&'a Service>,
    /// Both have proved who they are.
    pub mutual: bool,
    /// What went wrong.
    pub flags: &'static str,
}

// istio: the names of labels, in the order of its own.
const NAMES: [&str; COUNT] = [
    "source_workload",
    "source_canonical_service",
    "source_canonical_revision",
    "source_workload_namespace",
    "source_principal",
    "source_app",
    "source_version",
    "source_cluster",
    "destination_workload",
    "destination_canonical_service",
    "destination_canonical_revision",
    "destination_workload_namespace",
    "destination_principal",
    "destination_app",
    "destination_version",
    "destination_cluster",
    "destination_service",
    "destination_service_name",
    "destination_service_namespace",
    "reporter",
    "request_protocol",
    "response_flags",
    "connection_security_policy",
];

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { UNKNOWN } else { text }
}

impl<'a> Labels<'a> {
    fn values(&self) -> [&'a str; COUNT] {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = party(self.source, self.source_id);
        let [d0, d1, d2, d3, d4, d5, d6, d7] = party(self.destination, self.destination_id);
        let service = |read: fn(&Service) -> &str| self.service.map_or(UNKNOWN, read);
        [
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            d0,
            d1,
            d2,
            d3,
            d4,
            d5,
            d6,
            d7,
            service(|s| &s.hostname),
            service(|s| &s.name),
            service(|s| &s.namespace),
            match self.direction {
                Direction::Outbound => "source",
                Direction::Inbound => "destination",
            },
            "tcp",
            self.flags,
            if self.mutual { "mutual_tls" } else { UNKNOWN },
        ]
    }
}

fn party<'a>(workload: Option<&'a Workload>, id: Option<&'a SpiffeId>) -> [&'a str; 8] {
    let principal = id.map_or(UNKNOWN, SpiffeId::as_str);
    let Some(workload) = workload else {
        let mut values = [UNKNOWN; 8];
        values[4] = principal;
        return values;
    };
    let (name, version) = &workload.canonical;
    let (name, version) = (or_unknown(name), or_unknown(version));
    let owner = if workload.owner.is_empty() {
        &workload.name
    } else {
        &workload.owner
    };
    [
        or_unknown(owner),
        name,
        version,
        or_unknown(&workload.namespace),
        principal,
        name,
        version,
        or_unknown(&workload.place.cluster),
    ]
}

/// The counters under one set of labels.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// As they are written.
    pub(super) labels: String,
    pub(super) opened: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
}

impl Series {
    pub(crate) fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self, failed: bool) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    // istio: received is what the client sent, on both sides.
    pub(crate) fn bytes(&self, forward: u64, backward: u64) {
        self.received.fetch_add(forward, Ordering::Relaxed);
        self.sent.fetch_add(backward, Ordering::Relaxed);
    }
}

/// All series. Found by a fingerprint of their labels, whose key nobody outside knows.
#[derive(Default)]
pub(crate) struct SeriesTable {
    by_fingerprint: Mutex<HashMap<u64, Arc<Series>>>,
    hasher: RandomState,
}

impl SeriesTable {
    pub(super) fn get(&self, labels: &Labels<'_>) -> Arc<Series> {
        let mut values = labels.values();
        let mut table = self.by_fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fingerprint = self.hasher.hash_one(values);
        if table.len() >= MOST_SERIES && !table.contains_key(&fingerprint) {
            if let Some(named) = values.get_mut(..NAMED) {
                named.fill(OTHER);
            }
            fingerprint = self.hasher.hash_one(values);
        }
        let made = || {
            Arc::new(Series {
                labels: shown(&values),
                ..Series::default()
            })
        };
        Arc::clone(table.entry(fingerprint).or_insert_with(made))
    }

    /// All of them, in order of their labels.
    pub(super) fn list(&self) -> Vec<Arc<Series>> {
        let table = self.by_fingerprint.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = table.values().cloned().collect();
        list.sort_by(|a, b| a.labels.cmp(&b.labels));
        list
    }
}

/// Values come from certificates and discovery, where quotes and line ends are refused; escaped all the same.
fn shown(values: &[&str; COUNT]) -> String {
    let escaped = |text: &str| {
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let pairs = NAMES.iter().zip(values);
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    pairs.join(",")
}
