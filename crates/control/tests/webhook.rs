//! The webhooks over real TLS: what an API server, a careless client and a hostile one get.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use base64::Engine as _;
use remora_control::webhook::{Limits, Rules, Webhook};
use remora_mtls::{Authority, PrivateKey, Roots, bootstrap_client, bootstrap_server};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const PATIENCE: Duration = Duration::from_mins(1);

struct Scene {
    address: SocketAddr,
    client: TlsConnector,
    webhook: Arc<Webhook>,
    server_config: Arc<RwLock<Arc<rustls::ServerConfig>>>,
    authority: Authority,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

fn server_config(authority: &Authority) -> Arc<rustls::ServerConfig> {
    let key = PrivateKey::generate().unwrap();
    let names = ["localhost".to_owned()];
    let issued = authority
        .issue_server(&key, &names, Duration::from_hours(1), SystemTime::now())
        .unwrap();
    let mut config = bootstrap_server(&issued.leaf, &key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

async fn scene(limits: Limits) -> Scene {
    let authority = Authority::generate("test", SystemTime::now(), Duration::from_hours(1)).unwrap();
    let roots = Roots::from_pem(&authority.to_pem().0).unwrap();
    let mut client = bootstrap_client(&roots).unwrap();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server_config = Arc::new(RwLock::new(server_config(&authority)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let webhook = Arc::new(Webhook::new(Rules::default(), limits));
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(
        Arc::clone(&webhook).serve(listener, Arc::clone(&server_config), async {
            drop(stopped.await);
        }),
    );
    Scene {
        address,
        client: TlsConnector::from(Arc::new(client)),
        webhook,
        server_config,
        authority,
        stop: Some(stop),
        serving,
    }
}

impl Scene {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        self.client
            .connect("localhost".try_into().unwrap(), tcp)
            .await
            .unwrap()
    }

    /// Sends bytes, gives status and body.
    async fn exchange(&self, request: &[u8]) -> (u16, String) {
        let work = async {
            let mut stream = self.connect().await;
            stream.write_all(request).await.unwrap();
            let mut answer = Vec::new();
            // A server that refuses early may close before it has read everything.
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8(answer).unwrap();
            let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
            let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
            (status, body)
        };
        tokio::time::timeout(PATIENCE, work).await.unwrap()
    }

    async fn post(&self, path: &str, kind: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n"
        );
        self.exchange([head.as_bytes(), body.as_bytes()].concat().as_slice())
            .await
    }

    async fn review(&self, path: &str, pod: &Value) -> Value {
        let (status, body) = self.post(path, "application/json", &review("v1", pod)).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn pod() -> Value {
    json!({"metadata": {"generateName": "web-"}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}})
}

fn review(version: &str, pod: &Value) -> String {
    json!({"apiVersion": format!("admission.k8s.io/{version}"), "kind": "AdmissionReview",
        "request": {"uid": "u-1", "namespace": "shop", "operation": "CREATE", "object": pod}})
    .to_string()
}

#[tokio::test]
async fn an_api_server_gets_a_patch_it_can_apply() {
    let scene = scene(Limits::default()).await;
    for version in ["v1", "v1beta1"] {
        let (status, body) = scene
            .post(
                "/inject?timeout=10s",
                "application/json",
                &review(version, &pod()),
            )
            .await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["response"]["uid"]), (200, &json!("u-1")));
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        let patch = answer["response"]["patch"].as_str().unwrap();
        let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        let mut after = pod();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        json_patch::patch(&mut after, &patch).unwrap();
        let names: Vec<&Value> = after["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| &c["name"])
            .collect();
        assert!(names.contains(&&json!("istio-proxy")), "{names:?}");
    }
}

#[tokio::test]
async fn careless_questions_get_the_status_that_names_the_mistake() {
    let scene = scene(Limits {
        body: 4096,
        ..Limits::default()
    })
    .await;
    let fine = review("v1", &pod());
    assert_eq!(scene.post("/inject", "application/yaml", &fine).await.0, 415);
    assert_eq!(
        scene
            .post("/inject", "application/json; charset=utf-8", &fine)
            .await
            .0,
        200
    );
    assert_eq!(scene.post("/inject", "application/json", "").await.0, 400);
    assert_eq!(scene.post("/elsewhere", "application/json", &fine).await.0, 404);
    assert_eq!(
        scene
            .post("/inject", "application/json", &"x".repeat(5000))
            .await
            .0,
        400
    );
    let get = b"GET /inject HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(scene.exchange(get).await.0, 405);
    let (status, body) = scene
        .post("/inject", "application/json", "{\"apiVersion\":")
        .await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(false)));
}

#[tokio::test]
async fn hostile_objects_are_refused_or_left_alone_and_the_next_caller_is_served() {
    let scene = scene(Limits::default()).await;
    let hostile = [
        json!({}),
        json!({"metadata": [], "spec": {}}),
        json!({"metadata": {"annotations": 7}, "spec": {"containers": [{"name": "a"}]}}),
        json!({"spec": {"containers": "none"}}),
        json!({"spec": {"containers": [null, 1, "x"]}}),
        json!({"metadata": {"labels": {"sidecar.istio.io/inject": {"a": 1}}}, "spec": {"containers": [{}]}}),
    ];
    for object in hostile {
        for path in ["/inject", "/check"] {
            let answer = scene.review(path, &object).await;
            assert!(answer["response"]["allowed"].is_boolean(), "{object}: {answer}");
        }
    }
    assert_eq!(scene.review("/inject", &pod()).await["response"]["allowed"], true);
}

#[tokio::test]
async fn hostile_reviews_are_refused_with_a_reason_and_the_next_caller_is_served() {
    let scene = scene(Limits::default()).await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let asked = |version: &str, request: &str| {
        format!(r#"{{"apiVersion":"{version}","kind":"AdmissionReview","request":{request}}}"#)
    };
    let hostile = [
        deep.clone(),
        asked(
            "admission.k8s.io/v1",
            &format!(r#"{{"uid":"u","object":{deep}}}"#),
        ),
        asked("admission.k8s.io/v1", "[]"),
        asked("admission.k8s.io/v1", r#"{"uid":"u","object":null}"#),
        asked("admission.k8s.io/v1", r#"{"uid":7,"object":"pod"}"#),
        asked("admission.k8s.io/v9", r#"{"uid":"u","object":{}}"#),
        asked("example.org/v1", r#"{"uid":"u","object":{}}"#),
        asked("admission.k8s.io/v1", r#"{"uid":"u","object":{"n":1e999}}"#),
        r#"{"kind":"AdmissionReview"}"#.to_owned(),
        "null".to_owned(),
        "\u{0}".repeat(1000),
    ];
    for body in hostile {
        let (status, text) = scene.post("/inject", "application/json", &body).await;
        let start: String = body.chars().take(80).collect();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status, &answer["kind"]),
            (200, &json!("AdmissionReview")),
            "{start}"
        );
        assert_eq!(answer["response"]["allowed"], false, "{start}");
        let why = answer["response"]["status"]["message"]
            .as_str()
            .unwrap_or_default();
        assert!(!why.is_empty() && why.len() < 1000, "{start}: {why}");
    }
    let mut left = pod();
    left["metadata"]["annotations"] = json!({"sidecar.istio.io/inject": "false"});
    let answer = scene.review("/inject", &left).await;
    assert_eq!(answer["response"], json!({"uid": "u-1", "allowed": true}));
}

#[tokio::test]
async fn a_pod_of_three_megabytes_is_injected() {
    let scene = scene(Limits::default()).await;
    let mut large = pod();
    large["spec"]["containers"][0]["env"] = (0..30_000)
        .map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(80)}))
        .collect();
    assert!(large.to_string().len() > 3_000_000);
    let answer = scene.review("/inject", &large).await;
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
}

#[tokio::test]
async fn a_slow_caller_is_cut_off_and_keeps_nobody_waiting() {
    let scene = scene(Limits {
        patience: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    let half = b"POST /inject HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let mut slow = scene.connect().await;
    slow.write_all(half).await.unwrap();
    assert_eq!(scene.review("/inject", &pod()).await["response"]["allowed"], true);
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 408"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn certificates_change_while_pods_are_created_and_none_is_refused() {
    let scene = scene(Limits::default()).await;
    for _ in 0..100 {
        let next = server_config(&scene.authority);
        *scene.server_config.write().unwrap() = next;
        assert_eq!(scene.review("/inject", &pod()).await["response"]["allowed"], true);
    }
    assert!(
        scene
            .webhook
            .counts()
            .render()
            .contains("remora_injection_total{result=\"injected\",reason=\"\"} 100\n")
    );
}

#[tokio::test]
async fn rules_are_exchanged_while_it_runs() {
    let scene = scene(Limits::default()).await;
    let mut rules = Rules::default();
    rules.settings.config.policy = "disabled".to_owned();
    scene.webhook.publish(rules);
    assert_eq!(
        scene.review("/inject", &pod()).await["response"].get("patch"),
        None
    );
}

#[tokio::test]
async fn a_stop_lets_a_question_finish() {
    let mut scene = scene(Limits::default()).await;
    let body = review("v1", &pod());
    let (first, rest) = body.split_at(20);
    let mut stream = scene.connect().await;
    let head = format!(
        "POST /inject HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{first}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Another question on another connection: when it is answered, the first one has arrived as well.
    scene.review("/inject", &pod()).await;
    scene.stop.take().unwrap().send(()).unwrap();
    stream.write_all(rest.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    tokio::time::timeout(PATIENCE, scene.serving)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_pod_with_more_containers_than_anyone_needs_is_refused_with_the_reason() {
    let scene = scene(Limits::default()).await;
    let list = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|n| json!({"name": format!("c{n}"), "image": "a:1"}))
            .collect()
    };
    for path in ["/inject", "/check"] {
        let many = json!({"spec": {"initContainers": list(600), "containers": list(600)}});
        let answer = scene.review(path, &many).await;
        assert_eq!(answer["response"]["allowed"], false, "{answer}");
        let why = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(why.contains("1200 containers; at most 1000"), "{why}");
        let enough = json!({"spec": {"containers": list(1000)}});
        let answer = scene.review(path, &enough).await;
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
}

/// A review that waited too long is answered before the API server gives up, so that it learns why.
#[tokio::test]
async fn reviews_that_find_no_turn_are_told_so() {
    let scene = scene(Limits {
        reviews_per_source: 0,
        ..Limits::default()
    })
    .await;
    let (status, body) = scene
        .post("/inject", "application/json", &review("v1", &pod()))
        .await;
    assert_eq!(status, 503);
    assert!(body.contains("too many reviews are waiting"), "{body}");
}
