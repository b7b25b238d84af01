//! A guest agent that freezes, or says strange things: libvirtd is given ours in the place of the guest's (22, 49 to 51).

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::{InstanceState, SecretBytes};
use egress_actors::ports::Backend;
use egress_operator::config::providers::{Firmware, VmSize};
use serde_json::{Value, json};

use crate::kit::backend::{AMPLE, Bench, domain, mark, spec};
use crate::kit::{Host, Lab, eventually, image};

/// A guest takes 7 s on an idle machine of two cores and 35 s on one that builds.
const BOOT: Duration = Duration::from_mins(3);

/// What is told of the guest's interfaces. `None`: nothing is said any more, once it has synchronised.
type Says = Arc<Mutex<Option<Value>>>;

#[test]
#[ignore = "a guest has to boot; run by `make lab-long`"]
fn an_agent_that_answers_once_and_freezes_costs_a_look_two_seconds_and_a_delete_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    bench.serves(&image("tiny"));
    bench.entry.images.get_mut("tiny").unwrap().firmware = Firmware::Uefi;
    bench.entry.sizes.insert("small".to_owned(), VmSize { cpus: 1, memory: 256 << 20, disk: 1 << 30 });
    let backend = bench.open();
    let mut wanted = spec("p", 1, "tiny");
    wanted.user_data = Some(SecretBytes(b"#cloud-config\n".to_vec().into()));
    bench.creates(&backend, &wanted);
    let name = domain(&mark());
    let of_agent = ["domifaddr", &name, "--source", "agent"];
    let told = eventually(BOOT, "the agent answers", || host.forward().virsh(&of_agent, AMPLE).ok());
    let lease = eventually(BOOT, "there is an address", || address(&bench, &backend));
    assert!(told.contains(&lease), "{lease}: {told}");

    let says = in_its_place(host);
    let mac = host.virsh(&["domiflist", &name]).split_whitespace().find(|word| word.contains(':')).unwrap().to_owned();
    let card = |name: &str, mac: &str, addresses: &[&str]| {
        let rows = addresses.iter().map(|address| {
            let kind = if address.contains(':') { "ipv6" } else { "ipv4" };
            json!({"ip-address": address, "ip-address-type": kind, "prefix": 24})
        });
        json!({"name": name, "hardware-address": mac, "ip-addresses": rows.collect::<Vec<_>>()})
    };
    let own = |addresses: &[&str]| card("eth0", &mac, addresses);
    let lo = card("lo", "00:00:00:00:00:00", &["127.0.0.1", "::1"]);
    let docker = card("docker0", "02:42:00:00:00:01", &["172.17.0.1"]);
    let bare = json!({"name": "eth0", "hardware-address": mac});
    for (list, wanted) in [
        (json!([lo, docker, own(&["fe80::1", "10.9.9.9"])]), "10.9.9.9"),
        (json!([lo, docker, own(&["10.9.9.10"])]), "10.9.9.10"),
        // Nothing of use: the lease is.
        (json!([lo, docker]), lease.as_str()),
        (json!([lo, docker, own(&["fe80::1", "169.254.1.1"])]), lease.as_str()),
        (json!([lo, bare]), lease.as_str()),
        (json!([]), lease.as_str()),
    ] {
        *says.lock().unwrap() = Some(list.clone());
        let seen = eventually(AMPLE, &format!("{wanted} of {list}"), || {
            address(&bench, &backend).filter(|address| address == wanted)
        });
        assert_eq!(seen, wanted);
    }

    *says.lock().unwrap() = None;
    let of = mark();
    for _ in 0..2 {
        let begun = Instant::now();
        let looks = futures::future::join_all((0..2).map(|_| backend.get(&of)));
        for seen in bench.runtime.block_on(looks) {
            let seen = seen.unwrap();
            assert_eq!(seen.state, InstanceState::Running);
            assert_eq!(seen.endpoint.unwrap().host.as_ref(), lease, "the lease is taken");
        }
        println!("two looks in {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
    assert_eq!(backend.link().standing().outstanding, 0, "libvirtd itself gave up");
    let begun = Instant::now();
    let (_, gone) = bench.runtime.block_on(async { tokio::join!(backend.get(&of), backend.delete(&of)) });
    gone.unwrap();
    println!("removed in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(bench.get(&backend, &of).unwrap_err().class, Class::NotFound);
}

fn address(bench: &Bench, backend: &egress_operator::providers::libvirt::LibvirtBackend) -> Option<String> {
    let seen = bench.get(backend, &mark()).ok()?;
    assert_eq!(seen.state, InstanceState::Running);
    Some(seen.endpoint?.host.to_string())
}

/// From now on libvirtd talks to us in the place of the only guest's agent.
fn in_its_place(host: &Host) -> Says {
    let channel = host.inside(&["find", "/var/lib/libvirt/qemu/channel", "-name", "org.qemu.guest_agent.0"]);
    let inside = channel.trim().strip_prefix("/var/lib/libvirt/").unwrap_or_else(|| panic!("where is it? {channel}"));
    host.breaks("kill-libvirtd", &[]);
    // Its path may be longer than a socket's may be.
    let short = host.dir().join("agent");
    let _ = fs::remove_file(&short);
    let listener = UnixListener::bind(&short).unwrap();
    fs::rename(&short, host.dir().join("lib").join(inside)).unwrap();
    let says = Says::new(Mutex::new(Some(json!([]))));
    let told = says.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let told = told.clone();
            std::thread::spawn(move || serve(stream, &told));
        }
    });
    host.breaks("start-libvirtd", &[]);
    says
}

fn serve(mut stream: UnixStream, says: &Says) {
    let lines = BufReader::new(stream.try_clone().unwrap()).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let text = line.strip_prefix(b"\xff").unwrap_or(&line);
        let Ok(asked) = serde_json::from_slice::<Value>(text) else { continue };
        let answer = match (asked["execute"].as_str().unwrap_or_default(), &*says.lock().unwrap()) {
            ("guest-sync" | "guest-sync-delimited", _) => asked["arguments"]["id"].clone(),
            ("guest-network-get-interfaces", Some(list)) => list.clone(),
            (_, Some(_)) => json!({}),
            (_, None) => continue,
        };
        let lead: &[u8] = if asked["execute"] == "guest-sync-delimited" { b"\xff" } else { b"" };
        let text = json!({"return": answer}).to_string() + "\n";
        if stream.write_all(lead).and_then(|()| stream.write_all(text.as_bytes())).is_err() {
            return;
        }
    }
}
