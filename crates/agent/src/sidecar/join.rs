//! The sidecar's connection to the control plane, with the last good configuration as a fallback.

use super::RunError;
use crate::dial;
use crate::log::{Log, chain};
use crate::metrics::AgentMetrics;
use crate::readiness::{Readiness, Stage};
use crate::settings::{Settings, Upstream};
use crate::snapshot::{Entry, Found, Keeper};
use remora_proxy::join::{Membership, Notice};
use remora_proxy::mesh::Mesh;
use remora_xds::client::Event;
use remora_xds::delta::{Change, Client, Received};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// A control plane that does not respond within this time counts as unavailable.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(2);

/// Discovery with the last good configuration on disk.
pub(super) struct Kept {
    pub(super) keeper: Keeper,
    pub(super) readiness: Readiness,
    pub(super) metrics: Arc<AgentMetrics>,
    pub(super) log: Log,
}

impl Kept {
    /// Keeps the mesh and its copy on disk up to date. Starts with the copy: the control plane then sends only the
    /// differences. Only while it is unavailable the sidecar becomes ready with the copy.
    pub(super) async fn follow(
        &self,
        discovery: &Membership,
        mesh: &Mesh,
        ear: &mut (impl FnMut(Notice) + Send),
    ) {
        let mut state = discovery.wishes();
        let found = self.keeper.load();
        if let Some(found) = &found {
            restore(found, mesh, &mut state);
        }
        let (away, complete) = (Notify::new(), AtomicBool::new(false));
        let apply = |received: &Received| {
            let refused = mesh.apply(received);
            note(&self.keeper, received, &refused);
            // The first response on a new stream: resources that it does not contain are unchanged.
            if complete.load(Ordering::Relaxed) {
                self.keeper.live(true);
            }
            refused
        };
        let mut hear = |notice: Notice| {
            match &notice {
                Notice::Discovery(Event::InSync) => {
                    complete.store(true, Ordering::Relaxed);
                    self.keeper.live(true);
                    self.readiness.confirmed();
                }
                Notice::Discovery(Event::Disconnected(_)) => {
                    self.keeper.live(false);
                    away.notify_one();
                }
                _ => {}
            }
            ear(notice);
        };
        tokio::join!(
            discovery.follow_from(state, apply, &mut hear),
            self.keeper.clone().keep(),
            self.use_last_good(found.map(|found| found.confirmed), &away),
        );
    }

    /// Uses the last good configuration once the control plane counts as unavailable.
    async fn use_last_good(&self, confirmed: Option<SystemTime>, away: &Notify) {
        let Some(confirmed) = confirmed else { return };
        tokio::select! {
            () = away.notified() => {}
            () = tokio::time::sleep(CONTROL_PLANE_TIMEOUT) => {}
        }
        if self.readiness.use_last_good(confirmed) {
            self.metrics.configuration_is(Some(confirmed));
            let age = confirmed.elapsed().unwrap_or_default().as_secs();
            self.log.warning(format_args!(
                "the control plane is away: starts with the last good configuration, {age} s old"
            ));
        }
    }
}

/// Loads the mesh from disk. Resources that this version cannot read are requested again.
fn restore(found: &Found, mesh: &Mesh, state: &mut Client) {
    for (type_url, resources) in &found.contents {
        let update = |(name, entry): (&String, &Entry)| Change::Update {
            name: name.clone(),
            bytes: entry.bytes.clone(),
        };
        let mut received = Received::default();
        received.type_url.clone_from(type_url);
        received.changes = resources.iter().map(update).collect();
        let refused: BTreeMap<String, String> = mesh.apply(&received).into_iter().collect();
        for (name, entry) in resources {
            if !refused.contains_key(name) {
                state.hold(type_url, name, &entry.version);
            }
        }
    }
}

/// Records the resources that the mesh accepted.
fn note(keeper: &Keeper, received: &Received, refused: &[(String, String)]) {
    let versions: BTreeMap<&str, &str> = received.versions().collect();
    keeper.change(|contents| {
        let kind = contents.entry(received.type_url.clone()).or_default();
        for change in &received.changes {
            match change {
                Change::Update { name, .. } if refused.iter().any(|(bad, _)| bad == name) => {}
                Change::Update { name, bytes } => {
                    let entry = Entry {
                        version: versions
                            .get(name.as_str())
                            .copied()
                            .unwrap_or_default()
                            .to_owned(),
                        bytes: bytes.clone(),
                    };
                    kind.insert(name.clone(), entry);
                }
                Change::Remove { name } => {
                    kind.remove(name);
                }
            }
        }
    });
}

/// The pod's identity and address for the control plane.
pub(crate) fn membership(settings: &Settings, upstream: &Upstream) -> Result<Membership, RunError> {
    let control_plane =
        dial::control_plane(upstream, &settings.token).map_err(|source| RunError::Upstream {
            host: upstream.server.host.clone(),
            source,
        })?;
    Ok(Membership {
        control_plane,
        id: settings.id.clone(),
        domains: settings.domains.clone(),
        life: settings.certificate_life,
        node: settings.node.to_message(),
    })
}

/// A number between 0 and 1, so that pods that start together do not renew together. It need not be random.
pub(crate) fn jitter() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos()) ^ std::process::id().rotate_left(16);
    f64::from(nanos % 1000) / 1000.0
}

pub(super) fn hear(notice: &Notice, readiness: &Readiness, log: &Log, metrics: &AgentMetrics) {
    match notice {
        Notice::Certified(until) => {
            metrics.certified_until(*until);
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            log.note(format_args!("certified for {} s", left.as_secs()));
            readiness.reach(Stage::Certificate);
        }
        Notice::NotCertified(error) => {
            metrics.failed_certificates.count();
            let why = chain(error);
            log.warning(&why);
            readiness.trouble(Stage::Certificate, why);
        }
        Notice::Discovery(Event::Connected) => {}
        Notice::Discovery(Event::InSync) => {
            log.note("discovery is in sync");
            readiness.reach(Stage::Configuration);
        }
        Notice::Discovery(Event::Refused(list)) => {
            for (name, why) in list {
                log.warning(format_args!(
                    "discovery sent {name}, which is not understood: {why}"
                ));
            }
        }
        Notice::Discovery(Event::Disconnected(error)) => {
            metrics.discovery_failures.count();
            let why = chain(error);
            log.warning(format_args!("discovery: {why}"));
            readiness.trouble(Stage::Configuration, why);
        }
    }
}
