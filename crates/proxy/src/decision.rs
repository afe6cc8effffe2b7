//! Everything that would happen to a connection, without sending a byte.
//!
//! Built by the functions that decide about real connections: [`route::outbound`] for the way out, [`admit::inbound`]
//! for the arrival at whoever was chosen, as far as this proxy knows the policies there.

use crate::admit::{self, Arrival, Entry, Inbound};
use crate::balance::Standing;
use crate::mesh::{AppProtocol, Mesh, Service, Tunnel, Workload};
use crate::policy::{Ground, Part};
use crate::route::{self, Ask, Hop, NoRoute, Transport};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// What would happen to a connection.
#[derive(Debug)]
pub struct Decision {
    /// On its way out, at the proxy of the one who opens it.
    pub outbound: Outbound,
    /// At its arrival; nothing if it arrives at nobody of the mesh, or if what is decided there is not known here.
    pub inbound: Option<Inbound>,
    /// The policies that the arrival rests on, with what is not enforced as their authors wrote it.
    pub grounds: Vec<Ground>,
    /// The arrival is in another namespace, whose policies this proxy may not have been told.
    pub elsewhere: bool,
}

/// What would happen on the way out.
#[derive(Debug)]
pub struct Outbound {
    /// Who opens it.
    pub source: IpAddr,
    /// The workload that is, if one is known.
    pub from: Option<Arc<Workload>>,
    /// Where it goes.
    pub destination: SocketAddr,
    /// The service that is.
    pub service: Option<Arc<Service>>,
    /// What is spoken there, where that is declared.
    pub protocol: AppProtocol,
    /// Everybody who could be chosen.
    pub candidates: Vec<Candidate>,
    /// Who is chosen and how it is reached, or why it goes nowhere.
    pub route: Result<Hop, NoRoute>,
}

/// Somebody who could be chosen.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Who.
    pub workload: Arc<Workload>,
    /// Where.
    pub address: Option<SocketAddr>,
    /// Whether, and why not.
    pub standing: Standing,
    /// Connections open now.
    pub open: u32,
    /// How long connecting took lately.
    pub latency: Option<Duration>,
}

impl Decision {
    /// Decides, and changes nothing.
    pub fn new(mesh: &Mesh, ask: &Ask) -> Self {
        let outbound = Outbound::new(mesh, ask);
        let hop = outbound.route.as_ref().ok();
        let there = hop.and_then(|hop| hop.workload.as_ref());
        let own = outbound.from.as_ref().map(|from| &from.namespace);
        let elsewhere = there.is_some_and(|there| own != Some(&there.namespace));
        // Proxies are told policies of their own namespace; of others, perhaps.
        let untold = elsewhere && there.is_some_and(|there| mesh.missing_policy(there).is_some());
        let arrival = hop.filter(|_| !untold).and_then(|hop| arrival(&outbound, hop));
        let inbound = arrival.map(|arrival| admit::inbound(mesh, arrival));
        let judged = inbound
            .as_ref()
            .and_then(|inbound| Some((inbound.arrival.destination.ip(), inbound.judgement.as_ref()?)));
        let grounds = judged.map(|(address, judgement)| mesh.grounds(address, judgement));
        Self {
            outbound,
            inbound,
            grounds: grounds.unwrap_or_default(),
            elsewhere,
        }
    }

    /// Whether bytes would flow.
    pub fn is_allowed(&self) -> bool {
        let refused = self
            .inbound
            .as_ref()
            .is_some_and(|inbound| inbound.refused.is_some());
        self.outbound.route.is_ok() && !refused
    }
}

impl Outbound {
    fn new(mesh: &Mesh, ask: &Ask) -> Self {
        let mut candidates = Vec::new();
        let route = route::outbound(mesh, ask, |endpoint, standing| {
            candidates.push(Candidate {
                workload: Arc::clone(&endpoint.workload),
                address: endpoint.address(ask.destination.ip()),
                standing: standing.clone(),
                open: endpoint.load.open(),
                latency: endpoint.load.latency(),
            });
        });
        let (service, protocol, route) = match route {
            Ok(route) => (route.service, route.protocol, Ok(route.first)),
            Err(error) => (None, AppProtocol::Unknown, Err(error)),
        };
        Self {
            source: ask.source,
            from: mesh.workload(ask.source),
            destination: ask.destination,
            service,
            protocol,
            candidates,
            route,
        }
    }
}

