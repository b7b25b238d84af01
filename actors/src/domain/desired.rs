//! What somebody wants of one Proxy: the validated spec and the metadata that steers its life.
//!
//! Made only by `crd/accept.rs` (and builders in tests); everything behind it may rely on what the types say.

use std::sync::Arc;
use std::time::Duration;

use litemap::LiteMap;
use url::Url;

use super::id::{HostName, ProviderName, ProxyKey, Uid};

/// Labels of the leasing world, in order of key. Keys and values are shared strings, as thousands of Proxies carry the same
/// few; most have two or three, which a sorted list keeps in a third of what a tree takes.
pub type Attributes = LiteMap<Arc<str>, Arc<str>>;

/// One object's wish, immutable once accepted; a change makes a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    pub key: ProxyKey,
    pub uid: Uid,
    /// Grows with each change of the spec.
    pub generation: i64,
    pub flavor: Flavor,
    pub attributes: Arc<Attributes>,
    /// At least 1.
    pub max_leases: u32,
    pub check: HealthCheck,
    /// An instance Unhealthy for this long is made anew.
    pub recreate_after: Option<Duration>,
    /// The instance is left alone while true; deletion still goes on.
    pub paused: bool,
    /// The object has a deletion timestamp.
    pub deleting: bool,
    /// Our finalizer is on the object, as last *seen*.
    pub finalizer: bool,
    /// The host recorded on the object, as last *seen*.
    pub host: Option<HostName>,
    pub annotations: Annotations,
}

/// The annotations that we read (contract.md 1).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Annotations {
    pub skip_cleanup: bool,
    pub drain: bool,
    pub recreate: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flavor {
    Managed(Managed),
    External(External),
}

/// An instance that we make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Managed {
    pub provider: ProviderName,
    pub placement: Placement,
    pub cloud_init: Option<CloudInit>,
    /// Where the proxy listens in the instance.
    pub port: u16,
    pub credentials: Option<SecretRef>,
}

/// A proxy that somebody else runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    pub endpoint: Endpoint,
    pub credentials: Option<SecretRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The name of a host (libvirt) or a zone (clouds).
    pub zone: Option<Arc<str>>,
    pub image: Option<Arc<str>>,
    pub size: Option<Arc<str>>,
}

/// User data for the instance. The inline text may hold secrets: it never shows in `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub enum CloudInit {
    Inline(Arc<str>),
    Secret { name: Arc<str>, key: Arc<str> },
}

impl std::fmt::Debug for CloudInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline(text) => write!(f, "Inline({} bytes)", text.len()),
            Self::Secret { name, key } => write!(f, "Secret({name}/{key})"),
        }
    }
}

/// A Secret of the Proxy's namespace with the keys `username` and `password`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SecretRef {
    pub name: Arc<str>,
}

/// How the proxy itself is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Where a proxy listens. Without credentials: those travel beside it, redacted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub scheme: Scheme,
    /// A name, an IPv4 address, or an IPv6 address without brackets.
    pub host: Arc<str>,
    pub port: u16,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = self.scheme.as_str();
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// How a Proxy is probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// `http` or `https`; `None` means the operator's `--probe-target`.
    pub target: Option<Arc<Url>>,
    pub expect_status: Arc<[u16]>,
    pub interval: Duration,
    /// At most `interval`; covers the whole probe.
    pub timeout: Duration,
    pub failure_threshold: u32,
    pub success_threshold: u32,
}

impl Default for HealthCheck {
    /// The defaults of contract.md 1.
    fn default() -> Self {
        Self {
            target: None,
            expect_status: Arc::from([204_u16]),
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            failure_threshold: 3,
            success_threshold: 1,
        }
    }
}

/// Clones of these parts cost no memory: what they hold is behind an `Arc`.
fn share<T: PartialEq + Clone>(new: &mut T, old: &T) {
    if *new == *old {
        *new = old.clone();
    }
}

impl Desired {
    /// The same wish, with whatever is as it was in `old` shared with it: a source tells all of an object anew with each
    /// change, thousands are kept, and most changes are small.
    #[must_use]
    pub fn sharing(self: Arc<Self>, old: &Arc<Self>) -> Arc<Self> {
        if self == *old {
            return old.clone();
        }
        let mut new = Arc::unwrap_or_clone(self);
        share(&mut new.key, &old.key);
        share(&mut new.uid, &old.uid);
        share(&mut new.flavor, &old.flavor);
        share(&mut new.attributes, &old.attributes);
        share(&mut new.check, &old.check);
        Arc::new(new)
    }

    /// The provider of a managed Proxy.
    pub fn provider(&self) -> Option<&ProviderName> {
        match &self.flavor {
            Flavor::Managed(managed) => Some(&managed.provider),
            Flavor::External(_) => None,
        }
    }

    /// The Secret with the proxy's own credentials, whatever the flavor.
    pub fn credentials(&self) -> Option<&SecretRef> {
        match &self.flavor {
            Flavor::Managed(managed) => managed.credentials.as_ref(),
            Flavor::External(external) => external.credentials.as_ref(),
        }
    }

    /// True if the named Secret of this namespace is used by this Proxy.
    pub fn uses_secret(&self, name: &str) -> bool {
        let cloud_init = match &self.flavor {
            Flavor::Managed(Managed { cloud_init: Some(CloudInit::Secret { name, .. }), .. }) => Some(name),
            _ => None,
        };
        self.credentials().is_some_and(|s| &*s.name == name) || cloud_init.is_some_and(|n| &**n == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::wishes::external;

    #[test]
    fn an_echo_is_the_wish_that_is_there_and_a_change_shares_what_is_as_it_was() {
        let old = Arc::new(external("px-1", "a.example"));
        let echo = Arc::new((*old).clone()).sharing(&old);
        assert!(Arc::ptr_eq(&echo, &old));

        let mut told = external("px-1", "a.example");
        told.annotations.drain = true;
        let new = Arc::new(told.clone()).sharing(&old);
        assert_eq!(*new, told, "nothing of the news is lost");
        assert!(Arc::ptr_eq(&new.attributes, &old.attributes));

        told.attributes = Arc::new(Attributes::from_iter([("tier".into(), "home".into())]));
        assert_eq!(*Arc::new(told.clone()).sharing(&old), told);
    }
}
