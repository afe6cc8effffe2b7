//! Trust: root certificates, and the trust domains they vouch for.

use crate::certificate::{CertificateError, certificates};
use crate::{InvalidSpiffeId, SpiffeId, spiffe};
use rustls::pki_types::{CertificateDer, TrustAnchor};
use std::fmt;

/// One or more root certificates. More than one while the root is rotated.
#[derive(Clone, PartialEq, Eq)]
pub struct Roots {
    der: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
}

/// A root bundle that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The bundle cannot be read as certificates.
    #[error("read root certificates")]
    Read(#[from] CertificateError),
    /// The bundle is empty: no peer could be verified.
    #[error("the root bundle holds no certificate")]
    Empty,
    /// A certificate that cannot be a root.
    #[error("use certificate {index} of the bundle as a root")]
    Anchor {
        /// Index in the bundle, from 0.
        index: usize,
        /// Error of the verifier.
        #[source]
        source: webpki::Error,
    },
}

impl Roots {
    /// Reads a PEM bundle.
    pub fn from_pem(pem: &str) -> Result<Self, RootsError> {
        let mut der = certificates(pem)?;
        der.dedup();
        if der.is_empty() {
            return Err(RootsError::Empty);
        }
        let anchors = der
            .iter()
            .enumerate()
            .map(|(index, root)| {
                webpki::anchor_from_trusted_cert(root)
                    .map(|anchor| anchor.to_owned())
                    .map_err(|source| RootsError::Anchor { index, source })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { der, anchors })
    }

    /// How many roots there are.
    pub fn count(&self) -> usize {
        self.der.len()
    }

    pub(crate) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    pub(crate) fn der(&self) -> &[CertificateDer<'static>] {
        &self.der
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.der.len())
    }
}

/// Our own trust domain and its aliases: former names, or names in other clusters.
///
/// An id of an alias is the same workload as the id of our own domain with the same path; an id of any other domain
/// is foreign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDomains {
    own: String,
    aliases: Vec<String>,
}

impl Default for TrustDomains {
    /// istio: the trust domain of a mesh that names none.
    fn default() -> Self {
        Self {
            own: "cluster.local".to_owned(),
            aliases: Vec::new(),
        }
    }
}

impl TrustDomains {
    /// A trust domain and its aliases.
    pub fn new<A: AsRef<str>>(own: &str, aliases: &[A]) -> Result<Self, InvalidSpiffeId> {
        let checked = |text: &str| {
            spiffe::is_trust_domain(text)
                .then(|| text.to_owned())
                .ok_or(InvalidSpiffeId::TrustDomain)
        };
        Ok(Self {
            own: checked(own)?,
            aliases: aliases
                .iter()
                .map(|alias| checked(alias.as_ref()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The trust domain of an id, without aliases.
    pub fn of(id: &SpiffeId) -> Self {
        Self {
            own: id.trust_domain().to_owned(),
            aliases: Vec::new(),
        }
    }

    /// Our own trust domain.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// Our own trust domain and its aliases.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let aliases = self.aliases.iter().map(String::as_str);
        std::iter::once(self.own()).chain(aliases)
    }

    /// The id under our own trust domain; `None` for a foreign id.
    pub fn canonical(&self, id: &SpiffeId) -> Option<SpiffeId> {
        if id.trust_domain() == self.own {
            return Some(id.clone());
        }
        let known = self.aliases.iter().any(|alias| alias == id.trust_domain());
        known.then(|| id.with_trust_domain(&self.own).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::{Roots, TrustDomains};
    use crate::Authority;
    use std::time::{Duration, SystemTime};

    #[test]
    fn each_root_of_a_bundle_counts_once() {
        let root = || {
            let authority = Authority::generate("test", SystemTime::now(), Duration::from_mins(1)).unwrap();
            authority.roots()
        };
        let (first, second) = (root(), root());
        let bundle = format!("{first}{first}{second}");
        assert_eq!(Roots::from_pem(&bundle).unwrap().count(), 2);
    }

    #[test]
    fn a_trust_domain_keeps_its_name() {
        let domains = TrustDomains::new("mesh.example", &["old.example"]).unwrap();
        assert_eq!(domains.own(), "mesh.example");
    }

    #[test]
    fn aliases_are_listed_after_the_own_trust_domain() {
        let domains = TrustDomains::new("mesh.example", &["old.example"]).unwrap();
        let all: Vec<&str> = domains.all().collect();
        assert_eq!(all, ["mesh.example", "old.example"]);
    }
}
