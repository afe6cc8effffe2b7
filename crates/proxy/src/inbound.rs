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

use crate::access::{Direction, Failure, Reason};
use crate::admit::{self, Entry, Refused, Treatment, treatment};
use crate::budget::{FULL, Full, Permit};
use crate::connections::{Carriage, Ends, Watch};
use crate::context::Context;
use crate::crowd::Place;
use crate::listen::Visitor;
use crate::pool::TLS_BUFFER;
use crate::sniff::{Sniffer, Speech};
use crate::socket::{self, Batched, Speaker};
use crate::{copy, guard};
use bytes::Bytes;
use remora_mtls::{AlpnProfile, PeerCertificate, PeerRole, SpiffeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
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
    watch: &'a Watch,
}

/// The caller's side, once it is clear what it speaks.
enum Near {
    /// What was read already, and the rest.
    Plain(Bytes, TcpStream),
    Tls(Box<TlsStream<Batched>>, Box<PeerCertificate>),
}

impl Near {
    fn reset(&self) {
        match self {
            Self::Plain(_, stream) => crate::outbound::reset(stream),
            Self::Tls(stream, _) => crate::outbound::reset(stream.get_ref().0.get_ref()),
        }
    }
}

/// Serves one captured connection.
pub(crate) async fn handle(visitor: Visitor, ctx: Arc<Context>) {
    let Visitor {
        stream,
        source,
        destination,
        speaker,
        place,
        mut permit,
    } = visitor;
    let ends = [source, destination];
    let watch = Watch::new(&ctx, Direction::Inbound, ends);
    let arrival = Arrival {
        source,
        destination,
        speaker,
        ctx: &ctx,
        watch: &watch,
    };
    permit.follow(watch.connection());
    let failure = arrival.serve(stream, place, &mut permit).await.err();
    if failure.is_some() {
        // Perhaps it never came to knowing more.
        watch.know(Ends::inbound(&ctx, ends, None, Carriage::Plain));
    }
    watch.end(failure);
}

