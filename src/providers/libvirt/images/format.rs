//! What an image is, by its first bytes; never by its name or its content type (fault 35). Pure.

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;

use crate::config::providers::ImageFormat;

/// So many bytes from the start tell everything that is told here: an ISO's mark is at 32769.
pub const HEAD: usize = 64 * 1024;

/// A disk image that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recognised {
    pub format: ImageFormat,
    /// Bytes of the disk that a guest sees.
    pub virtual_size: u64,
}

/// Reads the head of a file of `size` bytes. `wanted`: what the configuration says that it is.
///
/// Errors: permanent `ImageFormatUnsupported`, with what it is and what to do.
pub fn recognise(head: &[u8], size: u64, wanted: Option<ImageFormat>, called: &str) -> Result<Recognised, OpError> {
    let refuse = |what: &str| {
        Err(OpError::permanent(
            Reason::ImageFormatUnsupported,
            format!("what the source gives for image `{called}` {what}"),
        ))
    };
    let seen = match look(head) {
        Look::Qcow2 => match qcow2(head) {
            Ok(virtual_size) => Recognised { format: ImageFormat::Qcow2, virtual_size },
            Err(what) => return refuse(what),
        },
        Look::Disk => Recognised { format: ImageFormat::Raw, virtual_size: size },
        // Any bytes may be a raw disk; somebody who says so is believed.
        Look::Unknown if wanted == Some(ImageFormat::Raw) => {
            Recognised { format: ImageFormat::Raw, virtual_size: size }
        }
        Look::Unknown => {
            return refuse(
                "is no disk image that is known: it begins like neither qcow2 nor a partitioned disk; if it is a raw \
                 disk, say `format: raw`",
            );
        }
        Look::Other(what) => return refuse(what),
    };
    match wanted {
        Some(wanted) if wanted != seen.format => refuse(&format!(
            "is {}, and the entry says {}: correct the entry's `format` or leave it out",
            seen.format.as_str(),
            wanted.as_str()
        )),
        _ => Ok(seen),
    }
}

