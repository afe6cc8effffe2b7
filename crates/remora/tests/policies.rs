//! Policies as their author wrote them against real traffic: one run, a server for each policy, three callers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use running::Running;
use std::fmt::Write as _;
use std::process::Command;

/// Namespace and name: the intended caller, another one of the mesh, and one without a sidecar.
const CALLERS: [(&str, &str); 3] = [("shop", "web"), ("evil", "mallory"), ("evil", "plain")];

const NOBODY: [bool; 3] = [false; 3];
const EVERYBODY: [bool; 3] = [true; 3];
const INTENDED: [bool; 3] = [true, false, false];
const MESH: [bool; 3] = [true, true, false];

/// The kind, the namespace of the policy, its `spec` without the selector, and which callers are admitted.
const ROWS: [(&str, &str, &str, [bool; 3]); 25] = [
    ("AuthorizationPolicy", "shop", "rules: [{}]", EVERYBODY),
    ("AuthorizationPolicy", "shop", "", NOBODY),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]}]",
        INTENDED,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {notPrincipals: [cluster.local/ns/evil/sa/mallory]}}]}]",
        [true, false, true],
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {namespaces: [shop]}}]}]",
        INTENDED,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "action: DENY, rules: [{from: [{source: {notNamespaces: [shop]}}]}]",
        INTENDED,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {serviceAccounts: [shop/web]}}]}]",
        INTENDED,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "action: DENY, rules: [{from: [{source: {notServiceAccounts: [web]}}]}]",
        INTENDED,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {trustDomains: [cluster.local]}}]}]",
        MESH,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {ipBlocks: [192.0.2.0/24]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {notIpBlocks: [192.0.2.0/24]}}]}]",
        EVERYBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{to: [{operation: {ports: ['8080']}}]}]",
        EVERYBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{when: [{key: source.namespace, values: [shop]}]}]",
        INTENDED,
    ),
    // Not understood: closed.
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {principal: [cluster.local/ns/shop/sa/web]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{from: [{source: {}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{to: [{operation: {ports: [8080]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{to: [{operation: {ports: ['9990-9999']}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "rules: [{to: [{operation: {methods: [GET]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "action: DENY, rules: [{from: [{source: {ipBlocks: [192.0.2.0/24, 10.1.0.0-10.2.0.0]}}]}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "shop",
        "action: CUSTOM, provider: {name: x}, rules: [{}]",
        NOBODY,
    ),
    (
        "AuthorizationPolicy",
        "istio-system",
        "action: DENY, rules: [{}]",
        NOBODY,
    ),
    ("PeerAuthentication", "shop", "mtls: {mode: STRICT}", MESH),
    (
        "PeerAuthentication",
        "shop",
        "mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}}",
        EVERYBODY,
    ),
    ("PeerAuthentication", "shop", "mtls: {mode: STRIKT}", MESH),
];

fn server(name: &str, namespace: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: {name}
    image: remora
    args: [demo, hello, --port, '8080']
    readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1, timeoutSeconds: 10}}
---"
    )
}

fn manifest() -> String {
    let mut text = String::new();
    for (index, (kind, namespace, spec, _)) in ROWS.iter().enumerate() {
        let name = format!("s{index}");
        text += &server(&name, "shop");
        let comma = if spec.is_empty() { "" } else { ", " };
        writeln!(
            text,
            "
apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{matchLabels: {{app: {name}}}}}{comma}{spec}}}
---"
        )
        .unwrap();
    }
    // A namespace that is closed, and a policy of its gateway that would open it.
    text += &server("gated", "gate");
    text += "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: gate}
spec: {}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: gateway, namespace: gate}
spec: {targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: waypoint}], rules: [{}]}
---";
    for (namespace, name) in CALLERS {
        let label = if name == "plain" {
            ", sidecar.istio.io/inject: 'false'"
        } else {
            ""
        };
        write!(
            text,
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}{label}}}}}
spec:
  serviceAccountName: {name}
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: {name}, image: remora, args: [demo, hello, --port, '8080']}}
---"
        )
        .unwrap();
    }
    text
}

/// Whether a caller gets an answer. One that should is patient: its sidecar may hear of the server a moment later.
fn answered(run: &Running, caller: (&str, &str), url: &str, tries: &str) -> bool {
    let (namespace, pod) = caller;
    let output = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["exec", "-n", namespace, pod, "--state-dir"])
        .arg(run.state())
        .args([
            "--",
            "/usr/local/bin/remora",
            "demo",
            "call",
            url,
            "--tries",
            tries,
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(url), "{caller:?}: {said}");
    output.status.success()
}

