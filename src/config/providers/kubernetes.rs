//! An entry of type `kubernetes`: its fields as they are written, and as they are used.
//!
//! What a namespace, an image or a node really is, is not looked at here: that is the verdict of the entry's check.

use std::collections::BTreeMap;

use egress_actors::domain::id::ProviderName;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use super::file::{Refused, auth, destinations};
use super::{AllowedDestination, Auth};

/// Squid 5 of a distribution that keeps it patched, with its helper, running as anybody.
const IMAGE: &str = "docker.io/ubuntu/squid:5.2-22.04_beta";
/// Nobody on any system: Squid needs no files of its own, so any user will do.
const USER: u32 = 65_532;

/// Squid pods in one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesEntry {
    pub name: ProviderName,
    pub namespace: String,
    pub image: String,
    /// What `placement.image` may name.
    pub images: BTreeMap<String, String>,
    pub image_pull_policy: Option<PullPolicy>,
    pub image_pull_secrets: Vec<String>,
    /// Squid and its NCSA helper in the image.
    pub binary: String,
    pub auth_helper: String,
    pub run_as_user: u32,
    pub resources: Resources,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
    /// What `placement.size` may name.
    pub sizes: BTreeMap<String, PodSize>,
    pub allow_destinations: Vec<AllowedDestination>,
    /// With a list, a `NetworkPolicy` for each pod lets only these namespaces (and the operator's own) in.
    pub allowed_namespaces: Option<Vec<String>>,
    pub auth: Auth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Quantities as Kubernetes writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    pub requests: BTreeMap<&'static str, String>,
    pub limits: BTreeMap<&'static str, String>,
}

