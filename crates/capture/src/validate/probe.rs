//! Probes: real connections on every path.

use super::{Check, Verdict};
use crate::facts;
use remora_net::privilege;
use remora_net::socket::{TcpOptions, original_destination, readable};
use remora_rules::Plan;
use remora_rules::explain::{ConnectionState, Direction, Evaluator, Fate, Packet};
use remora_rules::intent::{Destinations, Dns, Intent};
use remora_rules::options::Settings;
use remora_rules::rule::Protocol;
use remora_rules::switch::State;
use remora_rules::value::{Owner, PASSTHROUGH_V4, PASSTHROUGH_V6};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// One probe: the sending user and group, the destination, and the port where it should arrive.
#[derive(Debug, Clone, Copy)]
struct Probe {
    protocol: Protocol,
    owner: (u32, u32),
    from: Option<IpAddr>,
    to: SocketAddr,
    arrives: u16,
}

/// Probes every path that the intent captures.
pub(super) fn run(settings: &Settings, intent: &Intent, plan: &Plan) -> Vec<Check> {
    let mut numbered = plan.clone();
    if let Err(error) = facts::resolve_owners(&mut numbered) {
        return vec![Check {
            what: "connections".into(),
            verdict: Verdict::NotChecked(error.to_string()),
        }];
    }
    let probes = probes(&Evaluator::new(&numbered, State::Closed), settings, intent);
    // All probes run concurrently, so that a broken namespace takes one timeout and not one per path.
    std::thread::scope(|scope| {
        let running: Vec<_> = probes
            .into_iter()
            .map(|(what, probe)| {
                let work = move || match probe {
                    None => Verdict::NotChecked("these options capture nothing on this path".into()),
                    Some(probe) => run_probe(&probe, settings.probe_timeout),
                };
                (what, scope.spawn(work))
            })
            .collect();
        let broken = |_| Verdict::Failed("the check itself broke".into());
        let finish = |(what, thread): (String, ScopedJoinHandle<'_, Verdict>)| Check {
            what,
            verdict: thread.join().unwrap_or_else(broken),
        };
        running.into_iter().map(finish).collect()
    })
}

fn probes(evaluator: &Evaluator<'_>, settings: &Settings, intent: &Intent) -> Vec<(String, Option<Probe>)> {
    let families: &[bool] = if intent.ipv6 { &[false, true] } else { &[false] };
    let mut probes = Vec::new();
    for ipv6 in families {
        let name = if *ipv6 { "IPv6" } else { "IPv4" };
        let inbound = inbound(settings, intent, *ipv6);
        probes.push((
            format!("{name} connections of the proxy to its own pod"),
            Some(inbound),
        ));
        let outbound = outbound(evaluator, settings, intent, *ipv6);
        probes.push((format!("{name} connections of the application"), outbound));
        if intent.dns != Dns::Off {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let what = format!("{name} name queries over {}", protocol.name().to_uppercase());
                probes.push((what, dns(evaluator, intent, protocol, *ipv6)));
            }
        }
    }
    probes
}

fn loopback(ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    }
}

// istio: the same probe: the proxy's user, from loopback, to an address that is on lo but does not count as
// loopback.
fn inbound(settings: &Settings, intent: &Intent, ipv6: bool) -> Probe {
    let to: IpAddr = if ipv6 {
        PASSTHROUGH_V6.into()
    } else {
        PASSTHROUGH_V4.into()
    };
    Probe {
        protocol: Protocol::Tcp,
        owner: proxy_ids(intent),
        from: Some(loopback(ipv6)),
        to: SocketAddr::new(to, settings.probe_port),
        arrives: intent.inbound_port,
    }
}

/// A user and group that the rules treat as the proxy: those of this process, if they do.
fn proxy_ids(intent: &Intent) -> (u32, u32) {
    let (uid, gid) = privilege::ids();
    if intent.proxy_uids.contains(&Owner::Id(uid)) || intent.proxy_gids.contains(&Owner::Id(gid)) {
        return (uid, gid);
    }
    let id = |owners: &[Owner]| {
        owners.iter().find_map(|owner| {
            if let Owner::Id(id) = owner {
                Some(*id)
            } else {
                None
            }
        })
    };
    (
        id(&intent.proxy_uids).unwrap_or(1337),
        id(&intent.proxy_gids).unwrap_or(1337),
    )
}

/// Users and groups to probe as an application: those of this process, then the overflow ids, then arbitrary ones.
fn application_ids() -> [(u32, u32); 3] {
    [privilege::ids(), (65_534, 65_534), (54_321, 54_321)]
}

fn outbound(evaluator: &Evaluator<'_>, settings: &Settings, intent: &Intent, ipv6: bool) -> Option<Probe> {
    // Addresses for documentation first: no host has them, so an escaped probe reaches no host.
    let mut targets: Vec<IpAddr> = vec![if ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(192, 0, 2, 1).into()
    }];
    if let Destinations::Ranges(ranges) = &intent.destinations {
        let own = ranges
            .iter()
            .map(|range| range.address())
            .filter(|address| address.is_ipv6() == ipv6);
        targets.extend(own);
    }
    let included = intent.outbound_ports.iter().map(|ports| ports.first);
    let ports: Vec<u16> = std::iter::once(settings.probe_port).chain(included).collect();
    let candidates = targets
        .iter()
        .flat_map(|ip| ports.iter().map(move |port| SocketAddr::new(*ip, *port)));
    first_captured(evaluator, candidates, Protocol::Tcp, intent.outbound_port)
}

