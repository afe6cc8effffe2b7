//! The sockets of a sidecar with the built-in proxy.

use crate::http::{self, Http1};
use crate::settings::Settings;
use crate::sockets::{self, ListenError};
use crate::status;
use crate::status::Desk;
use remora_proxy::Listeners;
use std::sync::Arc;
use tokio::net::TcpListener;

/// All listening sockets.
pub(super) struct Sockets {
    proxy: Listeners,
    readiness: Vec<TcpListener>,
    agent: Vec<TcpListener>,
    metrics: Vec<TcpListener>,
}

impl Sockets {
    pub(super) fn open(settings: &Settings) -> Result<Self, ListenError> {
        let ports = settings.ports;
        // istio: TPROXY is for inbound connections only; the application then sees the client's address.
        let mode = settings.node.metadata.get("INTERCEPTION_MODE");
        let transparent = mode.and_then(|mode| mode.as_str()) == Some("TPROXY");
        Ok(Self {
            readiness: sockets::everywhere(ports.readiness)?,
            agent: if ports.agent == 0 {
                Vec::new()
            } else {
                sockets::everywhere(ports.agent)?
            },
            metrics: sockets::everywhere(ports.metrics)?,
            proxy: Listeners {
                outbound: sockets::everywhere(ports.outbound)?,
                inbound: sockets::captured(ports.inbound, transparent)?,
                hbone: sockets::captured(ports.hbone, transparent)?,
                dns: ports.dns.map(sockets::names).transpose()?.unwrap_or_default(),
                admin: if ports.admin == 0 {
                    Vec::new()
                } else {
                    sockets::local(ports.admin)?
                },
            },
        })
    }

    /// Starts the HTTP endpoints; returns the proxy's own sockets.
    pub(super) fn answer(self, desk: &Arc<Desk>) -> Listeners {
        let shared = Arc::clone(desk);
        tokio::spawn(http::serve(
            self.readiness,
            Http1::probes(),
            move |request, peer| status::readiness_port(request, peer, Arc::clone(&shared)),
        ));
        let shared = Arc::clone(desk);
        tokio::spawn(http::serve(self.agent, http::pages(), move |request, peer| {
            status::agent_port(request, peer, Arc::clone(&shared))
        }));
        let shared = Arc::clone(desk);
        tokio::spawn(http::serve(self.metrics, http::pages(), move |request, _| {
            std::future::ready(status::metrics_port(&request, &shared))
        }));
        self.proxy
    }
}
