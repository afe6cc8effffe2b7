//! Many connections, and peers that do not read.

use crate::scene::{PATIENCE, Scene, echo, exchange, service};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Connections open at once; as many again at each of four places in this one process.
const IDLE: usize = 400;
const SHORT: usize = 2000;

#[test]
fn idle_connections_do_not_disturb_short_ones() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| scene.connect(service(false))).collect();
    for stream in &mut idle {
        exchange(stream, b"here").unwrap();
    }
    for number in 0..SHORT {
        scene
            .attempt(service(number % 2 == 0))
            .unwrap_or_else(|error| panic!("connection {number}: {error}"));
    }
    for stream in &mut idle {
        exchange(stream, b"still here").unwrap();
    }
    drop(idle);
    let mut records = 0;
    while records < IDLE + SHORT {
        let record = scene.client.record();
        assert_eq!(record.error, None, "{record}");
        records += 1;
    }
}

/// A reader that stops must stop the writer, through four sockets and a tunnel, and then go on without loss.
#[test]
fn a_slow_reader_stops_the_writer_and_loses_nothing() {
    let scene = Scene::new();
    let total: usize = 96 << 20;
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    scene.serve(8080, move |mut stream: TcpStream| {
        let portion = vec![9; 64 << 10];
        for _ in 0..total / portion.len() {
            if stream.write_all(&portion).is_err() {
                return;
            }
            counter.fetch_add(portion.len(), Ordering::Relaxed);
        }
    });
    scene.serve(9000, echo);
    let mut stream = scene.connect(service(false));
    let mut start = [0; 1];
    stream.read_exact(&mut start).unwrap();
    // Nobody reads. Others in the same tunnel go on, and give the writer time to show whether it stops.
    let beside = SocketAddr::new(scene.lab.eth0.peer(false), 9000);
    for _ in 0..200 {
        scene.attempt(beside).unwrap();
    }
    assert_eq!(scene.client.ctx.tunnels(), 1);
    let ahead = written.load(Ordering::Relaxed);
    assert!(
        ahead < 48 << 20,
        "{ahead} bytes were taken from the application and are kept somewhere"
    );
    let mut heard = 1;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => heard += count,
            Err(error) => panic!("after {heard} bytes: {error}"),
        }
    }
    assert_eq!(heard, total);
}

#[test]
fn above_the_budget_connections_are_refused_and_the_rest_goes_on() {
    let scene = Scene::budget(5);
    scene.serve(8080, echo);
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        let mut stream = scene.connect(service(false));
        exchange(&mut stream, b"within").unwrap();
        open.push(stream);
    }
    let mut last = scene.connect(service(false));
    exchange(&mut last, b"within").unwrap();
    assert_eq!(scene.failure(service(false)), ErrorKind::ConnectionReset);
    for stream in &mut open {
        exchange(stream, b"not disturbed").unwrap();
    }
    drop(open);
    // There is room again as soon as the proxy has noticed.
    let started = Instant::now();
    while scene.attempt(service(false)).is_err() {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}
