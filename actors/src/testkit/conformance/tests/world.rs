//! A backend of a few lines, whose lists lag, and what can be wrong with it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use secrecy::ExposeSecret as _;
use tokio::time::Instant;

use super::*;
use crate::domain::desired::{Endpoint, Scheme};
use crate::domain::id::{ProviderName, ProxyKey, Uid};
use crate::domain::instance::{Complaint, Listed};

/// So far lists are behind.
const LAG: Duration = Duration::from_millis(20);

/// What is wrong with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
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
    TellsStoppedAsRunning,
    TellsPausedAsStopped,
    TellsUnreadableAsAbsent,
    TellsUnreadableAsStopped,
    /// What of a list cannot be read is left out.
    ListsPart,
    /// A backend that cannot be seen is an empty one.
    ListsNothing,
    /// A look is answered from what lists know.
    GetsFromTheList,
    ListsWhatWasAskedFor,
    /// What is deleted stays in the lists.
    ListsTheDead,
    /// All entries are this one.
    ListsOwnEntryOnly,
    /// One entry is all.
    ListsEveryEntry,
    /// What only a list of one entry looks for is missing, and taken for lost.
    ListsAllAsStopped,
    GetsOwnEntryOnly,
    /// Another entry's instance is "gone" as soon as it is deleted, and stays.
    DeletesOwnEntryOnly,
    HidesHalves,
    CreatedJustNow,
    CreatedAtTheEpoch,
    CreatedTomorrow,
    ForgetsTheAgeInLists,
    CountsLooks,
    SaysThePassword,
    SaysTheUserData,
}

/// `owner` is `None` for what no look at the backend shows.
#[derive(Debug, Clone)]
struct Thing {
    owner: Option<OwnerMark>,
    uid: Uid,
    number: u64,
    state: InstanceState,
    made: SystemTime,
    shown_from: Instant,
    shown_until: Option<Instant>,
}

impl Thing {
    fn is_there(&self) -> bool {
        self.shown_until.is_none()
    }
}

struct World {
    fault: Fault,
    things: Mutex<Vec<Thing>>,
    numbers: AtomicU64,
    looks: AtomicU64,
    asked_for: Mutex<Vec<OwnerMark>>,
    unreadable: Mutex<HashSet<Uid>>,
    broken: Mutex<Option<Breakage>>,
    turns: Mutex<HashMap<Uid, Arc<tokio::sync::Mutex<()>>>>,
}

/// The rig, and the backend of one entry.
#[derive(Clone)]
pub(super) struct Rig {
    world: Arc<World>,
    entry: ProviderName,
}

fn entry(name: &str) -> ProviderName {
    ProviderName::parse(name).expect("valid")
}

impl Rig {
    pub(super) fn new(fault: Fault) -> Self {
        let world = World {
            fault,
            things: Mutex::default(),
            numbers: AtomicU64::new(1),
            looks: AtomicU64::new(0),
            asked_for: Mutex::default(),
            unreadable: Mutex::default(),
            broken: Mutex::default(),
            turns: Mutex::default(),
        };
        Self { world: Arc::new(world), entry: entry("fake") }
    }

    fn has(&self, fault: Fault) -> bool {
        self.world.fault == fault
    }

    fn number(&self) -> u64 {
        self.world.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn things<T>(&self, with: impl FnOnce(&mut Vec<Thing>) -> T) -> T {
        with(&mut self.world.things.lock().expect("no test panics with it"))
    }

    fn turn(&self, uid: &Uid) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.world.turns.lock().expect("no test panics with it");
        Arc::clone(turns.entry(uid.clone()).or_default())
    }

    fn is_unreadable(&self, uid: &Uid) -> bool {
        self.world.unreadable.lock().expect("no test panics with it").contains(uid)
    }

    fn owned(&self, mark: &OwnerMark) -> Result<Option<Thing>, OpError> {
        let is_it = |t: &&Thing| t.is_there() && t.uid == mark.uid && t.owner.is_some();
        let found = self.things(|all| all.iter().find(is_it).cloned());
        if found.is_some() && self.is_unreadable(&mark.uid) {
            return Err(OpError::transient(Reason::Unreachable, "not to be read"));
        }
        match found {
            Some(thing) if thing.owner.as_ref() != Some(mark) => Err(OpError::permanent(Reason::NameConflict, "taken")),
            found => Ok(found),
        }
    }

    fn thing(&self, mark: &OwnerMark, state: InstanceState) -> Thing {
        Thing {
            owner: Some(mark.clone()),
            uid: mark.uid.clone(),
            number: self.number(),
            state,
            made: SystemTime::now(),
            shown_from: Instant::now() + LAG,
            shown_until: None,
        }
    }

    fn remove(&self, which: impl Fn(&Thing) -> bool) {
        let until = Instant::now() + LAG;
        self.things(|all| {
            for thing in all.iter_mut().filter(|thing| thing.is_there() && which(thing)) {
                thing.shown_until = Some(until);
            }
        });
    }

