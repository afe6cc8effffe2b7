//! Looks at a pod's network from inside: is it captured, and does a proxy take the connections.
//!
//! A thread in the pod's namespace looks ten times a second, and more often while a change is to come. It reads what the kernel says (rules, listening sockets)
//! and opens no connection, so that nothing in the pod notices.

use std::io;
use std::sync::mpsc::{self as mpsc_std, RecvTimeoutError};
use std::time::Duration;

use remora_net::Namespace;
use remora_net::listeners::Listeners;
use remora_net::nft::Connection;
use remora_startup::network::NetState;
use remora_startup::sim::{ActorRef, What};
use tokio::sync::mpsc;

use super::{Mail, Pod};

const PERIOD: Duration = Duration::from_millis(100);
/// While a meshed pod waits for its rules or its proxy.
const SHORT: Duration = Duration::from_millis(20);
/// The port of outbound capture.
const CAPTURE_PORT: u16 = 15001;

/// A thread that looks, until this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    _stop: mpsc_std::Sender<()>,
}

impl Watch {
    pub(super) fn begin(
        network: Namespace,
        mail: mpsc::UnboundedSender<Mail>,
        proxy: Option<ActorRef>,
    ) -> Self {
        let (stop, told) = mpsc_std::channel();
        let thread = std::thread::Builder::new().name("watch".into());
        // Without the thread the pod runs all the same; only its network states are not shown.
        let _ = thread.spawn(move || {
            let Ok(mut sight) = network.enter().and_then(|()| Sight::open()) else {
                return;
            };
            let mut last = NetState::Direct;
            loop {
                let now = sight.look();
                if now != last && !report(&mail, &last, &now, proxy) {
                    return;
                }
                let settled = now == NetState::Proxied || proxy.is_none();
                let period = if settled { PERIOD } else { SHORT };
                last = now;
                // Ends at once when the watch is dropped.
                if told.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Self { _stop: stop }
    }
}

/// False when nobody listens any more.
fn report(
    mail: &mpsc::UnboundedSender<Mail>,
    before: &NetState,
    now: &NetState,
    proxy: Option<ActorRef>,
) -> bool {
    let mut news = Vec::new();
    if *before == NetState::Direct {
        news.push(What::Captured(None));
    }
    if let (NetState::Proxied, Some(proxy)) = (now, proxy) {
        news.push(What::ProxyReady(proxy));
    }
    news.into_iter()
        .all(|what| mail.send(Mail::Happened(what)).is_ok())
        && mail.send(Mail::Network(now.clone())).is_ok()
}

/// What is asked again and again, opened once.
struct Sight {
    chains: Connection,
    listeners: Listeners,
}

impl Sight {
    fn open() -> io::Result<Self> {
        Ok(Self {
            chains: Connection::open()?,
            listeners: Listeners::open()?,
        })
    }

    fn look(&mut self) -> NetState {
        let chains = self.chains.all_chains();
        if !chains.is_ok_and(|chains| chains.iter().any(is_capture)) {
            return NetState::Direct;
        }
        let ports = self.listeners.ports();
        if ports.is_ok_and(|ports| ports.contains(&CAPTURE_PORT)) {
            NetState::Proxied
        } else {
            NetState::Broken
        }
    }
}

/// Rules of ours, or of Istio's own program.
fn is_capture((table, chain): &(String, String)) -> bool {
    table == "remora" || chain.starts_with("ISTIO_")
}

impl Pod {
    /// The proxy's container, by its name.
    pub(super) fn proxy(&self) -> Option<ActorRef> {
        use remora_startup::sim::Actor;
        let slot = self.kubelet.view().slot("istio-proxy")?;
        Some(ActorRef {
            actor: Actor::main(slot),
            instance: 1,
        })
    }
}
