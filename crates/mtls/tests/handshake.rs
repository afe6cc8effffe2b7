//! Handshakes of two workloads in memory: which peers are trusted, and that rotation leaves open connections alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use remora_mtls::{
    AlpnProfile, Authority, Chain, Credentials, CredentialsError, Identity, InstallError, NoVerifier,
    PeerError, PrivateKey, RootRotation, Roots, SpiffeId, TrustDomains, peer_identity,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConnection, HandshakeKind, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_hours(24);

fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

fn authority() -> Authority {
    Authority::generate("test mesh", SystemTime::now(), DAY * 365).unwrap()
}

fn credentials(authority: &Authority, id: &SpiffeId, life: Duration) -> Credentials {
    let now = SystemTime::now();
    let key = PrivateKey::generate().unwrap();
    let issued = authority.issue(&key.request(id).unwrap(), id, life, now).unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    Credentials::new(&key, chain, Roots::from_pem(&issued.roots).unwrap(), id, now).unwrap()
}

fn workload(authority: &Authority, name: &str, aliases: &[&str]) -> Identity {
    let id = id(name);
    let domains = TrustDomains::new(id.trust_domain(), aliases).unwrap();
    Identity::new(domains, credentials(authority, &id, DAY)).unwrap()
}

struct Connected {
    client: ClientConnection,
    server: ServerConnection,
}

/// Runs both sides in memory until the handshake completes or one side refuses.
fn handshake(
    client: &Identity,
    server: &Identity,
    expected: &[SpiffeId],
    wire: AlpnProfile,
) -> Result<Connected, rustls::Error> {
    let name = ServerName::try_from("peer.invalid").unwrap();
    let client = ClientConnection::new(client.client(expected, wire).unwrap(), name)?;
    let mut pair = Connected {
        client,
        server: ServerConnection::new(server.server(wire))?,
    };
    pair.pump()?;
    Ok(pair)
}

impl Connected {
    fn pump(&mut self) -> Result<(), rustls::Error> {
        loop {
            let mut moved = false;
            let mut wire = Vec::new();
            while self.client.wants_write() {
                moved = true;
                self.client.write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                self.server.read_tls(&mut rest).unwrap();
                self.server.process_new_packets()?;
            }
            wire.clear();
            while self.server.wants_write() {
                moved = true;
                self.server.write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                self.client.read_tls(&mut rest).unwrap();
                self.client.process_new_packets()?;
            }
            if !moved {
                return Ok(());
            }
        }
    }

    fn say(&mut self, words: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(words).unwrap();
        self.pump().unwrap();
        let mut heard = vec![0; words.len()];
        self.server.reader().read_exact(&mut heard).unwrap();
        heard
    }
}

#[test]
fn two_workloads_trust_each_other_and_use_post_quantum_keys() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    for wire in [AlpnProfile::Hbone, AlpnProfile::Istio] {
        let mut pair = handshake(&a, &b, &[b.id()], wire).unwrap();
        assert_eq!(pair.say(b"hello"), b"hello");
        let seen = peer_identity(pair.server.peer_certificates(), b.domains(), SystemTime::now()).unwrap();
        assert_eq!(seen, a.id());
        let group = pair.client.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768, "{wire:?}");
        let suite = pair.client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let alpn = pair.client.alpn_protocol().map(<[u8]>::to_vec);
        assert_eq!(alpn, (wire == AlpnProfile::Hbone).then(|| b"h2".to_vec()));
    }
}

#[test]
fn an_istio_server_goes_on_when_no_protocol_overlaps() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    let mut foreign = (*a.client(&[b.id()], AlpnProfile::Istio).unwrap()).clone();
    foreign.alpn_protocols = vec![b"istio-peer-exchange".to_vec(), b"istio".to_vec()];
    let name = ServerName::try_from("outbound_.80_._.b.shop.svc.cluster.local").unwrap();
    let mut pair = Connected {
        client: ClientConnection::new(Arc::new(foreign), name).unwrap(),
        server: ServerConnection::new(b.server(AlpnProfile::Istio)).unwrap(),
    };
    pair.pump().unwrap();
    assert_eq!(pair.say(b"x"), b"x");
    assert_eq!(pair.server.alpn_protocol(), None);
}

/// A client of TLS 1.2, as an old sidecar: it presents its certificate and accepts every server.
fn old_client(authority: &Authority) -> rustls::ClientConfig {
    let me = id("spiffe://td/ns/shop/sa/old");
    let key = PrivateKey::generate().unwrap();
    let issued = authority
        .issue(&key.request(&me).unwrap(), &me, DAY, SystemTime::now())
        .unwrap();
    let chain = vec![CertificateDer::from_pem_slice(issued.leaf.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerifier))
        .with_client_auth_cert(chain, key)
        .unwrap()
}

