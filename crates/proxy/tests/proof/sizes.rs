//! Great numbers: connections, bytes, portions, readers that do not read. Memory is read from the system.

use crate::peer::{as_user, echo, exchange};
use crate::process::Pods;
use crate::scene::{APP, PATIENCE, service};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const SHORT: usize = 10_000;
const IDLE: usize = 2_000;
/// At once.
const CROWD: usize = 32;
const MIB: usize = 1 << 20;

#[test]
fn ten_thousand_short_connections_leave_nothing_behind() {
    let pods = Pods::new();
    let _app = pods.serve(echo);
    let round = |count: usize| {
        as_user(&pods.lab.pod, APP, async || {
            let mut crowd = JoinSet::new();
            for client in 0..CROWD {
                crowd.spawn(async move {
                    for number in 0..count / CROWD {
                        let mut stream = TcpStream::connect(service((client + number) % 2 == 0))
                            .await
                            .unwrap();
                        exchange(&mut stream, b"short").await.unwrap();
                        // Ends with a reset, so that the pod's own ports do not run out.
                        stream.set_zero_linger().unwrap();
                    }
                });
            }
            while let Some(client) = crowd.join_next().await {
                client.unwrap();
            }
        });
    };
    round(SHORT / 4);
    let before = [pods.client.memory(), pods.server.memory()];
    round(SHORT - SHORT / 4);
    let after = [pods.client.memory(), pods.server.memory()];
    for (before, after) in before.into_iter().zip(after) {
        let grown = after.saturating_sub(before);
        // 7,500 connections that each left a kilobyte would be more.
        assert!(
            grown < 4 * MIB,
            "{grown} bytes kept after {SHORT} connections are over"
        );
    }
}

#[test]
fn two_thousand_idle_connections_cost_little_and_live() {
    let pods = Pods::new();
    let _app = pods.serve(echo);
    as_user(&pods.lab.pod, APP, async || {
        // What the first ones need stays for all.
        let warm: Vec<TcpStream> = open(CROWD).await;
        let before = [pods.client.memory(), pods.server.memory()];
        let mut idle = open(IDLE).await;
        let after = [pods.client.memory(), pods.server.memory()];
        for (who, (before, after)) in ["client", "server"]
            .into_iter()
            .zip(before.into_iter().zip(after))
        {
            let each = after.saturating_sub(before) / IDLE;
            println!("{each} bytes for an idle connection at the {who}'s proxy");
            assert!(
                each < 16 << 10,
                "{each} bytes for an idle connection at the {who}'s proxy"
            );
        }
        for stream in &mut idle {
            exchange(stream, b"alive").await.unwrap();
        }
        drop(warm);
    });
}

async fn open(count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(count);
    while streams.len() < count {
        let mut crowd = JoinSet::new();
        for number in 0..CROWD.min(count - streams.len()) {
            crowd.spawn(async move {
                let mut stream = TcpStream::connect(service(number % 2 == 0)).await.unwrap();
                exchange(&mut stream, b"hello").await.unwrap();
                stream
            });
        }
        streams.extend(crowd.join_all().await);
    }
    streams
}

#[test]
fn a_gigabyte_arrives_whole_and_is_never_kept() {
    const TOTAL: usize = 1 << 30;
    const PORTION: usize = 256 << 10;
    let pods = Pods::new();
    let _app = pods.serve(async |mut stream: TcpStream| {
        for number in 0..TOTAL / PORTION {
            let portion = vec![u8::try_from(number % 251).unwrap(); PORTION];
            if stream.write_all(&portion).await.is_err() {
                return;
            }
        }
    });
    let largest = as_user(&pods.lab.pod, APP, async || {
        let mut stream = TcpStream::connect(service(false)).await.unwrap();
        let mut portion = vec![0; PORTION];
        let mut largest = 0;
        for number in 0..TOTAL / PORTION {
            let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut portion)).await;
            read.unwrap().unwrap();
            let expected = [u8::try_from(number % 251).unwrap()];
            let same = portion[..1] == expected && portion[1..] == portion[..PORTION - 1];
            assert!(same, "portion {number} is not what was sent");
            if number % 512 == 0 {
                largest = largest.max(pods.client.memory()).max(pods.server.memory());
            }
        }
        assert_eq!(stream.read(&mut portion).await.unwrap(), 0, "and no more");
        largest
    });
    assert!(largest < 64 * MIB, "{largest} bytes of memory");
}

#[test]
fn single_bytes_arrive_each_on_its_own() {
    let pods = Pods::new();
    let _app = pods.serve(echo);
    as_user(&pods.lab.pod, APP, async || {
        for ipv6 in [false, true] {
            let mut stream = TcpStream::connect(service(ipv6)).await.unwrap();
            stream.set_nodelay(true).unwrap();
            // Each waits for its echo: a byte that is kept back would never come.
            for number in 0..1000 {
                exchange(&mut stream, &[u8::try_from(number % 256).unwrap()])
                    .await
                    .unwrap();
            }
            // And all in a row.
            for number in 0..3000 {
                stream
                    .write_u8(u8::try_from(number % 256).unwrap())
                    .await
                    .unwrap();
            }
            for number in 0..3000 {
                let heard = tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap();
                assert_eq!(heard.unwrap(), u8::try_from(number % 256).unwrap());
            }
        }
    });
}

/// The address space of both proxies is limited, so that one that kept what nobody reads would die.
#[test]
fn readers_that_do_not_read_cost_their_windows_and_no_more() {
    const READERS: usize = 60;
    let pods = Pods::limited("ulimit -v 600000;", "ulimit -v 600000;");
    let stalled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&stalled);
    let _app = pods.serve(move |mut stream: TcpStream| {
        let count = Arc::clone(&count);
        async move {
            let portion = vec![7; 256 << 10];
            let mut word = [0; 5];
            // Whoever says hello wants an echo, all others as much as there is.
            if stream.read_exact(&mut word).await.is_err() {
                return;
            }
            if &word == b"hello" {
                let _ = stream.write_all(&word).await;
                return;
            }
            while tokio::time::timeout(Duration::from_secs(1), stream.write_all(&portion))
                .await
                .is_ok_and(|w| w.is_ok())
            {}
            count.fetch_add(1, Ordering::Relaxed);
            // Until the reader has gone.
            let _ = stream.read(&mut word).await;
        }
    });
    let before = [pods.client.memory(), pods.server.memory()];
    as_user(&pods.lab.pod, APP, async || {
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let mut stream = TcpStream::connect(service(false)).await.unwrap();
            stream.write_all(b"a lot").await.unwrap();
            readers.push(stream);
        }
        let all = async {
            while stalled.load(Ordering::Relaxed) < READERS {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap();
        let after = [pods.client.memory(), pods.server.memory()];
        for (before, after) in before.into_iter().zip(after) {
            let kept = after.saturating_sub(before);
            println!("{} KiB kept for each reader", kept / READERS / 1024);
            assert!(kept < 32 * MIB, "{kept} bytes kept for readers that do not read");
        }
        drop(readers);
        // The tunnel they shared is as good as new.
        let mut stream = TcpStream::connect(service(false)).await.unwrap();
        exchange(&mut stream, b"hello").await.unwrap();
    });
}
