//! Making an instance. Each step looks at what an earlier call left, so it goes on from wherever that was cut.

use std::sync::Arc;
use std::time::SystemTime;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::{Instance, InstanceSpec};
use egress_actors::domain::reason::Reason;
use url::Url;
use uuid::Uuid;
use virt::sys;

use super::errors::{self, Effect, code};
use super::images::policy::Policy;
use super::images::store::Created;
use super::images::{Base, Wanted, fetch, flights};
use super::link::LaneKind;
use super::look::{self, Found, Seen};
use super::metadata::Mark;
use super::seed::{self, Seed};
use super::xml::{self, DomainSpec, VolumeInfo};
use super::{Site, names};
use crate::config::providers::{Firmware, Flavor, LibvirtEntry, VmSize};

/// Where the entry names no sizes.
const SIZE: VmSize = VmSize { cpus: 1, memory: 1 << 30, disk: 10 << 30 };

/// What the Proxy asks for, in the terms of its entry.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    image: Wanted,
    firmware: Firmware,
    size: VmSize,
}

pub(super) async fn create(site: &Site, spec: &InstanceSpec) -> Result<Instance, OpError> {
    let order = order(&site.entry, spec)?;
    let there = match look::domain_of(site, &spec.mark).await? {
        Found::Foreign(what) => return Err(errors::conflict(&what)),
        Found::Ours(ours) if ours.1.state.is_active() => return Ok(look::instance(site, &ours.0, &ours.1, None)),
        Found::Ours(ours) => Some(ours),
        Found::Nothing => None,
    };
    let base = base(site, order.image).await?;
    let name = names::domain_name(&spec.mark);
    let mark = match there {
        Some(ours) => ours.0,
        None => define(site, spec, &name, order.firmware, order.size).await?,
    };
    seed(site, spec, &mark, &name).await?;
    disk(site, &name, &base, order.size.disk.max(base.virtual_size)).await?;
    start(site, spec).await
}

/// Permanent errors that name the field, before anything is touched.
fn order(entry: &LibvirtEntry, spec: &InstanceSpec) -> Result<Order, OpError> {
    let refused = |detail: String| Err(OpError::permanent(Reason::SpecInvalid, detail));
    let keys = || entry.images.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let asked = spec.placement.image.as_deref();
    let configured = match asked {
        Some(key) => entry.images.get_key_value(key),
        None if entry.images.len() == 1 => entry.images.first_key_value(),
        None => None,
    };
    let (called, url, sha256, format, firmware, policy, has_proxy) = match (configured, asked) {
        (Some((key, image)), _) => {
            let url = image.url.clone();
            (key.clone(), url, image.sha256, image.format, image.firmware, Policy::Configured, image.proxy)
        }
        (None, None) => {
            return refused(format!("`placement.image` is missing; provider `{}` has {}", entry.name, keys()));
        }
        (None, Some(text)) if text.contains("://") => {
            let url: Url = match text.parse() {
                Ok(url) => url,
                Err(error) => return refused(format!("`placement.image` is no URL: {error}")),
            };
            let policy = Policy::Placement(entry.allow_image_urls.clone());
            policy.first(&url)?;
            (names::key_of_url(text), url, None, None, Firmware::default(), policy, false)
        }
        (None, Some(key)) => {
            return refused(format!("`placement.image` is `{key}`; provider `{}` has {}", entry.name, keys()));
        }
    };
    if spec.user_data.is_none() && !has_proxy {
        let detail = format!(
            "nobody makes a proxy in this instance: image `{called}` is not said to have one (`proxy: true`), and there is no `cloudInit`"
        );
        return Err(OpError::permanent(Reason::CloudInitInvalid, detail));
    }
    let sizes = || entry.sizes.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let size = match (spec.placement.size.as_deref(), entry.sizes.len()) {
        (Some(key), _) => {
            let Some(size) = entry.sizes.get(key) else {
                let detail = format!("`placement.size` is `{key}`; provider `{}` has: {}", entry.name, sizes());
                return refused(detail);
            };
            *size
        }
        (None, 0) => SIZE,
        (None, 1) => entry.sizes.values().next().copied().unwrap_or(SIZE),
        (None, _) => {
            return refused(format!("`placement.size` is missing; provider `{}` has {}", entry.name, sizes()));
        }
    };
    let stem = match entry.flavor {
        Flavor::Kvm => format!("base-{called}"),
        Flavor::Kvm2 => format!("base-{}-{called}", entry.name),
    };
    let image = Wanted { stem, called, entry: entry.name.to_string(), url, sha256, format, policy };
    Ok(Order { image, firmware, size })
}

