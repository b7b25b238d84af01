//! The suite against a world of a few lines: it passes a good backend, and it fails the faults that it is there for.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt as _;

use super::*;
use crate::domain::desired::{Endpoint, Scheme};
use crate::domain::id::{ProviderName, ProxyKey, Uid};
use crate::domain::instance::Listed;

/// What is wrong with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Each create makes another one.
    Doubles,
    /// A create that is cut leaves something that only the world knows of.
    LosesHalfMade,
    /// What an abandoned create started comes later, and no delete waits for it.
    ForgetsLateCreates,
    /// The mark is not read before a delete.
    DeletesForeign,
    /// A list has everybody's instances.
    ListsForeign,
    /// A delete of what is gone is an error.
    DeletesOnce,
    /// All instances listen on one port.
    SharesPort,
}

/// `owner` is `None` for what is half made.
#[derive(Debug, Clone)]
struct Thing {
    owner: Option<OwnerMark>,
    uid: Uid,
    number: u64,
}

struct World {
    fault: Fault,
    things: Mutex<Vec<Thing>>,
    numbers: AtomicU64,
    turns: Mutex<HashMap<Uid, Arc<tokio::sync::Mutex<()>>>>,
}

#[derive(Clone)]
struct Rig(Arc<World>);

impl Rig {
    fn new(fault: Fault) -> Self {
        let (things, numbers, turns) = (Mutex::default(), AtomicU64::new(1), Mutex::default());
        Self(Arc::new(World { fault, things, numbers, turns }))
    }

    fn number(&self) -> u64 {
        self.0.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn things<T>(&self, with: impl FnOnce(&mut Vec<Thing>) -> T) -> T {
        with(&mut self.0.things.lock().expect("no test panics with it"))
    }

    fn turn(&self, uid: &Uid) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.0.turns.lock().expect("no test panics with it").entry(uid.clone()).or_default())
    }

    fn owned(&self, mark: &OwnerMark) -> Result<Option<Thing>, OpError> {
        let found = self.things(|all| all.iter().find(|t| t.uid == mark.uid && t.owner.is_some()).cloned());
        match found {
            Some(thing) if thing.owner.as_ref() != Some(mark) => Err(OpError::permanent(Reason::NameConflict, "taken")),
            found => Ok(found),
        }
    }

    fn instance(&self, thing: &Thing) -> Instance {
        let number = if self.0.fault == Fault::SharesPort { 1 } else { thing.number };
        let port = u16::try_from(number).expect("a test makes few");
        Instance {
            provider_id: format!("fake://{}", thing.number).into(),
            state: InstanceState::Running,
            endpoint: Some(Endpoint { scheme: Scheme::Http, host: "127.0.0.1".into(), port }),
            generated: None,
            outdated: None,
            created_at: None,
            complaint: None,
        }
    }
}

