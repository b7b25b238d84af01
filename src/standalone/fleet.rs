//! The objects of standalone mode and what changes them: looks at the manifests, and the operator's own writes.
//!
//! ```text
//!  manifest seen ---> stored (uid, generation 1) -- spec changes: generation + 1 --.
//!                        |  ^------------------------------------------------------'
//!                        |  gone in two looks, a while apart
//!                        v
//!                     deleting (while the finalizer is set) -- release --> gone
//! ```
//! A manifest that is not valid changes nothing: the last good version goes on, and a `Rejected` tells about it. One that
//! comes back while its object is deleting waits: the old object ends first, the next look makes a new one. Not so if it
//! carried `skip-cleanup`: it was put there to end that deletion, and makes nothing until it changes, or goes and comes
//! back. That is in memory only: after a restart it is a new manifest.
//!
//! Pure: no files, no clock, no store. Changes happen in memory first; the keeper writes [`Fleet::dirty`] and then takes
//! the events with [`Fleet::written`], or takes everything back with [`Fleet::undo`]. Nobody is told of anything that
//! is not stored.

mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress_actors::domain::desired::Desired;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, ProxyKey, Uid};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::{Applied, Rejected, SourceEvent};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

pub(super) use self::removal::HeldBack;
use self::removal::Removals;
use super::Problem;
use super::documents::{ProxyManifest, Trouble};
use super::store::{Record, Row, Rows};
use super::view::{Place, View};
use crate::crd::accept::{Rejection, accept};
use crate::crd::proxy::{Proxy, ProxyStatus};
use crate::crd::{DRAIN, FINALIZER, HOST, status};

/// What is said of a manifest that gave up a deletion.
const ANSWERS: &str = "annotation crawl.example.com/skip-cleanup answered the deletion that has ended, and nothing is made \
                       of this manifest: remove it, or take the annotation out to make the Proxy anew";

/// All objects, by name.
#[derive(Debug)]
pub(super) struct Fleet {
    entries: BTreeMap<ProxyKey, Entry>,
    removals: Removals,
    /// The manifests that gave up a deletion by `skip-cleanup`.
    answers: BTreeMap<ProxyKey, Arc<ProxyManifest>>,
    /// What was there before each change that is not written yet, oldest first.
    before: Vec<(ProxyKey, Option<Entry>)>,
    events: Vec<SourceEvent>,
    /// All are to go: what DIR says makes nothing new.
    leaving: bool,
}

#[derive(Debug, Clone)]
struct Entry {
    record: Arc<Record>,
    status: Option<Arc<ProxyStatus>>,
    /// The manifest looked at last: the same one need not be accepted again.
    seen: Option<Arc<ProxyManifest>>,
    /// Why that manifest is not in `record`.
    refused: Option<Problem>,
    absent_since: Option<Instant>,
}

impl Entry {
    fn deleting(&self) -> bool {
        self.record.deleted_at.is_some()
    }
}

impl Fleet {
    pub(super) fn new(rows: Rows, removal_after: Duration, allow_mass_removal: bool) -> Self {
        let entry = |(record, status): (Record, Option<ProxyStatus>)| Entry {
            record: Arc::new(record),
            status: status.map(Arc::new),
            seen: None,
            refused: None,
            absent_since: None,
        };
        let held = rows.iter().filter(|(_, (record, _))| record.held).map(|(key, _)| key.clone()).collect();
        Self {
            entries: rows.into_iter().map(|(key, row)| (key, entry(row))).collect(),
            removals: Removals::new(removal_after, allow_mass_removal, held),
            answers: BTreeMap::new(),
            before: Vec::new(),
            events: Vec::new(),
            leaving: false,
        }
    }

