//! Memory and verdicts without IO, and reviews by an API server of a few lines.

use super::failures::Failures;
use super::{
    Authenticator as _, BELIEVED, Flight, MAX_REMEMBERED, Memory, REFUSED, REVIEWS_PER_SOURCE, Reviewed,
    Unidentified, verdict,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::client::Body;
use remora_mtls::SpiffeId;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn answer(status: &Value) -> Result<String, String> {
    verdict(&json!({"status": status}), "td").map(|owner| owner.id.to_string())
}

#[test]
fn a_service_account_is_an_identity() {
    let good = json!({"authenticated": true, "audiences": ["istio-ca"],
        "user": {"username": "system:serviceaccount:shop:cart"}});
    assert_eq!(answer(&good).unwrap(), "spiffe://td/ns/shop/sa/cart");
}

#[test]
fn everything_else_is_nobody() {
    let refused = |status: Value| answer(&status).unwrap_err();
    assert!(refused(json!({"authenticated": false, "error": "expired"})).contains("expired"));
    assert!(refused(json!({})).contains("not valid"));
    let user = json!({"username": "system:serviceaccount:shop:cart"});
    assert!(refused(json!({"authenticated": true, "user": user})).contains("istio-ca"));
    assert!(
        refused(json!({"authenticated": true, "audiences": ["kubernetes"], "user": user}))
            .contains("istio-ca")
    );
    let admin = json!({"username": "admin"});
    assert!(
        refused(json!({"authenticated": true, "audiences": ["istio-ca"], "user": admin}))
            .contains("no service account")
    );
}

#[test]
fn a_verdict_is_forgotten_at_the_end_of_its_time() {
    let memory = Memory(Mutex::default());
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let until = now + second * 10;
    memory.put(1, "good", now, until);
    assert_eq!(memory.get(1, now), Some("good"));
    assert_eq!(memory.get(1, now + second * 9), Some("good"));
    assert_eq!(memory.get(1, until), None);
    assert_eq!(memory.get(1, until + second), None);
    assert_eq!(memory.get(2, now), None, "another token");
}

#[test]
fn memory_is_bounded_and_makes_room_by_forgetting_what_has_ended() {
    let memory = Memory(Mutex::default());
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let (soon, late) = (now + second, now + second * 10);
    let most = u64::try_from(MAX_REMEMBERED).unwrap();
    for key in 1..most {
        memory.put(key, "good", now, late);
    }
    memory.put(most, "brief", now, soon);
    assert_eq!(
        memory.get(most, now),
        Some("brief"),
        "there was room for the last one"
    );
    memory.put(most + 1, "new", now, late);
    assert_eq!(memory.get(most + 1, now), None, "no room");
    assert_eq!(memory.get(1, now), Some("good"), "and nothing is displaced");
    memory.put(most + 1, "new", soon, late);
    assert_eq!(memory.get(most + 1, soon), Some("new"), "the brief one has ended");
    assert_eq!(memory.get(1, soon), Some("good"));
}

/// An API server: the requests that it got, and the pods that it lists.
#[derive(Clone, Default)]
struct Server {
    requests: Arc<Mutex<Vec<String>>>,
    pods: Arc<Vec<Value>>,
}

impl Server {
    fn reviewed(&self) -> Reviewed {
        Reviewed::new(kube::Client::new(self.clone(), "default"), "td")
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn answer(&self, path: &str, body: &[u8]) -> (u16, Value) {
        self.requests.lock().unwrap().push(path.to_owned());
        if path.contains("pods") {
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": *self.pods});
            return (200, list);
        }
        let mut review: Value = serde_json::from_slice(body).unwrap();
        let token = review["spec"]["token"].as_str().unwrap();
        let audiences = &review["spec"]["audiences"];
        let (owner, signature) = (subject(token), token.rsplit('.').next().unwrap());
        let status = match signature {
            "broken" => return (500, json!({"kind": "Status", "apiVersion": "v1", "code": 500})),
            "wrong" => json!({"authenticated": false, "error": "of another key"}),
            "bound" => json!({"authenticated": true, "audiences": audiences, "user": {"username": owner,
                "extra": {"authentication.kubernetes.io/pod-name": ["zt-1"],
                    "authentication.kubernetes.io/pod-uid": ["uid-1"]}}}),
            _ => json!({"authenticated": true, "audiences": audiences, "user": {"username": owner}}),
        };
        review["status"] = status;
        (201, review)
    }
}

impl tower_service::Service<Request<Body>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let path = request.uri().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (code, value) = server.answer(&path, &body);
            let response = Response::builder().status(code);
            Ok(response.body(Full::from(value.to_string())).unwrap())
        })
    }
}

