//! Carries a [`delta::Client`] over gRPC: dials, talks, dials again. Also asks the authority for certificates.
//!
//! The caller brings the dialling (plain, TLS, another namespace) and the token, both asked anew for every
//! connection, so that exchanged roots and tokens are picked up. What was received stays in force while
//! disconnected. Waiting between attempts grows from 10 ms to 15 s and starts again after a stream that brought something
//! and lasted: a control plane that breaks off after each first answer is not asked in a hurry.

use crate::delta::{self, Received};
use crate::proto::certificate::IstioCertificateRequest;
use crate::proto::certificate::istio_certificate_service_client::IstioCertificateServiceClient;
use crate::proto::discovery::DeltaDiscoveryRequest;
use crate::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::wishes;
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

const SHORTEST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// A stream that lives so long was no mistake.
const LASTING: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the start of an answer on a new stream; large meshes take their time.
const STREAM_TIMEOUT: Duration = Duration::from_mins(1);
/// A silent control plane is noticed after this and as much again.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Bytes of a message that are accepted by default. The first answer of a mesh is one message: 100,000 workloads are
/// about 51 MB of it. More than that of a control plane that is hostile or broken would only cost memory.
pub const LARGEST_MESSAGE: usize = 128 << 20;

/// A stream of bytes in both directions.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Opens a connection to the control plane.
pub type Dial =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Bytes>>> + Send>> + Send + Sync>;

/// Gives the token to show, read anew each time; `None` where none is needed.
pub type Token = Arc<dyn Fn() -> io::Result<Option<String>> + Send + Sync>;

/// A control plane and how to reach it.
#[derive(Clone)]
pub struct ControlPlane {
    uri: Uri,
    dial: Dial,
    token: Token,
    headers: MetadataMap,
    signer: String,
    behalf: String,
    pub(crate) largest_message: usize,
}

/// What happens on the way, for logs and readiness.
#[derive(Debug)]
pub enum Event {
    /// A stream is open.
    Connected,
    /// Everything wanted has been received once.
    InSync,
    /// Resources were refused.
    Refused(Vec<(String, String)>),
    /// The stream ended or could not be opened.
    Disconnected(ClientError),
}

/// Something asked for by name, on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// From now on.
    Subscribe {
        /// Type URL.
        type_url: String,
        /// Name or alias.
        name: String,
    },
    /// No longer.
    Unsubscribe {
        /// Type URL.
        type_url: String,
        /// As it was subscribed.
        name: String,
    },
}

