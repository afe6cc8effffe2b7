//! Who is measured.

pub mod envoy;
pub mod nginx;
pub mod remora;

use crate::load;
use crate::process::Process;
use crate::world::{World, server};
use crate::{origin, world};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What is between the client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Both proxies pass bytes on as they are.
    Plain,
    /// Mutual TLS between the proxies.
    Mtls,
}

impl Way {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Mtls => "mTLS",
        }
    }
}

/// A program, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contender {
    /// Nothing between client and server, yet the capture rules in place.
    Direct,
    /// This project's, as a user runs it; another build of it has another name.
    Remora(String, PathBuf),
    /// Envoy with a static configuration.
    Envoy(PathBuf),
    /// nginx's stream module. It cannot be captured, so it is dialled.
    Nginx,
}

/// What runs for one measurement.
pub struct Running {
    /// The client's proxy, then the server's.
    pub proxies: Vec<Process>,
    /// Not measured.
    pub others: Vec<Process>,
}

impl Contender {
    /// For tables.
    pub fn name(&self) -> &str {
        match self {
            Self::Direct => "direct",
            Self::Remora(name, _) => name,
            Self::Envoy(_) => "Envoy",
            Self::Nginx => "nginx",
        }
    }

    /// Starts what is not measured, and the server's proxy.
    pub fn start_server(&self, world: &World, way: Way, services: usize) -> Running {
        let mut running = Running {
            proxies: Vec::new(),
            others: Vec::new(),
        };
        match self {
            Self::Direct => {}
            Self::Remora(_, path) => {
                running.others.push(remora::control(path, world, way, services));
                running.proxies.push(remora::sidecar(path, world, false));
            }
            Self::Envoy(path) => running
                .proxies
                .push(envoy::start(path, world, way, services, false)),
            Self::Nginx => running.proxies.push(nginx::start(world, way, false)),
        }
        running
    }

    /// Starts the client's proxy.
    pub fn start_client(&self, world: &World, way: Way, services: usize, running: &mut Running) {
        let client = match self {
            Self::Direct => return,
            Self::Remora(_, path) => remora::sidecar(path, world, true),
            Self::Envoy(path) => envoy::start(path, world, way, services, true),
            Self::Nginx => nginx::start(world, way, true),
        };
        running.proxies.insert(0, client);
    }

    /// Starts everything and waits for the first answer.
    pub fn start(&self, world: &World, way: Way, services: usize) -> Running {
        let mut running = self.start_server(world, way, services);
        self.start_client(world, way, services, &mut running);
        let (to, uid) = (self.http(), self.uid());
        let answered = world.load(uid, move || {
            load::first_answer(to, Duration::from_secs(60), Duration::from_millis(10))
        });
        assert!(
            answered.is_some(),
            "{} ({}) never answered:\n{}",
            self.name(),
            way.name(),
            world.words()
        );
        running
    }

    /// Where the client asks.
    pub fn http(&self) -> SocketAddr {
        match self {
            Self::Direct => server(origin::HTTP_DIRECT),
            Self::Nginx => SocketAddr::from(([127, 0, 0, 1], 16000)),
            Self::Remora(..) | Self::Envoy(_) => server(origin::HTTP),
        }
    }

    /// Where it sends much.
    pub fn sink(&self) -> SocketAddr {
        match self {
            Self::Direct => server(origin::SINK_DIRECT),
            Self::Nginx => SocketAddr::from(([127, 0, 0, 1], 16001)),
            Self::Remora(..) | Self::Envoy(_) => server(origin::SINK),
        }
    }

    /// As whom: direct means not captured.
    pub fn uid(&self) -> u32 {
        match self {
            Self::Direct => world::PROXY,
            _ => world::APP,
        }
    }
}
