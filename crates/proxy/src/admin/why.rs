//! What would happen to a connection, for people and programs.

use super::{Answer, json, text};
use crate::admit::Entry;
use crate::context::Context;
use crate::decision::Decision;
use crate::dns::names::{Client, find};
use crate::policy::{Ground, Part, Verdict};
use crate::route::Transport;
use http::{HeaderValue, StatusCode};
use remora_mtls::SpiffeId;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

pub(super) fn answer(ctx: &Context, source: &str, destination: &str, as_json: bool) -> Answer {
    let decided = who(ctx, source).and_then(|source| Ok(ctx.why(source, place(ctx, destination)?)));
    match decided {
        Ok(decision) => {
            let mut answer = if as_json {
                json(&value(&decision))
            } else {
                text(StatusCode::OK, decision.to_string())
            };
            // For commands, which have an exit code to choose.
            let allowed = HeaderValue::from_static(if decision.is_allowed() { "true" } else { "false" });
            answer.headers_mut().insert("remora-allowed", allowed);
            answer
        }
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}

/// An address, or the address of a workload by its uid or as `NAMESPACE/NAME`.
fn who(ctx: &Context, source: &str) -> Result<IpAddr, String> {
    if let Ok(address) = source.parse() {
        return Ok(address);
    }
    let named = |uid: &str, namespace: &str, name: &str| {
        uid == source || source.split_once('/') == Some((namespace, name))
    };
    let workloads = ctx.mesh.workloads();
    let found = workloads.iter().find(|w| named(&w.uid, &w.namespace, &w.name));
    let Some(found) = found else {
        return Err(format!(
            "src={source:?} is neither an address nor a workload as NAMESPACE/NAME"
        ));
    };
    let address = found.addresses.first();
    address
        .copied()
        .ok_or_else(|| format!("{} has no address", found.uid))
}

/// An address and port, or a name of the mesh and a port.
fn place(ctx: &Context, destination: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = destination.parse() {
        return Ok(address);
    }
    let wrong = || format!("dst={destination:?} is no ADDRESS:PORT and no NAME:PORT");
    let (name, port) = destination.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let client = ctx
        .dns
        .as_ref()
        .map_or_else(|| usual(ctx), |dns| dns.client().clone());
    let found = ctx.mesh.names(|directory| find(&name, &client, directory));
    let address = found.and_then(|found| found.addresses.first().copied());
    let address = address.ok_or_else(|| format!("the mesh knows nobody named {name:?}"))?;
    Ok(SocketAddr::new(address, port))
}

/// What names mean in our own namespace, where nobody said.
fn usual(ctx: &Context) -> Client {
    let id = ctx.identity.id();
    let (namespace, _) = id.service_account().unwrap_or_default();
    Client {
        namespace: namespace.to_owned(),
        domain: "cluster.local".to_owned(),
        search: Vec::new(),
    }
}

fn ground(ground: &Ground) -> Value {
    let (part, rule) = match ground.part {
        Part::Decided(rule) => ("decided", rule),
        Part::NoMatch(_) => ("no match", None),
        Part::Origin => ("PeerAuthentication", None),
    };
    json!({
        "policy": ground.policy,
        "action": if ground.denies { "DENY" } else { "ALLOW" },
        "part": part,
        "rule": rule,
        "notEnforcedAsWritten": ground.not_enforced,
    })
}

fn value(decision: &Decision) -> Value {
    let outbound = &decision.outbound;
    let candidates = outbound.candidates.iter().map(|candidate| {
        json!({
            "workload": candidate.workload.uid,
            "address": candidate.address,
            "standing": candidate.standing.to_string(),
            "open": candidate.open,
            "connectsInMicroseconds": candidate.latency.map(|latency| latency.as_micros()),
        })
    });
    let route = outbound.route.as_ref();
    json!({
        "allowed": decision.is_allowed(),
        "outbound": {
            "source": outbound.source,
            "workload": outbound.from.as_ref().map(|from| from.uid.clone()),
            "destination": outbound.destination,
            "service": outbound.service.as_ref().map(|service| service.key.clone()),
            "candidates": candidates.collect::<Vec<_>>(),
            "goesNowhere": route.err().map(ToString::to_string),
            "route": route.ok().map(|hop| json!({
                "address": hop.address,
                "workload": hop.workload.as_ref().map(|workload| workload.uid.clone()),
                "carriage": match &hop.transport {
                    Transport::Plain => "plain",
                    Transport::Hbone(_) => "hbone",
                    Transport::IstioMtls(_) => "istio_mtls",
                },
                "peer": hop.peer().map(SpiffeId::as_str),
            })),
        },
        "inbound": decision.inbound.as_ref().map(|inbound| json!({
            "destination": inbound.arrival.destination,
            "entry": match inbound.arrival.entry {
                Entry::Tunnel => "tunnel",
                Entry::Captured => "captured",
            },
            "identity": inbound.arrival.id.as_ref().map(SpiffeId::as_str),
            "decidedBy": inbound.judgement.as_ref().and_then(|j| j.by.as_ref()).map(ToString::to_string),
            "policies": decision.grounds.iter().map(ground).collect::<Vec<_>>(),
            "refused": inbound.refused.as_ref().map(ToString::to_string),
            "onTrial": inbound.judgement.as_ref().and_then(|j| j.dry_run.as_ref()).map(|verdict| match verdict {
                Verdict::Allow => "would be allowed".to_owned(),
                Verdict::Deny(why) => format!("would be refused: {why}"),
            }),
        })),
    })
}
