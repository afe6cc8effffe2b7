//! Carries a [`delta::Client`] over gRPC and reconnects with backoff. Also requests certificates from the authority.
//!
//! The caller supplies the connector (plain, TLS, another namespace) and the token. Both are called for every
//! connection, so that rotated roots and tokens are picked up. Received resources stay in force while disconnected.
//! The backoff grows from 10 ms to 15 s. It is reset only after a stream that brought a response and lasted, so that a
//! control plane that closes every stream after its first response is not flooded with reconnects.

use crate::csr_metadata::{self, CERT_SIGNER, IMPERSONATED_IDENTITY};
use crate::delta::{self, Received};
use crate::proto::certificate::IstioCertificateRequest;
use crate::proto::certificate::istio_certificate_service_client::IstioCertificateServiceClient;
use crate::proto::discovery::DeltaDiscoveryRequest;
use crate::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use http::Uri;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(15);
/// A stream that lives this long resets the backoff.
const STABLE_STREAM_AGE: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until a new stream is accepted; a control plane of a large mesh may be slow.
const STREAM_TIMEOUT: Duration = Duration::from_mins(1);
/// HTTP/2 ping interval. An unresponsive control plane is detected after the interval plus the ping timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Default limit for the size of a message, in bytes. The first response of a mesh is one message: 100,000 workloads
/// are about 51 MB. The limit bounds the memory that a hostile or broken control plane can use up.
pub const LARGEST_MESSAGE: usize = 128 << 20;

/// A bidirectional byte stream.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Opens a connection to the control plane.
pub type Dial =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Bytes>>> + Send>> + Send + Sync>;

/// Returns the bearer token, read again for every connection; `None` where none is needed.
pub type Token = Arc<dyn Fn() -> io::Result<Option<String>> + Send + Sync>;

/// A control plane: how to connect to it and what to send with every call.
#[derive(Clone)]
pub struct ControlPlane {
    uri: Uri,
    dial: Dial,
    token: Token,
    headers: MetadataMap,
    signer: String,
    impersonated: String,
    pub(crate) largest_message: usize,
}

/// Events of the discovery stream, for logs and readiness.
#[derive(Debug)]
pub enum Event {
    /// A stream is open.
    Connected,
    /// Every type that is subscribed in full has been received once.
    InSync,
    /// Resources were refused: names and reasons.
    Refused(Vec<(String, String)>),
    /// The stream ended or could not be opened.
    Disconnected(ClientError),
}

/// A change to the on-demand subscriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// Subscribe to a resource.
    Subscribe {
        /// Type URL of the resource.
        type_url: String,
        /// Name or alias of the resource.
        name: String,
    },
    /// Unsubscribe from a resource.
    Unsubscribe {
        /// Type URL of the resource.
        type_url: String,
        /// The name or alias that was subscribed.
        name: String,
    },
}

