//! The ports: what the actors ask of the world, as traits. Adapters in the root package implement them.
//!
//! # Rules for every port
//!
//! - **Deadlines.** Each call is run by the actors under a deadline and dropped at it. A call that could block a thread
//!   must free its caller at the deadline even if the callee never returns.
//! - **Cancelling.** Dropping a future is normal and may happen at every await. What was started in the backend may
//!   still complete; the callers count on that ([`Class::EffectUnknown`](crate::domain::error::Class)).
//! - **Errors.** An error while reading is never "absent" and never "stopped"; `NotFound` needs evidence. The adapter
//!   sets the class, as it knows the cause; nobody above matches texts.
//! - **Secrets.** None in an error, a `Debug`, a log line.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::domain::claim::{ClaimSettings, ClaimWrite, Stored};
use crate::domain::desired::{CloudInit, Desired, SecretRef};
use crate::domain::error::{Class, OpError};
use crate::domain::health::{Probe, ProbeOutcome};
use crate::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use crate::domain::instance::{Credentials, Instance, InstanceSpec, Listed, OwnerMark, SecretBytes};
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, Status};
use crate::domain::target::TargetHealth;

/// Where Proxy objects come from: the API server, or a directory of manifests.
pub trait ProxySource: Send + Sync + 'static {
    /// A new stream that begins with a complete list: `ListStarted`, an `Applied` or `Rejected` for each object,
    /// `Synced`; then the changes. It ends only when its consumer drops it: trouble is an item, not an end.
    fn events(&self) -> BoxStream<'static, SourceEvent>;
}

/// One fact about the wished fleet. Any of them may come twice; the next look repairs what was missed.
#[derive(Debug, Clone)]
pub enum SourceEvent {
    /// A complete list begins. Nothing is gone until `Synced`.
    ListStarted,
    /// An object is there, and valid.
    Applied(Applied),
    /// An object is there, and not valid: it is reported on itself, and its last good version goes on.
    Rejected(Rejected),
    /// The object with this uid is gone for good.
    Gone { key: ProxyKey, uid: Uid },
    /// The list is complete: objects that are not in `living` are gone.
    Synced { living: Vec<(ProxyKey, Uid)> },
    /// A labelled Secret came, changed or went.
    SecretChanged { namespace: Arc<str>, name: Arc<str> },
    /// The source cannot be read just now. Nothing is known to be gone.
    Unreadable(OpError),
}

#[derive(Debug, Clone)]
pub struct Applied {
    pub desired: Arc<Desired>,
    /// The status that is stored on the object, so that a restart neither flaps nor rewrites.
    pub recorded: Option<Arc<Status>>,
}

/// An object that cannot be accepted. It can still be deleted. It stands until the next `Applied` of the uid: a source that
/// tells an object again, for whatever reason, tells its rejection again right behind it.
#[derive(Debug, Clone)]
pub struct Rejected {
    pub key: ProxyKey,
    pub uid: Uid,
    pub generation: i64,
    /// For people: names the field and the way out.
    pub message: String,
}

/// One host of one provider entry.
///
/// # Expected flow
/// `create` with the owner mark in the same call; `get` until it has an address; `list` once per interval; `delete`
/// until `get` says `NotFound`.
///
/// # Guarantees asked of an implementation
/// - `create` is resumable: called again for the same mark it goes on where an earlier call ended and never makes a
///   second instance. It may return before the instance runs.
/// - `delete` is idempotent, resumable at every step, and works without a preceding `get`.
/// - A foreign instance of our name is `NameConflict` (permanent) and is never touched.
/// - `list` is complete for this operator id on this host, or an error. It may lag behind `create` and `delete`.
///
/// The conformance suite (`testkit::conformance`) checks them.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Makes the instance, or goes on making it.
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError>;
    /// Looks at one instance. `NotFound` only on evidence.
    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError>;
    /// Removes the instance and all that was made for it. `Ok` means that the removal is done or under way in the
    /// backend; only a later `get` that answers `NotFound` means gone.
    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError>;
    /// All instances of this operator on this host: of one entry, or of every entry that ever made some in this backend,
    /// also of those that are no longer configured. The sweep asks for the latter, and may then `delete` any of them.
    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError>;
    /// Whether this host can do its work. Uses nothing that operations wait for.
    async fn check(&self) -> Result<(), OpError>;
}

