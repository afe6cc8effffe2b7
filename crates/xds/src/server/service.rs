//! Discovery as a gRPC service whose responses are written from shared resources.
//!
//! Generated code would need a separate message for every response, which copies the mesh for every client that
//! connects. Here a response is a list of references until its bytes are written into the stream's buffer.

use super::Discovery;
use crate::delta::Response;
use crate::proto::discovery::DeltaDiscoveryRequest;
use crate::raw::{Answer, DELTA_PATH, SERVICE, unknown};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic_prost::ProstDecoder;

/// Size limit of a request, in bytes. A client whose list of resource versions does not fit sends none, and receives
/// everything again.
// istio: the same limit.
const MAX_REQUEST_BYTES: usize = 4 << 20;

/// [`Discovery`] as a gRPC service.
#[derive(Clone)]
pub struct Service(pub(super) Arc<Discovery>);

impl NamedService for Service {
    const NAME: &'static str = SERVICE;
}

impl<B> tower_service::Service<http::Request<B>> for Service
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
        if request.uri().path() != DELTA_PATH {
            return unknown(request.uri().path());
        }
        let opening = Opening(Arc::clone(&self.0));
        Box::pin(async move {
            let mut grpc = Grpc::new(Shared).max_decoding_message_size(MAX_REQUEST_BYTES);
            Ok(grpc.streaming(opening, request).await)
        })
    }
}

/// Handler of a new stream.
struct Opening(Arc<Discovery>);

impl StreamingService<DeltaDiscoveryRequest> for Opening {
    type Response = Response;
    type ResponseStream = ReceiverStream<Result<Response, Status>>;
    type Future = Answer<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<tonic::Streaming<DeltaDiscoveryRequest>>) -> Self::Future {
        let discovery = Arc::clone(&self.0);
        Box::pin(async move { discovery.open(request).await.map(tonic::Response::new) })
    }
}

/// Codec: encodes responses from shared resources, decodes requests as usual.
struct Shared;

impl Codec for Shared {
    type Encode = Response;
    type Decode = DeltaDiscoveryRequest;
    type Encoder = Self;
    type Decoder = ProstDecoder<DeltaDiscoveryRequest>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for Shared {
    type Item = Response;
    type Error = Status;

    fn encode(&mut self, response: Response, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(response.encoded_len());
        response.write(buffer);
        Ok(())
    }
}
