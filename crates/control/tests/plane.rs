//! A control plane on loopback: tokens, certificates, discovery, changed files, exchanged roots.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_control::{Config, Notice, Plane};
use remora_mtls::{Authority, Chain, Credentials, PrivateKey, Roots, SpiffeId, bootstrap_client};
use remora_xds::client::{Bytes, ClientError, ControlPlane};
use remora_xds::delta::{Change, Client, Interest};
use remora_xds::proto::discovery::Node;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;

const PATIENCE: Duration = Duration::from_mins(1);

const CONFIG: &str = "
trustDomain: td
authority: ca
mesh: [mesh]
tokens: tokens.yaml
certificateLife: 1h
longestCertificateLife: 2h
reload: 20ms
";

const TOKENS: &str = "
- {token: secret-web, namespace: shop, serviceAccount: web}
- {token: secret-bank, namespace: bank, serviceAccount: till}
- {token: secret-node, namespace: istio-system, serviceAccount: ztunnel}
";

const WEB: &str = "
kind: Workload
name: web-0
namespace: shop
addresses: [10.0.0.1]
serviceAccount: web
tunnel: hbone
";

struct Scene {
    directory: TempDir,
    plane: Arc<Plane>,
    address: SocketAddr,
    notices: mpsc::UnboundedReceiver<String>,
    _stop: oneshot::Sender<()>,
}

async fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("mesh")).unwrap();
    for (name, text) in [
        ("config.yaml", CONFIG),
        ("tokens.yaml", TOKENS),
        ("mesh/web.yaml", WEB),
    ] {
        put(directory.path(), name, text);
    }
    let config = Config::read(&directory.path().join("config.yaml")).unwrap();
    let (say, notices) = mpsc::unbounded_channel();
    let plane = Plane::open(config, move |notice: &Notice| {
        let _ = say.send(notice.to_string());
    })
    .unwrap();
    let plane = Arc::new(plane);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, told) = oneshot::channel();
    let serving = Arc::clone(&plane);
    tokio::spawn(async move {
        let stop = async { drop(told.await) };
        serving.serve(listener, stop).await.unwrap();
    });
    Scene {
        directory,
        plane,
        address,
        notices,
        _stop: stop,
    }
}

/// As an editor or a mounted volume would: never half a file.
fn put(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(draft, path).unwrap();
}

impl Scene {
    fn client(&self, token: &'static str) -> ControlPlane {
        let root = std::fs::read_to_string(self.directory.path().join("ca/root-cert.pem")).unwrap();
        let config = Arc::new(bootstrap_client(&Roots::from_pem(&root).unwrap()).unwrap());
        let address = self.address;
        ControlPlane::new(
            "http://istiod.istio-system.svc:15012".parse().unwrap(),
            Arc::new(move || {
                let connector = TlsConnector::from(Arc::clone(&config));
                Box::pin(async move {
                    let name = "istiod.istio-system.svc".try_into().unwrap();
                    let stream = connector
                        .connect(name, TcpStream::connect(address).await?)
                        .await?;
                    Ok(Box::new(stream) as Box<dyn Bytes>)
                })
            }),
            Arc::new(move || Ok(Some(token.to_owned()))),
        )
    }

    async fn notice(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.notices.recv())
            .await
            .unwrap()
            .unwrap()
    }
}

fn web() -> SpiffeId {
    "spiffe://td/ns/shop/sa/web".parse().unwrap()
}

