//! Create: `ConfigMap`, Secret, policy, and the pod last. What an earlier call made is kept, or put right.

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::{Credentials, Instance, InstanceSpec, OwnerMark};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;

use super::calls::{Calls, Kind, Made};
use super::manifest::{self, Asked, Manifest};
use super::{Site, errors, look, mark, reading};
use crate::providers::passwords;

pub(super) async fn create(site: &Site, spec: &InstanceSpec) -> Result<Instance, OpError> {
    let manifest = Manifest::of(&site.entry, &site.openings, site.cluster.operator_namespace(), spec)?;
    let calls = Calls::of(site).await?;
    let mark = &spec.mark;
    if let Some(pod) = calls.get::<Pod>(&manifest.name).await? {
        return resumed(site, &calls, &manifest, spec, &pod).await;
    }
    ensure(&calls, mark, &manifest.config_map, |found: &ConfigMap| found.data == manifest.config_map.data).await?;
    let generated = ensure_secret(&calls, &manifest, spec).await?;
    if let Some(policy) = &manifest.network_policy {
        ensure(&calls, mark, policy, |found: &NetworkPolicy| found.spec == policy.spec).await?;
    }
    match calls.create(&manifest.pod).await? {
        Made::New(pod) => Ok(reading::instance(&pod, &site.entry, &site.current, generated)),
        // Another call of ours, or somebody else, was faster.
        Made::Taken => match calls.get::<Pod>(&manifest.name).await? {
            Some(pod) => resumed(site, &calls, &manifest, spec, &pod).await,
            None => Err(errors::raced(&calls.what::<Pod>(&manifest.name))),
        },
    }
}

/// The pod is there, so all that it needs was there too.
async fn resumed(
    site: &Site,
    calls: &Calls<'_>,
    manifest: &Manifest,
    spec: &InstanceSpec,
    pod: &Pod,
) -> Result<Instance, OpError> {
    let what = calls.what::<Pod>(&manifest.name);
    mark::ours(&pod.metadata, &spec.mark).map_err(|whose| errors::conflict(&what, &whose))?;
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(errors::still_deleting(&what));
    }
    if spec.credentials.is_some() && Asked::of(pod) == Asked::Given {
        // The Proxy's own Secret may have changed since; Squid's helper reads the file anew when it does.
        ensure_secret(calls, manifest, spec).await?;
    }
    look::instance(site, calls, pod).await
}

/// Makes it, or puts it right if it is ours.
async fn ensure<K: Kind>(
    calls: &Calls<'_>,
    mark: &OwnerMark,
    wanted: &K,
    is_right: impl Fn(&K) -> bool,
) -> Result<(), OpError> {
    if let Made::New(_) = calls.create(wanted).await? {
        return Ok(());
    }
    let found = existing::<K>(calls, mark, &wanted.name_any()).await?;
    if is_right(&found) { Ok(()) } else { calls.replace(&in_place_of(&found, wanted)).await }
}

/// The one of this name, which is ours and stays.
async fn existing<K: Kind>(calls: &Calls<'_>, mark: &OwnerMark, name: &str) -> Result<K, OpError> {
    let what = calls.what::<K>(name);
    let Some(found) = calls.get::<K>(name).await? else { return Err(errors::raced(&what)) };
    mark::ours(found.meta(), mark).map_err(|whose| errors::conflict(&what, &whose))?;
    if found.meta().deletion_timestamp.is_some() {
        return Err(errors::still_deleting(&what));
    }
    Ok(found)
}

fn in_place_of<K: Kind>(found: &K, wanted: &K) -> K {
    let mut wanted = wanted.clone();
    wanted.meta_mut().resource_version.clone_from(&found.meta().resource_version);
    wanted.meta_mut().uid.clone_from(&found.meta().uid);
    wanted
}

/// The Secret, if one is needed; what is returned are generated credentials. Those that are there already stay.
async fn ensure_secret(
    calls: &Calls<'_>,
    manifest: &Manifest,
    spec: &InstanceSpec,
) -> Result<Option<Credentials>, OpError> {
    let credentials = match (manifest.asked, &spec.credentials) {
        (Asked::Nothing, _) => return Ok(None),
        (Asked::Given, Some(given)) => given.clone(),
        (Asked::Given | Asked::Generated, _) => passwords::generate(),
    };
    let wanted = manifest.secret(&credentials)?;
    let made = |kept: Credentials| (manifest.asked == Asked::Generated).then_some(kept);
    if let Made::New(_) = calls.create(&wanted).await? {
        return Ok(made(credentials));
    }
    let found = existing::<Secret>(calls, &spec.mark, &manifest.name).await?;
    if manifest.asked == Asked::Generated
        && let Some(kept) = manifest::generated(&found)
    {
        return Ok(Some(kept));
    }
    calls.replace(&in_place_of(&found, &wanted)).await?;
    Ok(made(credentials))
}
