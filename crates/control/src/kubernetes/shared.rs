//! What many pods have in common, kept once.
//!
//! The pods of a Deployment differ in name, place and health; all else is the same, and most of what is known of them.
//! Nothing is kept for its own sake: what no pod has any more is forgotten.

use super::pod::{Labels, Sort};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Weak};

/// So many more than before, and those nobody has are forgotten.
const SLACK: usize = 64;

/// Sorts of pods by their hash, and names.
#[derive(Debug, Default)]
pub(super) struct Shared {
    sorts: HashMap<u64, Weak<Sort>>,
    names: HashSet<Arc<str>>,
    /// How many there were when those nobody has were last forgotten.
    sorts_before: usize,
    names_before: usize,
}

impl Shared {
    pub(super) fn sort(&mut self, sort: Sort) -> Arc<Sort> {
        let hash = hash(&sort);
        let same = self.sorts.get(&hash).and_then(Weak::upgrade);
        if let Some(same) = same.filter(|same| **same == sort) {
            return same;
        }
        if self.sorts.len() > 2 * self.sorts_before + SLACK {
            self.sorts.retain(|_, sort| sort.strong_count() > 0);
            self.sorts_before = self.sorts.len();
        }
        let sort = Arc::new(sort);
        self.sorts.insert(hash, Arc::downgrade(&sort));
        sort
    }

    pub(super) fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() > 2 * self.names_before + SLACK {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.names_before = self.names.len();
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

fn hash(sort: &Sort) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (key, value) in &sort.labels as &Labels {
        (key, value.as_str()).hash(&mut hasher);
    }
    (&sort.account, &sort.ports, sort.tunnel as u8, sort.shared).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::Shared;
    use crate::kubernetes::pod::Sort;
    use crate::mesh::Tunnel;
    use serde_json::json;
    use std::sync::Arc;

    fn sort(app: &str, tunnel: Tunnel) -> Sort {
        Sort {
            labels: [("app".to_owned(), json!(app))].into_iter().collect(),
            account: "default".to_owned(),
            ports: Box::new([]),
            tunnel,
            shared: false,
        }
    }

    #[test]
    fn the_same_is_kept_once_and_what_nobody_has_is_forgotten() {
        let mut shared = Shared::default();
        let [one, two] = [(); 2].map(|()| shared.sort(sort("cart", Tunnel::Hbone)));
        assert!(Arc::ptr_eq(&one, &two));
        assert_ne!(
            one,
            shared.sort(sort("cart", Tunnel::None)),
            "what differs is told apart"
        );
        let node = shared.name("n1");
        for number in 0..1000 {
            shared.sort(sort(&number.to_string(), Tunnel::None));
            shared.name(&number.to_string());
        }
        assert!(shared.sorts.len() < 200, "{}", shared.sorts.len());
        assert!(shared.names.len() < 200, "{}", shared.names.len());
        assert_eq!(shared.sort(sort("cart", Tunnel::Hbone)), one);
        assert!(Arc::ptr_eq(&node, &shared.name("n1")));
    }
}