#[test]
fn an_old_sidecar_is_understood_where_sidecars_are_and_not_in_tunnels() {
    let authority = authority();
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    for (wire, understood) in [(AlpnProfile::Istio, true), (AlpnProfile::Hbone, false)] {
        let name = ServerName::try_from("peer.invalid").unwrap();
        let mut pair = Connected {
            client: ClientConnection::new(Arc::new(old_client(&authority)), name).unwrap(),
            server: ServerConnection::new(b.server(wire)).unwrap(),
        };
        assert_eq!(pair.pump().is_ok(), understood, "{wire:?}");
        if understood {
            assert_eq!(pair.say(b"old"), b"old");
            let version = pair.server.protocol_version();
            assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_2));
            let seen = peer_identity(pair.server.peer_certificates(), b.domains(), SystemTime::now());
            assert_eq!(seen.unwrap(), id("spiffe://td/ns/shop/sa/old"));
        }
    }
}

#[test]
fn a_peer_with_another_identity_is_refused() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    let error = handshake(&a, &b, &[id("spiffe://td/ns/shop/sa/c")], AlpnProfile::Hbone)
        .err()
        .unwrap();
    assert!(format!("{error:?}").contains("Mismatch"), "{error:?}");
    assert!(
        handshake(&a, &b, &[], AlpnProfile::Hbone).is_err(),
        "expecting nobody accepts nobody"
    );
}

#[test]
fn a_session_of_one_expectation_is_not_resumed_for_another() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    let first = handshake(&a, &b, &[b.id()], AlpnProfile::Hbone).unwrap();
    assert_eq!(first.client.handshake_kind(), Some(HandshakeKind::Full));
    let again = handshake(&a, &b, &[b.id()], AlpnProfile::Hbone).unwrap();
    assert_eq!(again.client.handshake_kind(), Some(HandshakeKind::Resumed));
    assert!(handshake(&a, &b, &[id("spiffe://td/ns/shop/sa/c")], AlpnProfile::Hbone).is_err());
}

#[test]
fn another_root_is_refused_on_either_side() {
    let now = SystemTime::now();
    let ours = authority();
    // A foreign root may even have the same name as ours.
    let theirs = ["test mesh", "other mesh"].map(|name| Authority::generate(name, now, DAY).unwrap());
    let a = workload(&ours, "spiffe://td/ns/shop/sa/a", &[]);
    for (theirs, why) in theirs
        .iter()
        .zip(["InvalidSignatureForPublicKey", "UnknownIssuer"])
    {
        let b = workload(theirs, "spiffe://td/ns/shop/sa/b", &[]);
        for (client, server) in [(&a, &b), (&b, &a)] {
            let error = handshake(client, server, &[server.id()], AlpnProfile::Hbone)
                .err()
                .unwrap();
            assert!(format!("{error:?}").contains(why), "{error:?}");
        }
    }
}

#[test]
fn a_foreign_trust_domain_is_refused_and_an_alias_is_not() {
    let authority = authority();
    let a = workload(&authority, "spiffe://old/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://new/ns/shop/sa/b", &["old"]);
    let stranger = workload(&authority, "spiffe://other/ns/shop/sa/a", &["new"]);
    // b knows the old name of its trust domain; a, which does not know the new one, must be the server.
    let pair = handshake(&b, &a, &[id("spiffe://old/ns/shop/sa/a")], AlpnProfile::Hbone);
    assert!(pair.is_err(), "a does not know trust domain new");
    let c = workload(&authority, "spiffe://old/ns/shop/sa/c", &["new"]);
    let pair = handshake(&c, &b, &[id("spiffe://new/ns/shop/sa/b")], AlpnProfile::Hbone).unwrap();
    let seen = peer_identity(pair.server.peer_certificates(), b.domains(), SystemTime::now()).unwrap();
    assert_eq!(
        seen,
        id("spiffe://new/ns/shop/sa/c"),
        "under our own trust domain"
    );
    let error = handshake(&stranger, &b, &[b.id()], AlpnProfile::Hbone)
        .err()
        .unwrap();
    assert!(format!("{error:?}").contains("TrustDomain"), "{error:?}");
}

#[test]
fn an_expired_certificate_is_neither_installed_nor_trusted_later() {
    let authority = authority();
    let a_id = id("spiffe://td/ns/shop/sa/a");
    let now = SystemTime::now();
    let key = PrivateKey::generate().unwrap();
    // Issued ten minutes ago for five.
    let past = now - Duration::from_mins(10);
    let issued = authority
        .issue(&key.request(&a_id).unwrap(), &a_id, Duration::from_mins(5), past)
        .unwrap();
    let chain = || Chain::from_pem(&issued.leaf).unwrap();
    let roots = || Roots::from_pem(&issued.roots).unwrap();
    let refused = Credentials::new(&key, chain(), roots(), &a_id, now)
        .err()
        .unwrap();
    assert!(matches!(refused, CredentialsError::Unusable(_)), "{refused:?}");
    // It was good then; today's peers refuse it.
    let then = Credentials::new(&key, chain(), roots(), &a_id, past).unwrap();
    let a = Identity::new(TrustDomains::new::<&str>("td", &[]).unwrap(), then).unwrap();
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    for (client, server) in [(&a, &b), (&b, &a)] {
        let error = handshake(client, server, &[server.id()], AlpnProfile::Hbone)
            .err()
            .unwrap();
        assert!(format!("{error:?}").contains("Expired"), "{error:?}");
    }
}

