//! The guests' disk images.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use super::script;

/// A qcow2 file that boots by UEFI.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The key in a providers config.
    pub(crate) key: &'static str,
    pub(crate) path: PathBuf,
    /// In hexadecimal.
    pub(crate) sha256: String,
}

/// `tiny` (its proxy listens on 3128, or as user-data says) or `debian` (cloud-init and Squid). Built once, in a minute
/// or two, and cached outside of the checkout.
pub(crate) fn image(key: &'static str) -> Image {
    let output = script("image.sh").arg(key).output().unwrap();
    assert!(output.status.success(), "image.sh {key}: {}", String::from_utf8_lossy(&output.stderr));
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    Image { key, sha256: sha256(&path), path }
}

/// A disk of 1 MiB that boots nothing.
pub(crate) fn blank(dir: &Path) -> Image {
    let path = dir.join("blank.qcow2");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("1M").status();
    assert!(made.unwrap().success());
    Image { key: "blank", sha256: sha256(&path), path }
}

/// Of a small file.
pub(crate) fn sha256(path: &Path) -> String {
    Sha256::digest(std::fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}
