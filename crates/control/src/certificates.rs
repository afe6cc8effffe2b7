//! Istio's certificate service on our authority.

use crate::token::{Authenticator, caller};
use remora_mtls::{Authority, AuthorityError};
use remora_xds::proto::certificate::istio_certificate_service_server::IstioCertificateService;
use remora_xds::proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tonic::{Request, Response, Status};

pub(crate) struct Certificates {
    pub(crate) authority: Arc<RwLock<Authority>>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) usual_life: Duration,
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let id = caller(&*self.authenticator, request.metadata()).await?;
        let asked = request.into_inner();
        let life = match u64::try_from(asked.validity_duration) {
            Ok(0) => self.usual_life,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                return Err(Status::invalid_argument(
                    "a certificate cannot live for less than no time",
                ));
            }
        };
        let authority = self.authority.read().unwrap_or_else(PoisonError::into_inner);
        // istio: what the request names is ignored, the caller decides the identity.
        let issued = authority
            .issue(&asked.csr, &id, life, SystemTime::now())
            .map_err(|error| status(&error))?;
        Ok(Response::new(IstioCertificateResponse {
            cert_chain: vec![issued.leaf, issued.roots],
        }))
    }
}

fn status(error: &AuthorityError) -> Status {
    match error {
        AuthorityError::Request(_) | AuthorityError::TooLong { .. } => {
            Status::invalid_argument(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}
