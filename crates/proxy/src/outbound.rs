//! Connections the pod opens, captured on port 15001.
//!
//! 1. Where it was going is what the kernel remembers; who dials our port directly is refused.
//! 2. [`route::outbound`] says whom to try, in order.
//! 3. Nothing was read from the pod yet, so another endpoint can be tried when one cannot be reached.
//! 4. Bytes move until both sides are done. What breaks on one side is a reset on the other.

use crate::access::{Direction, Record, Traffic};
use crate::context::Context;
use crate::copy::{self, Counters};
use crate::policy::Verdict;
use crate::pool::{PoolError, Stream};
use crate::route::{self, Hop};
use crate::{guard, socket};
use bytes::Bytes;
use h2::Reason;
use remora_mtls::{SpiffeId, Wire};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

enum Upstream {
    Plain(TcpStream),
    Hbone(Box<Stream>),
    IstioMtls(Box<TlsStream<TcpStream>>),
}

/// What became of a connection.
#[derive(Default)]
struct Outcome {
    service: Option<String>,
    peer: Option<SpiffeId>,
    error: Option<String>,
}

/// Serves one captured connection.
pub(crate) async fn handle(mut stream: TcpStream, source: SocketAddr, ctx: Arc<Context>) {
    let started = Instant::now();
    let traffic = Traffic::default();
    let Some(destination) = original(&stream) else {
        // Nobody was going anywhere: not a connection of the pod's.
        return reset(&stream);
    };
    let outcome = serve(&mut stream, destination, &ctx, &traffic).await;
    if outcome.error.is_some() {
        reset(&stream);
    }
    let (forward, backward) = traffic.read();
    ctx.log(&Record {
        direction: Direction::Outbound,
        source,
        source_id: Some(ctx.identity.id()),
        destination,
        destination_id: outcome.peer,
        service: outcome.service,
        forward,
        backward,
        duration: started.elapsed(),
        error: outcome.error,
    });
}

pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Where a captured connection was going. Not captured: it was going to us.
pub(crate) fn original(stream: &TcpStream) -> Option<SocketAddr> {
    let destination = remora_net::socket::original_destination(stream).ok()?;
    let local = stream.local_addr().ok()?;
    (destination != local).then_some(destination)
}

async fn serve(near: &mut TcpStream, destination: SocketAddr, ctx: &Context, traffic: &Traffic) -> Outcome {
    let route = match route::outbound(&ctx.mesh, destination, ctx.unknown, ctx.turn()) {
        Ok(route) => route,
        Err(error) => {
            return Outcome {
                error: Some(error.to_string()),
                ..Outcome::default()
            };
        }
    };
    let mut outcome = Outcome {
        service: route.service,
        ..Outcome::default()
    };
    // Boxed: what connecting needs is given back before the long part begins.
    match Box::pin(first_that_answers(&route.hops, ctx)).await {
        Ok((upstream, peer)) => {
            outcome.peer = peer;
            outcome.error = carry(near, upstream, ctx, traffic).await.err();
        }
        Err(why) => outcome.error = Some(why),
    }
    outcome
}

/// Tries one after the other; gives up early where another would not help.
async fn first_that_answers(hops: &[Hop], ctx: &Context) -> Result<(Upstream, Option<SpiffeId>), String> {
    let mut last = String::new();
    for hop in hops.iter().take(ctx.limits.attempts) {
        let peer = match hop {
            Hop::Plain(_) => None,
            Hop::Hbone(workload, _) | Hop::IstioMtls(workload, _) => Some(workload.id.clone()),
        };
        match connect(hop, ctx).await {
            Ok(upstream) => return Ok((upstream, peer)),
            Err(error) => {
                last = error.to_string();
                if !error.elsewhere() {
                    break;
                }
            }
        }
    }
    Err(last)
}

async fn connect(hop: &Hop, ctx: &Context) -> Result<Upstream, PoolError> {
    let plain = async |address: SocketAddr| {
        socket::connect(address, ctx.limits.connect)
            .await
            .map_err(|error| PoolError::Connect(address, error))
    };
    match hop {
        Hop::Plain(address) => Ok(Upstream::Plain(plain(*address).await?)),
        Hop::Hbone(workload, address) => {
            let stream = ctx
                .pool
                .stream(&ctx.identity, &ctx.limits, workload, *address)
                .await?;
            Ok(Upstream::Hbone(Box::new(stream)))
        }
        Hop::IstioMtls(workload, address) => {
            let stream = plain(*address).await?;
            let config = ctx
                .identity
                .client(std::slice::from_ref(&workload.id), Wire::Istio)?;
            let name = rustls::pki_types::ServerName::IpAddress(address.ip().into());
            let shaking = TlsConnector::from(config).connect(name, stream);
            let tls = tokio::time::timeout(ctx.limits.handshake, shaking)
                .await
                .map_err(|_| PoolError::Slow(workload.id.clone(), *address))?
                .map_err(|error| PoolError::Handshake(workload.id.clone(), *address, error))?;
            Ok(Upstream::IstioMtls(Box::new(tls)))
        }
    }
}

async fn carry(
    near: &mut TcpStream,
    upstream: Upstream,
    ctx: &Context,
    traffic: &Traffic,
) -> Result<(), String> {
    // Nobody's policy is ours to keep on the way out.
    let cut = guard::cut(ctx, traffic, || Verdict::Allow);
    match upstream {
        Upstream::Plain(mut far) => {
            let ended = tokio::select! {
                copied = copy::sockets(Bytes::new(), near, &mut far, traffic) => copied.map_err(|e| e.to_string()),
                why = cut => Err(why),
            };
            ended.inspect_err(|_| reset(&far))
        }
        Upstream::IstioMtls(mut far) => {
            let ended = tokio::select! {
                copied = copy::streams(near, &mut *far, traffic) => copied.map_err(|e| e.to_string()),
                why = cut => Err(why),
            };
            ended.inspect_err(|_| reset(far.get_ref().0))
        }
        Upstream::Hbone(mut stream) => {
            let counters = Counters {
                from_socket: traffic.forward(),
                to_socket: traffic.backward(),
            };
            let Stream { send, receive, .. } = &mut *stream;
            let ended = tokio::select! {
                copied = copy::tunnel(near, send, receive, &counters) => copied.map_err(|e| e.to_string()),
                why = cut => Err(why),
            };
            ended.inspect_err(|_| stream.send.send_reset(Reason::CANCEL))
        }
    }
}