/// What one size adds to its entry, or has in place of the entry's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSize {
    /// In place of the entry's.
    pub resources: Option<Resources>,
    /// Added to the entry's; the same label wins over the entry's.
    pub node_selector: BTreeMap<String, String>,
    /// Added to the entry's.
    pub tolerations: Vec<Toleration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Toleration {
    pub key: Option<String>,
    #[serde(default)]
    pub operator: Operator,
    pub value: Option<String>,
    pub effect: Option<Effect>,
    pub toleration_seconds: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Operator {
    #[default]
    Equal,
    Exists,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawKubernetes {
    pub(super) name: Spanned<String>,
    #[serde(rename = "type")]
    _kind: String,
    namespace: Spanned<String>,
    image: Option<Spanned<String>>,
    #[serde(default)]
    images: BTreeMap<String, Spanned<String>>,
    image_pull_policy: Option<PullPolicy>,
    #[serde(default)]
    image_pull_secrets: Vec<Spanned<String>>,
    binary: Option<Spanned<String>>,
    auth_helper: Option<Spanned<String>>,
    run_as_user: Option<Spanned<u32>>,
    resources: Option<RawResources>,
    #[serde(default)]
    node_selector: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    tolerations: Vec<Spanned<Toleration>>,
    #[serde(default)]
    sizes: BTreeMap<String, Spanned<RawSize>>,
    #[serde(default)]
    allow_destinations: Vec<Spanned<String>>,
    allowed_namespaces: Option<Vec<Spanned<String>>>,
    auth: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSize {
    resources: Option<RawResources>,
    #[serde(default)]
    node_selector: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    tolerations: Vec<Spanned<Toleration>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawResources {
    #[serde(default)]
    requests: RawAmounts,
    #[serde(default)]
    limits: RawAmounts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawAmounts {
    cpu: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    ephemeral_storage: Option<Spanned<String>>,
}

impl RawKubernetes {
    pub(super) fn check(self, at: &str, warnings: &mut Vec<String>) -> Result<KubernetesEntry, Refused> {
        let place = self.name.referenced;
        let name = ProviderName::parse(&self.name.value)
            .map_err(|e| Refused::new(place, format!("{at}.name"), e.to_string()))?;
        let namespace = namespace(self.namespace, &format!("{at}.namespace"))?;
        let image = self.image.map_or_else(|| Ok(IMAGE.to_owned()), |text| image(text, &format!("{at}.image")))?;
        let mut images = BTreeMap::new();
        for (key, text) in self.images {
            let at = format!("{at}.images.{key}");
            key_of(&key, text.referenced, &at)?;
            images.insert(key, self::image(text, &at)?);
        }
        let mut image_pull_secrets = Vec::new();
        for (index, secret) in self.image_pull_secrets.into_iter().enumerate() {
            if !secret.value.split('.').all(is_dns_label) {
                let why = format!("`{}` is not the name of a Secret", secret.value);
                return Err(Refused::new(secret.referenced, format!("{at}.imagePullSecrets[{index}]"), why));
            }
            image_pull_secrets.push(secret.value);
        }
        let binary = path(self.binary, "/usr/sbin/squid", &format!("{at}.binary"))?;
        let auth_helper = path(self.auth_helper, "/usr/lib/squid/basic_ncsa_auth", &format!("{at}.authHelper"))?;
        let run_as_user = match self.run_as_user {
            None => USER,
            Some(user) if (1..=i32::MAX.unsigned_abs()).contains(&user.value) => user.value,
            Some(user) => {
                let why = format!("{} is no user for a pod that must not be root; write 1 to {}", user.value, i32::MAX);
                return Err(Refused::new(user.referenced, format!("{at}.runAsUser"), why));
            }
        };
        let resources = match self.resources {
            Some(raw) => raw.check(&format!("{at}.resources"))?,
            None => Resources {
                requests: BTreeMap::from([("cpu", "50m".to_owned()), ("memory", "64Mi".to_owned())]),
                limits: BTreeMap::from([("memory", "128Mi".to_owned())]),
            },
        };
        let mut sizes = BTreeMap::new();
        for (key, size) in self.sizes {
            let at = format!("{at}.sizes.{key}");
            key_of(&key, size.referenced, &at)?;
            sizes.insert(key, size.value.check(&at)?);
        }
        let allow_destinations = destinations(self.allow_destinations, at, &name, "the cluster's networks", warnings)?;
        let allowed_namespaces = match self.allowed_namespaces {
            None => None,
            Some(given) => {
                let each = given.into_iter().enumerate();
                let parsed =
                    each.map(|(index, text)| self::namespace(text, &format!("{at}.allowedNamespaces[{index}]")));
                Some(parsed.collect::<Result<Vec<_>, _>>()?)
            }
        };
        let auth = auth(self.auth, at)?;
        if auth == Auth::None && allowed_namespaces.is_none() {
            warnings.push(format!(
                "provider `{name}`: with auth none and without allowedNamespaces whoever reaches its pods can use them, leased or not"
            ));
        }
        Ok(KubernetesEntry {
            name,
            namespace,
            image,
            images,
            image_pull_policy: self.image_pull_policy,
            image_pull_secrets,
            binary,
            auth_helper,
            run_as_user,
            resources,
            node_selector: selector(self.node_selector, &format!("{at}.nodeSelector"))?,
            tolerations: tolerations(self.tolerations, &format!("{at}.tolerations"))?,
            sizes,
            allow_destinations,
            allowed_namespaces,
            auth,
        })
    }
}

impl RawSize {
    fn check(self, at: &str) -> Result<PodSize, Refused> {
        Ok(PodSize {
            resources: self.resources.map(|raw| raw.check(&format!("{at}.resources"))).transpose()?,
            node_selector: selector(self.node_selector, &format!("{at}.nodeSelector"))?,
            tolerations: tolerations(self.tolerations, &format!("{at}.tolerations"))?,
        })
    }
}

impl RawResources {
    fn check(self, at: &str) -> Result<Resources, Refused> {
        Ok(Resources {
            requests: self.requests.check(&format!("{at}.requests"))?,
            limits: self.limits.check(&format!("{at}.limits"))?,
        })
    }
}

impl RawAmounts {
    fn check(self, at: &str) -> Result<BTreeMap<&'static str, String>, Refused> {
        let given = [("cpu", self.cpu), ("memory", self.memory), ("ephemeral-storage", self.ephemeral_storage)];
        let mut amounts = BTreeMap::new();
        for (name, text) in given {
            let Some(text) = text else { continue };
            if !is_quantity(&text.value) {
                let why = format!("`{}` is not a quantity; write it like 100m, 0.5, 64Mi or 1Gi", text.value);
                return Err(Refused::new(text.referenced, format!("{at}.{name}"), why));
            }
            amounts.insert(name, text.value);
        }
        Ok(amounts)
    }
}

fn namespace(text: Spanned<String>, at: &str) -> Result<String, Refused> {
    if is_dns_label(&text.value) {
        return Ok(text.value);
    }
    let why = format!(
        "`{}` is not the name of a namespace: at most 63 lower-case letters, digits and `-`, not at its ends",
        text.value
    );
    Err(Refused::new(text.referenced, at, why))
}

fn image(text: Spanned<String>, at: &str) -> Result<String, Refused> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b);
    let begins = text.value.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if begins && text.value.len() <= 512 && text.value.bytes().all(plain) {
        return Ok(text.value);
    }
    let why = format!("`{}` is not an image; write it like registry.example/squid:6.6", text.value);
    Err(Refused::new(text.referenced, at, why))
}

/// In the image, and in a line of Squid's configuration, which is split at blanks.
fn path(given: Option<Spanned<String>>, default: &str, at: &str) -> Result<String, Refused> {
    let Some(given) = given else { return Ok(default.to_owned()) };
    let plain = |b: u8| b.is_ascii_graphic() && !b"\"'\\#".contains(&b);
    if given.value.starts_with('/') && given.value.bytes().all(plain) {
        return Ok(given.value);
    }
    let why = format!("`{}` is not an absolute path without blanks and quotes; write it like {default}", given.value);
    Err(Refused::new(given.referenced, at, why))
}

fn key_of(key: &str, place: Location, at: &str) -> Result<(), Refused> {
    match ProviderName::parse(key) {
        Ok(_) => Ok(()),
        Err(error) => Err(Refused::new(place, at, format!("the key `{key}` {}", error.why))),
    }
}

fn selector(raw: BTreeMap<String, Spanned<String>>, at: &str) -> Result<BTreeMap<String, String>, Refused> {
    let mut labels = BTreeMap::new();
    for (key, value) in raw {
        if !is_label_key(&key) || !is_label_value(&value.value) {
            let why = format!("`{key}: {}` is not a label of a node", value.value);
            return Err(Refused::new(value.referenced, at, why));
        }
        labels.insert(key, value.value);
    }
    Ok(labels)
}

fn tolerations(raw: Vec<Spanned<Toleration>>, at: &str) -> Result<Vec<Toleration>, Refused> {
    let mut checked = Vec::new();
    for (index, Spanned { value: one, referenced, .. }) in raw.into_iter().enumerate() {
        let why = if one.key.as_ref().is_some_and(|key| !is_label_key(key)) {
            "`key` is not the key of a taint"
        } else if one.value.as_ref().is_some_and(|value| !is_label_value(value)) {
            "`value` is not the value of a taint"
        } else if one.key.is_none() && one.operator == Operator::Equal {
            "without `key` the operator must be Exists"
        } else if one.value.is_some() && one.operator == Operator::Exists {
            "with the operator Exists there is no `value`"
        } else if one.toleration_seconds.is_some() && one.effect != Some(Effect::NoExecute) {
            "`tolerationSeconds` is for the effect NoExecute only"
        } else {
            checked.push(one);
            continue;
        };
        return Err(Refused::new(referenced, format!("{at}[{index}]"), why));
    }
    Ok(checked)
}

fn is_dns_label(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|b| edge(b) || *b == b'-')
}

fn is_label_value(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    text.is_empty()
        || text.len() <= 63
            && bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|b| edge(b) || b"-_.".contains(b))
}

fn is_label_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    !name.is_empty()
        && is_label_value(name)
        && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(is_dns_label))
}

fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    !whole.is_empty() && digits(whole) && digits(fraction) && SUFFIXES.contains(&&text[number.len()..])
}

#[cfg(test)]
mod tests;
