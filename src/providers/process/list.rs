//! List: all folders of the entry against one look at all processes. Complete, or an error.
//!
//! An instance whose mark cannot be read costs nobody but itself. Whoever follows its uid finds it in the list of its entry, as
//! `Unknown`. The sweep, which deletes what nobody owns, does not hear of it: nobody can say whose it is.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{Complaint, Instance, InstanceState, Listed, OwnerMark};
use egress_actors::domain::reason::Reason;

use super::directory::{self, OWNER};
use super::evidence::{self, Listeners};
use super::mark::OwnerFile;
use super::{Site, auth, get, steps};

pub(super) async fn list(
    site: &Arc<Site>,
    operator: &OperatorId,
    entry: Option<&ProviderName>,
) -> Result<Vec<Listed>, OpError> {
    let (operator, own, one) = (operator.clone(), Arc::clone(site), entry.cloned());
    steps::look(site, "listing the instances", move |site| {
        if let Some(entry) = one {
            let site = own.of(&entry);
            let Found { mut listed, unread } = look(&site, &operator)?;
            listed.extend(unread.into_iter().map(|unread| row_of_unread(&site, &operator, unread)));
            return Ok(listed);
        }
        let mut listed = Vec::new();
        for entry in directory::entries(site)? {
            listed.extend(look(&own.of(&entry), &operator)?.listed);
        }
        Ok(listed)
    })
    .await
}

struct Found {
    listed: Vec<Listed>,
    unread: Vec<Unread>,
}

/// An instance whose mark cannot be read.
struct Unread {
    uid: Uid,
    why: Arc<str>,
}

fn look(site: &Site, operator: &OperatorId) -> Result<Found, OpError> {
    // One look at all processes for the many that are well; what it does not explain is looked at again by itself,
    // as folders and processes come and go between the two looks.
    let children = evidence::all(site)?;
    let listeners = Listeners::now()?;
    let uids = directory::folders(site)?;
    if !children.is_empty() && !directory::is_here(site)? {
        return Err(directory::is_away(site, children.len()));
    }
    let (mut listed, mut unread, mut troubles) = (Vec::with_capacity(uids.len()), Vec::new(), Vec::new());
    for uid in uids {
        let folder = site.folder(&uid);
        let alive = children.contains_key(&uid);
        let why = match OwnerFile::read(&folder.join(OWNER)) {
            Ok(Some(owner)) => {
                let mark = owner.mark();
                if mark.operator == *operator && mark.entry == site.entry.name && mark.uid == uid {
                    if let Err(error) = directory::bound_logs(&folder) {
                        troubles.push((folder, error.detail.into()));
                    }
                    let alive = alive || evidence::one_of(site, &uid)?.is_some();
                    let instance = get::instance(site, &owner, alive, &listeners);
                    listed.push(Listed { mark, instance });
                }
                continue;
            }
            // Not made by us, or gone since we listed.
            Ok(None) if !alive || !folder.exists() || evidence::one_of(site, &uid)?.is_none() => continue,
            Ok(None) => {
                let folder = folder.display();
                format!("squid runs on a configuration in `{folder}`, which has no owner mark: it is nobody's").into()
            }
            Err(error) => Arc::from(error.detail),
        };
        troubles.push((folder, Arc::clone(&why)));
        unread.push(Unread { uid, why });
    }
    if !listed.is_empty() {
        sign(site);
    }
    tell(&site.base, troubles);
    Ok(Found { listed, unread })
}

/// Where the uid is that of a Proxy, this is its instance for all that anybody knows: it is kept, and told. Whose the mark
/// says that it is stays open; nobody asks that of a list of one entry.
fn row_of_unread(site: &Site, operator: &OperatorId, unread: Unread) -> Listed {
    let Unread { uid, why } = unread;
    let key = ProxyKey::new("unknown", "unknown").expect("two valid names");
    let instance = Instance {
        provider_id: get::provider_id(site, &uid),
        state: InstanceState::Unknown,
        endpoint: None,
        generated: auth::generated(&site.folder(&uid)).ok().flatten(),
        outdated: None,
        created_at: None,
        complaint: Some(Complaint { reason: Reason::InstanceUnknown, detail: why }),
    };
    Listed { mark: OwnerMark { operator: operator.clone(), entry: site.entry.name.clone(), key, uid }, instance }
}

/// The directory of an older version gets its sign; a create that makes one at the same time is waited for.
fn sign(site: &Site) {
    let _choosing = site.shared.choosing();
    if let Err(error) = directory::sign(&site.base) {
        tracing::debug!(%error, "an entry's directory has no sign yet");
    }
}

/// Says what is wrong with single folders, once for as long as it is so.
fn tell(base: &Path, troubles: Vec<(PathBuf, Arc<str>)>) {
    static TOLD: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
    let mut told = steps::lock(&TOLD);
    told.retain(|folder| folder.parent() != Some(base) || troubles.iter().any(|(now, _)| now == folder));
    for (folder, why) in troubles {
        if !told.contains(&folder) {
            tracing::warn!(folder = %folder.display(), "an instance that cannot be judged: {why}");
            told.insert(folder);
        }
    }
}
