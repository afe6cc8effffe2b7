//! When a stopping sidecar may exit.
//!
//! There is one deadline, from the pod's grace period or from Istio's older settings. Before the deadline the sidecar
//! exits as soon as it is not needed: the application is gone and no connection is open. [`plan`] decides from the
//! settings and from the state of the application; `conduct` executes the plan.
//!
//! The sidecar shares the network namespace, so it sees the listening sockets of the application. When they are closed,
//! the application is gone. An application that never listened gives no such signal, so it gets Istio's fixed drain
//! time.

use crate::application;
use remora_proxy::Context;
use remora_proxy::drain::Phase;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Part of the grace period reserved for the sidecar's own exit, so that the kubelet does not send SIGKILL first.
const GRACE_PERIOD_MARGIN: Duration = Duration::from_secs(1);
// k8s: the default of terminationGracePeriodSeconds.
const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);
// istio: the default of terminationDrainDuration.
const DEFAULT_TERMINATION_DRAIN: Duration = Duration::from_secs(5);
/// Interval between two checks whether the sidecar may exit.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Consecutive checks without need for the sidecar before it exits.
const REQUIRED_QUIET_POLLS: u32 = 3;

/// Settings that decide when to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// `TERMINATION_GRACE_PERIOD_SECONDS`, if it is known.
    pub grace: Option<Duration>,
    /// `terminationDrainDuration`, if it is configured.
    pub termination_drain: Option<Duration>,
    /// `drainDuration`: open connections are closed after it.
    pub drain: Duration,
    /// `EXIT_ON_ZERO_ACTIVE_CONNECTIONS`.
    pub exit_on_zero: bool,
    /// `MINIMUM_DRAIN_DURATION`, used with `exit_on_zero`.
    pub minimum_drain: Duration,
}

/// State of the application when the stop is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// The drain hook ran before: the kubelet stops a native sidecar when the application is gone.
    Gone,
    /// The application listens on a port.
    Listens,
    /// It does not listen; it may be running all the same.
    Unknown,
}

impl Application {
    /// The current state. `hooked`: the drain hook ran.
    pub(crate) fn now(hooked: bool, ours: &[u16]) -> Self {
        match (hooked, application::listens(ours)) {
            (true, _) => Self::Gone,
            (false, true) => Self::Listens,
            (false, false) => Self::Unknown,
        }
    }
}

/// The time window for the exit, counted from the stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Not before this time, even if no connection is open.
    pub earliest: Duration,
    /// Not after this time, even if connections are open.
    pub latest: Duration,
    /// In between, exit only when the application no longer listens.
    pub follow: bool,
}

/// The rules, in this order:
///
/// 1. The deadline is the configured drain time, or else the grace period; never more than the known grace period, and
///    never more than `drainDuration`.
/// 2. With exit-on-zero the minimum drain time applies, then only connections count.
/// 3. When the application is gone already, only connections count.
/// 4. If the application listens, the sidecar waits until it no longer does.
/// 5. Otherwise the application gets Istio's fixed drain time.
// differs from istio: with exit-on-zero the deadline applies too, because SIGKILL would break open connections; without
// it the sidecar stays longer than 5 s while it is needed, and exits earlier when it is not.
pub fn plan(knobs: &Knobs, application: Application) -> Plan {
    let bound = |grace: Duration| grace.saturating_sub(GRACE_PERIOD_MARGIN).max(grace / 2);
    let known = knobs.grace.map(bound);
    let chosen = knobs.termination_drain.filter(|_| !knobs.exit_on_zero);
    let latest = chosen
        .unwrap_or_else(|| known.unwrap_or(bound(DEFAULT_GRACE_PERIOD)))
        .min(known.unwrap_or(Duration::MAX))
        .min(knobs.drain.max(chosen.unwrap_or_default()));
    let (earliest, follow) = match application {
        _ if knobs.exit_on_zero => (knobs.minimum_drain, false),
        Application::Gone => (Duration::ZERO, false),
        Application::Listens => (Duration::ZERO, true),
        Application::Unknown => (
            knobs.termination_drain.unwrap_or(DEFAULT_TERMINATION_DRAIN),
            false,
        ),
    };
    Plan {
        earliest: earliest.min(latest),
        latest,
        follow,
    }
}

/// Stop requests, in order of urgency. A request is never withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// No request.
    Nothing,
    /// Refuse new inbound work, but keep running: the drain hook.
    Drain,
    /// Exit as soon as the sidecar is not needed: SIGTERM.
    Stop,
    /// Exit now: a second SIGTERM, or `/quitquitquit`.
    Quit,
}

/// Distributes the stop request to all tasks.
#[derive(Debug, Clone)]
pub struct StopSwitch(watch::Sender<Asked>);

impl Default for StopSwitch {
    fn default() -> Self {
        Self(watch::channel(Asked::Nothing).0)
    }
}

impl StopSwitch {
    /// Requests a stop; ignored if a more urgent request was made before.
    pub fn ask(&self, asked: Asked) {
        self.0.send_if_modified(|now| {
            let later = asked > *now;
            if later {
                *now = asked;
            }
            later
        });
    }

    /// Handles SIGTERM: the second one requests an immediate exit.
    pub fn terminate(&self) {
        let before = *self.0.borrow();
        self.ask(if before >= Asked::Stop {
            Asked::Quit
        } else {
            Asked::Stop
        });
    }

