//! The owner mark in a domain's metadata.

use std::time::SystemTime;

use egress_actors::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::OwnerMark;
use jiff::Timestamp;

use super::xml::write::{Out, with};
use super::xml::{Element, XmlError};

/// Also what `virDomainGetMetadata` is asked for.
pub const NAMESPACE: &str = "https://crawl.example.com/egress/1";

const PREFIX: &str = "egress";
const LOCAL_NAME: &str = "proxy";
const DOCUMENT: &str = "owner mark";

/// Whose a domain is, and which one of its instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub owner: OwnerMark,
    /// Another for each instance of one Proxy; part of cloud-init's instance-id (fault 58).
    pub incarnation: String,
    /// When the instance was made, by our clock.
    pub created_at: SystemTime,
    /// On which the guest's proxy listens.
    pub port: u16,
    /// The host as its entry calls it: two hosts of an entry may be one libvirtd.
    pub host: HostName,
    /// In which its volumes are: another entry, or a later version of this one, may have another pool.
    pub pool: String,
}

/// The element, as it stands within `<metadata>`.
///
/// # Errors
/// [`XmlError`] if the incarnation holds a character that XML forbids, or the time is past the year 9999.
pub fn write(mark: &Mark) -> Result<String, XmlError> {
    with(|out| write_into(mark, out))
}

pub(super) fn write_into(mark: &Mark, out: &mut Out) -> Result<(), XmlError> {
    let created = Timestamp::try_from(mark.created_at).map_err(|_| XmlError::Invalid {
        document: DOCUMENT,
        what: "created",
        given: "a time out of range".into(),
    })?;
    let declared = ["xmlns", PREFIX].join(":");
    out.empty(
        &[PREFIX, LOCAL_NAME].join(":"),
        &[
            (declared.as_str(), NAMESPACE),
            ("operator", mark.owner.operator.as_str()),
            ("entry", mark.owner.entry.as_str()),
            ("namespace", mark.owner.key.namespace()),
            ("name", mark.owner.key.name()),
            ("uid", mark.owner.uid.as_str()),
            ("incarnation", &mark.incarnation),
            ("created", &created.to_string()),
            ("port", &mark.port.to_string()),
            ("host", mark.host.as_str()),
            ("pool", &mark.pool),
        ],
    )
}

/// The mark in a domain's XML, or in the element that `virDomainGetMetadata` gives, which has lost prefix and namespace
/// (fault 47). `None` is a domain without a mark: a foreign one.
///
/// # Errors
/// [`XmlError`] if it cannot be read, or is there twice. That is never "absent": nothing may be deleted for it.
pub fn read(xml: &str) -> Result<Option<Mark>, XmlError> {
    let root = Element::parse("domain", xml)?;
    if is_ours(&root) {
        return parse(&root).map(Some);
    }
    if root.name != "domain" {
        let given = root.name.chars().take(40).collect();
        return Err(XmlError::Invalid { document: "domain", what: "root element", given });
    }
    in_domain(&root)
}

/// The mark of a domain that was parsed before.
pub(super) fn in_domain(domain: &Element) -> Result<Option<Mark>, XmlError> {
    let mut marks = domain.all("metadata").flat_map(|metadata| metadata.children.iter().filter(|child| is_ours(child)));
    match (marks.next(), marks.next()) {
        (None, _) => Ok(None),
        (Some(mark), None) => parse(mark).map(Some),
        (Some(_), Some(_)) => {
            Err(XmlError::Invalid { document: DOCUMENT, what: "metadata", given: "two owner marks".into() })
        }
    }
}

/// Another namespace is somebody else's; none at all is how libvirt gives ours back.
fn is_ours(element: &Element) -> bool {
    element.name == LOCAL_NAME && element.namespace.as_deref().is_none_or(|namespace| namespace == NAMESPACE)
}

fn parse(element: &Element) -> Result<Mark, XmlError> {
    let get = |what: &'static str| element.attribute(what).ok_or(XmlError::Missing { document: DOCUMENT, what });
    let invalid = |what: &'static str| {
        move |why: String| XmlError::Invalid { document: DOCUMENT, what, given: why.chars().take(200).collect() }
    };
    let created: Timestamp = get("created")?.parse().map_err(|e: jiff::Error| invalid("created")(e.to_string()))?;
    Ok(Mark {
        owner: OwnerMark {
            operator: OperatorId::parse(get("operator")?).map_err(|e| invalid("operator")(e.to_string()))?,
            entry: ProviderName::parse(get("entry")?).map_err(|e| invalid("entry")(e.to_string()))?,
            key: ProxyKey::new(get("namespace")?, get("name")?).map_err(|e| invalid("name")(e.to_string()))?,
            uid: Uid::parse(get("uid")?).map_err(|e| invalid("uid")(e.to_string()))?,
        },
        incarnation: get("incarnation")?.to_owned(),
        created_at: created.into(),
        host: HostName::parse(get("host")?).map_err(|e| invalid("host")(e.to_string()))?,
        pool: get("pool")?.to_owned(),
        port: get("port")?.parse().map_err(|e: std::num::ParseIntError| invalid("port")(e.to_string()))?,
    })
}

#[cfg(test)]
mod tests;
