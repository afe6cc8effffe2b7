use super::{Activity, Full, IDLE, Key, Ledger};
use proptest::prelude::*;
use remora_mtls::SpiffeId;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

/// A connection of which the test says how many bytes moved.
#[derive(Debug, Clone, Default)]
struct Fake(Rc<Cell<u64>>);

impl Activity for Fake {
    fn bytes(&self) -> u64 {
        self.0.get()
    }
}

impl Fake {
    fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn peer(name: &str) -> SpiffeId {
    SpiffeId::of_service_account("td", "shop", name).unwrap()
}

/// Plaintext connections of a source, as many as are admitted of so many.
fn plaintext(ledger: &mut Ledger<Fake>, source: IpAddr, count: usize) -> Vec<(Key, Fake)> {
    let open = |_| {
        let fake = Fake::default();
        let (key, _) = ledger.admit_source(source, fake.clone(), 0).ok()?;
        if ledger.settle(&key, 0).is_err() {
            ledger.release_source(&key);
            return None;
        }
        Some((key, fake))
    };
    (0..count).filter_map(open).collect()
}

#[test]
fn a_source_may_use_all_that_is_not_reserved() {
    let mut ledger = Ledger::new(80);
    assert_eq!(plaintext(&mut ledger, address(1), 100).len(), 70);
}

#[test]
fn a_small_source_takes_the_oldest_connection_of_the_biggest() {
    let mut ledger = Ledger::new(80);
    let big = plaintext(&mut ledger, address(1), 100);
    let (key, _) = ledger.admit_source(address(2), Fake::default(), 1).unwrap();
    let victim = ledger.settle(&key, 1).unwrap().unwrap();
    assert!(victim.is(&big[0].1));
}

#[test]
fn a_source_that_holds_most_loses_only_what_is_idle() {
    let mut ledger = Ledger::new(8);
    let big = plaintext(&mut ledger, address(1), 7);
    let newcomer = Fake::default();
    let (key, _) = ledger.admit_source(address(1), newcomer.clone(), 1).unwrap();
    assert!(ledger.settle(&key, 1).is_err(), "nothing is idle yet");
    for (_, fake) in &big {
        fake.0.set(16);
    }
    assert!(
        ledger.settle(&key, IDLE).is_err(),
        "all moved since the last look"
    );
    big[0].1.0.set(17);
    newcomer.0.set(1);
    let victim = ledger.settle(&key, 2 * IDLE).unwrap().unwrap();
    assert!(victim.is(&big[1].1), "the oldest on which nothing moved");
}

#[test]
fn mesh_peers_and_the_application_go_before_plaintext() {
    let mut ledger = Ledger::new(8);
    let plain = plaintext(&mut ledger, address(1), 7);
    assert!(
        ledger.admit_peer(&peer("web"), 0).unwrap().is_none(),
        "the reserve"
    );
    let victims = [
        ledger.admit_peer(&peer("web"), 0).unwrap().unwrap(),
        ledger.admit_local(0).unwrap().unwrap(),
    ];
    assert!(victims[0].is(&plain[0].1) && victims[1].is(&plain[1].1));
    assert!(!ledger.authenticate(&plain[0].0, &peer("web")), "it made room");
}

#[test]
fn a_peer_leaves_room_for_others() {
    let mut ledger: Ledger<Fake> = Ledger::new(160);
    let mut count = 0;
    while ledger.admit_peer(&peer("greedy"), 0).is_ok() {
        count += 1;
    }
    assert_eq!(count, 150);
    assert!(ledger.admit_peer(&peer("web"), 0).is_ok());
}

#[test]
fn without_anybody_to_make_room_there_is_none() {
    let mut ledger: Ledger<Fake> = Ledger::new(2);
    assert!(ledger.admit_local(0).is_ok() && ledger.admit_local(0).is_ok());
    assert!(ledger.admit_local(0).is_err());
    assert!(ledger.admit_peer(&peer("web"), 0).is_err());
    assert!(ledger.admit_source(address(1), Fake::default(), 0).is_err());
    ledger.release_local();
    assert!(ledger.admit_source(address(1), Fake::default(), 0).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Local,
    Peer(u8),
    Source(u8),
    Settle(usize),
    Authenticate(usize, u8),
    Move(usize),
    Close(usize),
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        1 => Just(Step::Local),
        2 => (0..3_u8).prop_map(Step::Peer),
        6 => (0..5_u8).prop_map(Step::Source),
        3 => (0..50_usize).prop_map(Step::Settle),
        2 => (0..50_usize, 0..3_u8).prop_map(|(which, id)| Step::Authenticate(which, id)),
        2 => (0..50_usize).prop_map(Step::Move),
        3 => (0..50_usize).prop_map(Step::Close),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(one, 0..300)
}

/// What the test thinks is open.
enum Open {
    Local,
    Peer(SpiffeId),
    Source(Key, Fake),
}

struct Model {
    ledger: Ledger<Fake>,
    open: Vec<Open>,
    now: u64,
}

impl Model {
    fn anonymous(&self, source: IpAddr) -> usize {
        let of = |open: &&Open| matches!(open, Open::Source(key, _) if key.source == source);
        self.open.iter().filter(of).count()
    }

    fn most(&self) -> usize {
        (0..5).map(|last| self.anonymous(address(last))).max().unwrap()
    }

    /// Takes away what had to make room, which only a source that holds most may have to.
    fn evicted(&mut self, victim: Option<&Fake>, most: usize) {
        let Some(victim) = victim else { return };
        let at = self
            .open
            .iter()
            .position(|open| matches!(open, Open::Source(_, fake) if fake.is(victim)));
        let Open::Source(key, _) = self.open.remove(at.unwrap()) else {
            unreachable!()
        };
        assert_eq!(self.anonymous(key.source) + 1, most, "the biggest source loses");
    }

    fn key(&self, which: usize) -> Option<Key> {
        match self.open.get(which) {
            Some(Open::Source(key, _)) => Some(*key),
            _ => None,
        }
    }

    fn step(&mut self, step: &Step) {
        let most = self.most();
        match *step {
            Step::Local | Step::Peer(_) => {
                let id = match step {
                    Step::Peer(id) => Some(peer(&format!("p{id}"))),
                    _ => None,
                };
                let admitted = match &id {
                    Some(id) => self.ledger.admit_peer(id, self.now),
                    None => self.ledger.admit_local(self.now),
                };
                match admitted {
                    Ok(victim) => {
                        self.evicted(victim.as_ref(), most);
                        self.open.push(id.map_or(Open::Local, Open::Peer));
                    }
                    Err(Full) => assert!(
                        id.is_some() || most == 0,
                        "connections without an identity make room"
                    ),
                }
            }
            Step::Source(last) => {
                let (source, fake) = (address(last), Fake::default());
                let own = self.anonymous(source);
                match self.ledger.admit_source(source, fake.clone(), self.now) {
                    Ok((key, victim)) => {
                        self.evicted(victim.as_ref(), most);
                        self.open.push(Open::Source(key, fake));
                    }
                    Err(Full) => assert!(
                        self.ledger.free() == 0 && most <= own + 1,
                        "a small source is served"
                    ),
                }
            }
            Step::Settle(which) => {
                if let Some(key) = self.key(which)
                    && let Ok(victim) = self.ledger.settle(&key, self.now)
                {
                    self.evicted(victim.as_ref(), most);
                }
            }
            Step::Authenticate(which, id) => {
                let id = peer(&format!("p{id}"));
                if let Some(key) = self.key(which)
                    && self.ledger.authenticate(&key, &id)
                {
                    self.open[which] = Open::Peer(id);
                }
            }
            Step::Move(which) => {
                if let Some(Open::Source(_, fake)) = self.open.get(which) {
                    fake.0.set(fake.0.get() + 1);
                }
            }
            Step::Close(which) if which < self.open.len() => match self.open.remove(which) {
                Open::Local => self.ledger.release_local(),
                Open::Peer(id) => self.ledger.release_peer(&id),
                Open::Source(key, _) => self.ledger.release_source(&key),
            },
            Step::Close(_) => {}
            Step::Wait => self.now += IDLE,
        }
        assert_eq!(self.ledger.used, self.open.len());
        assert!(self.ledger.used <= self.ledger.limit);
    }
}

proptest! {
    #[test]
    fn the_limit_holds_and_the_biggest_source_loses_first(limit in 1..30_usize, steps in steps()) {
        let mut model = Model { ledger: Ledger::new(limit), open: Vec::new(), now: 0 };
        for step in &steps {
            model.step(step);
        }
        while !model.open.is_empty() {
            model.step(&Step::Close(0));
        }
        prop_assert!(model.ledger.sources.is_empty() && model.ledger.sizes.is_empty() && model.ledger.peers.is_empty());
        prop_assert_eq!((model.ledger.used, model.ledger.anonymous), (0, 0));
    }
}
