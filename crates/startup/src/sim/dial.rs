//! Connections the kubelet makes to the pod, for probes and hooks.

use super::behaviour::Role;
use super::simulation::Simulation;
use crate::kubelet::{Millis, Outcome};
use remora_pod::spec::Handler;

// istio: the agent's port for rewritten probes, and the proxy's readiness port.
const AGENT_PORT: u16 = 15020;
const READY_PORT: u16 = 15021;

/// The result of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Refused,
    /// Accepted, and closed without an HTTP answer.
    Closed,
    /// An HTTP answer, good or bad.
    Http(bool),
}

impl Simulation<'_> {
    /// One attempt of a probe the kubelet makes itself.
    pub(super) fn dial_probe(&self, now: Millis, handler: &Handler) -> Outcome {
        let ok = match handler {
            Handler::Http {
                path,
                port: Some(port),
            } => self.dial(now, *port, path) == Answer::Http(true),
            Handler::Grpc(Some(port)) => self.dial(now, *port, "/") == Answer::Http(true),
            Handler::Tcp(Some(port)) => self.dial(now, *port, "/") != Answer::Refused,
            // A port name that does not exist: the attempt cannot be made.
            _ => return Outcome::Error,
        };
        if ok { Outcome::Success } else { Outcome::Failure }
    }

    /// The single request of a hook; k8s: any HTTP response is success, and TCP hooks are not implemented.
    pub(super) fn dial_hook(&self, now: Millis, handler: &Handler) -> bool {
        match handler {
            Handler::Http {
                path,
                port: Some(port),
            } => {
                matches!(self.dial(now, *port, path), Answer::Http(_))
            }
            _ => false,
        }
    }

    fn dial(&self, now: Millis, port: u16, path: &str) -> Answer {
        if self.capture().is_some_and(|c| c.captures_inbound(port)) {
            return self.dial_through_proxy(now, port);
        }
        let proxy = self.processes().iter().find(|p| p.is_proxy());
        match (proxy, port) {
            (Some(_), AGENT_PORT) => Answer::Http(self.app_health(now, path)),
            (Some(proxy), READY_PORT) => Answer::Http(proxy.ready),
            _ => self.listener(now, port).map_or(Answer::Refused, Answer::Http),
        }
    }

    fn dial_through_proxy(&self, now: Millis, port: u16) -> Answer {
        let proxy = self.processes().iter().find(|p| p.is_proxy() && p.ready);
        match proxy.map(|p| &p.behaviour.role) {
            None => Answer::Refused,
            Some(Role::Proxy { strict: true, .. }) => Answer::Closed,
            // The proxy accepts before it knows whether the application listens.
            Some(_) => self.listener(now, port).map_or(Answer::Closed, Answer::Http),
        }
    }

    /// `/app-health/8080` as recorded pods write it, `/app-health/app/livez` as an injector does.
    fn app_health(&self, now: Millis, path: &str) -> bool {
        let Some(rest) = path.strip_prefix("/app-health/") else {
            return true;
        };
        let target = rest.split('/').next().unwrap_or_default();
        match target.parse() {
            Ok(port) => self.listener(now, port).unwrap_or(false),
            Err(_) => self.container_listens(now, target),
        }
    }

    fn listener(&self, now: Millis, port: u16) -> Option<bool> {
        self.processes()
            .iter()
            .find(|p| p.listens(now, port))
            .map(|p| p.behaviour.healthy)
    }

    fn container_listens(&self, now: Millis, name: &str) -> bool {
        let slot = self.view().slot(name);
        let mut own = self
            .processes()
            .iter()
            .filter(|p| p.alive && Some(p.who.actor.slot) == slot);
        own.any(|p| p.behaviour.healthy && p.behaviour.listens.iter().any(|port| p.listens(now, *port)))
    }
}
