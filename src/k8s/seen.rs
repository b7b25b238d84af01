//! Which version of each object this replica saw last: what its next write is written over.
//!
//! Filled by the watch and by the answers to our own writes, whichever is ahead; read by the writer. A version that is
//! not a number is not kept, and then a write names none. Never the content of an object.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Seen<K>(Arc<Mutex<HashMap<K, u64>>>);

impl<K> Clone for Seen<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Seen<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash> Seen<K> {
    fn versions(&self) -> MutexGuard<'_, HashMap<K, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(&self, object: &K) -> Option<String> {
        self.versions().get(object).map(u64::to_string)
    }

    /// In an event, or in the answer to a write. Of those the one that is ahead counts: they come on two ways.
    pub(super) fn saw(&self, object: &K, version: Option<&str>) {
        let Some(version) = version.and_then(number) else { return };
        self.versions().entry(object.clone()).and_modify(|last| *last = version.max(*last)).or_insert(version);
    }

    /// In the answer to a write of an object that a watch tells of. One that is gone by then stays forgotten: the watch may
    /// be ahead of the answer, as with the write that took the last finalizer away.
    pub(super) fn answered(&self, object: &K, version: Option<&str>) {
        if let (Some(version), Some(last)) = (version.and_then(number), self.versions().get_mut(object)) {
            *last = version.max(*last);
        }
    }

    /// In a read made just now, which is never behind: versions go back when the store is restored from a backup.
    pub(super) fn read(&self, object: &K, version: Option<&str>) {
        match version.and_then(number) {
            Some(version) => drop(self.versions().insert(object.clone(), version)),
            None => self.forget(object),
        }
    }

    pub(super) fn forget(&self, object: &K) {
        self.versions().remove(object);
    }

    /// These are all that there are.
    pub(super) fn keep(&self, living: &HashSet<K>) {
        self.versions().retain(|object, _| living.contains(object));
    }
}

/// Of two versions the greater number is the later one.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_version_counts_and_a_read_is_believed() {
        let seen = Seen::<&str>::default();
        assert_eq!(seen.of(&"a"), None);
        for (version, then) in [("9", "9"), ("10", "10"), ("9", "10"), ("odd", "10")] {
            seen.saw(&"a", Some(version));
            assert_eq!(seen.of(&"a").as_deref(), Some(then));
        }
        seen.read(&"a", Some("3"));
        assert_eq!(seen.of(&"a").as_deref(), Some("3"));
        seen.saw(&"b", Some("4"));
        seen.keep(&HashSet::from(["b"]));
        assert_eq!((seen.of(&"a"), seen.of(&"b").as_deref()), (None, Some("4")));
        seen.answered(&"b", Some("6"));
        seen.answered(&"gone", Some("7"));
        assert_eq!((seen.of(&"b").as_deref(), seen.of(&"gone")), (Some("6"), None), "what is gone stays forgotten");
        seen.read(&"b", Some("odd"));
        assert_eq!(seen.of(&"b"), None);
    }
}
