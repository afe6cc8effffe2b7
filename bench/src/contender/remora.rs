//! remora as a user runs it: a control plane, and a sidecar in each pod.

use super::Way;
use crate::place;
use crate::process::{Process, Start};
use crate::world::{self, CLIENT, CONTROL, SERVER, World};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The mesh of a measurement: the two pods, and services that are only known.
pub fn mesh(way: Way, services: usize, version: usize) -> String {
    let tunnel = match way {
        Way::Plain => "none",
        Way::Mtls => "hbone",
    };
    let mut text = String::new();
    for (name, address) in [("web", CLIENT), ("cart", SERVER)] {
        let _ = write!(
            text,
            "kind: Workload\nname: {name}-0\nnamespace: shop\naddresses: [{address}]\nserviceAccount: {name}\n\
             tunnel: {tunnel}\n---\n"
        );
    }
    for number in 0..services {
        let (high, low) = (number / 250, number % 250 + 1);
        // The last one changes with every version, the others stay.
        let version = if number + 1 == services {
            version % 60000
        } else {
            0
        };
        let _ = write!(
            text,
            "kind: Service\nname: s{number}\nnamespace: other\naddresses: [10.{}.{}.{low}]\n\
             ports: [{{port: 80}}, {{port: {}}}]\n---\n",
            100 + high / 250,
            high % 250,
            1000 + version,
        );
        let each = if services > 1000 { 1 } else { 3 };
        for replica in 0..each {
            let _ = write!(
                text,
                "kind: Workload\nname: s{number}-{replica}\nnamespace: other\n\
                 addresses: [10.{}.{}.{low}]\nserviceAccount: s{number}\ntunnel: hbone\n\
                 services: {{other/s{number}.other.svc.cluster.local: ['80:8080']}}\n---\n",
                150 + replica * 20 + high / 250,
                high % 250,
            );
        }
    }
    text
}

/// Starts the control plane, with its root in both pods.
pub fn control(remora: &Path, world: &World, way: Way, services: usize) -> Process {
    world.write("mesh.yaml", &mesh(way, services, 0));
    world.write(
        "tokens.yaml",
        "- {token: web-secret, namespace: shop, serviceAccount: web}\n\
         - {token: cart-secret, namespace: shop, serviceAccount: cart}\n",
    );
    let config = world.write(
        "control.yaml",
        &format!(
            "listen: {CONTROL}:15012\nserverNames: [istiod.istio-system.svc]\nauthority: ca\nmesh: [mesh.yaml]\n\
             tokens: tokens.yaml\nreload: 100ms\n"
        ),
    );
    let process = Start {
        words: vec![
            remora.display().to_string(),
            "control".to_owned(),
            "--config".to_owned(),
            config.display().to_string(),
        ],
        env: Vec::new(),
        directory: world.directory.path().to_owned(),
        uid: 0,
        cpu: place::LOAD,
        log: world.path("control.log"),
    }
    .run(&world.elsewhere, world.realtime);
    said(world, "control.log", "listening on");
    let root = std::fs::read_to_string(world.path("ca/root-cert.pem")).expect("root");
    for account in ["web", "cart"] {
        world.write(&format!("{account}/var/run/secrets/istio/root-cert.pem"), &root);
        let token = format!("{account}-secret");
        world.write(&format!("{account}/var/run/secrets/tokens/istio-token"), &token);
    }
    process
}

/// Waits until a program has said something.
pub fn said(world: &World, log: &str, words: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(world.path(log)).is_ok_and(|text| text.contains(words)) {
        assert!(Instant::now() < end, "{log} never said {words:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a sidecar.
pub fn sidecar(remora: &Path, world: &World, client: bool) -> Process {
    let (account, address, namespace) = if client {
        ("web", CLIENT, &world.lab.pod)
    } else {
        ("cart", SERVER, &world.lab.peer)
    };
    let env = [
        ("POD_NAME", format!("{account}-0")),
        ("POD_NAMESPACE", "shop".to_owned()),
        ("SERVICE_ACCOUNT", account.to_owned()),
        ("INSTANCE_IP", address.to_owned()),
        ("ISTIOD_SAN", "istiod.istio-system.svc".to_owned()),
        (
            "PROXY_CONFIG",
            format!("{{discoveryAddress: '{CONTROL}:15012', concurrency: 1}}"),
        ),
    ];
    Start {
        words: vec![
            remora.display().to_string(),
            "proxy".to_owned(),
            "sidecar".to_owned(),
        ],
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        directory: world.path(account),
        uid: world::PROXY,
        cpu: place::PROXIES,
        log: world.path(&format!("{account}.log")),
    }
    .run(namespace, world.realtime)
}
