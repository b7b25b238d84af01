//! The only place where a Proxy object becomes a domain value, in standalone mode and in a cluster.
//!
//! ```text
//! Proxy + last accepted spec -> accept -> Desired, or a Rejection {field, message}
//! ```
//! Everything behind it relies on what it checked. It also keeps the immutable fields immutable: in a cluster CEL rules
//! say the same earlier, and this catches what slipped by. A message names what was given and the way out, on one line;
//! never user data, and never what stands before an `@` in a URL.

mod fields;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::desired::{
    Annotations, CloudInit, Desired, Endpoint, External, Flavor, HealthCheck, Managed, Placement, Scheme, SecretRef,
};
use egress_actors::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use self::fields::{attributes, duration_at_least, endpoint, number, object_name, placement_part, secret_key, target};
pub use self::fields::{shown, without_userinfo};
use super::proxy::{CloudInitSpec, ExternalSpec, HealthCheckSpec, ManagedSpec, Proxy, ProxySpec, SecretRefSpec};
use super::{DRAIN, FINALIZER, HOST, RECREATE, SKIP_CLEANUP, duration};

/// The sentence behind every refused change of an immutable field (contract.md 1); the CRD's rules end with it too.
pub const IMMUTABLE: &str =
    "immutable: delete and recreate, or annotate crawl.example.com/recreate for a fresh instance of the old spec";

/// Where a managed proxy listens when nobody says otherwise: Squid's own default.
const DEFAULT_PORT: u16 = 3128;

/// Longest inline user data: several times what clouds take, and small enough to keep in memory for each object.
const INLINE_MAX: usize = 65_536;

/// Longest value of the recreate annotation, which is copied into the status.
const RECREATE_MAX: usize = 253;

/// Stands for what cannot be read of an object that is being deleted.
const UNREADABLE: &str = "unreadable";

/// An object that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Rejection {
    /// The path of the field, as in `spec.managed.port`.
    pub field: String,
    /// What was given, what is wrong with it, and the way out.
    pub message: String,
}