/// A conversation with the control plane failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The token cannot be read or used.
    #[error("read the token for the control plane")]
    Token(#[source] io::Error),
    /// The control plane refused or broke off.
    #[error("talk to the control plane")]
    Status(#[source] Box<Status>),
    /// A message is larger than this client accepts. It was not read, and trying again will hardly help.
    #[error("the control plane sent a message that is larger than the limit (REMORA_XDS_MAX_MESSAGE_BYTES)")]
    TooLarge(#[source] Box<Status>),
    /// It ended the stream.
    #[error("the control plane ended the stream")]
    Ended,
    /// It took the stream and said nothing.
    #[error("the control plane did not answer in time")]
    Slow,
    /// An answer without certificate and roots.
    #[error("the authority answered with {count} certificates, at least 2 are needed")]
    Chain {
        /// How many.
        count: usize,
    },
}

impl From<Box<Status>> for ClientError {
    fn from(status: Box<Status>) -> Self {
        // tonic has no type of its own for this.
        let is_limit = status.code() == Code::OutOfRange && status.message().contains("length too large");
        if is_limit {
            Self::TooLarge(status)
        } else {
            Self::Status(status)
        }
    }
}

impl ControlPlane {
    /// `uri` is what is asked for (`http://istiod.istio-system.svc:15012`); `dial` decides where that is and how
    /// it is protected.
    pub fn new(uri: Uri, dial: Dial, token: Token) -> Self {
        Self {
            uri,
            dial,
            token,
            headers: MetadataMap::new(),
            signer: String::new(),
            behalf: String::new(),
            largest_message: LARGEST_MESSAGE,
        }
    }

    /// Accepts messages of so many bytes, instead of [`LARGEST_MESSAGE`].
    #[must_use]
    pub fn with_largest_message(mut self, bytes: usize) -> Self {
        self.largest_message = bytes;
        self
    }

    /// Sends these with everything, beside the token.
    #[must_use]
    pub fn with_headers(mut self, headers: MetadataMap) -> Self {
        self.headers = headers;
        self
    }

    /// Asks for certificates of another identity, as a proxy of a node does for workloads that run beside it.
    #[must_use]
    pub fn on_behalf_of(mut self, identity: &str) -> Self {
        identity.clone_into(&mut self.behalf);
        self
    }

    /// Asks for certificates of this signer, where an authority has several.
    #[must_use]
    pub fn with_signer(mut self, signer: &str) -> Self {
        signer.clone_into(&mut self.signer);
        self
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from(self.uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
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

    /// Sends a certificate request (PEM). Gives the chain, leaf first, and the root bundle.
    pub async fn certify(&self, csr: String, life: Duration) -> Result<(String, String), ClientError> {
        let seconds = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        let mut request = self.authorised(IstioCertificateRequest {
            csr,
            validity_duration: seconds,
            metadata: wishes::of([(wishes::SIGNER, &self.signer), (wishes::BEHALF, &self.behalf)]),
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

    /// Keeps `state` up to date for ever. `apply` is given what came and answers with what it refuses.
    ///
    /// Cancel safety: may be dropped at any moment; nothing is half applied.
    pub async fn follow(
        &self,
        mut state: delta::Client,
        mut apply: impl FnMut(&Received) -> Vec<(String, String)>,
        mut demands: mpsc::Receiver<Demand>,
        mut notice: impl FnMut(Event),
    ) -> Infallible {
        let mut wait = SHORTEST_WAIT;
        loop {
            let mut answered = false;
            let started = tokio::time::Instant::now();
            let mut watched = |received: &Received| {
                answered = true;
                apply(received)
            };
            let ended = self
                .stream(&mut state, &mut watched, &mut demands, &mut notice)
                .await;
            state.disconnected();
            notice(Event::Disconnected(ended));
            wait = if answered && started.elapsed() >= LASTING {
                SHORTEST_WAIT
            } else {
                (wait * 2).min(LONGEST_WAIT)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// One stream until its end.
    async fn stream(
        &self,
        state: &mut delta::Client,
        apply: &mut impl FnMut(&Received) -> Vec<(String, String)>,
        demands: &mut mpsc::Receiver<Demand>,
        notice: &mut impl FnMut(Event),
    ) -> ClientError {
        let (requests, outgoing) = mpsc::channel(16);
        let opening = state.connected();
        let request = match self.authorised(ReceiverStream::new(outgoing)) {
            Ok(request) => request,
            Err(error) => return error,
        };
        let mut service = AggregatedDiscoveryServiceClient::new(self.channel())
            .max_decoding_message_size(self.largest_message);
        // The first requests go out while the stream is being opened: some servers answer only then.
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
        notice(Event::Connected);
        let mut open_demands = true;
        loop {
            let reply = tokio::select! {
                message = incoming.message() => match message {
                    Ok(Some(response)) => converse(state, response, apply, notice),
                    Ok(None) => return ClientError::Ended,
                    Err(status) => return Box::new(status).into(),
                },
                demand = demands.recv(), if open_demands => {
                    open_demands = demand.is_some();
                    demand.and_then(|demand| pass_on(state, &demand))
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

fn pass_on(state: &mut delta::Client, demand: &Demand) -> Option<DeltaDiscoveryRequest> {
    match demand {
        Demand::Subscribe { type_url, name } => state.subscribe(type_url, name),
        Demand::Unsubscribe { type_url, name } => state.unsubscribe(type_url, name),
    }
}

fn converse(
    state: &mut delta::Client,
    response: crate::proto::discovery::DeltaDiscoveryResponse,
    apply: &mut impl FnMut(&Received) -> Vec<(String, String)>,
    notice: &mut impl FnMut(Event),
) -> Option<DeltaDiscoveryRequest> {
    let before = state.in_sync();
    let received = state.receive(response)?;
    let refused = apply(&received);
    let answer = state.answer(&received, &refused);
    if !refused.is_empty() {
        notice(Event::Refused(refused));
    }
    if !before && state.in_sync() {
        notice(Event::InSync);
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
