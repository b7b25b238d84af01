//! What an instance says of itself, and to whom.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::{Instance, InstanceState};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::metadata::NAMESPACE;
use egress_operator::providers::libvirt::{LibvirtBackend, Limits};
use serde_json::json;

use crate::kit::backend::{AMPLE, Bench, domain, mark, mark_of, opened, spec, volumes};
use crate::kit::operator::Site;
use crate::kit::{Behavior, Flavor, Host, Lab, entry, eventually};

/// (52, I1)
#[test]
fn each_state_of_a_domain_is_told_as_what_it_is() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    let name = domain(&mark());
    let said = |what: &str| -> Instance {
        let got = bench.get(&backend, &mark()).unwrap();
        let listed = bench.list(&backend).unwrap();
        assert_eq!((listed.len(), &listed[0].instance), (1, &got), "{what}");
        got
    };
    for (does, words, wanted) in [
        ("virsh", &["suspend", &name][..], InstanceState::Paused),
        ("virsh", &["resume", &name], InstanceState::Running),
        ("virsh", &["reset", &name], InstanceState::Running),
        ("breaks", &["stop-guest"], InstanceState::Running),
        ("breaks", &["cont-guest"], InstanceState::Running),
        ("virsh", &["managedsave", &name], InstanceState::Stopped),
        ("virsh", &["start", &name], InstanceState::Running),
        ("breaks", &["kill-guest"], InstanceState::Stopped),
        ("virsh", &["start", &name, "--paused"], InstanceState::Paused),
        ("virsh", &["destroy", &name], InstanceState::Stopped),
    ] {
        match does {
            "virsh" => drop(host.virsh(words)),
            _ => host.breaks(words[0], &[&name]),
        }
        let seen = eventually(AMPLE, &format!("{words:?} is told"), || {
            let seen = bench.get(&backend, &mark()).unwrap();
            // A QEMU that is killed is missed a moment later.
            let passing = words[0] == "kill-guest" && seen.state == InstanceState::Running;
            (!passing).then_some(seen)
        });
        assert_eq!(seen.state, wanted, "{words:?}: {seen:?}");
        let complaint = said(words[0]).complaint.map(|complaint| complaint.reason);
        assert_eq!(complaint, (wanted == InstanceState::Stopped).then_some(Reason::InstanceStopped), "{words:?}");
    }
    bench.delete(&backend, &mark()).unwrap();
}

/// (49)
#[test]
fn of_two_leases_the_newest_is_taken_and_never_one_that_is_over_or_of_the_machine_before() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    let name = domain(&mark());
    let address = |wanted: Option<&str>| {
        let seen = bench.get(&backend, &mark()).unwrap();
        assert_eq!(seen.state, InstanceState::Running);
        let host = seen.endpoint.map(|endpoint| endpoint.host.to_string());
        assert_eq!(host.as_deref(), wanted);
    };
    let network = host.guests.trim_end_matches("0/24").to_owned();
    let (old, new) = (format!("{network}20"), format!("{network}21"));
    let first = mac(host, &name);
    address(None);
    leases(host, &[(&first, &old, 600), (&first, &new, 3600), ("52:54:00:00:00:01", &format!("{network}22"), 7200)]);
    address(Some(&new));
    leases(host, &[(&first, &old, 7200), (&first, &new, 3600)]);
    address(Some(&old));
    leases(host, &[(&first, &old, -600)]);
    address(None);
    leases(host, &[(&first, &old, 3600)]);
    bench.delete(&backend, &mark()).unwrap();
    bench.creates(&backend, &spec("p", 1, "blank"));
    assert_ne!(mac(host, &name), first);
    address(None);
    leases(host, &[]);
    bench.delete(&backend, &mark()).unwrap();
}

fn mac(host: &Host, name: &str) -> String {
    host.virsh(&["domiflist", name]).split_whitespace().find(|word| word.contains(':')).unwrap().to_owned()
}

/// As dnsmasq's helper would have written them: MAC, address, and for how many seconds more.
fn leases(host: &Host, rows: &[(&str, &str, i64)]) {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
    let rows = rows.iter().map(|(mac, address, left)| {
        json!({"ip-address": address, "mac-address": mac, "hostname": "guest", "expiry-time": now + left})
    });
    let status = host.dir().join("lib/dnsmasq/virbr0.status");
    let hidden = status.with_extension("new");
    fs::write(&hidden, serde_json::Value::Array(rows.collect()).to_string()).unwrap();
    fs::rename(hidden, status).unwrap();
}

/// (L9)
#[test]
fn two_hosts_of_an_entry_that_are_one_libvirtd_tell_each_instance_once() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    bench.also("twin");
    let open = |at| opened(&bench.runtime, &bench.entry, at, &bench.means, Limits::default());
    let (one, twin) = (open(0), open(1));
    bench.creates(&one, &spec("a", 1, "blank"));
    bench.creates(&twin, &spec("b", 2, "blank"));
    for entry in [Some(bench.entry.name.clone()), None] {
        for (backend, wanted) in [(&one, "a"), (&twin, "b")] {
            let rows = bench.runtime.block_on(backend.list(&mark().operator, entry.as_ref())).unwrap();
            let names: Vec<_> = rows.iter().map(|row| row.mark.key.name()).collect();
            assert_eq!(names, [wanted]);
            let ids = LibvirtBackend::ids;
            let of = if wanted == "a" { &bench.entry.hosts[0] } else { &bench.entry.hosts[1] };
            assert!(rows[0].instance.provider_id.starts_with(&ids(&bench.entry, of)), "{rows:?}");
        }
    }
    bench.delete(&one, &mark_of("a", 1)).unwrap();
    assert_eq!(bench.state(&twin, &mark_of("b", 2)), InstanceState::Running);
    bench.delete(&twin, &mark_of("b", 2)).unwrap();
}

