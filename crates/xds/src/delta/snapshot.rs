//! What there is at a moment, and how it differs from what there was.
//!
//! A mesh of a hundred thousand resources changes a few at a time, and thousands of clients want to know which. So a
//! snapshot shares what did not change with the one it was made from, and remembers what the last ones changed: making
//! the next one and telling a client cost as much as the change, not as much as the mesh.

use super::resource::{Encoded, Versioned, View};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts a snapshot is kept in: an exchange copies one of them.
const PARTS: usize = 256;
/// Exchanges that are remembered, and names in them altogether: who is further behind is compared in full.
const REMEMBERED: usize = 64;
const NAMES: usize = 4096;

/// Resources in the order of their names.
type Part = Vec<Arc<Encoded>>;
/// Resources in the order of the hashes of their aliases; of those with the same alias the newest last.
type Aliases = Vec<(u64, Arc<Encoded>)>;

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
    recent: VecDeque<Arc<[Box<str>]>>,
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
                .all(|resource| other.get(resource.name()) == Some(resource))
    }
}

impl Eq for Snapshot {}

impl Snapshot {
    /// From resources by name.
    pub fn new(resources: impl IntoIterator<Item = (String, Versioned)>) -> Self {
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
    pub fn amended(&self, changes: impl IntoIterator<Item = (String, Option<Versioned>)>) -> Self {
        let mut amendment = self.amend();
        for (name, resource) in changes {
            amendment.exchange(&name, resource);
        }
        amendment.finish()
    }

    /// Begins the next one.
    pub fn amend(&self) -> Amendment {
        Amendment {
            before: self.clone(),
            next: Inner::clone(&self.0),
            different: Vec::new(),
            count: 0,
        }
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
    pub fn get(&self, name: &str) -> Option<&Arc<Encoded>> {
        let part = self.0.parts.get(part(hash(name)))?;
        part.get(place(part, name).ok()?)
    }

    /// All of them, in an order that means nothing but is the same for the same content.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Encoded>> {
        self.0.parts.iter().flat_map(|part| part.iter())
    }

    /// The resource of a name, if a client may have it.
    pub(super) fn seen(&self, name: &str, view: &View) -> Option<&Arc<Encoded>> {
        self.get(name).filter(|resource| view.shows(resource))
    }

    /// What is asked for by name or alias, if it exists for the client.
    pub(super) fn resolve(&self, asked: &str, view: &View) -> Option<&Arc<Encoded>> {
        let found = self.get(asked).or_else(|| self.by_alias(asked))?;
        view.shows(found).then_some(found)
    }

    fn by_alias(&self, asked: &str) -> Option<&Arc<Encoded>> {
        let hash = hash(asked);
        let known = self.0.aliases.get(part(hash))?;
        let end = known.partition_point(|(other, _)| *other <= hash);
        let same = known.get(..end)?.iter().rev();
        same.take_while(|(other, _)| *other == hash)
            .map(|(_, resource)| resource)
            .find(|resource| resource.aliases().any(|alias| alias == asked))
    }

    /// Names of what may differ from an older snapshot; all names of both when that is not known.
    pub(super) fn differing<'a>(&'a self, older: &'a Self) -> Vec<&'a str> {
        let (now, before) = (&self.0, &older.0);
        let behind = now.exchange.checked_sub(before.exchange).map(usize::try_from);
        if let (true, Some(Ok(behind))) = (now.line == before.line, behind)
            && behind <= now.recent.len()
        {
            let last = now.recent.iter().rev().take(behind);
            return last.flat_map(|names| names.iter().map(|name| &**name)).collect();
        }
        let gone = older.iter().filter(|known| self.get(known.name()).is_none());
        self.iter().chain(gone).map(|resource| resource.name()).collect()
    }
}

/// A snapshot in the making.
#[derive(Debug)]
pub struct Amendment {
    before: Snapshot,
    next: Inner,
    /// What is different now, unless it is too much to be remembered.
    different: Vec<Box<str>>,
    count: usize,
}

impl Amendment {
    /// Adds or exchanges a resource or, where there is `None`, takes it away.
    pub fn exchange(&mut self, name: &str, resource: Option<Versioned>) {
        // What cannot be sent is not there.
        let resource = resource.and_then(|resource| Encoded::new(name, resource));
        if self.next.exchange(name, resource.map(Arc::new).as_ref()) {
            self.count += 1;
            if self.count <= NAMES {
                self.different.push(name.into());
            }
        }
    }