#[test]
fn policies_admit_whom_they_are_meant_for_and_those_not_understood_admit_nobody() {
    let mut run = Running::start(&manifest(), &["--inject", "auto"]);
    // A policy that is not understood keeps no pod from becoming ready, and is named with the field.
    run.wait_for("everything is ready");
    for warning in [
        "AuthorizationPolicy shop/s13 is not enforced as written: spec.rules[0].from[0].source.principal: unknown field",
        "AuthorizationPolicy shop/s19 is not enforced as written: spec.rules[0].from[0].source.ipBlocks[1]: \"10.1.0.0-10.2.0.0\"",
        "AuthorizationPolicy gate/gateway is not enforced as written: spec.targetRefs:",
        "PeerAuthentication shop/s24 is not enforced as written: spec.mtls.mode: \"STRIKT\"",
    ] {
        assert!(run.said().contains(warning), "{warning}\n{}", run.said());
    }
    let mut wrong = String::new();
    // Those that are admitted first: after them every caller knows the servers.
    for expected in [true, false] {
        for (index, (kind, _, spec, verdicts)) in ROWS.iter().enumerate() {
            for (caller, _) in CALLERS
                .iter()
                .zip(verdicts)
                .filter(|(_, admitted)| **admitted == expected)
            {
                let tries = if expected { "40" } else { "1" };
                if answered(&run, *caller, &format!("http://s{index}.shop/"), tries) != expected {
                    writeln!(wrong, "{kind} {spec}: {caller:?} should be admitted: {expected}").unwrap();
                }
            }
        }
    }
    for caller in CALLERS {
        if answered(&run, caller, "http://gated.gate/", "1") {
            writeln!(wrong, "{caller:?} is admitted to the closed namespace").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    explained(&run);
    run.stop();
}

/// `remora why` names the policy, the rule, and what is not enforced as its author wrote it.
fn explained(run: &Running) {
    let why = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .args(["exec", "-n", "shop", "web", "-c", "istio-proxy", "--state-dir"])
            .arg(run.state())
            .args(["--", "remora", "why", "shop/web"])
            .args(arguments);
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let reason = "spec.rules[0].from[0].source.principal: unknown field; the rule allows nothing";
    for (server, expected) in [
        (
            "s13:80",
            format!(
                "ALLOW policy shop/s13: it has no rule that can match\n  not enforced as written: {reason}\n\
                 refused: no policy allows it\n"
            ),
        ),
        (
            "s18:80",
            "decided by shop/s18 rule 1\n  not enforced as written: spec.rules[0].to[0].operation.paths: an attribute \
             of HTTP requests, which is not enforced at L4; the rule denies without this condition\n\
             refused: denied by shop/s18\n"
                .to_owned(),
        ),
        (
            "s21:80",
            "decided by istio-system/s21 rule 1\nrefused: denied by istio-system/s21\n".to_owned(),
        ),
        (
            "s9:80",
            "ALLOW policy shop/s9: its rule does not match\nrefused: no policy allows it\n".to_owned(),
        ),
    ] {
        let (code, said) = why(&[server]);
        assert!(code == Some(1) && said.ends_with(&expected), "{server}: {said}");
    }
    let (code, said) = why(&["s13:80", "--json"]);
    assert_eq!(code, Some(1), "{said}");
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    let expected = serde_json::json!([{"policy": "shop/s13", "action": "ALLOW", "part": "no match", "rule": null,
        "notEnforcedAsWritten": [reason]}]);
    assert_eq!(answer["inbound"]["policies"], expected, "{said}");
    assert_eq!(
        why(&["s2:80"]).0,
        Some(0),
        "the policy that is enforced as written"
    );
}

/// Findings about policies have a code, a line and the exit code of findings about pods.
#[test]
fn check_names_the_field_and_line_of_a_policy_that_is_not_enforced_as_written() {
    let checked = |rule: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: shop}}\n\
             spec:\n  rules:\n  - {rule}\n"
        );
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["check", "-f"])
            .arg(&file)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, said) = checked("from: [{source: {principal: [cluster.local/ns/shop/sa/web]}}]");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("policy.yaml:6:") && said.contains("RM025") && said.contains("source.principal"),
        "{said}"
    );
    let (code, said) = checked("to: [{operation: {methods: [GET]}}]");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("RM026"), "{said}");
    let (code, said) = checked("from: [{source: {serviceAccounts: [web]}}]");
    assert_eq!((code, said.contains("RM02")), (Some(0), false), "{said}");
}
