use super::{Admission, Id, Limits, Stage, Table};
use std::net::IpAddr;

fn source(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn admitted(table: &mut Table, last: u8) -> (Id, Option<Id>) {
    match table.admit(source(last)) {
        Admission::Admit { id, evict } => (id, evict),
        Admission::Refuse => panic!("10.0.0.{last} was refused"),
    }
}

fn at(table: &mut Table, last: u8, stage: Stage) -> Id {
    let (id, _) = admitted(table, last);
    table.set(id, stage);
    id
}

#[test]
fn a_flood_of_one_source_evicts_its_own_oldest_connections() {
    let mut table = Table::new(Limits::new(100, 3));
    let good = at(&mut table, 1, Stage::Idle);
    let flood: Vec<Id> = (0..3).map(|_| admitted(&mut table, 2).0).collect();
    for expected in &flood {
        assert_eq!(admitted(&mut table, 2).1, Some(*expected));
    }
    assert_eq!(table.held(source(2)), 3);
    assert_eq!(table.held(source(1)), 1, "{good:?} is untouched");
}

#[test]
fn a_new_request_of_the_flooding_source_is_admitted_too() {
    let mut table = Table::new(Limits::new(100, 2));
    let first = admitted(&mut table, 2).0;
    let probe = admitted(&mut table, 2).0;
    assert_eq!(admitted(&mut table, 2).1, Some(first), "the oldest goes first");
    table.set(probe, Stage::Active);
    assert_ne!(admitted(&mut table, 2).1, Some(probe), "a request is not cut off");
}

#[test]
fn a_full_port_evicts_pending_before_idle_and_never_a_small_sources_request() {
    let mut table = Table::new(Limits::new(4, 4));
    let idle = at(&mut table, 1, Stage::Idle);
    let active = at(&mut table, 1, Stage::Active);
    let (pending, _) = admitted(&mut table, 2);
    let trusted = at(&mut table, 3, Stage::Trusted);
    let (new, evicted) = admitted(&mut table, 4);
    assert_eq!(evicted, Some(pending));
    table.set(new, Stage::Active);
    let (new, evicted) = admitted(&mut table, 5);
    assert_eq!(evicted, Some(idle));
    table.set(new, Stage::Active);
    assert_eq!(table.admit(source(6)), Admission::Refuse, "everyone holds one");
    table.remove(active);
    assert_eq!(admitted(&mut table, 6).1, None);
    assert!(
        table.len() == 4 && table.held(source(3)) == 1,
        "{trusted:?} stays"
    );
}

#[test]
fn the_source_with_most_connections_pays_when_all_are_at_work() {
    let mut table = Table::new(Limits::new(4, 4));
    let oldest = at(&mut table, 1, Stage::Active);
    for last in [1, 1, 2] {
        at(&mut table, last, Stage::Active);
    }
    assert_eq!(admitted(&mut table, 3).1, Some(oldest));
}

#[test]
fn the_largest_source_loses_first_and_the_oldest_of_it() {
    let mut table = Table::new(Limits::new(5, 5));
    admitted(&mut table, 1);
    let (oldest, _) = admitted(&mut table, 2);
    for last in [2, 2, 3] {
        admitted(&mut table, last);
    }
    assert_eq!(admitted(&mut table, 4).1, Some(oldest));
}

#[test]
fn pending_connections_have_limits_of_their_own() {
    let limits = Limits {
        connections: 100,
        per_source: 50,
        pending: 3,
        pending_per_source: 2,
    };
    let mut table = Table::new(limits);
    for _ in 0..10 {
        at(&mut table, 1, Stage::Trusted);
    }
    let (first, _) = admitted(&mut table, 1);
    admitted(&mut table, 1);
    assert_eq!(admitted(&mut table, 1).1, Some(first), "of the source");
    admitted(&mut table, 2);
    assert!(admitted(&mut table, 3).1.is_some(), "of all sources");
    assert_eq!(table.held(source(2)) + table.held(source(3)), 2);
}

#[test]
fn a_connection_that_is_trusted_stays_so() {
    let mut table = Table::new(Limits::new(2, 2));
    let trusted = at(&mut table, 1, Stage::Trusted);
    table.set(trusted, Stage::Idle);
    let (pending, _) = admitted(&mut table, 1);
    assert_eq!(admitted(&mut table, 1).1, Some(pending));
}

#[test]
fn an_address_mapped_into_the_other_family_is_the_same_source() {
    let mut table = Table::new(Limits::new(10, 10));
    admitted(&mut table, 1);
    table.admit("::ffff:10.0.0.1".parse().unwrap());
    assert_eq!(table.held(source(1)), 2);
}

#[test]
fn what_is_closed_is_forgotten() {
    let mut table = Table::new(Limits::new(10, 10));
    let ids: Vec<Id> = (0..4).map(|last| admitted(&mut table, last).0).collect();
    table.set(ids[0], Stage::Active);
    for id in &ids {
        table.remove(*id);
        table.remove(*id);
    }
    assert!(table.is_empty() && table.sources.is_empty() && table.pending == 0);
    assert_eq!(table.shed(), None);
}

#[test]
fn when_descriptors_are_short_pending_connections_go_before_idle_ones_and_no_others_go() {
    let mut table = Table::new(Limits::new(10, 10));
    let idle = at(&mut table, 1, Stage::Idle);
    at(&mut table, 1, Stage::Active);
    at(&mut table, 2, Stage::Trusted);
    let (pending, _) = admitted(&mut table, 3);
    assert!(!table.is_empty());
    assert_eq!(table.shed(), Some(pending));
    assert_eq!(table.held(source(3)), 0, "it is not in the table any more");
    assert_eq!(table.shed(), Some(idle));
    assert_eq!(table.shed(), None, "requests and authenticated clients stay");
    assert_eq!(table.len(), 2);
}