/// A token of an account that looks right; the server judges by its signature.
fn token(account: &str, signature: &str) -> String {
    let expiry = SystemTime::now() + Duration::from_hours(1);
    let expiry = expiry.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({"aud": ["istio-ca"], "exp": expiry,
        "sub": format!("system:serviceaccount:shop:{account}")});
    format!("e30.{}.{signature}", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

fn subject(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    claims["sub"].clone()
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// How long verdicts are remembered, by when they end.
fn ends<T>(memory: &Memory<T>) -> Vec<Instant> {
    memory
        .0
        .lock()
        .unwrap()
        .values()
        .map(|(_, until)| *until)
        .collect()
}

#[track_caller]
fn busy<T: std::fmt::Debug>(outcome: Result<T, Unidentified>, why: &str) {
    match outcome {
        Err(Unidentified::Unavailable(text)) => assert!(text.contains(why), "{text}"),
        other => panic!("not busy: {other:?}"),
    }
}

#[tokio::test]
async fn a_good_token_is_reviewed_once_and_believed_from_the_question_on() {
    let server = Server::default();
    let reviewed = server.reviewed();
    let good = token("cart", "good");
    let before = Instant::now();
    let id = reviewed.identify(&good).await.unwrap();
    let after = Instant::now();
    assert_eq!(id.to_string(), "spiffe://td/ns/shop/sa/cart");
    assert_eq!(reviewed.identify_from(&good, address(1)).await.unwrap(), id);
    assert_eq!(server.requests().len(), 1, "{:?}", server.requests());
    let until = ends(&reviewed.known)[0];
    assert!(before + BELIEVED <= until && until <= after + BELIEVED);
    assert!(ends(&reviewed.refused).is_empty());
    assert!(
        reviewed.at_work.lock().unwrap().is_empty(),
        "nothing is at work any more"
    );
}

#[tokio::test]
async fn a_wrong_token_is_reviewed_once_and_counts_against_its_source() {
    let server = Server::default();
    let reviewed = server.reviewed();
    let (source, before) = (address(1), Instant::now());
    // One failure is left to this source; failures of the future are not forgiven yet.
    let future = before + Duration::from_hours(1);
    let mut most = 0;
    let mut counted = Failures::default();
    while most < 1000 && counted.allow(source, future) {
        counted.failed(source, future);
        most += 1;
    }
    for _ in 1..most {
        reviewed.failures().failed(source, future);
    }
    assert!(reviewed.failures().allow(source, before));
    let wrong = token("cart", "wrong");
    for _ in 0..2 {
        let refused = reviewed.identify_from(&wrong, source).await;
        assert!(
            matches!(&refused, Err(Unidentified::Refused(why)) if why.contains("of another key")),
            "{refused:?}"
        );
    }
    let after = Instant::now();
    assert_eq!(server.requests().len(), 1, "{:?}", server.requests());
    let until = ends(&reviewed.refused)[0];
    assert!(before + REFUSED <= until && until <= after + REFUSED);
    assert!(ends(&reviewed.known).is_empty());
    assert!(!reviewed.failures().allow(source, before), "it was counted");
}

#[tokio::test]
async fn a_source_with_many_wrong_tokens_has_none_reviewed_and_others_have() {
    let server = Server::default();
    let reviewed = server.reviewed();
    let future = Instant::now() + Duration::from_hours(1);
    for _ in 0..1000 {
        reviewed.failures().failed(address(1), future);
    }
    let good = token("cart", "good");
    busy(
        reviewed.identify_from(&good, address(1)).await,
        "too many wrong tokens",
    );
    assert!(server.requests().is_empty());
    assert!(reviewed.identify_from(&good, address(2)).await.is_ok());
    assert!(reviewed.identify(&token("web", "good")).await.is_ok());
}

#[tokio::test]
async fn reviews_of_one_source_at_once_are_limited() {
    let server = Server::default();
    let reviewed = server.reviewed();
    let permits: Vec<_> = (0..REVIEWS_PER_SOURCE)
        .map(|_| reviewed.per_source.try_acquire(address(1)).unwrap())
        .collect();
    let good = token("cart", "good");
    busy(reviewed.identify_from(&good, address(1)).await, "being reviewed");
    assert!(
        reviewed
            .identify_from(&token("web", "good"), address(2))
            .await
            .is_ok()
    );
    drop(permits);
    assert!(reviewed.identify_from(&good, address(1)).await.is_ok());
    assert!(
        reviewed.per_source.try_acquire(address(1)).is_some(),
        "a permit is given back after the review"
    );
}

#[tokio::test]
async fn an_api_server_in_trouble_is_no_verdict() {
    let server = Server::default();
    let reviewed = server.reviewed();
    let broken = token("cart", "broken");
    for _ in 0..2 {
        busy(reviewed.identify_from(&broken, address(1)).await, "");
    }
    assert_eq!(server.requests().len(), 2, "nothing was remembered");
    assert!(ends(&reviewed.known).is_empty() && ends(&reviewed.refused).is_empty());
}

#[tokio::test]
async fn what_cannot_be_a_good_token_is_refused_without_a_review() {
    let server = Server::default();
    let reviewed = server.reviewed();
    for text in ["", "guess", "a.b.c"] {
        let refused = reviewed.identify(text).await;
        assert!(matches!(refused, Err(Unidentified::Refused(_))), "{refused:?}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn requests_with_one_token_have_one_turn_until_the_last_is_gone() {
    let reviewed = Server::default().reviewed();
    let first = Flight::join(&reviewed, 1);
    let second = Flight::join(&reviewed, 1);
    let other = Flight::join(&reviewed, 2);
    assert!(Arc::ptr_eq(&first.turn, &second.turn));
    assert!(!Arc::ptr_eq(&first.turn, &other.turn));
    drop(first);
    let third = Flight::join(&reviewed, 1);
    assert!(Arc::ptr_eq(&third.turn, &second.turn), "still the same turn");
    drop((second, third));
    assert!(!reviewed.at_work.lock().unwrap().contains_key(&1));
    drop(other);
    assert!(reviewed.at_work.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_proxy_of_a_node_speaks_for_pods_of_its_node_only() {
    let pod = |name: &str, account: &str, node: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "uid": "uid-1"},
            "spec": {"serviceAccountName": account, "nodeName": node}, "status": {"phase": "Running"}})
    };
    let pods = vec![
        pod("zt-1", "ztunnel", "n1"),
        pod("cart-0", "cart", "n1"),
        pod("web-0", "web", "n2"),
    ];
    let server = Server {
        pods: Arc::new(pods),
        ..Server::default()
    };
    let reviewed = server.reviewed();
    let workload = |account: &str| SpiffeId::of_service_account("td", "shop", account).unwrap();
    let proxy = token("ztunnel", "bound");
    assert_eq!(reviewed.is_beside(&proxy, &workload("cart")).await, Ok(()));
    let requests = server.requests();
    assert!(
        requests[1].contains("/namespaces/shop/pods") && requests[1].contains("zt-1"),
        "{requests:?}"
    );
    assert!(
        requests[2].contains("/api/v1/pods") && requests[2].contains("n1"),
        "{requests:?}"
    );
    for (token, account) in [
        (proxy, "web"),
        (token("ztunnel", "good"), "cart"),
        (token("cart", "bound"), "cart"),
    ] {
        let refused = reviewed.is_beside(&token, &workload(account)).await;
        assert!(
            matches!(refused, Err(Unidentified::Refused(_))),
            "{account}: {refused:?}"
        );
    }
}
