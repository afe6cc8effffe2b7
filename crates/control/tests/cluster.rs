//! A control plane in a cluster: what it keeps there, follows there and survives there, alone and beside another one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

#[path = "cluster/api.rs"]
mod api;
#[path = "cluster/policy_status.rs"]
mod policy_status;

use api::Api;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use remora_control::kubernetes::{Cluster, Notice, Settings};
use remora_control::plane;
use remora_mtls::{Chain, PrivateKey, Roots, bootstrap_client};
use remora_xds::client::{Bytes, ControlPlane};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

const PATIENCE: Duration = Duration::from_mins(1);
const MOMENT: Duration = Duration::from_millis(20);
const HOOK: &str = "zz-remora-sidecar-injector";

fn settings() -> Settings {
    Settings {
        namespace: "istio-system".to_owned(),
        revision: String::new(),
        cluster: "Kubernetes".to_owned(),
        domain: "cluster.local".to_owned(),
        plane: plane::Settings {
            trust_domain: "cluster.local".to_owned(),
            server_names: vec!["istiod.istio-system.svc".to_owned()],
            certificate_life: Duration::from_hours(24),
            longest_certificate_life: Duration::from_hours(90 * 24),
        },
    }
}

/// What `remora install` and an administrator put in.
fn installed() -> Api {
    let api = Api::new();
    for name in ["istio-system", "shop"] {
        api.put(
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        );
    }
    api.put("mutatingwebhookconfigurations", hook());
    node(&api, "n1", "v1.35.0");
    api
}

fn hook() -> Value {
    json!({"metadata": {"name": HOOK, "labels": {"app": "sidecar-injector", "istio.io/rev": "default"}},
        "webhooks": [{"name": "a", "clientConfig": {}}, {"name": "b", "clientConfig": {"caBundle": "b2xk"}}]})
}

