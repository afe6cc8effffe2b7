//! A proxy without descriptors turns callers away instead of leaving them waiting, and recovers.
//!
//! The limit belongs to a process: the test runs itself again under a small one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails; the helpers of this file are tests too"
)]

use remora_mtls::{Authority, Chain, Credentials, Identity, PrivateKey, Roots, SpiffeId, TrustDomains};
use remora_proxy::access::Record;
use remora_proxy::mesh::Mesh;
use remora_proxy::{Context, Listeners, Settings, serve};
use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const PATIENCE: Duration = Duration::from_mins(1);
/// Enough for the test itself; the budget for connections is what is left of it.
const DESCRIPTORS: &str = "100";

#[test]
fn without_descriptors_callers_are_turned_away_and_served_again_later() {
    let exe = std::env::current_exe().unwrap();
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -n {DESCRIPTORS} && exec \"$0\" --exact --ignored --nocapture under_a_small_limit"
        ))
        .arg(exe)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn context() -> (Arc<Context>, UnboundedReceiver<Record>) {
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    let id: SpiffeId = "spiffe://td/ns/shop/sa/web".parse().unwrap();
    let key = PrivateKey::generate().unwrap();
    let authority = Authority::generate("test", now, hour).unwrap();
    let issued = authority
        .issue(&key.request(&id).unwrap(), &id, hour, now)
        .unwrap();
    let chain = Chain::from_pem(&issued.leaf).unwrap();
    let roots = Roots::from_pem(&issued.roots).unwrap();
    let credentials = Credentials::new(&key, chain, roots, &id, now).unwrap();
    let domains = TrustDomains::new::<&str>("td", &[]).unwrap();
    let identity = Arc::new(Identity::new(domains, credentials).unwrap());
    let (say, heard) = unbounded_channel();
    let log = move |record: &Record| drop(say.send(record.clone()));
    let ctx = Context::new(identity, Arc::new(Mesh::default()), Settings::default(), log);
    (Arc::new(ctx), heard)
}

async fn next(records: &mut UnboundedReceiver<Record>) -> String {
    let record = tokio::time::timeout(PATIENCE, records.recv())
        .await
        .unwrap()
        .unwrap();
    record.error.unwrap()
}

/// What becomes of a connection that says something that is no TLS. Its own end stays open.
async fn knock(socket: TcpSocket, to: SocketAddr) -> (std::io::Result<usize>, TcpStream) {
    let mut stream = socket.connect(to).await.unwrap();
    let words = b"who is there, and has a descriptor for me?";
    let mut answer = [0; 64];
    let heard = async {
        stream.write_all(words).await?;
        stream.read(&mut answer).await
    };
    let heard = tokio::time::timeout(PATIENCE, heard).await.unwrap();
    (heard, stream)
}

#[tokio::test]
#[ignore = "lowers nothing itself: run by the test above, in a process with few descriptors"]
async fn under_a_small_limit() {
    let (ctx, mut records) = context();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = listener.local_addr().unwrap();
    let listeners = Listeners {
        hbone: vec![listener],
        ..Listeners::default()
    };
    tokio::spawn(serve(ctx, listeners, std::future::pending()));
    // While there are descriptors a caller is served, as far as it goes.
    let (heard, _) = knock(TcpSocket::new_v4().unwrap(), to).await;
    assert!(heard.is_ok_and(|count| count > 0), "a TLS alert");
    assert!(next(&mut records).await.contains("TLS handshake"));
    // Made while there are any: the callers are of this process too.
    let callers: Vec<TcpSocket> = (0..5).map(|_| TcpSocket::new_v4().unwrap()).collect();
    let mut held = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        held.push(file);
    }
    let mut kept = Vec::new();
    for caller in callers {
        let (heard, stream) = knock(caller, to).await;
        assert_eq!(heard.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(next(&mut records).await, "no descriptors left");
        kept.push(stream);
    }
    drop((held, kept));
    let (heard, _) = knock(TcpSocket::new_v4().unwrap(), to).await;
    assert!(heard.is_ok());
    assert!(next(&mut records).await.contains("TLS handshake"));
    // The budget follows from the limit: more than it are refused before descriptors run out.
    let most = (100 - 64) / 3;
    let mut open = Vec::new();
    for _ in 0..most {
        open.push(TcpSocket::new_v4().unwrap().connect(to).await.unwrap());
    }
    let (heard, _) = knock(TcpSocket::new_v4().unwrap(), to).await;
    // On a machine that is very busy the first of them counts as idle by now and makes room.
    let limited = async {
        loop {
            let said = next(&mut records).await;
            if said == "too many connections" || said.contains("make room") {
                return said;
            }
        }
    };
    let said = limited.await;
    let reset = heard.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    assert_eq!(reset, said == "too many connections", "{said}");
}
