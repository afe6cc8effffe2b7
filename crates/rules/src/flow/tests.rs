use super::*;
use crate::options::{Environment, parse_argv};
use proptest::prelude::*;

fn rules(flags: &[&str]) -> Capture {
    let given = parse_argv(flags).unwrap();
    Capture::new(model_intent(
        &Settings::read(&given, &Environment::new()).unwrap(),
    ))
}

fn to(address: &str, port: u16) -> Flow {
    Flow {
        address: Some(address.parse().unwrap()),
        port: Some(port),
        ..Flow::default()
    }
}

#[test]
fn the_reason_is_that_of_the_rule_which_decides() {
    let flags = [
        "-i",
        "*",
        "-o",
        "5432",
        "-x",
        "10.1.0.0/16",
        "-u",
        "1337",
        "-g",
        "1338",
        "-c",
        "eth1",
    ];
    let rules = rules(&flags);
    let flow = to("10.0.0.9", 80);
    assert_eq!(rules.exempt(&flow), None);
    assert_eq!(rules.exempt(&Flow::default()), None);
    assert_eq!(rules.exempt(&to("10.0.0.9", 5432)), Some(Exempt::Port(5432)));
    let range = Exempt::Range("10.1.0.0/16".to_owned());
    assert_eq!(rules.exempt(&to("10.1.0.9", 80)), Some(range));
    assert_eq!(rules.exempt(&to("127.0.0.1", 80)), Some(Exempt::Loopback));
    let proxy = Flow {
        uid: Some(1337),
        ..flow.clone()
    };
    assert_eq!(rules.exempt(&proxy), Some(Exempt::Uid(1337)));
    let group = Flow {
        gid: Some(1338),
        ..flow.clone()
    };
    assert_eq!(rules.exempt(&group), Some(Exempt::Gid(1338)));
    let udp = Flow { udp: true, ..flow };
    assert_eq!(rules.exempt(&udp), Some(Exempt::Udp));
}

/// A flow with unknown properties counts as captured if the rules capture anything.
#[test]
fn unknown_properties_do_not_look_exempt() {
    for flags in [
        &["-i", "*", "-o", "1:40100", "-x", "192.0.2.0/25"][..],
        &["-i", "10.0.0.0/8,fd00::/8", "-x", "10.0.0.0/30"],
        &["-i", "", "-q", "80,443"],
        &["-i", "", "-q", "80,443", "-o", "80"],
        &["-i", "*", "-u", "100000,100001"],
    ] {
        assert_eq!(rules(flags).exempt(&Flow::default()), None, "{flags:?}");
    }
    assert!(rules(&["-i", ""]).exempt(&Flow::default()).is_some());
    assert!(
        rules(&[]).exempt(&Flow::default()).is_some(),
        "nothing is captured without -i"
    );
}

/// Options that the program refuses must not make a flow look exempt, whichever they are.
#[test]
fn unusable_options_leave_everything_captured() {
    for flags in [
        &["-i", "10.0.0.1"][..],
        &["-b", "eighty"],
        &["-i", "", "-q", "x"],
        &["--unheard-of"],
        &["-o", "80", "-x", "?"],
    ] {
        let args: Vec<&str> = ["istio-iptables"]
            .into_iter()
            .chain(flags.iter().copied())
            .collect();
        let pod = serde_json::json!({"kind": "Pod", "spec": {"containers": [{"name": "app"}],
            "initContainers": [{"name": "istio-init", "args": args}]}});
        let (capture, error) = Capture::of_pod(&PodView::read(&pod), &crate::dialect::ISTIO);
        assert!(error.is_some(), "{flags:?}");
        assert_eq!(capture.exempt(&Flow::default()), None, "{flags:?}");
        assert_eq!(capture.exempt(&to("10.0.0.9", 80)), None, "{flags:?}");
        assert!(capture.captures_inbound(80), "{flags:?}");
    }
}

#[test]
fn inbound_connections_are_captured_by_port() {
    let rules = rules(&["-b", "*", "-d", "15020,8000:8010"]);
    assert!(rules.captures_inbound(8080));
    assert!(!rules.captures_inbound(15020) && !rules.captures_inbound(8005));
    assert!(
        !self::rules(&["-i", "*"]).captures_inbound(8080),
        "nothing is captured without -b"
    );
    assert!(self::rules(&["-b", "80"]).captures_inbound(80));
    assert!(self::rules(&["-b", "*", "-m", "TPROXY"]).captures_inbound(80));
    assert!(!Capture::ambient().captures_inbound(80));
}

#[test]
fn lookups_are_captured_where_the_options_say_so() {
    assert!(rules(&["-i", "*", "--redirect-dns"]).captures_dns());
    assert!(
        !rules(&["-i", "*", "--capture-all-dns"]).captures_dns(),
        "it needs --redirect-dns"
    );
    let lookup = Flow {
        udp: true,
        port: Some(53),
        ..Flow::default()
    };
    assert_eq!(rules(&["-i", "*", "--redirect-dns"]).exempt(&lookup), None);
    assert_eq!(rules(&["-i", "*"]).exempt(&lookup), Some(Exempt::Udp));
}

