//! What the agent's ports answer, to whom.

use super::process::PATIENCE;
use super::scene::{Pod, Scene};
use std::net::SocketAddr;
use std::time::Instant;

const PROBERS: &str = r#"{
    "/app-health/app/readyz": {"httpGet": {"path": "/ready", "port": 8080}},
    "/app-health/app/livez": {"tcpSocket": {"port": 8081}},
    "/app-lifecycle/app/prestopz": {"httpGet": {"path": "/stop", "port": 8080}}
}"#;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: 10.1.0.1:15020\r\nconnection: close\r\n\r\n")
}

#[test]
fn probes_metrics_and_commands() {
    let scene = Scene::new();
    let _control = scene.control();
    let _application = scene.application(Pod::Cart);
    let mut env = Scene::env(Pod::Cart);
    env.insert("ISTIO_KUBE_APP_PROBERS".to_owned(), PROBERS.to_owned());
    let scraped = r#"{"scrape":"true","port":"8080","path":"/metrics"}"#;
    env.insert("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), scraped.to_owned());
    let mut cart = scene.start(Pod::Cart, env).remora(&["proxy", "sidecar"]);
    let _web = scene.sidecar(Pod::Web);
    scene.ready(Pod::Cart);
    scene.ready(Pod::Web);
    drop(scene.call().unwrap());

    // From another pod: the application's status and nothing it says; no hooks.
    let agent: SocketAddr = "10.1.0.1:15020".parse().unwrap();
    let outside = |request: &str| scene.send(Pod::Web, agent, request).unwrap();
    assert_eq!(outside(&get("/app-health/app/readyz")), (200, String::new()));
    assert_eq!(outside(&get("/app-lifecycle/app/prestopz")).0, 403);
    assert_eq!(
        scene
            .ask(Pod::Cart, 15020, "/app-lifecycle/app/prestopz")
            .unwrap()
            .0,
        200
    );
    assert_eq!(
        outside(&get("/app-health/app/livez")).0,
        500,
        "nobody listens there"
    );
    assert_eq!(outside(&get("/app-health/other/livez")).0, 400);
    assert_eq!(outside(&get("/healthz/ready")).0, 200);
    assert_eq!(outside(&get("/quitquitquit")).0, 403);
    assert_eq!(outside(&get("/quitquitquit").replace("GET", "POST")).0, 403);
    assert_eq!(outside(&get("/drain").replace("GET", "POST")).0, 403);
    for hidden in ["/debug/pprof/", "/debug/ndsz", "/config_dump", "/"] {
        assert_eq!(outside(&get(hidden)).0, 404, "{hidden}");
    }
    assert_eq!(scene.ask(Pod::Cart, 15020, "/drain").unwrap().0, 405);
    let admin: SocketAddr = "10.1.0.1:15000".parse().unwrap();
    assert!(scene.send(Pod::Web, admin, &get("/config_dump")).is_err());
    let mut dump = scene
        .start(Pod::Cart, Scene::env(Pod::Cart))
        .remora(&["request", "GET", "config_dump"]);
    assert_eq!(dump.end(), 0, "{}", dump.said());

    // One page for everybody. The call is counted when both sides are done with it.
    let counted = "istio_tcp_connections_closed_total{";
    let started = Instant::now();
    let page = loop {
        let (status, page) = scene.ask(Pod::Cart, 15020, "/stats/prometheus").unwrap();
        assert_eq!(status, 200);
        if page.contains(counted) {
            break page;
        }
        assert!(started.elapsed() < PATIENCE, "{page}");
    };
    for part in [
        "app_metric 1\n",
        "istio_agent_cert_expiry_seconds{resource_name=\"default\"} 86",
        "istio_agent_startup_duration_seconds 0.",
        "istio_agent_scrape_failures_total{type=\"application\"} 0",
    ] {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    let (status, page) = scene.ask(Pod::Cart, 15090, "/stats/prometheus").unwrap();
    assert!(
        status == 200 && page.contains(counted) && !page.contains("app_metric"),
        "{page}"
    );
    assert_eq!(cart.stop(), 0);
}

#[test]
fn an_application_without_metrics_does_not_spoil_the_page() {
    let scene = Scene::new();
    let mut env = Scene::env(Pod::Web);
    let scraped = r#"{"scrape":"true","port":"8080"}"#;
    env.insert("ISTIO_PROMETHEUS_ANNOTATIONS".to_owned(), scraped.to_owned());
    let _web = scene.start(Pod::Web, env).remora(&["proxy", "sidecar"]);
    scene.readiness(Pod::Web, |status, _| status == 503);
    let (status, page) = scene.ask(Pod::Web, 15020, "/metrics").unwrap();
    assert_eq!(status, 200);
    assert!(
        page.contains("scrape_failures_total{type=\"application\"} 1"),
        "{page}"
    );
}
