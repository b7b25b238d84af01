//! `make test-hypervisor`, on a host of the lab in the place of somebody's own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::{Host, Image, Lab, Server, image, operator, within};

/// A guest takes 8 s on an idle machine of two cores, and much longer on one that builds.
const AMPLE: Duration = Duration::from_mins(5);

fn script(host: &Host, files: &Server, image: &Image) -> Command {
    let root = env!("CARGO_MANIFEST_DIR");
    // A test that runs in a background of a shell has the signal ignored.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "scripts/hypervisor.sh"])
        .current_dir(root)
        .env("HYPERVISOR_ADDRESS", format!("{}:{}", host.address, host.port))
        .env("HYPERVISOR_USER", &host.user)
        .env("HYPERVISOR_KEY_FILE", &host.key_file)
        .env("HYPERVISOR_KNOWN_HOSTS", &host.known_hosts)
        .env("HYPERVISOR_IMAGE_URL", format!("{}/{}", files.url(), image.path.file_name().unwrap().display()))
        .env("HYPERVISOR_IMAGE_SHA256", &image.sha256)
        .env("HYPERVISOR_VIRT_TYPE", "qemu")
        .env("HYPERVISOR_MEMORY", "256Mi")
        .env("HYPERVISOR_OPERATOR", operator::binary())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

fn is_bare(host: &Host) -> bool {
    host.virsh(&["list", "--all", "--name"]).trim().is_empty()
        && fs::read_dir(&host.pool_files).unwrap().next().is_none()
}

#[test]
fn a_life_on_somebodys_host_is_gone_through_told_call_by_call_and_leaves_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (host, tiny) = (lab.host(0), image("tiny"));
    let files = Server::with(&[&tiny]);
    let mut command = script(host, &files, &tiny);
    let output = within(AMPLE, "it ends", move || command.output().unwrap());
    let words = String::from_utf8_lossy(&output.stdout);
    println!("{words}");
    assert!(output.status.success(), "{}", output.status);
    for told in ["Ready", "HTTP/1.1 204", "virDomainCreateWithFlags ", "virDomainUndefineFlags", "nothing"] {
        assert!(words.contains(told), "nothing of {told}");
    }
    assert!(is_bare(host));
}

#[test]
#[ignore = "a minute or more; run by `make lab-long`"]
fn the_squid_that_it_makes_by_itself_serves_on_a_debian() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (host, debian) = (lab.host(0), image("debian"));
    let files = Server::with(&[&debian]);
    let mut command = script(host, &files, &debian);
    command.env("HYPERVISOR_MEMORY", "1Gi");
    let output = within(4 * AMPLE, "it ends", move || command.output().unwrap());
    let words = String::from_utf8_lossy(&output.stdout);
    println!("{words}");
    assert!(output.status.success() && words.contains("HTTP/1.1 204"), "{}", output.status);
    assert!(is_bare(host));
}

#[test]
fn a_life_on_somebodys_host_that_is_interrupted_in_its_boot_leaves_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (host, tiny) = (lab.host(0), image("tiny"));
    let files = Server::with(&[&tiny]);
    let mut child = script(host, &files, &tiny).env("HYPERVISOR_TYPE", "kvm2").spawn().unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let lines = BufReader::new(child.stdout.take().unwrap());
    let words = within(AMPLE, "it ends", move || {
        let mut words = String::new();
        for line in lines.lines().map_while(Result::ok) {
            // The machine is there, and boots.
            if line.contains("has no address yet") {
                kill(pid, Signal::SIGINT).unwrap();
            }
            words += &(line + "\n");
        }
        words
    });
    println!("{words}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(words.contains("virDomainCreateWithFlags ") && !words.contains("Leased"), "it was not in its boot");
    assert!(is_bare(host));
}

#[test]
fn without_the_name_of_a_host_it_says_what_is_missing() {
    let output = Command::new("scripts/hypervisor.sh")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HYPERVISOR_USER", "operator")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        words.contains("HYPERVISOR_ADDRESS HYPERVISOR_KEY_FILE HYPERVISOR_KNOWN_HOSTS HYPERVISOR_IMAGE_URL"),
        "{words}"
    );
}
