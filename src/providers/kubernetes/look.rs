//! Get and list: what the API server has, read anew.

use std::collections::{HashMap, HashSet};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName, Uid};
use egress_actors::domain::instance::{Credentials, Instance, Listed, OwnerMark};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use super::calls::Calls;
use super::manifest::{self, Asked};
use super::{Site, errors, mark, reading};

pub(super) async fn get(site: &Site, mark: &OwnerMark) -> Result<Instance, OpError> {
    let calls = Calls::of(site).await?;
    let name = mark::name(mark);
    let pod = calls.what::<Pod>(&name);
    if let Some(found) = calls.get::<Pod>(&name).await? {
        mark::ours(&found.metadata, mark).map_err(|whose| errors::conflict(&pod, &whose))?;
        return instance(site, &calls, &found).await;
    }
    // The first trace of an instance, and the last.
    match calls.get_metadata::<ConfigMap>(&name).await? {
        Some(found) if mark::ours(&found.metadata, mark).is_ok() => Ok(reading::half(&found.metadata, &site.entry)),
        Some(_) | None => Err(OpError::not_found(format!("there is no {pod} and no ConfigMap of ours of that name"))),
    }
}

/// The instance that a pod of ours is, with its credentials.
pub(super) async fn instance(site: &Site, calls: &Calls<'_>, pod: &Pod) -> Result<Instance, OpError> {
    let mut generated = None;
    if Asked::of(pod) == Asked::Generated {
        let secret = calls.get::<Secret>(&pod.name_any()).await?;
        generated = secret.filter(|secret| is_of_one(secret, pod)).as_ref().and_then(manifest::generated);
    }
    Ok(reading::instance(pod, &site.entry, &site.current, generated))
}

fn is_of_one(secret: &Secret, pod: &Pod) -> bool {
    mark::owner(&secret.metadata).is_some_and(|owner| mark::owner(&pod.metadata) == Some(owner))
}

pub(super) async fn list(
    site: &Site,
    operator: &OperatorId,
    entry: Option<&ProviderName>,
) -> Result<Vec<Listed>, OpError> {
    let calls = Calls::of(site).await?;
    let asked = AskedFor { operator, entry };
    let selector = mark::selector(operator, entry);
    // Before the pods, so that what is being made meanwhile is not taken for half.
    let mut halves: HashMap<Uid, Listed> = HashMap::new();
    calls.each_metadata::<ConfigMap>(&selector, |found| asked.half(site, &found.metadata, &mut halves)).await?;
    if entry.is_none() {
        // Whatever is left of an instance is one: a request of an operator that was killed may come late.
        calls.each_metadata::<Secret>(&selector, |found| asked.half(site, &found.metadata, &mut halves)).await?;
    }

    // A pod is a lot larger than what is kept of it. Whether its credentials are there is not known yet.
    let mut pods: Vec<(OwnerMark, Pod)> = Vec::new();
    let mut others: HashSet<String> = HashSet::new();
    let see = |found: Pod| match asked.owner(&found.metadata) {
        Some(mark) => pods.push((mark, slim(found))),
        None => others.extend(found.metadata.name),
    };
    calls.each::<Pod>(&selector, see).await?;
    // A pod that we made and that somebody put another mark on: what it runs with is not ours to take away.
    halves.retain(|_, half| !others.contains(&mark::name(&half.mark)));

    // After the pods, so that those of each are there. Also where all entries are asked for: without its credentials an
    // instance is stopped, and a row says what a look would.
    let mut generated: HashMap<Uid, Credentials> = HashMap::new();
    if pods.iter().any(|(_, pod)| Asked::of(pod) == Asked::Generated) {
        let see = |found: Secret| {
            if let Some(mark) = asked.owner(&found.metadata)
                && let Some(credentials) = manifest::generated(&found)
            {
                generated.insert(mark.uid, credentials);
            }
        };
        calls.each::<Secret>(&selector, see).await?;
    }

    let mut listed = Vec::with_capacity(pods.len());
    for (mark, pod) in pods {
        halves.remove(&mark.uid);
        let instance = reading::instance(&pod, &site.entry, &site.current, generated.remove(&mark.uid));
        listed.push(Listed { mark, instance });
    }
    listed.extend(halves.into_values());
    Ok(listed)
}

/// Whose instances a list is about.
#[derive(Clone, Copy)]
struct AskedFor<'a> {
    operator: &'a OperatorId,
    entry: Option<&'a ProviderName>,
}

impl AskedFor<'_> {
    /// Labels only find: whose an object is, is in its mark, and only an object at its own place counts.
    fn owner(self, meta: &ObjectMeta) -> Option<OwnerMark> {
        mark::owner(meta).filter(|owner| {
            owner.operator == *self.operator
                && self.entry.is_none_or(|entry| owner.entry == *entry)
                && meta.name.as_ref().is_some_and(|name| *name == mark::name(owner))
        })
    }

    fn half(self, site: &Site, meta: &ObjectMeta, halves: &mut HashMap<Uid, Listed>) {
        if let Some(mark) = self.owner(meta) {
            let half = |mark| Listed { mark, instance: reading::half(meta, &site.entry) };
            halves.entry(mark.uid.clone()).or_insert_with(|| half(mark));
        }
    }
}

/// Without what nobody reads here.
fn slim(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    if let Some(spec) = &mut pod.spec {
        spec.volumes = None;
        spec.tolerations = None;
        spec.topology_spread_constraints = None;
    }
    pod
}
