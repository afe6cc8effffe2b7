//! SPIFFE ids: parsed strictly, compared as text, printed unchanged.
//!
//! One canonical form exists for every id, so that two ids are equal exactly when their texts are. Ids
//! from policies and certificates are never normalised here.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const SCHEME: &str = "spiffe://";
/// SPIFFE-ID §2.3: longer ones need not be supported.
const MAX_ID_BYTES: usize = 2048;
const MAX_TRUST_DOMAIN_BYTES: usize = 255;

/// A workload's name in the mesh, `spiffe://TRUST-DOMAIN/PATH`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    text: Arc<str>,
    path_at: usize,
}

/// Why a text is not the SPIFFE id of a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpiffeId {
    /// Does not start with `spiffe://`.
    #[error("a SPIFFE id starts with spiffe://")]
    Scheme,
    /// More than 2048 bytes.
    #[error("a SPIFFE id has at most {MAX_ID_BYTES} bytes, this one {length}")]
    Length {
        /// Bytes found.
        length: usize,
    },
    /// Empty, too long, or with bytes that do not belong there (capitals, port, user, NUL).
    #[error("the trust domain of a SPIFFE id has 1 to 255 of a-z, 0-9, '.', '-', '_'")]
    TrustDomain,
    /// Missing, empty segment, `.` or `..`, query, fragment, escapes.
    #[error(
        "the path of a SPIFFE id has segments of letters, digits, '.', '-', '_', none of them empty, '.' or '..'"
    )]
    Path,
}

impl SpiffeId {
    /// Istio's form, `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`.
    pub fn of_service_account(
        trust_domain: &str,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, InvalidSpiffeId> {
        // A name with a slash would make an id of other parts than these.
        if !is_segment(namespace) || !is_segment(service_account) || trust_domain.contains('/') {
            return Err(InvalidSpiffeId::Path);
        }
        format!("{SCHEME}{trust_domain}/ns/{namespace}/sa/{service_account}").parse()
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What policies compare: the text without `spiffe://`.
    pub fn principal(&self) -> &str {
        &self.text[SCHEME.len()..]
    }

    /// The trust domain, whose authority issues certificates for the id.
    pub fn trust_domain(&self) -> &str {
        &self.text[SCHEME.len()..self.path_at]
    }

    /// The path, from its first slash.
    pub fn path(&self) -> &str {
        &self.text[self.path_at..]
    }

    /// Namespace and service account, if the id has Istio's form.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        let mut parts = self.path().split('/').skip(1);
        match (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) {
            (Some("ns"), Some(namespace), Some("sa"), Some(account), None) => Some((namespace, account)),
            _ => None,
        }
    }

    /// The same path under another trust domain.
    pub fn with_trust_domain(&self, trust_domain: &str) -> Result<Self, InvalidSpiffeId> {
        format!("{SCHEME}{trust_domain}{}", self.path()).parse()
    }
}

pub(crate) fn is_trust_domain(text: &str) -> bool {
    (1..=MAX_TRUST_DOMAIN_BYTES).contains(&text.len())
        && text
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
}

fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

impl FromStr for SpiffeId {
    type Err = InvalidSpiffeId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix(SCHEME).ok_or(InvalidSpiffeId::Scheme)?;
        if text.len() > MAX_ID_BYTES {
            return Err(InvalidSpiffeId::Length { length: text.len() });
        }
        let (trust_domain, path) = rest.split_once('/').ok_or(InvalidSpiffeId::Path)?;
        if !is_trust_domain(trust_domain) {
            return Err(InvalidSpiffeId::TrustDomain);
        }
        if !path.split('/').all(is_segment) {
            return Err(InvalidSpiffeId::Path);
        }
        Ok(Self {
            text: text.into(),
            path_at: SCHEME.len() + trust_domain.len(),
        })
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::{InvalidSpiffeId, SpiffeId};

    #[test]
    fn an_id_has_parts_and_prints_as_it_came() {
        let id: SpiffeId = "spiffe://cluster.local/ns/shop/sa/cart.v1".parse().unwrap();
        assert_eq!(id.trust_domain(), "cluster.local");
        assert_eq!(id.path(), "/ns/shop/sa/cart.v1");
        assert_eq!(id.service_account(), Some(("shop", "cart.v1")));
        assert_eq!(id.principal(), "cluster.local/ns/shop/sa/cart.v1");
        assert_eq!(id.to_string().parse::<SpiffeId>().unwrap(), id);
        let other: SpiffeId = "spiffe://td/spire/agent".parse().unwrap();
        assert_eq!(other.service_account(), None);
        let long: SpiffeId = "spiffe://td/ns/a/sa/b/c".parse().unwrap();
        assert_eq!(long.service_account(), None);
    }

    #[test]
    fn an_account_whose_name_has_a_slash_has_no_id() {
        let of = SpiffeId::of_service_account;
        assert!(of("td", "shop", "web").is_ok());
        for (domain, namespace, account) in [("td", "a/b", "web"), ("td", "a", "b/c"), ("td/x", "a", "b")] {
            assert_eq!(of(domain, namespace, account), Err(InvalidSpiffeId::Path));
        }
        assert_eq!(of("TD", "a", "b"), Err(InvalidSpiffeId::TrustDomain));
    }

    #[test]
    fn an_id_may_have_2048_bytes_and_no_more() {
        let of_length = |length: usize| format!("spiffe://td/{}", "a".repeat(length - "spiffe://td/".len()));
        assert!(of_length(2048).parse::<SpiffeId>().is_ok());
        assert_eq!(
            of_length(2049).parse::<SpiffeId>(),
            Err(InvalidSpiffeId::Length { length: 2049 })
        );
    }

    #[test]
    fn what_is_no_id_is_refused_for_the_right_reason() {
        use InvalidSpiffeId::{Length, Path, Scheme, TrustDomain};
        let long = format!("spiffe://td/{}", "a".repeat(2048));
        for (text, why) in [
            ("", Scheme),
            ("https://td/ns/a/sa/b", Scheme),
            ("SPIFFE://td/ns/a/sa/b", Scheme),
            ("spiffe://td", Path),
            ("spiffe://td/", Path),
            ("spiffe://td/a//b", Path),
            ("spiffe://td/a/", Path),
            ("spiffe://td/a/../b", Path),
            ("spiffe://td/a?x=1", Path),
            ("spiffe://td/a%2fb", Path),
            ("spiffe://td/a\0b", Path),
            ("spiffe://td/ns/é", Path),
            ("spiffe:///ns/a", TrustDomain),
            ("spiffe://TD/ns/a", TrustDomain),
            ("spiffe://td:80/ns/a", TrustDomain),
            ("spiffe://u@td/ns/a", TrustDomain),
            (&long, Length { length: long.len() }),
        ] {
            assert_eq!(text.parse::<SpiffeId>(), Err(why), "{text:?}");
        }
    }
}
