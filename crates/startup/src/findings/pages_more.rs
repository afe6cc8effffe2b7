//! The second half of the pages.
#![allow(missing_docs, reason = "each page describes itself")]

use super::pages::Rule;

pub static RM012: Rule = Rule {
    code: "RM012",
    title: "sidecar outlives the proxy",
    what: "A native sidecar is stopped after the proxy and has no network while it shuts down.",
    why: "Native sidecars are stopped from last to first, after the mains; a proxy among the mains goes \
           even before them.",
    seen: "Lost telemetry or unsaved state of the last seconds.",
    remedy: "List it behind a native proxy.",
};

pub static RM013: Rule = Rule {
    code: "RM013",
    title: "healthy application killed for a late proxy",
    what: "A liveness or startup probe is refused until the proxy runs, and has little patience.",
    why: "The probe begins when all containers have been started, while the proxy may still wait for its \
           configuration. Its failures count against the application.",
    seen: "`Unhealthy`, `Killing`, restarts right after the start of the pod; two at once, then with back- \
           off.",
    remedy: "A native sidecar or hold lets the application start after the proxy; a startup probe with a high \
           threshold protects it otherwise.",
};

pub static RM014: Rule = Rule {
    code: "RM014",
    title: "gate that looks too seldom",
    what: "The startup probe of the proxy has a long period.",
    why: "Probes tick from the moment the kubelet first saw the pod, not from the start of the container, \
           so each start waits up to a whole period after the proxy was ready.",
    seen: "Slow starts.",
    remedy: "Probe every second.",
};

pub static RM015: Rule = Rule {
    code: "RM015",
    title: "hook that cannot run",
    what: "A lifecycle hook uses a handler that kubelets do not implement, or a port name that does not \
           exist.",
    why: "`tcpSocket` exists in the API for compatibility only. The hook always fails; for postStart that \
           kills the container.",
    seen: "`PostStartHookError` and `CrashLoopBackOff`, or `FailedPreStopHook`.",
    remedy: "Drop it, or use `exec`, `httpGet` or `sleep`.",
};

pub static RM016: Rule = Rule {
    code: "RM016",
    title: "HTTP hook that races with its application",
    what: "A postStart request is made once, about a tenth of a second after the process was started.",
    why: "There is no retry: if the application does not listen by then, the hook has failed and the \
           container is killed.",
    seen: "`FailedPostStartHook` now and then, with one restart.",
    remedy: "Do it in the application, or in an `exec` hook that retries.",
};

pub static RM017: Rule = Rule {
    code: "RM017",
    title: "preStop hook longer than the grace period",
    what: "The preStop hook takes at least as long as the pod has to stop.",
    why: "Hook and stop share one grace period. A hook that uses it up is abandoned, and two seconds are \
           left between the stop signal and the kill.",
    seen: "`FailedPreStopHook`, exit code 137.",
    remedy: "Raise `terminationGracePeriodSeconds`.",
};

pub static RM018: Rule = Rule {
    code: "RM018",
    title: "hold is only a delay",
    what: "Nothing but a postStart hook keeps the application back until the proxy is ready.",
    why: "The kubelet ignores that a container could not be started and goes on with the next: after the \
           hook gave up, after the proxy crashed, when its image is missing. A kubelet that restarts \
           meanwhile does not run the hook again.",
    seen: "The application runs and is refused, while the proxy is in `PostStartHookError` or \
           `CrashLoopBackOff`.",
    remedy: "A native sidecar with a startup probe is a true gate.",
};

pub static RM019: Rule = Rule {
    code: "RM019",
    title: "connections lost when capture begins",
    what: "A native sidecar runs before the rules are installed, and keeps running.",
    why: "In a fresh network namespace connection tracking begins with the first rule. The next packet of \
           an older connection counts as the beginning of a new one and is redirected.",
    seen: "Connections that hang or are reset about when `istio-init` ran.",
    remedy: "Put it behind a native proxy.",
};

