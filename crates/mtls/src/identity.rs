//! The identity of a workload over time: the certificate in force, and the configurations made from it.
//!
//! [`Identity::install`] exchanges the certificate for everything that starts afterwards; open connections keep
//! what they were made with. Nothing is ever taken away: a certificate stays until a better one comes.

use crate::config::{self, ConfigError, Wire};
use crate::{
    Clock, Credentials, PeerCertificate, PeerError, PeerRole, Roots, SpiffeId, TrustDomains, peer_identity,
};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

/// Configurations kept for different expectations before the store starts again.
const CLIENT_CONFIGS: usize = 1024;

/// By whom they expect and what they speak.
type Clients = HashMap<(Vec<SpiffeId>, Wire), Arc<ClientConfig>>;

/// Who we are, and how we show it.
#[derive(Debug)]
pub struct Identity {
    domains: TrustDomains,
    clock: Clock,
    current: RwLock<Arc<Generation>>,
}

/// One certificate's time.
#[derive(Debug)]
struct Generation {
    number: u64,
    credentials: Arc<Credentials>,
    hbone: Arc<ServerConfig>,
    istio: Arc<ServerConfig>,
    clients: Mutex<Clients>,
}

/// New credentials were not taken; the ones before stay.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// They name somebody else.
    #[error("install a certificate of {found} for {own}")]
    Identity {
        /// Who we are.
        own: SpiffeId,
        /// Whom the new certificate names.
        found: SpiffeId,
    },
    /// They end before the ones in force while those are still good.
    #[error("the new certificate of {own} expires before the one in force")]
    Older {
        /// Whose.
        own: SpiffeId,
    },
    /// No configuration could be made from them.
    #[error("prepare the new certificate")]
    Config(#[from] ConfigError),
}

impl Identity {
    /// Starts with the first credentials.
    pub fn new(domains: TrustDomains, credentials: Credentials) -> Result<Self, ConfigError> {
        Self::with_clock(domains, credentials, Clock::default())
    }

    /// Starts with the first credentials; certificates of peers are judged by this clock.
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

    /// Uses `credentials` from now on. Roots may differ freely; the id may not.
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
        // With new roots even a shorter certificate is progress: the old one may soon be believed by nobody.
        if same_roots && until < before_until && now < before_until {
            return Err(InstallError::Older { own: own.clone() });
        }
        let number = before.number + 1;
        let next = Arc::new(Generation::new(number, &self.domains, credentials, &self.clock)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(number)
    }

    /// Who we are.
    pub fn id(&self) -> SpiffeId {
        self.generation().credentials.id().clone()
    }

    /// Our trust domain and its aliases.
    pub fn domains(&self) -> &TrustDomains {
        &self.domains
    }

    /// What time it is for us.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Who is at the other end of a finished handshake; see [`peer_identity`].
    pub fn peer(&self, certificates: Option<&[CertificateDer<'_>]>) -> Result<SpiffeId, PeerError> {
        peer_identity(certificates, &self.domains, self.now())
    }

    /// What the peer proved in a finished handshake, to be looked at again with [`check`](Self::check). `roots` are
    /// those in force before the handshake began.
    pub fn peer_certificate(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
        role: PeerRole,
        roots: Arc<Roots>,
    ) -> Result<PeerCertificate, PeerError> {
        PeerCertificate::new(certificates, role, &self.domains, roots, self.now())
    }

    /// Whether a peer would be believed now: its certificate is valid and leads to a root in force.
    pub fn check(&self, peer: &PeerCertificate) -> Result<(), PeerError> {
        peer.check_dates(self.now())?;
        self.check_roots(peer)
    }

    /// Whether a peer's certificate leads to a root in force, whatever the time is.
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

    /// Counts exchanges: 1 for the first certificate.
    pub fn generation_number(&self) -> u64 {
        self.generation().number
    }

    /// For accepting connections. Believes every workload of our trust domain.
    pub fn server(&self, wire: Wire) -> Arc<ServerConfig> {
        let generation = self.generation();
        Arc::clone(match wire {
            Wire::Hbone => &generation.hbone,
            Wire::Istio => &generation.istio,
        })
    }

    /// For connecting to a workload that must be one of `expected`. Empty means: nobody is accepted.
    pub fn client(&self, expected: &[SpiffeId], wire: Wire) -> Result<Arc<ClientConfig>, ConfigError> {
        let generation = self.generation();
        let mut ids: Vec<SpiffeId> = expected
            .iter()
            .map(|id| self.domains.canonical(id).unwrap_or_else(|| id.clone()))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let mut clients = generation.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ids, wire);
        if let Some(known) = clients.get(&key) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(config::client(
            &generation.credentials,
            &self.domains,
            key.0.clone(),
            wire,
            &self.clock,
        )?);
        if clients.len() >= CLIENT_CONFIGS {
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
            hbone: Arc::new(config::server(&credentials, domains, Wire::Hbone, clock)?),
            istio: Arc::new(config::server(&credentials, domains, Wire::Istio, clock)?),
            credentials: Arc::new(credentials),
            clients: Mutex::default(),
        })
    }
}
