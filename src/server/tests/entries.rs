//! Entries with verdicts, for the tests of who tells of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, OperatorId, ProviderName};
use egress_actors::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::target::TargetHealth;
use egress_actors::ports::{Backend, HostEntry, ProviderEntry};
use egress_actors::provider::ProviderHandle;
use egress_actors::providers::EntryCard;

/// Never asked: the endpoint reads verdicts only.
struct Untouched;

#[async_trait]
impl Backend for Untouched {
    async fn create(&self, _: &InstanceSpec) -> Result<Instance, OpError> {
        panic!("asked to create")
    }
    async fn get(&self, _: &OwnerMark) -> Result<Instance, OpError> {
        panic!("asked to get")
    }
    async fn delete(&self, _: &OwnerMark) -> Result<(), OpError> {
        panic!("asked to delete")
    }
    async fn list(&self, _: &OperatorId, _: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        panic!("asked to list")
    }
    async fn check(&self) -> Result<(), OpError> {
        panic!("asked to check")
    }
}

/// An entry with the hosts `a` and `b`, and these verdicts on them.
pub(in crate::server) fn card(name: &str, verdicts: &[(&str, bool)]) -> EntryCard {
    let host = |name: &str| HostEntry {
        name: HostName::parse(name).unwrap(),
        ids: format!("process://home/{name}/").into(),
        capacity: None,
        slots: 1,
        backend: Arc::new(Untouched),
    };
    let name = ProviderName::parse(name).unwrap();
    let card = EntryCard {
        provider: ProviderHandle::new(&name),
        entry: ProviderEntry {
            name,
            kind: "process",
            revision: 1,
            backend: "process".into(),
            hosts: vec![host("a"), host("b")],
            settle: Duration::ZERO,
            address_timeout: Duration::ZERO,
            may_generate_credentials: false,
        },
        hosts: std::collections::HashMap::new(),
        verdicts: Arc::default(),
        untold: Arc::default(),
        swept: Arc::default(),
    };
    let verdict = |&(name, ready): &(&str, bool)| TargetHealth {
        name: HostName::parse(name).unwrap(),
        trouble: (!ready).then(|| OpError::permanent(Reason::BinaryMissing, "no such file")),
        latency: Duration::from_millis(7),
        checked_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200),
    };
    card.verdicts.store(Arc::new(verdicts.iter().map(verdict).collect()));
    card
}
