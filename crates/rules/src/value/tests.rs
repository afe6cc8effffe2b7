use super::*;

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

#[test]
fn ports_are_single_or_ranges() {
    assert_eq!("80".parse::<Ports>(), Ok(Ports::one(80)));
    assert_eq!(
        "1000:2000".parse::<Ports>(),
        Ok(Ports {
            first: 1000,
            last: 2000
        })
    );
    for bad in [
        "", "0", "65536", "-1", "+80", "80-90", " 80", "80 ", "eighty", "80:", ":80", "0x50", "٨٠",
    ] {
        assert!(
            matches!(bad.parse::<Ports>(), Err(ValueError::Port { .. })),
            "{bad:?}"
        );
    }
    assert!(matches!(
        "90:80".parse::<Ports>(),
        Err(ValueError::PortOrder { .. })
    ));
}

#[test]
fn ranges_of_addresses_are_strict() {
    for text in [
        "10.0.0.0/8",
        "10.1.2.3/8",
        "0.0.0.0/0",
        "2001:db8::/32",
        "::/0",
        "::ffff:1.2.3.4/128",
    ] {
        assert_eq!(cidr(text).to_string(), text);
    }
    for bad in [
        "",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0/8",
        "::/129",
        "10.0.0.0/08",
        "10.0.0.0/+8",
        "*",
        "fe80::1%eth0/64",
    ] {
        assert!(bad.parse::<Cidr>().is_err(), "{bad:?}");
    }
    let error = "10.0.0.1".parse::<Cidr>().unwrap_err();
    assert!(error.to_string().contains("10.0.0.1/32"), "{error}");
}

#[test]
fn ranges_contain_what_their_bits_say() {
    assert!(cidr("10.1.2.3/8").contains("10.255.0.1".parse().unwrap()));
    assert!(!cidr("10.0.0.0/8").contains("11.0.0.1".parse().unwrap()));
    assert!(cidr("0.0.0.0/0").contains("255.255.255.255".parse().unwrap()));
    assert!(!cidr("0.0.0.0/0").contains("::1".parse().unwrap()));
    assert!(cidr("2001:db8:8000::/33").contains("2001:db8:ffff::1".parse().unwrap()));
    assert!(!cidr("2001:db8:8000::/33").contains("2001:db8:7fff::1".parse().unwrap()));
}

#[test]
fn addresses_print_as_the_iptables_programs_print_them() {
    let print = |text: &str| Address(text.parse().unwrap()).to_string();
    assert_eq!(print("::127.0.0.53"), "::127.0.0.53");
    assert_eq!(print("::1"), "::1");
    assert_eq!(print("::6"), "::6");
    assert_eq!(print("::"), "::");
    assert_eq!(print("2001:db8::1"), "2001:db8::1");
}

#[test]
fn owners_are_numbers_or_names() {
    assert_eq!("1337".parse(), Ok(Owner::Id(1337)));
    assert_eq!("istio-proxy".parse(), Ok(Owner::Name("istio-proxy".into())));
    for bad in [
        "",
        "-1",
        "4294967295",
        "4294967296",
        "1000-2000",
        "a b",
        "a;b",
        "$(id)",
        "é",
        "1a",
    ] {
        assert!(bad.parse::<Owner>().is_err(), "{bad:?}");
    }
}

#[test]
fn interfaces_have_names_or_patterns() {
    let interface = |text: &str| text.parse::<Interface>();
    assert!(interface("eth0").unwrap().matches("eth0"));
    assert!(!interface("eth0").unwrap().matches("eth01"));
    assert!(interface("eth+").unwrap().matches("eth01"));
    assert!(interface("+").unwrap().matches("anything"));
    for bad in [
        "",
        ".",
        "..",
        "a b",
        "a/b",
        "0123456789abcdef",
        "-i",
        "e+0",
        "a\"b",
        "a*",
        "a\n",
        "0;J",
        "a{b",
    ] {
        assert!(interface(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn durations_are_gos() {
    assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
    assert_eq!(duration("1m30.5s"), Ok(Duration::from_millis(90_500)));
    assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(duration("0"), Ok(Duration::ZERO));
    for bad in [
        "",
        "5",
        "s",
        "-1s",
        "1x",
        "1s5",
        ".s",
        "1..5s",
        "99999999999999999999h",
        "1e9s",
    ] {
        assert!(duration(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn booleans_are_gos() {
    assert_eq!(boolean("T"), Ok(true));
    assert_eq!(boolean("0"), Ok(false));
    assert!(boolean("yes").is_err());
}

#[test]
fn numbers_may_be_hexadecimal() {
    assert_eq!(number("0x539", 1, u32::MAX), Ok(1337));
    assert_eq!(number("1337", 1, u32::MAX), Ok(1337));
    for bad in [
        "",
        "0",
        "0x",
        "0x1ffffffff",
        "4294967296",
        "1337/0xffffffff",
        "+1",
    ] {
        assert!(number(bad, 1, u32::MAX).is_err(), "{bad:?}");
    }
}
