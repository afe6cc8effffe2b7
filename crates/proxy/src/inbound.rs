//! Captured connections to the pod's own ports, on port 15006.
//!
//! | mode | TLS of a sidecar | other TLS | no TLS |
//! |---|---|---|---|
//! | permissive | ended here | passed on as it is | passed on |
//! | strict | ended here | ended here | refused |
//! | disable | passed on as it is | passed on | passed on |
//!
//! A server that speaks first is never kept waiting: if the caller says nothing for a moment the application is
//! connected to, and whoever speaks first decides. A sidecar's hello that comes late is still understood.
// differs from istio: Envoy waits for the first byte for ever, so that a plaintext client of a server that speaks
// first hangs in permissive mode, because nothing bounds its sniffing by default.

use crate::access::{Direction, Record, Traffic};
use crate::admit::{self, Entry, Refused, Treatment, treatment};
use crate::context::Context;
use crate::crowd::Place;
use crate::listen::Visitor;
use crate::sniff::{Prefixed, Sniffer, Speech};
use crate::socket::{self, Speaker};
use crate::{copy, guard};
use remora_mtls::{SpiffeId, Wire, peer_identity};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What is accepted on a port.
// istio: the modes of PeerAuthentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Mutual TLS and plaintext.
    #[default]
    Permissive,
    /// Mutual TLS only.
    Strict,
    /// Everything as it is.
    Disable,
}

/// The modes of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Modes {
    /// Of ports that are not named.
    pub default: Mode,
    /// Of single ports.
    pub ports: BTreeMap<u16, Mode>,
}

impl Modes {
    /// Of a port.
    pub fn of(&self, port: u16) -> Mode {
        self.ports.get(&port).copied().unwrap_or(self.default)
    }
}

/// One captured connection.
struct Arrival<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    speaker: Speaker,
    ctx: &'a Context,
    traffic: &'a Traffic,
}

/// The caller's side, once it is clear what it speaks.
enum Near {
    Plain(Prefixed),
    Tls(Box<TlsStream<Prefixed>>, SpiffeId),
}

/// Serves one captured connection.
pub(crate) async fn handle(visitor: Visitor, ctx: Arc<Context>) {
    let Visitor {
        stream,
        source,
        destination,
        speaker,
        place,
    } = visitor;
    let started = Instant::now();
    let traffic = Traffic::default();
    let arrival = Arrival {
        source,
        destination,
        speaker,
        ctx: &ctx,
        traffic: &traffic,
    };
    let (source_id, error) = arrival.serve(stream, place).await;
    let (forward, backward) = traffic.read();
    ctx.log(&Record {
        direction: Direction::Inbound,
        source,
        source_id,
        destination,
        destination_id: Some(ctx.identity.id()),
        service: None,
        forward,
        backward,
        duration: started.elapsed(),
        error,
    });
}