/// One entry of the providers config, opened.
#[derive(Clone)]
pub struct ProviderEntry {
    pub name: ProviderName,
    /// `process`, `kubernetes`, `kvm`, ... as in the config.
    pub kind: &'static str,
    /// Changes when the entry's configuration does.
    pub revision: u64,
    /// Entries with the same text here see each other's instances in a list of the whole backend: a namespace, a
    /// directory, a project. An orphan of an entry that is no longer configured is theirs to sweep.
    pub backend: Arc<str>,
    pub hosts: Vec<HostEntry>,
    /// How long after an effect that was not seen a look at the backend counts as clean.
    pub settle: Duration,
    /// An instance without an address for this long is told as `AddressTimeout`.
    pub address_timeout: Duration,
    /// The backend may give instances credentials of their own, which only a look at the instance tells.
    pub may_generate_credentials: bool,
}

impl fmt::Debug for ProviderEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(|h| &h.name).collect();
        f.debug_struct("ProviderEntry")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("revision", &self.revision)
            .field("hosts", &hosts)
            .finish_non_exhaustive()
    }
}

/// One host of an entry with its adapter.
#[derive(Clone)]
pub struct HostEntry {
    pub name: HostName,
    /// What the provider ids of this entry's instances on this host begin with, down to the place in which they are. An
    /// instance that was recorded with another beginning is in a backend that the entry has left: nothing that is said
    /// here is about it.
    pub ids: Arc<str>,
    /// Most instances that it takes; `None` is without limit.
    pub capacity: Option<u32>,
    /// Operations that run at once; at least 1.
    pub slots: usize,
    pub backend: Arc<dyn Backend>,
}

impl fmt::Debug for HostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEntry")
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// Looks through a proxy at a target.
#[async_trait]
pub trait Prober: Send + Sync + 'static {
    /// CONNECT through the proxy, TLS where the target is https, the request, the expected status. Always answers; the
    /// whole probe ends within `probe.timeout`.
    async fn probe(&self, probe: &Probe) -> ProbeOutcome;
    /// The same look at the target without a proxy: is the target itself well?
    async fn direct(&self, probe: &Probe) -> ProbeOutcome;
}

/// Whether a write is still this replica's to make. The process may stand still between the actor's test of the claim
/// and the socket, and wake when another replica has led and written. So an adapter takes note of which version of the
/// object it writes over, *then* asks, and then sends: what was written in between makes the write fail.
#[derive(Clone)]
pub struct Mandate(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Mandate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mandate({})", (self.0)())
    }
}

impl Mandate {
    pub fn new(stands: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(stands))
    }

    /// Where there is no other operator.
    pub fn always() -> Self {
        Self::new(|| true)
    }

    /// An error once it is gone: nothing was sent.
    pub fn stands(&self) -> Result<(), OpError> {
        if (self.0)() {
            return Ok(());
        }
        Err(OpError::new(Class::Cancelled, Reason::NotLeading, "this replica does not lead"))
    }
}

/// Writes Proxy and ProviderHealth objects. Called only by the records actor, under a current claim.
#[async_trait]
pub trait Records: Send + Sync + 'static {
    /// Sets our finalizer and the host annotation in one write. Done only when a later look *shows* them.
    async fn adopt(&self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>, mandate: &Mandate)
    -> Result<(), OpError>;
    /// Drops our finalizer, and nobody else's. An object that is gone already is a success.
    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError>;
    /// Writes the whole status that we own.
    async fn write_status(&self, key: &ProxyKey, uid: &Uid, status: &Status, mandate: &Mandate) -> Result<(), OpError>;
    /// Sets or removes the drain annotation.
    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError>;
    /// Writes the health of one provider entry. A condition whose truth is the stored one keeps its stored `since`: whoever
    /// writes after a restart does not know since when it is so. An object of that name that is not ours is a permanent
    /// `NameConflict`, and is left alone.
    async fn write_provider_health(&self, health: &ProviderHealth, mandate: &Mandate) -> Result<(), OpError>;
    /// Removes the health of an entry that is no longer configured. One that is not ours is left alone.
    async fn remove_provider_health(&self, entry: &ProviderName, mandate: &Mandate) -> Result<(), OpError>;
    /// The healths that are there now, in any order.
    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError>;
    /// A live look: does an object with this uid exist? Asked right before an orphan is deleted.
    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError>;
}

