//! Decides where a connection of the pod goes. Pure.
//!
//! An address means a service, a workload, or nothing of the mesh. Of a service's workloads [`crate::balance`]
//! chooses one, and another as often as one cannot be reached. A service or workload behind a waypoint is reached
//! through the waypoint only.

use crate::balance::{self, Endpoint, Load, Mode, Standing, Terms, Unfit};
use crate::context::UnknownDestinations;
use crate::mesh::{AppProtocol, Destination, Gateway, GatewayName, Mesh, Service, Tunnel, Workload};
use remora_mtls::SpiffeId;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Where proxies listen for tunnels.
pub const HBONE_PORT: u16 = 15008;
/// Ports of proxies. A connection to one of them through a proxy would go round in circles.
pub const RESERVED: [u16; 3] = [15001, 15006, HBONE_PORT];

/// Whose tunnel it is. Connections share one only if all of this is the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TunnelKey {
    /// The workload at the other end.
    pub uid: String,
    /// Where its proxy listens.
    pub address: SocketAddr,
    /// Whom its certificate must name.
    pub peer: SpiffeId,
}

impl fmt::Display for TunnelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} as {}", self.uid, self.address, self.peer)
    }
}

/// How a connection is carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// As it is.
    Plain,
    /// Through this tunnel.
    Hbone(TunnelKey),
    /// By mutual TLS as between Istio's sidecars, with whom this names.
    IstioMtls(SpiffeId),
}

/// A way to somebody.
#[derive(Debug, Clone)]
pub struct Hop {
    /// Where the connection arrives.
    pub address: SocketAddr,
    /// Whom it goes to, if that is somebody of the mesh.
    pub workload: Option<Arc<Workload>>,
    /// How.
    pub transport: Transport,
    /// What is remembered of the endpoint, where there was a choice.
    pub load: Option<Arc<Load>>,
}