impl Arrival<'_> {
    /// Who came, and what went wrong.
    async fn serve(&self, stream: TcpStream, place: Option<Place>) -> (Option<SpiffeId>, Option<String>) {
        let mut sniffer = Sniffer::new(stream);
        let decided = Box::pin(self.decide(&mut sniffer)).await;
        let (treatment, upstream) = match decided {
            Ok(decided) => decided,
            Err(why) => {
                crate::outbound::reset(sniffer.get_ref());
                return (None, Some(why));
            }
        };
        let near = match treatment {
            Treatment::EndTls => match Box::pin(self.end_tls(sniffer.into_stream())).await {
                Ok((tls, id)) => Near::Tls(Box::new(tls), id),
                // The stream is gone with the handshake, which says why to the peer.
                Err(why) => return (None, Some(why)),
            },
            Treatment::PassOn | Treatment::Refuse => Near::Plain(sniffer.into_stream()),
        };
        // It has said what it had to say; what it may is up to policy.
        drop(place);
        let id = match &near {
            Near::Plain(_) => None,
            Near::Tls(_, id) => Some(id.clone()),
        };
        let error = self.carry(near, id.as_ref(), upstream).await.err();
        (id, error)
    }

    /// What to do with it; with a connection to the application where that was opened to find out.
    async fn decide(&self, sniffer: &mut Sniffer) -> Result<(Treatment, Option<TcpStream>), String> {
        if let Some(refused @ Refused::Reserved(_)) = self.refused(None) {
            return Err(refused.to_string());
        }
        let mode = self.ctx.modes.of(self.destination.port());
        let (speech, upstream) = match mode {
            // Nobody needs to know.
            Mode::Disable => (Speech::Plain, None),
            Mode::Permissive => self.listen(sniffer).await?,
            Mode::Strict => (self.patiently(sniffer).await?, None),
        };
        match treatment(mode, speech) {
            Treatment::Refuse => Err(Refused::Plaintext.to_string()),
            treatment => Ok((treatment, upstream)),
        }
    }

    /// The first words, however long that takes within reason.
    async fn patiently(&self, sniffer: &mut Sniffer) -> Result<Speech, String> {
        match tokio::time::timeout(self.ctx.limits.handshake, sniffer.speech()).await {
            Ok(speech) => speech.map_err(|error| format!("reset by the client: {error}")),
            Err(_) => Err("the client said nothing it had to say in time".to_owned()),
        }
    }

    /// Permissive: whoever speaks first.
    async fn listen(&self, sniffer: &mut Sniffer) -> Result<(Speech, Option<TcpStream>), String> {
        let failed = |error| format!("reset by the client: {error}");
        if let Ok(speech) = tokio::time::timeout(self.ctx.limits.sniff, sniffer.speech()).await {
            return Ok((speech.map_err(failed)?, None));
        }
        if self.refused(None).is_some() {
            // Only a sidecar may go on, and a sidecar speaks first.
            return Ok((self.patiently(sniffer).await?, None));
        }
        let upstream = self.connect().await?;
        let speech = tokio::select! {
            biased;
            speech = sniffer.speech() => speech.map_err(failed)?,
            ready = upstream.readable() => {
                ready.map_err(|error| format!("reset by the application: {error}"))?;
                Speech::Plain
            }
            why = guard::cut(self.ctx, self.traffic, || self.refused(None)) => return Err(why),
        };
        Ok((speech, Some(upstream)))
    }

    async fn end_tls(&self, stream: Prefixed) -> Result<(TlsStream<Prefixed>, SpiffeId), String> {
        let acceptor = TlsAcceptor::from(self.ctx.identity.server(Wire::Istio));
        let tls = tokio::time::timeout(self.ctx.limits.handshake, acceptor.accept(stream))
            .await
            .map_err(|_| "the handshake took too long".to_owned())?
            .map_err(|error| format!("TLS handshake: {error}"))?;
        let certificates = tls.get_ref().1.peer_certificates();
        let id = peer_identity(certificates, self.ctx.identity.domains(), SystemTime::now())
            .map_err(|error| error.to_string())?;
        Ok((tls, id))
    }

    fn refused(&self, id: Option<&SpiffeId>) -> Option<Refused> {
        let arrival = admit::Arrival {
            source: self.source.ip(),
            id: id.cloned(),
            destination: self.destination,
            entry: Entry::Captured,
        };
        admit::inbound(&self.ctx.mesh, arrival).refused
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        socket::connect_application(self.destination, self.speaker, self.ctx.limits.connect)
            .await
            .map_err(|error| format!("connect to the application: {error}"))
    }

    async fn carry(
        &self,
        near: Near,
        id: Option<&SpiffeId>,
        upstream: Option<TcpStream>,
    ) -> Result<(), String> {
        let mut far = None;
        let opened = async {
            crate::hbone::known(self.ctx, self.destination.ip()).await;
            if let Some(refused) = self.refused(id) {
                return Err(refused.to_string());
            }
            match upstream {
                Some(upstream) => Ok(upstream),
                None => self.connect().await,
            }
        };
        let ended = match opened.await {
            Err(why) => Err((near, why)),
            Ok(upstream) => self.copy(near, far.insert(upstream), id).await,
        };
        ended.map_err(|(near, why)| {
            match &near {
                Near::Plain(stream) => crate::outbound::reset(stream.get_ref()),
                Near::Tls(stream, _) => crate::outbound::reset(stream.get_ref().0.get_ref()),
            }
            if let Some(far) = &far {
                crate::outbound::reset(far);
            }
            why
        })
    }

    /// Gives the caller's side back when something broke, to be reset.
    async fn copy(
        &self,
        mut near: Near,
        far: &mut TcpStream,
        id: Option<&SpiffeId>,
    ) -> Result<(), (Near, String)> {
        let cut = guard::cut(self.ctx, self.traffic, || self.refused(id));
        let ended = match &mut near {
            Near::Plain(stream) => {
                let (prefix, stream) = stream.parts();
                tokio::select! {
                    copied = copy::sockets(prefix, stream, far, self.traffic) => copied.map_err(|e| e.to_string()),
                    why = cut => Err(why),
                }
            }
            Near::Tls(stream, _) => tokio::select! {
                copied = copy::streams(&mut **stream, far, self.traffic) => copied.map_err(|e| e.to_string()),
                why = cut => Err(why),
            },
        };
        ended.map_err(|why| (near, why))
    }
}