    /// Takes in one complete look; the problems of Proxies are returned.
    pub(super) fn look(&mut self, view: &View, now: Instant, at: &Time) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.leaving {
            return problems;
        }
        let written = view.proxies();
        for (key, places) in &written {
            let origin = self.entries.get(*key).map(|entry| entry.record.origin.clone());
            if let Some(place) = view.choose(format_args!("Proxy `{key}`"), places, origin.as_deref(), &mut problems) {
                problems.extend(self.manifest(key, place));
            }
        }
        let keys: BTreeSet<_> = written.into_keys().collect();
        self.answers.retain(|key, _| keys.contains(key));
        let mut live = 0;
        let mut absent = Vec::new();
        for (key, entry) in &mut self.entries {
            if entry.deleting() {
                continue;
            }
            live += 1;
            if keys.contains(key) || view.may_hide(&entry.record.origin) {
                entry.absent_since = None;
            } else {
                absent.push((key.clone(), *entry.absent_since.get_or_insert(now)));
            }
        }
        for key in self.removals.due(live, &absent, now) {
            self.remove(&key, at);
        }
        self.remember_held();
        problems
    }

    /// Stores what is held back: nothing that consumers need to hear of.
    fn remember_held(&mut self) {
        for (key, entry) in &mut self.entries {
            let held = self.removals.holds(key);
            if entry.record.held != held {
                self.before.push((key.clone(), Some(entry.clone())));
                entry.record = Arc::new(Record { held, ..Record::clone(&entry.record) });
            }
        }
    }

    /// Removes every object, once and for all.
    pub(super) fn leave(&mut self, at: &Time) {
        self.leaving = true;
        let keys: Vec<_> =
            self.entries.iter().filter(|(_, entry)| !entry.deleting()).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key, at);
        }
    }

    /// DIR could not be read: no second look may count on a first one before it.
    pub(super) fn unreadable(&mut self) {
        for entry in self.entries.values_mut() {
            entry.absent_since = None;
        }
    }

    /// True if an object is absent: then the next look counts, also if it shows nothing new.
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.values().any(|entry| entry.absent_since.is_some())
    }

    /// The objects that are absent and kept all the same, as too many are gone at once.
    pub(super) fn held_back(&self) -> Option<HeldBack> {
        self.removals.held_back()
    }

    /// What one manifest makes of its object.
    fn manifest(&mut self, key: &ProxyKey, place: &Place<'_, ProxyManifest>) -> Option<Problem> {
        let problem = |what: String| Problem {
            file: place.file.to_string(),
            line: place.line,
            message: format!("Proxy `{key}`: {what}"),
        };
        let manifest = match place.object {
            Ok(manifest) => manifest,
            Err(Trouble { line, message }) => {
                let problem = Problem { line: *line, ..problem(message.clone()) };
                self.refuse(key, None, &problem);
                return Some(problem);
            }
        };
        let Some(entry) = self.entries.get(key) else {
            if self.answers.get(key).is_some_and(|answer| answer == manifest) {
                return Some(problem(format!("its {ANSWERS}")));
            }
            self.answers.remove(key);
            return self.create(key, place.file, manifest).err().map(|rejection| problem(rejection.to_string()));
        };
        let same = entry.seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, manifest));
        if same && entry.record.origin == **place.file {
            return entry.refused.clone();
        }
        let mut record = Record::clone(&entry.record);
        if record.annotations.get(DRAIN) != manifest.annotations.get(DRAIN) {
            record.drain = None;
        }
        record.annotations.clone_from(&manifest.annotations);
        if !entry.deleting() {
            record.origin = place.file.to_string();
            if record.spec != manifest.spec {
                record.spec = manifest.spec.clone();
                record.generation += 1;
            }
        }
        match accept(&proxy(key, &record), Some(&entry.record.spec)) {
            Ok(desired) => {
                if entry.deleting() && desired.annotations.skip_cleanup {
                    self.answers.insert(key.clone(), Arc::clone(manifest));
                } else {
                    self.answers.remove(key);
                }
                let news = record != *entry.record || entry.refused.is_some();
                let mut entry = entry.clone();
                entry.seen = Some(Arc::clone(manifest));
                entry.refused = None;
                entry.record = Arc::new(record);
                if news {
                    self.put(key, entry);
                } else {
                    self.entries.insert(key.clone(), entry);
                }
                None
            }
            Err(rejection) => {
                let problem = problem(rejection.to_string());
                self.refuse(key, Some(manifest), &problem);
                Some(problem)
            }
        }
    }

    fn create(&mut self, key: &ProxyKey, file: &str, manifest: &Arc<ProxyManifest>) -> Result<(), Rejection> {
        let record = Record {
            uid: uuid::Uuid::new_v4().to_string(),
            generation: 1,
            spec: manifest.spec.clone(),
            annotations: manifest.annotations.clone(),
            drain: None,
            host: None,
            finalizer: false,
            deleted_at: None,
            held: false,
            origin: file.to_owned(),
        };
        accept(&proxy(key, &record), None)?;
        let seen = Some(Arc::clone(manifest));
        let entry = Entry { record: Arc::new(record), status: None, seen, refused: None, absent_since: None };
        self.put(key, entry);
        Ok(())
    }

    /// The object keeps its last good version and is told about once for each problem.
    fn refuse(&mut self, key: &ProxyKey, manifest: Option<&Arc<ProxyManifest>>, problem: &Problem) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.seen = manifest.cloned();
        if entry.refused.as_ref() != Some(problem) {
            entry.refused = Some(problem.clone());
            self.events.extend(rejected(key, entry));
        }
    }

    fn remove(&mut self, key: &ProxyKey, at: &Time) {
        let Some(entry) = self.entries.get(key) else { return };
        if entry.record.finalizer {
            let mut entry = entry.clone();
            entry.record = Arc::new(Record { deleted_at: Some(at.clone()), ..Record::clone(&entry.record) });
            entry.absent_since = None;
            entry.refused = None;
            entry.seen = None;
            self.put(key, entry);
        } else {
            self.drop_entry(key);
        }
    }

    fn put(&mut self, key: &ProxyKey, entry: Entry) {
        self.events.push(applied(key, &entry));
        // An `Applied` takes an earlier rejection back, and what changed here may be no more than our own status.
        self.events.extend(rejected(key, &entry));
        let before = self.entries.insert(key.clone(), entry);
        self.before.push((key.clone(), before));
    }

    fn drop_entry(&mut self, key: &ProxyKey) {
        let before = self.entries.remove(key);
        if let Some(uid) = before.as_ref().and_then(|entry| Uid::parse(&entry.record.uid).ok()) {
            self.events.push(SourceEvent::Gone { key: key.clone(), uid });
        }
        self.before.push((key.clone(), before));
    }
}

