//! The proxy's part: its ports, and the rules that lead to them.

use super::journal::Journal;
use super::serve::{self, Answer};
use anyhow::Context as _;
use remora_capture::install;
use remora_rules::options::{Environment, Settings, parse_argv};
use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

// istio: the ports every sidecar has.
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
const AGENT: u16 = 15020;
const READY: u16 = 15021;
const HEALTH: &str = "/app-health/";
const POLL: Duration = Duration::from_millis(500);

/// A proxy without a mesh: it answers instead of passing on.
pub(super) struct Proxy {
    delay: u64,
    strict: bool,
    journal: Rc<Journal>,
    ready: Rc<Cell<bool>>,
}

impl Proxy {
    pub(super) fn new(delay: u64, strict: bool, journal: Rc<Journal>) -> Self {
        Self {
            delay,
            strict,
            journal,
            ready: Rc::default(),
        }
    }

    pub(super) fn begin(self) -> anyhow::Result<()> {
        let ready = Rc::clone(&self.ready);
        serve::http(READY, move |_| Answer::now(if ready.get() { 200 } else { 503 }))?;
        let journal = Rc::clone(&self.journal);
        serve::http(AGENT, move |path| agent(path, &journal))?;
        self.journal.write("agent-up");
        tokio::task::spawn_local(async move {
            super::pause(self.delay).await;
            if let Err(error) = self.take_traffic() {
                crate::out::error(&error);
            }
        });
        Ok(())
    }

    fn take_traffic(&self) -> anyhow::Result<()> {
        serve::banner(OUTBOUND, "proxied")?;
        let inbound = serve::listener(INBOUND)?;
        let strict = self.strict;
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = inbound.accept().await {
                if !strict {
                    tokio::task::spawn_local(pass_on(stream));
                }
            }
        });
        self.ready.set(true);
        self.journal.write("proxy-ready");
        Ok(())
    }
}

fn agent(path: &str, journal: &Journal) -> Answer {
    if path == "/quitquitquit" {
        journal.write("quitquitquit");
        journal.quit().notify_one();
    }
    let port = path.strip_prefix(HEALTH).map(|rest| rest.split('/').next());
    match port.flatten().and_then(|port| port.parse().ok()) {
        Some(port) => Answer::Of(port),
        None => Answer::now(200),
    }
}

/// To the application, which sees it come from itself.
async fn pass_on(mut stream: TcpStream) {
    let Ok(wanted) = remora_net::socket::original_destination(&stream) else {
        return;
    };
    if let Ok(mut app) = TcpStream::connect((Ipv4Addr::LOCALHOST, wanted.port())).await {
        // Whoever breaks off first ends it.
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut app).await;
    }
}

/// Whether the proxy is ready in time.
pub(super) async fn comes_up(patience: Duration) -> bool {
    let asked = async {
        while !matches!(serve::status(READY, "/healthz/ready").await, Ok(Some(200))) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(patience, asked).await.is_ok()
}

/// The rules an injected init container puts in.
pub(super) fn capture(ports: &[u16], ranges: &[String]) -> anyhow::Result<()> {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let (ports, ranges) = (ports.join(","), ranges.join(","));
    let inbound = format!("15090,{READY},{AGENT}");
    let (to, from) = (OUTBOUND.to_string(), INBOUND.to_string());
    let words = [
        "-p", &to, "-z", &from, "-u", "1337", "-g", "1337", "-m", "REDIRECT", "-i", "*", "-b", "*", "-d",
        &inbound, "-o", &ports, "-x", &ranges,
    ];
    let given = parse_argv(&words).context("read the options of the capture")?;
    let settings = Settings::read(&given, &Environment::new()).context("read the options of the capture")?;
    let prepared = install::prepare(&settings)?;
    install::install(&settings, &prepared.plan)?;
    Ok(())
}
