//! Which endpoint is chosen: properties over made-up services, and the whole decision in words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails; the helpers of this file are tests too"
)]

use proptest::collection::vec;
use proptest::prelude::*;
use remora_proxy::balance::{
    Affinity, Balancing, Endpoint, Health, Load, Mode, Scope, Standing, Terms, Unfit, choose,
};
use remora_proxy::mesh::{Place, Tunnel, Workload};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What matters of an endpoint.
#[derive(Debug, Clone)]
struct Made {
    healthy: bool,
    capacity: u32,
    region: u8,
    zone: u8,
    node: u8,
    network: u8,
    addressed: bool,
    failures: u8,
    open: u8,
    millis: u16,
}

const NOW: u64 = 1_000_000;

fn place(region: u8, zone: u8, node: u8, network: u8) -> Place {
    Place {
        region: region.to_string(),
        zone: zone.to_string(),
        node: node.to_string(),
        network: network.to_string(),
        ..Place::default()
    }
}

fn endpoint(number: usize, made: &Made) -> Endpoint {
    let load = Arc::new(Load::default());
    if made.millis > 0 {
        load.answered(Duration::from_millis(made.millis.into()));
    }
    for _ in 0..made.failures {
        load.failed(NOW - 1);
    }
    for _ in 0..made.open {
        std::mem::forget(load.begin());
    }
    let address = IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()]);
    let workload = Workload {
        uid: format!("w{number}"),
        name: format!("w{number}"),
        namespace: "shop".to_owned(),
        addresses: made.addressed.then_some(address).into_iter().collect(),
        hostname: String::new(),
        tunnel: Tunnel::Hbone,
        id: "spiffe://td/ns/shop/sa/cart".parse().unwrap(),
        healthy: made.healthy,
        capacity: made.capacity,
        place: place(made.region, made.zone, made.node, made.network),
        policies: Vec::new(),
        services: std::collections::BTreeMap::new(),
        waypoint: None,
        gateway: None,
        proxy_protocol: false,
        host_network: false,
        owner: String::new(),
        canonical: (String::new(), String::new()),
    };
    Endpoint {
        workload: Arc::new(workload),
        port: 8080,
        load,
    }
}

fn made() -> impl Strategy<Value = Made> {
    let fitness = (prop::bool::weighted(0.8), 0..4_u32, prop::bool::weighted(0.9));
    let place = (
        0..2_u8,
        0..2_u8,
        0..2_u8,
        prop::sample::select(vec![0, 0, 0, 1_u8]),
    );
    let past = (0..3_u8, 0..4_u8, 0..40_u16);
    (fitness, place, past).prop_map(|(fitness, place, past)| Made {
        healthy: fitness.0,
        capacity: fitness.1,
        addressed: fitness.2,
        region: place.0,
        zone: place.1,
        node: place.2,
        network: place.3,
        failures: past.0.saturating_sub(1),
        open: past.1,
        millis: past.2,
    })
}

fn endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
    vec(made(), 0..8).prop_map(|list| {
        list.iter()
            .enumerate()
            .map(|(n, made)| endpoint(n, made))
            .collect()
    })
}

fn balancing() -> impl Strategy<Value = Balancing> {
    let scopes = prop::sample::subsequence(
        vec![Scope::Network, Scope::Region, Scope::Zone, Scope::Node],
        0..=4,
    );
    let mode = prop::sample::select(vec![Mode::Failover, Mode::Strict]);
    let health = prop::sample::select(vec![Health::OnlyHealthy, Health::AllowAll]);
    let affinity = prop::sample::select(vec![Affinity::None, Affinity::ClientIp]);
    (scopes, mode, health, affinity).prop_map(|(preferences, mode, health, affinity)| Balancing {
        preferences,
        mode,
        health,
        affinity,
    })
}

fn terms<'a>(balancing: &'a Balancing, from: Option<&'a Place>, seed: u64, tried: &'a [usize]) -> Terms<'a> {
    Terms {
        balancing,
        from,
        source: IpAddr::from([10, 9, 9, 9]),
        seed,
        now: NOW,
        tried,
    }
}

