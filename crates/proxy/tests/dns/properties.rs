//! Whatever arrives: nothing panics, and what is answered is an answer to what was asked.

use crate::wire::{A, AAAA, TXT, question, read};
use proptest::collection::vec;
use proptest::prelude::*;
use remora_proxy::dns::decide::{Decision, Transport, decide};
use remora_proxy::dns::names::{Client, Directory};
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Debug, Clone, Default)]
struct Hosts(BTreeMap<String, Vec<IpAddr>>);

impl Directory for Hosts {
    fn host(&self, name: &str, _: &str) -> Option<Vec<IpAddr>> {
        self.0
            .get(name)
            .filter(|addresses| !addresses.is_empty())
            .cloned()
    }

    fn pod(&self, _: &str, _: &str, _: &str) -> Option<Vec<IpAddr>> {
        None
    }
}

fn client() -> Client {
    Client {
        namespace: "shop".to_owned(),
        domain: "cluster.local".to_owned(),
        search: ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"]
            .map(str::to_owned)
            .to_vec(),
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from)
    ]
}

const NAMES: [&str; 8] = [
    "cart.shop.svc.cluster.local",
    "cart",
    "cart.shop",
    "cart.bank.svc",
    "api.example.com",
    "api.example.com.shop.svc.cluster.local",
    "deep.wild.example.org",
    "nobody.example.net",
];

fn hosts() -> impl Strategy<Value = Hosts> {
    let names = prop::sample::select(vec![
        "cart.shop.svc.cluster.local",
        "cart.bank.svc.cluster.local",
        "api.example.com",
        "*.example.org",
    ]);
    let host = (names, vec(address(), 0..300));
    vec(host, 0..4).prop_map(|list| Hosts(list.into_iter().map(|(n, a)| (n.to_owned(), a)).collect()))
}

/// A name in letters of any size.
fn spelled() -> impl Strategy<Value = String> {
    (prop::sample::select(NAMES.to_vec()), any::<u64>()).prop_map(|(name, bits)| {
        let letter = |(at, c): (usize, char)| match bits >> (at % 64) & 1 {
            1 => c.to_ascii_uppercase(),
            _ => c,
        };
        name.chars().enumerate().map(letter).collect()
    })
}

proptest! {
    #[test]
    fn any_bytes_are_met_with_an_answer_to_them_or_with_silence(
        bytes in vec(any::<u8>(), 0..600),
        start in prop::option::of(spelled()),
        hosts in hosts(),
        udp in any::<bool>(),
    ) {
        // Half of them begin like a question.
        let message = match start {
            Some(name) => [question(7, &name, A, None), bytes].concat(),
            None => bytes,
        };
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        match decide(&message, transport, &client(), &hosts, 3) {
            Decision::Answer(answer) | Decision::Refuse(answer) => {
                let read = read(&answer);
                prop_assert!(read.is_some(), "{answer:?}");
                prop_assert_eq!(read.unwrap().id.to_be_bytes(), [message[0], message[1]]);
            }
            Decision::Forward { query, .. } => {
                let sent = query.forwarded(0x4242);
                prop_assert_eq!(sent.len(), message.len());
                prop_assert_eq!(&sent[..2], [0x42, 0x42]);
                prop_assert_eq!(&sent[2..12], &message[2..12]);
            }
            Decision::Silence => prop_assert!(message.len() < 12 || message[2] & 0x80 != 0),
        }
    }

    #[test]
    fn a_name_of_the_mesh_is_answered_with_its_addresses_of_the_family(
        name in spelled(),
        kind in prop::sample::select(vec![A, AAAA, TXT]),
        size in prop::option::of(any::<u16>()),
        hosts in hosts(),
        turn in any::<usize>(),
        udp in any::<bool>(),
    ) {
        let small = name.to_ascii_lowercase();
        let host = match small.as_str() {
            "cart" | "cart.shop" => "cart.shop.svc.cluster.local",
            "cart.bank.svc" => "cart.bank.svc.cluster.local",
            "api.example.com.shop.svc.cluster.local" => "api.example.com",
            "deep.wild.example.org" => "*.example.org",
            other => other,
        };
        let known = hosts.host(host, "");
        let message = question(9, &name, kind, size);
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        match decide(&message, transport, &client(), &hosts, turn) {
            Decision::Answer(bytes) => {
                let answer = read(&bytes).unwrap();
                let limit = if udp { usize::from(size.unwrap_or(0)).clamp(512, 4096) } else { 65_535 };
                prop_assert!(bytes.len() <= limit, "{} of {limit}", bytes.len());
                let mut expected = known.unwrap();
                expected.retain(|address| address.is_ipv4() == (kind == A));
                prop_assert!(answer.code == 0 && answer.id == 9);
                prop_assert_eq!(answer.truncated, answer.addresses.len() < expected.len());
                prop_assert!(!answer.truncated || bytes.len() + 28 > limit - 11, "as many as fit");
                prop_assert!(answer.addresses.iter().all(|address| expected.contains(address)));
                if let Some(first) = answer.addresses.first() {
                    prop_assert_eq!(*first, expected[turn % expected.len()]);
                }
                prop_assert!(answer.ttls.iter().all(|ttl| *ttl == 30));
                prop_assert_eq!(answer.extended, size.is_some());
                prop_assert_eq!(&answer.question, &message[12..12 + answer.question.len()], "spelled as asked");
                let searched = small == "api.example.com.shop.svc.cluster.local";
                prop_assert_eq!(answer.meant.as_deref(), searched.then_some("api.example.com"));
            }
            Decision::Forward { exists, .. } => {
                prop_assert_eq!(exists, known.is_some());
                prop_assert!(kind == TXT || known.is_none());
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn any_resolv_conf_can_be_read(text in "(nameserver|search|domain|options|#|;| |\t|\n|[a-z0-9.:%/-]{0,12}){0,40}") {
        let read = remora_proxy::dns::resolv::Resolv::parse(&text);
        prop_assert!(read.servers.len() <= 3);
        prop_assert!(read.search.iter().all(|domain| !domain.is_empty() && !domain.ends_with('.')));
    }
}