#[async_trait]
impl Backend for Rig {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        let turn = self.turn(&spec.mark.uid).lock_owned().await;
        match self.owned(&spec.mark)? {
            Some(thing) if self.0.fault != Fault::Doubles => return Ok(self.instance(&thing)),
            _ => {}
        }
        let thing = Thing { owner: Some(spec.mark.clone()), uid: spec.mark.uid.clone(), number: self.number() };
        match self.0.fault {
            Fault::LosesHalfMade => {
                let half = Thing { owner: None, ..thing.clone() };
                self.things(|all| all.push(half.clone()));
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.things(|all| all.retain(|t| t.number != half.number));
            }
            Fault::ForgetsLateCreates => {
                let (own, late) = (self.clone(), thing.clone());
                let done = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    own.things(|all| all.push(late));
                });
                done.await.expect("it only sleeps");
                return Ok(self.instance(&thing));
            }
            _ => {}
        }
        // What is started is done even if nobody waits: under the turn, so that the next call finds it.
        let (own, late) = (self.clone(), thing.clone());
        let done = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            own.things(|all| all.push(late));
            drop(turn);
        });
        done.await.expect("it only sleeps");
        Ok(self.instance(&thing))
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        match self.owned(mark)? {
            Some(thing) => Ok(self.instance(&thing)),
            None => Err(OpError::not_found("nothing")),
        }
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        let _turn = match self.0.fault {
            Fault::ForgetsLateCreates => None,
            _ => Some(self.turn(&mark.uid).lock_owned().await),
        };
        if self.0.fault == Fault::DeletesForeign {
            self.things(|all| all.retain(|t| t.uid != mark.uid));
            return Ok(());
        }
        if self.owned(mark)?.is_none() && self.0.fault == Fault::DeletesOnce {
            return Err(OpError::not_found("nothing"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.things(|all| all.retain(|t| t.owner.as_ref() != Some(mark)));
        Ok(())
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        let things = self.things(|all| all.clone());
        let ours = |mark: &OwnerMark| {
            let is_asked_for = mark.operator == *operator && entry.is_none_or(|entry| mark.entry == *entry);
            is_asked_for || self.0.fault == Fault::ListsForeign
        };
        Ok(things
            .iter()
            .filter_map(|thing| Some((thing.owner.clone().filter(ours)?, thing)))
            .map(|(mark, thing)| Listed { mark, instance: self.instance(thing) })
            .collect())
    }

    async fn check(&self) -> Result<(), OpError> {
        Ok(())
    }
}

#[async_trait]
impl ConformanceRig for Rig {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    fn mark(&self) -> OwnerMark {
        let n = self.number();
        OwnerMark {
            operator: OperatorId::parse("us").expect("valid"),
            entry: ProviderName::parse("fake").expect("valid"),
            key: ProxyKey::new("crawl", &format!("px-{n}")).expect("valid"),
            uid: Uid::parse(&format!("uid-{n}")).expect("valid"),
        }
    }

    async fn count(&self, mark: &OwnerMark) -> usize {
        self.things(|all| all.iter().filter(|t| t.uid == mark.uid).count())
    }

    async fn make_foreign(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("they").expect("valid"), ..mark.clone() };
        let thing = Thing { owner: Some(other), uid: mark.uid.clone(), number: self.number() };
        self.things(|all| all.push(thing));
        true
    }

    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool {
        self.count(mark).await == 1
    }
}

/// The names of the claims that this fault fails.
async fn failures(fault: Fault) -> Vec<&'static str> {
    let mut failed = Vec::new();
    macro_rules! each {
        ($($claim:ident)*) => {$(
            let rig = Rig::new(fault);
            if AssertUnwindSafe($claim(&rig)).catch_unwind().await.is_err() {
                failed.push(stringify!($claim));
            }
        )*};
    }
    each! {
        the_check_of_a_well_host_passes what_was_never_made_is_not_found a_created_instance_is_got_and_listed
        a_second_create_makes_no_second_instance deleting_twice_is_once creates_and_deletes_side_by_side_do_not_mix
        a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched a_second_create_goes_on_after_any_cut
        a_delete_ends_a_create_cut_at_any_await a_create_that_ends_after_its_cancel_is_found_and_not_doubled
        a_delete_cut_at_any_await_goes_on a_create_past_its_deadline_still_converges
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn a_good_backend_passes_every_claim() {
    assert_eq!(failures(Fault::None).await, Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn each_fault_fails_the_claim_that_is_about_it() {
    for (fault, claim) in [
        (Fault::Doubles, "a_second_create_makes_no_second_instance"),
        (Fault::LosesHalfMade, "a_delete_ends_a_create_cut_at_any_await"),
        (Fault::ForgetsLateCreates, "a_second_create_goes_on_after_any_cut"),
        (Fault::DeletesForeign, "a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched"),
        (Fault::ListsForeign, "a_created_instance_is_got_and_listed"),
        (Fault::DeletesOnce, "deleting_twice_is_once"),
        (Fault::SharesPort, "creates_and_deletes_side_by_side_do_not_mix"),
    ] {
        let failed = failures(fault).await;
        assert!(failed.contains(&claim), "{fault:?} passes `{claim}`; it fails {failed:?}");
    }
}