enum Look {
    Qcow2,
    /// With a partition table.
    Disk,
    Other(&'static str),
    Unknown,
}

const COMPRESSED: &str = "is compressed: give the URL of an image that is not, or unpack it on a server of your own";
const CONVERT: &str = "is a disk of another hypervisor: convert it with `qemu-img convert -O qcow2`";

/// A place, the bytes there, and what they mean.
const OTHERS: [(usize, &[u8], &str); 18] = [
    (0, b"\xfd7zXZ\0", COMPRESSED),
    (0, b"\x1f\x8b", COMPRESSED),
    (0, b"\x28\xb5\x2f\xfd", COMPRESSED),
    (0, b"BZh", COMPRESSED),
    (0, b"\x04\x22\x4d\x18", COMPRESSED),
    (0, b"7z\xbc\xaf\x27\x1c", COMPRESSED),
    (0, b"PK\x03\x04", "is a zip archive: give the URL of the image that is in it"),
    (257, b"ustar", "is a tar archive (an OVA is one, too): give the URL of the image that is in it"),
    (0, b"KDMV", CONVERT),
    (0, b"# Disk DescriptorFile", CONVERT),
    (0, b"conectix", CONVERT),
    (0, b"vhdxfile", CONVERT),
    (64, b"\x7f\x10\xda\xbe", CONVERT),
    (0, b"QED\0", CONVERT),
    (0, b"LUKS\xba\xbe", "is encrypted: give an image that is not"),
    (0, b"hsqs", "is a file system without a disk around it: give an image of a whole disk"),
    (0, b"\x7fELF", "is a program: give an image of a whole disk"),
    (0, b"QFI", "is an early qcow image: convert it with `qemu-img convert -O qcow2`"),
];

fn look(head: &[u8]) -> Look {
    let at = |place: usize, bytes: &[u8]| head.get(place..).is_some_and(|rest| rest.starts_with(bytes));
    if at(0, b"QFI\xfb") {
        return Look::Qcow2;
    }
    if let Some((_, _, what)) = OTHERS.iter().find(|(place, bytes, _)| at(*place, bytes)) {
        return Look::Other(what);
    }
    // Before the disks: many ISO images have a partition table as well, and none boots into an installed system.
    if at(32_769, b"CD001") {
        return Look::Other("is a CD image: give a cloud image, which is a disk with an installed system");
    }
    if at(510, &[0x55, 0xaa]) || at(512, b"EFI PART") || at(4096, b"EFI PART") {
        return Look::Disk;
    }
    let start = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if start.first() == Some(&b'<') {
        return Look::Other("is a web page or XML: give the URL of the image itself");
    }
    let sample = &head[..head.len().min(512)];
    if !sample.is_empty() && sample.iter().all(|&byte| (0x20..0x7f).contains(&byte) || byte.is_ascii_whitespace()) {
        return Look::Other("is text: give the URL of the image itself");
    }
    Look::Unknown
}

/// The virtual size, from a header of version 2 or 3 (`docs/interop/qcow2.txt` of QEMU).
fn qcow2(head: &[u8]) -> Result<u64, &'static str> {
    const CUT: &str = "is a qcow2 image without a whole header";
    let u32_at = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes).ok_or(CUT);
    let u64_at = |at: usize| head.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes).ok_or(CUT);
    let version = u32_at(4)?;
    if !(2..=3).contains(&version) {
        return Err("is a qcow image of a version other than 2 or 3: convert it with `qemu-img convert -O qcow2`");
    }
    if u64_at(8)? != 0 {
        return Err("is an overlay, a qcow2 image with a backing file: flatten it with `qemu-img convert -O qcow2`");
    }
    if u32_at(32)? != 0 {
        return Err("is an encrypted qcow2 image: give one that is not");
    }
    let virtual_size = u64_at(24)?;
    if virtual_size == 0 {
        return Err("is a qcow2 image of an empty disk");
    }
    if version == 3 {
        let incompatible = u64_at(72)?;
        if incompatible & 0b100 != 0 {
            return Err("is a qcow2 image with an external data file: flatten it with `qemu-img convert -O qcow2`");
        }
        if incompatible & 0b10 != 0 {
            return Err("is a qcow2 image that is marked as corrupt");
        }
        if incompatible >> 5 != 0 {
            return Err(
                "is a qcow2 image with features that are not known: rewrite it with `qemu-img convert -O qcow2`",
            );
        }
    }
    Ok(virtual_size)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The header of a qcow2 image, version 3, and nothing behind it.
    pub(crate) fn qcow2_head(virtual_size: u64) -> Vec<u8> {
        let mut head = vec![0; 104];
        head[..4].copy_from_slice(b"QFI\xfb");
        head[7] = 3;
        head[23] = 16;
        head[24..32].copy_from_slice(&virtual_size.to_be_bytes());
        head[103] = 104;
        head
    }

    fn with(mut head: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        head.resize(head.len().max(at + bytes.len()), 0);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        head
    }

    #[track_caller]
    fn refused(head: &[u8], wanted: Option<ImageFormat>, words: &str) {
        let error = recognise(head, 1 << 20, wanted, "x").unwrap_err();
        assert_eq!(error.reason, Reason::ImageFormatUnsupported);
        assert!(error.detail.contains(words), "{} has no `{words}`", error.detail);
    }

    #[test]
    fn qcow2_and_disks_are_known_by_their_first_bytes() {
        let check = |head: &[u8], wanted, format, virtual_size| {
            assert_eq!(recognise(head, 1 << 20, wanted, "x").unwrap(), Recognised { format, virtual_size });
        };
        let (qcow2, raw) = (ImageFormat::Qcow2, ImageFormat::Raw);
        check(&qcow2_head(3 << 30), None, qcow2, 3 << 30);
        check(&qcow2_head(3 << 30), Some(qcow2), qcow2, 3 << 30);
        check(&with(qcow2_head(5), 4, &[0, 0, 0, 2]), None, qcow2, 5);
        check(&with(qcow2_head(5), 72, &0b1_1001_u64.to_be_bytes()), None, qcow2, 5);
        check(&with(vec![0; 1024], 510, &[0x55, 0xaa]), None, raw, 1 << 20);
        check(&with(vec![0; 1024], 512, b"EFI PART"), Some(raw), raw, 1 << 20);
        check(&with(vec![0; 8192], 4096, b"EFI PART"), None, raw, 1 << 20);
        check(&[7; 1024], Some(raw), raw, 1 << 20);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_it_is() {
        refused(&[7; 1024], None, "no disk image");
        refused(&qcow2_head(0), None, "empty disk");
        refused(&qcow2_head(5)[..20], None, "whole header");
        refused(&with(qcow2_head(5), 15, &[1]), None, "backing file");
        refused(&with(qcow2_head(5), 35, &[2]), None, "encrypted");
        refused(&with(qcow2_head(5), 79, &[4]), None, "external data file");
        refused(&with(qcow2_head(5), 79, &[2]), None, "corrupt");
        refused(&with(qcow2_head(5), 79, &[0x20]), None, "not known");
        refused(&with(qcow2_head(5), 4, &[0, 0, 0, 4]), None, "version");
        for magic in [&b"\xfd7zXZ\0"[..], b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9"] {
            refused(&with(vec![0; 600], 0, magic), None, "compressed");
            refused(&with(vec![0; 600], 0, magic), Some(ImageFormat::Raw), "compressed");
        }
        refused(b"PK\x03\x04 and so on", None, "zip");
        refused(&with(with(vec![0; 600], 510, &[0x55, 0xaa]), 32_769, b"CD001"), None, "CD image");
        refused(b"KDMV0000", None, "another hypervisor");
        refused(b"vhdxfile", None, "another hypervisor");
        refused(b"conectix", None, "another hypervisor");
        refused(b"\n <!DOCTYPE html><html>", None, "web page");
        refused(b"d41d8cd98f00b204e9800998ecf8427e  debian.qcow2\n", None, "text");
        refused(b"", None, "no disk image");
    }

    #[test]
    fn a_configured_format_that_disagrees_is_refused() {
        refused(&qcow2_head(5), Some(ImageFormat::Raw), "is qcow2, and the entry says raw");
        refused(&with(vec![0; 1024], 510, &[0x55, 0xaa]), Some(ImageFormat::Qcow2), "is raw, and the entry says qcow2");
    }
}