/// A call or stream to the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The token cannot be read or used.
    #[error("read the token for the control plane")]
    Token(#[source] io::Error),
    /// The control plane returned an error, or the connection failed.
    #[error("talk to the control plane")]
    Status(#[source] Box<Status>),
    /// A message is larger than this client accepts. It was not read, and a retry is unlikely to help.
    #[error("the control plane sent a message that is larger than the limit (REMORA_XDS_MAX_MESSAGE_BYTES)")]
    TooLarge(#[source] Box<Status>),
    /// The control plane closed the stream.
    #[error("the control plane ended the stream")]
    Ended,
    /// The control plane did not accept the stream in time.
    #[error("the control plane did not answer in time")]
    Slow,
    /// The response of the authority lacks the certificate or the roots.
    #[error("the authority answered with {count} certificates, at least 2 are needed")]
    Chain {
        /// Number of PEM entries in the response.
        count: usize,
    },
}

impl From<Box<Status>> for ClientError {
    fn from(status: Box<Status>) -> Self {
        // tonic has no separate error for this, so the message text decides.
        let is_limit = status.code() == Code::OutOfRange && status.message().contains("length too large");
        if is_limit {
            Self::TooLarge(status)
        } else {
            Self::Status(status)
        }
    }
}

impl ControlPlane {
    /// `uri` is the URI of the requests (`http://istiod.istio-system.svc:15012`); `dial` decides which address is
    /// connected to, and whether with TLS.
    pub fn new(uri: Uri, dial: Dial, token: Token) -> Self {
        Self {
            uri,
            dial,
            token,
            headers: MetadataMap::new(),
            signer: String::new(),
            impersonated: String::new(),
            largest_message: LARGEST_MESSAGE,
        }
    }

    /// Accepts messages of up to `bytes`, instead of [`LARGEST_MESSAGE`].
    #[must_use]
    pub fn with_largest_message(mut self, bytes: usize) -> Self {
        self.largest_message = bytes;
        self
    }

    /// Sends these headers with every call, in addition to the token.
    #[must_use]
    pub fn with_headers(mut self, headers: MetadataMap) -> Self {
        self.headers = headers;
        self
    }

    /// Requests certificates for another identity, as a node proxy does for the workloads on its node.
    #[must_use]
    pub fn on_behalf_of(mut self, identity: &str) -> Self {
        identity.clone_into(&mut self.impersonated);
        self
    }

    /// Requests certificates from this signer, where an authority has several.
    #[must_use]
    pub fn with_signer(mut self, signer: &str) -> Self {
        signer.clone_into(&mut self.signer);
        self
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from(self.uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_while_idle(true)
            .connect_with_connector_lazy(Dialer(Arc::clone(&self.dial)))
    }

    pub(crate) fn authorised<T>(&self, message: T) -> Result<Request<T>, ClientError> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        if let Some(token) = (self.token)().map_err(ClientError::Token)? {
            let value = format!("Bearer {}", token.trim())
                .parse()
                .map_err(|_| ClientError::Token(io::Error::other("a token has printable characters only")))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }

    /// Sends a certificate signing request (PEM). Returns the chain, leaf first, and the root bundle.
    pub async fn certify(&self, csr: String, life: Duration) -> Result<(String, String), ClientError> {
        let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        let mut request = self.authorised(IstioCertificateRequest {
            csr,
            validity_duration: seconds,
            metadata: csr_metadata::build([
                (CERT_SIGNER, &self.signer),
                (IMPERSONATED_IDENTITY, &self.impersonated),
            ]),
        })?;
        request.set_timeout(CERTIFICATE_TIMEOUT);
        let answer = IstioCertificateServiceClient::new(self.channel())
            .create_certificate(request)
            .await
            .map_err(Box::new)?;
        let mut chain = answer.into_inner().cert_chain;
        let count = chain.len();
        match chain.pop() {
            Some(roots) if count > 1 => Ok((chain.concat(), roots)),
            _ => Err(ClientError::Chain { count }),
        }
    }

    /// Keeps `state` up to date indefinitely. `apply` receives the changes and returns the resources it refuses, with
    /// reasons.
    ///
    /// Cancel safety: may be dropped at any moment; nothing is half applied.
    pub async fn follow(
        &self,
        mut state: delta::Client,
        mut apply: impl FnMut(&Received) -> Vec<(String, String)>,
        mut demands: mpsc::Receiver<Demand>,
        mut on_event: impl FnMut(Event),
    ) -> Infallible {
        let mut backoff = MIN_BACKOFF;
        loop {
            let mut answered = false;
            let started = tokio::time::Instant::now();
            let mut watched = |received: &Received| {
                answered = true;
                apply(received)
            };
            let ended = self
                .stream(&mut state, &mut watched, &mut demands, &mut on_event)
                .await;
            state.disconnected();
            on_event(Event::Disconnected(ended));
            backoff = if answered && started.elapsed() >= STABLE_STREAM_AGE {
                MIN_BACKOFF
            } else {
                (backoff * 2).min(MAX_BACKOFF)
            };
            tokio::time::sleep(backoff).await;
        }
    }

    /// Runs one stream until it ends.
    async fn stream(
        &self,
        state: &mut delta::Client,
        apply: &mut impl FnMut(&Received) -> Vec<(String, String)>,
        demands: &mut mpsc::Receiver<Demand>,
        on_event: &mut impl FnMut(Event),
    ) -> ClientError {
        let (requests, outgoing) = mpsc::channel(16);
        let opening = state.connected();
        let request = match self.authorised(ReceiverStream::new(outgoing)) {
            Ok(request) => request,
            Err(error) => return error,
        };
        let mut service = AggregatedDiscoveryServiceClient::new(self.channel())
            .max_decoding_message_size(self.largest_message);
        // The first requests go out while the stream is being opened: some servers accept the stream only then.
        let send_opening = async {
            for request in opening {
                if requests.send(request).await.is_err() {
                    return;
                }
            }
        };
        let opening = async { tokio::join!(service.delta_aggregated_resources(request), send_opening) };
        let mut incoming = match tokio::time::timeout(STREAM_TIMEOUT, opening).await {
            Ok((Ok(response), ())) => response.into_inner(),
            Ok((Err(status), ())) => return Box::new(status).into(),
            Err(_) => return ClientError::Slow,
        };
        on_event(Event::Connected);
        let mut open_demands = true;
        loop {
            let reply = tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(response)) => handle_response(state, response, apply, on_event),
                    Ok(None) => return ClientError::Ended,
                    Err(status) => return Box::new(status).into(),
                },
                demand = demands.recv(), if open_demands => {
                    open_demands = demand.is_some();
                    demand.and_then(|demand| apply_demand(state, &demand))
                }
            };
            if let Some(reply) = reply
                && requests.send(reply).await.is_err()
            {
                return ClientError::Ended;
            }
        }
    }
}

fn apply_demand(state: &mut delta::Client, demand: &Demand) -> Option<DeltaDiscoveryRequest> {
    match demand {
        Demand::Subscribe { type_url, name } => state.subscribe(type_url, name),
        Demand::Unsubscribe { type_url, name } => state.unsubscribe(type_url, name),
    }
}

fn handle_response(
    state: &mut delta::Client,
    response: crate::proto::discovery::DeltaDiscoveryResponse,
    apply: &mut impl FnMut(&Received) -> Vec<(String, String)>,
    on_event: &mut impl FnMut(Event),
) -> Option<DeltaDiscoveryRequest> {
    let before = state.in_sync();
    let received = state.receive(response)?;
    let refused = apply(&received);
    let answer = state.answer(&received, &refused);
    if !refused.is_empty() {
        on_event(Event::Refused(refused));
    }
    if !before && state.in_sync() {
        on_event(Event::InSync);
    }
    Some(answer)
}

struct Dialer(Dial);

impl tower_service::Service<Uri> for Dialer {
    type Response = TokioIo<Box<dyn Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connection = (self.0)();
        Box::pin(async move { connection.await.map(TokioIo::new) })
    }
}
