//! Connections the pod opens, captured on port 15001.
//!
//! 1. Where it was going is what the kernel remembers, or its own address if it was not redirected but taken as it is.
//! 2. [`route::outbound`] says whom to try, in order.
//! 3. Nothing was read from the pod yet, so another endpoint can be tried when one cannot be reached.
//! 4. Bytes move until both sides are done. What breaks on one side is a reset on the other.

use crate::access::{Direction, Failure, Traffic};
use crate::balance::{Load, Open};
use crate::connections::{Carriage, Ends, Watch};
use crate::context::Context;
use crate::copy::{self, Counters};
use crate::guard;
use crate::pool::{PoolError, Stream, TLS_BUFFER};
use crate::route::{self, Ask, Hop, Route, Transport};
use crate::socket::{self, Batched};
use bytes::Bytes;
use h2::Reason;
use remora_mtls::AlpnProfile;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

enum Upstream {
    Plain(TcpStream),
    Hbone(Box<Stream>),
    IstioMtls(Box<TlsStream<Batched>>),
}

/// Serves one captured connection.
pub(crate) async fn handle(mut stream: TcpStream, ends: [SocketAddr; 2], ctx: Arc<Context>) {
    let watch = Watch::new(&ctx, Direction::Outbound, ends);
    let failure = serve(&mut stream, ends, &ctx, &watch).await.err();
    if failure.is_some() {
        reset(&stream);
    }
    watch.end(failure);
}

pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn serve(
    near: &mut TcpStream,
    ends: [SocketAddr; 2],
    ctx: &Context,
    watch: &Watch,
) -> Result<(), Failure> {
    // Boxed: what deciding and connecting need is given back before the long part begins.
    let Answer { upstream, open } = Box::pin(reach(ends, ctx, watch)).await?;
    watch.established();
    let ended = carry(near, upstream, ctx, watch.traffic()).await;
    drop(open);
    ended
}

/// Somebody who answers for what was dialled.
async fn reach(
    [source, destination]: [SocketAddr; 2],
    ctx: &Context,
    watch: &Watch,
) -> Result<Answer, Failure> {
    let mut ask = ctx.ask(source.ip(), destination);
    let mut ends = Ends {
        source: ctx.mesh.workload(source.ip()),
        source_id: Some(ctx.identity.id()),
        ..Ends::default()
    };
    let answer = match route::outbound(&ctx.mesh, &ask, |_, _| ()) {
        Ok(route) => {
            ends.service.clone_from(&route.service);
            first_that_answers(route, &mut ask, ctx, &mut ends).await
        }
        Err(error) => Err(error.into()),
    };
    watch.know(ends);
    answer
}

/// Somebody who answered.
struct Answer {
    upstream: Upstream,
    /// Counts the connection for as long as it lives.
    open: Option<Open>,
}

/// Tries one after the other; gives up early where another would not help.
async fn first_that_answers(
    mut route: Route,
    ask: &mut Ask,
    ctx: &Context,
    ends: &mut Ends,
) -> Result<Answer, Failure> {
    let mut hop = route.first.clone();
    let mut left = ctx.limits.attempts;
    loop {
        let open = hop.load.as_ref().map(Load::begin);
        ends.destination.clone_from(&hop.workload);
        (ends.chosen, ends.carriage) = (Some(hop.address), carriage(&hop));
        let started = Instant::now();
        let error = match connect(&hop, ctx).await {
            Ok(upstream) => {
                if let Some(load) = &hop.load {
                    load.answered(started.elapsed());
                }
                ends.destination_id = hop.peer().cloned();
                return Ok(Answer { upstream, open });
            }
            Err(error) => error,
        };
        if !error.elsewhere() {
            return Err(error.into());
        }
        ask.now = ctx.now();
        if let Some(load) = &hop.load {
            load.failed(ask.now);
        }
        left = left.saturating_sub(1);
        hop = match route.next(ask) {
            Some(hop) if left > 0 => hop,
            _ => return Err(error.into()),
        };
    }
}

fn carriage(hop: &Hop) -> Carriage {
    match hop.transport {
        Transport::Plain => Carriage::Plain,
        Transport::Hbone(_) => Carriage::Hbone,
        Transport::IstioMtls(_) => Carriage::IstioMtls,
    }
}

async fn connect(hop: &Hop, ctx: &Context) -> Result<Upstream, PoolError> {
    let address = hop.address;
    let plain = async || {
        socket::connect(address, ctx.limits.connect)
            .await
            .map_err(|error| PoolError::Connect(address, error))
    };
    match &hop.transport {
        Transport::Plain => Ok(Upstream::Plain(plain().await?)),
        Transport::Hbone(key) => {
            let stream = ctx.pool.stream(&ctx.identity, &ctx.limits, key, address).await?;
            Ok(Upstream::Hbone(Box::new(stream)))
        }
        Transport::IstioMtls(peer) => {
            let stream = plain().await?;
            let config = ctx
                .identity
                .client(std::slice::from_ref(peer), AlpnProfile::Istio)?;
            let name = rustls::pki_types::ServerName::IpAddress(address.ip().into());
            let shaking = TlsConnector::from(config).connect(name, Batched::new(stream));
            let mut tls = tokio::time::timeout(ctx.limits.handshake, shaking)
                .await
                .map_err(|_| PoolError::Slow(peer.clone(), address))?
                .map_err(|error| PoolError::Handshake(peer.clone(), address, error))?;
            ctx.identity
                .peer(tls.get_ref().1.peer_certificates())
                .map_err(|error| PoolError::Handshake(peer.clone(), address, std::io::Error::other(error)))?;
            tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER));
            Ok(Upstream::IstioMtls(Box::new(tls)))
        }
    }
}

async fn carry(
    near: &mut TcpStream,
    upstream: Upstream,
    ctx: &Context,
    traffic: &Traffic,
) -> Result<(), Failure> {
    // Nobody's policy is ours to keep on the way out.
    let cut = guard::cut(ctx, traffic, std::future::pending(), || None);
    match upstream {
        Upstream::Plain(mut far) => {
            let ended = tokio::select! {
                biased;
                why = cut => Err(why),
                copied = copy::sockets(Bytes::new(), near, &mut far, traffic) => copied.map_err(Failure::reset),
            };
            ended.inspect_err(|_| reset(&far))
        }
        Upstream::IstioMtls(mut far) => {
            let ended = tokio::select! {
                biased;
                why = cut => Err(why),
                copied = copy::streams(near, &mut *far, traffic) => copied.map_err(Failure::reset),
            };
            ended.inspect_err(|_| reset(far.get_ref().0.get_ref()))
        }
        Upstream::Hbone(mut stream) => {
            let counters = Counters {
                from_socket: traffic.forward(),
                to_socket: traffic.backward(),
            };
            let Stream { send, receive, .. } = &mut *stream;
            let ended = tokio::select! {
                biased;
                why = cut => Err(why),
                copied = copy::tunnel(near, send, receive, &counters) => copied.map_err(Failure::reset),
            };
            ended.inspect_err(|_| stream.send.send_reset(Reason::CANCEL))
        }
    }
}
