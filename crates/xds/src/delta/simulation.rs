//! Client and server against each other through seeded random events: changes, delays, lost streams, refusals.
//!
//! After every sequence of events, once no message is in flight, the client has exactly the current resources that it
//! subscribes to and accepts.

use super::{Audience, Change, Client, Interest, Server, Snapshot, Versioned, View};
use crate::proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const URL: &str = "type/a";

/// xorshift: enough for choosing events, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

struct World {
    dice: Dice,
    client: Client,
    server: Option<Server>,
    up: VecDeque<DeltaDiscoveryRequest>,
    down: VecDeque<DeltaDiscoveryResponse>,
    truth: BTreeMap<String, u64>,
    latest: Snapshot,
    counter: u64,
    applied: BTreeMap<String, Vec<u8>>,
    wanted: Option<BTreeSet<String>>,
    answered: usize,
    resources_sent: usize,
}

/// Content whose number is divisible by five is for another namespace.
fn hidden(content: u64) -> bool {
    content.is_multiple_of(5)
}

fn audience(content: u64) -> Audience {
    match content % 10 {
        5 | 0 => Audience::Namespace("c".into()),
        1 => Audience::Namespace("b".into()),
        _ => Audience::Everyone,
    }
}

/// Content whose number is divisible by seven is refused by the client.
fn bad(content: u64) -> bool {
    content.is_multiple_of(7)
}

impl World {
    fn new(seed: u64, interest: Interest) -> Self {
        let mut client = Client::new(Node {
            id: "sidecar~10.0.0.1~a.b~b.svc".to_owned(),
            ..Node::default()
        });
        client.want(URL, interest);
        Self {
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            client,
            server: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            truth: BTreeMap::new(),
            latest: Snapshot::default(),
            counter: 0,
            applied: BTreeMap::new(),
            wanted: (interest == Interest::OnDemand).then(BTreeSet::new),
            answered: 0,
            resources_sent: 0,
        }
    }

    /// Usually made from the previous snapshot, as a control plane does; sometimes from scratch, as after a restart.
    fn snapshot(&mut self) -> Snapshot {
        let resource = |content: &u64| Versioned {
            version: content.to_string(),
            bytes: content.to_be_bytes().to_vec(),
            aliases: Vec::new(),
            audience: audience(*content),
        };
        let there = self.truth.iter().map(|(n, c)| (n.clone(), resource(c)));
        if self.dice.roll(8) == 0 {
            self.latest = Snapshot::new(there);
        } else {
            let gone: Vec<String> = self
                .latest
                .iter()
                .map(|resource| resource.name().to_owned())
                .filter(|name| !self.truth.contains_key(name))
                .collect();
            let gone = gone.into_iter().map(|name| (name, None));
            let there = there.map(|(name, resource)| (name, Some(resource)));
            self.latest = self.latest.amended(there.chain(gone));
        }
        self.latest.clone()
    }

    fn connect(&mut self) {
        if self.server.is_none() {
            self.server = Some(Server::with_view(View::Namespace("b".to_owned())));
            let first = self.client.connected();
            assert!(
                first[0].node.is_some(),
                "the first message of a stream introduces the client"
            );
            self.up.extend(first);
        }
    }

    fn disconnect(&mut self) {
        self.server = None;
        self.up.clear();
        self.down.clear();
        self.client.disconnected();
    }

    fn change(&mut self) {
        let name = format!("r{}", self.dice.roll(8));
        self.counter += 1;
        if self.dice.roll(3) == 0 {
            self.truth.remove(&name);
        } else {
            self.truth.insert(name, self.counter);
        }
    }

    fn ask(&mut self) {
        let name = format!("r{}", self.dice.roll(8));
        let Some(wanted) = &mut self.wanted else { return };
        let request = if wanted.remove(&name) {
            self.applied.remove(&name);
            self.client.unsubscribe(URL, &name)
        } else {
            wanted.insert(name.clone());
            self.client.subscribe(URL, &name)
        };
        self.up.extend(request);
    }

    fn server_turn(&mut self) {
        let now = self.snapshot();
        let Some(server) = &mut self.server else { return };
        if let Some(request) = self.up.pop_front() {
            server.receive(request).unwrap();
        }
        if let Some(response) = server.next(URL, &now) {
            self.resources_sent += response.resources.len();
            self.down.push_back(response.message().unwrap());
            assert_eq!(self.down.len(), 1, "one unanswered response at a time");
        }
    }

    fn client_turn(&mut self) {
        let Some(response) = self.down.pop_front() else {
            return;
        };
        let nonce = response.nonce.clone();
        let received = self.client.receive(response).unwrap();
        let mut refused = Vec::new();
        for change in &received.changes {
            match change {
                Change::Update { name, bytes } => {
                    let content = u64::from_be_bytes(bytes.as_slice().try_into().unwrap());
                    if bad(content) {
                        refused.push((name.clone(), "divisible by seven".to_owned()));
                    } else {
                        self.applied.insert(name.clone(), bytes.clone());
                    }
                }
                Change::Remove { name } => {
                    self.applied.remove(name);
                }
            }
        }
        let answer = self.client.answer(&received, &refused);
        assert_eq!(answer.response_nonce, nonce);
        assert_eq!(answer.error_detail.is_some(), !refused.is_empty());
        self.answered += 1;
        self.up.push_back(answer);
    }

    fn settle(&mut self) {
        self.connect();
        for _ in 0..100 {
            self.server_turn();
            self.client_turn();
        }
    }