/// Preferences met, written down a second time.
fn met(preferences: &[Scope], own: &Place, other: &Place) -> usize {
    let mut count = 0;
    for scope in preferences {
        let same = match scope {
            Scope::Region => own.region == other.region,
            Scope::Zone => own.zone == other.zone,
            Scope::Subzone => own.subzone == other.subzone,
            Scope::Node => own.node == other.node,
            Scope::Cluster => own.cluster == other.cluster,
            Scope::Network => own.network == other.network,
        };
        if !same {
            break;
        }
        count += 1;
    }
    count
}

proptest! {
    #[test]
    fn the_chosen_one_is_fit_and_nobody_fit_is_better(
        endpoints in endpoints(),
        balancing in balancing(),
        known in any::<bool>(),
        seed in any::<u64>(),
        tried in vec(0..8_usize, 0..3),
    ) {
        let own = place(0, 0, 0, 0);
        let from = known.then_some(&own);
        let terms = terms(&balancing, from, seed, &tried);
        let mut standings = Vec::new();
        let chosen = choose(&endpoints, &terms, |index, standing| {
            assert_eq!(index, standings.len(), "everybody is judged once, in order");
            standings.push(standing.clone());
        });
        prop_assert_eq!(standings.len(), endpoints.len());
        // Who may be chosen at all, written down a second time.
        let may = |(index, e): &(usize, &Endpoint)| {
            let w = &e.workload;
            let rank = from.map_or(0, |own| met(&balancing.preferences, own, &w.place));
            let strict = balancing.mode == Mode::Strict && rank < balancing.preferences.len();
            !tried.contains(index)
                && (w.healthy || balancing.health == Health::AllowAll)
                && w.capacity > 0
                && !w.addresses.is_empty()
                && from.is_none_or(|own| own.network == w.place.network)
                && !strict
        };
        let tier = |e: &Endpoint| {
            let rank = from.map_or(0, |own| met(&balancing.preferences, own, &e.workload.place));
            (e.load.aside(NOW) == 0, rank)
        };
        let best = endpoints.iter().enumerate().filter(may).map(|(_, e)| tier(e)).max();
        match chosen {
            None => prop_assert_eq!(best, None),
            Some(index) => {
                prop_assert!(may(&(index, &endpoints[index])), "{:?}", standings[index]);
                prop_assert_eq!(Some(tier(&endpoints[index])), best);
            }
        }
    }

    #[test]
    fn callers_stay_where_they_are_when_others_come_and_go(
        endpoints in endpoints(),
        gone in 0..8_usize,
        last in any::<u8>(),
    ) {
        let balancing = Balancing { affinity: Affinity::ClientIp, ..Balancing::default() };
        let pick = |tried: &[usize], seed| {
            let terms = Terms { source: IpAddr::from([10, 1, 1, last]), ..terms(&balancing, None, seed, tried) };
            choose(&endpoints, &terms, |_, _| ())
        };
        let chosen = pick(&[], 1);
        prop_assert_eq!(chosen, pick(&[], 2), "another draw changes nothing");
        if chosen != Some(gone) {
            prop_assert_eq!(chosen, pick(&[gone], 3), "who was not chosen is not missed");
        }
    }
}

fn fit(capacity: u32) -> Made {
    Made {
        healthy: true,
        capacity,
        region: 0,
        zone: 0,
        node: 0,
        network: 0,
        addressed: true,
        failures: 0,
        open: 0,
        millis: 0,
    }
}

/// How often each is chosen by so many connections that end at once.
fn shares(made: &[Made], balancing: &Balancing) -> Vec<u32> {
    let endpoints: Vec<Endpoint> = made
        .iter()
        .enumerate()
        .map(|(n, made)| endpoint(n, made))
        .collect();
    let mut counts = vec![0; endpoints.len()];
    for seed in 0..20_000_u64 {
        let last = u8::try_from(seed % 200).unwrap();
        let terms = Terms {
            source: IpAddr::from([10, 7, u8::try_from(seed / 200).unwrap(), last]),
            ..terms(balancing, None, seed, &[])
        };
        counts[choose(&endpoints, &terms, |_, _| ()).unwrap()] += 1;
    }
    counts
}

