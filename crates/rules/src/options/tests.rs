use super::*;
use crate::intent::{Destinations, Dns, Groups, Inbound, Intent, Mode};
use crate::value::Owner;
use proptest::prelude::*;

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn read(args: &[&str], env: &[(&str, &str)]) -> Result<Settings, String> {
    let given = parse_argv(args).map_err(|error| error.to_string())?;
    Settings::read(&given, &environment(env)).map_err(|error| error.to_string())
}

fn intent(args: &[&str], env: &[(&str, &str)]) -> Intent {
    read(args, env).unwrap().intent(&HostFacts::default()).0
}

#[test]
fn the_classic_command_line_is_understood() {
    let args = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x @ -b * -d 15090,15020";
    let args: Vec<&str> = args
        .split(' ')
        .map(|word| if word == "@" { "" } else { word })
        .collect();
    let intent = intent(&args, &[]);
    assert_eq!(intent.mode, Mode::Redirect);
    assert_eq!(intent.destinations, Destinations::All);
    assert!(intent.excluded_destinations.is_empty());
    assert_eq!(
        intent.inbound,
        Inbound::AllExcept(vec!["15090".parse().unwrap(), "15020".parse().unwrap()])
    );
    assert_eq!(
        intent.proxy_gids,
        [Owner::Id(1337)],
        "the group is the user's, if not given"
    );
}

#[test]
fn flags_may_be_written_in_every_way_of_go() {
    for args in [
        &["-p", "15099", "-n"][..],
        &["-p15099", "-n"],
        &["-p=15099", "--dry-run=true"],
        &["-np", "15099"],
        &["--envoy-port=15099", "--dry-run"],
        &["--envoy-port", "1", "--envoy-port", "15099", "-n=1"],
        &[
            "--log_output_level=default:info",
            "--log_as_json",
            "-n",
            "-p",
            "15099",
            "--",
        ],
    ] {
        let settings = read(args, &[]).unwrap();
        assert!(settings.dry_run, "{args:?}");
        assert_eq!(
            settings.intent(&HostFacts::default()).0.outbound_port,
            15099,
            "{args:?}"
        );
    }
    assert_eq!(read(&["--nonsense"], &[]), Err("unknown flag --nonsense".into()));
    assert_eq!(read(&["-y"], &[]), Err("unknown flag -y".into()));
    assert_eq!(read(&["-p"], &[]), Err("flag --envoy-port needs a value".into()));
    assert_eq!(read(&["start"], &[]), Err("unexpected argument \"start\"".into()));
}

#[test]
fn a_flag_wins_over_a_variable_and_an_alias_over_its_primary() {
    let env = [("ENVOY_PORT", "1"), ("INBOUND_CAPTURE_PORT", "2")];
    let both = intent(&["-p", "3"], &env);
    assert_eq!((both.outbound_port, both.inbound_port), (3, 2));
    let dns = |env: &[(&str, &str)]| intent(&["--capture-all-dns"], env).dns;
    assert_eq!(
        dns(&[("REDIRECT_DNS", "false"), ("ISTIO_META_DNS_CAPTURE", "true")]),
        Dns::All
    );
    assert_eq!(
        dns(&[("REDIRECT_DNS", "true"), ("ISTIO_META_DNS_CAPTURE", "false")]),
        Dns::Off
    );
    assert_eq!(
        dns(&[("REDIRECT_DNS", "true"), ("ISTIO_META_DNS_CAPTURE", "")]),
        Dns::All,
        "empty is not set"
    );
}

