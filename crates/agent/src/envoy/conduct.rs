//! The end of an Envoy that was asked to stop, by the same plan as the built-in proxy's.

use super::admin::{Admin, AdminError};
use crate::application;
use crate::stop::{Application, Asked, Knobs, Plan, StopSwitch, plan, until_deaf};
use std::time::Duration;
use tokio::time::Instant;

/// How often Envoy is asked what is open.
const LOOK: Duration = Duration::from_millis(100);
/// So often in a row must nobody need it.
const LOOKS: u32 = 2;
/// One that does not answer so often in a row has nothing left to say.
// istio: five.
const SILENT: u32 = 5;

/// Sees an Envoy through its drain; done when it may be ended. Says what goes wrong.
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
        // The application was not told yet, or is finishing: it decides how long it takes work.
        let patience = plan(knobs, Application::Listens).latest / 2;
        tokio::select! {
            () = until_deaf(ours, patience) => {}
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

/// Lets what is open finish before another Envoy takes over, for as long as `patience`.
pub(super) async fn let_finish(admin: Admin, patience: Duration, trouble: impl Fn(&AdminError)) {
    let plan = Plan {
        earliest: Duration::ZERO,
        latest: patience,
        follow: false,
    };
    // Time over is as good: then what is left is cut.
    let _ = tokio::time::timeout(plan.latest, until_unneeded(admin, &plan, &[], &trouble)).await;
}

async fn until_unneeded(admin: Admin, plan: &Plan, ours: &[u16], trouble: &impl Fn(&AdminError)) {
    let started = Instant::now();
    // New work from outside is taken for as long as the application takes it, but not for ever.
    if plan.follow {
        until_deaf(ours, plan.latest / 2).await;
    }
    if let Err(error) = admin.drain().await {
        trouble(&error);
    }
    let (mut quiet, mut silent) = (0, 0);
    while quiet < LOOKS && silent < SILENT {
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
        tokio::time::sleep(LOOK).await;
    }
}
