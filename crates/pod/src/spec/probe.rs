//! Probes and lifecycle hooks, with the defaults the API server fills in.

use serde_json::Value;

use super::{items, text};

/// The three probes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Gates the other two probes, and the containers after a native sidecar.
    Startup,
    /// Decides whether the pod receives traffic.
    Readiness,
    /// Its failure restarts the container.
    Liveness,
}

impl ProbeKind {
    /// All kinds, in the order a kubelet registers them.
    pub const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    /// The field of a container that holds it.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Startup => "startupProbe",
            Self::Readiness => "readinessProbe",
            Self::Liveness => "livenessProbe",
        }
    }
}

/// The two lifecycle hooks of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Runs concurrently with the entrypoint; the kubelet starts the next container only after it.
    PostStart,
    /// Runs before the stop signal.
    PreStop,
}

impl Hook {
    /// The field of `lifecycle` that holds it.
    pub const fn field(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::PreStop => "preStop",
        }
    }
}

/// What a probe or hook does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handler {
    /// A command inside the container.
    Exec(Vec<String>),
    /// A request made by the kubelet from the node.
    Http {
        /// Request path.
        path: String,
        /// Port, `None` when a named port does not exist.
        port: Option<u16>,
    },
    /// A connection made by the kubelet from the node.
    Tcp(Option<u16>),
    /// A health call made by the kubelet from the node.
    Grpc(Option<u16>),
    /// A pause of this many seconds (hooks only).
    Sleep(u64),
}

impl Handler {
    /// Reads a handler; `None` when there is none.
    pub(super) fn read(raw: &Value, ports: &[(String, u16)]) -> Option<Self> {
        if raw["exec"].is_object() {
            return Some(Self::Exec(
                items(&raw["exec"]["command"]).iter().map(text).collect(),
            ));
        }
        if raw["httpGet"].is_object() {
            let path = raw["httpGet"]["path"].as_str().unwrap_or("/").to_owned();
            return Some(Self::Http {
                path,
                port: port(&raw["httpGet"]["port"], ports),
            });
        }
        if raw["tcpSocket"].is_object() {
            return Some(Self::Tcp(port(&raw["tcpSocket"]["port"], ports)));
        }
        if raw["grpc"].is_object() {
            return Some(Self::Grpc(port(&raw["grpc"]["port"], ports)));
        }
        raw["sleep"]
            .is_object()
            .then(|| Self::Sleep(raw["sleep"]["seconds"].as_u64().unwrap_or(0)))
    }

    /// The port that the kubelet connects to, if the kubelet makes the connection.
    pub fn kubelet_port(&self) -> Option<u16> {
        match self {
            Self::Http { port, .. } | Self::Tcp(port) | Self::Grpc(port) => *port,
            Self::Exec(_) | Self::Sleep(_) => None,
        }
    }

    /// Whether the kubelet connects to the pod from the node for this.
    pub fn is_kubelet_connection(&self) -> bool {
        matches!(self, Self::Http { .. } | Self::Tcp(_) | Self::Grpc(_))
    }

    /// The field of the probe or hook that holds this handler.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Http { .. } => "httpGet",
            Self::Tcp(_) => "tcpSocket",
            Self::Grpc(_) => "grpc",
            Self::Sleep(_) => "sleep",
        }
    }
}

/// A probe, defaulted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What it does.
    pub handler: Handler,
    /// Seconds after the container's start before it acts.
    pub initial_delay: u64,
    /// Seconds between attempts, at least 1.
    pub period: u64,
    /// Seconds one attempt may take, at least 1.
    pub timeout: u64,
    /// Successes in a row that count as success.
    pub success_threshold: u64,
    /// Failures in a row that count as failure.
    pub failure_threshold: u64,
    /// Grace period of a kill caused by this probe, in place of the pod's.
    pub grace_seconds: Option<u64>,
}

impl Probe {
    pub(super) fn read(raw: &Value, ports: &[(String, u16)]) -> Option<Self> {
        let handler = Handler::read(raw, ports)?;
        // k8s: zero means "the default" for all of these but the delay.
        let or = |key: &str, default: u64| raw[key].as_u64().filter(|n| *n > 0).unwrap_or(default);
        Some(Self {
            handler,
            initial_delay: or("initialDelaySeconds", 0),
            period: or("periodSeconds", 10),
            timeout: or("timeoutSeconds", 1),
            success_threshold: or("successThreshold", 1),
            failure_threshold: or("failureThreshold", 3),
            grace_seconds: raw["terminationGracePeriodSeconds"].as_u64().filter(|n| *n > 0),
        })
    }
}

fn port(value: &Value, ports: &[(String, u16)]) -> Option<u16> {
    if let Some(number) = value.as_u64() {
        return u16::try_from(number).ok();
    }
    let name = value.as_str()?;
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    ports.iter().find(|(n, _)| n == name).map(|(_, p)| *p)
}
