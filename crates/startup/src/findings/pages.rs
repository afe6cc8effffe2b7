//! Every code, explained.

use super::pages_more;

/// A code and everything that is always true of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Stable code.
    pub code: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// What happens.
    pub what: &'static str,
    /// Why it happens.
    pub why: &'static str,
    /// What a user sees.
    pub seen: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

impl Rule {
    /// The page about it, as Markdown.
    pub fn page(&self) -> String {
        let Self {
            code,
            title,
            what,
            why,
            seen,
            remedy,
        } = self;
        format!(
            "# {code}: {title}\n\n{what}\n\n## Why\n\n{why}\n\n## What you see\n\n{seen}\n\n## What to do\n\n{remedy}\n"
        )
    }
}

/// All rules, by code.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    PAGES.iter().chain(&pages_more::PAGES)
}

/// The rules about policies, which are no findings of [`check`](super::check): not understood, and not enforced as
/// written.
pub fn rules_about_policies() -> [&'static Rule; 2] {
    let [.., not_understood, not_enforced] = &pages_more::PAGES;
    [not_understood, not_enforced]
}

/// The rule of a code, in any case.
pub fn rule(code: &str) -> Option<&'static Rule> {
    rules().find(|r| r.code.eq_ignore_ascii_case(code))
}

static PAGES: [Rule; 11] = [
    Rule {
        code: "RM001",
        title: "init container without network",
        what: "An init container runs after the pod's traffic was redirected and before the proxy can run. \
               Every TCP connection it makes is refused at once; with captured DNS, names do not resolve \
               either.",
        why: "Init containers run one after another, and a proxy among the main containers starts only after \
               the last of them. Whatever an init container needs from the network it cannot get: it fails, is \
               tried again with growing pauses, and the proxy it waits for never starts.",
        seen: "`Init:Error`, then `Init:CrashLoopBackOff`; `connection refused` in the log of the init \
               container; `istio-proxy` stays in `PodInitializing`.",
        remedy: "A native sidecar runs before the init containers and cures all of them. Moving the container \
               before the one that installs the rules works without a mesh identity. Excluding exactly the \
               ports it needs takes them out of the mesh for the whole pod. Running it as the proxy's user \
               exempts this container alone. Holding the application does not help: it concerns main containers \
               only.",
    },
    Rule {
        code: "RM002",
        title: "application starts before the proxy",
        what: "A main container starts while its traffic is captured already and the proxy does not listen yet.",
        why: "Main containers are started one after another without waiting for readiness, and the proxy \
               stands behind this one. The gap lasts as long as the remaining starts, their hooks and the \
               proxy's own start take.",
        seen: "`connection refused` in the first seconds; with an application that does not retry, `Error` and \
               `CrashLoopBackOff` that go away by themselves.",
        remedy: "A native sidecar with a startup probe is a true gate. Hold puts the proxy first and waits for it \
               in a hook, but gives up after a while. Excluding ports helps when all early traffic goes to \
               known ports.",
    },
    Rule {
        code: "RM003",
        title: "startup probe that waits for the proxy",
        what: "A native sidecar in front of the proxy has a startup probe that needs the proxy to succeed.",
        why: "What follows a native sidecar starts only when its startup probe has succeeded. A probe that was \
               rewritten goes to the agent beside the proxy; one that was not is captured and needs the proxy \
               itself. Either way it waits for something that waits for it.",
        seen: "The pod stays in `Init:n/m`; the sidecar is killed at its threshold and restarted for ever \
               (`Unhealthy`, `Killing`, `BackOff`).",
        remedy: "Make the proxy a native sidecar, and put this one behind it. Dropping the probe lets the pod \
               start, without any guarantee that the sidecar is ready.",
    },
    Rule {
        code: "RM004",
        title: "postStart hook that waits for the proxy",
        what: "A postStart hook needs the network, and the proxy is not started before the hook has ended.",
        why: "Starting a container includes its hook, and the kubelet does nothing else for the pod meanwhile: \
               it starts no other container, runs no probe, publishes no address and does not act on deletion. \
               There is no timeout.",
        seen: "`FailedPostStartHook`, one kill and restart, then all is well; or, with a hook that retries for \
               ever, a pod in `PodInitializing` that cannot be deleted.",
        remedy: "A native sidecar or hold puts the proxy in front of the hook. Otherwise do the hook's work in \
               the application.",
    },
    Rule {
        code: "RM005",
        title: "Job that never completes",
        what: "The pod is meant to end, and the proxy among its main containers does not.",
        why: "A pod ends when all its main containers have. The kubelet stops native sidecars by itself once \
               the mains are done; a proxy in `containers` it does not.",
        seen: "`NotReady` with the main container `Completed`; the Job shows `0/1` for ever; CronJobs pile up \
               or stop being scheduled.",
        remedy: "Make the proxy a native sidecar. Older clusters need a wrapper that tells the agent to quit when \
               the work is done.",
    },
    Rule {
        code: "RM006",
        title: "application loses network while it stops",
        what: "The proxy gets its stop signal at the same moment as the application and is gone first.",
        why: "Without native sidecars all containers are stopped together, whatever their position. The proxy \
               drains for a few seconds and ends; an application that still flushes, commits or deregisters is \
               refused from then on.",
        seen: "`connection refused` in the last log lines; lost messages, stale registrations.",
        remedy: "A native sidecar is stopped after the main containers.",
    },
    Rule {
        code: "RM007",
        title: "init container outside the mesh",
        what: "An init container runs before traffic is redirected, so its connections are direct.",
        why: "This is the usual place of a user's init container beside a proxy among the mains: it works, in \
               plaintext and without identity.",
        seen: "Connection resets from peers that demand mTLS; nothing at all otherwise.",
        remedy: "A native sidecar brings init containers into the mesh.",
    },
    Rule {
        code: "RM008",
        title: "native proxy without a gate",
        what: "The proxy is a native sidecar, and nothing waits for it to be ready.",
        why: "A native sidecar without a startup probe counts as started when its process exists. What follows \
               starts a quarter of a second later. If the proxy crashes at its start, what follows runs without \
               it.",
        seen: "`connection refused` in init containers and in the first seconds of the application.",
        remedy: "Give the proxy a startup probe with a period of one second.",
    },
    Rule {
        code: "RM009",
        title: "address hidden by a hook",
        what: "Something waits for the pod's address in the API, and the address is published only when a hook \
               has ended that waits for the same thing.",
        why: "The kubelet publishes what a pass did at the beginning of the next one. In a pod without init \
               containers the first pass lasts until all hooks have ended. A control plane or node proxy that \
               learns the address from the API knows nothing of the pod until then.",
        seen: "`ContainerCreating` without an address until the hook gives up.",
        remedy: "An init container that does nothing ends the first pass early.",
    },
    Rule {
        code: "RM010",
        title: "application runs as the proxy",
        what: "A main container runs with the user or group of the proxy.",
        why: "The rules leave the proxy's own traffic alone, and know it by user and group. Whoever shares \
               them is outside the mesh.",
        seen: "Plaintext traffic, no telemetry, policies without effect.",
        remedy: "Use another user.",
    },
    Rule {
        code: "RM011",
        title: "probe through the proxy",
        what: "A probe of the kubelet goes through the proxy instead of the agent.",
        why: "Injectors rewrite probes so that the agent answers for the application. A container added after \
               the injection keeps its probes: over HTTP they fail once mTLS is demanded, over TCP they succeed \
               even when the application is dead.",
        seen: "Never `Ready`, or a restart loop, after the mesh was switched to strict mTLS; or a dead \
               application that stays `Ready`.",
        remedy: "Inject again so that the probe is rewritten, or take the port out of the mesh.",
    },
];
