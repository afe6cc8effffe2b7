//! What there is at a moment, and how it differs from what there was.
//!
//! A mesh of a hundred thousand resources changes a few at a time, and thousands of clients want to know which. So a
//! snapshot shares what did not change with the one it was made from, and remembers what the last ones changed: making
//! the next one and telling a client cost as much as the change, not as much as the mesh.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts a snapshot is kept in: an exchange copies one of them.
const PARTS: usize = 256;
/// Exchanges that are remembered, and names in them altogether: who is further behind is compared in full.
const REMEMBERED: usize = 64;
const NAMES: usize = 4096;

/// A resource as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// Changes when the content does.
    pub version: String,
    /// The encoded message.
    pub bytes: Vec<u8>,
    /// Other names under which it can be asked for.
    pub aliases: Vec<String>,
    /// Who may have it.
    pub audience: Audience,
}

/// Who may have a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Audience {
    /// Everybody.
    #[default]
    Everyone,
    /// Clients of a namespace.
    Namespace(String),
}

/// What a client may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum View {
    /// Everything.
    #[default]
    Everything,
    /// What is for everybody, and for a namespace.
    Namespace(String),
}

impl View {
    pub(super) fn shows(&self, resource: &Versioned) -> bool {
        match (self, &resource.audience) {
            (Self::Everything, _) | (_, Audience::Everyone) => true,
            (Self::Namespace(own), Audience::Namespace(theirs)) => own == theirs,
        }
    }
}

type Part = BTreeMap<Arc<str>, Arc<Versioned>>;
type Aliases = HashMap<Arc<str>, Arc<str>>;

/// All resources of a type at a moment, by name. A clone is the same one.
#[derive(Debug, Clone)]
pub struct Snapshot(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    parts: Vec<Arc<Part>>,
    aliases: Vec<Arc<Aliases>>,
    length: usize,
    /// Snapshots with the same line were made from each other, one exchange after the other.
    line: u64,
    exchange: u64,
    /// What the last exchanges changed, the newest last.
    recent: VecDeque<Arc<[Arc<str>]>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        static LINES: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Inner {
            parts: vec![Arc::default(); PARTS],
            aliases: vec![Arc::default(); PARTS],
            length: 0,
            line: LINES.fetch_add(1, Ordering::Relaxed),
            exchange: 0,
            recent: VecDeque::new(),
        }))
    }
}

impl PartialEq for Snapshot {
    /// Those of one line differ if an exchange lies between them; others by what is in them.
    fn eq(&self, other: &Self) -> bool {
        if self.0.line == other.0.line {
            return self.0.exchange == other.0.exchange;
        }
        self.len() == other.len()
            && self
                .iter()
                .all(|(name, resource)| other.get(name) == Some(resource))
    }
}

impl Eq for Snapshot {}

impl Snapshot {
    /// From resources by name.
    pub fn new(resources: BTreeMap<String, Arc<Versioned>>) -> Self {
        let all = resources
            .into_iter()
            .map(|(name, resource)| (name, Some(resource)));
        let mut made = Self::default().amended(all);
        // Nobody has the empty one it was made from.
        Arc::make_mut(&mut made.0).recent.clear();
        made
    }

    /// The same with some resources added, exchanged or, where there is `None`, taken away.
    #[must_use]
    pub fn amended(&self, changes: impl IntoIterator<Item = (String, Option<Arc<Versioned>>)>) -> Self {
        let mut next = Inner::clone(&self.0);
        let mut different = Vec::new();
        for (name, resource) in changes {
            different.extend(next.exchange(name, resource));
        }
        if different.is_empty() {
            return self.clone();
        }
        next.exchange += 1;
        next.recent.push_back(different.into());
        let mut count: usize = next.recent.iter().map(|names| names.len()).sum();
        while next.recent.len() > REMEMBERED || (count > NAMES && !next.recent.is_empty()) {
            count -= next.recent.pop_front().map_or(0, |names| names.len());
        }
        Self(Arc::new(next))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The resource of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<Versioned>> {
        self.0.parts.get(part(name))?.get(name)
    }

    /// All of them, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Versioned>)> {
        self.0.parts.iter().flat_map(|part| part.iter())
    }

    /// The resource of a name, if a client may have it.
    pub(super) fn seen(&self, name: &str, view: &View) -> Option<&Arc<Versioned>> {
        self.get(name).filter(|resource| view.shows(resource))
    }

    /// The name of what is asked for by name or alias, if it exists for the client.
    pub(super) fn resolve<'a>(&'a self, asked: &'a str, view: &View) -> Option<&'a str> {
        let name = if self.get(asked).is_some() {
            asked
        } else {
            self.0.aliases.get(part(asked))?.get(asked)?
        };
        self.seen(name, view).map(|_| name)
    }

