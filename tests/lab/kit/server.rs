//! An HTTP server that gives out files, well or badly. Also something for a guest's proxy to reach.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Image;

/// How a path is answered.
#[derive(Clone, Debug)]
pub(crate) enum Behavior {
    /// The whole file.
    File(PathBuf),
    /// 200 with these bytes.
    Text(String),
    /// This status, without a body.
    Status(u16),
    /// 302 to this.
    Redirect(String),
    /// 200 with a page, as a portal or a mirror in trouble gives it.
    Html,
    /// The file's length, as many of its bytes, and the end.
    Short(PathBuf, u64),
    /// As many of the file's bytes, and then none, until it is answered otherwise or the server is dropped.
    Stall(PathBuf, u64),
    /// The whole file, so many bytes a second, until the server is dropped.
    Slow(PathBuf, u64),
}

/// On all addresses of this machine, so that guests reach it too. Gone with the value.
pub(crate) struct Server {
    port: u16,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    paths: HashMap<String, Behavior>,
    /// Grows with each change of `paths`.
    change: u64,
    asked: Vec<(String, SocketAddr)>,
    over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Paths that are not told of are answered with 404.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let accepts = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for stream in listener.incoming().flatten() {
                    if shared.state().over {
                        return;
                    }
                    let shared = shared.clone();
                    std::thread::spawn(move || answer(stream, &shared));
                }
            }
        });
        Self { port, shared, accepts: Some(accepts) }
    }

    /// With these images, each at its file's name.
    pub(crate) fn with(images: &[&Image]) -> Self {
        let server = Self::start();
        for image in images {
            let name = image.path.file_name().unwrap().to_str().unwrap();
            server.answers(&format!("/{name}"), Behavior::File(image.path.clone()));
        }
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From this machine, without a slash at its end.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// From now on; a stalled answer to it goes on with the rest of its file.
    pub(crate) fn answers(&self, path: &str, behavior: Behavior) {
        let mut state = self.shared.state();
        state.paths.insert(path.to_owned(), behavior);
        state.change += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Who has asked for it, oldest first.
    pub(crate) fn asked(&self, path: &str) -> Vec<SocketAddr> {
        let state = self.shared.state();
        state.asked.iter().filter(|(asked, _)| asked == path).map(|(_, peer)| *peer).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.changed.notify_all();
        // It looks when somebody comes.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
    }
}

/// One request a connection.
fn answer(mut stream: TcpStream, shared: &Shared) {
    let Some(head) = head(&mut stream) else { return };
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (behavior, change) = {
        let mut state = shared.state();
        if let Ok(peer) = stream.peer_addr() {
            state.asked.push((path.to_owned(), peer));
        }
        (state.paths.get(path).cloned().unwrap_or(Behavior::Status(404)), state.change)
    };
    // The other end may be gone at any time.
    let _ = write(&mut stream, method == "HEAD", behavior, shared, change);
    let _ = stream.shutdown(Shutdown::Both);
}

fn head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 14 {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn write(to: &mut TcpStream, bare: bool, behavior: Behavior, shared: &Shared, change: u64) -> io::Result<()> {
    let start = |to: &mut TcpStream, kind: &str, length: u64| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n");
        write!(to, "{head}Connection: close\r\n\r\n")
    };
    let text = |to: &mut TcpStream, kind: &str, text: &str| {
        start(to, kind, text.len() as u64)?;
        if bare { Ok(()) } else { to.write_all(text.as_bytes()) }
    };
    let (path, most, stalls) = match behavior {
        Behavior::Status(code) => {
            return write!(to, "HTTP/1.1 {code} Told So\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
        Behavior::Redirect(url) => {
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n");
            return write!(to, "{head}Connection: close\r\n\r\n");
        }
        Behavior::Html => return text(to, "text/html", "<!DOCTYPE html><html><body>Please log in.</body></html>\n"),
        Behavior::Text(words) => return text(to, "text/plain", &words),
        Behavior::File(path) => (path, u64::MAX, false),
        Behavior::Short(path, most) => (path, most, false),
        Behavior::Stall(path, most) => (path, most, true),
        Behavior::Slow(path, rate) => {
            let mut file = File::open(path)?;
            start(to, "application/octet-stream", file.metadata()?.len())?;
            while !shared.state().over && io::copy(&mut io::Read::by_ref(&mut file).take(rate / 20), to)? > 0 {
                std::thread::sleep(Duration::from_millis(50));
            }
            return Ok(());
        }
    };
    let mut file = File::open(path)?;
    start(to, "application/octet-stream", file.metadata()?.len())?;
    if bare {
        return Ok(());
    }
    io::copy(&mut io::Read::by_ref(&mut file).take(most), to)?;
    if stalls {
        let state = shared.state();
        let waits = shared.changed.wait_while(state, |state| state.change == change && !state.over);
        let over = waits.unwrap_or_else(PoisonError::into_inner).over;
        if !over {
            io::copy(&mut file, to)?;
        }
    }
    Ok(())
}