impl Rejection {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Parses the object, and compares it with the spec accepted last.
pub fn accept(proxy: &Proxy, previous: Option<&ProxySpec>) -> Result<Desired, Rejection> {
    let (key, uid) = identity(&proxy.metadata)?;
    let spec = &proxy.spec;
    let flavor = flavor(spec)?;
    let attributes = attributes("spec.attributes", &spec.attributes)?;
    let max_leases = number("spec.maxLeases", spec.max_leases, 1, 1..=10_000)?;
    let check = check(spec.health_check.as_ref())?;
    let recreate_after = spec
        .recreate_after
        .as_deref()
        .map(|text| duration_at_least("spec.recreateAfter", text, Duration::from_mins(1), "1m"))
        .transpose()?;
    if let Some(previous) = previous {
        unchanged(previous, spec)?;
    }
    let empty = BTreeMap::new();
    let given = proxy.metadata.annotations.as_ref().unwrap_or(&empty);
    Ok(Desired {
        key,
        uid,
        generation: proxy.metadata.generation.unwrap_or(1),
        flavor,
        attributes: Arc::new(attributes),
        max_leases,
        check,
        recreate_after,
        paused: spec.paused,
        deleting: proxy.metadata.deletion_timestamp.is_some(),
        finalizer: has_finalizer(&proxy.metadata),
        host: host(given)?,
        annotations: annotations(given)?,
    })
}

/// Parses an object that is being deleted. That never fails: what cannot be read of it does not matter any more, but where
/// its instance is. If even that cannot be read, its provider is one that nobody configures, and the instance is given up
/// as such: with an event that says what may be left.
pub fn accept_deleting(key: &ProxyKey, uid: &Uid, metadata: &ObjectMeta, spec: &serde_json::Value) -> Desired {
    let typed = serde_json::from_value(spec.clone()).ok();
    let whole = typed.and_then(|spec| accept(&Proxy { metadata: metadata.clone(), spec, status: None }, None).ok());
    if let Some(desired) = whole {
        return desired;
    }
    let empty = BTreeMap::new();
    let given = metadata.annotations.as_ref().unwrap_or(&empty);
    let host = given.get(HOST).and_then(|text| HostName::parse(text).ok());
    let provider = spec["managed"]["provider"].as_str().and_then(|name| ProviderName::parse(name).ok());
    let is_managed = provider.is_some() || host.is_some();
    let flavor = if is_managed {
        let unreadable = || ProviderName::parse(UNREADABLE).expect("a word of small letters");
        Flavor::Managed(Managed {
            provider: provider.unwrap_or_else(unreadable),
            placement: Placement::default(),
            cloud_init: None,
            port: DEFAULT_PORT,
            credentials: None,
        })
    } else {
        let endpoint = Endpoint { scheme: Scheme::Http, host: UNREADABLE.into(), port: DEFAULT_PORT };
        Flavor::External(External { endpoint, credentials: None })
    };
    Desired {
        key: key.clone(),
        uid: uid.clone(),
        generation: metadata.generation.unwrap_or(1),
        flavor,
        attributes: Arc::default(),
        max_leases: 1,
        check: HealthCheck::default(),
        recreate_after: None,
        paused: false,
        deleting: true,
        finalizer: has_finalizer(metadata),
        host,
        annotations: Annotations {
            skip_cleanup: given.get(SKIP_CLEANUP).is_some_and(|value| value == "true"),
            ..Annotations::default()
        },
    }
}

fn has_finalizer(metadata: &ObjectMeta) -> bool {
    metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Who the object is.
pub fn identity(metadata: &ObjectMeta) -> Result<(ProxyKey, Uid), Rejection> {
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let key = ProxyKey::new(namespace, name)
        .map_err(|e| Rejection::new(format!("metadata.{}", e.what), format!("{} {}", shown(&e.given), e.why)))?;
    let uid = Uid::parse(metadata.uid.as_deref().unwrap_or_default())
        .map_err(|e| Rejection::new("metadata.uid", format!("{} {}", shown(&e.given), e.why)))?;
    Ok((key, uid))
}

fn flavor(spec: &ProxySpec) -> Result<Flavor, Rejection> {
    match (&spec.managed, &spec.external) {
        (Some(managed_spec), None) => managed(managed_spec).map(Flavor::Managed),
        (None, Some(external_spec)) => external(external_spec).map(Flavor::External),
        (Some(_), Some(_)) => {
            Err(Rejection::new("spec", "both `managed` and `external` are given: keep exactly one of them"))
        }
        (None, None) => {
            Err(Rejection::new("spec", "neither `managed` nor `external` is given: set exactly one of them"))
        }
    }
}

fn managed(spec: &ManagedSpec) -> Result<Managed, Rejection> {
    let provider = ProviderName::parse(&spec.provider).map_err(|e| {
        Rejection::new(
            "spec.managed.provider",
            format!("{} {}; give the name of an entry of the providers config", shown(&e.given), e.why),
        )
    })?;
    let placement = match &spec.placement {
        None => Placement::default(),
        Some(parts) => Placement {
            zone: placement_part("spec.managed.placement.zone", parts.zone.as_deref())?,
            image: placement_part("spec.managed.placement.image", parts.image.as_deref())?,
            size: placement_part("spec.managed.placement.size", parts.size.as_deref())?,
        },
    };
    Ok(Managed {
        provider,
        placement,
        cloud_init: spec.cloud_init.as_ref().map(cloud_init).transpose()?,
        port: number("spec.managed.port", spec.port, DEFAULT_PORT, 1..=u16::MAX)?,
        credentials: credentials("spec.managed.credentialsSecretRef", spec.credentials_secret_ref.as_ref())?,
    })
}

fn external(spec: &ExternalSpec) -> Result<External, Rejection> {
    Ok(External {
        endpoint: endpoint("spec.external.url", &spec.url)?,
        credentials: credentials("spec.external.credentialsSecretRef", spec.credentials_secret_ref.as_ref())?,
    })
}

fn credentials(field: &str, spec: Option<&SecretRefSpec>) -> Result<Option<SecretRef>, Rejection> {
    spec.map(|secret| Ok(SecretRef { name: object_name(&format!("{field}.name"), &secret.name)? })).transpose()
}

fn cloud_init(spec: &CloudInitSpec) -> Result<CloudInit, Rejection> {
    const FIELD: &str = "spec.managed.cloudInit";
    match (&spec.inline, &spec.secret_ref) {
        (Some(text), None) if text.is_empty() => {
            Err(Rejection::new(format!("{FIELD}.inline"), "empty: give the user data, or leave `cloudInit` out"))
        }
        (Some(text), None) if text.len() > INLINE_MAX => Err(Rejection::new(
            format!("{FIELD}.inline"),
            format!("{} bytes given, at most {INLINE_MAX} are taken: let the instance fetch the rest", text.len()),
        )),
        (Some(text), None) => Ok(CloudInit::Inline(text.as_str().into())),
        (None, Some(secret)) => Ok(CloudInit::Secret {
            name: object_name(&format!("{FIELD}.secretRef.name"), &secret.name)?,
            key: secret_key(&format!("{FIELD}.secretRef.key"), &secret.key)?,
        }),
        (Some(_), Some(_)) => {
            Err(Rejection::new(FIELD, "both `inline` and `secretRef` are given: keep exactly one of them"))
        }
        (None, None) => {
            Err(Rejection::new(FIELD, "neither `inline` nor `secretRef` is given: set one, or leave `cloudInit` out"))
        }
    }
}

fn check(spec: Option<&HealthCheckSpec>) -> Result<HealthCheck, Rejection> {
    let defaults = HealthCheck::default();
    let Some(spec) = spec else { return Ok(defaults) };
    let second = Duration::from_secs(1);
    let span = |name: &str, text: &Option<String>| {
        let field = format!("spec.healthCheck.{name}");
        text.as_deref().map(|text| duration_at_least(&field, text, second, "1s")).transpose()
    };
    let interval = span("interval", &spec.interval)?.unwrap_or(defaults.interval);
    // Who probes every 5s and says no more means a timeout that fits, not an error about a value never written.
    let timeout = span("timeout", &spec.timeout)?.unwrap_or_else(|| defaults.timeout.min(interval));
    if timeout > interval {
        return Err(Rejection::new(
            "spec.healthCheck.timeout",
            format!(
                "{} given, must be at most `interval` ({}): shorten it, or probe less often",
                shown(spec.timeout.as_deref().unwrap_or_default()),
                spec.interval.as_deref().unwrap_or("30s, its default"),
            ),
        ));
    }
    let threshold = |name: &str, given: Option<i64>, default: u32| {
        number(&format!("spec.healthCheck.{name}"), given, default, 1..=100)
    };
    Ok(HealthCheck {
        target: spec.target.as_deref().map(|text| target("spec.healthCheck.target", text)).transpose()?,
        expect_status: match &spec.expect_status {
            None => defaults.expect_status,
            Some(statuses) => expect_status(statuses)?,
        },
        interval,
        timeout,
        failure_threshold: threshold("failureThreshold", spec.failure_threshold, defaults.failure_threshold)?,
        success_threshold: threshold("successThreshold", spec.success_threshold, defaults.success_threshold)?,
    })
}

fn expect_status(given: &[i64]) -> Result<Arc<[u16]>, Rejection> {
    const FIELD: &str = "spec.healthCheck.expectStatus";
    if given.is_empty() || given.len() > 16 {
        return Err(Rejection::new(
            FIELD,
            format!("{} entries given, must be 1 to 16: list the statuses that count as success", given.len()),
        ));
    }
    given
        .iter()
        .enumerate()
        .map(|(i, &status)| number(&format!("{FIELD}[{i}]"), Some(status), 204, 100..=599_u16))
        .collect()
}

fn host(given: &BTreeMap<String, String>) -> Result<Option<HostName>, Rejection> {
    given
        .get(HOST)
        .map(|text| {
            HostName::parse(text).map_err(|e| {
                Rejection::new(
                    annotation_path(HOST),
                    format!("{} {}; the operator writes this annotation: remove it", shown(&e.given), e.why),
                )
            })
        })
        .transpose()
}

fn annotations(given: &BTreeMap<String, String>) -> Result<Annotations, Rejection> {
    let switch = |name: &str| match given.get(name).map(String::as_str) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(Rejection::new(
            annotation_path(name),
            format!("{} given, must be \"true\" or \"false\": correct it, or remove the annotation", shown(other)),
        )),
    };
    let recreate = match given.get(RECREATE).map(String::as_str) {
        None | Some("") => None,
        Some(text) if text.len() > RECREATE_MAX => {
            return Err(Rejection::new(
                annotation_path(RECREATE),
                format!("{} bytes given, must be at most {RECREATE_MAX}: a date will do", text.len()),
            ));
        }
        Some(text) => Some(text.into()),
    };
    Ok(Annotations { skip_cleanup: switch(SKIP_CLEANUP)?, drain: switch(DRAIN)?, recreate })
}

fn annotation_path(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

/// Immutable is immutable, also against setting and unsetting an optional part: `unset` and the default are not the
/// same, as the rules of the CRD can only compare what is written.
fn unchanged(old: &ProxySpec, new: &ProxySpec) -> Result<(), Rejection> {
    let (old, new) = match (&old.managed, &new.managed) {
        (Some(old), Some(new)) => (old, new),
        (None, None) => return Ok(()),
        (Some(_), None) => return Err(changed("spec", "was `managed`, now is `external`")),
        (None, Some(_)) => return Err(changed("spec", "was `external`, now is `managed`")),
    };
    if old.provider != new.provider {
        let what = format!("was {}, now is {}", shown(&old.provider), shown(&new.provider));
        return Err(changed("spec.managed.provider", &what));
    }
    if old.placement != new.placement {
        let parts = |spec: &ManagedSpec| {
            spec.placement.as_ref().map(|p| [("zone", &p.zone), ("image", &p.image), ("size", &p.size)].map(part_text))
        };
        let text = |parts: Option<[String; 3]>| parts.map_or_else(|| "not set".to_owned(), |p| p.join(" "));
        let what = format!("was {}, now is {}", text(parts(old)), text(parts(new)));
        return Err(changed("spec.managed.placement", &what));
    }
    if old.cloud_init != new.cloud_init {
        // What changed is not shown: user data may hold passwords.
        let kind = |spec: &ManagedSpec| match &spec.cloud_init {
            None => "not set",
            Some(CloudInitSpec { secret_ref: Some(_), .. }) => "a `secretRef`",
            Some(_) => "an `inline` text",
        };
        let what = match (kind(old), kind(new)) {
            (before, after) if before == after => format!("is another {}", after.trim_start_matches(['a', 'n', ' '])),
            (before, after) => format!("was {before}, now is {after}"),
        };
        return Err(changed("spec.managed.cloudInit", &what));
    }
    if old.port != new.port {
        let text = |port: Option<i64>| port.map_or_else(|| "not set".to_owned(), |port| port.to_string());
        return Err(changed("spec.managed.port", &format!("was {}, now is {}", text(old.port), text(new.port))));
    }
    Ok(())
}

fn part_text((name, value): (&str, &Option<String>)) -> String {
    value.as_deref().map_or_else(|| format!("{name}=-"), |text| format!("{name}={}", shown(text)))
}

fn changed(field: &str, what: &str) -> Rejection {
    Rejection::new(field, format!("{what}; {IMMUTABLE}"))
}

#[cfg(test)]
mod tests;
