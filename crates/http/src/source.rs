//! At most so many things at once for one source address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what sources have at work.
#[derive(Debug)]
pub struct SourceLimiter {
    per_source: usize,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// The right to one thing, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    limiter: Arc<SourceLimiter>,
    source: IpAddr,
}

impl SourceLimiter {
    /// Gives each source this many permits.
    pub fn new(per_source: usize) -> Arc<Self> {
        Arc::new(Self {
            per_source,
            held: Mutex::default(),
        })
    }

    /// A permit, unless the source holds as many as it may.
    pub fn try_acquire(self: &Arc<Self>, source: IpAddr) -> Option<Permit> {
        let source = source.to_canonical();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.get(&source).copied().unwrap_or(0);
        if count >= self.per_source {
            return None;
        }
        held.insert(source, count + 1);
        Some(Permit {
            limiter: Arc::clone(self),
            source,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut held = self.limiter.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = held.entry(self.source) {
            *count.get_mut() -= 1;
            // Sources that hold nothing are not remembered.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SourceLimiter;
    use std::net::IpAddr;

    #[test]
    fn one_source_cannot_take_the_permits_of_another() {
        let limiter = SourceLimiter::new(2);
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let permits = [
            limiter.try_acquire(one).unwrap(),
            limiter.try_acquire(one).unwrap(),
        ];
        assert!(limiter.try_acquire(one).is_none());
        assert!(limiter.try_acquire(other).is_some());
        drop(permits);
        assert!(limiter.try_acquire(one).is_some());
        assert!(limiter.held.lock().unwrap().is_empty());
    }
}
