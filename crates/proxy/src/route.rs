//! Decides where a connection of the pod goes. Pure.

use crate::context::UnknownDestinations;
use crate::mesh::{Destination, Mesh, Tunnel, Workload};
use std::net::SocketAddr;
use std::sync::Arc;

/// Ports of proxies. A connection to one of them through a proxy would go round in circles.
pub const RESERVED: [u16; 3] = [15001, 15006, 15008];

/// A way to somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hop {
    /// As it is.
    Plain(SocketAddr),
    /// Through the tunnel to a workload, to this address of its own.
    Hbone(Arc<Workload>, SocketAddr),
    /// By mutual TLS as between Istio's sidecars.
    IstioMtls(Arc<Workload>, SocketAddr),
}

/// Where a connection goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The service that was dialled.
    pub service: Option<String>,
    /// To be tried in this order.
    pub hops: Vec<Hop>,
}

/// Why a connection goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoute {
    /// It would come back.
    #[error("{0} is a port of proxies")]
    Reserved(SocketAddr),
    /// Not of the mesh, and only the mesh is allowed.
    #[error("{0} is not of the mesh, and only the mesh may be called")]
    Unknown(SocketAddr),
    /// A service without anybody behind it.
    #[error("{service} has no healthy workload for port {port}")]
    NoEndpoint {
        /// Which.
        service: String,
        /// What was dialled.
        port: u16,
    },
    /// A workload without addresses.
    #[error("{0} has no address")]
    NoAddress(String),
}

/// Chooses. `turn` makes one connection after the other start at another endpoint.
pub fn outbound(
    mesh: &Mesh,
    destination: SocketAddr,
    unknown: UnknownDestinations,
    turn: usize,
) -> Result<Route, NoRoute> {
    if RESERVED.contains(&destination.port()) {
        return Err(NoRoute::Reserved(destination));
    }
    match mesh.destination(destination.ip(), destination.port()) {
        Destination::Workload(workload) => Ok(Route {
            service: None,
            hops: vec![hop(&workload, destination)],
        }),
        Destination::Service(service, endpoints) => {
            let mut hops = Vec::with_capacity(endpoints.len());
            for endpoint in &endpoints {
                let own = endpoint.workload.addresses.iter();
                // The family the caller used, if the workload has it.
                let address = own
                    .clone()
                    .find(|a| a.is_ipv4() == destination.is_ipv4())
                    .or_else(|| own.clone().next())
                    .ok_or_else(|| NoRoute::NoAddress(endpoint.workload.uid.clone()))?;
                hops.push(hop(&endpoint.workload, SocketAddr::new(*address, endpoint.port)));
            }
            if hops.is_empty() {
                return Err(NoRoute::NoEndpoint {
                    service: service.key.clone(),
                    port: destination.port(),
                });
            }
            let first = turn % hops.len();
            hops.rotate_left(first);
            Ok(Route {
                service: Some(service.hostname.clone()),
                hops,
            })
        }
        Destination::Unknown if unknown == UnknownDestinations::Refuse => Err(NoRoute::Unknown(destination)),
        Destination::Unknown => Ok(Route {
            service: None,
            hops: vec![Hop::Plain(destination)],
        }),
    }
}

fn hop(workload: &Arc<Workload>, address: SocketAddr) -> Hop {
    match workload.tunnel {
        Tunnel::None => Hop::Plain(address),
        Tunnel::Hbone => Hop::Hbone(Arc::clone(workload), address),
        Tunnel::IstioMtls => Hop::IstioMtls(Arc::clone(workload), address),
    }
}
