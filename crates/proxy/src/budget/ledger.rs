//! Who holds how many connections, and who gives way. Pure: time and activity are given.

use remora_mtls::SpiffeId;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// One part in so many is kept for connections with an identity.
const RESERVE: usize = 8;
/// A peer may hold so many times what is left for the others.
const SHARE: usize = 15;
/// A connection is idle when no byte moved for so long, in milliseconds. A server may think before it answers.
const IDLE: u64 = 10_000;
/// Connections that are looked at to find an idle one: bounds the work of an accept while the limit is reached.
const LOOKS: usize = 16;

/// Tells whether anything moves on a connection.
pub(crate) trait Activity {
    /// Bytes so far.
    fn bytes(&self) -> u64;
}

/// There is no room, and nobody has to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// A connection without an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    source: IpAddr,
    number: u64,
}

#[derive(Debug)]
struct Held<T> {
    number: u64,
    connection: T,
    /// Bytes at the last look.
    bytes: u64,
    /// When that was.
    looked: u64,
}

/// Connections of one source, the one that was looked at least recently first.
#[derive(Debug)]
struct Source<T> {
    queue: BTreeMap<u64, Held<T>>,
    /// Where a connection stands in the queue, by its number.
    places: HashMap<u64, u64>,
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self {
            queue: BTreeMap::new(),
            places: HashMap::new(),
        }
    }
}

/// The account of all connections.
#[derive(Debug)]
pub(crate) struct Ledger<T> {
    limit: usize,
    used: usize,
    /// Connections without an identity.
    anonymous: usize,
    sources: HashMap<IpAddr, Source<T>>,
    /// The same sources by how many connections they hold.
    sizes: BTreeSet<(usize, IpAddr)>,
    peers: HashMap<SpiffeId, usize>,
    next: u64,
}