async fn base(site: &Site, wanted: Wanted) -> Result<Base, OpError> {
    let (entry, store) = (&site.entry, Arc::new(site.pool.clone()));
    let limits = fetch::Limits { idle: entry.image_idle_timeout, total: entry.image_timeout };
    let place = flights::Site { provider: entry.name.clone(), host: site.host.name.clone() };
    site.means.images.base(place, store, wanted, limits, site.limits.image_wait).await
}

/// The domain, with the mark, but not started. A definition that another call made meanwhile is taken.
async fn define(
    site: &Site,
    spec: &InstanceSpec,
    name: &str,
    firmware: Firmware,
    size: VmSize,
) -> Result<Mark, OpError> {
    let directory = site.pool.target_path().await?;
    let incarnation = Uuid::new_v4().simple().to_string();
    let mark = Mark {
        owner: spec.mark.clone(),
        incarnation,
        created_at: SystemTime::now(),
        port: spec.port,
        host: site.host.name.clone(),
        pool: site.host.pool.clone(),
    };
    let path = |file: String| format!("{}/{file}", directory.trim_end_matches('/'));
    let (disk_path, seed_path) = (path(names::overlay(name)), path(names::seed(name)));
    let text = xml::domain(&DomainSpec {
        name,
        uuid: Uuid::new_v4(),
        mark: &mark,
        virt_type: site.entry.virt_type,
        firmware,
        cpus: size.cpus,
        memory_bytes: size.memory,
        disk_path: &disk_path,
        seed_path: &seed_path,
        network: &site.host.network,
        mac: names::mac(&spec.mark, &mark.incarnation),
    })
    .map_err(|why| OpError::permanent(Reason::SpecInvalid, format!("cannot describe the domain: {why}")))?;
    tracing::trace!(domain = name, xml = text, "domain to be defined");
    let own = name.to_owned();
    let defined = site.link.call(LaneKind::Control, "virDomainDefineXML", site.limits.control, move |libvirt| {
        libvirt.rpc("virDomainDefineXML", &own, |c| c.define_domain_xml(&text)).map(drop)
    });
    match defined.await {
        Ok(()) => Ok(mark),
        // One of that name and another uuid (fault 43): whose it is decides.
        Err(error) if errors::is(&error, code::OPERATION_FAILED) => match look::domain_of(site, &spec.mark).await? {
            Found::Ours(ours) => Ok(ours.0),
            Found::Foreign(what) => Err(errors::conflict(&what)),
            Found::Nothing => Err(errors::of(site.about(), "define the domain", Effect::Possible, error)),
        },
        Err(error) => Err(errors::of(site.about(), "define the domain", Effect::Possible, error)),
    }
}

/// Whether a volume in the place of our disk or seed can be one that an earlier call left. libvirt knows no owners of
/// volumes: what we make there are ISO images, half written raw files, and qcow2 files over one of our bases. A file of
/// nothing holds nothing of anybody: a host that lost its power after a volume was made has those.
pub(super) fn may_be_ours(volume: &VolumeInfo) -> bool {
    if volume.name.ends_with(names::SEED_END) {
        return matches!(volume.format.as_deref(), Some("iso" | "raw"));
    }
    if volume.capacity == 0 {
        return true;
    }
    let file = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    volume.backing.as_ref().is_some_and(|backing| file(&backing.path).starts_with("base-"))
}