    /// The next snapshot; the one before where nothing is different.
    pub fn finish(self) -> Snapshot {
        let mut next = self.next;
        if self.count == 0 {
            return self.before;
        }
        next.exchange += 1;
        let mut count = self.count + next.recent.iter().map(|names| names.len()).sum::<usize>();
        next.recent.push_back(self.different.into());
        while next.recent.len() > REMEMBERED || (count > NAMES && !next.recent.is_empty()) {
            count -= next.recent.pop_front().map_or(0, |names| names.len());
        }
        Snapshot(Arc::new(next))
    }
}

impl Inner {
    /// Whether anything is different now.
    fn exchange(&mut self, name: &str, resource: Option<&Arc<Encoded>>) -> bool {
        let Some(part) = self.parts.get_mut(part(hash(name))) else {
            return false;
        };
        let at = place(part, name);
        let before = at.ok().and_then(|at| part.get(at)).cloned();
        if before.as_ref() == resource {
            return false;
        }
        let part = Arc::make_mut(part);
        match (at, resource) {
            (Ok(at), Some(resource)) => {
                if let Some(place) = part.get_mut(at) {
                    *place = Arc::clone(resource);
                }
            }
            (Err(at), Some(resource)) => {
                part.insert(at, Arc::clone(resource));
                self.length += 1;
            }
            (Ok(at), None) => {
                part.remove(at);
                self.length -= 1;
            }
            (Err(_), None) => {}
        }
        if let Some(before) = &before {
            self.forget_aliases(before);
        }
        if let Some(resource) = resource {
            self.add_aliases(resource);
        }
        true
    }

    fn forget_aliases(&mut self, resource: &Arc<Encoded>) {
        for alias in resource.aliases() {
            let hash = hash(alias);
            let Some(known) = self.aliases.get_mut(part(hash)) else {
                continue;
            };
            let from = known.partition_point(|(other, _)| *other < hash);
            let mut same = known.iter().skip(from).take_while(|(other, _)| *other == hash);
            if let Some(at) = same.position(|(_, other)| Arc::ptr_eq(other, resource)) {
                Arc::make_mut(known).remove(from + at);
            }
        }
    }

    fn add_aliases(&mut self, resource: &Arc<Encoded>) {
        for alias in resource.aliases() {
            let hash = hash(alias);
            if let Some(known) = self.aliases.get_mut(part(hash)) {
                let end = known.partition_point(|(other, _)| *other <= hash);
                Arc::make_mut(known).insert(end, (hash, Arc::clone(resource)));
            }
        }
    }
}

/// Where a name is in a part, or would be.
fn place(part: &Part, name: &str) -> Result<usize, usize> {
    part.binary_search_by(|resource| resource.name_bytes().cmp(name.as_bytes()))
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn part(hash: u64) -> usize {
    // Fewer than 2^8 parts of it are looked at.
    usize::try_from(hash % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{Audience, View};
    use super::{NAMES, Snapshot, Versioned};
    use std::collections::BTreeSet;

    fn resource(content: &str) -> Versioned {
        Versioned {
            version: content.to_owned(),
            bytes: content.as_bytes().to_vec(),
            aliases: vec![format!("alias/{content}")],
            audience: Audience::Everyone,
        }
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn change(name: &str, content: Option<&str>) -> (String, Option<Versioned>) {
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
        let other = Snapshot::new([("d".to_owned(), resource("5"))]);
        assert_eq!(
            names(&other.differing(&third)),
            ["a", "c", "d"].map(str::to_owned).into()
        );
    }

    #[test]
    fn aliases_follow_and_equality_is_content() {
        let first = Snapshot::default().amended([change("a", Some("1"))]);
        let named = |snapshot: &Snapshot, asked| {
            let found = snapshot.resolve(asked, &View::Everything);
            found.map(|resource| resource.name().to_owned())
        };
        assert_eq!(named(&first, "alias/1").as_deref(), Some("a"));
        let second = first.amended([change("a", Some("2")), change("b", Some("1"))]);
        assert_eq!(named(&second, "alias/1").as_deref(), Some("b"));
        let moved = second.amended([change("b", None)]);
        assert_eq!(
            (named(&moved, "alias/1"), named(&moved, "alias/2").as_deref()),
            (None, Some("a"))
        );
        let same = Snapshot::new([("a".to_owned(), resource("2"))]);
        assert_eq!(moved, same);
        assert_ne!(first, same);
        // Two at one address, as while a pod is exchanged: the newer one has it, and when it goes the other has.
        let both = first.amended([change("b", Some("1"))]);
        assert_eq!(named(&both, "alias/1").as_deref(), Some("b"));
        let left = both.amended([change("b", None)]);
        assert_eq!(named(&left, "alias/1").as_deref(), Some("a"));
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