/// The operator's own writes.
impl Fleet {
    fn entry(&self, key: &ProxyKey, uid: &Uid) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.record.uid == uid.as_str())
    }

    fn found(&self, key: &ProxyKey, uid: &Uid) -> Result<Entry, OpError> {
        let missing = || OpError::not_found(format!("there is no proxy `{key}` with uid {uid} in the store"));
        self.entry(key, uid).cloned().ok_or_else(missing)
    }

    pub(super) fn exists(&self, key: &ProxyKey, uid: &Uid) -> bool {
        self.entry(key, uid).is_some()
    }

    pub(super) fn adopt(&mut self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>) -> Result<(), OpError> {
        let mut entry = self.found(key, uid)?;
        let mut record = Record::clone(&entry.record);
        record.finalizer = true;
        if let Some(host) = host {
            record.host = Some(host.as_str().to_owned());
        }
        if record != *entry.record && entry.deleting() {
            let detail = format!("proxy `{key}` is being deleted and takes no finalizer any more");
            return Err(OpError::transient(Reason::Deleting, detail));
        }
        // Told also when nothing changes: who asks waits to see it.
        entry.record = Arc::new(record);
        self.put(key, entry);
        Ok(())
    }

    pub(super) fn release(&mut self, key: &ProxyKey, uid: &Uid) {
        let Some(entry) = self.entry(key, uid) else { return };
        if entry.deleting() {
            self.drop_entry(key);
        } else if entry.record.finalizer {
            let mut entry = entry.clone();
            entry.record = Arc::new(Record { finalizer: false, ..Record::clone(&entry.record) });
            self.put(key, entry);
        }
    }

    pub(super) fn write_status(&mut self, key: &ProxyKey, uid: &Uid, status: ProxyStatus) -> Result<(), OpError> {
        let mut entry = self.found(key, uid)?;
        if entry.status.as_deref() != Some(&status) {
            entry.status = Some(Arc::new(status));
            self.put(key, entry);
        }
        Ok(())
    }

    pub(super) fn annotate_drain(&mut self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        let mut entry = self.found(key, uid)?;
        entry.record = Arc::new(Record { drain: Some(drain), ..Record::clone(&entry.record) });
        self.put(key, entry);
        Ok(())
    }
}

