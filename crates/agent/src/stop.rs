//! When a sidecar that was asked to stop may go.
//!
//! One deadline, from the pod's grace period or Istio's older knobs. Before it the sidecar goes as soon as nobody needs
//! it: the application is gone and nothing is open. [`plan`] decides from the knobs and from what is known about the
//! application; `conduct` walks the plan.
//!
//! Whether the application is gone is told by the sockets it listens on, which a sidecar sees since it shares the
//! network namespace. One that never listened cannot be followed; it is given Istio's fixed time.

use crate::application;
use remora_proxy::Context;
use remora_proxy::drain::Phase;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What is left of the grace period for ourselves, so that the end is ours and not a SIGKILL.
const MARGIN: Duration = Duration::from_secs(1);
// k8s: terminationGracePeriodSeconds where nothing is said.
const USUAL_GRACE: Duration = Duration::from_secs(30);
// istio: terminationDrainDuration where nothing is said.
const USUAL_DRAIN: Duration = Duration::from_secs(5);
/// How often it is looked whether we may go.
const LOOK: Duration = Duration::from_millis(20);
/// So often in a row must nobody need us.
const LOOKS: u32 = 3;

/// What was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// `TERMINATION_GRACE_PERIOD_SECONDS`, if it is known.
    pub grace: Option<Duration>,
    /// `terminationDrainDuration`, if somebody chose it.
    pub termination_drain: Option<Duration>,
    /// `drainDuration`: open connections are cut after it.
    pub drain: Duration,
    /// `EXIT_ON_ZERO_ACTIVE_CONNECTIONS`.
    pub exit_on_zero: bool,
    /// `MINIMUM_DRAIN_DURATION`, which goes with it.
    pub minimum_drain: Duration,
}

/// What is known about the application when the stop is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// The drain hook ran before: the kubelet stops a native sidecar when the application is gone.
    Gone,
    /// It listens.
    Listens,
    /// It does not; it may be there all the same.
    Unknown,
}

impl Application {
    /// What is known now. `hooked`: the drain hook ran.
    pub(crate) fn now(hooked: bool, ours: &[u16]) -> Self {
        match (hooked, application::listens(ours)) {
            (true, _) => Self::Gone,
            (false, true) => Self::Listens,
            (false, false) => Self::Unknown,
        }
    }
}

/// Between when and when to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Not before, even if nothing is open.
    pub earliest: Duration,
    /// Not after, even if something is.
    pub latest: Duration,
    /// In between: only when the application no longer listens.
    pub follow: bool,
}

/// The rules, in this order:
///
/// 1. The deadline is what was chosen, or else the grace period; never more than the grace period that is known, and
///    never more than the drain time.
/// 2. With exit-on-zero the old minimum counts, then only connections.
/// 3. When the application is gone already, only connections count.
/// 4. An application that listens is followed.
/// 5. One that does not gets the time Istio gives every application.
// differs from istio: with exit-on-zero the deadline counts too, because SIGKILL is no way to end a drain; without it
// the sidecar stays longer than 5 s while it is needed, and less when it is not.
pub fn plan(knobs: &Knobs, application: Application) -> Plan {
    let bound = |grace: Duration| grace.saturating_sub(MARGIN).max(grace / 2);
    let known = knobs.grace.map(bound);
    let chosen = knobs.termination_drain.filter(|_| !knobs.exit_on_zero);
    let latest = chosen
        .unwrap_or_else(|| known.unwrap_or(bound(USUAL_GRACE)))
        .min(known.unwrap_or(Duration::MAX))
        .min(knobs.drain.max(chosen.unwrap_or_default()));
    let (earliest, follow) = match application {
        _ if knobs.exit_on_zero => (knobs.minimum_drain, false),
        Application::Gone => (Duration::ZERO, false),
        Application::Listens => (Duration::ZERO, true),
        Application::Unknown => (knobs.termination_drain.unwrap_or(USUAL_DRAIN), false),
    };
    Plan {
        earliest: earliest.min(latest),
        latest,
        follow,
    }
}

/// How urgently the sidecar is asked to go. Later ones are more urgent; there is no way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// Not at all.
    Nothing,
    /// Take no more work from outside, but stay: the drain hook.
    Drain,
    /// Go when nobody needs you: SIGTERM.
    Stop,
    /// Go now: a second SIGTERM, `/quitquitquit`.
    Quit,
}

/// Carries the ask to everybody.
#[derive(Debug, Clone)]
pub struct StopSwitch(watch::Sender<Asked>);

impl Default for StopSwitch {
    fn default() -> Self {
        Self(watch::channel(Asked::Nothing).0)
    }
}

impl StopSwitch {
    /// Asks.
    pub fn ask(&self, asked: Asked) {
        self.0.send_if_modified(|now| {
            let later = asked > *now;
            if later {
                *now = asked;
            }
            later
        });
    }

    /// SIGTERM: the second one is in a hurry.
    pub fn terminate(&self) {
        let before = *self.0.borrow();
        self.ask(if before >= Asked::Stop {
            Asked::Quit
        } else {
            Asked::Stop
        });
    }

    /// What was asked for so far.
    pub fn asked(&self) -> Asked {
        *self.0.borrow()
    }

    /// Ready when this, or something more urgent, is asked for.
    pub async fn reached(&self, asked: Asked) {
        // The sender lives as long as we do.
        let _ = self.0.subscribe().wait_for(|now| *now >= asked).await;
    }
}

/// Sees a proxy through its end; done when the proxy has been told to cut what is left.
///
/// While this is not done the proxy must be kept from ending by itself ([`Context::hold`]).
pub(crate) async fn conduct(ctx: &Context, switch: &StopSwitch, knobs: &Knobs, ours: &[u16]) {
    switch.reached(Asked::Drain).await;
    let hooked = switch.asked() == Asked::Drain;
    if hooked {
        // The application was not told yet, or is finishing: it decides how long it takes work.
        let patience = plan(knobs, Application::Listens).latest / 2;
        let deaf = until_deaf(ours, patience);
        tokio::select! {
            () = deaf => {}
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

/// Ready when the application no longer listens, or after `patience`.
pub(crate) async fn until_deaf(ours: &[u16], patience: Duration) {
    let end = Instant::now() + patience;
    while application::listens(ours) && Instant::now() < end {
        tokio::time::sleep(LOOK).await;
    }
}

async fn until_unneeded(ctx: &Context, plan: &Plan, ours: &[u16]) {
    let started = Instant::now();
    // New work from outside is taken for as long as the application takes it, so that callers who have not heard of the
    // stop yet are not turned away; not for ever, since some applications never stop listening.
    if plan.follow {
        until_deaf(ours, plan.latest / 2).await;
    }
    ctx.drain().advance(Phase::Draining);
    let mut quiet = 0;
    while quiet < LOOKS {
        let needed = started.elapsed() < plan.earliest
            || ctx.open() > 0
            || (plan.follow && application::listens(ours));
        quiet = if needed { 0 } else { quiet + 1 };
        tokio::time::sleep(LOOK).await;
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

    /// Each row: knobs, what is known, and between when and when.
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
