//! What the proxies are asked to reach: a small HTTP server at the pods' gateway, which remembers who came.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// As in `deploy/kustomization.yaml`.
pub(crate) const URL: &str = "http://10.244.0.1:18080/ok";

/// Ends with the process.
#[derive(Clone)]
pub(crate) struct Target(Arc<Mutex<HashMap<IpAddr, u32>>>);

impl Target {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("10.244.0.1:18080").unwrap();
        let seen = Arc::<Mutex<HashMap<_, _>>>::default();
        let target = Self(seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = seen.clone();
                std::thread::spawn(move || answer(stream, &seen));
            }
        });
        target
    }

    /// How many requests came from this address.
    pub(crate) fn asked_by(&self, address: &str) -> u32 {
        self.0.lock().unwrap().get(&address.parse().unwrap()).copied().unwrap_or_default()
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<HashMap<IpAddr, u32>>) {
    let (mut head, mut bytes) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(read) if read > 0 => head.extend(&bytes[..read]),
            _ => return,
        }
    }
    *seen.lock().unwrap().entry(stream.peer_addr().unwrap().ip()).or_default() += 1;
    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}
