//! Watches over an open connection: ends it when policy no longer allows it, when nothing moves, when it has to make
//! room for others, or at the end of a drain.

use crate::access::{Failure, Reason, Traffic};
use crate::admit::Refused;
use crate::budget::EVICTED;
use crate::context::Context;
use crate::drain::Phase;
use crate::rarely::rarely;
use std::pin::pin;

/// Ready, with the reason, when the connection must end.
pub(crate) async fn cut(
    ctx: &Context,
    traffic: &Traffic,
    evicted: impl Future<Output = ()>,
    refused: impl Fn() -> Option<Refused>,
) -> Failure {
    let reasons = pin!(async {
        tokio::select! {
        why = denied(ctx, refused) => why,
        why = idle(ctx, traffic) => why,
        () = evicted => made_room(),
        () = ctx.drain.reached(Phase::Cut) => Failure::new(Reason::Drain, "cut at the end of the drain"),
        }
    });
    rarely(reasons).await
}

/// The end of a connection that had to make room.
pub(crate) fn made_room() -> Failure {
    Failure::new(Reason::Overload, EVICTED)
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