pub static RM020: Rule = Rule {
    code: "RM020",
    title: "instrumentation in the proxy",
    what: "Automatic instrumentation was put into the proxy instead of the application.",
    why: "Unless told otherwise, the OpenTelemetry operator instruments the first container. With hold \
           that is the proxy.",
    seen: "No telemetry from the application; agent variables and mounts in the proxy.",
    remedy: "Name the container in `instrumentation.opentelemetry.io/container-names`.",
};

pub static RM021: Rule = Rule {
    code: "RM021",
    title: "group that exempts nobody",
    what: "The pod lists the proxy's group as `fsGroup` or supplementary group, as if that exempted its \
           containers.",
    why: "The rules look at the primary group of the process only.",
    seen: "`connection refused`, as if the group were not there.",
    remedy: "Set `runAsUser` or `runAsGroup` of the container that needs it.",
};

pub static RM022: Rule = Rule {
    code: "RM022",
    title: "proxy without traffic",
    what: "The pod has a proxy, and nothing is captured.",
    why: "Pods on the node's network and pods with interception switched off keep their traffic.",
    seen: "Everything works, outside the mesh.",
    remedy: "Nothing, if that is intended; otherwise drop the setting.",
};

pub static RM023: Rule = Rule {
    code: "RM023",
    title: "native proxy that lost its restart policy",
    what: "The proxy is an init container, and nothing says that it stays.",
    why: "An init container is a native sidecar only with `restartPolicy: Always`. Webhooks and tools with \
           an older client library drop the field when they write the pod again.",
    seen: "The API refuses the pod (`livenessProbe: Forbidden`…), or it stays in `Init:0/1` for ever.",
    remedy: "Set `restartPolicy: Always` again, and bring the tool that dropped it up to date.",
};

pub static RM024: Rule = Rule {
    code: "RM024",
    title: "not injected yet",
    what: "The pod asks to be in a mesh, and the document is the one before injection.",
    why: "Injection happens when the pod is created. Until then the document has neither proxy nor rules, \
           and nothing that follows from them can be found in it.",
    seen: "Nothing; the check is silent about the mesh.",
    remedy: "Check with `--inject`, or name the mode with `--mode`.",
};

pub static RM025: Rule = Rule {
    code: "RM025",
    title: "policy that is not understood",
    what: "An AuthorizationPolicy or PeerAuthentication has an unknown field, a field of another type, an empty \
           list, or a value that cannot be parsed.",
    why: "Such a policy fails closed: an ALLOW rule with a problem allows nothing, a DENY rule matches as if the \
           condition were absent, an unknown action denies everything, and a PeerAuthentication requires mutual \
           TLS. The API server drops unknown fields silently, so a misspelt field arrives as an empty one.",
    seen: "Connections that should be admitted are reset; `remora why` names the policy, the rule and the field.",
    remedy: "Correct the field that the finding names.",
};

pub static RM026: Rule = Rule {
    code: "RM026",
    title: "policy that is not enforced as written",
    what: "A policy is right, and the proxy does not enforce a part of it: attributes of HTTP requests, the \
           actions CUSTOM and AUDIT, policies for gateways, the mode DISABLE.",
    why: "The proxy sees connections, not requests. An ALLOW rule with such a condition allows nothing, a DENY \
           rule denies without it, CUSTOM denies what it matches. AUDIT and policies with `targetRefs` have no \
           effect on sidecars.",
    seen: "More connections are refused than the policy says.",
    remedy: "Write the rule with attributes of connections: principals, namespaces, service accounts, addresses, \
           ports.",
};

pub static RM027: Rule = Rule {
    code: "RM027",
    title: "capture options that cannot be used",
    what: "A flag, an environment variable or an annotation that configures traffic capture has a value that \
           `istio-iptables` refuses, or is a flag that it does not know.",
    why: "The program that installs the rules ends with an error instead of guessing. The check goes on as if all \
           traffic were captured.",
    seen: "`Init:Error`, then `Init:CrashLoopBackOff` of the init container; with CNI the sandbox is not created.",
    remedy: "Correct the value that the finding names. `remora capture explain` shows what the rules do.",
};
