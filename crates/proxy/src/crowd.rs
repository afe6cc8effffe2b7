//! How many connections of one source are still being judged.
//!
//! A connection that has not yet proved anything (a handshake, first bytes, a request that is not answered) costs the
//! proxy and nothing to whoever opened it. One source may have so many of them at a time; others are not disturbed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// All that are being judged.
#[derive(Debug)]
pub(crate) struct Crowd {
    most: usize,
    waiting: Mutex<HashMap<IpAddr, usize>>,
}

/// One that is being judged, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    source: IpAddr,
}

impl Crowd {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            waiting: Mutex::default(),
        }
    }

    /// Nothing if the source has as many as it may.
    pub(crate) fn enter(self: &Arc<Self>, source: IpAddr) -> Option<Place> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.entry(source).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Place {
            crowd: Arc::clone(self),
            source,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.crowd.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = waiting.entry(self.source) {
            *count.get_mut() -= 1;
            // Sources that left are not remembered.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Crowd;
    use std::net::IpAddr;
    use std::sync::Arc;

    #[test]
    fn a_source_has_so_many_and_others_are_not_disturbed() {
        let crowd = Arc::new(Crowd::new(2));
        let [one, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let places = [crowd.enter(one).unwrap(), crowd.enter(one).unwrap()];
        assert!(crowd.enter(one).is_none());
        assert!(crowd.enter(other).is_some());
        drop(places);
        assert!(crowd.enter(one).is_some());
        assert!(crowd.waiting.lock().unwrap().is_empty(), "who left is forgotten");
    }
}
