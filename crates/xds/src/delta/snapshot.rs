//! All resources of a type at one moment, and the difference from earlier snapshots.
//!
//! A mesh of a hundred thousand resources changes a few at a time, and thousands of clients need these changes. A
//! snapshot shares unchanged resources with its predecessor and remembers the names that the last revisions changed.
//! Making the next snapshot and updating a client then cost as much as the change, not as much as the mesh.

use super::resource::{Encoded, Versioned, View};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of partitions of a snapshot: a change copies one partition, not the whole map.
const PARTITIONS: usize = 256;
/// Limits for the remembered revisions and for the names in them. A client that is further behind is compared in full.
const MAX_REVISIONS: usize = 64;
const MAX_REVISION_NAMES: usize = 4096;

/// Resources, sorted by name.
type Partition = Vec<Arc<Encoded>>;
/// Resources, sorted by the hash of the alias; of those with the same alias the newest is last.
type Aliases = Vec<(u64, Arc<Encoded>)>;

/// All resources of a type at one moment, by name. Cloning is cheap: the content is shared.
#[derive(Debug, Clone)]
pub struct Snapshot(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    parts: Vec<Arc<Partition>>,
    aliases: Vec<Arc<Aliases>>,
    length: usize,
    /// Snapshots of the same lineage were made from each other, one revision after the other.
    lineage: u64,
    revision: u64,
    /// Names that the last revisions changed, the newest last.
    recent: VecDeque<Arc<[Box<str>]>>,
}

impl Default for Snapshot {
    fn default() -> Self {
        static LINEAGES: AtomicU64 = AtomicU64::new(0);
        Self(Arc::new(Inner {
            parts: vec![Arc::default(); PARTITIONS],
            aliases: vec![Arc::default(); PARTITIONS],
            length: 0,
            lineage: LINEAGES.fetch_add(1, Ordering::Relaxed),
            revision: 0,
            recent: VecDeque::new(),
        }))
    }
}

impl PartialEq for Snapshot {
    /// Within a lineage the revision decides; otherwise the content is compared.
    fn eq(&self, other: &Self) -> bool {
        if self.0.lineage == other.0.lineage {
            return self.0.revision == other.0.revision;
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
        // No client has the empty snapshot that this one was made from, so its difference is never needed.
        Arc::make_mut(&mut made.0).recent.clear();
        made
    }

    /// The next snapshot, with resources added, replaced or, for `None`, removed.
    #[must_use]
    pub fn amended(&self, changes: impl IntoIterator<Item = (String, Option<Versioned>)>) -> Self {
        let mut amendment = self.amend();
        for (name, resource) in changes {
            amendment.exchange(&name, resource);
        }
        amendment.finish()
    }

    /// Begins the next snapshot.
    pub fn amend(&self) -> Amendment {
        Amendment {
            before: self.clone(),
            next: Inner::clone(&self.0),
            different: Vec::new(),
            count: 0,
        }
    }

    /// Number of resources.
    pub fn len(&self) -> usize {
        self.0.length
    }

    /// Whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The resource with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Encoded>> {
        let part = self.0.parts.get(part(hash(name)))?;
        part.get(search(part, name).ok()?)
    }

    /// All resources, in an unspecified order that is the same for the same content.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Encoded>> {
        self.0.parts.iter().flat_map(|part| part.iter())
    }

    /// The resource with this name, if it is visible in the client's view.
    pub(super) fn get_visible(&self, name: &str, view: &View) -> Option<&Arc<Encoded>> {
        self.get(name).filter(|resource| view.shows(resource))
    }

    /// The resource with this name or alias, if it is visible in the client's view.
    pub(super) fn resolve(&self, name_or_alias: &str, view: &View) -> Option<&Arc<Encoded>> {
        let found = self.get(name_or_alias).or_else(|| self.by_alias(name_or_alias))?;
        view.shows(found).then_some(found)
    }

    fn by_alias(&self, alias: &str) -> Option<&Arc<Encoded>> {
        let hash = hash(alias);
        let known = self.0.aliases.get(part(hash))?;
        let end = known.partition_point(|(other, _)| *other <= hash);
        let same = known.get(..end)?.iter().rev();
        same.take_while(|(other, _)| *other == hash)
            .map(|(_, resource)| resource)
            .find(|resource| resource.aliases().any(|other| other == alias))
    }

    /// Names of resources that may differ from an older snapshot; all names of both when the revisions in between are
    /// not remembered.
    pub(super) fn changed_names<'a>(&'a self, older: &'a Self) -> Vec<&'a str> {
        let (now, before) = (&self.0, &older.0);
        let behind = now.revision.checked_sub(before.revision).map(usize::try_from);
        if let (true, Some(Ok(behind))) = (now.lineage == before.lineage, behind)
            && behind <= now.recent.len()
        {
            let last = now.recent.iter().rev().take(behind);
            return last.flat_map(|names| names.iter().map(|name| &**name)).collect();
        }
        let gone = older.iter().filter(|known| self.get(known.name()).is_none());
        self.iter().chain(gone).map(|resource| resource.name()).collect()
    }
}

