//! Istio's TCP metrics and our own, as Prometheus reads them.
//!
//! Labels are bounded: a series exists per pair of workloads and service that was really seen, and beyond
//! [`MOST_SERIES`] everything new is counted under series whose names are all `other`. A connection counts as opened
//! when bytes can move, or when it fails before that; bytes are counted whenever somebody looks, not at the end.

mod render;
mod series;

pub use series::{Labels, MOST_SERIES};
pub(crate) use series::{Series, SeriesTable};

use crate::access::{Direction, Log, Reason};
use crate::connections::Connections;
use crate::dns::Dns;
use crate::mesh::Mesh;
use crate::pool::Pool;
use remora_mtls::Identity;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Everything that is counted about a proxy. Can be looked at before the proxy is there.
#[derive(Default)]
pub struct Metrics {
    table: SeriesTable,
    connections: Connections,
    /// By direction and reason.
    failures: [[AtomicU64; Reason::ALL.len()]; 2],
    dns: OnceLock<Arc<Dns>>,
    log: OnceLock<Log>,
    proxy: OnceLock<Proxy>,
}

/// What has a state that is shown.
struct Proxy {
    identity: Arc<Identity>,
    mesh: Arc<Mesh>,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Connections that are open now.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Shows what is counted about names too.
    pub fn show_dns(&self, dns: Arc<Dns>) {
        let _ = self.dns.set(dns);
    }

    /// Shows how many lines of a log were dropped.
    pub fn show_log(&self, log: Log) {
        let _ = self.log.set(log);
    }

    pub(crate) fn show_proxy(&self, identity: Arc<Identity>, mesh: Arc<Mesh>, pool: Arc<Pool>) {
        let _ = self.proxy.set(Proxy { identity, mesh, pool });
    }

    pub(crate) fn series(&self, labels: &Labels<'_>) -> Arc<Series> {
        self.table.get(labels)
    }

    pub(crate) fn failed(&self, direction: Direction, reason: Reason) {
        let direction = self.failures.get(direction as usize);
        if let Some(counter) = direction.and_then(|list| list.get(reason as usize)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
