//! Changes that repair a pod, and the trade-off of each.

use crate::findings::Options;
use crate::mesh::{CapturePoint, Mesh, Setup};
use crate::needs;
use remora_pod::spec::{Hook, Kind, PodView, ProbeKind, Slot};

/// The new position of an init container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Right before the container that installs the rules.
    BeforeCapture,
    /// Right after the proxy.
    AfterProxy,
}

/// A change of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Make the proxy a native sidecar that goes first.
    Native(&'static Mesh),
    /// Put the proxy first among the mains, with a hook that waits for it.
    Hold(&'static Mesh),
    /// Move an init container.
    Move(&'static Mesh, String, Place),
    /// Exclude outbound traffic to these ports from capture.
    ExcludePorts(&'static Mesh, Vec<u16>),
    /// Exclude inbound traffic to this port from capture.
    ExcludeInbound(&'static Mesh, u16),
    /// Run a container as this user.
    RunAs(String, i64),
    /// Drop the user and group of a container.
    ClearUser(String),
    /// Make the proxy's init container a native sidecar: `restartPolicy: Always`.
    MakeStay(&'static Mesh),
    /// Give the proxy a startup probe.
    GateProxy(&'static Mesh),
    /// Give a container a startup probe like its liveness probe.
    StartupLikeLiveness(String),
    /// Drop a probe.
    DropProbe(String, ProbeKind),
    /// Drop a hook.
    DropHook(String, Hook),
    /// Set the period of a probe, in seconds.
    ProbePeriod(String, ProbeKind, u64),
    /// Add an init container that does nothing, in first position.
    NoopInit,
    /// Set the grace period of the pod.
    Grace(u64),
    /// Set the annotation that names the container for the OpenTelemetry operator to instrument.
    Instrument(String),
}

/// A fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    /// What it does, in the imperative.
    pub title: String,
    /// The trade-off.
    pub trade_off: String,
    /// The change itself.
    pub change: Change,
    /// Whether it removes something from the pod; automatic repair applies such a fix only against an error.
    pub drastic: bool,
}

impl Fix {
    pub(super) fn new(change: Change, title: impl Into<String>, trade_off: impl Into<String>) -> Self {
        let drastic = matches!(
            change,
            Change::DropProbe(..) | Change::DropHook(..) | Change::ClearUser(_)
        );
        Self {
            title: title.into(),
            trade_off: trade_off.into(),
            change,
            drastic,
        }
    }
}

/// Fixes that exist for a pod, by what they help with.
pub(super) struct Shop<'a> {
    pub(super) view: &'a PodView,
    pub(super) setup: &'a Setup,
    pub(super) options: &'a Options,
}

impl Shop<'_> {
    /// The proxy as a native sidecar, where kubelets and mesh allow it.
    pub(super) fn native(&self) -> Option<Fix> {
        let mesh = self.setup.mesh;
        let possible =
            self.setup.mode.is_classic() && self.options.native_possible() && mesh.native.is_some();
        possible.then(|| {
            Fix::new(
                Change::Native(mesh),
                format!("make {} a native sidecar", mesh.proxy()),
                "needs Kubernetes 1.29 or later; init containers then run inside the mesh",
            )
        })
    }

    /// Hold the main containers until the proxy is ready.
    pub(super) fn hold(&self) -> Option<Fix> {
        let mesh = self.setup.mesh;
        let useful = self.setup.mode.is_classic() && !self.setup.mode.is_hold();
        useful.then(|| {
            Fix::new(
                Change::Hold(mesh),
                format!(
                    "start {} first and hold the others until it is ready",
                    mesh.proxy()
                ),
                format!(
                    "only a delay: after {} s without a ready proxy the others start all the same; \
                     init containers are not helped",
                    mesh.wait_seconds
                ),
            )
        })
    }

    /// Move the container after a native proxy, or before the rules are installed.
    pub(super) fn reorder(&self, slot: Slot) -> Option<Fix> {
        let name = self.view.containers.get(slot)?.name.clone();
        let mesh = self.setup.mesh;
        if self.setup.mode.is_native() && self.setup.proxy.is_some_and(|p| slot < p) {
            let title = format!("move {name} behind {}", mesh.proxy());
            let cost = "it starts later, once the proxy is ready";
            return Some(Fix::new(Change::Move(mesh, name, Place::AfterProxy), title, cost));
        }
        let CapturePoint::Container(by) = self.setup.capture_at else {
            return None;
        };
        let movable =
            slot > by && self.view.containers[slot].kind == Kind::Init && self.setup.mode.is_classic();
        movable.then(|| {
            let title = format!("move {name} before {}", self.view.containers[by].name);
            let cost = "traffic of this init container is plaintext and has no mesh identity";
            Fix::new(Change::Move(mesh, name, Place::BeforeCapture), title, cost)
        })
    }

    /// Exactly the ports the container is known to connect to.
    pub(super) fn exclude(&self, slot: Slot) -> Option<Fix> {
        let container = self.view.containers.get(slot)?;
        let known = needs::destinations(container);
        let mut ports: Vec<u16> = known.iter().filter_map(|d| d.port).collect();
        if ports.is_empty() || ports.len() < known.len() || self.setup.proxy.is_none() {
            return None;
        }
        ports.sort_unstable();
        ports.dedup();
        let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let mut cost =
            "traffic to these ports leaves the mesh for every container of the pod, for ever".to_owned();
        if self.setup.capture.captures_dns() {
            cost.push_str("; names still do not resolve, because lookups are captured as well");
        }
        let change = Change::ExcludePorts(self.setup.mesh, ports);
        Some(Fix::new(
            change,
            format!("leave outbound port {list} alone"),
            cost,
        ))
    }

    /// The proxy's own user, which is exempt.
    pub(super) fn run_as_proxy(&self, slot: Slot) -> Option<Fix> {
        let container = self.view.containers.get(slot)?;
        let uid = self.setup.capture.proxy_uid()?;
        let fits = container.kind == Kind::Init && container.uid != Some(uid) && self.setup.proxy.is_some();
        fits.then(|| {
            Fix::new(
                Change::RunAs(container.name.clone(), uid),
                format!("run {} as user {uid}", container.name),
                "traffic of this init container is plaintext; clusters that assign users refuse it",
            )
        })
    }
}
