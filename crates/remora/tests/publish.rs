//! Published ports: whoever calls from this machine is a client of the mesh with an identity of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "others look for processes too")]
#[path = "proof/running.rs"]
mod running;

use running::Running;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const VISITOR: &str = "spiffe://cluster.local/ns/istio-system/sa/remora-publish";

/// A meshed service that writes access lines, one beside the mesh, and policies.
const SHOP: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: shop}
data: {mesh: 'accessLogFile: /dev/stdout'}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web}
  annotations:
    sidecar.istio.io/userVolume: '[{"name":"mesh","configMap":{"name":"istio"}}]'
    sidecar.istio.io/userVolumeMount: '[{"name":"mesh","mountPath":"/etc/istio/config"}]'
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: web
    image: remora
    args: [demo, hello, --port, '8080']
    readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: shop, labels: {app: plain, sidecar.istio.io/inject: 'false'}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {name: plain, image: remora, args: [demo, hello, --port, '8080'], readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
"#;

/// Who may call the service.
fn only(principal: &str) -> String {
    format!(
        "{SHOP}---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: web, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  rules: [{{from: [{{source: {{principals: ['{principal}']}}}}]}}]
"
    )
}

/// Where a published port is.
fn address(run: &Running, target: &str) -> String {
    let mark = format!("{target} is published on http://");
    run.wait_for(&mark);
    let said = run.said();
    let (_, rest) = said.split_once(&mark).unwrap();
    rest.lines().next().unwrap().trim().to_owned()
}

/// An answer, or nothing where the connection ended without one.
fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(running::PATIENCE)).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    // Refused connections are reset, perhaps before everything was written.
    let _ = stream
        .write_all(request)
        .and_then(|()| stream.read_to_end(&mut answer).map(drop));
    String::from_utf8_lossy(&answer).into_owned()
}

fn start(manifest: &str) -> Running {
    let args = ["--inject", "auto", "-p", "0:web:80", "-p", "0:shop/plain:8080"];
    let run = Running::start(manifest, &args);
    run.wait_for("everything is ready");
    run
}

#[test]
fn strict_pods_answer_and_know_who_calls() {
    let mut run = start(&only("cluster.local/ns/istio-system/sa/remora-publish"));
    // By a Service, and a pod without a proxy.
    for target in ["web:80", "shop/plain:8080"] {
        let answer = get(&address(&run, target));
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("hello"),
            "{target}: {answer}"
        );
    }
    run.wait_for(VISITOR);
    // Many at once, over one tunnel or several.
    let at = address(&run, "web:80");
    let many: Vec<_> = (0..50)
        .map(|_| {
            let at = at.clone();
            std::thread::spawn(move || get(&at).contains("hello"))
        })
        .collect();
    assert!(many.into_iter().all(|one| one.join().unwrap()));
    let began = Instant::now();
    run.stop();
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "published ports hold up the end"
    );
}

#[test]
fn a_policy_that_allows_others_keeps_published_ports_out() {
    let run = start(&only("cluster.local/ns/shop/sa/somebody"));
    let answer = get(&address(&run, "web:80"));
    assert!(!answer.contains("hello"), "{answer}");
    // The connection is refused for who calls, not for want of a certificate.
    run.wait_for(VISITOR);
    assert!(get(&address(&run, "shop/plain:8080")).contains("hello"));
}