/// How the connection looks to the proxy it arrives at. A waypoint has policies of its own, which nobody told us.
fn arrival(outbound: &Outbound, hop: &Hop) -> Option<Arrival> {
    let workload = hop.workload.as_ref()?;
    if !workload.addresses.contains(&hop.address.ip()) {
        return None;
    }
    let (entry, proves) = match hop.transport {
        Transport::Plain => (Entry::Captured, false),
        Transport::Hbone(_) => (Entry::Tunnel, true),
        Transport::IstioMtls(_) => (Entry::Captured, true),
    };
    // A workload without a proxy has nobody who would refuse.
    if workload.tunnel == Tunnel::None && workload.policies.is_empty() {
        return None;
    }
    let id = outbound
        .from
        .as_ref()
        .filter(|_| proves)
        .map(|from| from.id.clone());
    Some(Arrival {
        source: outbound.source,
        id,
        destination: hop.address,
        entry,
    })
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.outbound)?;
        if self.elsewhere {
            writeln!(
                f,
                "arrives in another namespace, of whose policies this proxy knows what it was told"
            )?;
        }
        let Some(inbound) = &self.inbound else {
            return Ok(());
        };
        let way = match inbound.arrival.entry {
            Entry::Tunnel => "in a tunnel",
            Entry::Captured => "captured",
        };
        write!(f, "arrives at {} {way}", inbound.arrival.destination)?;
        match &inbound.arrival.id {
            Some(id) => writeln!(f, " from {id}")?,
            None => writeln!(f, " from nobody who proved a name")?,
        }
        if let Some(judgement) = &inbound.judgement
            && let Some(rule) = &judgement.by
        {
            writeln!(f, "decided by {rule}")?;
        }
        for ground in &self.grounds {
            // The line above names the one that decided.
            if !matches!(ground.part, Part::Decided(_)) {
                writeln!(f, "{ground}")?;
            }
            for part in &ground.not_enforced {
                writeln!(f, "  not enforced as written: {}", Plain(part))?;
            }
        }
        match &inbound.refused {
            Some(why) => writeln!(f, "refused: {why}"),
            None => writeln!(f, "allowed"),
        }?;
        match inbound
            .judgement
            .as_ref()
            .and_then(|judgement| judgement.dry_run.as_ref())
        {
            Some(crate::policy::Verdict::Allow) => writeln!(f, "on trial: would be allowed"),
            Some(crate::policy::Verdict::Deny(why)) => writeln!(f, "on trial: would be refused, {why}"),
            None => Ok(()),
        }
    }
}

/// Text of a policy's author, without anything that a terminal would obey.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::fmt::Write as _;
        let obeyed = |c: char| {
            c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        let mut letters = self.0.chars();
        letters.try_for_each(|c| f.write_char(if obeyed(c) { '\u{fffd}' } else { c }))
    }
}

impl fmt::Display for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        if let Some(from) = &self.from {
            write!(f, " ({})", from.uid)?;
        }
        writeln!(f, " to {}", self.destination)?;
        if let Some(service) = &self.service {
            writeln!(f, "service {}", service.key)?;
            for note in &service.left_aside {
                writeln!(f, "  left aside: {note}")?;
            }
        }
        for candidate in &self.candidates {
            write!(f, "  {}", candidate.workload.uid)?;
            if let Some(address) = candidate.address {
                write!(f, " at {address}")?;
            }
            write!(f, ": {}, {} open", candidate.standing, candidate.open)?;
            match candidate.latency {
                Some(latency) => writeln!(f, ", connects in {} us", latency.as_micros())?,
                None => writeln!(f)?,
            }
        }
        match &self.route {
            Err(error) => writeln!(f, "goes nowhere: {error}"),
            Ok(hop) => match &hop.transport {
                Transport::Plain => writeln!(f, "goes to {} as it is", hop.address),
                Transport::Hbone(key) => writeln!(f, "goes to {} in the tunnel to {key}", hop.address),
                Transport::IstioMtls(peer) => {
                    writeln!(f, "goes to {} by mutual TLS with {peer}", hop.address)
                }
            },
        }
    }
}
