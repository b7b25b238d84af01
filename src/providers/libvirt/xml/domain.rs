//! The domain of an instance.

use uuid::Uuid;

use super::XmlError;
use super::write::{Out, with};
use crate::config::providers::{Firmware, VirtType};
use crate::providers::libvirt::addresses::Mac;
use crate::providers::libvirt::metadata::{self, Mark};

/// What a domain is made of. Paths are those that the pool tells, on the host.
#[derive(Debug, Clone)]
pub struct DomainSpec<'a> {
    pub name: &'a str,
    pub uuid: Uuid,
    pub mark: &'a Mark,
    pub virt_type: VirtType,
    pub firmware: Firmware,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// The overlay, qcow2.
    pub disk_path: &'a str,
    pub seed_path: &'a str,
    pub network: &'a str,
    pub mac: Mac,
}

/// The XML to define.
///
/// Disks are files by their paths: a disk by pool and volume gets no `AppArmor` rule (fault 37). No graphics, so no port
/// is opened on the host.
///
/// # Errors
/// [`XmlError::Forbidden`] for a text that XML cannot hold, and those of [`metadata::write`].
pub fn domain(spec: &DomainSpec<'_>) -> Result<String, XmlError> {
    let virt_type = match spec.virt_type {
        VirtType::Kvm => "kvm",
        VirtType::Qemu => "qemu",
    };
    let kibibytes = spec.memory_bytes.div_ceil(1024).to_string();
    with(|out| {
        out.element("domain", &[("type", virt_type)], |out| {
            out.text("name", &[], spec.name)?;
            out.text("uuid", &[], &spec.uuid.to_string())?;
            out.element("metadata", &[], |out| metadata::write_into(spec.mark, out))?;
            out.text("memory", &[("unit", "KiB")], &kibibytes)?;
            out.text("vcpu", &[], &spec.cpus.to_string())?;
            os(out, spec.firmware)?;
            machine(out, spec.virt_type)?;
            out.empty("clock", &[("offset", "utc")])?;
            out.text("on_poweroff", &[], "destroy")?;
            out.text("on_reboot", &[], "restart")?;
            out.text("on_crash", &[], "destroy")?;
            out.element("devices", &[], |out| devices(out, spec))
        })
    })
}

fn os(out: &mut Out, firmware: Firmware) -> Result<(), XmlError> {
    let (attributes, uefi): (&[_], _) = match firmware {
        Firmware::Uefi => (&[("firmware", "efi")], true),
        Firmware::Bios => (&[], false),
    };
    out.element("os", attributes, |out| {
        out.text("type", &[("arch", "x86_64"), ("machine", "q35")], "hvm")?;
        if uefi {
            // Else libvirt chooses a firmware with Microsoft's keys, which boots no unsigned image (fault 44).
            out.element("firmware", &[], |out| out.empty("feature", &[("enabled", "no"), ("name", "secure-boot")]))?;
        }
        out.empty("boot", &[("dev", "hd")])
    })
}

fn machine(out: &mut Out, virt_type: VirtType) -> Result<(), XmlError> {
    out.element("features", &[], |out| {
        out.empty("acpi", &[])?;
        out.empty("apic", &[])?;
        match virt_type {
            VirtType::Kvm => Ok(()),
            // QEMU's own size of the cache is a quarter of the host's memory for each machine.
            VirtType::Qemu => out.element("tcg", &[], |out| out.text("tb-cache", &[("unit", "MiB")], "128")),
        }
    })?;
    match virt_type {
        VirtType::Kvm => out.empty("cpu", &[("mode", "host-passthrough"), ("check", "none")]),
        VirtType::Qemu => Ok(()),
    }
}

fn devices(out: &mut Out, spec: &DomainSpec<'_>) -> Result<(), XmlError> {
    out.element("disk", &[("type", "file"), ("device", "disk")], |out| {
        out.empty("driver", &[("name", "qemu"), ("type", "qcow2"), ("discard", "unmap")])?;
        out.empty("source", &[("file", spec.disk_path)])?;
        out.empty("target", &[("dev", "vda"), ("bus", "virtio")])
    })?;
    // Not SATA: Debian's cloud kernel has no AHCI, and would never see the seed.
    out.empty("controller", &[("type", "scsi"), ("index", "0"), ("model", "virtio-scsi")])?;
    out.element("disk", &[("type", "file"), ("device", "cdrom")], |out| {
        out.empty("driver", &[("name", "qemu"), ("type", "raw")])?;
        out.empty("source", &[("file", spec.seed_path)])?;
        out.empty("target", &[("dev", "sda"), ("bus", "scsi")])?;
        out.empty("readonly", &[])
    })?;
    out.element("interface", &[("type", "network")], |out| {
        out.empty("mac", &[("address", &spec.mac.to_string())])?;
        out.empty("source", &[("network", spec.network)])?;
        out.empty("model", &[("type", "virtio")])
    })?;
    out.element("serial", &[("type", "pty")], |out| out.empty("target", &[("port", "0")]))?;
    out.element("console", &[("type", "pty")], |out| out.empty("target", &[("type", "serial"), ("port", "0")]))?;
    out.element("channel", &[("type", "unix")], |out| {
        out.empty("target", &[("type", "virtio"), ("name", "org.qemu.guest_agent.0")])
    })?;
    out.element("rng", &[("model", "virtio")], |out| out.text("backend", &[("model", "random")], "/dev/urandom"))?;
    out.empty("memballoon", &[("model", "virtio")])
}
