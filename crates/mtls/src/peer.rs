//! The peer certificate of an open connection, verified again while the connection is in use.

use crate::certificate::Leaf;
use crate::verify::{Expected, Verifier, canonical};
use crate::{PeerError, Roots, SpiffeId, TrustDomains, provider};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use webpki::KeyUsage;

/// Which end of a connection a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerRole {
    /// It opened the connection.
    Client,
    /// It accepted the connection.
    Server,
}

impl PeerRole {
    fn usage(self) -> KeyUsage {
        match self {
            Self::Client => KeyUsage::client_auth(),
            Self::Server => KeyUsage::server_auth(),
        }
    }
}

/// The certificate that a peer presented in its handshake.
#[derive(Debug)]
pub struct PeerCertificate {
    id: SpiffeId,
    role: PeerRole,
    leaf: Leaf,
    chain: Vec<CertificateDer<'static>>,
    /// The roots that the chain was last verified with.
    trusted_by: Mutex<Arc<Roots>>,
}

impl PeerCertificate {
    /// From a handshake that was verified with `roots`. A resumed session brings the certificate of its first handshake
    /// and is not verified again by the TLS library, so the dates are checked here.
    pub(crate) fn new(
        certificates: Option<&[CertificateDer<'_>]>,
        role: PeerRole,
        domains: &TrustDomains,
        roots: Arc<Roots>,
        now: SystemTime,
    ) -> Result<Self, PeerError> {
        let certificates = certificates.unwrap_or_default();
        let leaf = Leaf::read(certificates.first().ok_or(PeerError::NoCertificate)?)?;
        if !leaf.valid_at(now) {
            return Err(PeerError::Expired);
        }
        let owned = |der: &CertificateDer<'_>| der.clone().into_owned();
        Ok(Self {
            id: canonical(domains, &leaf.id)?,
            role,
            leaf,
            chain: certificates.iter().map(owned).collect(),
            trusted_by: Mutex::new(roots),
        })
    }

    /// SPIFFE id of the peer, mapped to our own trust domain.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// When the certificate expires.
    pub fn not_after(&self) -> SystemTime {
        self.leaf.not_after
    }

    pub(crate) fn check_dates(&self, now: SystemTime) -> Result<(), PeerError> {
        if self.leaf.valid_at(now) {
            Ok(())
        } else {
            Err(PeerError::Expired)
        }
    }

    /// Verifies the chain again if the roots have changed since the last verification. Uses the start of the
    /// certificate's validity as the time, because [`check_dates`](Self::check_dates) checks the dates.
    pub(crate) fn check_roots(&self, roots: &Arc<Roots>, domains: &TrustDomains) -> Result<(), PeerError> {
        let mut trusted_by = self.trusted_by.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&trusted_by, roots) || *trusted_by == *roots {
            return Ok(());
        }
        let (leaf, intermediates) = self.chain.split_first().ok_or(PeerError::NoCertificate)?;
        let since = self
            .leaf
            .not_before
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let verifier = Verifier::new(
            Arc::clone(roots),
            domains.clone(),
            Expected::AnyWorkload,
            &provider::provider(),
        );
        verifier.verify(
            leaf,
            intermediates,
            UnixTime::since_unix_epoch(since),
            self.role.usage(),
        )?;
        *trusted_by = Arc::clone(roots);
        Ok(())
    }
}