/// Builder of the next snapshot.
#[derive(Debug)]
pub struct Amendment {
    before: Snapshot,
    next: Inner,
    /// Names that changed; incomplete when there are more than are remembered.
    different: Vec<Box<str>>,
    count: usize,
}

impl Amendment {
    /// Adds or replaces a resource or, for `None`, removes it.
    pub fn exchange(&mut self, name: &str, resource: Option<Versioned>) {
        // A resource that is too large for a message is left out.
        let resource = resource.and_then(|resource| Encoded::new(name, resource));
        if self.next.set(name, resource.map(Arc::new).as_ref()) {
            self.count += 1;
            if self.count <= MAX_REVISION_NAMES {
                self.different.push(name.into());
            }
        }
    }

    /// The next snapshot; the previous one if nothing changed.
    pub fn finish(self) -> Snapshot {
        let mut next = self.next;
        if self.count == 0 {
            return self.before;
        }
        next.revision += 1;
        let mut count = self.count + next.recent.iter().map(|names| names.len()).sum::<usize>();
        next.recent.push_back(self.different.into());
        while next.recent.len() > MAX_REVISIONS || (count > MAX_REVISION_NAMES && !next.recent.is_empty()) {
            count -= next.recent.pop_front().map_or(0, |names| names.len());
        }
        Snapshot(Arc::new(next))
    }
}

impl Inner {
    /// Sets or removes a resource. Returns whether that changed anything.
    fn set(&mut self, name: &str, resource: Option<&Arc<Encoded>>) -> bool {
        let Some(part) = self.parts.get_mut(part(hash(name))) else {
            return false;
        };
        let at = search(part, name);
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

/// Index of a name in a partition, or where it would be inserted.
fn search(part: &Partition, name: &str) -> Result<usize, usize> {
    part.binary_search_by(|resource| resource.name_bytes().cmp(name.as_bytes()))
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn part(hash: u64) -> usize {
    // The remainder is below `PARTITIONS`, so the conversion cannot fail.
    usize::try_from(hash % PARTITIONS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::{Audience, View};
    use super::{MAX_REVISION_NAMES, Snapshot, Versioned};
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
        assert_eq!(names(&second.changed_names(&first)), ["a".to_owned()].into());
        assert_eq!(
            names(&third.changed_names(&first)),
            ["a", "b", "c"].map(str::to_owned).into()
        );
        assert_eq!(third.changed_names(&third).len(), 0);
        assert_eq!((third.len(), first.len()), (2, 2), "older ones stay as they were");
        // Of different lineages: everything may differ.
        let other = Snapshot::new([("d".to_owned(), resource("5"))]);
        assert_eq!(
            names(&other.changed_names(&third)),
            ["a", "c", "d"].map(str::to_owned).into()
        );
    }

    #[test]
    fn aliases_follow_and_equality_is_content() {
        let first = Snapshot::default().amended([change("a", Some("1"))]);
        let named = |snapshot: &Snapshot, name_or_alias| {
            let found = snapshot.resolve(name_or_alias, &View::Everything);
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
        // Two resources with one address, as while a pod is replaced: the newer one wins until it is removed.
        let both = first.amended([change("b", Some("1"))]);
        assert_eq!(named(&both, "alias/1").as_deref(), Some("b"));
        let left = both.amended([change("b", None)]);
        assert_eq!(named(&left, "alias/1").as_deref(), Some("a"));
    }

    #[test]
    fn a_snapshot_far_behind_is_compared_in_full() {
        let first = Snapshot::default().amended((0..10).map(|n| change(&n.to_string(), Some("x"))));
        let many = first.amended((0..=MAX_REVISION_NAMES).map(|n| change(&n.to_string(), Some("y"))));
        assert_eq!(many.changed_names(&first).len(), MAX_REVISION_NAMES + 1);
        let mut later = many.clone();
        for n in 0..100 {
            later = later.amended([change("0", Some(&n.to_string()))]);
        }
        assert_eq!(later.changed_names(&many).len(), MAX_REVISION_NAMES + 1);
    }
}
