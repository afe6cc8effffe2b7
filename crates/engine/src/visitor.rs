//! Who calls pods for those outside: connections to published ports enter the mesh as a client with an identity of its
//! own, as through an ingress gateway. Pods that want certificates get one, policies can name it, access lines do.
//!
//! A thread in the node's network namespace carries them, because sockets belong to the namespace of the thread that
//! makes them.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use remora_control::Plane;
use remora_control::PlaneError;
use remora_mtls::{
    AuthorityError, CertificateError, Chain, ConfigError, Credentials, CredentialsError, Identity,
    InvalidSpiffeId, KeyError, PrivateKey, Roots, RootsError, SpiffeId, TrustDomains,
};
use remora_net::Namespace;
use remora_proxy::mesh::Mesh;
use remora_proxy::{Context, Limits, Listeners, Settings};
use tokio::sync::mpsc;

use crate::mesh::{LIFE, TRUST_DOMAIN};

/// The namespace of the account.
// istio: gateways are there.
pub const NAMESPACE: &str = "istio-system";
/// The account under which published ports call pods.
pub const ACCOUNT: &str = "remora-publish";

/// Published ports cannot join the mesh.
#[derive(Debug, thiserror::Error)]
pub enum VisitorError {
    /// A key.
    #[error("make a key")]
    Key(#[from] KeyError),
    /// The authority says no.
    #[error("issue a certificate")]
    Authority(#[from] AuthorityError),
    /// The control plane says no.
    #[error("use the certificate authority")]
    Plane(#[from] PlaneError),
    /// What was issued cannot be read.
    #[error("read the certificate")]
    Certificate(#[from] CertificateError),
    /// The roots cannot be read.
    #[error("read the root certificates")]
    Roots(#[from] RootsError),
    /// What was issued would not work.
    #[error("check the certificate")]
    Credentials(#[from] CredentialsError),
    /// It cannot be prepared for use.
    #[error("prepare the certificate")]
    Config(#[from] ConfigError),
    /// The name is none.
    #[error("make an identity")]
    Name(#[from] InvalidSpiffeId),
    /// A thread in the node's network.
    #[error("start a thread in the network of the run")]
    Thread(#[source] io::Error),
}

/// A connection, and where it is to go.
pub(crate) type Visit = (TcpStream, SocketAddr);

/// The client of the mesh behind all published ports. Its connections end with it.
#[derive(Debug)]
pub(crate) struct Visitor {
    mesh: Arc<Mesh>,
    visits: mpsc::UnboundedSender<Visit>,
}

impl Visitor {
    /// Joins the mesh of the run.
    pub(crate) fn begin(plane: Arc<Plane>, node: &Namespace) -> Result<Self, VisitorError> {
        let domains = TrustDomains::new::<&str>(TRUST_DOMAIN, &[])?;
        let identity = Arc::new(Identity::new(domains, credentials(&plane)?)?);
        let mesh = Arc::new(Mesh::default());
        let (visits, inbox) = mpsc::unbounded_channel();
        let node = node.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(VisitorError::Thread)?;
        let known = Arc::clone(&mesh);
        let work = move || {
            // Only a namespace that is gone cannot be entered, and with it everything these connections could reach.
            if node.enter().is_ok() {
                runtime.block_on(carry(&plane, identity, known, inbox));
            }
        };
        let thread = std::thread::Builder::new().name("publish".into());
        thread.spawn(work).map_err(VisitorError::Thread)?;
        Ok(Self { mesh, visits })
    }

    /// What the mesh is, to be kept up to date.
    pub(crate) fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Where connections are handed over.
    pub(crate) fn visits(&self) -> mpsc::UnboundedSender<Visit> {
        self.visits.clone()
    }
}

/// Carries connections until nobody can hand over any more.
async fn carry(
    plane: &Plane,
    identity: Arc<Identity>,
    mesh: Arc<Mesh>,
    mut inbox: mpsc::UnboundedReceiver<Visit>,
) {
    let settings = Settings {
        limits: Limits {
            // Nobody waits for the last ones.
            drain: Duration::ZERO,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let context = Arc::new(Context::new(Arc::clone(&identity), mesh, settings, |_| ()));
    let handing = async {
        while let Some((stream, destination)) = inbox.recv().await {
            // One that broke already needs no carrying.
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                tokio::spawn(remora_proxy::hand_over(Arc::clone(&context), stream, destination));
            }
        }
    };
    let serving = remora_proxy::serve(Arc::clone(&context), Listeners::default(), std::future::pending());
    tokio::select! {
        () = handing => {}
        () = serving => {}
        () = stay_certified(plane, &identity) => {}
    }
}

async fn stay_certified(plane: &Plane, identity: &Identity) {
    loop {
        tokio::time::sleep(LIFE / 2).await;
        // If it cannot be renewed the old one stays, and this is tried again in time or pods refuse it.
        if let Ok(next) = credentials(plane) {
            let _ = identity.install(next, identity.now());
        }
    }
}

fn credentials(plane: &Plane) -> Result<Credentials, VisitorError> {
    let id = SpiffeId::of_service_account(TRUST_DOMAIN, NAMESPACE, ACCOUNT)?;
    let key = PrivateKey::generate()?;
    let request = key.request(&id)?;
    let now = SystemTime::now();
    let issued = plane.with_authority(|authority| authority.issue(&request, &id, LIFE, now))??;
    let (chain, roots) = (Chain::from_pem(&issued.leaf)?, Roots::from_pem(&issued.roots)?);
    Ok(Credentials::new(&key, chain, roots, &id, now)?)
}
