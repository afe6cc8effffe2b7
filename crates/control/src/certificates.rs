//! Istio's certificate service on our authority.

use crate::token::{Authenticator, Unidentified, caller, shown};
use remora_http::Connection;
use remora_mtls::{Authority, AuthorityError, SpiffeId};
use remora_xds::csr_metadata;
use remora_xds::proto::certificate::istio_certificate_service_server::IstioCertificateService;
use remora_xds::proto::certificate::{IstioCertificateRequest, IstioCertificateResponse};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

pub(crate) struct Certificates {
    pub(crate) authority: Arc<RwLock<Authority>>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) usual_life: Duration,
    /// Accounts, `NAMESPACE/ACCOUNT`, that may ask for certificates of workloads on their own node.
    pub(crate) node_proxies: Vec<String>,
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let connection = request.extensions().get::<Connection>();
        let id = self
            .owner(request.metadata(), connection, request.get_ref())
            .await?;
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
        // istio: what the certificate request names is ignored, the caller decides the identity.
        let issued = authority
            .issue(&asked.csr, &id, life, SystemTime::now())
            .map_err(|error| status(&error))?;
        Ok(Response::new(IstioCertificateResponse {
            cert_chain: vec![issued.leaf, issued.roots],
        }))
    }
}

impl Certificates {
    /// Whom the certificate names: the caller, or a workload for which it may speak.
    async fn owner(
        &self,
        metadata: &MetadataMap,
        connection: Option<&Connection>,
        asked: &IstioCertificateRequest,
    ) -> Result<SpiffeId, Status> {
        let caller = caller(&*self.authenticator, metadata, connection).await?;
        let Some(text) = csr_metadata::get(asked, csr_metadata::IMPERSONATED_IDENTITY) else {
            return Ok(caller);
        };
        let workload = spoken_for(&caller, text, &self.node_proxies).map_err(Status::permission_denied)?;
        let beside = self.authenticator.is_beside(shown(metadata)?, &workload).await;
        match beside {
            Ok(()) => Ok(workload),
            Err(Unidentified::Refused(why)) => Err(Status::permission_denied(format!(
                "{caller} may not speak for {workload}: {why}"
            ))),
            Err(why @ Unidentified::Unavailable(_)) => Err(Status::unavailable(why.to_string())),
        }
    }
}

/// The workload, if this caller may speak for workloads at all; else why not.
fn spoken_for(caller: &SpiffeId, text: &str, node_proxies: &[String]) -> Result<SpiffeId, String> {
    let trusted = caller
        .service_account()
        .is_some_and(|(namespace, account)| node_proxies.contains(&format!("{namespace}/{account}")));
    if !trusted {
        return Err(format!(
            "{caller} may not ask for certificates of others: it is no account of node proxies"
        ));
    }
    let workload: SpiffeId = text
        .parse()
        .map_err(|error| format!("{text:?} is nobody's identity: {error}"))?;
    if workload.trust_domain() != caller.trust_domain() || workload.service_account().is_none() {
        return Err(format!("{workload} is no service account of this mesh"));
    }
    Ok(workload)
}

