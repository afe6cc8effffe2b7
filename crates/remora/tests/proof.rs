//! The promises of a mesh, looked at from outside: on real namespaces, each broken and mended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "proof/faults.rs"]
mod faults;
#[path = "proof/machine.rs"]
mod machine;
#[path = "proof/running.rs"]
mod running;
#[path = "proof/wire.rs"]
mod wire;

use running::Running;
use std::io::Write as _;
use std::process::{Command, Stdio};
use wire::Wire;

/// A word that is in every request, and in nothing else.
const SECRET: &str = "open-sesame";

/// A service, and what is beside it.
fn shop(annotations: &str, think: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: web, namespace: shop, labels: {{app: web}}, annotations: {{{annotations}}}}}
spec:
  serviceAccountName: web
  terminationGracePeriodSeconds: 25
  containers:
  - name: web
    image: remora
    args: [demo, hello, --port, '8080', --think, '{think}']
    readinessProbe: {{httpGet: {{path: /health, port: 8080}}, periodSeconds: 1, timeoutSeconds: 10}}
---
{more}"
    )
}

const STRICT: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
";

/// Settings of the mesh that switch access lines on, and the annotations that put them into a sidecar.
const LOGGED: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: shop}
data: {mesh: 'accessLogFile: /dev/stdout'}
---
";
const LOGGING: &str = r#"sidecar.istio.io/userVolume: '[{"name":"mesh","configMap":{"name":"istio"}}]', sidecar.istio.io/userVolumeMount: '[{"name":"mesh","mountPath":"/etc/istio/config"}]'"#;

/// A pod that calls the service again and again.
fn caller(name: &str, labels: &str, args: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{app: {name}{labels}}}}}
spec:
  serviceAccountName: {name}
  restartPolicy: Never
  containers:
  - {{name: {name}, image: remora, args: [demo, call, 'http://web/?{SECRET}', {args}]}}
---
"
    )
}

