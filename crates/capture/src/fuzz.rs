//! Entry points for fuzzing: bytes from anywhere must never make anything panic.
//!
//! Accepted input is passed through all pure functions, whose results must agree.

use crate::ruleset::{ruleset, script};
use remora_pod::spec::PodView;
use remora_rules::dialect;
use remora_rules::explain::{ConnectionState, Direction, Evaluator, Packet};
use remora_rules::flow::{Capture, Flow};
use remora_rules::options::{Environment, HostFacts, Settings, parse_argv};
use remora_rules::rule::Protocol;
use remora_rules::switch::State;
use remora_rules::value::{Cidr, Interface, Owner, Ports, duration, number};
use remora_rules::{plan, render};
use std::net::{IpAddr, SocketAddr};

/// A command line, its arguments separated by nul bytes: read, planned, printed and evaluated.
pub fn options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let args: Vec<&str> = text.split('\0').collect();
    let Ok(given) = parse_argv(&args) else { return };
    let Ok(settings) = Settings::read(&given, &Environment::new()) else {
        return;
    };
    let (intent, _) = settings.intent(&HostFacts {
        ipv6: true,
        ..HostFacts::default()
    });
    let plan = plan(&intent);
    let text = render::restore(&plan.ipv4);
    // No value may become a line or a word of its own.
    debug_assert!(text.lines().all(|line| line.starts_with(['*', '-', 'C'])));
    let ruleset = ruleset(&plan);
    let script = script::script(&ruleset, State::Closed);
    debug_assert_eq!(script.matches('{').count(), script.matches('}').count());
    let evaluator = Evaluator::new(&plan, State::On);
    for (address, port) in [(IpAddr::from([10, 0, 0, 1]), 80), (IpAddr::from([0u16; 8]), 53)] {
        let there = SocketAddr::new(address, port);
        evaluator.decide(&Packet {
            direction: Direction::Out { interface: "lo" },
            protocol: Protocol::Tcp,
            source: there,
            destination: there,
            owner: Some((1000, 1000)),
            mark: 0,
            connection_mark: 0,
            state: ConnectionState::New,
        });
    }
}

/// Any text as each of the small values; what is accepted must print as something that is accepted again.
pub fn values(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(ports) = text.parse::<Ports>() {
        debug_assert_eq!(ports.to_string().parse(), Ok(ports));
    }
    if let Ok(range) = text.parse::<Cidr>() {
        debug_assert_eq!(range.to_string().parse(), Ok(range));
    }
    if let Ok(owner) = text.parse::<Owner>() {
        debug_assert_eq!(owner.to_string().parse(), Ok(owner));
    }
    if let Ok(interface) = text.parse::<Interface>() {
        debug_assert!(!interface.as_str().contains([' ', '\n', '"', '\'', ';']));
    }
    let _ = duration(&text);
    let _ = number(&text, 1, u32::MAX);
}

/// Any text as the files that are read on the host, and as the output of `iptables-save`.
pub fn host(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = crate::facts::dns_servers(&text);
    let _ = crate::facts::id_of(&text, "istio-proxy");
    let _ = crate::iptables::removal(&text);
}

/// Any bytes as a pod.
pub fn pod(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice(bytes) else {
        return;
    };
    let pod = PodView::read(&object);
    for dialect in [&dialect::ISTIO, &dialect::LINKERD, &dialect::KUMA] {
        let (capture, _) = Capture::of_pod(&pod, dialect);
        capture.exempt(&Flow::default());
    }
}

#[cfg(test)]
mod tests;
