//! Whether a host can do its work: over an SSH connection of its own, so that nothing that is stuck holds it up, and it
//! holds up nothing.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use tokio::time::Instant;

use super::Site;
use super::errors::{self, Effect};
use super::link::rpc::RpcError;
use super::link::{Awaited, LaneKind};

pub(super) async fn check(site: &Site) -> Result<(), OpError> {
    let until = Instant::now() + site.limits.check;
    let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let told = |doing: &'static str| move |error| errors::of(site.about(), doing, Effect::None, error);
    let lane = site.link.apart(LaneKind::Check, left()).await.map_err(told("reach libvirt"))?;

    let network = site.host.network.clone();
    let looked = lane.call(Awaited::Daemon, "virNetworkIsActive", left(), move |libvirt| {
        libvirt.rpc("virConnectGetLibVersion", "", virt::connect::Connect::lib_version)?;
        let found = libvirt.rpc("virNetworkLookupByName", &network, |c| c.lookup_network_by_name(&network))?;
        libvirt.rpc("virNetworkIsActive", &network, |_| found.is_active())
    });
    if !looked.await.map_err(told("look at the network"))? {
        let (network, host) = (&site.host.network, &site.host.name);
        let detail = format!(
            "network `{network}` on host `{host}` is not active; start it there (virsh net-start, net-autostart)"
        );
        return Err(OpError::transient(Reason::NetworkNotFound, detail));
    }

    let pool = site.host.pool.clone();
    let looked = lane.call(Awaited::Pool, "virStoragePoolIsActive", left(), move |libvirt| {
        let found = libvirt.rpc("virStoragePoolLookupByName", &pool, |c| c.lookup_storage_pool_by_name(&pool))?;
        if libvirt.rpc("virStoragePoolIsActive", &pool, |_| found.is_active())? {
            return Ok(());
        }
        Err(RpcError::inactive_pool(&pool))
    });
    looked.await.map_err(told("look at the pool"))
}