impl Arrival<'_> {
    async fn serve(
        &self,
        stream: TcpStream,
        place: Option<Place>,
        permit: &mut Permit,
    ) -> Result<(), Failure> {
        let mut sniffer = Sniffer::new(stream);
        let decided = unless_evicted(permit, Box::pin(self.decide(&mut sniffer))).await;
        let (treatment, upstream) = decided.inspect_err(|_| crate::outbound::reset(sniffer.get_ref()))?;
        let (first, stream) = sniffer.into_parts();
        let near = match treatment {
            Treatment::EndTls => {
                // If that fails the stream is gone with the handshake, which says why to the peer.
                let stream = Batched::starting_with(first, stream);
                let (tls, certificate) = unless_evicted(permit, Box::pin(self.end_tls(stream))).await?;
                Near::Tls(Box::new(tls), Box::new(certificate))
            }
            Treatment::PassOn | Treatment::Refuse => Near::Plain(first, stream),
        };
        let admitted = match &near {
            Near::Plain(..) => permit.plaintext(),
            Near::Tls(_, certificate) => permit.authenticated(certificate.id()),
        };
        if admitted == Err(Full) {
            near.reset();
            return Err(Failure::new(Reason::Overload, FULL));
        }
        // It has said what it had to say; what it may is up to policy.
        drop(place);
        let (id, carriage) = match &near {
            Near::Plain(..) => (None, Carriage::Plain),
            Near::Tls(_, certificate) => (Some(certificate.id().clone()), Carriage::IstioMtls),
        };
        let ends = [self.source, self.destination];
        self.watch
            .know(Ends::inbound(self.ctx, ends, id.clone(), carriage));
        self.carry(near, id.as_ref(), upstream, permit).await
    }

    /// What to do with it; with a connection to the application where that was opened to find out.
    async fn decide(&self, sniffer: &mut Sniffer) -> Result<(Treatment, Option<TcpStream>), Failure> {
        if let Some(refused @ Refused::Reserved(_)) = self.refused(None) {
            return Err(refused.into());
        }
        let mode = self.ctx.modes.of(self.destination.port());
        let (speech, upstream) = match mode {
            // Nobody needs to know.
            Mode::Disable => (Speech::Plain, None),
            Mode::Permissive => self.listen(sniffer).await?,
            Mode::Strict => (self.patiently(sniffer).await?, None),
        };
        match treatment(mode, speech) {
            Treatment::Refuse => Err(Refused::Plaintext.into()),
            treatment => Ok((treatment, upstream)),
        }
    }

    /// The first words, however long that takes within reason.
    async fn patiently(&self, sniffer: &mut Sniffer) -> Result<Speech, Failure> {
        match tokio::time::timeout(self.ctx.limits.handshake, sniffer.speech()).await {
            Ok(speech) => speech.map_err(by_client),
            Err(_) => Err(Failure::new(
                Reason::Tls,
                "the client said nothing it had to say in time",
            )),
        }
    }

    /// Permissive: whoever speaks first.
    async fn listen(&self, sniffer: &mut Sniffer) -> Result<(Speech, Option<TcpStream>), Failure> {
        if let Ok(speech) = tokio::time::timeout(self.ctx.limits.sniff, sniffer.speech()).await {
            return Ok((speech.map_err(by_client)?, None));
        }
        if self.refused(None).is_some() {
            // Only a sidecar may go on, and a sidecar speaks first.
            return Ok((self.patiently(sniffer).await?, None));
        }
        let upstream = self.connect().await?;
        let speech = tokio::select! {
            biased;
            speech = sniffer.speech() => speech.map_err(by_client)?,
            ready = upstream.readable() => {
                ready.map_err(|error| Failure::reset(format_args!("reset by the application: {error}")))?;
                Speech::Plain
            }
            why = guard::cut(self.ctx, self.watch.traffic(), std::future::pending(), || self.refused(None)) => return Err(why),
        };
        Ok((speech, Some(upstream)))
    }

    async fn end_tls(&self, stream: Batched) -> Result<(TlsStream<Batched>, PeerCertificate), Failure> {
        let roots = self.ctx.identity.roots();
        let acceptor = TlsAcceptor::from(self.ctx.identity.server(AlpnProfile::Istio));
        let mut tls = tokio::time::timeout(self.ctx.limits.handshake, acceptor.accept(stream))
            .await
            .map_err(|_| Failure::new(Reason::Tls, "the handshake took too long"))?
            .map_err(|error| Failure::new(Reason::Tls, format_args!("TLS handshake: {error}")))?;
        let certificates = tls.get_ref().1.peer_certificates();
        let certificate = self
            .ctx
            .identity
            .peer_certificate(certificates, PeerRole::Client, roots)
            .map_err(|error| Failure::new(Reason::Tls, error))?;
        tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
        Ok((tls, certificate))
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

    async fn connect(&self) -> Result<TcpStream, Failure> {
        socket::connect_application(self.destination, self.speaker, self.ctx.limits.connect)
            .await
            .map_err(|error| {
                Failure::new(
                    Reason::Connect,
                    format_args!("connect to the application: {error}"),
                )
            })
    }

    async fn carry(
        &self,
        near: Near,
        id: Option<&SpiffeId>,
        upstream: Option<TcpStream>,
        permit: &Permit,
    ) -> Result<(), Failure> {
        let mut far = None;
        let opened = async {
            crate::hbone::known(self.ctx, self.destination.ip()).await;
            if let Some(refused) = self.refused(id) {
                return Err(refused.into());
            }
            match upstream {
                Some(upstream) => Ok(upstream),
                None => self.connect().await,
            }
        };
        let ended = match opened.await {
            Err(why) => Err((near, why)),
            Ok(upstream) => {
                self.watch.established();
                self.copy(near, far.insert(upstream), id, permit).await
            }
        };
        ended.map_err(|(near, why)| {
            near.reset();
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
        permit: &Permit,
    ) -> Result<(), (Near, Failure)> {
        let (ctx, traffic) = (self.ctx, self.watch.traffic());
        let refused = || self.refused(id);
        let ended = match &mut near {
            Near::Plain(first, stream) => {
                let prefix = std::mem::take(first);
                tokio::select! {
                    biased;
                    why = guard::cut(ctx, traffic, guard::evicted(permit), refused) => Err(why),
                    copied = copy::sockets(prefix, stream, far, traffic) => copied.map_err(Failure::reset),
                }
            }
            Near::Tls(stream, certificate) => {
                // Boxed: plaintext connections do not need the room.
                let expired = Box::pin(guard::expired(ctx, certificate));
                tokio::select! {
                    biased;
                    why = guard::cut(ctx, traffic, expired, refused) => Err(why),
                    copied = copy::streams(&mut **stream, far, traffic) => copied.map_err(Failure::reset),
                }
            }
        };
        ended.map_err(|why| (near, why))
    }
}

/// Does the work, unless the connection has to make room for another before it is done.
async fn unless_evicted<T>(
    permit: &Permit,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done,
        why = guard::evicted(permit) => Err(why),
    }
}

fn by_client(error: impl std::fmt::Display) -> Failure {
    Failure::reset(format_args!("reset by the client: {error}"))
}