#[test]
fn a_resumed_session_does_not_outlive_the_certificate() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    let pair = handshake(&a, &b, &[b.id()], AlpnProfile::Hbone).unwrap();
    let later = SystemTime::now() + DAY * 2;
    let judged = peer_identity(pair.server.peer_certificates(), b.domains(), later);
    assert!(matches!(judged, Err(PeerError::Expired)), "{judged:?}");
    let nobody = peer_identity(None, b.domains(), later);
    assert!(matches!(nobody, Err(PeerError::NoCertificate)), "{nobody:?}");
}

#[test]
fn rotation_leaves_open_connections_alone_and_new_ones_use_the_new_certificate() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let b = workload(&authority, "spiffe://td/ns/shop/sa/b", &[]);
    let mut open = handshake(&a, &b, &[b.id()], AlpnProfile::Hbone).unwrap();
    let before = open.client.peer_certificates().unwrap()[0].clone();
    let renewed = credentials(&authority, &b.id(), DAY * 2);
    assert_eq!(b.install(renewed, SystemTime::now()).unwrap(), 2);
    assert_eq!(open.say(b"still here"), b"still here");
    let fresh = handshake(&a, &b, &[b.id()], AlpnProfile::Hbone).unwrap();
    assert_ne!(fresh.client.peer_certificates().unwrap()[0], before);
    assert_eq!(fresh.client.handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn the_last_good_certificate_stays_when_a_worse_one_comes() {
    let authority = authority();
    let a = workload(&authority, "spiffe://td/ns/shop/sa/a", &[]);
    let now = SystemTime::now();
    let shorter = credentials(&authority, &a.id(), Duration::from_mins(1));
    assert!(matches!(a.install(shorter, now), Err(InstallError::Older { .. })));
    let other = credentials(&authority, &id("spiffe://td/ns/shop/sa/z"), DAY * 3);
    assert!(matches!(
        a.install(other, now),
        Err(InstallError::Identity { .. })
    ));
    assert_eq!(a.generation_number(), 1);
}

#[test]
fn credentials_must_belong_together() {
    let authority = authority();
    let a = id("spiffe://td/ns/shop/sa/a");
    let now = SystemTime::now();
    let (key, other) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let issued = authority.issue(&key.request(&a).unwrap(), &a, DAY, now).unwrap();
    let chain = || Chain::from_pem(&issued.leaf).unwrap();
    let roots = || Roots::from_pem(&issued.roots).unwrap();
    assert!(matches!(
        Credentials::new(&other, chain(), roots(), &a, now),
        Err(CredentialsError::Key { .. })
    ));
    assert!(matches!(
        Credentials::new(&key, chain(), roots(), &id("spiffe://td/ns/shop/sa/b"), now),
        Err(CredentialsError::Identity { .. })
    ));
    let strange = Roots::from_pem(&self::authority().roots()).unwrap();
    assert!(matches!(
        Credentials::new(&key, chain(), strange, &a, now),
        Err(CredentialsError::Unusable(_))
    ));
    assert!(Roots::from_pem("").is_err());
}

#[test]
fn the_root_is_exchanged_without_a_moment_of_distrust() {
    let mut authority = authority();
    let now = SystemTime::now();
    let names = ["spiffe://td/ns/shop/sa/a", "spiffe://td/ns/shop/sa/b"];
    let mut pair = names.map(|name| workload(&authority, name, &[]));
    assert!(authority.switch_root().is_err(), "nothing was introduced");
    let check = |pair: &[Identity; 2]| {
        handshake(&pair[0], &pair[1], &[pair[1].id()], AlpnProfile::Hbone).unwrap();
        handshake(&pair[1], &pair[0], &[pair[0].id()], AlpnProfile::Hbone).unwrap();
    };
    for (step, next) in [
        RootRotation::Introduced,
        RootRotation::Switched,
        RootRotation::None,
    ]
    .into_iter()
    .enumerate()
    {
        match next {
            RootRotation::Introduced => authority.introduce_root("test mesh", now, DAY * 400).unwrap(),
            RootRotation::Switched => authority.switch_root().unwrap(),
            RootRotation::None => authority.retire_root().unwrap(),
        }
        assert_eq!(authority.rotation(), next);
        // Workloads renew one after the other; they trust each other at every step.
        for one in &mut pair {
            let life = DAY * (2 + u32::try_from(step).unwrap());
            one.install(credentials(&authority, &one.id(), life), now)
                .unwrap();
            check(&[clone(one, &authority), workload(&authority, names[1], &[])]);
        }
        check(&pair);
    }
    assert_eq!(Roots::from_pem(&authority.roots()).unwrap().count(), 1);
}

/// The same workload as another process would be.
fn clone(one: &Identity, authority: &Authority) -> Identity {
    workload(authority, one.id().as_str(), &[])
}
