//! Addresses for guests that never boot: leases as dnsmasq's helper would have written them, for libvirtd to read.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::kit::Host;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longer than any test.
const LEASED_FOR: Duration = Duration::from_hours(1);

/// Gives each domain that is defined on a host a lease, as long as it is there.
pub(super) struct Leases {
    over: Arc<AtomicBool>,
    gives: Option<JoinHandle<()>>,
}

impl Leases {
    pub(super) fn of(lab: &Path, host: &Host) -> Self {
        let dir = lab.join(&host.name);
        let (definitions, status) = (dir.join("etc/qemu"), dir.join("lib/dnsmasq/virbr0.status"));
        let network = host.guests.trim_end_matches("0/24").to_owned();
        let over = Arc::<AtomicBool>::default();
        let gives = std::thread::spawn({
            let over = over.clone();
            move || {
                let mut given = HashMap::new();
                while !over.load(Ordering::Relaxed) {
                    if learn(&definitions, &mut given) {
                        write(&status, &network, &given);
                    }
                    std::thread::sleep(LOOK_EVERY);
                }
                write(&status, &network, &HashMap::new());
            }
        });
        Self { over, gives: Some(gives) }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(gives) = self.gives.take() {
            let _ = gives.join();
        }
    }
}

/// Each new MAC gets the next number. Whether there was one.
fn learn(definitions: &Path, given: &mut HashMap<String, usize>) -> bool {
    let files = fs::read_dir(definitions).into_iter().flatten().flatten().map(|file| file.path());
    let before = given.len();
    for file in files.filter(|file| file.extension().is_some_and(|end| end == "xml")) {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mac = text.split_once("<mac address='").and_then(|(_, rest)| rest.split_once('\''));
        if let Some((mac, _)) = mac {
            let next = given.len();
            given.entry(mac.to_owned()).or_insert(next);
        }
    }
    given.len() > before
}

fn write(status: &PathBuf, network: &str, given: &HashMap<String, usize>) {
    let until = (SystemTime::now() + LEASED_FOR).duration_since(UNIX_EPOCH).unwrap().as_secs();
    let rows = given.iter().map(|(mac, n)| {
        let address = format!("{network}{}", 2 + n % 250);
        json!({"ip-address": address, "mac-address": mac, "hostname": "guest", "expiry-time": until})
    });
    let hidden = status.with_extension("new");
    fs::write(&hidden, serde_json::Value::Array(rows.collect()).to_string()).unwrap();
    fs::rename(hidden, status).unwrap();
}