#[test]
fn shares_follow_capacities() {
    for affinity in [Affinity::None, Affinity::ClientIp] {
        let balancing = Balancing {
            affinity,
            ..Balancing::default()
        };
        let counts = shares(&[fit(1), fit(2), fit(5)], &balancing);
        for (count, expected) in counts.iter().zip([2500, 5000, 12500]) {
            let off = count.abs_diff(expected);
            assert!(off < expected / 10, "{affinity:?} {counts:?}");
        }
        assert_eq!(shares(&[fit(0), fit(3)], &balancing), [0, 20_000]);
    }
}

#[test]
fn the_busy_and_the_slow_get_less() {
    let balancing = Balancing::default();
    let busy = Made { open: 10, ..fit(1) };
    let counts = shares(&[busy, fit(1), fit(1)], &balancing);
    assert_eq!(counts[0], 0, "whoever is drawn beside it is cheaper: {counts:?}");
    let slow = Made { millis: 40, ..fit(1) };
    let quick = Made { millis: 1, ..fit(1) };
    let counts = shares(&[slow, quick.clone(), quick.clone()], &balancing);
    assert_eq!(counts[0], 0, "{counts:?}");
    // What is open counts for its capacity.
    let large = Made { open: 10, ..fit(10) };
    let small = Made { open: 10, ..fit(1) };
    let counts = shares(&[large, small], &balancing);
    assert_eq!(counts[1], 0, "{counts:?}");
    // Small differences do not.
    let nearly = Made { millis: 1, ..fit(1) };
    let counts = shares(&[quick, nearly], &balancing);
    assert!(counts[0].abs_diff(counts[1]) < 2000, "{counts:?}");
}

#[test]
fn who_failed_is_set_aside_for_longer_each_time_and_forgiven_at_once() {
    let load = Load::default();
    let mut times = Vec::new();
    for _ in 0..8 {
        load.failed(NOW);
        times.push(load.aside(NOW));
    }
    assert_eq!(times, [1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
    assert_eq!(load.aside(NOW + 30_000), 0, "time heals");
    load.answered(Duration::from_millis(1));
    assert_eq!(load.aside(NOW), 0);
    load.failed(NOW);
    assert_eq!(load.aside(NOW), 1000, "what was before an answer is forgotten");
}

#[test]
fn standings_say_why() {
    let ill = Made {
        healthy: false,
        ..fit(1)
    };
    let far = Made { zone: 1, ..fit(1) };
    let alone = Made {
        addressed: false,
        ..fit(1)
    };
    let foreign = Made { network: 3, ..fit(1) };
    let failed = Made {
        failures: 1,
        ..fit(1)
    };
    let made = [ill, far, alone, foreign, failed, fit(0)];
    let mut endpoints: Vec<Endpoint> = made
        .iter()
        .enumerate()
        .map(|(n, made)| endpoint(n, made))
        .collect();
    let mut portless = endpoint(6, &fit(1));
    portless.port = 0;
    endpoints.push(portless);
    let balancing = Balancing {
        preferences: vec![Scope::Zone],
        mode: Mode::Strict,
        ..Balancing::default()
    };
    let own = place(0, 0, 0, 0);
    let mut standings = Vec::new();
    let chosen = choose(
        &endpoints,
        &terms(&balancing, Some(&own), 1, &[]),
        |_, standing| {
            standings.push(standing.clone());
        },
    );
    assert_eq!(chosen, Some(4), "better one that failed than none");
    let unfit = |why| Standing::Unfit(why);
    assert_eq!(
        standings,
        [
            unfit(Unfit::Unhealthy),
            unfit(Unfit::Elsewhere),
            unfit(Unfit::NoAddress),
            unfit(Unfit::OtherNetwork),
            Standing::Aside { rank: 1, millis: 999 },
            unfit(Unfit::NoCapacity),
            unfit(Unfit::NoPort),
        ]
    );
}
