//! What an sshd may be set to, and what may be done to one.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;

use crate::kit::backend::{AMPLE, Bench, boot_sector, domain, mark, sha256, short, spec, timed, works};
use crate::kit::door::Door;
use crate::kit::{Host, Lab, eventually};

const ED25519: &[&str] = &["ssh_host_ed25519_key"];

/// (3)
#[test]
#[ignore = "ten seconds, and those of SSH do the same; run by `make lab-long`"]
fn a_base_that_crosses_many_key_exchanges_is_whole() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let door = Door::open(host, 2201, "RekeyLimit 1M");
    let mut bench = Bench::new(&[host]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 40 << 20);
    bench.serves(&large);
    door.leads(&mut bench.entry, bench.dir.path(), ED25519);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "large"));
    assert_eq!(sha256(&host.pool_files.join("base-large.raw")), large.sha256);
    bench.delete(&backend, &mark()).unwrap();
}

/// (7)
#[test]
fn a_host_that_was_made_anew_is_refused_and_comes_back_with_the_file_without_a_restart() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let (bench, backend, known) = {
        let door = Door::open(host, 2202, "HostKey /etc/ssh/ssh_host_ed25519_key");
        let mut bench = Bench::new(&[host]);
        door.leads(&mut bench.entry, bench.dir.path(), ED25519);
        let backend = bench.open();
        bench.creates(&backend, &spec("p", 1, "blank"));
        let known = bench.entry.ssh.known_hosts_file.clone();
        (bench, backend, known)
    };
    let made_anew = host.dir().join("ssh/anew");
    let _ = fs::remove_file(&made_anew);
    host.inside(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/anew"]);
    let door = Door::open(host, 2202, "HostKey /etc/ssh/anew");
    // The connection that is up trusts what it has seen.
    host.breaks("kill-sessions", &[]);
    eventually(AMPLE, "the new key is refused", || {
        let error = bench.get(&backend, &mark()).err()?;
        (error.reason == Reason::HostKeyMismatch).then(|| assert_eq!(error.class, Class::Permanent))
    });
    assert_eq!(bench.check(&backend).unwrap_err().reason, Reason::HostKeyMismatch);
    assert_eq!(bench.list(&backend).unwrap_err().reason, Reason::HostKeyMismatch);
    assert_eq!(bench.delete(&backend, &mark()).unwrap_err().reason, Reason::HostKeyMismatch);
    door.knows(&known, &["anew"]);
    eventually(AMPLE, "the instance is seen again", || bench.get(&backend, &mark()).ok());
    bench.delete(&backend, &mark()).unwrap();
}

/// A user that is in no group but, perhaps, `libvirt`; its login is the operator's key.
fn visitor(host: &Host, in_group: bool) {
    let files = host.dir().join("files");
    let with = |file: &str, line: &str| {
        let text = fs::read_to_string(files.join(file)).unwrap();
        let others = text.lines().filter(|line| !line.starts_with("visitor:"));
        let lines: Vec<_> = others.chain([line]).collect();
        // Not in another file: this one is mounted.
        fs::write(files.join(file), lines.join("\n") + "\n").unwrap();
    };
    with("passwd", "visitor:x:978:978::/:/bin/sh");
    with("shadow", "visitor:*:19000:0:99999:7:::");
    with("group", "visitor:x:978:");
    let text = fs::read_to_string(files.join("group")).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix("libvirt:") {
        Some(rest) => {
            let rest = rest.trim_end_matches(",visitor");
            format!("libvirt:{rest}{}\n", if in_group { ",visitor" } else { "" })
        }
        None => format!("{line}\n"),
    });
    fs::write(files.join("group"), lines.collect::<String>()).unwrap();
}

/// (11)
#[test]
fn the_group_libvirt_is_all_that_a_user_needs_and_without_it_the_socket_is_not_opened() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let keys = "StrictModes no\nAuthorizedKeysFile /home/operator/.ssh/authorized_keys";
    let door = Door::open(host, 2203, keys);
    let mut bench = Bench::new(&[host]);
    door.leads(&mut bench.entry, bench.dir.path(), ED25519);
    bench.entry.ssh.user = "visitor".to_owned();
    visitor(host, false);
    let backend = bench.open();
    let error = bench.check(&backend).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::LibvirtSocketUnavailable), "{error:?}");
    assert!(["visitor", &host.socket, "group libvirt"].iter().all(|word| error.detail.contains(word)), "{error:?}");
    assert_eq!(bench.get(&backend, &mark()).unwrap_err().reason, Reason::LibvirtSocketUnavailable);

    visitor(host, true);
    // Groups are of the login: the one that is there stays without.
    host.breaks("kill-sessions", &[]);
    bench.creates(&backend, &spec("p", 1, "blank"));
    bench.check(&backend).unwrap();
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Running);
    bench.delete(&backend, &mark()).unwrap();
    host.breaks("kill-sessions", &[]);
    visitor(host, false);
}

