//! Which connection is admitted, evicted or refused. No IO, no clock: order of events is all that counts.
//!
//! Rules, for a new connection of a source (a client address):
//!
//! 1. A source that holds as many connections as one source may hold pays for the new one itself: its oldest pending
//!    connection is closed, or its oldest idle one. If all of them are at work the new one is refused.
//! 2. If the whole port is full, a pending connection is closed, of the source that holds most of those; otherwise an
//!    idle one, by the same rule.
//! 3. If every connection is at work or trusted, the source that holds most of all loses its oldest connection, but only
//!    if it holds more than the source of the new connection would. Otherwise the new one is refused.
//!
//! So a flood from one source costs that source only, and a client that asks at once is served even when it shares the
//! source of the flood: its connection is the youngest, and the oldest is closed.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// How many connections a port holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All together.
    pub connections: usize,
    /// Of one source address.
    pub per_source: usize,
    /// Of these, connections that have not made a request yet (or not authenticated), all together.
    pub pending: usize,
    /// The same, of one source address.
    pub pending_per_source: usize,
}

impl Limits {
    /// For a port without authentication: a pending connection is as good as any other.
    pub fn new(connections: usize, per_source: usize) -> Self {
        Self {
            connections,
            per_source,
            pending: connections,
            pending_per_source: per_source,
        }
    }
}

/// What a connection is doing. In the order in which connections are given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Has not made a request yet, or has not authenticated where that is required.
    Pending,
    /// Has made requests before, and makes none now.
    Idle,
    /// Waits for the answer to a request.
    Active,
    /// Authenticated: kept while it is open.
    Trusted,
}

const STAGES: usize = 4;

/// Names a connection of a [`Table`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// What to do with a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is admitted, and another one has to be closed for it.
    Admit {
        /// The new one.
        id: Id,
        /// The one to close. It is not in the table any more.
        evict: Option<Id>,
    },
    /// It is to be closed.
    Refuse,
}

/// Connections of one source: by stage, in the order in which they came to it.
#[derive(Debug, Default)]
struct Source([BTreeMap<u64, Id>; STAGES]);

impl Source {
    fn held(&self) -> usize {
        self.0.iter().map(BTreeMap::len).sum()
    }

    fn at(&self, stage: Stage) -> usize {
        self.0[stage as usize].len()
    }

    fn oldest(&self, stage: Stage) -> Option<(u64, Id)> {
        let (order, id) = self.0[stage as usize].first_key_value()?;
        Some((*order, *id))
    }

    /// The oldest connection that can be closed without breaking a request.
    fn spare(&self) -> Option<Id> {
        let oldest = self.oldest(Stage::Pending).or_else(|| self.oldest(Stage::Idle))?;
        Some(oldest.1)
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    source: IpAddr,
    stage: Stage,
    order: u64,
}

/// All open connections of a port.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    entries: HashMap<Id, Entry>,
    sources: HashMap<IpAddr, Source>,
    pending: usize,
    clock: u64,
}

impl Table {
    /// Without connections.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            sources: HashMap::new(),
            pending: 0,
            clock: 0,
        }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many connections a source has.
    pub fn held(&self, source: IpAddr) -> usize {
        self.sources.get(&source.to_canonical()).map_or(0, Source::held)
    }

    /// A client connected.
    pub fn admit(&mut self, source: IpAddr) -> Admission {
        let source = source.to_canonical();
        let Some(evict) = self.make_room(source) else {
            return Admission::Refuse;
        };
        if let Some(id) = evict {
            self.remove(id);
        }
        let id = Id(self.tick());
        self.insert(
            id,
            Entry {
                source,
                stage: Stage::Pending,
                order: id.0,
            },
        );
        Admission::Admit { id, evict }
    }

    /// Which connection to close for another one of this source, if any; nothing if the new one is to be refused.
    #[expect(
        clippy::option_option,
        reason = "refused, or admitted with or without a victim"
    )]
    fn make_room(&self, source: IpAddr) -> Option<Option<Id>> {
        if let Some(known) = self.sources.get(&source) {
            if known.held() >= self.limits.per_source {
                return known.spare().map(Some);
            }
            if known.at(Stage::Pending) >= self.limits.pending_per_source {
                return known.oldest(Stage::Pending).map(|(_, id)| Some(id));
            }
        }
        if self.entries.len() >= self.limits.connections {
            return self.victim(self.held(source)).map(Some);
        }
        if self.pending >= self.limits.pending {
            return self.of_largest(Stage::Pending).map(Some);
        }
        Some(None)
    }

    /// The connection that matters least of all, to a source that holds so many.
    fn victim(&self, held: usize) -> Option<Id> {
        self.of_largest(Stage::Pending)
            .or_else(|| self.of_largest(Stage::Idle))
            .or_else(|| self.of_greediest(held))
    }

    /// The oldest connection in a stage, of the source that has most of them.
    fn of_largest(&self, stage: Stage) -> Option<Id> {
        let candidates = self.sources.values().filter_map(|source| {
            let (order, id) = source.oldest(stage)?;
            Some((source.at(stage), std::cmp::Reverse(order), id))
        });
        candidates.max().map(|(_, _, id)| id)
    }

    /// The oldest connection of the source that holds most, if that is more than another source will hold.
    fn of_greediest(&self, held: usize) -> Option<Id> {
        let source = self.sources.values().max_by_key(|source| source.held())?;
        if source.held() <= held + 1 {
            return None;
        }
        source
            .oldest(Stage::Active)
            .or_else(|| source.oldest(Stage::Trusted))
            .map(|(_, id)| id)
    }

    /// Closes the connection that matters least, whatever the limits are: descriptors are short.
    pub fn shed(&mut self) -> Option<Id> {
        let id = self
            .of_largest(Stage::Pending)
            .or_else(|| self.of_largest(Stage::Idle))?;
        self.remove(id);
        Some(id)
    }

    /// A connection does something else now. One that is trusted stays trusted.
    pub fn set(&mut self, id: Id, stage: Stage) {
        let Some(mut entry) = self.take(id) else {
            return;
        };
        entry.order = self.tick();
        if entry.stage != Stage::Trusted {
            entry.stage = stage;
        }
        self.insert(id, entry);
    }

    /// A connection is closed.
    pub fn remove(&mut self, id: Id) {
        let Some(entry) = self.take(id) else { return };
        // Sources without connections are not remembered.
        if self.held(entry.source) == 0 {
            self.sources.remove(&entry.source);
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn insert(&mut self, id: Id, entry: Entry) {
        let source = self.sources.entry(entry.source).or_default();
        source.0[entry.stage as usize].insert(entry.order, id);
        self.pending += usize::from(entry.stage == Stage::Pending);
        self.entries.insert(id, entry);
    }

    fn take(&mut self, id: Id) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if let Some(source) = self.sources.get_mut(&entry.source) {
            source.0[entry.stage as usize].remove(&entry.order);
        }
        self.pending -= usize::from(entry.stage == Stage::Pending);
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