impl Hop {
    /// Who has to answer.
    pub fn peer(&self) -> Option<&SpiffeId> {
        match &self.transport {
            Transport::Plain => None,
            Transport::Hbone(key) => Some(&key.peer),
            Transport::IstioMtls(peer) => Some(peer),
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// Who opens the connection.
    pub source: IpAddr,
    /// Where it was going.
    pub destination: SocketAddr,
    /// What happens to what is not of the mesh.
    pub unknown: UnknownDestinations,
    /// Another number for every connection.
    pub seed: u64,
    /// Milliseconds, from any beginning.
    pub now: u64,
}

/// Where a connection goes.
#[derive(Debug)]
pub struct Route {
    /// The service that was dialled.
    pub service: Option<Arc<Service>>,
    /// What is spoken there, where that was declared.
    pub protocol: AppProtocol,
    /// To be tried first.
    pub first: Hop,
    others: Option<Others>,
}

/// Those that can be tried when one cannot be reached.
#[derive(Debug)]
struct Others {
    endpoints: Arc<[Endpoint]>,
    balancing: Arc<Service>,
    from: Option<Arc<Workload>>,
    tried: Vec<usize>,
    via: Via,
}

/// What an endpoint is to a connection.
#[derive(Debug, Clone, Copy)]
enum Via {
    /// Its end; callers are given the family they used if the endpoint has it.
    End,
    /// The waypoint on the way there.
    Waypoint,
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
    /// A service that does not listen there.
    #[error("{service} has no port {port}")]
    NoPort {
        /// Which.
        service: String,
        /// What was dialled.
        port: u16,
    },
    /// A service with nobody behind it who could be chosen.
    #[error("{service} has no healthy workload for port {port}{}", listed(.reasons))]
    NoEndpoint {
        /// Which.
        service: String,
        /// What was dialled.
        port: u16,
        /// How many are left out for what.
        reasons: BTreeMap<Unfit, usize>,
    },
    /// The waypoint that connections have to pass is not known.
    #[error("the waypoint of {0} is not known to discovery")]
    NoWaypoint(String),
    /// A workload that can be reached through a gateway only.
    #[error("{0} is on another network, and gateways between networks are not spoken to")]
    OtherNetwork(String),
}

fn listed(reasons: &BTreeMap<Unfit, usize>) -> String {
    let each: Vec<String> = reasons
        .iter()
        .map(|(why, count)| format!("{count} {why}"))
        .collect();
    if each.is_empty() {
        return String::new();
    }
    format!(": {}", each.join(", "))
}

/// Chooses where a connection goes. `note` is told about everybody who could have been chosen.
pub fn outbound(
    mesh: &Mesh,
    ask: &Ask,
    mut note: impl FnMut(&Endpoint, &Standing),
) -> Result<Route, NoRoute> {
    let destination = ask.destination;
    let meant = mesh.destination(destination.ip(), destination.port());
    let known = !matches!(meant, Destination::Unknown);
    if RESERVED.contains(&destination.port()) && (known || destination.ip().is_loopback()) {
        return Err(NoRoute::Reserved(destination));
    }
    let from = mesh.workload(ask.source);
    match meant {
        Destination::Workload(workload) => to_workload(mesh, ask, &workload, from, &mut note),
        Destination::Service(service, endpoints) => {
            to_service(mesh, ask, service, endpoints, from, &mut note)
        }
        Destination::Unknown if ask.unknown == UnknownDestinations::Refuse => {
            Err(NoRoute::Unknown(destination))
        }
        Destination::Unknown => Ok(straight(None, AppProtocol::Unknown, plain(destination))),
    }
}

fn to_workload(
    mesh: &Mesh,
    ask: &Ask,
    workload: &Arc<Workload>,
    from: Option<Arc<Workload>>,
    note: &mut impl FnMut(&Endpoint, &Standing),
) -> Result<Route, NoRoute> {
    if from
        .as_ref()
        .is_some_and(|from| from.place.network != workload.place.network)
    {
        return Err(NoRoute::OtherNetwork(workload.uid.clone()));
    }
    if let Some(gateway) = &workload.waypoint
        && let Some(route) = through(mesh, ask, gateway, &workload.uid, from, note)?
    {
        return Ok(route);
    }
    let hop = end(workload, ask.destination, None);
    Ok(straight(None, AppProtocol::Unknown, hop))
}

fn to_service(
    mesh: &Mesh,
    ask: &Ask,
    service: Arc<Service>,
    endpoints: Arc<[Endpoint]>,
    from: Option<Arc<Workload>>,
    note: &mut impl FnMut(&Endpoint, &Standing),
) -> Result<Route, NoRoute> {
    let port = ask.destination.port();
    let protocol = service.port(port).map(|p| p.protocol).unwrap_or_default();
    if let Some(gateway) = &service.waypoint
        && let Some(mut route) = through(mesh, ask, gateway, &service.key, from.clone(), note)?
    {
        (route.service, route.protocol) = (Some(service), protocol);
        return Ok(route);
    }
    if service.balancing.mode == Mode::Passthrough {
        return Ok(straight(Some(service), protocol, plain(ask.destination)));
    }
    if endpoints.is_empty() && !service.ports.is_empty() && service.port(port).is_none() {
        let service = service.key.clone();
        return Err(NoRoute::NoPort { service, port });
    }
    let others = Others {
        endpoints,
        balancing: Arc::clone(&service),
        from,
        tried: Vec::new(),
        via: Via::End,
    };
    let mut route = balanced(ask, others, note)?;
    (route.service, route.protocol) = (Some(service), protocol);
    Ok(route)
}

/// Through the waypoint of somebody. Nothing if the caller is that waypoint itself.
fn through(
    mesh: &Mesh,
    ask: &Ask,
    gateway: &Gateway,
    whose: &str,
    from: Option<Arc<Workload>>,
    note: &mut impl FnMut(&Endpoint, &Standing),
) -> Result<Option<Route>, NoRoute> {
    let unknown = || NoRoute::NoWaypoint(whose.to_owned());
    let waypoint = match &gateway.to {
        GatewayName::Service(key) => mesh.service(key),
        GatewayName::Address(address) => match mesh.destination(*address, gateway.port) {
            Destination::Service(service, _) => Some(service),
            Destination::Workload(workload) => {
                let key = tunnel(&workload, SocketAddr::new(*address, gateway.port));
                let hop = Hop {
                    address: ask.destination,
                    workload: Some(workload),
                    transport: Transport::Hbone(key),
                    load: None,
                };
                return Ok(Some(straight(None, AppProtocol::Unknown, hop)));
            }
            Destination::Unknown => None,
        },
    }
    .ok_or_else(unknown)?;
    let endpoints = mesh.endpoints(&waypoint.key, gateway.port);
    let is_caller = |e: &Endpoint| from.as_ref().is_some_and(|from| from.uid == e.workload.uid);
    if endpoints.iter().any(is_caller) {
        return Ok(None);
    }
    let others = Others {
        endpoints,
        balancing: waypoint,
        from,
        tried: Vec::new(),
        via: Via::Waypoint,
    };
    balanced(ask, others, note).map(Some)
}

fn balanced(
    ask: &Ask,
    mut others: Others,
    note: &mut impl FnMut(&Endpoint, &Standing),
) -> Result<Route, NoRoute> {
    let mut reasons = BTreeMap::new();
    let first = others.next(ask, &mut |endpoint, standing| {
        note(endpoint, standing);
        if let Standing::Unfit(why) = standing {
            *reasons.entry(why.clone()).or_default() += 1;
        }
    });
    let Some(first) = first else {
        return Err(NoRoute::NoEndpoint {
            service: others.balancing.key.clone(),
            port: ask.destination.port(),
            reasons,
        });
    };
    Ok(Route {
        service: None,
        protocol: AppProtocol::Unknown,
        first,
        others: Some(others),
    })
}

impl Route {
    /// Another one to try, after those before could not be reached.
    pub fn next(&mut self, ask: &Ask) -> Option<Hop> {
        self.others.as_mut()?.next(ask, &mut |_, _| ())
    }
}

impl Others {
    fn next(&mut self, ask: &Ask, note: &mut impl FnMut(&Endpoint, &Standing)) -> Option<Hop> {
        let terms = Terms {
            balancing: &self.balancing.balancing,
            from: self.from.as_ref().map(|from| &from.place),
            source: ask.source,
            seed: ask.seed,
            now: ask.now,
            tried: &self.tried,
        };
        let chosen = balance::choose(&self.endpoints, &terms, |index, standing| {
            if let Some(endpoint) = self.endpoints.get(index) {
                note(endpoint, standing);
            }
        })?;
        self.tried.push(chosen);
        let endpoint = self.endpoints.get(chosen)?;
        let address = endpoint.address(ask.destination.ip())?;
        let load = Some(Arc::clone(&endpoint.load));
        Some(match self.via {
            Via::End => end(&endpoint.workload, address, load),
            Via::Waypoint => Hop {
                address: ask.destination,
                workload: Some(Arc::clone(&endpoint.workload)),
                transport: Transport::Hbone(tunnel(&endpoint.workload, address)),
                load,
            },
        })
    }
}

impl Endpoint {
    /// Where it is reached: in the family that was used, if it has it.
    pub fn address(&self, like: IpAddr) -> Option<SocketAddr> {
        let mut own = self.workload.addresses.iter();
        let same = own.clone().find(|a| a.is_ipv4() == like.is_ipv4());
        same.or_else(|| own.next())
            .map(|a| SocketAddr::new(*a, self.port))
    }
}

fn straight(service: Option<Arc<Service>>, protocol: AppProtocol, first: Hop) -> Route {
    Route {
        service,
        protocol,
        first,
        others: None,
    }
}

fn plain(address: SocketAddr) -> Hop {
    Hop {
        address,
        workload: None,
        transport: Transport::Plain,
        load: None,
    }
}

fn end(workload: &Arc<Workload>, address: SocketAddr, load: Option<Arc<Load>>) -> Hop {
    let transport = match workload.tunnel {
        Tunnel::None => Transport::Plain,
        Tunnel::Hbone => Transport::Hbone(tunnel(workload, SocketAddr::new(address.ip(), HBONE_PORT))),
        Tunnel::IstioMtls => Transport::IstioMtls(workload.id.clone()),
    };
    Hop {
        address,
        workload: Some(Arc::clone(workload)),
        transport,
        load,
    }
}

fn tunnel(workload: &Workload, address: SocketAddr) -> TunnelKey {
    TunnelKey {
        uid: workload.uid.clone(),
        address,
        peer: workload.id.clone(),
    }
}