fn dns(evaluator: &Evaluator<'_>, intent: &Intent, protocol: Protocol, ipv6: bool) -> Option<Probe> {
    let documentation: IpAddr = if ipv6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53).into()
    } else {
        Ipv4Addr::new(192, 0, 2, 53).into()
    };
    let servers = match &intent.dns {
        Dns::Servers(servers) => servers.clone(),
        _ => vec![documentation],
    };
    let own = servers.into_iter().filter(|server| server.is_ipv6() == ipv6);
    first_captured(
        evaluator,
        own.map(|server| SocketAddr::new(server, 53)),
        protocol,
        15053,
    )
}

/// The first combination of application and destination that the rules redirect to the port.
fn first_captured(
    evaluator: &Evaluator<'_>,
    targets: impl Iterator<Item = SocketAddr>,
    protocol: Protocol,
    arrives: u16,
) -> Option<Probe> {
    let targets: Vec<SocketAddr> = targets.collect();
    application_ids().iter().find_map(|owner| {
        let captured = targets.iter().find(|to| {
            let packet = Packet {
                direction: Direction::Out {
                    interface: if to.ip().is_loopback() { "lo" } else { "eth0" },
                },
                protocol,
                source: SocketAddr::new(to.ip(), 1),
                destination: **to,
                owner: Some(*owner),
                mark: 0,
                connection_mark: 0,
                state: ConnectionState::New,
            };
            evaluator.decide(&packet).fate == Fate::Redirected(arrives)
        })?;
        Some(Probe {
            protocol,
            owner: *owner,
            from: None,
            to: *captured,
            arrives,
        })
    })
}

/// Runs one probe. Must run on its own thread, because the thread changes its user and cannot change back.
fn run_probe(probe: &Probe, timeout: Duration) -> Verdict {
    if probe.owner != privilege::ids()
        && !(privilege::has(privilege::SETUID) && privilege::has(privilege::SETGID))
    {
        let who = if probe.from.is_some() {
            "as the proxy's user"
        } else {
            "as another user than the proxy's"
        };
        return Verdict::NotChecked(format!("must run {who}, or be able to become one"));
    }
    let at = SocketAddr::new(loopback(probe.to.is_ipv6()), probe.arrives);
    let options = TcpOptions {
        reuse_port: true,
        ..TcpOptions::default()
    };
    let listener = match probe.protocol {
        Protocol::Tcp => options.listen(at).map(ProbeListener::Tcp),
        Protocol::Udp => options.udp(at).map(ProbeListener::Udp),
    };
    match listener {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Verdict::NotChecked(format!("another process listens on {at} already"))
        }
        Err(error) => Verdict::NotChecked(format!("cannot listen on {at}: {error}")),
        Ok(listener) => {
            if probe.owner != privilege::ids()
                && let Err(error) = privilege::become_user(probe.owner.0, probe.owner.1)
            {
                return Verdict::NotChecked(format!("cannot become user {}: {error}", probe.owner.0));
            }
            listener.wait_for(probe, Instant::now() + timeout)
        }
    }
}

/// Sends one datagram or makes one connection attempt; the connection need not succeed.
fn send_probe(probe: &Probe) -> io::Result<()> {
    let bind = probe.from.map(|ip| SocketAddr::new(ip, 0));
    let options = TcpOptions {
        bind,
        ..TcpOptions::default()
    };
    match probe.protocol {
        Protocol::Tcp => options.connect(probe.to, Duration::from_millis(500)).map(drop),
        Protocol::Udp => {
            let any: IpAddr = if probe.to.is_ipv6() {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::UNSPECIFIED.into()
            };
            let bind = bind.unwrap_or_else(|| SocketAddr::new(any, 0));
            options.udp(bind)?.send_to(UDP_PAYLOAD, probe.to).map(drop)
        }
    }
}

const UDP_PAYLOAD: &[u8] = b"remora validation";

enum ProbeListener {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl ProbeListener {
    fn wait_for(&self, probe: &Probe, end: Instant) -> Verdict {
        loop {
            let sent = send_probe(probe);
            // Also the pause between two attempts.
            while self.is_ready(Duration::from_millis(100)) && Instant::now() < end {
                if self.is_this_probe(probe) {
                    return Verdict::Passed;
                }
            }
            if let Err(error) = &sent
                && error.kind() == io::ErrorKind::NetworkUnreachable
            {
                return Verdict::NotChecked(format!("there is no route to {}", probe.to));
            }
            if Instant::now() >= end {
                let result = sent.err().map(|error| format!(" ({error})")).unwrap_or_default();
                return Verdict::Failed(format!(
                    "{} did not arrive at port {}{result}",
                    probe.to, probe.arrives
                ));
            }
        }
    }

    fn is_ready(&self, timeout: Duration) -> bool {
        let fd = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        };
        readable(&[fd], timeout).is_ok_and(|ready| ready == [true])
    }

    /// Whether what arrived is this probe: other clients may connect to the same port.
    fn is_this_probe(&self, probe: &Probe) -> bool {
        match self {
            Self::Tcp(listener) => {
                let Ok((stream, _)) = listener.accept() else {
                    return false;
                };
                original_destination(&stream).is_ok_and(|to| to == probe.to)
            }
            Self::Udp(socket) => {
                let mut bytes = [0; 64];
                socket
                    .recv_from(&mut bytes)
                    .is_ok_and(|(length, _)| bytes.get(..length) == Some(UDP_PAYLOAD))
            }
        }
    }
}