    fn set(&self, mark: &OwnerMark, state: InstanceState) {
        self.things(|all| {
            for thing in all.iter_mut().filter(|thing| thing.is_there() && thing.owner.as_ref() == Some(mark)) {
                thing.state = state;
            }
        });
    }

    fn instance(&self, thing: &Thing, owner: &OwnerMark) -> Instance {
        let number = if self.has(Fault::SharesPort) { 1 } else { thing.number };
        let port = u16::try_from(number).expect("a test makes few");
        let state = match (self.world.fault, thing.state) {
            (Fault::TellsStoppedAsRunning, InstanceState::Stopped) => InstanceState::Running,
            (Fault::TellsPausedAsStopped, InstanceState::Paused) => InstanceState::Stopped,
            (_, state) => state,
        };
        let day = Duration::from_hours(24);
        let created_at = match self.world.fault {
            Fault::CreatedJustNow => SystemTime::now(),
            Fault::CreatedAtTheEpoch => SystemTime::UNIX_EPOCH,
            Fault::CreatedTomorrow => thing.made + day,
            _ => thing.made,
        };
        let looks = self.world.looks.fetch_add(1, Ordering::Relaxed);
        let complaint = Complaint { reason: Reason::Internal, detail: format!("look {looks}").into() };
        Instance {
            provider_id: format!("fake://{0}/{0}/{1}", owner.entry, thing.number).into(),
            state,
            endpoint: Some(Endpoint { scheme: Scheme::Http, host: "127.0.0.1".into(), port }),
            generated: None,
            outdated: None,
            created_at: Some(created_at),
            complaint: self.has(Fault::CountsLooks).then_some(complaint),
        }
    }

    fn answer(&self, thing: &Thing) -> Instance {
        self.instance(thing, thing.owner.as_ref().expect("only owned ones are looked at"))
    }

    /// What lists know by now.
    fn shown(&self) -> Vec<Thing> {
        let now = Instant::now();
        let is_shown = |thing: &&Thing| {
            thing.shown_from <= now
                && thing.shown_until.is_none_or(|until| now < until || self.has(Fault::ListsTheDead))
        };
        self.things(|all| all.iter().filter(is_shown).cloned().collect())
    }

    fn refuse(&self, spec: &InstanceSpec) -> Result<(), OpError> {
        let Some(data) = &spec.user_data else { return Ok(()) };
        let mut detail = "there is no place for user data".to_owned();
        if let (true, Some(credentials)) = (self.has(Fault::SaysThePassword), &spec.credentials) {
            detail.push_str(credentials.password.expose_secret());
        }
        if self.has(Fault::SaysTheUserData) {
            detail.push_str(&String::from_utf8_lossy(&data.0));
        }
        Err(OpError::permanent(Reason::ConfigInvalid, detail))
    }
}