fn foreign(site: &Site, name: &str) -> OpError {
    errors::conflict(&format!("volume `{name}` in pool `{}` on host `{}`", site.host.pool, site.host.name))
}

/// What is there of an earlier call is made anew, as it may be half written: the domain has not run since.
async fn clear(site: &Site, name: &str) -> Result<(), OpError> {
    match site.pool.volume(name).await? {
        Some(volume) if may_be_ours(&volume) => site.pool.remove(name).await,
        Some(_) => Err(foreign(site, name)),
        None => Ok(()),
    }
}

async fn seed(site: &Site, spec: &InstanceSpec, mark: &Mark, domain: &str) -> Result<(), OpError> {
    let name = names::seed(domain);
    clear(site, &name).await?;
    let instance_id = format!("{}-{}", spec.mark.uid.as_str(), mark.incarnation);
    let meta_data = seed::meta_data(&instance_id, &seed::hostname(spec.mark.key.name()));
    let vendor_data = seed::vendor_data(site.entry.install_guest_agent, site.entry.vendor_data.as_deref());
    let image = seed::image(&Seed {
        user_data: spec.user_data.as_ref().map_or(&[], |bytes| &bytes.0),
        meta_data: &meta_data,
        vendor_data: vendor_data.as_deref(),
    })
    .map_err(|why| OpError::permanent(Reason::CloudInitInvalid, why.to_string()))?;
    match site.pool.write(&name, image.into()).await? {
        Created::New => Ok(()),
        Created::Exists => Err(OpError::transient(Reason::Busy, format!("volume `{name}` was made by another call"))),
    }
}

async fn disk(site: &Site, domain: &str, base: &Base, bytes: u64) -> Result<(), OpError> {
    let name = names::overlay(domain);
    clear(site, &name).await?;
    let text = xml::overlay_volume(&name, bytes, &base.path, base.format)
        .map_err(|why| OpError::permanent(Reason::SpecInvalid, format!("cannot describe the disk: {why}")))?;
    match site.pool.make(&name, text).await? {
        Created::New => Ok(()),
        Created::Exists => Err(OpError::transient(Reason::Busy, format!("volume `{name}` was made by another call"))),
    }
}

/// Starts what is ours, and says what it then is.
async fn start(site: &Site, spec: &InstanceSpec) -> Result<Instance, OpError> {
    let (mark, doing) = (spec.mark.clone(), "start the domain");
    // The disk was just made, but another call to the pool may have shown since that it hangs.
    site.link.would_reach_the_pool().map_err(|error| errors::of(site.about(), doing, Effect::None, error))?;
    let started = site.link.call(LaneKind::Control, "virDomainCreateWithFlags", site.limits.start, move |libvirt| {
        let Found::Ours(ours) = look::find(libvirt, &mark)? else { return Ok(None) };
        let (uuid, name) = (ours.1.facts.uuid, ours.1.facts.name);
        let domain = libvirt.rpc("virDomainLookupByUUID", &name, |c| c.lookup_domain_by_uuid(uuid))?;
        // Never on from a memory that somebody saved: the disk is a new one.
        let boot = sys::VIR_DOMAIN_START_FORCE_BOOT;
        match libvirt.rpc("virDomainCreateWithFlags", &name, |_| domain.create_with_flags(boot)) {
            // Another call was quicker.
            Err(error) if error.code == code::OPERATION_INVALID && error.message.contains("already running") => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        match look::find(libvirt, &mark)? {
            Found::Ours(ours) => Ok(Some(ours)),
            _ => Ok(None),
        }
    });
    match started.await.map_err(|error| errors::of(site.about(), doing, Effect::Possible, error))? {
        Some(ours) => {
            let (mark, seen): (Mark, Seen) = *ours;
            Ok(look::instance(site, &mark, &seen, None))
        }
        None => Err(OpError::transient(
            Reason::Busy,
            format!("the domain of Proxy {} went while it was made", spec.mark.key),
        )),
    }
}