fn status(error: &AuthorityError) -> Status {
    match error {
        AuthorityError::Request(_) | AuthorityError::TooLong { .. } => {
            Status::invalid_argument(error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Certificates, Unidentified, spoken_for};
    use crate::token::Authenticator;
    use prost_types::value::Kind;
    use prost_types::{Struct, Value};
    use remora_mtls::{Authority, Chain, PrivateKey, SpiffeId};
    use remora_xds::csr_metadata::IMPERSONATED_IDENTITY;
    use remora_xds::proto::certificate::IstioCertificateRequest;
    use remora_xds::proto::certificate::istio_certificate_service_server::IstioCertificateService as _;
    use std::sync::{Arc, RwLock};
    use std::time::{Duration, SystemTime};
    use tonic::{Code, Request, Status};

    const HOUR: Duration = Duration::from_hours(1);
    const NODE: &str = "spiffe://td/ns/istio-system/sa/ztunnel";
    const CART: &str = "spiffe://td/ns/shop/sa/cart";

    /// A token is the identity of its owner. Beside the proxy of the node runs the cart only.
    struct Open;

    #[tonic::async_trait]
    impl Authenticator for Open {
        async fn identify(&self, token: &str) -> Result<SpiffeId, Unidentified> {
            token
                .parse()
                .map_err(|_| Unidentified::Refused("no identity".to_owned()))
        }

        async fn is_beside(&self, _: &str, workload: &SpiffeId) -> Result<(), Unidentified> {
            match workload.as_str() {
                CART => Ok(()),
                "spiffe://td/ns/shop/sa/slow" => Err(Unidentified::Unavailable("no answer".to_owned())),
                _ => Err(Unidentified::Refused("it runs elsewhere".to_owned())),
            }
        }
    }

    /// The certificate that an owner of a token gets, for so many seconds, on behalf of another identity if one is given.
    async fn certified(token: &str, seconds: i64, behalf: Option<&str>) -> Result<Chain, Status> {
        let mut authority = Authority::generate("test", SystemTime::now(), HOUR * 100).unwrap();
        authority.limit_lifetime(HOUR * 24);
        let service = Certificates {
            authority: Arc::new(RwLock::new(authority)),
            authenticator: Arc::new(Open),
            usual_life: HOUR * 2,
            node_proxies: vec!["istio-system/ztunnel".to_owned()],
        };
        // What the request names does not matter.
        let key = PrivateKey::generate().unwrap();
        let csr = key
            .request(&"spiffe://td/ns/bank/sa/till".parse().unwrap())
            .unwrap();
        let wish = |text: &str| {
            let kind = Some(Kind::StringValue(text.to_owned()));
            Struct {
                fields: [(IMPERSONATED_IDENTITY.to_owned(), Value { kind })].into(),
            }
        };
        let mut request = Request::new(IstioCertificateRequest {
            csr,
            validity_duration: seconds,
            metadata: behalf.map(wish),
        });
        let shown = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", shown);
        let response = service.create_certificate(request).await?.into_inner();
        assert_eq!(response.cert_chain.len(), 2, "the certificate and the roots");
        Ok(Chain::from_pem(&response.cert_chain[0]).unwrap())
    }

    #[tokio::test]
    async fn a_certificate_names_the_owner_of_the_token_and_has_the_requested_lifetime() {
        for (requested, life) in [(0, HOUR * 2), (7200 * 2, HOUR * 4)] {
            let before = SystemTime::now() - Duration::from_secs(1);
            let chain = certified(CART, requested, None).await.unwrap();
            assert_eq!(chain.id().as_str(), CART);
            let ends = chain.not_after();
            assert!(
                before + life <= ends && ends <= SystemTime::now() + life,
                "{requested}"
            );
        }
    }

    #[tokio::test]
    async fn what_cannot_be_issued_is_the_callers_mistake_and_says_so() {
        let code =
            async |token: &str, seconds, behalf| certified(token, seconds, behalf).await.unwrap_err().code();
        assert_eq!(code("nonsense", 0, None).await, Code::Unauthenticated);
        assert_eq!(code(CART, -1, None).await, Code::InvalidArgument);
        assert_eq!(code(CART, 25 * 3600, None).await, Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_proxy_of_a_node_gets_a_certificate_for_a_workload_beside_it_only() {
        let chain = certified(NODE, 0, Some(CART)).await.unwrap();
        assert_eq!(chain.id().as_str(), CART);
        for (token, workload, expected) in [
            (NODE, "spiffe://td/ns/shop/sa/web", Code::PermissionDenied),
            (NODE, "spiffe://td/ns/shop/sa/slow", Code::Unavailable),
            (NODE, "spiffe://other/ns/shop/sa/cart", Code::PermissionDenied),
            ("spiffe://td/ns/shop/sa/web", CART, Code::PermissionDenied),
        ] {
            let refused = certified(token, 0, Some(workload)).await.unwrap_err();
            assert_eq!(refused.code(), expected, "{token} for {workload}: {refused}");
        }
    }

    #[test]
    fn only_proxies_of_nodes_speak_for_others_and_only_of_their_mesh() {
        let accounts = ["istio-system/ztunnel".to_owned()];
        let ask = |caller: &str, workload: &str| {
            spoken_for(&caller.parse().unwrap(), workload, &accounts).map(|id| id.to_string())
        };
        let node = "spiffe://td/ns/istio-system/sa/ztunnel";
        let cart = "spiffe://td/ns/shop/sa/cart";
        assert_eq!(ask(node, cart).unwrap(), cart);
        assert!(
            ask(cart, "spiffe://td/ns/bank/sa/till")
                .unwrap_err()
                .contains("node proxies")
        );
        assert!(
            ask("spiffe://td/ns/shop/sa/ztunnel", cart).is_err(),
            "the namespace counts"
        );
        assert!(
            ask(node, "spiffe://other/ns/shop/sa/cart")
                .unwrap_err()
                .contains("this mesh")
        );
        assert!(
            ask(node, "spiffe://td/something")
                .unwrap_err()
                .contains("this mesh")
        );
        assert!(ask(node, "cart").unwrap_err().contains("nobody's identity"));
    }
}
