//! How often memory is asked for: for a request, and for a new connection, on both sides together.
//!
//! Everything of this process is counted, so this file has one test, and the client's and the application's own are in
//! the numbers: one for a request, and the thread and buffer of a connection. Measured: 7 for a request (four messages:
//! in and out of both proxies), 67 for a connection.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "pods/scene.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod scene;

use scene::{Scene, echo, exchange, service};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::net::TcpStream;

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 2000;
const CONNECTIONS: usize = 500;

fn count(times: usize, mut work: impl FnMut()) -> f64 {
    let region = Region::new(COUNTED);
    for _ in 0..times {
        work();
    }
    let change = region.change();
    let all = change.allocations + change.reallocations;
    f64::from(u32::try_from(all).unwrap()) / f64::from(u32::try_from(times).unwrap())
}

#[test]
fn requests_and_connections_ask_for_little_memory() {
    let scene = Scene::new();
    scene.serve(8080, echo);
    let mut stream = scene.connect(service(false));
    let mut request = || exchange(&mut stream, b"GET / HTTP/1.1\r\nhost: cart\r\n\r\n").unwrap();
    count(REQUESTS / 10, &mut request);
    let for_request = count(REQUESTS, &mut request);
    let connection = || {
        let mut stream: TcpStream = scene.connect(service(false));
        exchange(&mut stream, b"hello").unwrap();
    };
    count(CONNECTIONS / 10, connection);
    let for_connection = count(CONNECTIONS, connection);
    eprintln!("allocations: {for_request:.1} for a request, {for_connection:.1} for a connection");
    assert!(
        for_request <= 8.0 && for_connection <= 75.0,
        "{for_request:.1} for a request, {for_connection:.1} for a connection"
    );
}