/// (11)
#[test]
fn an_sshd_that_forwards_no_sockets_a_wrong_path_and_a_daemon_that_is_down_are_told_as_that_and_pass() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let tells = |bench: &Bench| {
        let error = timed(&bench.runtime, &bench.open()).0;
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::LibvirtSocketUnavailable), "{error:?}");
    };
    bench.entry.hosts[0].socket = Some("/run/libvirt/virtqemud-sock".to_owned());
    tells(&bench);
    // Without a path both are tried: the modular daemon's is not there, the other one is.
    bench.entry.hosts[0].socket = None;
    let backend = bench.open();
    works(&bench.runtime, &backend);
    host.breaks("kill-libvirtd", &[]);
    eventually(AMPLE, "it is told", || {
        (timed(&bench.runtime, &backend).0.reason == Reason::LibvirtSocketUnavailable).then_some(())
    });
    host.breaks("start-libvirtd", &[]);
    works(&bench.runtime, &backend);
    let door = Door::open(host, 2204, "AllowStreamLocalForwarding no");
    door.leads(&mut bench.entry, bench.dir.path(), ED25519);
    tells(&bench);
}

/// (12)
#[test]
fn sixty_calls_at_once_are_one_login() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let door = Door::open(host, 2205, "MaxStartups 1:100:1");
    let mut bench = Bench::new(&[host]);
    door.leads(&mut bench.entry, bench.dir.path(), ED25519);
    let backend = bench.open();
    let of = mark();
    let answers = bench.runtime.block_on(futures::future::join_all((0..60).map(|_| backend.get(&of))));
    for answer in answers {
        assert_eq!(answer.unwrap_err().class, Class::NotFound);
    }
    assert_eq!(door.log().matches("Accepted publickey").count(), 1);
}

/// (12)
#[test]
fn an_sshd_whose_places_are_all_taken_is_unreachable_until_one_is_free() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let door = Door::open(host, 2206, "MaxStartups 1:100:1");
    let mut bench = Bench::new(&[host]);
    door.leads(&mut bench.entry, bench.dir.path(), ED25519);
    let backend = bench.open_with(short());
    let takes = TcpStream::connect((host.address.as_str(), 2206)).unwrap();
    let error = eventually(AMPLE, "a login is refused", || {
        let error = timed(&bench.runtime, &backend).0;
        (error.class != Class::NotFound).then_some(error)
    });
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::Unreachable), "{error:?}");
    assert!(error.detail.contains("MaxStartups"), "{error:?}");
    drop(takes);
    works(&bench.runtime, &backend);
}

/// (13)
#[test]
fn a_connection_that_the_host_closes_as_nobody_uses_it_costs_the_next_call_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    for settings in [
        "ChannelTimeout direct-streamlocal@openssh.com=2s\nUnusedConnectionTimeout 1s",
        "ClientAliveInterval 1\nClientAliveCountMax 1",
    ] {
        let door = Door::open(host, 2207, settings);
        let mut bench = Bench::new(&[host]);
        door.leads(&mut bench.entry, bench.dir.path(), ED25519);
        let backend = bench.open();
        bench.creates(&backend, &spec("p", 1, "blank"));
        for round in 0..2 {
            let before = idle_for(Duration::from_millis(3500), &bench, &backend);
            let seen = bench.get(&backend, &mark());
            assert_eq!(seen.map(|seen| seen.state), Ok(InstanceState::Running), "{settings}, {round}, {before}");
        }
        bench.delete(&backend, &mark()).unwrap();
        assert!(bench.list(&backend).unwrap().is_empty());
        assert!(!host.virsh(&["list", "--all"]).contains(&domain(&mark())));
    }
}

/// Uses nothing for so long. Whether the connection is still there then.
fn idle_for(span: Duration, bench: &Bench, backend: &egress_operator::providers::libvirt::LibvirtBackend) -> bool {
    bench.runtime.block_on(async { tokio::time::sleep(span).await });
    backend.link().standing().is_up
}
