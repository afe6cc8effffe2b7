//! Watches over an open connection: ends it when policy no longer allows it, when nothing moves, when it has to make
//! room for others, when the certificate it rests on is no longer valid, or at the end of a drain.

use crate::access::{Failure, Reason, Traffic};
use crate::admit::Refused;
use crate::budget::{EVICTED, Permit};
use crate::context::Context;
use crate::drain::Phase;
use crate::rarely::rarely;
use remora_mtls::PeerCertificate;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at the roots.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

/// Ready, with the reason, when the connection must end.
pub(crate) async fn cut(
    ctx: &Context,
    traffic: &Traffic,
    other: impl Future<Output = Failure>,
    refused: impl Fn() -> Option<Refused>,
) -> Failure {
    let reasons = pin!(async {
        tokio::select! {
        why = denied(ctx, refused) => why,
        why = idle(ctx, traffic) => why,
        why = other => why,
        () = ctx.drain.reached(Phase::Cut) => Failure::new(Reason::Drain, "cut at the end of the drain"),
        }
    });
    rarely(reasons).await
}

/// Ready when the connection has to make room for another.
pub(crate) async fn evicted(permit: &Permit) -> Failure {
    permit.evicted().await;
    Failure::new(Reason::Overload, EVICTED)
}

/// Ready when the certificate of the peer has not been valid for longer than the grace allows. Measured by a clock that
/// does not jump: a wrong date must not end connections that are open.
pub(crate) async fn expired(ctx: &Context, peer: &PeerCertificate) -> Failure {
    let grace = ctx.limits.certificate_grace;
    let end = Instant::now() + remaining(ctx, peer) + grace;
    while Instant::now() < end && ctx.identity.check_roots(peer).is_ok() {
        // A root that is removed is noticed within the grace.
        tokio::time::sleep_until(end.min(Instant::now() + grace.max(SHORTEST_LOOK))).await;
    }
    Failure::new(
        Reason::NoLongerAllowed,
        "the peer's certificate is no longer valid",
    )
}

/// How long the certificate of a peer is still valid.
pub(crate) fn remaining(ctx: &Context, peer: &PeerCertificate) -> Duration {
    peer.not_after()
        .duration_since(ctx.identity.now())
        .unwrap_or_default()
}

/// A policy may change between the first look and this one: looks at once, then at every change.
async fn denied(ctx: &Context, refused: impl Fn() -> Option<Refused>) -> Failure {
    let mut changes = ctx.mesh.changes();
    loop {
        if let Some(why) = refused() {
            return Failure::new(Reason::NoLongerAllowed, format_args!("no longer allowed: {why}"));
        }
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn idle(ctx: &Context, traffic: &Traffic) -> Failure {
    let mut before = traffic.read();
    loop {
        tokio::time::sleep(ctx.limits.idle).await;
        let now = traffic.read();
        if now == before {
            return Failure::new(Reason::Idle, "nothing moved for too long");
        }
        before = now;
    }
}
