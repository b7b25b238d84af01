//! The closed list of reasons behind conditions, events, problem answers and metric labels.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why something is as it is. The name is the text: it goes into conditions and metric labels unchanged.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Reads a name as written by [`Self::as_str`].
            pub fn parse(text: &str) -> Option<Self> {
                match text { $(stringify!($name) => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    // Life of a Proxy
    /// Accepted, nothing done yet.
    Pending,
    /// The instance is being made.
    Creating,
    /// The instance exists and its address is not known yet.
    WaitingForAddress,
    /// No address within the time the provider allows.
    AddressTimeout,
    /// The instance exists and has an address.
    Provisioned,
    /// The latest probes went through.
    Healthy,
    /// No probe has answered yet.
    NotProbed,
    /// As many probes in a row failed as the threshold allows.
    Unhealthy,
    /// Being deleted.
    Deleting,
    /// The instance is being made anew because the `recreate` annotation has a new value.
    RecreateRequested,
    /// The instance is being made anew because it was unhealthy for `recreateAfter`.
    RecreateAfterUnhealthy,
    /// `spec.paused` is set.
    Paused,
    /// The drain annotation is set and leases are still out.
    Draining,
    /// The drain annotation is set and no lease is left.
    Drained,
    /// Not cordoned.
    NotDraining,
    /// The instance stopped by itself and is replaced.
    InstanceStopped,
    /// The instance runs with an older configuration of its provider entry.
    InstanceOutdated,
    /// The backend says that the instance is suspended or paused.
    InstancePaused,
    /// The backend cannot say what the instance is doing.
    InstanceUnknown,
    /// The Proxy's actor keeps crashing and is parked.
    Crashed,
    /// The object is not valid; the message names the field.
    SpecInvalid,
    /// Every host of the provider is at its capacity, or none matches the placement.
    NoHostAvailable,
    /// The instance was given up because of `skip-cleanup`.
    CleanupSkipped,
    /// Deletion cannot go on; the message says what it waits for and the way out.
    DeletionBlocked,
    /// A create or delete ended without its end being seen.
    EffectUnknown,
    /// The operator does not lead, or cannot prove that it does.
    NotLeading,
    // Sweep
    /// An instance of ours without a Proxy was found; the message says what becomes of it.
    OrphanFound,
    /// An instance of ours without a Proxy was deleted.
    OrphanDeleted,
    /// An instance without a Proxy could not be deleted.
    OrphanNotDeleted,
    // Operations
    NotFound,
    Cancelled,
    Timeout,
    Lost,
    Busy,
    Internal,
    // Configuration
    ConfigInvalid,
    /// The providers config on disk is the one in use.
    ConfigAccepted,
    ProviderNotConfigured,
    HostNotConfigured,
    SecretNotFound,
    SecretNotLabelled,
    SecretInvalid,
    CloudInitInvalid,
    // Backends
    NameConflict,
    Unreachable,
    Unauthorized,
    Forbidden,
    APIError,
    QuotaExceeded,
    PortRangeExhausted,
    BinaryMissing,
    /// The generated configuration was refused; the message has the program's own words.
    ConfigRefused,
    StorageFull,
    StorageNotFound,
    SSHHandshakeFailed,
    HostKeyMismatch,
    HostKeyUnknown,
    SSHAuthFailed,
    SSHMaterialMissing,
    SSHKeyInvalid,
    SSHKeyEncrypted,
    LibvirtSocketUnavailable,
    LibvirtAuthFailed,
    PoolNotFound,
    PoolInactive,
    NetworkNotFound,
    FirmwareMissing,
    KVMUnavailable,
    DiskPermissionDenied,
    /// The base image of the instance is on its way into the pool; the message says how far it is.
    ImageFetching,
    ImageNotFound,
    ImageDigestMismatch,
    ImageFormatUnsupported,
    Wedged,
    /// The namespace of the entry does not exist, or is going away.
    NamespaceNotFound,
    /// No node takes the pod.
    Unschedulable,
    /// The container's image cannot be had.
    ImagePullFailed,
    /// The program in the instance ends again and again; its last words are in the message.
    CrashLooping,
    /// Killed for taking more memory than its limit.
    OOMKilled,
    /// The node put the pod out.
    Evicted,
    /// The node that the pod runs on does not answer.
    NodeLost,
    // Probes: the proxy's fault
    /// The proxy's host name does not resolve.
    ProxyNameNotResolved,
    /// Nobody listens on the proxy's address.
    ProxyConnectionRefused,
    /// The proxy's address cannot be reached.
    ProxyUnreachable,
    /// The proxy did not answer in time.
    ProxyTimeout,
    /// The proxy closed the connection without an answer.
    ProxyClosed,
    /// 403 to the CONNECT.
    ProxyDenied,
    /// 407 to the CONNECT: wrong or missing credentials.
    ProxyAuthRequired,
    /// 5xx to the CONNECT that does not tell of the target.
    ProxyError,
    /// What came back is not HTTP.
    ProxyGarbage,
    /// The TLS handshake with an https proxy failed.
    ProxyTLSFailed,
    /// Another answer was given than the target would give: an interceptor, a portal.
    ProxyIntercepts,
    // Probes: the target's fault
    /// The proxy says that it cannot reach the target.
    TargetUnreachable,
    /// The tunnel is open and the target does not answer in time.
    TargetTimeout,
    /// The tunnel is open and the target closed it.
    TargetClosed,
    /// TLS with the target failed.
    TargetTLSFailed,
    /// The target answered with another status than expected.
    TargetStatus,
    // Probe target
    /// Most of the fleet fails at the target: verdicts are frozen.
    ProbeTargetSuspect,
    ProbeTargetTrusted,
    // Serving
    DiscoveryTokenMissing,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn every_reason_reads_back() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
    }
}
