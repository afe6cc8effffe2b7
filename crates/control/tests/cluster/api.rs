//! An API server in a few lines: objects that can be listed, watched, created, replaced and patched, with versions and
//! conflicts as the real one has them. No sockets: a client calls it directly.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;

type Answer = UnsyncBoxBody<Bytes, Infallible>;
/// Plural, namespace, name.
type Place = (String, String, String);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Place, Value>,
    /// What happened: version, plural, namespace, event.
    log: Vec<(u64, String, String, Value)>,
    writes: Vec<String>,
    /// Writes that come now meet somebody who was faster, or a server in trouble.
    trouble: Vec<u16>,
    /// Token reviews.
    reviews: usize,
    /// The CRDs of policies, if the cluster has them.
    policies: Option<Crds>,
}

/// How the CRDs of policies are defined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crds {
    WithStatus,
    WithoutStatus,
}

/// The server, and whoever talks to it.
#[derive(Clone)]
pub(crate) struct Api {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::channel(0).0,
        }
    }

    /// How many tokens were reviewed.
    pub(crate) fn reviews(&self) -> usize {
        self.state.lock().unwrap().reviews
    }

    /// Defines the kinds of policies.
    pub(crate) fn define_policies(&self, crds: Crds) {
        self.state.lock().unwrap().policies = Some(crds);
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// Puts an object, as some other client would.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let place = (plural.to_owned(), text("namespace"), text("name"));
        self.store(place, object);
    }

    pub(crate) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let place = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let mut state = self.state.lock().unwrap();
        let object = state.objects.remove(&place).unwrap();
        state.version += 1;
        let version = state.version;
        let event = json!({"type": "DELETED", "object": object});
        state.log.push((version, place.0, place.1, event));
        drop(state);
        self.changed.send_replace(version);
    }

    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let place = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.state.lock().unwrap().objects.get(&place).cloned()
    }

    /// The next writes are answered so.
    pub(crate) fn trouble(&self, codes: &[u16]) {
        self.state.lock().unwrap().trouble = codes.to_vec();
    }

    /// `METHOD PLURAL NAMESPACE/NAME CODE` of every write.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.state.lock().unwrap().writes.clone()
    }

    /// Signals every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn store(&self, place: Place, mut object: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        let kind = if state.objects.contains_key(&place) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        if kind == "MODIFIED" && same(&state.objects[&place], &object) {
            return state.objects[&place].clone();
        }
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        state.objects.insert(place.clone(), object.clone());
        let event = json!({"type": kind, "object": object});
        state.log.push((version, place.0, place.1, event));
        drop(state);
        self.changed.send_replace(version);
        object
    }

    async fn answer(self, request: Request<Body>) -> Response<Answer> {
        let (head, body) = request.into_parts();
        let query: BTreeMap<String, String> = head.uri.query().map(pairs).unwrap_or_default();
        let Some((plural, namespace, name, subresource)) = target(head.uri.path()) else {
            return failure(404, "no such path");
        };
        let crds = self.state.lock().unwrap().policies;
        if matches!(plural.as_str(), "authorizationpolicies" | "peerauthentications") && crds.is_none() {
            return failure(404, "the server could not find the requested resource");
        }
        if subresource.is_some() && crds != Some(Crds::WithStatus) {
            return failure(404, "not found");
        }
        let body = body.collect().await.unwrap().to_bytes();
        match (head.method.as_str(), name) {
            ("GET", Some(name)) => match self.get(&plural, &namespace, &name) {
                Some(object) => success(200, &object),
                None => failure(404, "not found"),
            },
            ("GET", None) if query.contains_key("watch") => self.watch(plural, namespace, query),
            ("GET", None) => self.list(&plural, &namespace, &query),
            (method, name) => {
                let kind = head.headers.get("content-type").and_then(|v| v.to_str().ok());
                let place = (plural, namespace, name.unwrap_or_default());
                self.write(
                    method,
                    &place,
                    kind.unwrap_or_default(),
                    &body,
                    subresource.as_deref(),
                )
            }
        }
    }

    fn list(&self, plural: &str, namespace: &str, query: &BTreeMap<String, String>) -> Response<Answer> {
        let state = self.state.lock().unwrap();
        let items: Vec<&Value> = state
            .objects
            .iter()
            .filter(|((kind, space, _), object)| {
                kind == plural && (namespace.is_empty() || space == namespace) && selected(object, query)
            })
            .map(|(_, object)| object)
            .collect();
        let version = state.version.to_string();
        success(
            200,
            &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
        )
    }

    fn watch(self, plural: String, namespace: String, query: BTreeMap<String, String>) -> Response<Answer> {
        let mut seen: u64 = query
            .get("resourceVersion")
            .and_then(|v| v.parse().ok())
            .unwrap_or(0);
        let (lines, stream) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            let mut changed = self.changed.subscribe();
            loop {
                let news: Vec<(u64, Value)> = {
                    let state = self.state.lock().unwrap();
                    let news = state.log.iter().filter(|(version, kind, space, event)| {
                        *version > seen
                            && *kind == plural
                            && (namespace.is_empty() || *space == namespace)
                            && selected(&event["object"], &query)
                    });
                    news.map(|(version, _, _, event)| (*version, event.clone()))
                        .collect()
                };
                for (version, event) in news {
                    seen = version;
                    let line = Bytes::from(format!("{event}\n"));
                    if lines.send(Ok::<_, Infallible>(Frame::data(line))).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    told = changed.changed() => if told.is_err() { return },
                    () = lines.closed() => return,
                }
            }
        });
        Response::new(StreamBody::new(ReceiverStream::new(stream)).boxed_unsync())
    }

    fn write(
        &self,
        method: &str,
        place: &Place,
        kind: &str,
        body: &[u8],
        subresource: Option<&str>,
    ) -> Response<Answer> {
        let mut body: Value = serde_json::from_slice(body).unwrap();
        if let Some(part) = subresource {
            // Nothing else of the object can be changed this way.
            let version = &body["metadata"]["resourceVersion"];
            body = json!({"metadata": {"resourceVersion": version}, part: body[part]});
        }
        if place.0 == "tokenreviews" {
            self.state.lock().unwrap().reviews += 1;
            return success(201, &reviewed(&body));
        }
        let response = self.written(method, place.clone(), kind, body);
        let code = response.status().as_u16();
        let line = format!("{method} {} {}/{} {code}", place.0, place.1, place.2);
        self.state.lock().unwrap().writes.push(line);
        response
    }

    fn written(&self, method: &str, mut place: Place, kind: &str, body: Value) -> Response<Answer> {
        if let Some(code) = self.state.lock().unwrap().trouble.pop() {
            return failure(code, "somebody was faster, or the server is in trouble");
        }
        if method == "POST" {
            body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut place.2);
        }
        let there = self.get(&place.0, &place.1, &place.2);
        match (method, there) {
            ("POST", Some(_)) => failure(409, "already exists"),
            ("POST", None) => success(201, &self.store(place, body)),
            ("PUT", Some(there)) => {
                if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"] {
                    return failure(409, "the object has been modified");
                }
                success(200, &self.store(place, body))
            }
            ("PATCH", there) if kind.starts_with("application/apply-patch") => {
                let mut next = there.unwrap_or_else(|| json!({}));
                json_patch::merge(&mut next, &body);
                next["metadata"]["namespace"] = json!(place.1);
                success(200, &self.store(place, next))
            }
            ("PATCH", Some(mut there)) if kind.starts_with("application/merge-patch") => {
                if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"] {
                    return failure(409, "the object has been modified");
                }
                json_patch::merge(&mut there, &body);
                success(200, &self.store(place, there))
            }
            ("PATCH", Some(mut there)) => {
                let patch: json_patch::Patch = serde_json::from_value(body).unwrap();
                match json_patch::patch(&mut there, &patch) {
                    Ok(()) => success(200, &self.store(place, there)),
                    Err(_) => failure(
                        422,
                        "the server rejected our request due to an error in our request",
                    ),
                }
            }
            _ => failure(404, "not found"),
        }
    }
}

