//! Discovery streams whose messages are forwarded without decoding: bytes in, bytes out.
//!
//! [`Streams`] is the server, [`ControlPlane::open`] the client. Both variants of aggregated discovery (ADS) are
//! recognised by their paths; the caller interprets the messages.

use crate::client::{ClientError, ControlPlane, LARGEST_MESSAGE};
use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

const WORLD_PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The gRPC service that has both methods.
pub(crate) const SERVICE: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
pub(crate) const DELTA_PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The xDS variant of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world (SotW): a response holds every subscribed resource.
    Sotw,
    /// Delta (incremental): a response holds what changed.
    Delta,
}

impl Protocol {
    fn path(self) -> &'static str {
        match self {
            Self::Sotw => WORLD_PATH,
            Self::Delta => DELTA_PATH,
        }
    }
}

/// Messages of the server on a stream.
pub type Responses = mpsc::Receiver<Result<Bytes, Status>>;

/// Handles a new stream; returns the server's messages on it.
pub type Accept = Arc<dyn Fn(Protocol, Request<Streaming<Bytes>>) -> Responses + Send + Sync>;

impl ControlPlane {
    /// Opens a stream of undecoded messages.
    pub async fn open(
        &self,
        protocol: Protocol,
        requests: mpsc::Receiver<Bytes>,
    ) -> Result<Streaming<Bytes>, ClientError> {
        let request = self.authorised(ReceiverStream::new(requests))?;
        let grpc = tonic::client::Grpc::new(self.channel());
        let mut grpc = grpc.max_decoding_message_size(self.largest_message);
        let unreachable = |error: tonic::transport::Error| Box::new(Status::from_error(error.into()));
        grpc.ready().await.map_err(unreachable)?;
        let path = PathAndQuery::from_static(protocol.path());
        let response = grpc.streaming(request, path, Opaque).await.map_err(Box::new)?;
        Ok(response.into_inner())
    }
}

/// A discovery service that passes every stream to one function.
#[derive(Clone)]
pub struct Streams(Accept);

impl Streams {
    /// Passes every stream to `accept`.
    pub fn new(accept: Accept) -> Self {
        Self(accept)
    }
}

impl NamedService for Streams {
    const NAME: &'static str = SERVICE;
}

/// Future of a gRPC call.
pub(crate) type Answer<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Response to a call of an unknown method.
pub(crate) fn unknown(path: &str) -> Answer<http::Response<tonic::body::Body>, Infallible> {
    let refusal = Status::unimplemented(format!("no method {path}"));
    Box::pin(async move { Ok(refusal.into_http()) })
}

impl<B> tower_service::Service<http::Request<B>> for Streams
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answer<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let protocol = match request.uri().path() {
            WORLD_PATH => Protocol::Sotw,
            DELTA_PATH => Protocol::Delta,
            other => return unknown(other),
        };
        let accept = Accepting(Arc::clone(&self.0), protocol);
        Box::pin(async move {
            let mut grpc = Grpc::new(Opaque).max_decoding_message_size(LARGEST_MESSAGE);
            Ok(grpc.streaming(accept, request).await)
        })
    }
}

struct Accepting(Accept, Protocol);

impl StreamingService<Bytes> for Accepting {
    type Response = Bytes;
    type ResponseStream = ReceiverStream<Result<Bytes, Status>>;
    type Future = Answer<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let responses = (self.0)(self.1, request);
        Box::pin(async move { Ok(Response::new(ReceiverStream::new(responses))) })
    }
}

/// Codec that leaves messages undecoded.
#[derive(Debug, Clone, Copy)]
struct Opaque;

impl Codec for Opaque {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Opaque {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Opaque {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
