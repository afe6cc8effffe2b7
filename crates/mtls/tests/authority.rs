//! What the authority signs, and what it does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_mtls::{Authority, AuthorityError, CertificateError, Chain, PrivateKey, SpiffeId};
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_hours(1);

fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

#[test]
fn the_identity_comes_from_the_caller_not_from_the_request() {
    let now = SystemTime::now();
    let authority = Authority::generate("mesh", now, HOUR * 100).unwrap();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id("spiffe://td/ns/kube-system/sa/admin")).unwrap();
    let me = id("spiffe://td/ns/shop/sa/cart");
    let issued = authority.issue(&request, &me, HOUR, now).unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    assert_eq!(chain.id(), &me);
    let life = chain.not_after().duration_since(chain.not_before()).unwrap();
    assert_eq!(life.as_secs(), 3600 + 120, "back-dated by two minutes");
    let renew = chain.renew_at(0.5).duration_since(chain.not_before()).unwrap();
    assert_eq!(renew.as_secs(), life.as_secs() / 2);
}

#[test]
fn life_is_limited_by_the_rule_and_by_the_root() {
    let now = SystemTime::now();
    let mut authority = Authority::generate("mesh", now, HOUR * 2).unwrap();
    authority.limit_lifetime(HOUR * 10);
    let key = PrivateKey::generate().unwrap();
    let me = id("spiffe://td/ns/shop/sa/cart");
    let request = key.request(&me).unwrap();
    let long = authority.issue(&request, &me, HOUR * 11, now);
    assert!(matches!(long, Err(AuthorityError::TooLong { .. })), "{long:?}");
    let issued = authority.issue(&request, &me, HOUR * 5, now).unwrap();
    assert_eq!(issued.not_after, now + HOUR * 2, "not beyond the root");
    let late = authority.issue(&request, &me, HOUR, now + HOUR * 3);
    assert!(matches!(late, Err(AuthorityError::RootExpired)), "{late:?}");
}

#[test]
fn requests_that_are_none_are_refused() {
    let now = SystemTime::now();
    let authority = Authority::generate("mesh", now, HOUR).unwrap();
    let me = id("spiffe://td/ns/shop/sa/cart");
    let request = PrivateKey::generate().unwrap().request(&me).unwrap();
    // One flipped letter in the middle of the base64: the signature no longer fits, or it is no request at all.
    let at = request.len() / 2;
    let flipped = if &request[at..=at] == "A" { "B" } else { "A" };
    let broken = format!("{}{flipped}{}", &request[..at], &request[at + 1..]);
    for text in ["", "no pem", authority.roots().as_str(), broken.as_str()] {
        let answer = authority.issue(text, &me, HOUR, now);
        assert!(
            matches!(answer, Err(AuthorityError::Request(_))),
            "{text}: {answer:?}"
        );
    }
}

#[test]
fn a_root_is_kept_in_files_and_read_again() {
    let now = SystemTime::now();
    let authority = Authority::generate("mesh", now, HOUR).unwrap();
    let (certificate, key) = authority.to_pem();
    let again = Authority::from_pem(&certificate, &key).unwrap();
    assert_eq!(again.roots(), authority.roots());
    let stranger = PrivateKey::generate().unwrap().to_pem();
    assert!(
        Authority::from_pem(&certificate, &stranger).is_err(),
        "the key is not the root's"
    );
    assert!(Authority::from_pem("", &key).is_err());
}

#[test]
fn a_certificate_needs_exactly_one_uri() {
    let now = SystemTime::now();
    let authority = Authority::generate("mesh", now, HOUR).unwrap();
    let key = PrivateKey::generate().unwrap();
    let server = authority
        .issue_server(&key, &["istiod.istio-system.svc".to_owned()], HOUR, now)
        .unwrap();
    let read = Chain::from_pem(&server.leaf);
    assert!(
        matches!(read, Err(CertificateError::UriNames { count: 0 })),
        "{read:?}"
    );
}
