//! Requests about one repository: addresses, tokens, redirects.

use super::challenge::{self, Challenge};
use super::credentials::{Credentials, Secret};
use super::trust::{self, Answered, Decision, Origin};
use super::{Client, PullError};
use crate::image::manifest::{DOCUMENT_MAX, MEDIA_TYPES};
use crate::image::{Digest, Reference};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, RANGE, USER_AGENT, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use serde::Deserialize;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long an answer may take to begin, and a body to go on.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Registries send blobs from elsewhere.
const REDIRECTS_MAX: usize = 5;
/// What is read of an answer that says no.
const MESSAGE_MAX: usize = 64 << 10;

/// One repository on one endpoint.
pub(super) struct Session {
    client: Client,
    endpoint: String,
    /// The origin of the endpoint. Its credentials are used, and only there or at a realm that it names.
    home: Origin,
    /// Its host and port as they are written, which is how credentials are looked up.
    host: String,
    reference: Reference,
    credentials: Credentials,
    /// The `Authorization` header that worked last.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Session {
    /// `None` if the endpoint is not an address of a registry.
    pub(super) fn new(
        client: &Client,
        endpoint: &str,
        reference: &Reference,
        credentials: &Credentials,
    ) -> Option<Self> {
        let uri: Uri = endpoint.parse().ok()?;
        Some(Self {
            client: client.clone(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            home: Origin::of(&uri)?,
            host: uri.authority()?.to_string(),
            reference: reference.clone(),
            credentials: credentials.clone(),
            authorization: Mutex::default(),
        })
    }

    fn url(&self, kind: &str, what: &str) -> String {
        format!("{}/v2/{}/{kind}/{what}", self.endpoint, self.reference.repository)
    }

    /// A manifest by tag or digest, and its digest.
    pub(super) async fn manifest(&self, wanted: &str) -> Result<(Bytes, Digest), PullError> {
        let url = self.url("manifests", wanted);
        let response = self.get(&url, Some(MEDIA_TYPES), 0).await?;
        let bytes = collect(&url, response, DOCUMENT_MAX).await?;
        let digest = match Digest::parse(wanted) {
            Ok(expected) => {
                let mut hasher = expected.hasher();
                hasher.update(&bytes);
                let found = hasher.finish();
                if found != expected {
                    return Err(crate::store::StoreError::Digest { expected, found }.into());
                }
                found
            }
            Err(_) => Digest::of(&bytes),
        };
        Ok((bytes, digest))
    }

    /// Where a blob is.
    pub(super) fn blob_url(&self, digest: &Digest) -> String {
        self.url("blobs", digest.as_str())
    }

    /// A blob from some byte on.
    pub(super) async fn blob(&self, digest: &Digest, from: u64) -> Result<Response<Incoming>, PullError> {
        self.get(&self.blob_url(digest), None, from).await
    }

    async fn get(&self, url: &str, accept: Option<&str>, from: u64) -> Result<Response<Incoming>, PullError> {
        let mut asked_for_token = false;
        loop {
            let known = self
                .authorization
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let (response, answered) = self.follow(url, accept, from, known).await?;
            match response.status() {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => return Ok(response),
                StatusCode::UNAUTHORIZED if !asked_for_token => {
                    asked_for_token = true;
                    let Some(header) = self.answer(url, &response, &answered).await? else {
                        return Err(refused(url, response).await);
                    };
                    *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(header);
                }
                _ => return Err(refused(url, response).await),
            }
        }
    }

    /// Follows redirects, and says who gave the response. The `Authorization` header goes to the registry itself only.
    async fn follow(
        &self,
        url: &str,
        accept: Option<&str>,
        from: u64,
        authorization: Option<HeaderValue>,
    ) -> Result<(Response<Incoming>, Answered), PullError> {
        let mut uri: Uri = url.parse().map_err(|_| protocol(url, "is not an address"))?;
        let mut answered = Answered::at_home(&self.home);
        for _ in 0..=REDIRECTS_MAX {
            let mut request = Request::get(uri.clone());
            if let Some(accept) = accept {
                request = request.header(ACCEPT, accept);
            }
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(value) = authorization.clone().filter(|_| !answered.elsewhere) {
                request = request.header(AUTHORIZATION, value);
            }
            let response = self.client.send(request, Bytes::new(), &uri.to_string()).await?;
            if !response.status().is_redirection() {
                return Ok((response, answered));
            }
            let next = self.redirected(&uri, &response, &mut answered);
            uri = next.map_err(|why| protocol(url, why))?;
        }
        Err(protocol(url, "redirects again and again"))
    }

    /// Where a redirect leads, if the client may go there; else what completes a sentence about the URL.
    fn redirected(
        &self,
        uri: &Uri,
        response: &Response<Incoming>,
        answered: &mut Answered,
    ) -> Result<Uri, String> {
        let location = response.headers().get(LOCATION).and_then(|l| l.to_str().ok());
        let next = location.and_then(|l| join(uri, l));
        let next = next.and_then(|next| Origin::of(&next).map(|origin| (next, origin)));
        let (next, origin) = next.ok_or("redirects to nowhere")?;
        let allowed = self.client.plain().leads(&answered.by, &origin);
        allowed.map_err(|why| format!("redirects to {why}"))?;
        answered.moved(origin);
        Ok(next)
    }

    /// Answers a demand for credentials; `None` if there is no answer.
    async fn answer(
        &self,
        url: &str,
        response: &Response<Incoming>,
        answered: &Answered,
    ) -> Result<Option<HeaderValue>, PullError> {
        let demands = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let challenge = demands.filter_map(|h| h.to_str().ok()).find_map(challenge::parse);
        let Some(challenge) = challenge else {
            return Ok(None);
        };
        let decision = trust::decide(&self.home, answered, &challenge, self.client.plain());
        let decision = decision.map_err(|why| protocol(url, why))?;
        let secret = self.credentials.find(&self.host).await?;
        match (decision, challenge) {
            (Decision::Token(realm), Challenge::Bearer { service, scope, .. }) => {
                let usual = format!("repository:{}:pull", self.reference.repository);
                let scope = scope.unwrap_or(usual);
                let token = self
                    .token(&realm.to_string(), service.as_deref(), &scope, secret.as_ref())
                    .await?;
                Ok(header(&format!("Bearer {token}")))
            }
            _ => Ok(secret.as_ref().and_then(basic)),
        }
    }

    /// Fetches a token at a realm that [`trust::decide`] has let through. Redirects are not followed here.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        secret: Option<&Secret>,
    ) -> Result<String, PullError> {
        let mut query = vec![("scope", scope)];
        query.extend(service.map(|s| ("service", s)));
        let (request, body, shown) = match secret {
            Some(Secret::Identity(identity)) => {
                query.extend([
                    ("grant_type", "refresh_token"),
                    ("refresh_token", identity),
                    ("client_id", "remora"),
                ]);
                let request = Request::builder().method(Method::POST).uri(realm);
                let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
                (request, Bytes::from(encode(&query)), realm.to_owned())
            }
            other => {
                let joint = if realm.contains('?') { '&' } else { '?' };
                let shown = format!("{realm}{joint}{}", encode(&query));
                let mut request = Request::get(&shown);
                if let Some(value) = other.and_then(basic) {
                    request = request.header(AUTHORIZATION, value);
                }
                (request, Bytes::new(), shown)
            }
        };
        let response = self.client.send(request, body, &shown).await?;
        if response.status() != StatusCode::OK {
            return Err(refused(&shown, response).await);
        }
        let bytes = collect(&shown, response, DOCUMENT_MAX).await?;
        let answer: Token = serde_json::from_slice(&bytes).unwrap_or_default();
        let mut tokens = answer.token.into_iter().chain(answer.access_token);
        let token = tokens.find(|t| !t.is_empty());
        token.ok_or_else(|| PullError::Protocol {
            url: shown,
            why: "gave no token".to_owned(),
        })
    }
}