/// (T6)
#[test]
fn two_values_of_one_entry_at_work_at_once_make_one_instance_and_remove_it_once() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let (one, two) = (bench.open(), bench.open());
    let (wanted, of) = (spec("p", 1, "blank"), mark());
    for round in 0..3 {
        let made = bench.runtime.block_on(async {
            let (a, b, c, d) =
                tokio::join!(one.create(&wanted), two.create(&wanted), one.create(&wanted), two.create(&wanted));
            [a, b, c, d]
        });
        for error in made.into_iter().filter_map(Result::err) {
            println!("round {round}: {error}");
            assert!(matches!(error.class, Class::Transient | Class::EffectUnknown), "{error:?}");
        }
        let id = bench.creates(&one, &wanted).provider_id;
        assert_eq!(bench.creates(&two, &wanted).provider_id, id, "round {round}");
        assert_eq!(host.virsh(&["list", "--all", "--name"]).split_whitespace().count(), 1, "round {round}");
        assert_eq!(bench.state(&two, &of), InstanceState::Running, "round {round}");
        let gone = bench.runtime.block_on(async { tokio::join!(one.delete(&of), two.delete(&of), one.get(&of)) });
        assert!(!gone.2.is_err_and(|error| !matches!(error.class, Class::NotFound | Class::Transient)));
        for error in [gone.0, gone.1].into_iter().filter_map(Result::err) {
            println!("round {round}: {error}");
            assert!(matches!(error.class, Class::Transient | Class::EffectUnknown), "{error:?}");
        }
        bench.delete(&one, &of).unwrap();
        assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"], "round {round}");
    }
}

/// (52, 53)
#[test]
#[ignore = "half a minute; run by `make lab-long`"]
fn a_machine_that_dies_or_is_removed_by_hand_is_made_anew_once() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let image = crate::conforms::blank(bench.dir.path());
    bench.files.answers("/blank.qcow2", Behavior::File(image.path.clone()));
    let entry = entry("quick", Flavor::Kvm, &[host], &[&image], &bench.files.url())
        .replace("format: qcow2}", "format: qcow2, proxy: true, firmware: bios}")
        .replace("memory: 256Mi, disk: 2Gi", "memory: 64Mi, disk: 64Mi");
    let site = Site::new(&entry);
    let operator = site.start(host);
    site.apply("p", "provider: quick");
    // Each start has another number; one call, as it may go at any time.
    let running = || {
        let ids = host.virsh(&["list", "--id"]);
        let mut ids = ids.split_whitespace().map(str::to_owned);
        let id = ids.next()?;
        assert!(ids.next().is_none(), "there is one");
        Some(id)
    };
    let another = |than: &str| running().filter(|id| id != than);
    let within = Duration::from_mins(2);
    let first = eventually(within, "it has a machine", running);
    let name = host.virsh(&["list", "--name"]).trim().to_owned();
    host.breaks("kill-guest", &[&name]);
    let second = eventually(within, "it has a machine again", || another(&first));
    // It runs to the end, so that it goes at once.
    host.virsh(&["undefine", &name]);
    host.virsh(&["destroy", &name]);
    eventually(within, "it has a third one", || another(&second));
    assert_eq!(volumes(host).len(), 4, "{:?}", volumes(host));
    site.remove("p");
    eventually(within, "all is gone", || {
        (operator.is_empty() && host.virsh(&["list", "--all", "--name"]).trim().is_empty()).then_some(())
    });
}

/// (47)
#[test]
fn a_domain_with_a_mark_that_a_hand_garbled_keeps_no_other_proxy_from_being_made_and_is_told_where_all_are_listed() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    let garbled = ["--set", "<proxy operator='lab'/>", "--key", "egress", "--live", "--config"];
    host.virsh(&[&["metadata", &domain(&mark()), "--uri", NAMESPACE], &garbled[..]].concat());

    let other = mark_of("q", 2);
    bench.creates(&backend, &spec("q", 2, "blank"));
    bench.deletes(&backend, &other);
    assert_eq!(bench.get(&backend, &other).unwrap_err().class, Class::NotFound);
    for error in [bench.get(&backend, &mark()).unwrap_err(), bench.list(&backend).unwrap_err()] {
        assert!(error.class == Class::Transient && error.detail.contains(&domain(&mark())), "{error:?}");
    }
    assert!(bench.delete(&backend, &mark()).is_err());
    assert!(host.virsh(&["list", "--name"]).contains(&domain(&mark())), "it is not touched");
}

#[test]
fn a_machine_that_a_hand_saved_is_booted_and_does_not_go_on_from_that_memory_over_a_new_disk() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["managedsave", &domain(&mark())]);
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Stopped);
    bench.creates(&backend, &spec("p", 1, "blank"));
    assert_eq!(host.virsh(&["domstate", "--reason", &domain(&mark())]).trim(), "running (booted)");
    bench.deletes(&backend, &mark());
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}