    /// The most urgent request so far.
    pub fn asked(&self) -> Asked {
        *self.0.borrow()
    }

    /// Completes when this or a more urgent request is made.
    pub async fn reached(&self, asked: Asked) {
        // `self` holds the sender, so the channel stays open.
        let _ = self.0.subscribe().wait_for(|now| *now >= asked).await;
    }
}

/// Drains and stops the built-in proxy. Completes after the proxy was instructed to close the remaining connections.
///
/// Until then the caller must keep the proxy from ending by itself ([`Context::hold`]).
pub(crate) async fn conduct(ctx: &Context, switch: &StopSwitch, knobs: &Knobs, ours: &[u16]) {
    switch.reached(Asked::Drain).await;
    let hooked = switch.asked() == Asked::Drain;
    if hooked {
        // The application has not received SIGTERM yet, or is finishing: it decides how long it accepts work.
        let timeout = plan(knobs, Application::Listens).latest / 2;
        let not_listening = until_not_listening(ours, timeout);
        tokio::select! {
            () = not_listening => {}
            () = switch.reached(Asked::Stop) => {}
        }
        ctx.drain().advance(Phase::Draining);
        switch.reached(Asked::Stop).await;
    }
    let plan = plan(knobs, Application::now(hooked, ours));
    let started = Instant::now();
    tokio::select! {
        () = until_unneeded(ctx, &plan, ours) => {}
        () = tokio::time::sleep_until(started + plan.latest) => {}
        () = switch.reached(Asked::Quit) => {}
    }
    ctx.drain().advance(Phase::Cut);
}

/// Completes when the application no longer listens, or after `timeout`.
pub(crate) async fn until_not_listening(ours: &[u16], timeout: Duration) {
    let end = Instant::now() + timeout;
    while application::listens(ours) && Instant::now() < end {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn until_unneeded(ctx: &Context, plan: &Plan, ours: &[u16]) {
    let started = Instant::now();
    // New inbound work is accepted for as long as the application listens, so that clients whose endpoint list is
    // outdated are not refused. The time is bounded, because some applications never stop listening.
    if plan.follow {
        until_not_listening(ours, plan.latest / 2).await;
    }
    ctx.drain().advance(Phase::Draining);
    let mut quiet = 0;
    while quiet < REQUIRED_QUIET_POLLS {
        let needed = started.elapsed() < plan.earliest
            || ctx.open() > 0
            || (plan.follow && application::listens(ours));
        quiet = if needed { 0 } else { quiet + 1 };
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::{Application, Asked, Knobs, Plan, StopSwitch, plan};
    use std::time::Duration;

    fn knobs() -> Knobs {
        Knobs {
            grace: None,
            termination_drain: None,
            drain: Duration::from_secs(45),
            exit_on_zero: false,
            minimum_drain: Duration::from_secs(5),
        }
    }

    /// Each row: settings, state of the application, and the expected window.
    #[test]
    fn one_deadline_from_all_knobs() {
        use Application::{Gone, Listens, Unknown};
        let secs = |seconds| Some(Duration::from_secs(seconds));
        let grace = |seconds| Knobs {
            grace: secs(seconds),
            ..knobs()
        };
        let chosen = |seconds| Knobs {
            termination_drain: secs(seconds),
            ..knobs()
        };
        let zero = |seconds: u64| Knobs {
            exit_on_zero: true,
            minimum_drain: Duration::from_secs(seconds),
            ..knobs()
        };
        let both = Knobs {
            grace: secs(30),
            ..chosen(60)
        };
        let short_drain = Knobs {
            drain: Duration::from_secs(10),
            ..knobs()
        };
        for (knobs, application, earliest, latest, follow) in [
            (knobs(), Unknown, 5, 29, false),
            (knobs(), Listens, 0, 29, true),
            (knobs(), Gone, 0, 29, false),
            (grace(120), Listens, 0, 45, true),
            (grace(20), Listens, 0, 19, true),
            (grace(3), Unknown, 2, 2, false),
            (chosen(60), Listens, 0, 60, true),
            (chosen(60), Unknown, 60, 60, false),
            (both, Unknown, 29, 29, false),
            (short_drain, Listens, 0, 10, true),
            (zero(5), Listens, 5, 29, false),
            (zero(12), Gone, 12, 29, false),
            (
                Knobs {
                    termination_drain: secs(2),
                    ..zero(5)
                },
                Unknown,
                5,
                29,
                false,
            ),
        ] {
            let expected = Plan {
                earliest: Duration::from_secs(earliest),
                latest: Duration::from_secs(latest),
                follow,
            };
            assert_eq!(plan(&knobs, application), expected, "{knobs:?} {application:?}");
        }
        let tiny = Knobs {
            grace: Some(Duration::from_secs(1)),
            ..knobs()
        };
        assert_eq!(plan(&tiny, Gone).latest, Duration::from_millis(500));
    }

    #[test]
    fn a_second_sigterm_hurries_and_nothing_goes_back() {
        let switch = StopSwitch::default();
        switch.ask(Asked::Drain);
        switch.terminate();
        assert_eq!(switch.asked(), Asked::Stop);
        switch.ask(Asked::Drain);
        assert_eq!(switch.asked(), Asked::Stop);
        switch.terminate();
        assert_eq!(switch.asked(), Asked::Quit);
    }
}