#[derive(Deserialize, Default)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Client {
    /// One request, with an end to the waiting.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
        url: &str,
    ) -> Result<Response<Incoming>, PullError> {
        let failed = |source: Box<dyn Error + Send + Sync>| PullError::Request {
            url: url.to_owned(),
            source,
        };
        let request = request.header(USER_AGENT, concat!("remora/", env!("CARGO_PKG_VERSION")));
        let request = request.body(Full::new(body)).map_err(|e| failed(e.into()))?;
        match tokio::time::timeout(PATIENCE, self.pool.request(request)).await {
            Err(_) => Err(failed("no answer in time".into())),
            Ok(Err(e)) => Err(failed(e.into())),
            Ok(Ok(response)) => Ok(response),
        }
    }
}

pub(super) fn protocol(url: &str, why: impl Into<String>) -> PullError {
    PullError::Protocol {
        url: url.to_owned(),
        why: why.into(),
    }
}

fn header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn basic(secret: &Secret) -> Option<HeaderValue> {
    let Secret::Password { user, password } = secret else {
        return None;
    };
    header(&format!(
        "Basic {}",
        STANDARD.encode(format!("{user}:{password}"))
    ))
}

/// Form encoding.
fn encode(pairs: &[(&str, &str)]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
                text.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// A whole address from what a redirect says.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    if location.contains("://") {
        return location.parse().ok();
    }
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let path = if location.starts_with("//") {
        return format!("{scheme}:{location}").parse().ok();
    } else if location.starts_with('/') {
        location.to_owned()
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{folder}/{location}")
    };
    format!("{scheme}://{authority}{path}").parse().ok()
}