impl<T: Activity> Ledger<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: 0,
            anonymous: 0,
            sources: HashMap::new(),
            sizes: BTreeSet::new(),
            peers: HashMap::new(),
            next: 0,
        }
    }

    /// Connections that are open.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Room that is left.
    fn free(&self) -> usize {
        self.limit - self.used
    }

    /// What connections without an identity may use.
    fn open_to_all(&self) -> usize {
        self.limit - self.limit / RESERVE
    }

    /// A connection of the application. With the connection that makes room, if one must.
    pub(crate) fn admit_local(&mut self, now: u64) -> Result<Option<T>, Full> {
        let victim = self.make_room(now)?;
        self.used += 1;
        Ok(victim)
    }

    /// A connection of a mesh peer.
    pub(crate) fn admit_peer(&mut self, id: &SpiffeId, now: u64) -> Result<Option<T>, Full> {
        if !self.within_share(id) {
            return Err(Full);
        }
        let victim = self.make_room(now)?;
        self.used += 1;
        *self.peers.entry(id.clone()).or_default() += 1;
        Ok(victim)
    }

    /// A connection that has not proved an identity.
    pub(crate) fn admit_source(
        &mut self,
        source: IpAddr,
        connection: T,
        now: u64,
    ) -> Result<(Key, Option<T>), Full> {
        let victim = if self.used < self.limit {
            None
        } else {
            Some(self.compete(source, self.count(source), now).ok_or(Full)?)
        };
        let number = self.number();
        let key = Key { source, number };
        let held = Held {
            number,
            bytes: connection.bytes(),
            connection,
            looked: now,
        };
        self.resize(source, |account| {
            account.places.insert(number, number);
            account.queue.insert(number, held);
        });
        self.used += 1;
        self.anonymous += 1;
        Ok((key, victim))
    }

    /// The connection turned out to be plaintext: it may not use the reserve.
    pub(crate) fn settle(&mut self, key: &Key, now: u64) -> Result<Option<T>, Full> {
        if !self.holds(key) {
            return Err(Full);
        }
        if self.anonymous <= self.open_to_all() {
            return Ok(None);
        }
        // Compared without itself: it wants to be one more.
        let others = self.count(key.source).saturating_sub(1);
        let victim = self.compete(key.source, others, now).ok_or(Full)?;
        // It may have been the one that lost.
        if self.holds(key) {
            Ok(Some(victim))
        } else {
            Err(Full)
        }
    }

    /// The connection proved an identity. Not if it had to make room meanwhile or the peer has its share.
    pub(crate) fn authenticate(&mut self, key: &Key, id: &SpiffeId) -> bool {
        if !self.holds(key) || !self.within_share(id) {
            return false;
        }
        self.remove(key);
        self.used += 1;
        *self.peers.entry(id.clone()).or_default() += 1;
        true
    }

    pub(crate) fn release_local(&mut self) {
        self.used -= 1;
    }

    pub(crate) fn release_peer(&mut self, id: &SpiffeId) {
        if let Some(count) = self.peers.get_mut(id) {
            self.used -= 1;
            *count -= 1;
            // Peers that left are not remembered.
            if *count == 0 {
                self.peers.remove(id);
            }
        }
    }

    /// Nothing to do if it had to make room before.
    pub(crate) fn release_source(&mut self, key: &Key) {
        self.remove(key);
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn count(&self, source: IpAddr) -> usize {
        self.sources.get(&source).map_or(0, |account| account.queue.len())
    }

    fn holds(&self, key: &Key) -> bool {
        let account = self.sources.get(&key.source);
        account.is_some_and(|account| account.places.contains_key(&key.number))
    }

    /// Whether a peer holds little compared to what it leaves to others. Connections without an identity can make room.
    fn within_share(&self, id: &SpiffeId) -> bool {
        let own = self.peers.get(id).copied().unwrap_or_default();
        own < SHARE.saturating_mul(self.free() + self.anonymous)
    }

    /// Room for a connection that goes before those without an identity.
    fn make_room(&mut self, now: u64) -> Result<Option<T>, Full> {
        if self.used < self.limit {
            return Ok(None);
        }
        let (_, biggest) = *self.sizes.last().ok_or(Full)?;
        let key = self.idle(biggest, now).or_else(|| self.oldest(biggest));
        key.and_then(|key| self.remove(&key)).map(Some).ok_or(Full)
    }

    /// Room for one more connection of a source that holds `own`, taken from the source that holds most.
    fn compete(&mut self, source: IpAddr, own: usize, now: u64) -> Option<T> {
        let (most, biggest) = *self.sizes.last()?;
        // Equals do not take from each other what is in use.
        let outweighed = biggest != source && most > own + 1;
        let idle = self.idle(biggest, now);
        let key = idle.or_else(|| outweighed.then(|| self.oldest(biggest)).flatten())?;
        self.remove(&key)
    }

    fn oldest(&self, source: IpAddr) -> Option<Key> {
        let (_, held) = self.sources.get(&source)?.queue.first_key_value()?;
        Some(Key {
            source,
            number: held.number,
        })
    }

    /// A connection on which nothing moved since it was looked at last. Those on which something did go to the end of
    /// the queue and get another chance.
    fn idle(&mut self, source: IpAddr, now: u64) -> Option<Key> {
        for _ in 0..LOOKS {
            let next = self.number();
            let account = self.sources.get_mut(&source)?;
            let first = account.queue.first_entry()?;
            // All behind it were looked at later.
            if now.saturating_sub(first.get().looked) < IDLE {
                return None;
            }
            let bytes = first.get().connection.bytes();
            if bytes == first.get().bytes {
                let number = first.get().number;
                return Some(Key { source, number });
            }
            let mut held = first.remove();
            held.bytes = bytes;
            held.looked = now;
            account.places.insert(held.number, next);
            account.queue.insert(next, held);
        }
        None
    }

    fn remove(&mut self, key: &Key) -> Option<T> {
        if !self.holds(key) {
            return None;
        }
        let removed = self.resize(key.source, |account| {
            let place = account.places.remove(&key.number)?;
            account.queue.remove(&place)
        });
        self.used -= 1;
        self.anonymous -= 1;
        removed.map(|held| held.connection)
    }

    /// Changes the connections of a source and keeps the order of sizes. Sources that left are not remembered.
    fn resize<R>(&mut self, source: IpAddr, change: impl FnOnce(&mut Source<T>) -> R) -> R {
        let mut account = match self.sources.entry(source) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Source::default()),
        };
        let before = account.get().queue.len();
        let result = change(account.get_mut());
        let after = account.get().queue.len();
        if after == 0 {
            account.remove();
        }
        self.sizes.remove(&(before, source));
        if after > 0 {
            self.sizes.insert((after, source));
        }
        result
    }
}

#[cfg(test)]
mod tests;