/// The ways in which one flag with a value can be written.
fn spelled(short: char, long: &str, value: &str, way: usize) -> Vec<String> {
    match way % 5 {
        0 => vec![format!("-{short}"), value.to_owned()],
        1 => vec![format!("-{short}={value}")],
        2 => vec![format!("--{long}"), value.to_owned()],
        3 => vec![format!("--{long}={value}")],
        // A value cannot be attached to the letter if it is empty.
        _ if value.is_empty() => vec![format!("-{short}"), String::new()],
        _ => vec![format!("-{short}{value}")],
    }
}

fn flags() -> impl Strategy<Value = Vec<(char, &'static str, String, usize)>> {
    let ranges = prop::sample::select(vec![
        "",
        "*",
        "10.0.0.0/8",
        "10.1.0.0/16,192.168.0.0/24",
        "fd00::/8",
    ]);
    let excluded = prop::sample::select(vec!["", "10.1.0.0/16", "10.0.0.9/32", "fd00::1/128,10.2.0.0/15"]);
    let ports = prop::sample::select(vec!["", "80", "5432,80", "79:81", "443"]);
    let inbound = prop::sample::select(vec!["", "*", "80", "8080,80"]);
    let ids = prop::sample::select(vec!["1337", "1000", "0,1337"]);
    let one = prop_oneof![
        (Just(('i', "istio-service-cidr")), ranges),
        (Just(('x', "istio-service-exclude-cidr")), excluded),
        (Just(('o', "istio-local-outbound-ports-exclude")), ports.clone()),
        (Just(('q', "istio-outbound-ports")), ports.clone()),
        (Just(('d', "istio-local-exclude-ports")), ports),
        (Just(('b', "istio-inbound-ports")), inbound),
        (Just(('u', "proxy-uid")), ids.clone()),
        (Just(('g', "proxy-gid")), ids),
    ];
    let named =
        (one, 0..5_usize).prop_map(|(((short, long), value), way)| (short, long, value.to_owned(), way));
    prop::collection::vec(named, 0..7)
}

proptest! {
    /// However the options are given, by flags in any spelling or by the environment, by a command line or by a pod's
    /// init container, the verdict for a flow is that of the evaluator for its packet.
    #[test]
    fn every_way_to_give_the_options_has_the_same_verdict(
        flags in flags(),
        address in prop::sample::select(vec!["10.0.0.9", "10.1.2.3", "192.168.0.7", "8.8.8.8", "fd00::1", "2001:db8::1"]),
        port in prop::sample::select(vec![80_u16, 443, 5432, 8080, 15020]),
        (uid, gid) in (prop::sample::select(vec![0_i64, 1000, 1337]), prop::sample::select(vec![0_i64, 1000, 1337])),
    ) {
        let flow = Flow { uid: Some(uid), gid: Some(gid), ..to(address, port) };
        let plain: Vec<String> = flags.iter().flat_map(|(s, l, v, _)| spelled(*s, l, v, 0)).collect();
        let written: Vec<String> = flags.iter().flat_map(|(s, l, v, way)| spelled(*s, l, v, *way)).collect();
        let variables: Vec<serde_json::Value> = flags.iter()
            .map(|(_, long, value, _)| serde_json::json!({"name": long.to_uppercase().replace('-', "_"), "value": value}))
            .collect();
        let read = |args: &[String]| Settings::read(&parse_argv(args).unwrap(), &Environment::new()).unwrap();
        let host = HostFacts { ipv6: true, ..HostFacts::default() };
        let plan = plan(&read(&plain).intent(&host).0);
        let packet = Packet {
            direction: Direction::Out { interface: "eth0" },
            protocol: Protocol::Tcp,
            source: SocketAddr::from((SOURCE_ADDRESS, 1)),
            destination: SocketAddr::new(flow.address.unwrap(), port),
            owner: Some((u32::try_from(uid).unwrap(), u32::try_from(gid).unwrap())),
            mark: 0,
            connection_mark: 0,
            state: ConnectionState::New,
        };
        let explained = Evaluator::new(&plan, State::On).decide(&packet).fate == Fate::Untouched;
        let of_pod = |args: &[String], env: &[serde_json::Value]| {
            let args: Vec<&str> = ["istio-iptables"].into_iter().chain(args.iter().map(String::as_str)).collect();
            let pod = serde_json::json!({"kind": "Pod", "spec": {"containers": [{"name": "app"}],
                "initContainers": [{"name": "istio-init", "args": args, "env": env}]}});
            Capture::of_pod(&PodView::read(&pod), &crate::dialect::ISTIO)
        };
        for (what, (capture, error)) in [
            ("flags", of_pod(&plain, &[])),
            ("spellings", of_pod(&written, &[])),
            ("environment", of_pod(&[], &variables)),
        ] {
            prop_assert_eq!(error, None);
            prop_assert_eq!(capture.exempt(&flow).is_some(), explained, "{}", what);
        }
    }
}
