//! Constant load while things change around it: not one request may fail.

use crate::scene::{MESH, Proxy, Scene, Sockets, capture, echo, exchange, identity, limits, service};
use remora_proxy::inbound::Modes;
use remora_testkit::Actor;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// Clients that connect, ask and close, one request after the other, until told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answers: Receiver<std::io::Result<()>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(scene: &Scene, clients: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, answers) = channel();
        let one =
            |_| {
                let (stop, tell) = (Arc::clone(&stop), tell.clone());
                let app = Actor::new(&scene.lab.pod, crate::scene::APP, crate::scene::APP);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) && tell.send(app.run(request)).is_ok() {}
                })
            };
        let clients = (0..clients).map(one).collect();
        Self {
            stop,
            answers,
            clients,
        }
    }

    /// Waits until so many more requests were answered.
    pub(crate) fn more(&self, count: usize) {
        for number in 0..count {
            let answer = self.answers.recv_timeout(crate::scene::PATIENCE).unwrap();
            answer.unwrap_or_else(|error| panic!("request {number}: {error}"));
        }
    }

    /// Stops, and waits for what is under way.
    pub(crate) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        for answer in self.answers.try_iter() {
            answer.unwrap();
        }
    }
}

fn request() -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&service(false), crate::scene::PATIENCE)?;
    stream.set_read_timeout(Some(crate::scene::PATIENCE))?;
    exchange(&mut stream, b"a request")
}

#[test]
fn a_proxy_is_replaced_by_its_successor_and_nobody_notices() {
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let load = Load::start(&scene, 4);
    load.more(50);
    let mut open = scene.connect(service(false));
    exchange(&mut open, b"before").unwrap();
    for generation in 0..3 {
        let sockets = scene.server.sockets.share();
        let next = Proxy::start(
            &scene.lab.peer,
            sockets,
            identity(&scene.authority, "cart"),
            Modes::default(),
            limits(),
        );
        next.learn(MESH);
        let mut old = std::mem::replace(&mut scene.server, next);
        old.stop();
        load.more(100);
        exchange(&mut open, format!("still served after {generation}").as_bytes()).unwrap();
        if generation == 0 {
            drop(std::mem::replace(&mut open, scene.connect(service(false))));
        }
        drop(old);
    }
    load.end();
}

#[test]
fn connections_that_waited_when_the_drain_began_are_served() {
    let mut scene = Scene::new();
    scene.serve(8080, echo);
    let to = SocketAddr::new(scene.lab.eth0.peer(false), 8080);
    for _ in 0..5 {
        let held = Arc::clone(&scene.server.log);
        let frozen = held.lock().unwrap();
        // Its end is written to the log, where the proxy now stops.
        drop(exchange(&mut scene.outsider(to).unwrap(), b"last seen"));
        let mut waiting: Vec<TcpStream> = Vec::new();
        for _ in 0..8 {
            waiting.push(scene.outsider(to).unwrap());
        }
        scene.server.stop();
        drop(frozen);
        for stream in &mut waiting {
            exchange(stream, b"in time").unwrap();
        }
        drop(waiting);
        scene.server.finish();
        scene.server = Proxy::start(
            &scene.lab.peer,
            scene.server.sockets.share(),
            identity(&scene.authority, "cart"),
            Modes::default(),
            limits(),
        );
        scene.server.learn(MESH);
    }
}

/// The second workload of the service, in a namespace of its own.
const SECOND: &str = "
---
kind: Workload
name: cart-1
namespace: shop
addresses: [10.3.0.1]
serviceAccount: cart
tunnel: hbone
services: {shop/cart.shop.svc.cluster.local: ['80:8080']}
";

#[test]
fn an_endpoint_leaves_and_comes_back_without_a_failed_request() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let (namespace, _) = scene.lab.attach("eth1", 3);
    capture(&namespace);
    let app = Actor::new(&namespace, crate::scene::APP, crate::scene::APP);
    app.run(|| {
        let at = SocketAddr::from(([0, 0, 0, 0], 8080));
        let listener = remora_net::socket::TcpOptions::default().listen(at).unwrap();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                std::thread::spawn(move || echo(stream));
            }
        });
    });
    let both = format!("{MESH}{SECOND}");
    let sockets = Sockets::bind(&namespace);
    let start = || {
        let identity = identity(&scene.authority, "cart");
        let proxy = Proxy::start(&namespace, sockets.share(), identity, Modes::default(), limits());
        proxy.learn(&both);
        proxy
    };
    let mut second = start();
    scene.client.learn(&both);
    let load = Load::start(&scene, 4);
    for _ in 0..3 {
        load.more(100);
        // As in a cluster: first it is taken from the service, then it drains, then it ends.
        scene.client.learn(MESH);
        second.stop();
        second.finish();
        load.more(50);
        second = start();
        scene.client.learn(&both);
    }
    // The quicker one is preferred, which on a busy machine may be the other one for a while.
    let mut served = 0;
    for _ in 0..20 {
        load.more(100);
        let ended = second.records.try_iter();
        served += ended.filter(|record| record.error.is_none()).count();
        if served > 10 {
            break;
        }
    }
    assert!(served > 10, "the one that came back gets its share, not {served}");
    load.end();
}
