//! Who may, who may not, and who may no longer.

use crate::scene::{MESH, Scene, echo, exchange, service};
use std::io::{ErrorKind, Read};

fn allow(account: &str) -> String {
    let rule =
        format!("rules: [{{from: [{{principals: [td/ns/shop/sa/{account}]}}], to: [{{ports: [8080]}}]}}]");
    format!("{MESH}---\nkind: Policy\nname: who\nnamespace: shop\n{rule}\n")
}

#[test]
fn policy_decides_and_decides_again_while_connected() {
    let scene = Scene::with(&allow("web"));
    scene.serve(8080, echo);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"allowed").unwrap();
    scene.server.learn(&allow("somebody"));
    let cut = open.read(&mut [0; 1]).unwrap_err();
    assert_eq!(
        cut.kind(),
        ErrorKind::ConnectionReset,
        "a policy ends what it forbids"
    );
    let record = scene.server.record();
    assert!(record.error.unwrap().contains("no longer allowed"));
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    assert!(
        scene
            .server
            .record()
            .error
            .unwrap()
            .contains("no policy allows it")
    );
    scene.server.learn(&allow("web"));
    let mut again = scene.connect(service(false));
    exchange(&mut again, b"allowed again").unwrap();
}

#[test]
fn a_policy_on_trial_changes_nothing_and_is_in_the_log() {
    let trial = allow("somebody").replace("name: who", "name: who\ndryRun: true");
    let scene = Scene::with(&trial);
    scene.serve(8080, echo);
    exchange(&mut scene.connect(service(false)), b"allowed").unwrap();
    let record = scene.server.record();
    assert_eq!(record.error, None);
    assert_eq!(
        record.on_trial.as_deref(),
        Some("would be refused: no policy allows it")
    );
    assert!(
        record.to_string().contains("policy.dry_run=\"would be refused"),
        "{record}"
    );
    assert_eq!(
        scene.client.record().on_trial,
        None,
        "policies are kept where connections arrive"
    );
    scene.learn(&allow("web").replace("name: who", "name: who\ndryRun: true"));
    exchange(&mut scene.connect(service(true)), b"allowed either way").unwrap();
    assert_eq!(scene.server.record().on_trial, None);
}

#[test]
fn a_policy_that_has_not_arrived_denies() {
    let named = MESH.replace(
        "serviceAccount: cart",
        "serviceAccount: cart\npolicies: [shop/later]",
    );
    let scene = Scene::with(&named);
    scene.serve(8080, echo);
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    assert!(
        scene
            .server
            .record()
            .error
            .unwrap()
            .contains("shop/later has not arrived")
    );
    scene.server.learn(&format!(
        "{named}---\nkind: Policy\nname: later\nnamespace: shop\nscope: workload\nrules: [{{to: [{{ports: [8080]}}]}}]\n"
    ));
    exchange(&mut scene.connect(service(false)), b"now").unwrap();
}

#[test]
fn a_proxy_without_discovery_lets_nobody_in() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    scene.server.learn("kind: Policy\nname: p\nnamespace: x\n");
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    assert!(
        scene
            .server
            .record()
            .error
            .unwrap()
            .contains("discovery has not named")
    );
}

#[test]
fn a_peer_that_is_somebody_else_gets_nothing() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    scene
        .client
        .learn(&MESH.replace("serviceAccount: cart", "serviceAccount: vault"));
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    let error = scene.client.record().error.unwrap();
    assert!(
        error.contains("shake hands with spiffe://td/ns/shop/sa/vault"),
        "{error}"
    );
    assert!(scene.server.record().error.unwrap().contains("TLS handshake"));
}
