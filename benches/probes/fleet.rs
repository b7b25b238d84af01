//! A fleet of bought Proxies for the operator, from a source that keeps nothing: what is weighed is the operator's own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::desired::{
    Attributes, CloudInit, Desired, Endpoint, External, Flavor, HealthCheck, SecretRef,
};
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{Credentials, SecretBytes};
use egress_actors::domain::plan::Settings;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Status;
use egress_actors::operator::{OperatorSettings, Ports};
use egress_actors::ports::{
    Applied, Event, EventSink, FoundHealth, Mandate, Prober, ProviderHealth, ProxySource, Records, Secrets, SourceEvent,
};
use egress_actors::proxy::Deadlines;
use futures::stream::{self, BoxStream, StreamExt};
use url::Url;

use crate::measure::Trouble;

/// `crawl/px-<n>`, with attributes as fleets have them.
pub fn external(n: usize, endpoint: Endpoint, check: HealthCheck) -> Result<Desired, Trouble> {
    Ok(Desired {
        key: ProxyKey::new("crawl", &format!("px-{n}"))?,
        uid: Uid::parse(&uuid::Uuid::new_v4().to_string())?,
        generation: 1,
        flavor: Flavor::External(External { endpoint, credentials: None }),
        attributes: Arc::new(Attributes::from_iter([("tier".into(), "dc".into()), ("region".into(), "eu".into())])),
        max_leases: 1,
        check,
        recreate_after: None,
        paused: false,
        deleting: false,
        finalizer: false,
        host: None,
        annotations: egress_actors::domain::desired::Annotations::default(),
    })
}

pub fn settings(workers: usize, target: Arc<Url>) -> Result<OperatorSettings, Trouble> {
    Ok(OperatorSettings {
        operator: OperatorId::parse("bench")?,
        epoch: 1,
        life: Settings::default(),
        deadlines: Deadlines::default(),
        check_interval: Duration::from_secs(60),
        check_timeout: Duration::from_secs(15),
        health_workers: workers,
        probe_target: target,
        max_lease_ttl: Duration::from_secs(3600),
        lease_cooldown: Duration::from_secs(300),
        serve_without_claim: false,
        sweep: None,
        edge: None,
    })
}

pub fn ports(fleet: impl Fn(usize) -> Option<Desired> + Send + Sync + 'static, prober: Arc<dyn Prober>) -> Ports {
    let nothing = Arc::new(Nothing);
    Ports {
        source: Arc::new(Source(Arc::new(fleet))),
        records: nothing.clone(),
        events: nothing.clone(),
        secrets: nothing,
        prober,
        candidacy: None,
    }
}

/// Makes the nth object when it is asked for.
type Nth = Arc<dyn Fn(usize) -> Option<Desired> + Send + Sync>;

struct Source(Nth);

impl ProxySource for Source {
    fn events(&self) -> BoxStream<'static, SourceEvent> {
        let nth = self.0.clone();
        let made = stream::unfold((0, Vec::new()), move |(n, mut living)| {
            let event = match n {
                0 => Some(SourceEvent::ListStarted),
                n => match nth(n - 1) {
                    Some(desired) => {
                        living.push((desired.key.clone(), desired.uid.clone()));
                        Some(SourceEvent::Applied(Applied { desired: Arc::new(desired), recorded: None }))
                    }
                    None if living.is_empty() => None,
                    None => Some(SourceEvent::Synced { living: std::mem::take(&mut living) }),
                },
            };
            std::future::ready(event.map(|event| (event, (n + 1, living))))
        });
        made.chain(stream::pending()).boxed()
    }
}

/// Takes every record and event, and keeps none.
struct Nothing;

#[async_trait]
impl Records for Nothing {
    async fn adopt(&self, _: &ProxyKey, _: &Uid, _: Option<&HostName>, _: &Mandate) -> Result<(), OpError> {
        Ok(())
    }

    async fn release(&self, _: &ProxyKey, _: &Uid) -> Result<(), OpError> {
        Ok(())
    }

    async fn write_status(&self, _: &ProxyKey, _: &Uid, _: &Status, _: &Mandate) -> Result<(), OpError> {
        Ok(())
    }

    async fn annotate_drain(&self, _: &ProxyKey, _: &Uid, _: bool) -> Result<(), OpError> {
        Ok(())
    }

    async fn write_provider_health(&self, _: &ProviderHealth, _: &Mandate) -> Result<(), OpError> {
        Ok(())
    }

    async fn remove_provider_health(&self, _: &ProviderName, _: &Mandate) -> Result<(), OpError> {
        Ok(())
    }

    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError> {
        Ok(Vec::new())
    }

    async fn owner_exists(&self, _: &ProxyKey, _: &Uid) -> Result<bool, OpError> {
        Ok(true)
    }
}

#[async_trait]
impl EventSink for Nothing {
    fn emit(&self, _: Event) {}

    async fn emit_acked(&self, _: Event) -> Result<(), OpError> {
        Ok(())
    }
}

#[async_trait]
impl Secrets for Nothing {
    async fn credentials(&self, _: &str, _: &SecretRef) -> Result<Credentials, OpError> {
        Err(OpError::transient(Reason::SecretNotFound, "there are no secrets here"))
    }

    async fn user_data(&self, _: &str, _: &CloudInit) -> Result<SecretBytes, OpError> {
        Err(OpError::transient(Reason::SecretNotFound, "there are no secrets here"))
    }
}
