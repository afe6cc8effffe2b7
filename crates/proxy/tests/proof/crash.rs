//! The worst end of a proxy, and the want of descriptors.

use crate::peer::{as_user, echo, exchange, inside};
use crate::process::{Pods, Process};
use crate::scene::{APP, MESH, PATIENCE, service};
use remora_net::Namespace;
use remora_net::packet::Capture;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Words that must never be seen outside a tunnel, and words that must.
const SECRET: &[u8] = b"this-is-a-secret-of-the-application";
const FIRST: &[u8] = b"this-may-be-read-by-everybody";
const LAST: &[u8] = b"and-this-is-the-last-word";

/// Tells which of these words pass the pod's interface, until nobody listens.
fn eavesdrop(namespace: &Namespace) -> Receiver<&'static [u8]> {
    let namespace = namespace.clone();
    let (tell, seen) = channel();
    let (ready, opened) = channel();
    std::thread::spawn(move || {
        namespace.enter().unwrap();
        let capture = Capture::open("eth0").unwrap();
        ready.send(()).unwrap();
        let mut frame = vec![0; 70_000];
        loop {
            let Ok(Some(frame)) = capture.next(&mut frame, PATIENCE) else {
                return;
            };
            let holds = |word: &&[u8]| frame.windows(word.len()).any(|part| part == *word);
            let Some(word) = [SECRET, FIRST, LAST].into_iter().find(holds) else {
                continue;
            };
            if tell.send(word).is_err() {
                return;
            }
        }
    });
    opened.recv_timeout(PATIENCE).unwrap();
    seen
}

/// Sends words past the proxies, as a program outside the mesh would.
fn speak_openly(pods: &Pods, word: &[u8]) {
    let to = SocketAddr::new(pods.lab.eth0.peer(false), 8080);
    inside(&pods.lab.pod, async || {
        let mut stream = TcpStream::connect(to).await.unwrap();
        exchange(&mut stream, word).await.unwrap();
    });
}

/// One request that carries the secret.
async fn attempt() -> std::io::Result<()> {
    let mut stream = TcpStream::connect(service(false)).await?;
    exchange(&mut stream, SECRET).await
}

/// Asks until it works; gives how many attempts failed.
fn recover(pods: &Pods, who: &str, started: Instant) -> usize {
    let mut failed = 0;
    as_user(&pods.lab.pod, APP, async || {
        while attempt().await.is_err() {
            failed += 1;
            assert!(started.elapsed() < PATIENCE, "it does not recover");
        }
    });
    println!(
        "the {who}'s proxy answers {:?} after it was started",
        started.elapsed()
    );
    failed
}

#[test]
fn a_killed_proxy_lets_nothing_out_and_its_successor_goes_on() {
    let mut pods = Pods::new();
    let _app = pods.serve(echo);
    let seen = eavesdrop(&pods.lab.pod);
    speak_openly(&pods, FIRST);
    let heard = seen.recv_timeout(PATIENCE).unwrap();
    assert_eq!(heard, FIRST, "we hear what is said");
    let open = as_user(&pods.lab.pod, APP, async || {
        attempt().await.unwrap();
        let mut open = TcpStream::connect(service(false)).await.unwrap();
        exchange(&mut open, SECRET).await.unwrap();
        open.into_std().unwrap()
    });
    pods.client.kill();
    as_user(&pods.lab.pod, APP, async || {
        let mut open = TcpStream::from_std(open).unwrap();
        // A connection that was open goes nowhere, and neither does a new one.
        while open.write_all(SECRET).await.is_ok() {
            tokio::task::yield_now().await;
        }
        for _ in 0..50 {
            assert!(attempt().await.is_err(), "nobody is there to carry it");
        }
    });
    let started = Instant::now();
    pods.client = Process::start(&pods.lab.pod, &pods.authority, "web", "");
    pods.client.learn(MESH);
    recover(&pods, "caller", started);
    pods.server.kill();
    as_user(&pods.lab.pod, APP, async || {
        for _ in 0..50 {
            assert!(attempt().await.is_err(), "nobody is there to take it");
        }
    });
    let started = Instant::now();
    pods.server = Process::start(&pods.lab.peer, &pods.authority, "cart", "");
    pods.server.learn(MESH);
    let failed = recover(&pods, "server", started);
    assert_eq!(failed, 0, "whoever starts it again is trusted at once");
    // Everything before this has been looked at when this is.
    speak_openly(&pods, LAST);
    loop {
        let word = seen.recv_timeout(PATIENCE).unwrap();
        assert_ne!(word, SECRET, "a secret was seen on the wire");
        if word == LAST {
            return;
        }
    }
}

/// A proxy without descriptors keeps what it has, does not spin, and takes new work when there is room again.
#[test]
fn a_proxy_without_descriptors_keeps_what_it_has() {
    let pods = Pods::limited("", "ulimit -n 200;");
    let _app = pods.serve(echo);
    let past = SocketAddr::new(pods.lab.eth0.peer(false), 8080);
    inside(&pods.lab.pod, async || {
        let mut kept = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(past).await.unwrap();
            exchange(&mut stream, b"before").await.unwrap();
            kept.push(stream);
        }
        // More than it can take; the rest is turned away.
        let mut crowd = Vec::new();
        for _ in 0..300 {
            if let Ok(mut stream) = TcpStream::connect(past).await {
                let _ = stream.write_all(b"hello").await;
                crowd.push(stream);
            }
        }
        for stream in &mut kept {
            exchange(stream, b"in the crowd").await.unwrap();
        }
        let before = pods.server.busy();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let used = pods.server.busy().saturating_sub(before);
        assert!(
            used <= Duration::from_millis(60),
            "{used:?} of processor time in a second of waiting"
        );
        for stream in &mut kept {
            exchange(stream, b"still").await.unwrap();
        }
        drop(crowd);
        let started = Instant::now();
        loop {
            let again = async {
                let mut stream = TcpStream::connect(past).await?;
                exchange(&mut stream, b"after").await
            };
            if again.await.is_ok() {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "it does not recover");
        }
        for stream in &mut kept {
            exchange(stream, b"to the end").await.unwrap();
        }
    });
}
