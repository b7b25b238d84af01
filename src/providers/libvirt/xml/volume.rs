//! What volumes we ask a pool for.

use super::XmlError;
use super::write::{Out, with};
use crate::config::providers::ImageFormat;

/// A qcow2 overlay over a base. The base's format is always said: without it libvirt writes down `raw` (fault 35).
///
/// # Errors
/// [`XmlError::Forbidden`] for names and paths that XML cannot hold.
pub fn overlay_volume(
    name: &str,
    capacity_bytes: u64,
    backing_path: &str,
    backing_format: ImageFormat,
) -> Result<String, XmlError> {
    let capacity = capacity_bytes.to_string();
    with(|out| {
        out.element("volume", &[], |out| {
            out.text("name", &[], name)?;
            out.text("capacity", &[("unit", "bytes")], &capacity)?;
            out.text("allocation", &[("unit", "bytes")], "0")?;
            target(out, ImageFormat::Qcow2)?;
            out.element("backingStore", &[], |out| {
                out.text("path", &[], backing_path)?;
                out.empty("format", &[("type", backing_format.as_str())])
            })
        })
    })
}

/// A volume to upload into. `allocation_bytes` is what the pool shall reserve at once; 0 makes it grow.
///
/// # Errors
/// [`XmlError::Forbidden`] for a name that XML cannot hold.
pub fn volume(name: &str, format: ImageFormat, capacity_bytes: u64, allocation_bytes: u64) -> Result<String, XmlError> {
    let (capacity, allocation) = (capacity_bytes.to_string(), allocation_bytes.to_string());
    with(|out| {
        out.element("volume", &[], |out| {
            out.text("name", &[], name)?;
            out.text("capacity", &[("unit", "bytes")], &capacity)?;
            out.text("allocation", &[("unit", "bytes")], &allocation)?;
            target(out, format)
        })
    })
}

fn target(out: &mut Out, format: ImageFormat) -> Result<(), XmlError> {
    out.element("target", &[], |out| {
        out.empty("format", &[("type", format.as_str())])?;
        match format {
            // The default is that of QEMU 0.10.
            ImageFormat::Qcow2 => out.text("compat", &[], "1.1"),
            ImageFormat::Raw => Ok(()),
        }
    })
}