#[tokio::test]
async fn a_token_gives_the_certificate_of_its_owner_and_no_other() {
    let scene = scene().await;
    let key = PrivateKey::generate().unwrap();
    let other: SpiffeId = "spiffe://td/ns/kube-system/sa/root".parse().unwrap();
    let request = key.request(&other).unwrap();
    let client = scene.client("secret-web");
    let (chain, roots) = client.certify(request.clone(), Duration::ZERO).await.unwrap();
    let chain = Chain::from_pem(&chain).unwrap();
    let left = chain.not_after().duration_since(SystemTime::now()).unwrap();
    assert!(
        left <= Duration::from_hours(1) && left > Duration::from_mins(58),
        "{left:?}"
    );
    let roots = Roots::from_pem(&roots).unwrap();
    Credentials::new(&key, chain, roots, &web(), SystemTime::now()).unwrap();
    for (client, life, why) in [
        (scene.client("guess"), Duration::ZERO, "not known"),
        (scene.client("secret-we"), Duration::ZERO, "not known"),
        (client, Duration::from_hours(3), "at most"),
    ] {
        let error = client.certify(request.clone(), life).await.unwrap_err();
        let ClientError::Status(status) = &error else {
            unreachable!("{error}")
        };
        let said = status.message();
        assert!(said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn changed_files_reach_a_proxy_and_mistakes_do_not() {
    let mut scene = scene().await;
    assert_eq!(
        scene.notice().await,
        "serving 1 workloads and services, 0 policies"
    );
    let client = scene.client("secret-web");
    let mut changes = follow(client);
    let mut next = async || {
        tokio::time::timeout(PATIENCE, changes.recv())
            .await
            .unwrap()
            .unwrap()
    };
    assert_eq!(next().await, "+cluster//Pod/shop/web-0");
    let directory = scene.directory.path().to_owned();
    // A mistake: said once, nothing changes.
    put(&directory, "mesh/cart.yaml", "kind: Workload\nname: cart-0\n");
    let said = scene.notice().await;
    assert!(
        said.starts_with("keeping what was served before") && said.contains("cart.yaml"),
        "{said}"
    );
    // So is a file that somebody has emptied to write it anew.
    put(&directory, "mesh/web.yaml", "");
    put(&directory, "mesh/cart.yaml", "# nothing yet\n");
    let said = scene.notice().await;
    assert!(
        said.starts_with("keeping what was served before") && said.contains("web.yaml has no content"),
        "{said}"
    );
    put(&directory, "mesh/web.yaml", WEB);
    // Corrected, with a policy beside it: both arrive, what did not change does not.
    let cart = WEB.replace("web", "cart").replace("10.0.0.1", "10.0.0.2");
    put(&directory, "mesh/cart.yaml", &cart);
    assert_eq!(next().await, "+cluster//Pod/shop/cart-0");
    std::fs::remove_file(directory.join("mesh/web.yaml")).unwrap();
    assert_eq!(next().await, "-cluster//Pod/shop/web-0");
    put(
        &directory,
        "mesh/deny.yaml",
        "kind: Policy\nname: deny\nnamespace: shop\n",
    );
    assert_eq!(next().await, "+shop/deny");
}

/// What a proxy is told, as `+NAME` and `-NAME`.
fn follow(client: ControlPlane) -> mpsc::UnboundedReceiver<String> {
    let mut state = Client::new(Node::default());
    state.want(ADDRESS, Interest::Everything);
    state.want(AUTHORIZATION, Interest::Everything);
    let (applied, changes) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let (_, demands) = mpsc::channel(1);
        let apply = move |received: &remora_xds::delta::Received| {
            for change in &received.changes {
                let name = match change {
                    Change::Update { name, .. } => format!("+{name}"),
                    Change::Remove { name } => format!("-{name}"),
                };
                let _ = applied.send(name);
            }
            Vec::new()
        };
        client.follow(state, apply, demands, |_| ()).await
    });
    changes
}

#[tokio::test]
async fn sidecars_are_told_what_is_public_and_what_is_their_own() {
    let scene = scene().await;
    let directory = scene.directory.path().to_owned();
    let bank = "
kind: Service
name: vault
namespace: bank
addresses: [10.96.0.7]
visibility: namespace
---
kind: Service
name: desk
namespace: bank
addresses: [10.96.0.8]
---
kind: Workload
name: vault-0
namespace: bank
addresses: [10.0.0.7]
visibility: namespace
---
kind: Policy
name: guards
namespace: bank
---
kind: Policy
name: mesh
namespace: istio-system
scope: global
";
    put(&directory, "mesh/bank.yaml", bank);
    let [web, vault, desk, safe] = [
        "+cluster//Pod/shop/web-0",
        "+bank/vault.bank.svc.cluster.local",
        "+bank/desk.bank.svc.cluster.local",
        "+cluster//Pod/bank/vault-0",
    ];
    let [guards, mesh] = ["+bank/guards", "+istio-system/mesh"];
    let mut told = Vec::new();
    for (token, expected) in [
        ("secret-web", vec![mesh, desk, web]),
        ("secret-bank", vec![guards, mesh, desk, vault, safe, web]),
        ("secret-node", vec![guards, mesh, desk, vault, safe, web]),
    ] {
        let mut changes = follow(scene.client(token));
        let mut all = Vec::new();
        for _ in 0..expected.len() {
            all.push(
                tokio::time::timeout(PATIENCE, changes.recv())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        all.sort();
        let mut expected = expected;
        expected.sort_unstable();
        assert_eq!(all, expected, "{token}");
        told.push(changes);
    }
    // What becomes private is taken away from the others, and given back.
    put(
        &directory,
        "mesh/bank.yaml",
        &bank.replace("[10.96.0.8]", "[10.96.0.8]\nvisibility: namespace"),
    );
    let mut next = async |who: usize| {
        let changes: &mut mpsc::UnboundedReceiver<String> = &mut told[who];
        tokio::time::timeout(PATIENCE, changes.recv())
            .await
            .unwrap()
            .unwrap()
    };
    assert_eq!(next(0).await, "-bank/desk.bank.svc.cluster.local");
    assert_eq!(next(1).await, desk);
    put(&directory, "mesh/bank.yaml", bank);
    assert_eq!(next(0).await, desk);
}

#[tokio::test]
async fn the_root_is_kept_over_restarts_and_exchanged_in_steps() {
    let scene = scene().await;
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&web()).unwrap();
    let client = scene.client("secret-web");
    let (_, before) = client.certify(request.clone(), Duration::ZERO).await.unwrap();
    let config = Config::read(&scene.directory.path().join("config.yaml")).unwrap();
    let again = Plane::open(config, |_: &Notice| ()).unwrap();
    let root = again.with_authority(|a: &mut Authority| a.roots()).unwrap();
    assert_eq!(root, before, "the same root after a restart");
    let now = SystemTime::now();
    let introduced = scene
        .plane
        .with_authority(|a| a.introduce_root("remora", now, Duration::from_hours(1000)))
        .unwrap();
    introduced.unwrap();
    let (_, both) = client.certify(request.clone(), Duration::ZERO).await.unwrap();
    assert_eq!(Roots::from_pem(&both).unwrap().count(), 2);
    scene
        .plane
        .with_authority(Authority::switch_root)
        .unwrap()
        .unwrap();
    // The control plane now shows a certificate of the new root; who learned about it in time goes on.
    let refused = client.certify(request, Duration::ZERO).await;
    assert!(
        refused.is_err(),
        "a client with the old root only does not believe the new one"
    );
}

#[test]
fn a_configuration_with_a_mistake_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (text, why) in [
        ("", "is empty"),
        ("mesh: []\n", "understand the document at line 1"),
        (
            "authority: a\nmesh: []\ntokens: t\nsurprise: 1\n",
            "understand the document",
        ),
        (
            "authority: a\nmesh: []\ntokens: t\nreload: 0s\n",
            "understand the document",
        ),
    ] {
        put(directory.path(), "c.yaml", text);
        let error = Config::read(&directory.path().join("c.yaml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
}
