//! Delete: the pod, and once it is seen gone, what was made for it. Each only if it carries our mark now, and only the
//! one that was read.

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::OwnerMark;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;

use super::calls::{Calls, Kind};
use super::{Site, errors, mark};

pub(super) async fn delete(site: &Site, mark: &OwnerMark) -> Result<(), OpError> {
    let calls = Calls::of(site).await?;
    let name = mark::name(mark);
    let foreign = match pod(&calls, mark, &name).await? {
        Left::Nothing => None,
        // It ends by itself, and whoever asks for the rest comes again: a half instance is told as stopped.
        Left::Ending => return Ok(()),
        // Made by us, and marked by somebody else since: all that it runs with is theirs now.
        Left::Foreign { conflict, was_ours: true } => return Err(conflict),
        Left::Foreign { conflict, was_ours: false } => Some(conflict),
    };
    // The ConfigMap last: it says that there is something left.
    remove::<Secret>(&calls, mark, &name).await?;
    remove::<NetworkPolicy>(&calls, mark, &name).await?;
    remove::<ConfigMap>(&calls, mark, &name).await?;
    foreign.map_or(Ok(()), Err)
}

enum Left {
    Nothing,
    Ending,
    Foreign { conflict: OpError, was_ours: bool },
}

async fn pod(calls: &Calls<'_>, mark: &OwnerMark, name: &str) -> Result<Left, OpError> {
    let Some(found) = calls.get_metadata::<Pod>(name).await? else { return Ok(Left::Nothing) };
    let what = calls.what::<Pod>(name);
    if let Err(whose) = mark::ours(&found.metadata, mark) {
        let was_ours = found.labels().contains_key(mark::LABEL_INSTANCE);
        return Ok(Left::Foreign { conflict: errors::conflict(&what, &whose), was_ours });
    }
    let uid = found.metadata.uid.clone();
    if found.metadata.deletion_timestamp.is_none() {
        calls.delete::<Pod>(name, uid.clone()).await?;
    }
    // The answer to a delete looks the same whether it is done or begun.
    match calls.get_metadata::<Pod>(name).await? {
        None => Ok(Left::Nothing),
        Some(now) if now.metadata.uid == uid => Ok(Left::Ending),
        Some(_) => Err(errors::raced(&what)),
    }
}

/// A foreign one of our name is nothing of ours, so nothing is left.
async fn remove<K: Kind>(calls: &Calls<'_>, mark: &OwnerMark, name: &str) -> Result<(), OpError> {
    match calls.get_metadata::<K>(name).await? {
        Some(found) if mark::ours(&found.metadata, mark).is_ok() => {
            calls.delete::<K>(name, found.metadata.uid.clone()).await
        }
        Some(_) | None => Ok(()),
    }
}
