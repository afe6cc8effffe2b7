//! What a proxy knows, as JSON.

use crate::access::log::Level;
use crate::access::timestamp;
use crate::connections::Connection;
use crate::context::{Context, UnknownDestinations};
use crate::inbound::Mode;
use crate::mesh::{Service, Tunnel, Workload};
use crate::policy::{Policy, Scope};
use remora_mtls::SpiffeId;
use remora_xds::proto::security as proto;
use remora_xds::proto::security::string_match::MatchType;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Everything but keys.
pub(super) fn config(ctx: &Context) -> Value {
    let (workloads, services) = (ctx.mesh.workloads(), ctx.mesh.services());
    json!({
        "settings": settings(ctx),
        "certificate": certificate(ctx),
        "discovery": {
            "updates": *ctx.mesh.changes().borrow(),
            "lastUpdate": ctx.mesh.changed_at().map(timestamp),
        },
        "workloads": workloads.iter().map(|w| workload(w)).collect::<Vec<_>>(),
        "services": services.iter().map(|s| service(s)).collect::<Vec<_>>(),
        "policies": ctx.mesh.policies().iter().map(policy).collect::<Vec<_>>(),
        "policiesNotUnderstood": ctx.mesh.broken_policies(),
    })
}

fn settings(ctx: &Context) -> Value {
    let limits = &ctx.limits;
    let mode = |mode: Mode| match mode {
        Mode::Permissive => "PERMISSIVE",
        Mode::Strict => "STRICT",
        Mode::Disable => "DISABLE",
    };
    let ports: BTreeMap<String, &str> = ctx
        .modes
        .ports
        .iter()
        .map(|(port, of)| (port.to_string(), mode(*of)))
        .collect();
    json!({
        "outboundTrafficPolicy": match ctx.unknown {
            UnknownDestinations::Pass => "ALLOW_ANY",
            UnknownDestinations::Refuse => "REGISTRY_ONLY",
        },
        "mtlsMode": {"default": mode(ctx.modes.default), "ports": ports},
        "limits": {
            "connections": limits.connections,
            "handshake": seconds(limits.handshake),
            "connect": seconds(limits.connect),
            "discovery": seconds(limits.discovery),
            "sniff": seconds(limits.sniff),
            "idle": seconds(limits.idle),
            "poolIdle": seconds(limits.pool_idle),
            "drain": seconds(limits.drain),
            "attempts": limits.attempts,
        },
        "accessLog": ctx.access_log.as_ref().map_or(Level::Off, crate::access::Log::level).word(),
        "dns": ctx.dns.as_ref().map(|dns| {
            let client = dns.client();
            json!({
                "namespace": client.namespace,
                "domain": client.domain,
                "search": client.search,
                "servers": dns.servers(),
            })
        }),
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn certificate(ctx: &Context) -> Value {
    let credentials = ctx.identity.credentials();
    let chain = credentials.chain();
    json!({
        "identity": credentials.id().as_str(),
        "notBefore": timestamp(chain.not_before()),
        "notAfter": timestamp(chain.not_after()),
        "generation": ctx.identity.generation_number(),
        "trustDomain": ctx.identity.domains().own(),
    })
}

fn workload(workload: &Workload) -> Value {
    let services = workload.services.iter();
    let services: BTreeMap<&String, Vec<String>> = services
        .map(|(name, ports)| {
            (
                name,
                ports.iter().map(|(port, own)| format!("{port}:{own}")).collect(),
            )
        })
        .collect();
    json!({
        "uid": workload.uid,
        "name": workload.name,
        "namespace": workload.namespace,
        "addresses": workload.addresses,
        "hostname": workload.hostname,
        "identity": workload.id.as_str(),
        "tunnel": match workload.tunnel {
            Tunnel::None => "NONE",
            Tunnel::Hbone => "HBONE",
            Tunnel::IstioMtls => "LEGACY_ISTIO_MTLS",
        },
        "healthy": workload.healthy,
        "node": workload.place.node,
        "cluster": workload.place.cluster,
        "policies": workload.policies,
        "services": services,
    })
}

fn service(service: &Service) -> Value {
    let ports = service
        .ports
        .iter()
        .map(|port| format!("{}:{}", port.port, port.target));
    json!({
        "key": service.key,
        "hostname": service.hostname,
        "addresses": service.addresses,
        "ports": ports.collect::<Vec<_>>(),
        "private": service.private,
        "leftAside": service.left_aside,
    })
}

fn policy(policy: &Policy) -> Value {
    json!({
        "key": policy.key,
        "namespace": policy.namespace,
        "scope": match policy.scope {
            Scope::Global => "GLOBAL",
            Scope::Namespace => "NAMESPACE",
            Scope::Workload => "WORKLOAD_SELECTOR",
        },
        "action": if policy.denies() { "DENY" } else { "ALLOW" },
        "dryRun": policy.is_dry_run(),
        "rules": policy.rules().iter().map(rule).collect::<Vec<_>>(),
    })
}

/// All clauses of a rule, any match of a clause.
fn rule(rule: &proto::Rule) -> Vec<Vec<Value>> {
    let clauses = rule.clauses.iter();
    clauses
        .map(|clause| clause.matches.iter().map(conditions).collect())
        .collect()
}

fn conditions(given: &proto::Match) -> Value {
    let texts = |list: &[proto::StringMatch]| list.iter().map(pattern).collect::<Vec<_>>();
    let ranges = |list: &[proto::Address]| list.iter().map(range).collect::<Vec<_>>();
    let ports = |list: &[u32]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let accounts = |list: &[proto::ServiceAccountMatch]| {
        let name = |a: &proto::ServiceAccountMatch| format!("{}/{}", a.namespace, a.service_account);
        list.iter().map(name).collect::<Vec<_>>()
    };
    let all = [
        ("namespaces", texts(&given.namespaces)),
        ("notNamespaces", texts(&given.not_namespaces)),
        ("principals", texts(&given.principals)),
        ("notPrincipals", texts(&given.not_principals)),
        ("sourceIps", ranges(&given.source_ips)),
        ("notSourceIps", ranges(&given.not_source_ips)),
        ("destinationIps", ranges(&given.destination_ips)),
        ("notDestinationIps", ranges(&given.not_destination_ips)),
        ("ports", ports(&given.destination_ports)),
        ("notPorts", ports(&given.not_destination_ports)),
        ("serviceAccounts", accounts(&given.service_accounts)),
        ("notServiceAccounts", accounts(&given.not_service_accounts)),
    ];
    let given = all.into_iter().filter(|(_, list)| !list.is_empty());
    given
        .map(|(name, list)| (name.to_owned(), Value::from(list)))
        .collect::<Map<_, _>>()
        .into()
}

fn pattern(text: &proto::StringMatch) -> String {
    match &text.match_type {
        Some(MatchType::Exact(text)) => text.clone(),
        Some(MatchType::Prefix(text)) => format!("{text}*"),
        Some(MatchType::Suffix(text)) => format!("*{text}"),
        Some(MatchType::Presence(_)) => "*".to_owned(),
        None => String::new(),
    }
}

fn range(range: &proto::Address) -> String {
    let v4 = <[u8; 4]>::try_from(range.address.as_slice()).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(range.address.as_slice()).map(IpAddr::from));
    // Ranges of another size are refused when a policy is read.
    address.map_or(String::new(), |address| format!("{address}/{}", range.length))
}

/// Connections that are open, the oldest first.
pub(super) fn connections(ctx: &Context) -> Value {
    let list = ctx.metrics.connections().list();
    json!({
        "tunnels": ctx.tunnels(),
        "connections": list.iter().map(|c| connection(c)).collect::<Vec<_>>(),
    })
}

fn connection(connection: &Connection) -> Value {
    let (forward, backward) = connection.bytes();
    let ends = connection.ends();
    let name = |workload: Option<&std::sync::Arc<Workload>>| workload.map(|w| w.uid.clone());
    json!({
        "number": connection.number,
        "direction": connection.direction.word(),
        "source": connection.source,
        "sourceWorkload": name(ends.and_then(|e| e.source.as_ref())),
        "sourceIdentity": ends.and_then(|e| e.source_id.as_ref()).map(SpiffeId::as_str),
        "destination": connection.destination,
        "chosen": ends.and_then(|e| e.chosen),
        "destinationWorkload": name(ends.and_then(|e| e.destination.as_ref())),
        "destinationIdentity": ends.and_then(|e| e.destination_id.as_ref()).map(SpiffeId::as_str),
        "service": ends.and_then(|e| e.service.as_ref()).map(|s| s.key.clone()),
        "carriage": ends.map(|e| e.carriage.word()),
        "bytesFromSource": forward,
        "bytesToSource": backward,
        "age": connection.age().as_secs_f64(),
    })
}
