//! Where the programs of the plane are: in `KUBEBUILDER_ASSETS`, or where `scripts/kube-tools.sh` puts them.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The path of a program. One that is missing fails the test with the command that builds it.
pub(crate) fn find(name: &str) -> PathBuf {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let built = built();
    // Packaged assets have no kube-controller-manager.
    let places = assets.iter().chain([&built]);
    places.map(|place| place.join(name)).find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("{name} is missing in {}: run scripts/kube-tools.sh, which builds it once", built.display())
    })
}

/// The same place as in `scripts/kube-tools.sh`: outside of the checkout, named after the versions.
fn built() -> PathBuf {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube");
    let mut hash = Sha256::new();
    for sums in ["go.sum", "etcd/go.sum"] {
        hash.update(std::fs::read(modules.join(sums)).expect("the modules are in the checkout"));
    }
    let key: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    cache.expect("HOME is set").join("egress-proxies-operator/kube").join(key)
}
