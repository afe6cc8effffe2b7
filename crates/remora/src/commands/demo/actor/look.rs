//! Connects again and again, and writes down what answers.

use super::journal::Journal;
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

const EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(1);

/// Whom to connect to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    name: String,
    address: SocketAddr,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not of the form NAME=ADDRESS:PORT");
        let (name, address) = text.split_once('=').ok_or_else(wrong)?;
        Ok(Self {
            name: name.to_owned(),
            address: address.parse().map_err(|_| wrong())?,
        })
    }
}

/// Looks at the network.
#[derive(Debug)]
pub(super) struct Look {
    targets: Vec<Target>,
    journal: Rc<Journal>,
    connected: Cell<bool>,
    news: Notify,
}

impl Look {
    pub(super) fn new(targets: &[Target], journal: Rc<Journal>) -> Self {
        Self {
            targets: targets.to_vec(),
            journal,
            connected: Cell::new(false),
            news: Notify::new(),
        }
    }

    pub(super) fn begin(self: &Rc<Self>, keep: bool) {
        for index in 0..self.targets.len() {
            tokio::task::spawn_local(Rc::clone(self).watch(index));
        }
        if keep && !self.targets.is_empty() {
            tokio::task::spawn_local(Rc::clone(self).keep());
        }
    }

    pub(super) const fn has_connected(&self) -> bool {
        self.connected.get()
    }

    /// Returns at the first connection that works.
    pub(super) async fn connected(&self) {
        while !self.connected.get() {
            self.news.notified().await;
        }
    }

    async fn watch(self: Rc<Self>, index: usize) {
        let target = &self.targets[index];
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = String::new();
        loop {
            ticks.tick().await;
            let state = state(target.address).await;
            if state != last {
                self.journal.write(&format!("net={} {state}", target.name));
                last.clone_from(&state);
            }
            if matches!(state.as_str(), "direct" | "proxied") {
                self.connected.set(true);
                self.news.notify_one();
            }
        }
    }

    /// Opens a connection and uses it until it breaks; then another.
    async fn keep(self: Rc<Self>) {
        let address = self.targets[0].address;
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            let Ok(mut stream) = greeted(address).await.map(|(stream, _)| stream) else {
                continue;
            };
            self.journal.write("conn-open");
            while echoed(&mut stream).await {
                ticks.tick().await;
            }
            self.journal.write("conn-broken");
        }
    }
}

/// What a connection meets: the word of whoever answers, or what became of it.
async fn state(address: SocketAddr) -> String {
    match greeted(address).await {
        Ok((_, word)) => word,
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => "broken",
            ErrorKind::TimedOut => "timeout",
            ErrorKind::WouldBlock => "silent",
            _ => "closed",
        }
        .to_owned(),
    }
}

/// A connection and the word it began with.
async fn greeted(address: SocketAddr) -> std::io::Result<(TcpStream, String)> {
    let mut stream = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await??;
    let mut word = Vec::new();
    let reading = async {
        loop {
            match stream.read_u8().await? {
                b'\n' => return Ok::<(), std::io::Error>(()),
                byte if word.len() < 64 => word.push(byte),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    };
    match tokio::time::timeout(PATIENCE, reading).await {
        Ok(read) => read?,
        Err(_) => return Err(ErrorKind::WouldBlock.into()),
    }
    Ok((stream, String::from_utf8_lossy(&word).into_owned()))
}

async fn echoed(stream: &mut TcpStream) -> bool {
    let exchange = async {
        stream.write_all(b".").await?;
        stream.read_u8().await
    };
    matches!(tokio::time::timeout(PATIENCE, exchange).await, Ok(Ok(b'.')))
}