/// A ProviderHealth object that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundHealth {
    pub entry: ProviderName,
    /// Else somebody else made it, for purposes of their own: it is never written and never removed.
    pub is_ours: bool,
}

/// What we tell of one provider entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderHealth {
    pub entry: ProviderName,
    pub kind: &'static str,
    pub conditions: Vec<Condition>,
    pub targets: Vec<TargetHealth>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// Something worth telling a person who looks at the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub about: Subject,
    pub severity: Severity,
    pub reason: Reason,
    pub note: String,
}

impl Event {
    /// As a line of the log, the same wherever else it goes.
    pub fn log(&self) {
        let (reason, note) = (self.reason.as_str(), self.note.as_str());
        match (&self.about, self.severity) {
            (Subject::Proxy(key, uid), Severity::Normal) => {
                tracing::info!(event = reason, proxy = %key, %uid, note, "event");
            }
            (Subject::Proxy(key, uid), Severity::Warning) => {
                tracing::warn!(event = reason, proxy = %key, %uid, note, "event");
            }
            (Subject::Provider(name), Severity::Normal) => {
                tracing::info!(event = reason, provider = %name, note, "event");
            }
            (Subject::Provider(name), Severity::Warning) => {
                tracing::warn!(event = reason, provider = %name, note, "event");
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Proxy(ProxyKey, Uid),
    Provider(ProviderName),
}

/// Where events go. `emit` never waits: over its bound it drops and counts.
#[async_trait]
pub trait EventSink: Send + Sync + 'static {
    fn emit(&self, event: Event);
    /// Writes an event that must not be lost, before something is given up.
    async fn emit_acked(&self, event: Event) -> Result<(), OpError>;
}

/// Reads labelled Secrets on use.
#[async_trait]
pub trait Secrets: Send + Sync + 'static {
    /// Keys `username` and `password`.
    async fn credentials(&self, namespace: &str, secret: &SecretRef) -> Result<Credentials, OpError>;
    /// The user data of an instance, byte for byte.
    async fn user_data(&self, namespace: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError>;
}

/// The record that the replicas share, and the leader's mark on its own pod.
///
/// # Guarantees asked of an implementation
/// - A write is done only if the record is still the one that it was meant against: `Create` if there is none, `Replace` if
///   its version is the current one. Everything else is `Overtaken` (a conflict, an existing or a vanished record).
/// - One try a call: the election has its own rhythm, and a retry below it would send a write of the past.
/// - A read sees every write that ended before it began (no list, no cache).
#[async_trait]
pub trait ClaimStore: Send + Sync + 'static {
    /// None: on evidence, there is no record.
    async fn read(&self) -> Result<Option<Stored>, OpError>;
    /// The record as it is stored now, or that another write came before.
    async fn write(&self, write: &ClaimWrite) -> Result<Claimed, OpError>;
    /// Marks this replica's pod as the leader's, and then takes the mark from all others; or takes it from this one only.
    async fn mark_leader(&self, leads: bool) -> Result<(), OpError>;
}

/// What came of a write of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    Stored(Stored),
    Overtaken,
}

/// What it takes to stand for election.
#[derive(Clone)]
pub struct Candidacy {
    pub store: Arc<dyn ClaimStore>,
    /// Name and uid of the pod: the same after a restart of its container, never that of another.
    pub identity: Arc<str>,
    pub settings: ClaimSettings,
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("identity", &self.identity).finish_non_exhaustive()
    }
}
