//! The record of the election as a `coordination.k8s.io` Lease, and the leader's label on its pod.
//!
//! One try a call, reads without a cache, writes against a version: what [`ClaimStore`] asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use egress_actors::domain::claim::{ClaimRecord, ClaimWrite, Stored};
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::{ClaimStore, Claimed};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use serde_json::json;

use super::{Identity, NAME, failure};
use crate::crd::ROLE_LABEL;

/// The value of the label on the pod that leads: what the discovery Service selects.
const LEADER: &str = "leader";

#[derive(Clone)]
pub(super) struct LeaseClaim {
    client: Client,
    identity: Identity,
}

impl fmt::Debug for LeaseClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseClaim").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl LeaseClaim {
    pub(super) fn new(client: Client, identity: Identity) -> Self {
        Self { client, identity }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.identity.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.identity.namespace)
    }

    fn lease(&self, record: &ClaimRecord, version: Option<&str>) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.identity.name.to_string()),
                namespace: Some(self.identity.namespace.to_string()),
                resource_version: version.map(str::to_owned),
                labels: Some(BTreeMap::from([("app.kubernetes.io/name".to_owned(), NAME.to_owned())])),
                ..ObjectMeta::default()
            },
            spec: Some(written(record)),
        }
    }

    /// A label of `null` is a label that goes.
    async fn label(&self, pod: &str, uid: Option<&str>, role: Option<&str>) -> Result<(), OpError> {
        let labels = json!({ROLE_LABEL: role});
        let patch = match uid {
            Some(uid) => json!({"metadata": {"uid": uid, "labels": labels}}),
            None => json!({"metadata": {"labels": labels}}),
        };
        let what = format!("label pod {}/{pod}", self.identity.namespace);
        let (pods, params, patch) = (self.pods(), PatchParams::default(), Patch::Merge(patch));
        failure::call(what, pods.patch_metadata(pod, &params, &patch)).await.map(drop)
    }
}

#[async_trait]
impl ClaimStore for LeaseClaim {
    async fn read(&self) -> Result<Option<Stored>, OpError> {
        let what = format!("read Lease {}/{}", self.identity.namespace, self.identity.name);
        // A read without a version is a read of what is committed.
        match failure::call(what, self.leases().get_opt(&self.identity.name)).await? {
            Some(lease) => read(&lease).map(Some),
            None => Ok(None),
        }
    }

    async fn write(&self, write: &ClaimWrite) -> Result<Claimed, OpError> {
        let (name, params) = (&*self.identity.name, PostParams::default());
        let leases = self.leases();
        let answer = match write {
            ClaimWrite::Create(record) => leases.create(&params, &self.lease(record, None)).await,
            ClaimWrite::Replace(record, version) => {
                leases.replace(name, &params, &self.lease(record, Some(version))).await
            }
        };
        match answer {
            Ok(lease) => read(&lease).map(Claimed::Stored),
            Err(error) if failure::is_conflict(&error) || failure::is_missing(&error) => Ok(Claimed::Overtaken),
            Err(error) => Err(failure::failed(format_args!("write Lease {}/{name}", self.identity.namespace), &error)),
        }
    }

    async fn mark_leader(&self, leads: bool) -> Result<(), OpError> {
        let Some(me) = &self.identity.pod else { return Ok(()) };
        // Ours first: between the two the Service leads to one that sends on, and never to nobody.
        self.label(&me.name, Some(&me.uid), leads.then_some(LEADER)).await?;
        if leads {
            let marked = ListParams::default().labels(&format!("{ROLE_LABEL}={LEADER},app.kubernetes.io/name={NAME}"));
            let what = format!("list the pods of {}", self.identity.namespace);
            let others = failure::call(what, self.pods().list_metadata(&marked)).await?;
            for other in others.items.iter().filter(|pod| pod.metadata.uid.as_deref() != Some(&*me.uid)) {
                let Some(name) = &other.metadata.name else { continue };
                match self.label(name, None, None).await {
                    Err(error) if error.class != Class::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

fn written(record: &ClaimRecord) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(record.holder.to_string()),
        lease_duration_seconds: i32::try_from(record.lease.as_secs()).ok(),
        acquire_time: Some(micro(record.acquired_at)),
        renew_time: Some(micro(record.renewed_at)),
        lease_transitions: i32::try_from(record.transitions).ok(),
        ..LeaseSpec::default()
    }
}

/// Lenient: whatever another tool left out is nobody's and free.
fn read(lease: &Lease) -> Result<Stored, OpError> {
    let nothing = LeaseSpec::default();
    let spec = lease.spec.as_ref().unwrap_or(&nothing);
    let at = |time: &Option<MicroTime>| time.as_ref().map_or(SystemTime::UNIX_EPOCH, |time| time.0.into());
    let version =
        lease.metadata.resource_version.as_deref().ok_or_else(|| {
            OpError::transient(Reason::APIError, "the API server sent a Lease without a resourceVersion")
        })?;
    Ok(Stored {
        record: ClaimRecord {
            holder: spec.holder_identity.as_deref().unwrap_or_default().into(),
            lease: Duration::from_secs(spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)),
            acquired_at: at(&spec.acquire_time),
            renewed_at: at(&spec.renew_time),
            transitions: spec.lease_transitions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        },
        version: Arc::from(version),
    })
}

fn micro(at: SystemTime) -> MicroTime {
    MicroTime(Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_from_its_lease_and_a_strangers_lease_is_free() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_790_000_000_123_456);
        let record = ClaimRecord {
            holder: "op-1_u1".into(),
            lease: Duration::from_secs(15),
            acquired_at: at,
            renewed_at: at + Duration::from_micros(1),
            transitions: 7,
        };
        let mut lease = Lease { spec: Some(written(&record)), ..Lease::default() };
        assert_eq!(read(&lease).unwrap_err().reason, Reason::APIError);
        lease.metadata.resource_version = Some("12".to_owned());
        let text = serde_json::to_string(&lease).unwrap();
        let stored = read(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!((stored.record, &*stored.version), (record, "12"));
        lease.spec = None;
        assert!(read(&lease).unwrap().record.is_free());
    }
}
