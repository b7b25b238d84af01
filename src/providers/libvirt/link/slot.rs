//! Where a connection is kept that is made once for all who want it.
//!
//! The task that makes it puts it here itself: whoever asked may be gone by then, and the next who asks must find what is
//! up, and never how an old attempt went.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::lane::Generation;
use super::ssh::SshConnection;
use super::{Inner, LinkError, gone, lock};

pub(super) type Dialling<T> = Shared<BoxFuture<'static, Result<T, LinkError>>>;

/// One connection that is made once for all who want it.
pub(super) enum Slot<T> {
    Empty,
    /// With the number of the attempt.
    Dialling(u64, Dialling<T>),
    Up(T),
}

/// What a slot can hold.
pub(super) trait Kept: Clone + Send + Sync + 'static {
    fn is_well(&self) -> bool;
    fn end(&self);
}

impl Kept for SshConnection {
    fn is_well(&self) -> bool {
        !self.is_closed()
    }

    fn end(&self) {
        self.abort();
    }
}

impl Kept for Arc<Generation> {
    fn is_well(&self) -> bool {
        !self.has_ended()
    }

    fn end(&self) {
        (***self).end();
    }
}

/// What a slot holds, if it is well; else what is being made; else it is made now, as a task that goes on when its caller
/// goes.
pub(super) async fn once<T: Kept>(
    own: &Arc<Inner>,
    slot: impl Fn(&Inner) -> &Mutex<Slot<T>> + Copy + Send + 'static,
    make: BoxFuture<'static, Result<T, LinkError>>,
) -> Result<T, LinkError> {
    let (number, dialling) = {
        let mut kept = lock(slot(own));
        match &*kept {
            Slot::Up(value) if value.is_well() => return Ok(value.clone()),
            Slot::Dialling(number, dialling) => (*number, dialling.clone()),
            // `end` empties the slots behind this flag.
            _ if own.has_ended() => return Err(gone()),
            Slot::Up(_) | Slot::Empty => {
                let number = own.next.fetch_add(1, Ordering::Relaxed);
                let inner = own.clone();
                let task = own.main.spawn(async move {
                    let made = make.await;
                    let is_wanted = settle(slot(&inner), number, made.as_ref().ok());
                    match made {
                        // The link has ended meanwhile.
                        Ok(value) if !is_wanted => {
                            value.end();
                            Err(gone())
                        }
                        made => made,
                    }
                });
                let dialling: Dialling<T> = async move { task.await.unwrap_or_else(|_| Err(gone())) }.boxed().shared();
                *kept = Slot::Dialling(number, dialling.clone());
                (number, dialling)
            }
        }
    };
    let made = dialling.await;
    // Only if the task has panicked, or its runtime ends.
    settle(slot(own), number, made.as_ref().ok());
    made
}

/// False: the slot no longer waits for this attempt.
fn settle<T: Kept>(slot: &Mutex<Slot<T>>, number: u64, made: Option<&T>) -> bool {
    let mut kept = lock(slot);
    if !matches!(&*kept, Slot::Dialling(current, _) if *current == number) {
        return false;
    }
    let was = std::mem::replace(&mut *kept, made.map_or(Slot::Empty, |value| Slot::Up(value.clone())));
    drop(kept);
    // The attempt's own handle is in it.
    drop(was);
    true
}
