//! Certificates that are over, of others, or exchanged; clocks that jump.

use crate::lossless::Load;
use crate::scene::{MESH, Proxy, Scene, Sockets, credentials, echo, exchange, limits, service};
use remora_mtls::{Authority, Chain, Clock, Credentials, Identity, PrivateKey, Roots, TrustDomains};
use remora_proxy::inbound::Modes;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

pub(crate) const HOUR: i64 = 3600;

/// A clock that can be moved, in seconds.
#[derive(Clone, Default)]
pub(crate) struct Moved(Arc<AtomicI64>);

impl Moved {
    pub(crate) fn by(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    fn now(&self) -> SystemTime {
        let seconds = self.0.load(Ordering::Relaxed);
        let by = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 {
            SystemTime::now() - by
        } else {
            SystemTime::now() + by
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        let own = self.clone();
        Clock::new(move || own.now())
    }
}

pub(crate) fn domains() -> TrustDomains {
    TrustDomains::new::<&str>("td", &[]).unwrap()
}

/// The scene with another proxy for the server.
pub(crate) fn replaced(mesh: &str, server: impl FnOnce(&Authority) -> Identity) -> Scene {
    let mut scene = Scene::with(mesh);
    let identity = Arc::new(server(&scene.authority));
    let sockets: Sockets = scene.server.sockets.share();
    scene.server.stop();
    scene.server.finish();
    scene.server = Proxy::start(&scene.lab.peer, sockets, identity, Modes::default(), limits());
    scene.server.learn(mesh);
    scene
}

fn meshes() -> [String; 2] {
    let istio = MESH.replace("tunnel: hbone\nservices", "tunnel: istio-mtls\nservices");
    [MESH.to_owned(), istio]
}

#[test]
fn a_server_whose_certificate_is_over_or_not_yet_valid_gets_nothing() {
    for mesh in meshes() {
        let past = SystemTime::now() - Duration::from_hours(3);
        let future = SystemTime::now() + Duration::from_hours(3);
        for issued in [past, future] {
            let scene = replaced(&mesh, |authority| {
                Identity::new(domains(), credentials(authority, "cart", issued)).unwrap()
            });
            scene.serve(8080, echo);
            assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
            let error = scene.client.record().error.unwrap();
            assert!(error.contains("shake hands"), "{error}");
        }
    }
}

#[test]
fn a_server_of_another_root_gets_nothing() {
    for mesh in meshes() {
        let scene = replaced(&mesh, |_| {
            let now = SystemTime::now();
            let other = Authority::generate("test", now, Duration::from_hours(1)).unwrap();
            Identity::new(domains(), credentials(&other, "cart", now)).unwrap()
        });
        scene.serve(8080, echo);
        assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
        let error = scene.client.record().error.unwrap();
        assert!(error.contains("shake hands"), "{error}");
    }
}

#[test]
fn a_caller_whose_certificate_is_over_gets_nothing() {
    for mesh in meshes() {
        let mut scene = Scene::with(&mesh);
        scene.serve(8080, echo);
        let past = SystemTime::now() - Duration::from_hours(3);
        let old = Identity::new(domains(), credentials(&scene.authority, "web", past)).unwrap();
        let sockets = scene.client.sockets.share();
        scene.client.stop();
        scene.client.finish();
        scene.client = Proxy::start(&scene.lab.pod, sockets, Arc::new(old), Modes::default(), limits());
        scene.client.learn(&mesh);
        assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
        let error = scene.server.record().error.unwrap();
        assert!(error.contains("TLS handshake"), "{error}");
    }
}

/// The server's clock goes wrong in both directions and right again. Sessions that could be resumed do not help.
#[test]
fn a_clock_that_jumps_closes_no_connection_and_trusts_nobody_until_it_is_right() {
    for mesh in meshes() {
        let moved = Moved::default();
        let clock = moved.clock();
        let scene = replaced(&mesh, |authority| {
            let credentials = credentials(authority, "cart", SystemTime::now());
            Identity::with_clock(domains(), credentials, clock).unwrap()
        });
        scene.serve(8080, echo);
        let mut open = scene.connect(service(false));
        exchange(&mut open, b"before").unwrap();
        for jump in [48 * HOUR, -48 * HOUR] {
            moved.by(jump);
            exchange(&mut open, b"goes on").unwrap();
            // A tunnel that is open goes on too; this one is new.
            fresh_tunnel(&scene, &mesh, jump);
            assert_eq!(
                scene.failure(service(false)),
                ErrorKind::ConnectionReset,
                "{jump}"
            );
            moved.by(0);
            exchange(&mut scene.connect(service(false)), b"right again").unwrap();
            exchange(&mut open, b"went on").unwrap();
        }
    }
}

/// Makes the pool open another tunnel, by another uid of the workload.
fn fresh_tunnel(scene: &Scene, mesh: &str, number: i64) {
    scene
        .client
        .learn(&mesh.replace("name: cart-0", &format!("name: cart{number}")));
}

/// The caller's clock: it refuses a server whose certificate is over by it, also where a session could be resumed.
#[test]
fn a_session_does_not_outlive_the_certificate_it_rests_on() {
    for mesh in meshes() {
        let moved = Moved::default();
        let mut scene = Scene::with(&mesh);
        scene.serve(8080, echo);
        let own = credentials(&scene.authority, "web", SystemTime::now());
        let own = Identity::with_clock(domains(), own, moved.clock()).unwrap();
        let sockets = scene.client.sockets.share();
        scene.client.stop();
        scene.client.finish();
        scene.client = Proxy::start(&scene.lab.pod, sockets, Arc::new(own), Modes::default(), limits());
        scene.client.learn(&mesh);
        exchange(&mut scene.connect(service(false)), b"a session").unwrap();
        fresh_tunnel(&scene, &mesh, 1);
        // Within the life of a session, after that of the certificate.
        moved.by(HOUR + 600);
        assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
        moved.by(0);
        exchange(&mut scene.connect(service(false)), b"right again").unwrap();
    }
}

pub(crate) fn renewed(authority: &Authority, proxy: &Proxy) -> Credentials {
    let id = proxy.ctx.identity().id();
    let now = SystemTime::now();
    let key = PrivateKey::generate().unwrap();
    let request = key.request(&id).unwrap();
    let issued = authority
        .issue(&request, &id, Duration::from_hours(2), now)
        .unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    Credentials::new(&key, chain, Roots::from_pem(&issued.roots).unwrap(), &id, now).unwrap()
}

#[test]
fn the_root_is_exchanged_under_load_and_nothing_is_lost() {
    for mesh in meshes() {
        let mut scene = Scene::with(&mesh);
        scene.serve(8080, echo);
        let load = Load::start(&scene, 4);
        let mut open = scene.connect(service(false));
        exchange(&mut open, b"the first root").unwrap();
        load.more(50);
        let step = |scene: &Scene| {
            for proxy in [&scene.client, &scene.server] {
                let next = renewed(&scene.authority, proxy);
                proxy.ctx.identity().install(next, SystemTime::now()).unwrap();
                fresh_tunnel(
                    scene,
                    &mesh,
                    i64::try_from(proxy.ctx.identity().generation_number()).unwrap(),
                );
                load.more(25);
            }
        };
        let now = SystemTime::now();
        scene
            .authority
            .introduce_root("test", now, Duration::from_hours(20))
            .unwrap();
        step(&scene);
        scene.authority.switch_root().unwrap();
        step(&scene);
        scene.authority.retire_root().unwrap();
        step(&scene);
        exchange(&mut open, b"the first root, long ago").unwrap();
        load.end();
    }
}
