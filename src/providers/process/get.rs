//! Get: one instance, from its folder and its process.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::domain::desired::{Endpoint, Scheme};
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::instance::{Complaint, Instance, InstanceState, OwnerMark};
use egress_actors::domain::reason::Reason;

use super::directory::{self, CONF, Folder, RECORD};
use super::evidence::{self, Listeners};
use super::mark::OwnerFile;
use super::{Site, auth, spawn, steps};
use crate::providers::squid_conf::{self, reachable};

/// Between its folder and its process an instance is `Starting`, for as long as one step may take and some more.
const STARTS_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn get(site: &Arc<Site>, mark: &OwnerMark) -> Result<Instance, OpError> {
    let mark = mark.clone();
    steps::look(site, "looking at the instance", move |site| look(site, &mark)).await
}

pub(super) fn look(site: &Site, mark: &OwnerMark) -> Result<Instance, OpError> {
    match directory::read(site, mark)? {
        Folder::Ours(owner) => {
            let alive = evidence::one_of(site, &mark.uid)?.is_some();
            let listeners = Listeners::now()?;
            Ok(instance(site, &owner, alive, &listeners))
        }
        // The second look at the folder: a create may have been between the first one and the one at the processes.
        Folder::Absent if evidence::one_of(site, &mark.uid)?.is_some() => match directory::read(site, mark)? {
            Folder::Ours(owner) => Ok(instance(site, &owner, true, &Listeners::now()?)),
            // Somebody removed the folder of a running Squid: it is to be ended and made anew.
            Folder::Absent => Ok(Instance {
                provider_id: provider_id(site, &mark.uid),
                state: InstanceState::Stopped,
                endpoint: None,
                generated: None,
                outdated: None,
                created_at: None,
                complaint: None,
            }),
        },
        Folder::Absent => Err(OpError::not_found(format!(
            "no folder `{}` and no squid on a configuration in it",
            site.folder(&mark.uid).display()
        ))),
    }
}

/// The instance of a folder, as its process and its port tell.
pub(super) fn instance(site: &Site, owner: &OwnerFile, alive: bool, listeners: &Listeners) -> Instance {
    let uid = owner.mark().uid;
    let folder = site.folder(&uid);
    let (generated, complaint) = match auth::generated(&folder) {
        Ok(generated) => (generated, None),
        Err(error) => (None, Some(Complaint { reason: Reason::InstanceUnknown, detail: error.detail.into() })),
    };
    let listens = alive && listeners.include(owner.address());
    let state = if alive {
        // Stopped by a signal it still listens: whether it answers is for the probes to tell.
        match (listens, &complaint) {
            // Clients that have its credentials are served; we have none for others.
            (true, Some(_)) => InstanceState::Unknown,
            (true, None) => InstanceState::Running,
            (false, _) => InstanceState::Starting,
        }
    } else {
        let young = SystemTime::now().duration_since(owner.created_at()).is_ok_and(|age| age < STARTS_WITHIN);
        let never_started = !folder.join(RECORD).try_exists().unwrap_or(true);
        if young && never_started { InstanceState::Starting } else { InstanceState::Stopped }
    };
    let endpoint = listens.then(|| Endpoint {
        scheme: Scheme::Http,
        host: reachable(owner.listen).to_string().into(),
        port: owner.port,
    });
    Instance {
        provider_id: provider_id(site, &uid),
        state,
        endpoint,
        generated,
        outdated: if alive { outdated(site, owner, &folder) } else { None },
        created_at: Some(owner.created_at()),
        complaint,
    }
}

/// In which way a Squid that runs is not what the entry would start now. What cannot be compared is not told.
fn outdated(site: &Site, owner: &OwnerFile, folder: &Path) -> Option<Arc<str>> {
    let old = fs::read_to_string(folder.join(CONF)).ok()?;
    let new = spawn::configuration(site, owner, auth::in_use(site, folder).ok()?.as_deref());
    let mut ways = squid_conf::differences(&old, &new);
    if owner.listen != site.entry.listen || !site.entry.ports.contains(&owner.port) {
        ways.push(format!("it listens at {}, and not where `listen` and `ports` say", owner.address()));
    }
    (!ways.is_empty()).then(|| ways.join("; ").into())
}

/// The entry has one host, named like itself.
pub(super) fn provider_id(site: &Site, uid: &Uid) -> Arc<str> {
    format!("process://{0}/{0}/{uid}", site.entry.name).into()
}
