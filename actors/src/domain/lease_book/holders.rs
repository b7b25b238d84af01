//! Who holds what: leases by token and owner, so that a list does not read the whole book.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Holders(HashMap<Arc<str>, Holder>);

/// One token's leases.
#[derive(Debug, Default)]
struct Holder {
    by_owner: HashMap<Option<Arc<str>>, HashSet<usize>>,
    leases: usize,
}

impl Holders {
    pub(super) fn add(&mut self, token: &Arc<str>, owner: Option<&Arc<str>>, lease: usize) {
        let holder = self.0.entry(Arc::clone(token)).or_default();
        holder.leases += usize::from(holder.by_owner.entry(owner.cloned()).or_default().insert(lease));
    }

    pub(super) fn remove(&mut self, token: &Arc<str>, owner: Option<&Arc<str>>, lease: usize) {
        let Some(holder) = self.0.get_mut(token) else { return };
        let owner = owner.cloned();
        if let Some(leases) = holder.by_owner.get_mut(&owner) {
            holder.leases -= usize::from(leases.remove(&lease));
            if leases.is_empty() {
                holder.by_owner.remove(&owner);
            }
        }
        if holder.leases == 0 {
            self.0.remove(token);
        }
    }

    pub(super) fn count(&self, token: &str) -> usize {
        self.0.get(token).map_or(0, |holder| holder.leases)
    }

    /// All leases of the token, or those of one owner.
    pub(super) fn list(&self, token: &str, owner: Option<&str>) -> Vec<usize> {
        let Some(holder) = self.0.get(token) else { return Vec::new() };
        match owner {
            Some(owner) => holder.by_owner.get(&Some(Arc::from(owner))).into_iter().flatten().copied().collect(),
            None => holder.by_owner.values().flatten().copied().collect(),
        }
    }
}
