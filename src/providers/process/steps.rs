//! Steps: short blocking work with a bound, a deadline, and a turn per uid.
//!
//! Owns who may work on a uid's folder when, for all values of the backend on one base directory (a changed entry is
//! opened anew while steps of the old value may still run). Never runs a step on an async worker.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::reason::Reason;
use tokio::sync::{OwnedMutexGuard, Semaphore};

use super::{Site, errors};

/// Steps take milliseconds; at this limit the disk is to blame.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(10);

/// Most steps at once, and so most threads that a hanging disk can hold.
const STEPS_AT_ONCE: usize = 16;

/// What the values on one base directory share.
#[derive(Debug)]
pub(super) struct Shared {
    turns: Mutex<HashMap<Uid, Weak<tokio::sync::Mutex<()>>>>,
    permits: Arc<Semaphore>,
    /// The health check takes nothing that operations wait for.
    check_permits: Arc<Semaphore>,
    /// Held while a port is chosen and its folder appears, so that two creates never choose the same one.
    choosing: Mutex<()>,
}

impl Shared {
    pub(super) fn of(base: &Path) -> Arc<Self> {
        static ALL: LazyLock<Mutex<HashMap<PathBuf, Weak<Shared>>>> = LazyLock::new(Mutex::default);
        let mut all = lock(&ALL);
        all.retain(|_, shared| shared.strong_count() > 0);
        if let Some(shared) = all.get(base).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = Arc::new(Self {
            turns: Mutex::default(),
            permits: Arc::new(Semaphore::new(STEPS_AT_ONCE)),
            check_permits: Arc::new(Semaphore::new(1)),
            choosing: Mutex::default(),
        });
        all.insert(base.to_owned(), Arc::downgrade(&shared));
        shared
    }

    pub(super) fn choosing(&self) -> MutexGuard<'_, ()> {
        lock(&self.choosing)
    }

    fn turn_of(&self, uid: &Uid) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(uid).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(uid.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// Nothing behind these locks can be left half done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to change one uid's instance. Given up when both the call and the step it is in have ended.
pub(super) struct Turn {
    site: Arc<Site>,
    held: Arc<OwnedMutexGuard<()>>,
}

impl Turn {
    pub(super) async fn take(site: &Arc<Site>, uid: &Uid) -> Result<Self, OpError> {
        let turn = site.shared.turn_of(uid).lock_owned();
        let Ok(held) = tokio::time::timeout(STEP_LIMIT, turn).await else {
            let detail = format!("an earlier operation on instance `{uid}` has not ended yet");
            return Err(OpError::transient(Reason::Busy, detail));
        };
        Ok(Self { site: Arc::clone(site), held: Arc::new(held) })
    }

    /// A step that may change something.
    pub(super) async fn change<T, F>(&self, what: &'static str, step: F) -> Result<T, OpError>
    where
        T: Send + 'static,
        F: FnOnce(&Site) -> Result<T, OpError> + Send + 'static,
    {
        let (site, held) = (Arc::clone(&self.site), Arc::clone(&self.held));
        let step = move || {
            let result = step(&site);
            drop(held);
            result
        };
        run(&self.site.shared.permits, true, what, step).await
    }
}

/// A step that only looks.
pub(super) async fn look<T, F>(site: &Arc<Site>, what: &'static str, step: F) -> Result<T, OpError>
where
    T: Send + 'static,
    F: FnOnce(&Site) -> Result<T, OpError> + Send + 'static,
{
    let own = Arc::clone(site);
    run(&site.shared.permits, false, what, move || step(&own)).await
}

/// A look of the health check.
pub(super) async fn check_look<T, F>(site: &Arc<Site>, what: &'static str, step: F) -> Result<T, OpError>
where
    T: Send + 'static,
    F: FnOnce(&Site) -> Result<T, OpError> + Send + 'static,
{
    let own = Arc::clone(site);
    run(&site.shared.check_permits, false, what, move || step(&own)).await
}

async fn run<T, F>(permits: &Arc<Semaphore>, changes: bool, what: &'static str, step: F) -> Result<T, OpError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, OpError> + Send + 'static,
{
    let permit = match tokio::time::timeout(STEP_LIMIT, Arc::clone(permits).acquire_owned()).await {
        Ok(permit) => permit.expect("the semaphore is never closed"),
        // Nothing was begun, whatever the step would have been.
        Err(_) => return Err(errors::late(false, what)),
    };
    let running = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        step()
    });
    match tokio::time::timeout(STEP_LIMIT, running).await {
        Ok(Ok(result)) => result,
        Ok(Err(failed)) => Err(errors::broken_off(changes, what, &failed)),
        Err(_) => Err(errors::late(changes, what)),
    }
}