/// A token of this server: for `NAMESPACE/ACCOUNT` or `NAMESPACE/ACCOUNT/POD`. With another signature it is refused.
pub(crate) fn token(owner: &str, signature: &str) -> String {
    let expiry = std::time::SystemTime::now() + std::time::Duration::from_hours(1);
    let expiry = expiry.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({"aud": ["istio-ca"], "exp": expiry, "sub": owner}).to_string();
    format!("e30.{}.{signature}", URL_SAFE_NO_PAD.encode(claims))
}

fn reviewed(review: &Value) -> Value {
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let payload = token
        .strip_suffix(".good")
        .and_then(|token| token.split('.').nth(1));
    let payload = payload.and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
    let claims: Value = payload.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
    let mut answer = review.clone();
    let words: Vec<&str> = claims["sub"].as_str().unwrap_or_default().split('/').collect();
    answer["status"] = match words[..] {
        [namespace, account, ref pod @ ..] => {
            let mut user = json!({"username": format!("system:serviceaccount:{namespace}:{account}")});
            if let [pod] = pod {
                user["extra"] = json!({"authentication.kubernetes.io/pod-name": [pod],
                    "authentication.kubernetes.io/pod-uid": [format!("uid-{pod}")]});
            }
            json!({"authenticated": true, "audiences": ["istio-ca"], "user": user})
        }
        _ => json!({"authenticated": false}),
    };
    answer
}

fn same(a: &Value, b: &Value) -> bool {
    let without = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        value
    };
    without(a) == without(b)
}

fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let field = |term: &str| match term.split_once('=').unwrap() {
        ("metadata.name", name) => object["metadata"]["name"] == name,
        ("spec.nodeName", node) => object["spec"]["nodeName"] == node,
        _ => false,
    };
    let fields = query.get("fieldSelector").map(String::as_str);
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    fields.is_none_or(field)
        && labels.split(',').filter(|term| !term.is_empty()).all(|term| {
            if let Some((key, value)) = term.split_once("!=") {
                return label(key) != Some(value);
            }
            let (key, value) = term.split_once('=').unwrap();
            label(key) == Some(value)
        })
}

/// Plural, namespace, name and subresource of a path.
fn target(path: &str) -> Option<(String, String, Option<String>, Option<String>)> {
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = words.as_slice() else {
        return None;
    };
    let owned = |text: &&str| (*text).to_owned();
    match rest {
        ["namespaces", space, plural, name @ ..] => Some((
            owned(plural),
            owned(space),
            name.first().map(owned),
            name.get(1).map(owned),
        )),
        [plural, name @ ..] => Some((owned(plural), String::new(), name.first().map(owned), None)),
        [] => None,
    }
}

fn pairs(query: &str) -> BTreeMap<String, String> {
    let plain = |text: &str| {
        text.replace("%3D", "=")
            .replace("%2C", ",")
            .replace("%2F", "/")
            .replace("%21", "!")
            .replace('+', " ")
    };
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (plain(key), plain(value)))
        .collect()
}

fn success(code: u16, object: &Value) -> Response<Answer> {
    let mut response = Response::new(Full::from(object.to_string()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

fn failure(code: u16, message: &str) -> Response<Answer> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": reason, "code": code});
    success(code, &status)
}

impl tower_service::Service<Request<Body>> for Api {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let api = self.clone();
        Box::pin(async move { Ok(api.answer(request).await) })
    }
}
