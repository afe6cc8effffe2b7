//! A small certificate authority: short-lived certificates for workloads, one for the control plane, and the
//! exchange of its own root without a moment in which two honest workloads do not believe each other.
//!
//! It issues for the identity its caller has established; what a request asks for besides its key is ignored.

use crate::{PrivateKey, SpiffeId};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use std::fmt;
use std::time::{Duration, SystemTime};

/// Clocks of a mesh differ.
// istio: two minutes.
const BACKDATE: Duration = Duration::from_mins(2);

/// Signs certificates.
#[derive(Debug)]
pub struct Authority {
    active: Signer,
    next: Option<Signer>,
    /// PEM of roots that are believed but sign nothing any more.
    retired: Vec<String>,
    longest: Duration,
}

/// A root with its key.
#[derive(Debug)]
struct Signer {
    pem: String,
    key: PrivateKey,
    not_after: SystemTime,
}

/// All an authority is, as PEM: to be kept where only the control plane reads.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// The root that signs.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Certificate and key of the root that will sign.
    pub next: Option<(String, String)>,
    /// Roots that signed, and are still believed; may be empty.
    pub retired: String,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are never printed.
        f.debug_struct("Kept")
            .field("certificate", &self.certificate)
            .field("next", &self.next.as_ref().map(|(certificate, _)| certificate))
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

/// How far the exchange of the root has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootRotation {
    /// One root believed and signing.
    None,
    /// A second one is believed already; the first one still signs.
    Introduced,
    /// The second one signs; the first one is still believed.
    Switched,
}

/// A certificate for somebody.
#[derive(Debug, Clone)]
pub struct Issued {
    /// PEM, the leaf only.
    pub leaf: String,
    /// PEM of every root to believe.
    pub roots: String,
    /// When it ends.
    pub not_after: SystemTime,
}

/// The authority could not do it.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A root could not be made or read.
    #[error("prepare a root certificate")]
    Root(#[source] rcgen::Error),
    /// No key for a root.
    #[error("prepare the key of a root certificate")]
    Key(#[from] crate::KeyError),
    /// The request is malformed or not signed by its key.
    #[error("read the certificate request")]
    Request(#[source] rcgen::Error),
    /// Longer than allowed.
    #[error("a certificate of {asked:?} was asked for, at most {longest:?} are given")]
    TooLong {
        /// Wanted.
        asked: Duration,
        /// Allowed.
        longest: Duration,
    },
    /// The root ends before the certificate could begin.
    #[error("the root certificate has expired")]
    RootExpired,
    /// Signing failed.
    #[error("issue a certificate for {name}")]
    Issue {
        /// For whom.
        name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A step of a rotation out of turn.
    #[error("the exchange of the root is at {found:?}, this step needs {needed:?}")]
    Rotation {
        /// Where it is.
        found: RootRotation,
        /// Where it would have to be.
        needed: RootRotation,
    },
}

impl Authority {
    /// Longest certificate given unless said otherwise.
    // istio: MAX_WORKLOAD_CERT_TTL.
    pub const LONGEST: Duration = Duration::from_hours(90 * 24);

    /// A new self-signed root, valid from `now` for `life`.
    pub fn generate(organisation: &str, now: SystemTime, life: Duration) -> Result<Self, AuthorityError> {
        Ok(Self::with(Signer::generate(organisation, now, life)?))
    }

    /// A root from PEM files.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        Ok(Self::with(Signer::from_pem(certificate, key)?))
    }

    /// What was [kept](Self::kept), in the middle of an exchange of the root as well.
    pub fn from_kept(kept: &Kept) -> Result<Self, AuthorityError> {
        let mut authority = Self::from_pem(&kept.certificate, &kept.key)?;
        if let Some((certificate, key)) = &kept.next {
            authority.next = Some(Signer::from_pem(certificate, key)?);
        }
        if !kept.retired.trim().is_empty() {
            crate::certificate::certificates(&kept.retired)
                .map_err(|_| AuthorityError::Root(rcgen::Error::CouldNotParseCertificate))?;
            authority.retired.push(kept.retired.clone());
        }
        Ok(authority)
    }

    /// Everything that must survive a restart.
    pub fn kept(&self) -> Kept {
        let (certificate, key) = self.to_pem();
        Kept {
            certificate,
            key,
            next: self
                .next
                .as_ref()
                .map(|next| (next.pem.clone(), next.key.to_pem())),
            retired: self.retired.concat(),
        }
    }

    /// Has the roots of another one from now on, and its own limit as before.
    pub fn become_of(&mut self, other: Self) {
        *self = Self {
            longest: self.longest,
            ..other
        };
    }

    /// When the root that signs ends.
    pub fn not_after(&self) -> SystemTime {
        self.active.not_after
    }

    fn with(active: Signer) -> Self {
        Self {
            active,
            next: None,
            retired: Vec::new(),
            longest: Self::LONGEST,
        }
    }

    /// Refuses certificates longer than this from now on.
    pub fn limit(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// PEM of every root workloads should believe now.
    pub fn roots(&self) -> String {
        let introduced = self.next.iter().map(|s| s.pem.as_str());
        std::iter::once(self.active.pem.as_str())
            .chain(introduced)
            .chain(self.retired.iter().map(String::as_str))
            .collect()
    }

    /// Certificate and key of the signing root, PEM, to be kept where only the control plane reads.
    pub fn to_pem(&self) -> (String, String) {
        (self.active.pem.clone(), self.active.key.to_pem())
    }

    /// Signs the key of a request for `id`, whatever else the request says.
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

    /// A certificate for a server known by DNS names (the control plane itself).
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
        if life > self.longest {
            return Err(AuthorityError::TooLong {
                asked: life,
                longest: self.longest,
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

    /// How far an exchange of the root has come.
    pub fn rotation(&self) -> RootRotation {
        match (&self.next, self.retired.is_empty()) {
            (Some(_), _) => RootRotation::Introduced,
            (None, false) => RootRotation::Switched,
            (None, true) => RootRotation::None,
        }
    }

    /// First step: everybody learns to believe a new root. To be followed by [`switch_root`](Self::switch_root) when
    /// every workload has received it.
    pub fn introduce_root(
        &mut self,
        organisation: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<(), AuthorityError> {
        self.at(RootRotation::None)?;
        self.next = Some(Signer::generate(organisation, now, life)?);
        Ok(())
    }

    /// Second step: the new root signs. To be followed by [`retire_root`](Self::retire_root) when the last
    /// certificate of the old one was replaced.
    pub fn switch_root(&mut self) -> Result<(), AuthorityError> {
        self.at(RootRotation::Introduced)?;
        if let Some(next) = self.next.take() {
            let old = std::mem::replace(&mut self.active, next);
            self.retired.push(old.pem);
        }
        Ok(())
    }

    /// Last step: the old root is believed no more.
    pub fn retire_root(&mut self) -> Result<(), AuthorityError> {
        self.at(RootRotation::Switched)?;
        self.retired.clear();
        Ok(())
    }

    fn at(&self, needed: RootRotation) -> Result<(), AuthorityError> {
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
