//! A small certificate authority: short-lived certificates for workloads, one for the control plane, and rotation of
//! its own root. At every step of the rotation, workloads with old and new certificates trust each other.
//!
//! It issues for the identity that its caller has authenticated; of a request only the public key is used.

use crate::{PrivateKey, SpiffeId};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use std::fmt;
use std::time::{Duration, SystemTime};

/// Certificates start this much in the past, because clocks in a mesh differ.
// istio: two minutes.
const BACKDATE: Duration = Duration::from_mins(2);

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    active: Signer,
    next: Option<Signer>,
    /// PEM of roots that are still trusted but no longer sign.
    retired: Vec<String>,
    max_lifetime: Duration,
}

/// A root certificate with its key.
#[derive(Debug)]
struct Signer {
    pem: String,
    key: PrivateKey,
    not_after: SystemTime,
}

/// The complete state of an authority as PEM. It holds private keys: only the control plane may read the place where
/// it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityState {
    /// Certificate of the root that signs.
    pub certificate: String,
    /// Key of the root that signs.
    pub key: String,
    /// Certificate and key of the next root, while one is being introduced.
    pub next: Option<(String, String)>,
    /// Former roots that are still trusted; may be empty.
    pub retired: String,
}

impl fmt::Debug for AuthorityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are never printed.
        f.debug_struct("AuthorityState")
            .field("certificate", &self.certificate)
            .field("next", &self.next.as_ref().map(|(certificate, _)| certificate))
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

/// Progress of a root rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootRotation {
    /// No rotation: one root is trusted and signs.
    None,
    /// The new root is trusted already; the old one still signs.
    Introduced,
    /// The new root signs; the old one is still trusted.
    Switched,
}

/// An issued certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM, the leaf only.
    pub leaf: String,
    /// PEM of every trusted root.
    pub roots: String,
    /// When the certificate expires.
    pub not_after: SystemTime,
}

