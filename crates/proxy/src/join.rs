//! Joins a mesh: gets a certificate, keeps it fresh, follows discovery.
//!
//! The first certificate is asked for until there is one. Later ones are asked for at half of their life; while the
//! authority is away, or answers nonsense, the one in force stays and is asked for again with growing waits. What
//! discovery said stays in force while the control plane is away.

use crate::mesh::Mesh;
use remora_mtls::{
    Chain, Clock, ConfigError, Credentials, CredentialsError, Identity, InstallError, KeyError, PrivateKey,
    Roots, RootsError, SpiffeId, TrustDomains,
};
use remora_xds::client::{ClientError, ControlPlane, Event};
use remora_xds::delta::{Client, Interest, Received};
use remora_xds::proto::discovery::Node;
use remora_xds::types::{ADDRESS, AUTHORIZATION};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

// istio: retries of the certificate client.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// No certificate this time.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// A file that should hold a part of it cannot be read.
    #[error("read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No key, or none that can be read.
    #[error("make or read the key")]
    Key(#[from] KeyError),
    /// The control plane did not give one.
    #[error("ask for a certificate")]
    Ask(#[from] ClientError),
    /// It gave something else.
    #[error("read the certificate")]
    Certificate(#[from] remora_mtls::CertificateError),
    /// It gave roots that are none.
    #[error("read the roots")]
    Roots(#[from] RootsError),
    /// It gave something that would not work.
    #[error("check the certificate")]
    Credentials(#[from] CredentialsError),
    /// It could not be prepared for use.
    #[error("prepare the certificate")]
    Config(#[from] ConfigError),
    /// The one in force is better.
    #[error("install the certificate")]
    Install(#[from] InstallError),
}

/// Something worth a line, or a word in readiness.
#[derive(Debug)]
pub enum Notice {
    /// A certificate is in force, until then.
    Certified(SystemTime),
    /// None was given; the one in force stays.
    NotCertified(CertifyError),
    /// About discovery.
    Discovery(Event),
}

/// Who wants to join, and how.
#[derive(Clone)]
pub struct Membership {
    /// Where certificates and discovery come from.
    pub control_plane: ControlPlane,
    /// Who we are.
    pub id: SpiffeId,
    /// Our trust domain and its aliases.
    pub domains: TrustDomains,
    /// How long a certificate is asked for; zero leaves it to the authority.
    pub life: Duration,
    /// How discovery knows us: `sidecar~IP~POD.NAMESPACE~NAMESPACE.svc.DOMAIN`, and what else it may decide by.
    pub node: Node,
}

impl Membership {
    async fn certify(&self, now: impl Fn() -> SystemTime) -> Result<Credentials, CertifyError> {
        let key = PrivateKey::generate()?;
        let request = key.request(&self.id)?;
        let (chain, roots) = self.control_plane.certify(request, self.life).await?;
        let (chain, roots) = (Chain::from_pem(&chain)?, Roots::from_pem(&roots)?);
        Ok(Credentials::new(&key, chain, roots, &self.id, now())?)
    }

    /// Asks until there is a certificate.
    pub async fn identity(&self, notice: &mut impl FnMut(Notice)) -> Identity {
        self.identity_by(&Clock::default(), notice).await
    }

    /// Asks until there is a certificate; this clock says what is valid, now and later.
    pub async fn identity_by(&self, clock: &Clock, notice: &mut impl FnMut(Notice)) -> Identity {
        let mut wait = SHORTEST_WAIT;
        loop {
            let made = self.certify(|| clock.now()).await.and_then(|credentials| {
                let until = credentials.chain().not_after();
                let identity = Identity::with_clock(self.domains.clone(), credentials, clock.clone())?;
                Ok((identity, until))
            });
            match made {
                Ok((identity, until)) => {
                    notice(Notice::Certified(until));
                    return identity;
                }
                Err(error) => notice(Notice::NotCertified(error)),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Keeps the certificate fresh for ever. `jitter`, between 0 and 1, moves the times so that pods that started
    /// together do not ask together.
    pub async fn stay_certified(
        &self,
        identity: &Identity,
        jitter: f64,
        notice: &mut impl FnMut(Notice),
    ) -> Infallible {
        let mut wait = SHORTEST_WAIT;
        loop {
            let due = identity.credentials().chain().renew_at(jitter);
            let left = due.duration_since(identity.now()).unwrap_or_default();
            // In portions, so that a clock that jumped is noticed.
            tokio::time::sleep(left.min(LONGEST_WAIT)).await;
            if left > LONGEST_WAIT {
                continue;
            }
            match self.renew(identity).await {
                Ok(until) => {
                    notice(Notice::Certified(until));
                    if identity.credentials().chain().renew_at(jitter) > identity.now() {
                        wait = SHORTEST_WAIT;
                        continue;
                    }
                    // Due again at once, by a clock that is wrong or a life that is too short: no reason to hurry.
                }
                Err(error) => notice(Notice::NotCertified(error)),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn renew(&self, identity: &Identity) -> Result<SystemTime, CertifyError> {
        let credentials = self.certify(|| identity.now()).await?;
        let until = credentials.chain().not_after();
        identity.install(credentials, identity.now())?;
        Ok(until)
    }

    /// Keeps the mesh up to date for ever.
    pub async fn follow(&self, mesh: &Mesh, notice: &mut impl FnMut(Notice)) -> Infallible {
        self.follow_from(self.wishes(), |received| mesh.apply(received), notice)
            .await
    }

    /// What is asked of discovery; whoever knows something already may say so.
    pub fn wishes(&self) -> Client {
        let mut state = Client::new(self.node.clone());
        state.want(ADDRESS, Interest::Everything);
        state.want(AUTHORIZATION, Interest::Everything);
        state
    }

    /// Follows discovery for ever from some state on. `apply` is given what came, and answers with what it refuses.
    pub async fn follow_from(
        &self,
        state: Client,
        apply: impl FnMut(&Received) -> Vec<(String, String)>,
        notice: &mut impl FnMut(Notice),
    ) -> Infallible {
        // Nothing is asked for by name: everything is wanted.
        let (_nobody, demands) = mpsc::channel(1);
        let tell = |event| notice(Notice::Discovery(event));
        self.control_plane.follow(state, apply, demands, tell).await
    }
}