/// The way to the store and to the consumers.
impl Fleet {
    /// A complete list.
    pub(super) fn list(&self) -> Vec<SourceEvent> {
        let mut events = vec![SourceEvent::ListStarted];
        let mut living = Vec::new();
        for (key, entry) in &self.entries {
            events.push(applied(key, entry));
            events.extend(rejected(key, entry));
            living.extend(Uid::parse(&entry.record.uid).ok().map(|uid| (key.clone(), uid)));
        }
        events.push(SourceEvent::Synced { living });
        events
    }

    /// The keys that have to be written; empty if nothing has.
    pub(super) fn dirty(&self) -> BTreeSet<&ProxyKey> {
        self.before.iter().map(|(key, _)| key).collect()
    }

    /// The row of a key as it should be.
    pub(super) fn row<'a>(&'a self, key: &'a ProxyKey) -> Row<'a> {
        (key, self.entries.get(key).map(|entry| (&*entry.record, entry.status.as_deref())))
    }

    /// All changes are stored: the events may go out.
    pub(super) fn written(&mut self) -> Vec<SourceEvent> {
        self.before.clear();
        std::mem::take(&mut self.events)
    }

    /// The changes could not be stored: they did not happen. The next look finds them again.
    pub(super) fn undo(&mut self) {
        for (key, before) in std::mem::take(&mut self.before).into_iter().rev() {
            match before {
                Some(entry) => drop(self.entries.insert(key, entry)),
                None => drop(self.entries.remove(&key)),
            }
        }
        self.events.clear();
        for entry in self.entries.values_mut() {
            (entry.seen, entry.refused) = (None, None);
        }
        self.removals.forget();
    }
}

/// The object as the API server would show it.
fn proxy(key: &ProxyKey, record: &Record) -> Proxy {
    let mut annotations = record.annotations.clone();
    // Written by the operator only: one in a manifest was copied from somewhere.
    annotations.remove(HOST);
    annotations.extend(record.host.iter().map(|host| (HOST.to_owned(), host.clone())));
    annotations.extend(record.drain.map(|drain| (DRAIN.to_owned(), drain.to_string())));
    Proxy {
        metadata: ObjectMeta {
            name: Some(key.name().to_owned()),
            namespace: Some(key.namespace().to_owned()),
            uid: Some(record.uid.clone()),
            generation: Some(record.generation),
            annotations: Some(annotations),
            finalizers: record.finalizer.then(|| vec![FINALIZER.to_owned()]),
            deletion_timestamp: record.deleted_at.clone(),
            ..ObjectMeta::default()
        },
        spec: record.spec.clone(),
        status: None,
    }
}

fn applied(key: &ProxyKey, entry: &Entry) -> SourceEvent {
    match accept(&proxy(key, &entry.record), None) {
        Ok(desired) => SourceEvent::Applied(Applied {
            desired: Arc::<Desired>::new(desired),
            recorded: entry.status.as_deref().and_then(status::recorded).map(Arc::new),
        }),
        // An older operator accepted it. Its uid and key were parsed when they were made.
        Err(rejection) => SourceEvent::Rejected(Rejected {
            key: key.clone(),
            uid: Uid::parse(&entry.record.uid).expect("a stored uid is a v4 uuid"),
            generation: entry.record.generation,
            message: rejection.to_string(),
        }),
    }
}

fn rejected(key: &ProxyKey, entry: &Entry) -> Option<SourceEvent> {
    let problem = entry.refused.as_ref()?;
    Some(SourceEvent::Rejected(Rejected {
        key: key.clone(),
        uid: Uid::parse(&entry.record.uid).ok()?,
        generation: entry.record.generation,
        message: problem.to_string(),
    }))
}

#[cfg(test)]
mod tests;
