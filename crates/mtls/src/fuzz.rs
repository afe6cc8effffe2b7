//! Entry points for fuzzing: untrusted bytes never cause a panic and never make a peer trusted.

use crate::verify::{Expected, Verifier};
use crate::{Authority, Chain, PrivateKey, Roots, SpiffeId, TrustDomains, peer_identity, provider};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use webpki::KeyUsage;

/// A moment at which certificates of the corpus are valid.
const NOW: Duration = Duration::from_hours(500_000);

/// Trusts only freshly generated roots, which have signed no certificate.
static VERIFIER: OnceLock<Option<Verifier>> = OnceLock::new();

/// A text that may be an id.
///
/// # Panics
///
/// If an id does not print as it came, or its parts are not the whole.
pub fn spiffe(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(id) = text.parse::<SpiffeId>() else {
        return;
    };
    assert_eq!(id.as_str(), text, "it prints as it came");
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"./-_:".contains(&b);
    assert!(text.len() <= 2048 && text.bytes().all(plain), "{text:?}");
    assert_eq!(text.strip_prefix("spiffe://"), Some(id.principal()));
    assert_eq!(id.principal(), format!("{}{}", id.trust_domain(), id.path()));
    if let Some((namespace, account)) = id.service_account() {
        let again = SpiffeId::of_service_account(id.trust_domain(), namespace, account);
        assert_eq!(again.ok().as_ref(), Some(&id), "its parts make the same again");
    }
    assert_eq!(TrustDomains::of(&id).canonical(&id).as_ref(), Some(&id));
    let moved = id.with_trust_domain("elsewhere");
    assert!(moved.iter().all(|moved| moved.path() == id.path()));
}

/// A certificate as a peer sends it, or a file of certificates or of a key.
///
/// # Panics
///
/// If a certificate is trusted that none of the roots signed, or if reading a file twice gives different results.
pub fn certificate(bytes: &[u8]) {
    check_peer(&CertificateDer::from(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(chain) = Chain::from_pem(text) {
        if chain.not_before() <= chain.not_after() {
            let renewal = chain.renew_at(0.5);
            assert!((chain.not_before()..=chain.not_after()).contains(&renewal));
        }
        assert_eq!(chain.id().as_str().parse().ok().as_ref(), Some(chain.id()));
        chain.der.iter().for_each(check_peer);
    }
    if let Ok(roots) = Roots::from_pem(text) {
        assert!(roots.count() > 0, "roots that vouch for nobody");
    }
    if let Ok(key) = PrivateKey::from_pem(text) {
        assert!(PrivateKey::from_pem(&key.to_pem()).is_ok());
    }
}

fn check_peer(der: &CertificateDer<'_>) {
    let now = SystemTime::UNIX_EPOCH + NOW;
    if let Ok(domains) = TrustDomains::new::<&str>("td", &[])
        && let Ok(id) = peer_identity(Some(std::slice::from_ref(der)), &domains, now)
    {
        assert_eq!(id.trust_domain(), "td");
    }
    let verifier = VERIFIER.get_or_init(verifier).as_ref();
    assert!(verifier.is_some(), "an authority can be made");
    if let Some(verifier) = verifier {
        for usage in [KeyUsage::client_auth(), KeyUsage::server_auth()] {
            let judged = verifier.verify(der, &[], UnixTime::since_unix_epoch(NOW), usage);
            assert!(judged.is_err(), "{judged:?} is believed");
        }
    }
}

fn verifier() -> Option<Verifier> {
    let now = SystemTime::UNIX_EPOCH + NOW;
    let authority = Authority::generate("fuzz", now, Duration::from_hours(24)).ok()?;
    let roots = Arc::new(Roots::from_pem(&authority.roots()).ok()?);
    let domains = TrustDomains::new::<&str>("td", &[]).ok()?;
    Some(Verifier::new(
        roots,
        domains,
        Expected::AnyWorkload,
        &provider::provider(),
    ))
}
