//! What a backend tells of an instance, and what it is told to make.

use std::sync::Arc;
use std::time::SystemTime;

use super::desired::{Endpoint, Placement};
use super::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use super::reason::Reason;
use secrecy::SecretString;

/// Written into the backend's own metadata with the create itself; read again before each delete.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerMark {
    pub operator: OperatorId,
    pub entry: ProviderName,
    pub key: ProxyKey,
    pub uid: Uid,
}

/// What to make. `Debug` shows no secret: credentials and user data are redacted by their types.
#[derive(Debug, Clone)]
pub struct InstanceSpec {
    pub mark: OwnerMark,
    pub placement: Placement,
    pub user_data: Option<SecretBytes>,
    pub port: u16,
    /// What the instance's proxy shall ask for, where the Proxy names a Secret.
    pub credentials: Option<Credentials>,
}

/// Bytes that never show in `Debug`, and reach cloud-init unchanged.
#[derive(Clone)]
pub struct SecretBytes(pub Arc<[u8]>);

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

/// User name and password of a proxy. Only leases and probes see the password.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub username: Arc<str>,
    pub password: Arc<SecretString>,
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        use secrecy::ExposeSecret;
        self.username == other.username && self.password.expose_secret() == other.password.expose_secret()
    }
}

impl Eq for Credentials {}

/// The state as the backend tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState {
    /// On its way to running.
    Starting,
    Running,
    /// Paused or suspended by the hypervisor: not stopped (fault 29, 52).
    Paused,
    /// Shut off or crashed: it will not come back by itself.
    Stopped,
    /// Being deleted by the backend.
    Deleting,
    /// The backend cannot tell; unknown is unknown.
    Unknown,
}

/// One instance of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// `kvm2://kvm2-home/beelink/<uuid>`: type, entry, host, and the backend's own identity.
    pub provider_id: Arc<str>,
    pub state: InstanceState,
    /// Where its proxy listens, once known.
    pub endpoint: Option<Endpoint>,
    /// Credentials that the backend itself gave the instance (`auth: generated`).
    pub generated: Option<Credentials>,
    /// In which way it runs with something older than what its entry says now, in words that follow "with an older
    /// configuration of its provider entry:". A fresh instance would be as the entry says.
    pub outdated: Option<Arc<str>>,
    /// When the backend made it, if it knows.
    pub created_at: Option<SystemTime>,
    /// Why it does not run, or not well, in the backend's words.
    pub complaint: Option<Complaint>,
}

/// What a backend says is wrong with an instance. It goes into the status: no counters and no times in it, or it would be
/// written again at every look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    pub reason: Reason,
    /// For people: lower case, no full stop, never a secret.
    pub detail: Arc<str>,
}

/// One row of a complete listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// As read from the backend.
    pub mark: OwnerMark,
    pub instance: Instance,
}

/// Who is meant, in calls about an existing instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRef {
    pub mark: OwnerMark,
    pub host: HostName,
}
