//! The whole life of a machine under the real binary: from a manifest to a lease, and away.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::conforms::blank;
use crate::kit::operator::{Site, through};
use crate::kit::{Flavor, Host, Lab, Server, entry, eventually, image};

mod debian;
mod kills;
mod restarts;
mod stalled;

/// A guest takes 8 s on an idle machine of two cores, and much longer on one that builds.
const AMPLE: Duration = Duration::from_mins(3);

#[test]
fn manifests_of_kvm_and_kvm2_become_leased_machines_and_leave_nothing_but_their_bases() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let tiny = image("tiny");
    let files = Server::with(&[&tiny]);
    let hosts: Vec<_> = lab.hosts().iter().collect();
    let entries = entry("shared", Flavor::Kvm, &hosts, &[&tiny], &files.url())
        + &entry("own", Flavor::Kvm2, &hosts, &[&tiny], &files.url());
    let site = Site::new(&entries);
    let (first, begun) = (lab.host(0), Instant::now());
    let operator = site.start(first);
    // Both on one host, and so in one pool.
    let zone = first.name.to_lowercase();
    for (name, provider) in [("a", "shared"), ("b", "own")] {
        let placement = format!("placement: {{image: tiny, size: small, zone: {zone}}}");
        site.apply(name, &format!("provider: {provider}, {placement}, cloudInit: {{inline: \"#cloud-config\\n\"}}"));
    }
    for (name, provider) in [("a", "kvm://shared/"), ("b", "kvm2://own/")] {
        let proxy = operator.becomes_ready(AMPLE, name);
        println!("{name} is Ready after {:?}: {proxy}", begun.elapsed());
        let listed = first.virsh(&["list", "--name"]);
        assert!(listed.contains(&format!("px-crawl-{name}-")), "{provider}: {listed}");
    }
    let to = format!("{}:{}", first.outside, site.echo);
    let guests = first.guests.trim_end_matches("0/24");
    for name in ["a", "b"] {
        let (host, port) = operator.lease(name);
        assert!(host.starts_with(guests), "{host} is not a guest's address");
        let (status, answer) = through((&host, port), &to, "/echo").expect("an answer through the leased machine");
        assert_eq!(status, 200, "CONNECT through {name}");
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
        assert!(answer.contains(&format!("x-egress-address: {host}")), "it left from another address: {answer}");
    }
    println!("leased after {:?}", begun.elapsed());

    for name in ["a", "b"] {
        site.remove(name);
    }
    eventually(AMPLE, "the Proxies go", || operator.is_empty().then_some(()));
    println!("gone after {:?}", begun.elapsed());
    assert_eq!(domains(first), [""; 0]);
    let bases = ["base-own-tiny.qcow2", "base-own-tiny.qcow2.ok", "base-tiny.qcow2", "base-tiny.qcow2.ok"];
    assert_eq!(volumes(first), bases);
    assert_eq!((domains(lab.host(1)), volumes(lab.host(1))), (vec![], vec![]), "the other host was not asked for");
}

/// One host, and an entry `quick` of it whose guests run at once and never boot.
struct Quick {
    host: &'static Host,
    entry: String,
    site: Site,
    _files: Server,
    _dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Quick {
    /// `None` where there can be no lab.
    fn new() -> Option<Self> {
        let lab = Lab::up(1)?;
        let alone = lab.alone();
        let host = lab.host(0);
        let dir = tempfile::tempdir().unwrap();
        let image = blank(dir.path());
        let files = Server::with(&[&image]);
        let entry = entry("quick", Flavor::Kvm, &[host], &[&image], &files.url())
            .replace("format: qcow2}", "format: qcow2, proxy: true, firmware: bios}")
            .replace("memory: 256Mi, disk: 2Gi", "memory: 64Mi, disk: 64Mi");
        Some(Self { host, site: Site::new(&entry), entry, _files: files, _dir: dir, _alone: alone })
    }
}

/// That each of these Proxies has one domain, which runs, with one overlay and one seed, and that there is nothing else.
fn are_whole(host: &Host, names: &[&str]) -> bool {
    let (all, running) = (domains(host), words(&host.virsh(&["list", "--name"])));
    let of = |name: &str| all.iter().filter(|domain| domain.starts_with(&format!("px-crawl-{name}-"))).count();
    let files = volumes(host).into_iter().filter(|file| !file.starts_with("base-")).collect::<Vec<_>>();
    let mut wanted: Vec<_> =
        all.iter().flat_map(|domain| [format!("{domain}-seed.iso"), format!("{domain}.qcow2")]).collect();
    wanted.sort();
    all.len() == names.len() && running.len() == all.len() && names.iter().all(|name| of(name) == 1) && files == wanted
}

/// That a host has nothing but its base.
fn is_bare(host: &Host) -> bool {
    domains(host).is_empty() && volumes(host).iter().all(|file| file.starts_with("base-"))
}

fn domains(host: &Host) -> Vec<String> {
    words(&host.virsh(&["list", "--all", "--name"]))
}

/// What is in the pool's folder, past libvirt.
fn volumes(host: &Host) -> Vec<String> {
    let files = std::fs::read_dir(&host.pool_files).unwrap().flatten();
    let mut names: Vec<_> = files.map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
