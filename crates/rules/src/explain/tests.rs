use super::*;
use crate::options::{HostFacts, Settings, parse_argv};
use crate::rule::Protocol;
use std::net::SocketAddr;

fn plan_for(flags: &[&str]) -> Plan {
    let given = parse_argv(flags).unwrap();
    let settings = Settings::read(&given, &std::collections::BTreeMap::new()).unwrap();
    crate::plan::plan(
        &settings
            .intent(&HostFacts {
                ipv6: true,
                ..HostFacts::default()
            })
            .0,
    )
}

fn out(to: &str, uid: u32) -> Packet<'static> {
    let destination: SocketAddr = to.parse().unwrap();
    let interface = if destination.ip().is_loopback() {
        "lo"
    } else {
        "eth0"
    };
    Packet {
        direction: Direction::Out { interface },
        protocol: Protocol::Tcp,
        source: SocketAddr::new(destination.ip(), 40000),
        destination,
        owner: Some((uid, uid)),
        mark: 0,
        connection_mark: 0,
        state: ConnectionState::New,
    }
}

#[test]
fn the_decisive_rule_is_named() {
    let plan = plan_for(&["-i", "*", "-x", "10.0.0.0/8", "-b", "*"]);
    let evaluator = Evaluator::new(&plan, switch::State::Closed);
    let rule = |packet: &Packet<'_>| {
        evaluator
            .decide(packet)
            .rule
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    assert_eq!(
        rule(&out("10.1.1.1:80", 1000)),
        "-A ISTIO_OUTPUT -d 10.0.0.0/8 -j RETURN"
    );
    assert_eq!(
        rule(&out("192.0.2.1:80", 1337)),
        "-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN"
    );
    assert_eq!(
        rule(&out("192.0.2.1:80", 1000)),
        "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001"
    );
    assert_eq!(evaluator.explain(&out("192.0.2.1:80", 1000)).1.len(), 3);
}

#[test]
fn the_switch_is_consulted_where_connections_are_captured() {
    let plan = plan_for(&["-i", "*", "-b", "*"]);
    let fate = |state, uid| {
        Evaluator::new(&plan, state)
            .decide(&out("192.0.2.1:80", uid))
            .fate
    };
    assert_eq!(fate(switch::State::Open, 1000), Fate::Untouched);
    assert_eq!(fate(switch::State::Hold, 1000), Fate::Held);
    assert_eq!(fate(switch::State::Closed, 1000), Fate::Redirected(15001));
    assert_eq!(fate(switch::State::On, 1000), Fate::Redirected(15001));
    assert_eq!(
        fate(switch::State::Hold, 1337),
        Fate::Untouched,
        "the proxy's own traffic does not wait"
    );
}

#[test]
fn packets_of_no_connection_are_dropped_if_the_option_is_set() {
    let mut packet = out("192.0.2.1:80", 1000);
    packet.direction = Direction::In { interface: "eth0" };
    packet.owner = None;
    packet.state = ConnectionState::Invalid;
    let fate = |flags: &[&str]| {
        Evaluator::new(&plan_for(flags), switch::State::On)
            .decide(&packet)
            .fate
    };
    assert_eq!(fate(&["-b", "", "--drop-invalid"]), Fate::Dropped);
    assert_eq!(fate(&["-b", ""]), Fate::Untouched);
}

#[test]
fn a_family_that_is_not_captured_passes() {
    let mut plan = plan_for(&["-i", "*", "-b", "*"]);
    plan.ipv6 = None;
    let evaluator = Evaluator::new(&plan, switch::State::On);
    let decision = evaluator.decide(&out("[2001:db8::1]:80", 1000));
    assert_eq!((decision.fate, decision.rule), (Fate::Untouched, None));
}
