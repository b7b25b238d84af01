//! Proxies as somebody might want them.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::desired::{
    Annotations, Attributes, Desired, Endpoint, External, Flavor, HealthCheck, Managed, Placement, Scheme, SecretRef,
};
use crate::domain::id::{ProviderName, ProxyKey, Uid};
use crate::domain::lease_book::Ask;

/// A managed Proxy `crawl/<name>` on a provider.
pub fn managed(name: &str, provider: &str) -> Desired {
    let flavor = Flavor::Managed(Managed {
        provider: ProviderName::parse(provider).expect("a valid provider name"),
        placement: Placement::default(),
        cloud_init: None,
        port: 3128,
        credentials: None,
    });
    desired(name, flavor)
}

/// A bought Proxy `crawl/<name>` at `<host>:3128`.
pub fn external(name: &str, host: &str) -> Desired {
    let endpoint = Endpoint { scheme: Scheme::Http, host: host.into(), port: 3128 };
    desired(name, Flavor::External(External { endpoint, credentials: None }))
}

fn desired(name: &str, flavor: Flavor) -> Desired {
    Desired {
        key: key(name),
        uid: Uid::parse(&format!("uid-{name}")).expect("a valid uid"),
        generation: 1,
        flavor,
        attributes: Arc::new(Attributes::from_iter([("tier".into(), "dc".into()), ("name".into(), name.into())])),
        max_leases: 1,
        check: HealthCheck::default(),
        recreate_after: None,
        paused: false,
        deleting: false,
        finalizer: false,
        host: None,
        annotations: Annotations::default(),
    }
}

/// The same, asking for the credentials in a Secret of its namespace.
#[must_use]
pub fn with_secret(mut desired: Desired, secret: &str) -> Desired {
    let secret = Some(SecretRef { name: secret.into() });
    match &mut desired.flavor {
        Flavor::Managed(managed) => managed.credentials = secret,
        Flavor::External(external) => external.credentials = secret,
    }
    desired
}

/// The same, on this host.
///
/// # Panics
/// For an external one.
#[must_use]
pub fn on(mut desired: Desired, host: &str) -> Desired {
    match &mut desired.flavor {
        Flavor::Managed(managed) => managed.placement.zone = Some(Arc::from(host)),
        Flavor::External(_) => panic!("an external proxy has no host of ours"),
    }
    desired
}

/// One lease of anything, for five minutes.
pub fn any() -> Ask {
    Ask {
        selectors: vec![Attributes::new()],
        target: None,
        ttl: Duration::from_secs(300),
        owner: None,
        token: "default".into(),
        exclude: Vec::new(),
        count: 1,
        partial: false,
    }
}

/// One lease of this Proxy: each has its name as an attribute.
pub fn only(name: &str) -> Ask {
    Ask { selectors: vec![Attributes::from_iter([("name".into(), name.into())])], ..any() }
}

pub fn key(name: &str) -> ProxyKey {
    ProxyKey::new("crawl", name).expect("a valid name")
}
