//! Decides whether a connection to the pod may be. Pure.
//!
//! Tunnels and captured connections are judged by the same steps: a port of proxies is refused, the workload must be
//! known to discovery and expect plain bytes, captured ones must speak what the port's mode asks for, and policy
//! must allow the caller.

use crate::inbound::Mode;
use crate::mesh::Mesh;
use crate::policy::{Connection, Judgement, Verdict};
use crate::route::RESERVED;
use crate::sniff::Speech;
use http::StatusCode;
use remora_mtls::SpiffeId;
use std::net::{IpAddr, SocketAddr};

/// By which way a connection comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// In a tunnel, on port 15008.
    Tunnel,
    /// Captured, on port 15006.
    Captured,
}

/// A connection to the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// From where.
    pub source: IpAddr,
    /// Who it is, if it proved that.
    pub id: Option<SpiffeId>,
    /// To which address and port of the workload.
    pub destination: SocketAddr,
    /// By which way.
    pub entry: Entry,
}

/// What becomes of a captured connection's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// TLS ends here, and proves who it is.
    EndTls,
    /// They are passed on as they are.
    PassOn,
    /// Nothing: it is refused.
    Refuse,
}

/// What a mode makes of what a caller speaks.
pub fn treatment(mode: Mode, speech: Speech) -> Treatment {
    match (mode, speech) {
        (Mode::Permissive, Speech::Mesh) | (Mode::Strict, Speech::Mesh | Speech::Foreign) => {
            Treatment::EndTls
        }
        (Mode::Strict, Speech::Plain) => Treatment::Refuse,
        (Mode::Permissive, Speech::Plain | Speech::Foreign) | (Mode::Disable, _) => Treatment::PassOn,
    }
}

/// Why a connection to the pod may not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It would go round in circles.
    #[error("{0} is a port of proxies")]
    Reserved(SocketAddr),
    /// Discovery has not named the workload.
    #[error("discovery has not named {0}")]
    Unknown(IpAddr),
    /// The workload wants to be told who calls, in a way that is not spoken here.
    #[error("{0} expects the PROXY protocol, which is not spoken")]
    ProxyProtocol(String),
    /// No TLS where it has to be.
    #[error("plaintext where mutual TLS is required")]
    Plaintext,
    /// By policy.
    #[error("{0}")]
    Denied(String),
    /// A request in a tunnel that cannot be meant.
    #[error("{0}")]
    BadRequest(String),
    /// The service that was asked for is not of this pod.
    #[error("{0} is not of this pod")]
    NotOurs(String),
}

impl Refused {
    /// What a tunnel answers.
    // istio: 400 for what cannot be meant, 401 for what may not be, 503 for what cannot be now.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::NotOurs(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_) | Self::Plaintext => StatusCode::UNAUTHORIZED,
            Self::Reserved(_) | Self::Unknown(_) | Self::ProxyProtocol(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What was decided about a connection to the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// The connection.
    pub arrival: Arrival,
    /// What policy says, if it was asked.
    pub judgement: Option<Judgement>,
    /// Why it may not be, if it may not.
    pub refused: Option<Refused>,
}

/// Decides.
pub fn inbound(mesh: &Mesh, arrival: Arrival) -> Inbound {
    if let Err(refused) = known(mesh, arrival.destination) {
        return Inbound {
            arrival,
            judgement: None,
            refused: Some(refused),
        };
    }
    let judgement = mesh.judge(&Connection {
        source: arrival.id.clone(),
        source_ip: arrival.source,
        destination_ip: arrival.destination.ip(),
        destination_port: arrival.destination.port(),
    });
    let refused = match &judgement.verdict {
        Verdict::Allow => None,
        Verdict::Deny(why) => Some(Refused::Denied(why.clone())),
    };
    Inbound {
        arrival,
        judgement: Some(judgement),
        refused,
    }
}

fn known(mesh: &Mesh, destination: SocketAddr) -> Result<(), Refused> {
    if RESERVED.contains(&destination.port()) {
        return Err(Refused::Reserved(destination));
    }
    let workload = mesh
        .workload(destination.ip())
        .ok_or(Refused::Unknown(destination.ip()))?;
    if workload.proxy_protocol {
        return Err(Refused::ProxyProtocol(workload.uid.clone()));
    }
    Ok(())
}

/// What a tunnel is asked for: an address of this pod, or a service this pod belongs to.
pub fn requested(mesh: &Mesh, authority: &str, local: IpAddr) -> Result<SocketAddr, Refused> {
    let nothing = || Refused::BadRequest(format!("{authority:?} is no address"));
    if let Ok(address) = authority.parse::<SocketAddr>() {
        if address.ip() != local {
            return Err(Refused::NotOurs(address.to_string()));
        }
        return Some(address).filter(|a| a.port() > 0).ok_or_else(nothing);
    }
    let (hostname, port) = authority.rsplit_once(':').ok_or_else(nothing)?;
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(nothing)?;
    if hostname.is_empty() || hostname.contains([':', '[', ']', '@']) {
        return Err(nothing());
    }
    let not_ours = || Refused::NotOurs(format!("{authority:?}"));
    let own = mesh.workload(local).ok_or(Refused::Unknown(local))?;
    let service = mesh
        .service_named(hostname, &own.namespace)
        .ok_or_else(not_ours)?;
    let endpoints = mesh.endpoints(&service.key, port);
    let here = endpoints.iter().find(|e| e.workload.uid == own.uid && e.port > 0);
    here.map(|e| SocketAddr::new(local, e.port)).ok_or_else(not_ours)
}

#[cfg(test)]
mod tests;