/// Why the authority could not complete an operation.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A root certificate could not be generated or read.
    #[error("prepare a root certificate")]
    Root(#[source] rcgen::Error),
    /// The key of a root could not be generated or read.
    #[error("prepare the key of a root certificate")]
    Key(#[from] crate::KeyError),
    /// The request is malformed or not signed by its key.
    #[error("read the certificate request")]
    Request(#[source] rcgen::Error),
    /// The requested lifetime exceeds the maximum.
    #[error("a certificate of {asked:?} was asked for, at most {longest:?} are given")]
    TooLong {
        /// Requested lifetime.
        asked: Duration,
        /// Maximum lifetime.
        longest: Duration,
    },
    /// The root expires before the certificate would become valid.
    #[error("the root certificate has expired")]
    RootExpired,
    /// Signing failed.
    #[error("issue a certificate for {name}")]
    Issue {
        /// SPIFFE id or DNS names of the certificate.
        name: String,
        /// Error of the certificate library.
        #[source]
        source: rcgen::Error,
    },
    /// A rotation step was called out of order.
    #[error("the exchange of the root is at {found:?}, this step needs {needed:?}")]
    Rotation {
        /// Current state of the rotation.
        found: RootRotation,
        /// State that this step starts from.
        needed: RootRotation,
    },
}

impl Authority {
    /// Default maximum lifetime of a certificate.
    // istio: MAX_WORKLOAD_CERT_TTL.
    pub const DEFAULT_MAX_LIFETIME: Duration = Duration::from_hours(90 * 24);

    /// A new self-signed root, valid from `now` for `life`.
    pub fn generate(organisation: &str, now: SystemTime, life: Duration) -> Result<Self, AuthorityError> {
        Ok(Self::with(Signer::generate(organisation, now, life)?))
    }

    /// A root from PEM files.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        Ok(Self::with(Signer::from_pem(certificate, key)?))
    }

    /// Restores an authority from its [state](Self::state), also in the middle of a root rotation.
    pub fn from_state(state: &AuthorityState) -> Result<Self, AuthorityError> {
        let mut authority = Self::from_pem(&state.certificate, &state.key)?;
        if let Some((certificate, key)) = &state.next {
            authority.next = Some(Signer::from_pem(certificate, key)?);
        }
        if !state.retired.trim().is_empty() {
            crate::certificate::certificates(&state.retired)
                .map_err(|_| AuthorityError::Root(rcgen::Error::CouldNotParseCertificate))?;
            authority.retired.push(state.retired.clone());
        }
        Ok(authority)
    }

    /// Everything that must survive a restart.
    pub fn state(&self) -> AuthorityState {
        let (certificate, key) = self.to_pem();
        AuthorityState {
            certificate,
            key,
            next: self
                .next
                .as_ref()
                .map(|next| (next.pem.clone(), next.key.to_pem())),
            retired: self.retired.concat(),
        }
    }

    /// Takes over the roots of another authority and keeps its own maximum lifetime.
    pub fn replace_roots_with(&mut self, other: Self) {
        *self = Self {
            max_lifetime: self.max_lifetime,
            ..other
        };
    }

    /// When the signing root expires.
    pub fn not_after(&self) -> SystemTime {
        self.active.not_after
    }

    fn with(active: Signer) -> Self {
        Self {
            active,
            next: None,
            retired: Vec::new(),
            max_lifetime: Self::DEFAULT_MAX_LIFETIME,
        }
    }

    /// Refuses requests for a longer lifetime from now on.
    pub fn limit_lifetime(&mut self, max_lifetime: Duration) {
        self.max_lifetime = max_lifetime;
    }

    /// PEM of every root that workloads should trust now.
    pub fn roots(&self) -> String {
        let introduced = self.next.iter().map(|s| s.pem.as_str());
        std::iter::once(self.active.pem.as_str())
            .chain(introduced)
            .chain(self.retired.iter().map(String::as_str))
            .collect()
    }

    /// Certificate and key of the signing root as PEM. The key is secret: only the control plane may read it.
    pub fn to_pem(&self) -> (String, String) {
        (self.active.pem.clone(), self.active.key.to_pem())
    }

    /// Signs the public key of a request for `id`. The names in the request are ignored.
    pub fn issue(
        &self,
        request_pem: &str,
        id: &SpiffeId,
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let request =
            CertificateSigningRequestParams::from_pem(request_pem).map_err(AuthorityError::Request)?;
        let failed = |source| AuthorityError::Issue {
            name: id.to_string(),
            source,
        };
        let uri = id.as_str().try_into().map_err(failed)?;
        self.sign(
            &request.public_key,
            vec![SanType::URI(uri)],
            id.as_str(),
            life,
            now,
        )
    }

    /// Issues a certificate for a server that clients verify by DNS name (the control plane itself).
    pub fn issue_server(
        &self,
        key: &PrivateKey,
        names: &[String],
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let shown = names.join(", ");
        let sans = names
            .iter()
            .map(|name| match name.parse() {
                Ok(address) => Ok(SanType::IpAddress(address)),
                Err(_) => name.as_str().try_into().map(SanType::DnsName),
            })
            .collect::<Result<_, _>>()
            .map_err(|source| AuthorityError::Issue {
                name: shown.clone(),
                source,
            })?;
        self.sign(key.pair(), sans, &shown, life, now)
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        names: Vec<SanType>,
        shown: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        if life > self.max_lifetime {
            return Err(AuthorityError::TooLong {
                asked: life,
                longest: self.max_lifetime,
            });
        }
        let not_after = (now + life).min(self.active.not_after);
        if not_after <= now {
            return Err(AuthorityError::RootExpired);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.not_before = (now - BACKDATE).into();
        params.not_after = not_after.into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let certificate = self
            .active
            .issuer()
            .and_then(|issuer| params.signed_by(key, &issuer))
            .map_err(|source| AuthorityError::Issue {
                name: shown.to_owned(),
                source,
            })?;
        Ok(Issued {
            leaf: certificate.pem(),
            roots: self.roots(),
            not_after,
        })
    }

    /// Progress of the root rotation.
    pub fn rotation(&self) -> RootRotation {
        match (&self.next, self.retired.is_empty()) {
            (Some(_), _) => RootRotation::Introduced,
            (None, false) => RootRotation::Switched,
            (None, true) => RootRotation::None,
        }
    }

    /// First step: workloads start to trust a new root. Call [`switch_root`](Self::switch_root) when every workload has
    /// received it.
    pub fn introduce_root(
        &mut self,
        organisation: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<(), AuthorityError> {
        self.require_rotation(RootRotation::None)?;
        self.next = Some(Signer::generate(organisation, now, life)?);
        Ok(())
    }

    /// Second step: the new root signs. Call [`retire_root`](Self::retire_root) when the last certificate of the old
    /// root has been replaced.
    pub fn switch_root(&mut self) -> Result<(), AuthorityError> {
        self.require_rotation(RootRotation::Introduced)?;
        if let Some(next) = self.next.take() {
            let old = std::mem::replace(&mut self.active, next);
            self.retired.push(old.pem);
        }
        Ok(())
    }

    /// Last step: the old root is no longer trusted.
    pub fn retire_root(&mut self) -> Result<(), AuthorityError> {
        self.require_rotation(RootRotation::Switched)?;
        self.retired.clear();
        Ok(())
    }

    fn require_rotation(&self, needed: RootRotation) -> Result<(), AuthorityError> {
        let found = self.rotation();
        if found == needed {
            Ok(())
        } else {
            Err(AuthorityError::Rotation { found, needed })
        }
    }
}

impl Signer {
    fn generate(organisation: &str, now: SystemTime, life: Duration) -> Result<Self, AuthorityError> {
        let key = PrivateKey::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, organisation);
        params.not_before = (now - BACKDATE).into();
        let not_after = now + life;
        params.not_after = not_after.into();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params
            .self_signed(key.pair())
            .map_err(AuthorityError::Root)?
            .pem();
        Ok(Self { pem, key, not_after })
    }

    fn from_pem(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let key = PrivateKey::from_pem(key)?;
        let unreadable = || AuthorityError::Root(rcgen::Error::CouldNotParseCertificate);
        let der = crate::certificate::certificates(certificate).map_err(|_| unreadable())?;
        let first = der.first().ok_or_else(unreadable)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(first).map_err(|_| unreadable())?;
        let ours = key.pair().subject_public_key_info();
        if !parsed.is_ca() || parsed.public_key().raw != ours {
            return Err(unreadable());
        }
        let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default();
        Ok(Self {
            pem: certificate.to_owned(),
            key,
            not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        })
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_pem(&self.pem, self.key.pair())
    }
}
