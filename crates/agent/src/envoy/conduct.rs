//! Drain and stop of an Envoy, by the same plan as for the built-in proxy.

use super::admin::{Admin, AdminError};
use crate::application;
use crate::stop::{Application, Asked, Knobs, Plan, StopSwitch, plan, until_not_listening};
use std::time::Duration;
use tokio::time::Instant;

/// Interval between two queries of Envoy's open connections.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Consecutive queries without an open connection before Envoy is stopped.
const REQUIRED_QUIET_POLLS: u32 = 2;
/// Consecutive failed queries after which Envoy is stopped.
// istio: five.
const MAX_FAILED_POLLS: u32 = 5;

/// Drains an Envoy. Completes when it may be stopped. Errors go to `trouble`.
pub(super) async fn conduct(
    admin: Admin,
    switch: &StopSwitch,
    knobs: &Knobs,
    ours: &[u16],
    trouble: impl Fn(&AdminError),
) {
    switch.reached(Asked::Drain).await;
    let hooked = switch.asked() == Asked::Drain;
    if hooked {
        // The application has not received SIGTERM yet, or is finishing: it decides how long it accepts work.
        let patience = plan(knobs, Application::Listens).latest / 2;
        tokio::select! {
            () = until_not_listening(ours, patience) => {}
            () = switch.reached(Asked::Stop) => {}
        }
        if let Err(error) = admin.drain_gently().await {
            trouble(&error);
        }
        switch.reached(Asked::Stop).await;
    }
    let plan = plan(knobs, Application::now(hooked, ours));
    let latest = Instant::now() + plan.latest;
    tokio::select! {
        () = until_unneeded(admin, &plan, ours, &trouble) => {}
        () = tokio::time::sleep_until(latest) => {}
        () = switch.reached(Asked::Quit) => {}
    }
}

/// Lets open connections finish before another Envoy takes over, for at most `patience`.
pub(super) async fn let_finish(admin: Admin, patience: Duration, trouble: impl Fn(&AdminError)) {
    let plan = Plan {
        earliest: Duration::ZERO,
        latest: patience,
        follow: false,
    };
    // After the timeout the remaining connections are closed.
    let _ = tokio::time::timeout(plan.latest, until_unneeded(admin, &plan, &[], &trouble)).await;
}

async fn until_unneeded(admin: Admin, plan: &Plan, ours: &[u16], trouble: &impl Fn(&AdminError)) {
    let started = Instant::now();
    // New inbound work is accepted for as long as the application listens, but not indefinitely.
    if plan.follow {
        until_not_listening(ours, plan.latest / 2).await;
    }
    if let Err(error) = admin.drain().await {
        trouble(&error);
    }
    let (mut quiet, mut silent) = (0, 0);
    while quiet < REQUIRED_QUIET_POLLS && silent < MAX_FAILED_POLLS {
        let early = started.elapsed() < plan.earliest;
        let open = if early {
            None
        } else {
            Some(admin.active_connections().await)
        };
        silent = if matches!(open, Some(Err(_))) {
            silent + 1
        } else {
            0
        };
        let unneeded = matches!(open, Some(Ok(0))) && !(plan.follow && application::listens(ours));
        quiet = if unneeded { quiet + 1 } else { 0 };
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
