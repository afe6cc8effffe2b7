//! What actors listen on.

use anyhow::Context as _;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

const LONGEST: u64 = 16 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer to an HTTP request: a status, or that of another port.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Now(u16),
    Of(u16),
}

impl Answer {
    pub(super) const fn now(status: u16) -> Self {
        Self::Now(status)
    }
}

/// A listener on all addresses.
pub(super) fn listener(port: u16) -> anyhow::Result<TcpListener> {
    let bound = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    let listener = bound.and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.with_context(|| format!("listen on port {port}"))
}

/// Answers every connection to a port with a word, and everything after that with itself.
pub(super) fn banner(port: u16, word: &'static str) -> anyhow::Result<()> {
    let listener = listener(port)?;
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(greet(stream, word));
        }
    });
    Ok(())
}

/// Greets, then echoes. A peer that breaks off is its own business.
pub(super) async fn greet(mut stream: TcpStream, word: &str) {
    let greeting = format!("{word}\n");
    if stream.write_all(greeting.as_bytes()).await.is_ok() {
        let (mut from, mut to) = stream.split();
        let _ = tokio::io::copy(&mut from, &mut to).await;
    }
}

/// Answers HTTP on a port.
pub(super) fn http(port: u16, handler: impl Fn(&str) -> Answer + Clone + 'static) -> anyhow::Result<()> {
    let listener = listener(port)?;
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handler = handler.clone();
            tokio::task::spawn_local(async move {
                // A client that breaks off or is silent is the client's business.
                let _ = tokio::time::timeout(PATIENCE, answer(stream, handler)).await;
            });
        }
    });
    Ok(())
}

async fn answer(stream: TcpStream, handler: impl Fn(&str) -> Answer) -> std::io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut reader = BufReader::new(from.take(LONGEST));
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).await? == 0 || header.trim().is_empty() {
            break;
        }
    }
    let status = match handler(&path) {
        Answer::Now(status) => status,
        Answer::Of(port) => status_of(port, &path).await.unwrap_or(503),
    };
    let text = format!("HTTP/1.1 {status} .\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    to.write_all(text.as_bytes()).await
}

/// The status another port of the pod answers with.
async fn status_of(port: u16, path: &str) -> Option<u16> {
    status(port, path).await.ok().flatten()
}

/// One request to a port of this pod.
pub(super) async fn status(port: u16, path: &str) -> std::io::Result<Option<u16>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.take(LONGEST).read_to_string(&mut text).await?;
    Ok(text.split(' ').nth(1).and_then(|s| s.parse().ok()))
}
