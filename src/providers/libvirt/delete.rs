//! Removing an instance: the domain is ended first and undefined last, so that it can be found until all is gone.

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::OwnerMark;
use egress_actors::domain::reason::Reason;
use virt::sys;

use super::errors::{self, Effect, code};
use super::link::rpc::{Libvirt, RpcError};
use super::link::{LaneKind, LinkError};
use super::look::{self, Found};
use super::pool::Pool;
use super::{Site, names};

pub(super) async fn delete(site: &Site, mark: &OwnerMark) -> Result<(), OpError> {
    let pool = match look::domain_of(site, mark).await? {
        Found::Foreign(what) => return Err(errors::conflict(&what)),
        // The domain goes last, so without it there is nothing, unless somebody undefined it by hand: what can be seen of
        // that goes, and a pool that cannot be looked at holds up nobody.
        Found::Nothing => {
            if let Err(error) = volumes(&site.pool, mark).await {
                tracing::debug!(proxy = %mark.key, %error, "volumes without a domain could not be looked for");
            }
            return Ok(());
        }
        Found::Ours(ours) => {
            let pool = Pool { name: ours.0.pool.clone(), ..site.pool.clone() };
            if ours.1.state.is_active() {
                disk_can_be_given_back(&pool, mark).await?;
            }
            pool
        }
    };
    // The mark is read once more on the thread that ends the domain.
    end(site, mark, "end the domain", "virDomainDestroy", |libvirt, domain, name| {
        match libvirt.rpc("virDomainDestroy", name, |_| domain.destroy()) {
            Err(error) if matches!(error.code, code::OPERATION_INVALID | code::NO_DOMAIN) => Ok(()),
            result => result,
        }
    })
    .await?;
    volumes(&pool, mark).await?;
    end(site, mark, "undefine the domain", "virDomainUndefineFlags", |libvirt, domain, name| {
        undefine(libvirt, domain, name)
    })
    .await
}

/// Libvirtd gives the disk back with its lock on the domain held, so that a pool that hangs would hang everybody who lists
/// domains: it is looked at first. A pool that answers with an error holds up nobody.
async fn disk_can_be_given_back(pool: &Pool, mark: &OwnerMark) -> Result<(), OpError> {
    match pool.reads(&names::overlay(&names::domain_name(mark))).await {
        Ok(()) | Err(LinkError::Rpc(_)) => Ok(()),
        Err(error) => Err(errors::of(pool.about(), "look at the disk before the domain is ended", Effect::None, error)),
    }
}

/// With all that libvirt keeps beside a definition, or UEFI's variables would make it refuse (fault 41). A daemon that does
/// not know one of the flags is asked again without.
fn undefine(libvirt: &Libvirt<'_>, domain: &virt::domain::Domain, name: &str) -> Result<(), RpcError> {
    let all = sys::VIR_DOMAIN_UNDEFINE_NVRAM
        | sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
        | sys::VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
        | sys::VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA;
    let few = sys::VIR_DOMAIN_UNDEFINE_NVRAM | sys::VIR_DOMAIN_UNDEFINE_MANAGED_SAVE;
    for flags in [all, few, 0] {
        match libvirt.rpc("virDomainUndefineFlags", name, |_| domain.undefine_flags(flags)) {
            // It was not persistent, and is gone with its QEMU (fault 42).
            Err(error) if error.code == code::NO_DOMAIN => return Ok(()),
            Err(error) if error.code == code::OPERATION_INVALID && error.message.contains("transient") => return Ok(()),
            Err(error) if error.code == code::INVALID_ARG && flags != 0 => {}
            result => return result,
        }
    }
    Ok(())
}

/// One change of the domain of this mark, on the thread and after the look that found it to be ours.
async fn end(
    site: &Site,
    mark: &OwnerMark,
    doing: &str,
    rpc: &'static str,
    change: impl FnOnce(&Libvirt<'_>, &virt::domain::Domain, &str) -> Result<(), RpcError> + Send + 'static,
) -> Result<(), OpError> {
    let own = mark.clone();
    let done = site.link.call(LaneKind::Control, rpc, site.limits.destroy, move |libvirt| {
        let seen = match look::find(libvirt, &own)? {
            Found::Nothing => return Ok(None),
            Found::Foreign(what) => return Ok(Some(what)),
            Found::Ours(ours) => ours.1,
        };
        // By its uuid: a name could have gone to another since.
        let (uuid, name) = (seen.facts.uuid, seen.facts.name);
        match libvirt.rpc("virDomainLookupByUUID", &name, |c| c.lookup_domain_by_uuid(uuid)) {
            Ok(domain) => change(libvirt, &domain, &name).map(|()| None),
            Err(error) if error.code == code::NO_DOMAIN => Ok(None),
            Err(error) => Err(error),
        }
    });
    match done.await.map_err(|error| errors::of(site.about(), doing, Effect::Possible, error))? {
        None => Ok(()),
        Some(foreign) => Err(errors::conflict(&foreign)),
    }
}

/// Disk and seed. What is in their place and cannot be ours stays.
async fn volumes(pool: &Pool, mark: &OwnerMark) -> Result<(), OpError> {
    let domain = names::domain_name(mark);
    for name in [names::overlay(&domain), names::seed(&domain)] {
        match pool.volume(&name).await? {
            None => {}
            Some(volume) if super::create::may_be_ours(&volume) => pool.remove(&name).await?,
            Some(_) => {
                return Err(OpError::permanent(
                    Reason::NameConflict,
                    format!("volume `{name}` in pool `{}` is there and is not ours: it is not touched", pool.name),
                ));
            }
        }
    }
    Ok(())
}