/// A body as a whole, with an end to its size and to the waiting.
async fn collect<B: Received>(url: &str, response: Response<B>, limit: u64) -> Result<Bytes, PullError> {
    let too_large = || PullError::Protocol {
        url: url.to_owned(),
        why: format!("sends more than {limit} bytes"),
    };
    let mut body = response.into_body();
    if body.size_hint().lower() > limit {
        return Err(too_large());
    }
    let mut all = BytesMut::new();
    while let Some(data) = next(url, &mut body).await? {
        all.extend_from_slice(&data);
        if u64::try_from(all.len()).unwrap_or(u64::MAX) > limit {
            return Err(too_large());
        }
    }
    Ok(all.freeze())
}

/// The body of a response.
pub(super) trait Received:
    Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin
{
}
impl<B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin> Received for B {}

/// The next piece of a body.
pub(super) async fn next(url: &str, body: &mut impl Received) -> Result<Option<Bytes>, PullError> {
    let failed = |source: Box<dyn Error + Send + Sync>| PullError::Request {
        url: url.to_owned(),
        source,
    };
    loop {
        match tokio::time::timeout(PATIENCE, body.frame()).await {
            Err(_) => return Err(failed("the data stopped coming".into())),
            Ok(None) => return Ok(None),
            Ok(Some(Err(e))) => return Err(failed(e.into())),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

#[derive(Deserialize, Default)]
struct Refusal {
    #[serde(default)]
    errors: Vec<Reason>,
}

#[derive(Deserialize, Default)]
struct Reason {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// An answer that says no, with what it says about it.
async fn refused(url: &str, response: Response<impl Received>) -> PullError {
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Ok(Some(data)) = next(url, &mut body).await {
        text.extend_from_slice(&data);
        if text.len() > MESSAGE_MAX {
            break;
        }
    }
    let refusal: Refusal = serde_json::from_slice(&text).unwrap_or_default();
    let reasons = refusal.errors.into_iter().take(3);
    let reasons = reasons.map(|r| if r.message.is_empty() { r.code } else { r.message });
    let message = reasons.collect::<Vec<_>>().join("; ");
    PullError::Status {
        url: url.to_owned(),
        status,
        message: message.chars().filter(|c| !c.is_control()).take(300).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::{Frame, SizeHint};
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    #[test]
    fn redirects_of_every_kind() {
        let base: Uri = "https://a.example/v2/x/blobs/y".parse().unwrap();
        for (location, result) in [
            ("https://cdn.example/z?q=1", "https://cdn.example/z?q=1"),
            ("//cdn.example/z", "https://cdn.example/z"),
            ("/other", "https://a.example/other"),
            ("next", "https://a.example/v2/x/blobs/next"),
        ] {
            assert_eq!(join(&base, location).unwrap().to_string(), result);
        }
        assert!(join(&base, "http://[bad").is_none());
    }

    #[test]
    fn queries() {
        let text = encode(&[("scope", "repository:a/b:pull"), ("service", "x y&z")]);
        assert_eq!(text, "scope=repository%3Aa%2Fb%3Apull&service=x%20y%26z");
    }

    /// Pieces of a body that says nothing of its size, and how many of them were taken.
    struct Pieces {
        left: usize,
        piece: Bytes,
        taken: Arc<AtomicUsize>,
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            self.taken.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(Some(Ok(Frame::data(self.piece.clone()))))
        }
    }

    fn pieces(count: usize, piece: impl Into<Bytes>) -> (Response<Pieces>, Arc<AtomicUsize>) {
        let (piece, taken) = (piece.into(), Arc::default());
        let body = Pieces {
            left: count,
            piece,
            taken: Arc::clone(&taken),
        };
        (Response::new(body), taken)
    }

    #[tokio::test]
    async fn a_document_has_an_end_whether_or_not_its_size_is_said() {
        let said = |size: usize| Response::new(Full::new(Bytes::from(vec![0; size])));
        assert_eq!(collect("u", said(100), 100).await.unwrap().len(), 100);
        assert!(matches!(
            collect("u", said(101), 100).await,
            Err(PullError::Protocol { .. })
        ));
        let piece = || vec![0; 30];
        assert_eq!(collect("u", pieces(3, piece()).0, 90).await.unwrap().len(), 90);
        // Pieces do not end at the limit.
        let (endless, taken) = pieces(usize::MAX, piece());
        assert!(matches!(
            collect("u", endless, 100).await,
            Err(PullError::Protocol { .. })
        ));
        assert_eq!(taken.load(Ordering::Relaxed), 4);
    }

    /// A body that says its size is refused before it is read.
    #[tokio::test]
    async fn a_document_that_is_too_large_is_not_read() {
        struct Sized(Pieces);
        impl Body for Sized {
            type Data = Bytes;
            type Error = Infallible;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                Pin::new(&mut self.0).poll_frame(context)
            }

            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(self.0.left as u64 * self.0.piece.len() as u64)
            }
        }
        for (count, expected) in [(4, 4), (5, 0)] {
            let (response, taken) = pieces(count, vec![0; 25]);
            let outcome = collect("u", response.map(Sized), 100).await;
            assert_eq!(outcome.is_ok(), count == 4);
            assert_eq!(taken.load(Ordering::Relaxed), expected);
        }
    }

    #[tokio::test]
    async fn an_answer_that_says_no_is_read_as_far_as_a_message_goes() {
        let text = br#"{"errors": [{"code": "DENIED", "message": "no"}, {"code": "OTHER"}]}"#;
        let message = |error: PullError| match error {
            PullError::Status { message, .. } => message,
            other => panic!("{other}"),
        };
        let (response, _) = pieces(1, &text[..]);
        assert_eq!(message(refused("u", response).await), "no; OTHER");
        // Space around it comes in further pieces.
        let (response, taken) = pieces(3, vec![b' '; 1000]);
        refused("u", response).await;
        assert_eq!(taken.load(Ordering::Relaxed), 3);
        let (exact, taken) = pieces(usize::MAX, vec![b' '; MESSAGE_MAX / 2]);
        refused("u", exact).await;
        assert_eq!(
            taken.load(Ordering::Relaxed),
            3,
            "one byte more than the limit ends it"
        );
        let (endless, taken) = pieces(usize::MAX, vec![b' '; 1000]);
        refused("u", endless).await;
        assert_eq!(taken.load(Ordering::Relaxed), MESSAGE_MAX / 1000 + 1);
    }
}