#[async_trait]
impl Backend for Rig {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        self.refuse(spec)?;
        let turn = self.turn(&spec.mark.uid).lock_owned().await;
        let thing = match self.owned(&spec.mark)? {
            Some(thing) if thing.state != InstanceState::Stopped && !self.has(Fault::Doubles) => {
                return Ok(self.answer(&thing));
            }
            // Goes on with the half that an earlier one left.
            Some(thing) if !self.has(Fault::Doubles) => thing,
            Some(_) | None => {
                let half = self.thing(&spec.mark, InstanceState::Stopped);
                let left = match self.world.fault {
                    Fault::LosesHalfMade => Some(Thing { owner: None, ..half.clone() }),
                    Fault::ForgetsLateCreates => None,
                    _ => Some(half.clone()),
                };
                self.things(|all| all.extend(left));
                half
            }
        };
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (own, late) = (self.clone(), Thing { state: InstanceState::Running, ..thing.clone() });
        if self.has(Fault::ForgetsLateCreates) {
            let done = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                own.things(|all| all.push(late));
            });
            done.await.expect("it only sleeps");
            return Ok(self.answer(&thing));
        }
        // What is started is done even if nobody waits: under the turn, so that the next call finds it.
        let whole = late.clone();
        let done = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            own.things(|all| {
                all.retain(|thing| thing.number != late.number);
                all.push(late);
            });
            drop(turn);
        });
        done.await.expect("it only sleeps");
        Ok(self.answer(&whole))
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.world.asked_for.lock().expect("no test panics with it").push(mark.clone());
        let nothing = || OpError::not_found("nothing");
        if self.has(Fault::GetsOwnEntryOnly) && mark.entry != self.entry {
            return Err(nothing());
        }
        if self.has(Fault::GetsFromTheList) {
            let found = self.shown().into_iter().find(|thing| thing.owner.as_ref() == Some(mark));
            return found.map(|thing| self.answer(&thing)).ok_or_else(nothing);
        }
        if self.is_unreadable(&mark.uid) {
            match self.world.fault {
                Fault::TellsUnreadableAsAbsent => return Err(nothing()),
                Fault::TellsUnreadableAsStopped => {
                    let half = self.thing(mark, InstanceState::Stopped);
                    return Ok(self.answer(&half));
                }
                _ => {}
            }
        }
        self.owned(mark)?.map(|thing| self.answer(&thing)).ok_or_else(nothing)
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        let _turn = match self.world.fault {
            Fault::ForgetsLateCreates => None,
            _ => Some(self.turn(&mark.uid).lock_owned().await),
        };
        if self.has(Fault::DeletesOwnEntryOnly) && mark.entry != self.entry {
            return Ok(());
        }
        if self.has(Fault::DeletesForeign) {
            self.remove(|thing| thing.uid == mark.uid);
            return Ok(());
        }
        if self.owned(mark)?.is_none() && self.has(Fault::DeletesOnce) {
            return Err(OpError::not_found("nothing"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.remove(|thing| thing.owner.as_ref() == Some(mark));
        Ok(())
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        let unseen = || OpError::transient(Reason::Unreachable, "not to be seen");
        let broken = *self.world.broken.lock().expect("no test panics with it");
        if broken == Some(Breakage::Everything) {
            return if self.has(Fault::ListsNothing) { Ok(Vec::new()) } else { Err(unseen()) };
        }
        let is_narrow = entry.is_some();
        let entry = match self.world.fault {
            Fault::ListsOwnEntryOnly => Some(&self.entry),
            Fault::ListsEveryEntry => None,
            _ => entry,
        };
        let mut listed = Vec::new();
        for thing in self.shown() {
            let Some(mark) = thing.owner.clone() else { continue };
            let is_asked_for = mark.operator == *operator && entry.is_none_or(|entry| mark.entry == *entry);
            if !is_asked_for && !self.has(Fault::ListsForeign) {
                continue;
            }
            if self.has(Fault::HidesHalves) && thing.state == InstanceState::Stopped {
                continue;
            }
            if self.is_unreadable(&thing.uid) {
                if self.has(Fault::ListsPart) {
                    continue;
                }
                return Err(unseen());
            }
            let mut instance = self.instance(&thing, &mark);
            if self.has(Fault::ListsAllAsStopped) && !is_narrow {
                instance.state = InstanceState::Stopped;
            }
            if self.has(Fault::ForgetsTheAgeInLists) {
                instance.created_at = None;
            }
            listed.push(Listed { mark, instance });
        }
        if self.has(Fault::ListsWhatWasAskedFor) {
            for mark in self.world.asked_for.lock().expect("no test panics with it").drain(..) {
                let instance = self.answer(&self.thing(&mark, InstanceState::Starting));
                listed.push(Listed { mark, instance });
            }
        }
        Ok(listed)
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
            entry: self.entry.clone(),
            key: ProxyKey::new("crawl", &format!("px-{n}")).expect("valid"),
            uid: Uid::parse(&format!("uid-{n}")).expect("valid"),
        }
    }

    async fn count(&self, mark: &OwnerMark) -> usize {
        self.things(|all| all.iter().filter(|thing| thing.is_there() && thing.uid == mark.uid).count())
    }

    async fn make_foreign(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("they").expect("valid"), ..mark.clone() };
        let thing = self.thing(&other, InstanceState::Running);
        self.things(|all| all.push(thing));
        true
    }

    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool {
        self.count(mark).await == 1
    }

    async fn stop(&self, mark: &OwnerMark) -> bool {
        self.set(mark, InstanceState::Stopped);
        true
    }

    async fn pause(&self, mark: &OwnerMark) -> bool {
        self.set(mark, InstanceState::Paused);
        true
    }

    async fn resume(&self, mark: &OwnerMark) {
        self.set(mark, InstanceState::Running);
    }

    async fn make_unreadable(&self, mark: &OwnerMark) -> bool {
        self.world.unreadable.lock().expect("no test panics with it").insert(mark.uid.clone());
        true
    }

    async fn make_readable(&self, mark: &OwnerMark) {
        self.world.unreadable.lock().expect("no test panics with it").remove(&mark.uid);
    }

    async fn break_list(&self, marks: &[OwnerMark], breakage: Breakage) -> bool {
        *self.world.broken.lock().expect("no test panics with it") = Some(breakage);
        breakage == Breakage::Everything || self.make_unreadable(&marks[1]).await
    }

    async fn mend_list(&self, marks: &[OwnerMark]) {
        *self.world.broken.lock().expect("no test panics with it") = None;
        self.make_readable(&marks[1]).await;
    }

    async fn mark_of_another_entry(&self) -> Option<(Arc<dyn Backend>, OwnerMark)> {
        let other = Self { world: Arc::clone(&self.world), entry: entry("another") };
        let mark = other.mark();
        Some((Arc::new(other), mark))
    }

    async fn change_mark(&self, mark: &OwnerMark) -> Option<OwnerMark> {
        let other = OwnerMark { operator: OperatorId::parse("they").expect("valid"), ..mark.clone() };
        self.things(|all| {
            for thing in all.iter_mut().filter(|thing| thing.owner.as_ref() == Some(mark)) {
                thing.owner = Some(other.clone());
            }
        });
        Some(other)
    }
}