/// Whether `check` finds an error in a manifest as it is, or injected so.
fn is_condemned(manifest: &str, args: &[&str]) -> bool {
    let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["check", "-f", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(manifest.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => false,
        Some(1) => true,
        other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Through the node's plain eyes a strict pod is never ready; by way of the agent it is.
#[test]
fn probes_of_a_strict_pod_need_the_agent() {
    let plain = shop("sidecar.istio.io/rewriteAppHTTPProbers: 'false'", "0", STRICT);
    let wait = ["--inject", "always", "--until", "ready", "--timeout"];
    let mut run = Running::start(&plain, &[&wait[..], &["12s"]].concat());
    assert_eq!(run.wait().code(), Some(1), "{}", run.said());
    assert!(run.said().contains("1/2 Running"), "{}", run.said());
    let mut run = Running::start(&shop("", "0", STRICT), &[&wait[..], &["90s"]].concat());
    assert_eq!(run.wait().code(), Some(0), "{}", run.said());
}

/// What passes the wire of the called pod while it is called; whether the run is meshed.
fn heard(inject: &str) -> (Vec<Vec<u8>>, Running) {
    let more = STRICT.to_owned() + LOGGED + &caller("caller", "", "--tries, '200', --hold, '600'");
    let run = Running::start(&shop(LOGGING, "0", &more), &["--inject", inject]);
    run.wait_for("answered 200");
    let server = run.processes("demo hello");
    // In a user namespace of its own, where istio-init had to be able to write its rules.
    let map = std::fs::read_to_string(format!("/proc/{}/uid_map", server[0])).unwrap();
    assert!(map.trim_end().ends_with(" 65536"), "{map}");
    let wire = Wire::of_process(*server.first().unwrap());
    let so_far = run.said().matches("web web ").count();
    // Three more requests, by the server's own account.
    run.wait_until("three more requests", |said| {
        said.matches("web web ").count() > so_far + 2
    });
    (wire.frames(), run)
}

#[test]
fn no_plaintext_between_meshed_pods_and_both_are_named() {
    let (frames, mut run) = heard("never");
    assert!(wire::with(&frames, SECRET.as_bytes()) > 0, "the listener hears");
    assert_eq!(wire::at_port(&frames, 15008), 0);
    run.stop();
    let (frames, mut run) = heard("always");
    assert!(wire::at_port(&frames, 15008) > 10, "{} frames", frames.len());
    // The node asks the agent for health in plaintext; the words of the application are not among that.
    for word in [SECRET, "hello from", "remora-demo"] {
        assert_eq!(wire::with(&frames, word.as_bytes()), 0, "{word} is on the wire");
    }
    run.stop();
    let said = run.said();
    for identity in [
        "spiffe://cluster.local/ns/shop/sa/caller",
        "spiffe://cluster.local/ns/shop/sa/web",
    ] {
        assert!(said.contains(identity), "{identity} is in no access line: {said}");
    }
}

#[test]
fn a_pod_without_a_certificate_is_refused_where_one_is_demanded() {
    let outsider = caller("outsider", ", sidecar.istio.io/inject: 'false'", "--tries, '200'");
    let args = ["--inject", "auto", "--until", "complete", "--timeout"];
    let mut run = Running::start(&shop("", "0", &outsider), &[&args[..], &["90s"]].concat());
    assert_eq!(run.wait().code(), Some(0), "{}", run.said());
    // The same where certificates are demanded: every attempt fails, though the service is ready.
    let strict = STRICT.to_owned() + &outsider;
    let mut run = Running::start(&shop("", "0", &strict), &[&args[..], &["15s"]].concat());
    assert_eq!(run.wait().code(), Some(1), "{}", run.said());
    assert!(run.said().contains("2/2 Running"), "{}", run.said());
    assert!(!run.said().contains("answered 200"), "{}", run.said());
}

/// Waits until a process of the run has a connection to port 80.
fn wait_for_connection(run: &Running, word: &str) {
    let end = std::time::Instant::now() + running::PATIENCE;
    let is_open = |pid: &u32| {
        let list = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
        list.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(2).is_some_and(|peer| peer.ends_with(":0050")) && words.get(3) == Some(&"01")
        })
    };
    while !run.processes(word).iter().any(is_open) {
        assert!(std::time::Instant::now() < end, "no connection: {}", run.said());
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}

/// A request that is being answered while its server is deleted.
fn request_during_stop(mode: &str) -> String {
    let client = caller("caller", ", sidecar.istio.io/inject: 'false'", "--tries, '1'");
    // The client waits for the server in an init container that is answered at once.
    let client = client.replace(
        "  containers:",
        "  initContainers:\n  - {name: first, image: remora, args: [demo, call, 'http://web/health', --tries, '200']}\n  containers:",
    );
    let mut run = Running::start(&shop("", "5", &client), &["--inject", "auto", "--mode", mode]);
    run.wait_for("shop/caller first ! note: http://web/health answered 200");
    run.wait_for("shop/caller  1/1 Running");
    wait_for_connection(&run, &format!("?{SECRET}"));
    // The request is on its way; five seconds of thinking leave time to delete the server.
    let deleted = run.ask(&["delete", "-n", "shop", "--no-wait", "web"]);
    run.wait_until(&format!("an outcome ({deleted})"), |said| {
        said.contains(&format!("?{SECRET} answered")) || said.contains(&format!("?{SECRET}: "))
    });
    run.stop();
    run.said()
}

// differs from istio: a classic proxy of ours follows its application, so it does not go first either.
#[test]
fn a_request_in_flight_survives_the_stop_of_its_server() {
    for mode in ["native", "classic"] {
        let said = request_during_stop(mode);
        assert!(
            said.contains(&format!("?{SECRET} answered 200")),
            "{mode}: {said}"
        );
    }
}

/// While the proxy is dead nothing leaves; when it is back everything is as before.
#[test]
fn a_killed_proxy_lets_nothing_out_and_comes_back() {
    let more = caller("caller", "", "--tries, '1000', --hold, '600'").replace("Never", "Always");
    let mut run = Running::start(
        &shop("", "0", &more),
        &["--inject", "always", "--fast-backoff", "10"],
    );
    run.wait_for("answered 200");
    let caller = *run.processes("demo call").first().unwrap();
    let wire = Wire::of_process(caller);
    let same_pod = |pid: &u32| network(*pid) == network(caller);
    let proxy = run.processes("proxy sidecar").into_iter().find(same_pod).unwrap();
    remora_net::process::signal(proxy, 9).unwrap();
    // The application may have restarted with it by the time the run looks: any number will do.
    run.wait_until("a restart", |said| {
        let counts = said
            .split(" restarts")
            .filter_map(|text| text.rsplit([' ', '(']).next());
        counts
            .filter_map(|count| count.parse::<u32>().ok())
            .any(|count| count > 0)
    });
    let before = run.said().matches("web web ").count();
    run.wait_until("more requests", |said| {
        said.matches("web web ").count() > before + 2
    });
    let frames = wire.frames();
    assert!(frames.len() > 10);
    assert_eq!(
        wire::with(&frames, SECRET.as_bytes()),
        0,
        "nothing leaves in plaintext"
    );
    assert_ne!(
        run.processes("proxy sidecar").into_iter().find(same_pod),
        Some(proxy)
    );
    run.stop();
}

/// A sidecar that captures the traffic itself: its network is as the model says, and it keeps no right to change rules.
#[test]
fn a_sidecar_that_captures_itself_gives_up_its_rights() {
    let more = STRICT.to_owned() + &caller("caller", "", "--tries, '200', --hold, '600'");
    let annotations = "remora.dev/capture: sidecar, remora.dev/gate: hook";
    let mut run = Running::start(&shop(annotations, "0", &more), &["--inject", "always"]);
    run.wait_for("answered 200");
    let sidecar = *run.processes("-- proxy sidecar").first().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{sidecar}/status")).unwrap();
    for line in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{status}");
    }
    run.stop();
    let said = run.said();
    let is_as_told = |line: &str| line.starts_with("shop/web ") && line.contains("network as predicted");
    assert!(said.lines().any(is_as_told), "{said}");
    assert!(said.contains("the rules are in place"), "{said}");
}

/// Whoever waits for a sidecar that cannot capture waits on: it ends instead of serving.
#[test]
fn a_sidecar_that_cannot_capture_does_not_start() {
    for words in [
        &["istio-iptables", "-p", "nonsense", "--", "proxy", "sidecar"][..],
        &["istio-iptables", "--unheard-of", "--", "proxy", "sidecar"],
        &["istio-iptables", "-p", "15001", "--", "wait"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    }
}

fn network(pid: u32) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
    link.display().to_string()
}

/// An init container that fetches something, put behind capture by whoever injected last.
#[test]
fn an_init_container_that_fetches_has_no_network_behind_classic_capture() {
    let fetcher = |more: &str| {
        let pod = caller("app", "", "--tries, '1', --hold, '600'");
        shop(
            "",
            "0",
            &pod.replace(
                "  containers:",
                &format!("  initContainers:\n{more}  containers:"),
            )
            .replace("Never", "Always"),
        )
        .replace(
            "labels: {app: web}",
            "labels: {app: web, sidecar.istio.io/inject: 'false'}",
        )
    };
    let proxy = "  - {name: istio-proxy, image: remora, args: [demo, hello, --port, '15001'], securityContext: {runAsUser: 1337}}\n";
    let fetch = "  - {name: fetch, image: remora, args: [demo, call, 'http://web/?fetch', --tries, '3']}\n";
    let capture = "  - name: istio-init
    image: remora
    args: [istio-iptables, -p, '15001', -z, '15006', -u, '1337', -m, REDIRECT, -i, '*', -x, '', -b, '*', -d, '15090,15021,15020']
    securityContext: {runAsUser: 0, capabilities: {add: [NET_ADMIN, NET_RAW]}}
";
    let broken = fetcher(&format!("{capture}{fetch}"))
        .trim_end()
        .trim_end_matches("---")
        .to_owned()
        + proxy;
    assert!(is_condemned(&broken, &[]), "check says so beforehand");
    let mut run = Running::start(
        &broken,
        &["--inject", "never", "--until", "ready", "--timeout", "12s"],
    );
    assert_eq!(run.wait().code(), Some(1), "{}", run.said());
    assert!(
        run.said().contains("?fetch: Connection refused"),
        "{}",
        run.said()
    );
    let mended = fetcher(fetch);
    assert!(!is_condemned(&mended, &["--mode", "native"]));
    let mut run = Running::start(
        &mended,
        &["--inject", "auto", "--until", "ready", "--timeout", "90s"],
    );
    assert_eq!(run.wait().code(), Some(0), "{}", run.said());
    assert!(run.said().contains("?fetch answered 200"), "{}", run.said());
}
