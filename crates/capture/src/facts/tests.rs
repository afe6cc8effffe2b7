use super::*;

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_first_significant_address_decides_about_ipv6() {
    let single = RequiredFacts {
        dual_stack: false,
        dns_servers: false,
    };
    let dual = RequiredFacts {
        dual_stack: true,
        dns_servers: false,
    };
    let host = addresses(&[
        "127.0.0.1",
        "::1",
        "fe80::1",
        "169.254.1.1",
        "10.0.0.1",
        "2001:db8::1",
    ]);
    assert_eq!(uses_ipv6(&host, single), Some(false));
    assert_eq!(uses_ipv6(&host, dual), Some(true));
    assert_eq!(
        uses_ipv6(&addresses(&["fd00::1", "10.0.0.1"]), single),
        Some(true)
    );
    assert_eq!(
        uses_ipv6(&addresses(&["::ffff:10.0.0.1"]), dual),
        Some(false),
        "mapped addresses are IPv4"
    );
    assert_eq!(uses_ipv6(&addresses(&["127.0.0.1", "fe80::1"]), dual), None);
}

#[test]
fn servers_are_read_from_resolv_conf() {
    let text = "# nameserver 1.1.1.1\nsearch a b\nnameserver 10.0.0.10\n nameserver fd00::a\nnameserver fe80::1%eth0\nnameserver 10.0.0.10\nnameserver\n";
    assert_eq!(dns_servers(text), addresses(&["10.0.0.10", "fd00::a"]));
}

#[test]
fn ids_are_read_without_the_c_library() {
    let passwd = "root:x:0:0::/root:/bin/sh\nistio-proxy:x:1337:1337::/:/none\nbroken\nbad:x:y:z\n";
    assert_eq!(id_of(passwd, "istio-proxy"), Some(1337));
    assert_eq!(id_of(passwd, "istio"), None);
    assert_eq!(id_of(passwd, "broken"), None);
    assert_eq!(id_of(passwd, "bad"), None);
}