    fn check(&self, seed: u64) {
        for (name, content) in &self.truth {
            if hidden(*content) {
                assert!(
                    !self.applied.contains_key(name),
                    "seed {seed}: {name} is not for it"
                );
                continue;
            }
            let wanted = self.wanted.as_ref().is_none_or(|w| w.contains(name));
            match self.applied.get(name) {
                Some(bytes) if wanted && !bad(*content) => {
                    assert_eq!(bytes, &content.to_be_bytes().to_vec(), "seed {seed}: {name}");
                }
                // The last good content stays while the newest is refused.
                Some(_) => assert!(wanted && bad(*content), "seed {seed}: {name} should not be here"),
                None => assert!(!wanted || bad(*content), "seed {seed}: {name} is missing"),
            }
        }
        for name in self.applied.keys() {
            assert!(self.truth.contains_key(name), "seed {seed}: {name} was removed");
        }
        assert!(
            self.up.is_empty() && self.down.is_empty(),
            "seed {seed}: not quiet"
        );
    }
}

fn simulate(interest: Interest) {
    for seed in 1..=512 {
        let mut world = World::new(seed, interest);
        for _ in 0..120 {
            match world.dice.roll(12) {
                0 => world.disconnect(),
                1 => world.connect(),
                2..=3 => world.change(),
                4..=5 => world.ask(),
                6..=8 => world.server_turn(),
                _ => world.client_turn(),
            }
        }
        world.settle();
        world.check(seed);
    }
}

#[test]
fn everything_ends_in_agreement() {
    simulate(Interest::Everything);
}

#[test]
fn on_demand_ends_in_agreement() {
    simulate(Interest::OnDemand);
}

#[test]
fn a_reconnect_brings_only_what_changed() {
    let mut world = World::new(1, Interest::Everything);
    for n in [1, 2, 3, 4, 6] {
        world.truth.insert(format!("r{n}"), n);
    }
    assert!(!world.client.in_sync());
    world.settle();
    assert!(world.client.in_sync());
    assert_eq!(world.resources_sent, 5);
    world.disconnect();
    world.truth.insert("r2".to_owned(), 8);
    world.truth.remove("r3");
    world.settle();
    assert_eq!(world.resources_sent, 6);
    assert!(!world.applied.contains_key("r3"));
}

#[test]
fn a_refused_resource_is_not_sent_again_until_it_changes_or_the_stream_does() {
    let mut world = World::new(1, Interest::Everything);
    world.truth.insert("good".to_owned(), 1);
    world.truth.insert("bad".to_owned(), 7);
    world.settle();
    assert_eq!((world.resources_sent, world.answered), (2, 1));
    assert_eq!(world.applied.len(), 1, "the good one is in force");
    world.disconnect();
    world.settle();
    assert_eq!(world.resources_sent, 3, "only the refused one comes again");
    world.truth.insert("bad".to_owned(), 8);
    world.settle();
    assert_eq!(world.applied.len(), 2);
}

#[test]
fn an_empty_mesh_is_answered_and_an_unknown_name_too() {
    let mut world = World::new(1, Interest::Everything);
    world.settle();
    assert!(world.client.in_sync());
    let mut world = World::new(1, Interest::OnDemand);
    world.connect();
    let request = world.client.subscribe(URL, "nobody").unwrap();
    assert_eq!(world.client.subscribe(URL, "nobody"), None, "asked once");
    let mut server = Server::new();
    for request in world.up.drain(..).chain([request]) {
        server.receive(request).unwrap();
    }
    let answer = server.next(URL, &Snapshot::default()).unwrap();
    assert_eq!(answer.removed, ["nobody"]);
}

#[test]
fn an_alias_finds_the_resource() {
    let resource = Versioned {
        version: "1".to_owned(),
        bytes: vec![1],
        aliases: vec!["net/10.0.0.1".to_owned()],
        audience: Audience::Namespace("b".into()),
    };
    let now = Snapshot::new([("uid".to_owned(), resource)]);
    let mut server = Server::new();
    let _ = server.receive(DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_subscribe: vec!["net/10.0.0.1".to_owned()],
        ..DeltaDiscoveryRequest::default()
    });
    let answer = server.next(URL, &now).unwrap();
    assert_eq!(answer.resources[0].name(), "uid");
    assert!(answer.resources[0].aliases().eq(["net/10.0.0.1"]));
    let mut stranger = Server::with_view(View::Namespace("c".to_owned()));
    let _ = stranger.receive(DeltaDiscoveryRequest {
        type_url: URL.to_owned(),
        resource_names_subscribe: vec!["net/10.0.0.1".to_owned()],
        ..DeltaDiscoveryRequest::default()
    });
    let answer = stranger.next(URL, &now).unwrap();
    assert!(
        answer.resources.is_empty(),
        "what it may not have does not exist for it"
    );
    assert_eq!(answer.removed, ["net/10.0.0.1"]);
}

#[test]
fn a_refusal_of_many_resources_stays_short() {
    let mut client = Client::new(Node::default());
    client.want(URL, Interest::Everything);
    let received = client
        .receive(DeltaDiscoveryResponse {
            type_url: URL.to_owned(),
            ..DeltaDiscoveryResponse::default()
        })
        .unwrap();
    let refused: Vec<_> = (0..1000).map(|n| (n.to_string(), "no".to_owned())).collect();
    let message = client.answer(&received, &refused).error_detail.unwrap().message;
    assert!(message.ends_with("9: no; and 990 more"), "{message}");
}
