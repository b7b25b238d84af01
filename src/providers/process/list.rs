//! List: all folders of the entry against one look at all processes. Complete, or an error.

use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::instance::Listed;
use egress_actors::domain::reason::Reason;

use super::directory::{self, OWNER};
use super::evidence::{self, Listeners};
use super::mark::OwnerFile;
use super::{Site, get, steps};

pub(super) async fn list(
    site: &Arc<Site>,
    operator: &OperatorId,
    entry: Option<&ProviderName>,
) -> Result<Vec<Listed>, OpError> {
    let (operator, own, one) = (operator.clone(), Arc::clone(site), entry.cloned());
    steps::look(site, "listing the instances", move |site| {
        let entries = one.map_or_else(|| directory::entries(site), |one| Ok(vec![one]))?;
        let mut listed = Vec::new();
        for entry in entries {
            listed.extend(look(&own.of(&entry), &operator)?);
        }
        Ok(listed)
    })
    .await
}

fn look(site: &Site, operator: &OperatorId) -> Result<Vec<Listed>, OpError> {
    // One look at all processes for the many that are well; what it does not explain is looked at again by itself,
    // as folders and processes come and go between the two looks.
    let children = evidence::all(site)?;
    let listeners = Listeners::now()?;
    let uids = directory::folders(site)?;
    if !children.is_empty() && !directory::is_here(site)? {
        return Err(directory::is_away(site, children.len()));
    }
    let mut listed = Vec::with_capacity(uids.len());
    for uid in uids {
        let folder = site.folder(&uid);
        let alive = children.contains_key(&uid);
        match OwnerFile::read(&folder.join(OWNER))? {
            Some(owner) => {
                let mark = owner.mark();
                if mark.operator == *operator && mark.entry == site.entry.name && mark.uid == uid {
                    directory::bound_logs(&folder)?;
                    let alive = alive || evidence::one_of(site, &uid)?.is_some();
                    let instance = get::instance(site, &owner, alive, &listeners)?;
                    listed.push(Listed { mark, instance });
                }
            }
            // Not made by us, or gone since we listed.
            None if !alive || !folder.exists() || evidence::one_of(site, &uid)?.is_none() => {}
            None => {
                let detail = format!(
                    "squid runs on a configuration in `{}`, which has no owner mark: end it, and remove the folder",
                    folder.display()
                );
                return Err(OpError::transient(Reason::Internal, detail));
            }
        }
    }
    Ok(listed)
}
