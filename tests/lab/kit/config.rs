//! The entry of a providers config that names hosts of the lab.

use super::{Host, Image};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Flavor {
    Kvm,
    Kvm2,
}

/// YAML: one item of `providers`, indented for it. The images are asked for below `url` (a [`super::Server`]'s), each by
/// its file's name; instances are of the size `small`.
pub(crate) fn entry(name: &str, flavor: Flavor, hosts: &[&Host], images: &[&Image], url: &str) -> String {
    let kind = match flavor {
        Flavor::Kvm => "kvm",
        Flavor::Kvm2 => "kvm2",
    };
    let first = hosts[0];
    let (user, key, known) = (&first.user, first.key_file.display(), first.known_hosts.display());
    let hosts = hosts.iter().map(|host| {
        let Host { name, address, port, pool, network, socket, .. } = host;
        format!(
            "      - {{name: {}, address: \"{address}:{port}\", pool: {pool}, network: {network}, socket: {socket}}}\n",
            name.to_lowercase()
        )
    });
    let images = images.iter().map(|image| {
        let file = image.path.file_name().unwrap().to_str().unwrap();
        let (key, sha256) = (image.key, &image.sha256);
        format!("      {key}: {{url: \"{url}/{file}\", sha256: {sha256}, format: qcow2}}\n")
    });
    format!(
        "  - name: {name}\n    type: {kind}\n    \
         ssh: {{user: {user}, keyFile: {key}, knownHostsFile: {known}}}\n    \
         hosts:\n{}    virtType: qemu\n    images:\n{}    \
         sizes: {{small: {{cpus: 1, memory: 256Mi, disk: 2Gi}}}}\n",
        hosts.collect::<String>(),
        images.collect::<String>(),
    )
}