fn node(api: &Api, name: &str, kubelet: &str) {
    api.put(
        "nodes",
        json!({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": kubelet}}}),
    );
}

fn map(api: &Api, name: &str, key: &str, text: &str) {
    api.put(
        "configmaps",
        json!({"metadata": {"name": name, "namespace": "istio-system"}, "data": {key: text}}),
    );
}

/// One replica.
struct Replica {
    cluster: Arc<Cluster>,
    webhook: SocketAddr,
    notices: mpsc::UnboundedReceiver<String>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn replica(api: &Api) -> Replica {
    let replica = started(api).await;
    let mut ready = replica.cluster.ready();
    let ready = tokio::time::timeout(PATIENCE, ready.wait_for(|ready| *ready)).await;
    ready.unwrap().unwrap();
    replica
}

async fn started(api: &Api) -> Replica {
    let (say, notices) = mpsc::unbounded_channel();
    let cluster = Cluster::open(api.client(), settings(), move |notice: &Notice| {
        let _ = say.send(notice.to_string());
    });
    let cluster = Arc::new(cluster.await.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = listener.local_addr().unwrap();
    let serving = Arc::clone(cluster.webhook()).serve(
        listener,
        cluster.plane().server_config(),
        std::future::pending(),
    );
    let following = Arc::clone(&cluster);
    let tasks = vec![
        tokio::spawn(serving),
        tokio::spawn(async move { following.follow().await }),
    ];
    Replica {
        cluster,
        webhook,
        notices,
        tasks,
    }
}

impl Replica {
    /// As the API server asks: it believes the bundle of the configuration it knows now.
    async fn review(&self, api: &Api, pod: &Value) -> Value {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "u", "namespace": "shop", "operation": "CREATE", "object": pod}});
        let body = review.to_string();
        let roots = Roots::from_pem(&bundle(api)).unwrap();
        let mut client = bootstrap_client(&roots).unwrap();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let ask = async {
            let tcp = TcpStream::connect(self.webhook).await.unwrap();
            let name = "istiod.istio-system.svc".try_into().unwrap();
            let mut stream = TlsConnector::from(Arc::new(client))
                .connect(name, tcp)
                .await
                .unwrap();
            let head = format!(
                "POST /inject HTTP/1.1\r\nhost: istiod\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).unwrap()
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await.unwrap();
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        answer["response"].clone()
    }

    /// The pod after the patch.
    async fn injected(&self, api: &Api, pod: &Value) -> Value {
        let response = self.review(api, pod).await;
        assert_eq!(response["allowed"], true, "{response}");
        let mut after = pod.clone();
        if let Some(patch) = response["patch"].as_str() {
            let patch = STANDARD.decode(patch).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
            json_patch::patch(&mut after, &patch).unwrap();
        }
        after
    }

    async fn said(&mut self, part: &str) -> String {
        let look = async {
            loop {
                let text = self.notices.recv().await.unwrap();
                if text.contains(part) {
                    return text;
                }
            }
        };
        tokio::time::timeout(PATIENCE, look).await.unwrap()
    }
}

fn pod() -> Value {
    json!({"metadata": {"generateName": "web-"}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
}

/// Waits for something that changes of the API server bring about.
async fn until<T>(api: &Api, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut changes = api.changes();
    let waiting = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            // What is looked at may follow a moment after the change.
            let _ = tokio::time::timeout(MOMENT, changes.changed()).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| panic!("gave up waiting for {what}"))
}

fn bundles(api: &Api) -> Vec<String> {
    let hook = api.get("mutatingwebhookconfigurations", "", HOOK).unwrap();
    let text = |entry: &Value| {
        entry["clientConfig"]["caBundle"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    hook["webhooks"].as_array().unwrap().iter().map(text).collect()
}

fn bundle(api: &Api) -> String {
    String::from_utf8(STANDARD.decode(&bundles(api)[0]).unwrap()).unwrap()
}

/// Waits until every bundle is what this replica's roots are.
async fn trusted(api: &Api, replica: &Replica) {
    until(api, "the bundles", || {
        let wanted = STANDARD.encode(replica.cluster.plane().roots());
        bundles(api).iter().all(|bundle| *bundle == wanted).then_some(())
    })
    .await;
}

fn copy(api: &Api, namespace: &str) -> Option<String> {
    let map = api.get("configmaps", namespace, "istio-ca-root-cert")?;
    map["data"]["root-cert.pem"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn the_cluster_gets_what_pods_and_the_api_server_need_and_gets_it_back() {
    let api = installed();
    let replica = replica(&api).await;
    trusted(&api, &replica).await;
    let roots = replica.cluster.plane().roots();
    let has = |namespace: &str| copy(&api, namespace).filter(|copy| *copy == roots).map(drop);
    until(&api, "copies", || has("istio-system").and(has("shop"))).await;
    api.put("namespaces", json!({"metadata": {"name": "bank"}}));
    until(&api, "a copy in the new namespace", || has("bank")).await;
    // Somebody takes things away, or changes them.
    api.delete("configmaps", "shop", "istio-ca-root-cert");
    api.put("mutatingwebhookconfigurations", hook());
    api.delete("secrets", "istio-system", "istio-ca-secret");
    until(&api, "the copy", || has("shop")).await;
    trusted(&api, &replica).await;
    until(&api, "the secret", || {
        api.get("secrets", "istio-system", "istio-ca-secret")
    })
    .await;
    assert_eq!(replica.cluster.plane().roots(), roots, "the root is the same");
}

#[tokio::test]
async fn what_cannot_be_written_is_tried_again_and_told_once() {
    let api = installed();
    // Somebody is faster twice, then the server has trouble, then all is well.
    let mut replica = {
        let first = replica(&api).await;
        trusted(&api, &first).await;
        first
    };
    api.trouble(&[500, 409, 409]);
    api.put("mutatingwebhookconfigurations", hook());
    trusted(&api, &replica).await;
    let said = replica.said("write the CA bundle").await;
    assert!(said.contains(HOOK), "{said}");
    let codes: Vec<String> = api
        .writes()
        .into_iter()
        .filter(|line| line.contains(HOOK))
        .map(|line| line.rsplit(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        codes[codes.len() - 4..],
        ["409", "409", "500", "200"],
        "{codes:?}"
    );
}

#[tokio::test]
async fn two_replicas_have_one_root_and_do_not_fight() {
    let api = installed();
    let (one, two) = tokio::join!(replica(&api), replica(&api));
    assert_eq!(one.cluster.plane().roots(), two.cluster.plane().roots());
    trusted(&api, &one).await;
    for name in 0..20 {
        api.put("namespaces", json!({"metadata": {"name": format!("n{name}")}}));
    }
    let roots = one.cluster.plane().roots();
    until(&api, "all copies", || {
        (0..20)
            .all(|n| copy(&api, &format!("n{n}")).as_ref() == Some(&roots))
            .then_some(())
    })
    .await;
    // Both answer, and what one changed the other does not change back.
    let before = api.get("mutatingwebhookconfigurations", "", HOOK).unwrap();
    for replica in [&one, &two] {
        assert_eq!(replica.review(&api, &pod()).await["allowed"], true);
    }
    assert_eq!(
        api.get("mutatingwebhookconfigurations", "", HOOK).unwrap(),
        before
    );
    let changed = api
        .writes()
        .iter()
        .filter(|line| line.contains(HOOK) && line.ends_with(" 200"))
        .count();
    assert!((1..=2).contains(&changed), "{:?}", api.writes());
}

/// The root of the Secret, one step further, as when its time has come.
fn ask_for_the_next_step(api: &Api) {
    let mut secret = api.get("secrets", "istio-system", "istio-ca-secret").unwrap();
    let annotations = &mut secret["metadata"]["annotations"];
    annotations["remora.dev/root-since"] = json!("0");
    annotations["remora.dev/exchange-root"] = json!("now");
    api.put("secrets", secret);
}

#[tokio::test]
async fn certificates_and_roots_change_while_a_hundred_pods_are_created_and_none_is_refused() {
    let api = installed();
    let (one, two) = tokio::join!(replica(&api), replica(&api));
    trusted(&api, &one).await;
    let first = one.cluster.plane().roots();
    let mut steps = Vec::new();
    for number in 0..100 {
        let asked = if number % 2 == 0 { &one } else { &two };
        let response = asked.review(&api, &pod()).await;
        assert_eq!(response["allowed"], true, "pod {number}: {response}");
        // Serving certificates are exchanged all the time, the root three times.
        one.cluster.plane().with_authority(|_| ()).unwrap();
        two.cluster.plane().with_authority(|_| ()).unwrap();
        if number % 30 == 20 {
            let before = one.cluster.plane().kept();
            ask_for_the_next_step(&api);
            let stepped = until(&api, "a step of the exchange", || {
                let kept = one.cluster.plane().kept();
                (kept != before).then_some(kept)
            });
            steps.push(stepped.await);
            trusted(&api, &one).await;
            trusted(&api, &two).await;
        }
    }
    let [introduced, switched, retired] = steps.try_into().unwrap();
    assert!(introduced.next.is_some());
    assert!(!switched.retired.is_empty() && switched.certificate == introduced.next.unwrap().0);
    assert!(retired.retired.is_empty() && retired.certificate == switched.certificate);
    assert_ne!(one.cluster.plane().roots(), first, "the root is another one now");
    let steps = api
        .writes()
        .iter()
        .filter(|line| line.starts_with("PUT secrets") && line.ends_with(" 200"))
        .count();
    assert_eq!(
        steps,
        3,
        "each step was made once, by one of the two: {:?}",
        api.writes()
    );
}

fn sidecar_is_native(pod: &Value) -> bool {
    let lists = pod["spec"]["initContainers"].as_array();
    lists.is_some_and(|list| list.iter().any(|c| c["name"] == "istio-proxy"))
}

/// Asks until the answer is as wanted: rules follow the cluster in a moment, and nothing says when.
async fn eventually(api: &Api, replica: &Replica, pod: &Value, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let after = replica.injected(api, pod).await;
        if wanted(&after) {
            return after;
        }
        assert!(tokio::time::Instant::now() < end, "still {after}");
    }
}

#[tokio::test]
async fn mesh_configuration_values_instrumentations_and_nodes_are_followed_while_it_runs() {
    let api = installed();
    let mut replica = replica(&api).await;
    trusted(&api, &replica).await;
    map(
        &api,
        "istio-sidecar-injector",
        "values",
        "global: {hub: example.com/mesh, tag: 7, proxy: {image: remora}}",
    );
    let image = |pod: &Value| pod["spec"].to_string().contains("example.com/mesh/remora:7");
    let after = eventually(&api, &replica, &pod(), image).await;
    assert!(sidecar_is_native(&after), "every node knows native sidecars");
    map(
        &api,
        "istio",
        "mesh",
        "defaultConfig: {discoveryAddress: 'elsewhere.svc:15012'}",
    );
    eventually(&api, &replica, &pod(), |pod| {
        pod["spec"].to_string().contains("elsewhere.svc:15012")
    })
    .await;
    // A mistake changes nothing and is told.
    map(&api, "istio", "mesh", "defaultConfig: [");
    replica.said("config map istio, key mesh").await;
    assert!(
        replica.injected(&api, &pod()).await["spec"]
            .to_string()
            .contains("elsewhere.svc:15012")
    );
    // One old node: a pod that can land there has a classic sidecar, one that cannot has not.
    node(&api, "old", "v1.27.3");
    eventually(&api, &replica, &pod(), |pod| !sidecar_is_native(pod)).await;
    let mut placed = pod();
    placed["spec"]["nodeName"] = json!("n1");
    assert!(sidecar_is_native(&replica.injected(&api, &placed).await));
    let mut java = pod();
    java["metadata"]["annotations"] = json!({"instrumentation.opentelemetry.io/inject-java": "true"});
    let before = replica.review(&api, &java).await;
    assert_eq!(
        before["allowed"], true,
        "no Instrumentation never keeps a pod from its sidecar"
    );
    assert!(
        before["warnings"].to_string().contains("nstrumentation"),
        "{before}"
    );
    api.put(
        "instrumentations",
        json!({"apiVersion": "opentelemetry.io/v1alpha1", "kind": "Instrumentation",
        "metadata": {"name": "i", "namespace": "shop"}, "spec": {"java": {"image": "agent:9"}}}),
    );
    let after = eventually(&api, &replica, &java, |pod| {
        pod["spec"].to_string().contains("agent:9")
    })
    .await;
    assert!(after["spec"].to_string().contains("istio-proxy"));
}

#[tokio::test]
async fn a_control_plane_whose_configuration_was_never_usable_is_not_ready() {
    let api = installed();
    map(&api, "istio", "mesh", "defaultConfig: [");
    let mut replica = started(&api).await;
    replica.said("config map istio, key mesh").await;
    assert!(
        !*replica.cluster.ready().borrow(),
        "pods must not get a sidecar that nobody described"
    );
    map(&api, "istio", "mesh", "trustDomain: td");
    let mut ready = replica.cluster.ready();
    let ready = tokio::time::timeout(PATIENCE, ready.wait_for(|ready| *ready)).await;
    ready.unwrap().unwrap();
}

fn pod_on(api: &Api, namespace: &str, name: &str, account: &str, node: &str) {
    api.put(
        "pods",
        json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
            "spec": {"serviceAccountName": account, "nodeName": node, "containers": []},
            "status": {"phase": "Running"}}),
    );
}

#[tokio::test]
async fn a_proxy_of_a_node_gets_certificates_of_that_node_and_of_no_other() {
    let api = installed();
    pod_on(&api, "istio-system", "zt-1", "ztunnel", "n1");
    pod_on(&api, "shop", "cart-0", "cart", "n1");
    pod_on(&api, "shop", "web-0", "web", "n2");
    let replica = replica(&api).await;
    let discovery = Discovery::serve(&replica).await;
    let ask = |token: &str, identity: &'static str| {
        let token = api::token(token, "good");
        discovery.certify(1, token, Some(identity))
    };
    let cart = "spiffe://cluster.local/ns/shop/sa/cart";
    let node = "istio-system/ztunnel/zt-1";
    assert_eq!(ask(node, cart).await.unwrap(), cart);
    let elsewhere = ask(node, "spiffe://cluster.local/ns/shop/sa/web")
        .await
        .unwrap_err();
    assert!(elsewhere.contains("runs on its node n1"), "{elsewhere}");
    let unbound = ask("istio-system/ztunnel", cart).await.unwrap_err();
    assert!(unbound.contains("not bound to a pod"), "{unbound}");
    let gone = ask("istio-system/ztunnel/zt-0", cart).await.unwrap_err();
    assert!(gone.contains("zt-0 is gone"), "{gone}");
    let workload = ask("shop/web/web-0", cart).await.unwrap_err();
    assert!(workload.contains("no account of node proxies"), "{workload}");
}

/// Discovery and certificates of a replica, as clients at different addresses reach them.
struct Discovery {
    address: SocketAddr,
    config: Arc<rustls::ClientConfig>,
    serving: JoinHandle<()>,
}

impl Drop for Discovery {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Discovery {
    async fn serve(replica: &Replica) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let plane = Arc::clone(replica.cluster.plane());
        let roots = Roots::from_pem(&plane.roots()).unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            config: Arc::new(bootstrap_client(&roots).unwrap()),
            serving: tokio::spawn(async move { drop(plane.serve(listener, std::future::pending()).await) }),
        }
    }

    /// The identity in the certificate that a client at 127.0.0.`last` gets for a token.
    fn certify(
        &self,
        last: u8,
        token: String,
        behalf: Option<&'static str>,
    ) -> impl Future<Output = Result<String, String>> + use<> {
        let (address, config) = (self.address, Arc::clone(&self.config));
        let dial = move || {
            let connector = TlsConnector::from(Arc::clone(&config));
            let socket = TcpSocket::new_v4().unwrap();
            Box::pin(async move {
                socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
                let name = "istiod.istio-system.svc".try_into().unwrap();
                let stream = connector.connect(name, socket.connect(address).await?).await?;
                Ok(Box::new(stream) as Box<dyn Bytes>)
            }) as _
        };
        let plane = ControlPlane::new(
            "http://istiod.istio-system.svc:15012".parse().unwrap(),
            Arc::new(dial),
            Arc::new(move || Ok(Some(token.clone()))),
        );
        async move {
            let own = behalf.unwrap_or("spiffe://cluster.local/ns/shop/sa/cart");
            let own = own.parse().unwrap();
            let request = PrivateKey::generate().unwrap().request(&own).unwrap();
            let plane = match behalf {
                Some(identity) => plane.on_behalf_of(identity),
                None => plane,
            };
            let certified = plane.certify(request, Duration::ZERO).await;
            let (chain, _) = certified.map_err(|error| format!("{error:?}"))?;
            Ok(Chain::from_pem(&chain).unwrap().id().to_string())
        }
    }
}

#[tokio::test]
async fn wrong_tokens_cost_the_api_server_next_to_nothing() {
    let api = installed();
    let replica = replica(&api).await;
    let discovery = Discovery::serve(&replica).await;
    let cart = "spiffe://cluster.local/ns/shop/sa/cart";
    let good = || api::token("shop/cart", "good");

    // What is no token for us is not reviewed.
    for number in 0..50 {
        let why = discovery
            .certify(2, format!("guess-{number}"), None)
            .await
            .unwrap_err();
        assert!(why.contains("Unauthenticated"), "{why}");
    }
    assert_eq!(api.reviews(), 0);

    // The same one is reviewed once, however often it is shown at the same time and afterwards.
    let wrong = api::token("shop/cart", "bad");
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..20 {
        asking.spawn(discovery.certify(2, wrong.clone(), None));
    }
    for answer in asking.join_all().await {
        assert!(answer.unwrap_err().contains("Unauthenticated"));
    }
    assert!(discovery.certify(2, wrong, None).await.is_err());
    assert_eq!(api.reviews(), 1);

    // Many different ones hold up their own source at most.
    for number in 0..100 {
        let wrong = api::token(&format!("shop/cart{number}"), "bad");
        assert!(discovery.certify(2, wrong, None).await.is_err());
    }
    assert_eq!(discovery.certify(3, good(), None).await.unwrap(), cart);
}

#[tokio::test]
async fn a_token_shown_by_many_requests_is_reviewed_once() {
    let api = installed();
    let replica = replica(&api).await;
    let discovery = Discovery::serve(&replica).await;
    let mut asking = tokio::task::JoinSet::new();
    let token = api::token("shop/cart", "good");
    for _ in 0..20 {
        asking.spawn(discovery.certify(2, token.clone(), None));
    }
    for answer in asking.join_all().await {
        answer.unwrap();
    }
    assert_eq!(api.reviews(), 1);
}