#[test]
fn every_bad_value_is_an_error_that_names_it() {
    let cases: &[(&[&str], &str)] = &[
        (&["-p", "0"], "flag --envoy-port: \"0\" is not a port (1-65535)"),
        (
            &["-z", "http"],
            "flag --inbound-capture-port: \"http\" is not a port",
        ),
        (&["-u", "1337,x y"], "flag --proxy-uid: \"x y\" is neither"),
        (
            &["-m", "tproxy"],
            "flag --istio-inbound-interception-mode: \"tproxy\" is none of REDIRECT, TPROXY",
        ),
        (
            &["-b", "80,99999"],
            "flag --istio-inbound-ports: \"99999\" is not a port",
        ),
        (&["-b", "*,80"], "flag --istio-inbound-ports: \"*\" is not a port"),
        (
            &["-d", "80;90"],
            "flag --istio-local-exclude-ports: \"80;90\" is not a port",
        ),
        (
            &["-c", "eth0 -j ACCEPT"],
            "flag --istio-exclude-interfaces: \"eth0 -j ACCEPT\" is not an interface",
        ),
        (&["-i", "10.0.0.0"], "has no prefix length (write 10.0.0.0/32"),
        (
            &["-i", "10.0.0.0/8,*"],
            "flag --istio-service-cidr: \"*\" is not an address range",
        ),
        (
            &["-x", "*"],
            "flag --istio-service-exclude-cidr: \"*\" cannot be excluded",
        ),
        (&["-q", "1:2:3"], "flag --istio-outbound-ports"),
        (&["-o", "70000"], "flag --istio-local-outbound-ports-exclude"),
        (
            &["-t", "0"],
            "flag --istio-inbound-tproxy-mark: \"0\" is not a number",
        ),
        (
            &["-r", "254"],
            "flag --istio-inbound-tproxy-route-table: tables 253 to 255",
        ),
        (
            &["--probe-timeout", "5"],
            "flag --probe-timeout: \"5\" is not a duration",
        ),
        (&["--dry-run=maybe"], "flag --dry-run: \"maybe\" is not a boolean"),
        (
            &["--force-iptables-binary", "ebpf"],
            "\"ebpf\" is none of legacy, nft",
        ),
        (
            &["--backend", "iptables", "--native-nftables"],
            "contradicts --native-nftables",
        ),
        (
            &["--host-dns", "dns.example"],
            "flag --host-dns: \"dns.example\" is not an IP address",
        ),
    ];
    for (args, message) in cases {
        let error = read(args, &[]).expect_err(&format!("{args:?}"));
        assert!(error.contains(message), "{args:?}: {error}");
    }
    let error = read(&[], &[("ISTIO_SERVICE_CIDR", "nonsense")]).unwrap_err();
    assert!(
        error.starts_with("environment variable ISTIO_SERVICE_CIDR: \"nonsense\""),
        "{error}"
    );
    let error = read(&[], &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "10.0.0.0/8")]).unwrap_err();
    assert!(error.contains("is not an IPv4 loopback range"), "{error}");
    let many = (0..65).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let error = read(&[], &[("ISTIO_OUTBOUND_OWNER_GROUPS", &many)]).unwrap_err();
    assert!(error.contains("65 groups, at most 64"), "{error}");
}

#[test]
fn leniency_that_templates_rely_on_is_kept_with_a_warning() {
    let settings = read(&["-m", "NONE", "-d", "15090, 15021,,", "-b", "*"], &[]).unwrap();
    assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
    let intent = settings.intent(&HostFacts::default()).0;
    assert_eq!(
        intent.inbound,
        Inbound::AllExcept(vec!["15090".parse().unwrap(), "15021".parse().unwrap()])
    );
}

#[test]
fn the_host_decides_what_the_options_leave_open() {
    let host = HostFacts {
        ipv6: true,
        dns_servers: vec!["10.0.0.10".parse().unwrap()],
        proxy_user: Some(77),
    };
    let (intent, warnings) = read(&["--redirect-dns"], &[]).unwrap().intent(&host);
    assert!(warnings.is_empty());
    assert!(intent.ipv6);
    assert_eq!(intent.proxy_uids, [Owner::Id(77)]);
    assert_eq!(intent.dns, Dns::Servers(host.dns_servers.clone()));
    let (intent, warnings) = read(&["--redirect-dns"], &[])
        .unwrap()
        .intent(&HostFacts::default());
    assert_eq!(
        (intent.dns, warnings.len()),
        (Dns::Off, 1),
        "no server: off, with a word about it"
    );
    let (_, warnings) = read(&["-i", "2001:db8::/32"], &[])
        .unwrap()
        .intent(&HostFacts::default());
    assert_eq!(warnings.len(), 1);
    assert_eq!(intent.groups, Groups::AllExcept(Vec::new()));
}

#[test]
fn names_are_in_the_table_once() {
    for (index, spec) in OPTIONS.iter().enumerate() {
        let later = &OPTIONS[index + 1..];
        assert!(later.iter().all(|other| other.long != spec.long), "{}", spec.long);
        assert!(
            spec.short.is_none() || later.iter().all(|other| other.short != spec.short),
            "{}",
            spec.long
        );
    }
}

proptest! {
    #[test]
    fn nothing_panics(args in prop::collection::vec("(-[a-z]|--[a-z-]{1,12}|[0-9a-f:./,*=-]{0,12}|.{0,8})", 0..8)) {
        let Ok(given) = parse_argv(&args) else { return Ok(()) };
        let Ok(settings) = Settings::read(&given, &Environment::new()) else { return Ok(()) };
        let (intent, _) = settings.intent(&HostFacts { ipv6: true, ..HostFacts::default() });
        crate::plan(&intent);
    }
}
