//! The owner mark as it lies on the disk.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::OwnerMark;
use egress_actors::domain::reason::Reason;
use serde::{Deserialize, Serialize};

use super::errors;

/// `owner.json`: whose folder this is, and where its Squid listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    operator: String,
    entry: String,
    namespace: String,
    name: String,
    uid: String,
    pub(super) listen: IpAddr,
    pub(super) port: u16,
    /// Seconds since 1970.
    created: u64,
}

impl OwnerFile {
    pub(super) fn new(mark: &OwnerMark, listen: IpAddr, port: u16, now: SystemTime) -> Self {
        Self {
            operator: mark.operator.as_str().to_owned(),
            entry: mark.entry.as_str().to_owned(),
            namespace: mark.key.namespace().to_owned(),
            name: mark.key.name().to_owned(),
            uid: mark.uid.as_str().to_owned(),
            listen,
            port,
            created: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }

    /// `Ok(None)` if there is no such file: everything else that is not a mark is an error.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, OpError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(errors::file("read the owner mark", path, &error)),
        };
        let broken = |why: String| {
            let path = path.display();
            let detail = format!(
                "the owner mark `{path}` is not readable: {why}; mend it, or end its squid and remove the folder"
            );
            OpError::transient(Reason::Internal, detail)
        };
        let file: Self = serde_json::from_slice(&bytes).map_err(|e| broken(e.to_string()))?;
        file.parse_mark().map_err(|e| broken(e.to_string()))?;
        Ok(Some(file))
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers always serialize")
    }

    pub(super) fn mark(&self) -> OwnerMark {
        self.parse_mark().expect("only marks that parse are read or made")
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.listen, self.port)
    }

    pub(super) fn created_at(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.created)).unwrap_or(UNIX_EPOCH)
    }

    fn parse_mark(&self) -> Result<OwnerMark, egress_actors::domain::id::InvalidName> {
        Ok(OwnerMark {
            operator: OperatorId::parse(&self.operator)?,
            entry: ProviderName::parse(&self.entry)?,
            key: ProxyKey::new(&self.namespace, &self.name)?,
            uid: Uid::parse(&self.uid)?,
        })
    }
}
