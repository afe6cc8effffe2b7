//! The identity of a workload over time: the certificate in force, and the TLS configurations made from it.
//!
//! [`Identity::install`] replaces the certificate for connections that start afterwards; open connections keep the one
//! they were made with. A certificate is never removed: it stays in force until a better one is installed.

use crate::config::{self, AlpnProfile, ConfigError};
use crate::{
    Clock, Credentials, PeerCertificate, PeerError, PeerRole, Roots, SpiffeId, TrustDomains, peer_identity,
};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

/// Cached client configurations; the cache is cleared when it is full.
const MAX_CLIENT_CONFIGS: usize = 1024;

/// Client configurations by the expected identities and the protocol.
type Clients = HashMap<(Vec<SpiffeId>, AlpnProfile), Arc<ClientConfig>>;

/// The workload's own identity, with its current certificate.
#[derive(Debug)]
pub struct Identity {
    domains: TrustDomains,
    clock: Clock,
    current: RwLock<Arc<Generation>>,
}

/// A certificate and the configurations made from it; replaced as a whole.
#[derive(Debug)]
struct Generation {
    number: u64,
    credentials: Arc<Credentials>,
    hbone: Arc<ServerConfig>,
    istio: Arc<ServerConfig>,
    clients: Mutex<Clients>,
}

/// New credentials were refused; the previous ones stay in force.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The certificate names another workload.
    #[error("install a certificate of {found} for {own}")]
    Identity {
        /// The workload's own id.
        own: SpiffeId,
        /// The id in the new certificate.
        found: SpiffeId,
    },
    /// They expire before the ones in force, which are still valid.
    #[error("the new certificate of {own} expires before the one in force")]
    Older {
        /// The workload's own id.
        own: SpiffeId,
    },
    /// No TLS configuration could be made from them.
    #[error("prepare the new certificate")]
    Config(#[from] ConfigError),
}

impl Identity {
    /// Starts with the first credentials.
    pub fn new(domains: TrustDomains, credentials: Credentials) -> Result<Self, ConfigError> {
        Self::with_clock(domains, credentials, Clock::default())
    }

    /// Starts with the first credentials; peer certificates are verified against this clock.
    pub fn with_clock(
        domains: TrustDomains,
        credentials: Credentials,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        let first = Generation::new(1, &domains, credentials, &clock)?;
        Ok(Self {
            domains,
            clock,
            current: RwLock::new(Arc::new(first)),
        })
    }

    /// Uses `credentials` from now on. The roots may change, the id may not. Returns the new generation number.
    pub fn install(&self, credentials: Credentials, now: SystemTime) -> Result<u64, InstallError> {
        let before = self.generation();
        let own = before.credentials.id();
        if credentials.id() != own {
            return Err(InstallError::Identity {
                own: own.clone(),
                found: credentials.id().clone(),
            });
        }
        let same_roots = credentials.roots == before.credentials.roots;
        let (until, before_until) = (
            credentials.chain.not_after(),
            before.credentials.chain.not_after(),
        );
        // With new roots even a shorter certificate is accepted: peers may soon stop trusting the old root.
        if same_roots && until < before_until && now < before_until {
            return Err(InstallError::Older { own: own.clone() });
        }
        let number = before.number + 1;
        let next = Arc::new(Generation::new(number, &self.domains, credentials, &self.clock)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(number)
    }

    /// The workload's own SPIFFE id.
    pub fn id(&self) -> SpiffeId {
        self.generation().credentials.id().clone()
    }

    /// Our trust domain and its aliases.
    pub fn domains(&self) -> &TrustDomains {
        &self.domains
    }

    /// Current time of this identity's clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// SPIFFE id of the peer of a finished handshake; see [`peer_identity`].
    pub fn peer(&self, certificates: Option<&[CertificateDer<'_>]>) -> Result<SpiffeId, PeerError> {
        peer_identity(certificates, &self.domains, self.now())
    }

    /// The peer's certificate from a finished handshake, to be verified again later with [`check`](Self::check).
    /// `roots` are those in force before the handshake began.
    pub fn peer_certificate(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
        role: PeerRole,
        roots: Arc<Roots>,
    ) -> Result<PeerCertificate, PeerError> {
        PeerCertificate::new(certificates, role, &self.domains, roots, self.now())
    }

    /// Whether a peer would be trusted now: its certificate is valid and chains to a current root.
    pub fn check(&self, peer: &PeerCertificate) -> Result<(), PeerError> {
        peer.check_dates(self.now())?;
        self.check_roots(peer)
    }

    /// Whether a peer's certificate chains to a current root, regardless of its dates.
    pub fn check_roots(&self, peer: &PeerCertificate) -> Result<(), PeerError> {
        peer.check_roots(&self.roots(), &self.domains)
    }

    /// The roots in force.
    pub fn roots(&self) -> Arc<Roots> {
        Arc::clone(&self.generation().credentials.roots)
    }

    /// The credentials in force.
    pub fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.generation().credentials)
    }

    /// Number of the current certificate: 1 for the first one, incremented by every rotation.
    pub fn generation_number(&self) -> u64 {
        self.generation().number
    }

    /// For accepting connections. Accepts every workload of our trust domain.
    pub fn server(&self, profile: AlpnProfile) -> Arc<ServerConfig> {
        let generation = self.generation();
        Arc::clone(match profile {
            AlpnProfile::Hbone => &generation.hbone,
            AlpnProfile::Istio => &generation.istio,
        })
    }

    /// For connecting to a workload that must be one of `expected`. With an empty list no server is accepted.
    pub fn client(
        &self,
        expected: &[SpiffeId],
        profile: AlpnProfile,
    ) -> Result<Arc<ClientConfig>, ConfigError> {
        let generation = self.generation();
        let mut ids: Vec<SpiffeId> = expected
            .iter()
            .map(|id| self.domains.canonical(id).unwrap_or_else(|| id.clone()))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let mut clients = generation.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ids, profile);
        if let Some(known) = clients.get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(config::client(
            &generation.credentials,
            &self.domains,
            key.0.clone(),
            profile,
            &self.clock,
        )?);
        if clients.len() >= MAX_CLIENT_CONFIGS {
            clients.clear();
        }
        clients.insert(key, Arc::clone(&made));
        Ok(made)
    }

    fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generation {
    fn new(
        number: u64,
        domains: &TrustDomains,
        credentials: Credentials,
        clock: &Clock,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            number,
            hbone: Arc::new(config::server(&credentials, domains, AlpnProfile::Hbone, clock)?),
            istio: Arc::new(config::server(&credentials, domains, AlpnProfile::Istio, clock)?),
            credentials: Arc::new(credentials),
            clients: Mutex::default(),
        })
    }
}
