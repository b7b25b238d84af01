//! Keyed timers with generations: a firing that was overtaken by a new arming or a cancel is told apart and dropped.
//!
//! ractor's `send_interval` piles up behind a slow actor and its handle does not cancel; these are one-shot, re-armed
//! when the work is done.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::reference::Tell;

/// A timer went off. Only [`Timers::accept`] says whether it still counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired<K> {
    key: K,
    generation: u64,
}

#[derive(Debug)]
struct Armed {
    generation: u64,
    task: AbortHandle,
}

/// The timers of one actor. Dropping them cancels all.
#[derive(Debug)]
pub struct Timers<K> {
    fire: Tell<Fired<K>>,
    armed: HashMap<K, Armed>,
    generation: u64,
}

impl<K: Clone + Eq + Hash + Send + 'static> Timers<K> {
    /// `fire` delivers to the incarnation that owns the timers ([`Ctx::tell`](super::Ctx::tell)).
    pub fn new(fire: Tell<Fired<K>>) -> Self {
        Self { fire, armed: HashMap::new(), generation: 0 }
    }

    /// Fires `key` once, `after` from now; an earlier arming of the key is void.
    pub fn arm_in(&mut self, key: K, after: Duration) {
        self.cancel(&key);
        self.generation += 1;
        let fired = Fired { key: key.clone(), generation: self.generation };
        let fire = self.fire.clone();
        // Made here, so that it counts from now; a time too far to be added up is as good as never.
        let sleep = tokio::time::sleep(after);
        let task = tokio::spawn(async move {
            sleep.await;
            fire.send(fired);
        });
        self.armed.insert(key, Armed { generation: self.generation, task: task.abort_handle() });
    }

    /// Fires `key` once at `at`, or at once if that has passed.
    pub fn arm_at(&mut self, key: K, at: Instant) {
        let now = tokio::time::Instant::now().into_std();
        self.arm_in(key, at.saturating_duration_since(now));
    }

    pub fn cancel(&mut self, key: &K) {
        if let Some(armed) = self.armed.remove(key) {
            armed.task.abort();
        }
    }

    /// The key, if this firing is the one that is waited for.
    pub fn accept(&mut self, fired: Fired<K>) -> Option<K> {
        let current = self.armed.get(&fired.key)?;
        if current.generation != fired.generation {
            return None;
        }
        self.armed.remove(&fired.key);
        Some(fired.key)
    }

    pub fn is_armed(&self, key: &K) -> bool {
        self.armed.contains_key(key)
    }
}

impl<K> Drop for Timers<K> {
    fn drop(&mut self) {
        for armed in self.armed.values() {
            armed.task.abort();
        }
    }
}
