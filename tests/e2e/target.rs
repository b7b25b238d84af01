//! A probe target of the test's own: answers 204, or misbehaves when told to.
//!
//! On threads of its own, so that it answers whatever the test is doing.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends with the process: its listener is of no harm.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    silent: AtomicBool,
}

impl Target {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared: Arc<Shared> = Arc::default();
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = of_thread.clone();
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/ok", self.port)
    }

    /// From now on requests are taken in and never answered, or answered again.
    pub(crate) fn is_silent(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::SeqCst);
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) {
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(read) if read > 0 => head.extend(&bytes[..read]),
            _ => return,
        }
    }
    if shared.silent.load(Ordering::SeqCst) {
        // Until the other side gives up.
        while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
        return;
    }
    let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}
