//! What an upload of megabytes and gigabytes shows: memory, and keys that change under it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use rand::RngExt as _;

use crate::conforms::blank;
use crate::kit::operator::{self, Operator, Site};
use crate::kit::{Flavor, Host, Image, Lab, Server, entry, eventually};

/// Both hosts share two cores with whatever else runs; an operator without optimization encrypts 10 MiB a second.
const AMPLE: Duration = Duration::from_mins(20);

const MIB: u64 = 1 << 20;

const LARGE: u64 = 2 << 30;

/// What the operator may take with its program, in MiB (its limit in a cluster is twice that).
const MOST: u64 = 64;

/// Of which so much are the program and its libraries, in a release. Without optimization they alone are 75.
const PROGRAM: u64 = 24;

const KEYED: u64 = 200 * 1000 * 1000;

/// A key each so many bytes of those, in sshd's words.
const KEY_EACH: &str = "1M";

#[test]
#[ignore = "minutes; run by `make lab-long`"]
fn an_image_of_two_gigabytes_on_its_way_to_two_hosts_leaves_the_operator_below_64_mebibytes() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let hosts: Vec<_> = lab.hosts().iter().collect();
    let dir = tempfile::tempdir().unwrap();
    let image = grown(dir.path(), |file| file.set_len(LARGE));
    let files = Server::with(&[&image]);
    let site = site(&hosts, &image, &files);
    let operator = site.start(lab.host(0));
    println!("at rest: {:?} MiB", Memory::of(&operator));
    let begun = Instant::now();
    for host in &hosts {
        let zone = host.name.to_lowercase();
        site.apply(&zone, &format!("provider: transfers, placement: {{zone: {zone}}}"));
    }
    // What is in memory for good is no part of the program.
    let mut anonymous = 0;
    let mut together = false;
    eventually(AMPLE, "both pools have the image", || {
        anonymous = anonymous.max(Memory::of(&operator).anonymous);
        let is_there = |host: &&Host| base(host).with_extension("qcow2.ok").exists();
        let bytes = |host: &&Host| fs::metadata(base(host)).map_or(0, |file| file.len());
        together |= hosts.iter().all(|host| bytes(host) > LARGE / 4 && !is_there(host));
        hosts.iter().all(is_there).then_some(())
    });
    let Memory { peak, file, .. } = Memory::of(&operator);
    let took = begun.elapsed();
    println!(
        "RESULT upload hosts=2 gib=2 seconds={} peak_mib={peak} anonymous_mib={anonymous} file_mib={file}",
        took.as_secs()
    );
    assert!(together, "they were not under way at once");
    assert!(hosts.iter().all(|host| fs::metadata(base(host)).unwrap().len() == LARGE));
    if operator::is_release() {
        assert!(peak < MOST, "{peak} MiB");
    } else {
        assert!(anonymous < MOST - PROGRAM, "{anonymous} MiB beside the program");
    }
}

#[test]
fn an_image_arrives_whole_through_an_ssh_connection_that_changes_its_keys_each_megabyte() {
    let Some(lab) = Lab::own(1) else { return };
    let host = lab.host(0);
    let config = lab.dir().join(&host.name).join("ssh/sshd_config");
    let text = fs::read_to_string(&config).unwrap().replace("LogLevel VERBOSE", "LogLevel DEBUG");
    fs::write(&config, format!("{text}RekeyLimit {KEY_EACH}\n")).unwrap();
    for verb in ["kill-sshd", "start-sshd"] {
        host.breaks(verb, &[]);
    }
    let dir = tempfile::tempdir().unwrap();
    let image = grown(dir.path(), |file| {
        let mut random = rand::rng();
        let mut piece = vec![0; 1 << 16];
        let mut left = KEYED - file.metadata()?.len();
        while left > 0 {
            random.fill(&mut piece[..]);
            let most = usize::try_from(left.min(piece.len() as u64)).unwrap();
            file.write_all(&piece[..most])?;
            left -= most as u64;
        }
        Ok(())
    });
    let files = Server::with(&[&image]);
    let site = site(&[host], &image, &files);
    let _operator = site.start(host);
    let begun = Instant::now();
    site.apply("a", "provider: transfers");
    eventually(AMPLE, "the pool has the image", || base(host).with_extension("qcow2.ok").exists().then_some(()));
    println!("200 MB after {:?}", begun.elapsed());
    assert_eq!(digest(&base(host)), image.sha256);
    let log = fs::read_to_string(host.log.join("sshd.log")).unwrap();
    let changes = log.matches("rekeying").count();
    println!("{changes} changes of keys");
    assert!(changes > 100, "the keys changed {changes} times only");
}

/// The entry `transfers` with this one image, whose machines need nothing.
fn site(hosts: &[&Host], image: &Image, files: &Server) -> Site {
    let entry = entry("transfers", Flavor::Kvm, hosts, &[image], &files.url())
        .replace("format: qcow2}", "format: qcow2, proxy: true, firmware: bios}")
        .replace("memory: 256Mi, disk: 2Gi", "memory: 64Mi, disk: 64Mi");
    Site::new(&entry)
}

/// A disk that boots nothing, with something behind its end.
fn grown(dir: &Path, grow: impl FnOnce(&mut File) -> io::Result<()>) -> Image {
    let blank = blank(dir);
    let mut file = File::options().append(true).open(&blank.path).unwrap();
    grow(&mut file).unwrap();
    Image { sha256: digest(&blank.path), ..blank }
}

/// In hexadecimal; by a program, as ours is not optimized here.
fn digest(file: &Path) -> String {
    let output = std::process::Command::new("sha256sum").arg(file).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn base(host: &Host) -> std::path::PathBuf {
    host.pool_files.join("base-blank.qcow2")
}

/// Of a process, in MiB.
#[derive(Debug)]
struct Memory {
    /// The most that it ever had.
    peak: u64,
    anonymous: u64,
    /// Pages of the program and its libraries.
    file: u64,
}

impl Memory {
    fn of(operator: &Operator<'_>) -> Self {
        let text = fs::read_to_string(format!("/proc/{}/status", operator.pid())).unwrap();
        let word = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap().div_ceil(MIB / 1024)
        };
        Self { peak: word("VmHWM:"), anonymous: word("RssAnon:"), file: word("RssFile:") }
    }
}