    /// Names of what may differ from an older snapshot; all names of both when that is not known.
    pub(super) fn differing(&self, older: &Self) -> Vec<Arc<str>> {
        let (now, before) = (&self.0, &older.0);
        let behind = now.exchange.checked_sub(before.exchange).map(usize::try_from);
        if let (true, Some(Ok(behind))) = (now.line == before.line, behind)
            && behind <= now.recent.len()
        {
            let last = now.recent.iter().rev().take(behind);
            return last.flat_map(|names| names.iter().cloned()).collect();
        }
        let gone = older.iter().filter(|(name, _)| self.get(name).is_none());
        self.iter()
            .chain(gone)
            .map(|(name, _)| Arc::clone(name))
            .collect()
    }
}

impl Inner {
    /// The name, if anything is different now.
    fn exchange(&mut self, name: String, resource: Option<Arc<Versioned>>) -> Option<Arc<str>> {
        let name: Arc<str> = name.into();
        let place = self.parts.get_mut(part(&name))?;
        let before = place.get(&name).cloned();
        if before == resource {
            return None;
        }
        if let Some(resource) = &resource {
            Arc::make_mut(place).insert(Arc::clone(&name), Arc::clone(resource));
            self.length += usize::from(before.is_none());
        } else {
            Arc::make_mut(place).remove(&name);
            self.length -= 1;
        }
        let aliases =
            |resource: Option<Arc<Versioned>>| resource.map(|r| r.aliases.clone()).unwrap_or_default();
        let (old, new) = (aliases(before), aliases(resource));
        for alias in old.iter().filter(|alias| !new.contains(alias)) {
            let known = self.aliases.get_mut(part(alias))?;
            // Another one may have it by now.
            if known.get(alias.as_str()) == Some(&name) {
                Arc::make_mut(known).remove(alias.as_str());
            }
        }
        for alias in new.into_iter().filter(|alias| !old.contains(alias)) {
            let known = self.aliases.get_mut(part(&alias))?;
            Arc::make_mut(known).insert(alias.into(), Arc::clone(&name));
        }
        Some(name)
    }
}

fn part(name: &str) -> usize {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    // Fewer than 2^8 parts of it are looked at.
    usize::try_from(hasher.finish() % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Audience, NAMES, Snapshot, Versioned};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    fn resource(content: &str) -> Arc<Versioned> {
        Arc::new(Versioned {
            version: content.to_owned(),
            bytes: content.as_bytes().to_vec(),
            aliases: vec![format!("alias/{content}")],
            audience: Audience::Everyone,
        })
    }

    fn names(list: &[Arc<str>]) -> BTreeSet<String> {
        list.iter().map(|name| (**name).to_owned()).collect()
    }

    fn change(name: &str, content: Option<&str>) -> (String, Option<Arc<Versioned>>) {
        (name.to_owned(), content.map(resource))
    }

    #[test]
    fn what_differs_is_what_was_changed() {
        let first = Snapshot::default().amended([change("a", Some("1")), change("b", Some("2"))]);
        assert_eq!(
            first.amended([change("a", Some("1")), change("x", None)]),
            first,
            "no change"
        );
        let second = first.amended([change("a", Some("3"))]);
        let third = second.amended([change("b", None), change("c", Some("4"))]);
        assert_eq!(names(&second.differing(&first)), ["a".to_owned()].into());
        assert_eq!(
            names(&third.differing(&first)),
            ["a", "b", "c"].map(str::to_owned).into()
        );
        assert_eq!(third.differing(&third).len(), 0);
        assert_eq!((third.len(), first.len()), (2, 2), "older ones stay as they were");
        // Not of one line: everything may differ.
        let other = Snapshot::new(BTreeMap::from([("d".to_owned(), resource("5"))]));
        assert_eq!(
            names(&other.differing(&third)),
            ["a", "c", "d"].map(str::to_owned).into()
        );
    }

    #[test]
    fn aliases_follow_and_equality_is_content() {
        let first = Snapshot::default().amended([change("a", Some("1"))]);
        let view = super::View::Everything;
        assert_eq!(first.resolve("alias/1", &view), Some("a"));
        let second = first.amended([change("a", Some("2")), change("b", Some("1"))]);
        assert_eq!(second.resolve("alias/1", &view), Some("b"));
        let moved = second.amended([change("b", None)]);
        assert_eq!(
            (moved.resolve("alias/1", &view), moved.resolve("alias/2", &view)),
            (None, Some("a"))
        );
        let same = Snapshot::new(BTreeMap::from([("a".to_owned(), resource("2"))]));
        assert_eq!(moved, same);
        assert_ne!(first, same);
    }

    #[test]
    fn who_is_far_behind_is_compared_in_full() {
        let first = Snapshot::default().amended((0..10).map(|n| change(&n.to_string(), Some("x"))));
        let many = first.amended((0..=NAMES).map(|n| change(&n.to_string(), Some("y"))));
        assert_eq!(many.differing(&first).len(), NAMES + 1);
        let mut later = many.clone();
        for n in 0..100 {
            later = later.amended([change("0", Some(&n.to_string()))]);
        }
        assert_eq!(later.differing(&many).len(), NAMES + 1);
    }
}
