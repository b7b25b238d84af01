//! The way of one operator to the API server, request by request: it can end the operator at one of its writes.
//!
//! Speaks plain HTTP/1.1 to the operator and TLS to the server. Requests are taken in whole and then passed on, so that a
//! write is done or not done, never half; answers and watches go through as they come.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::plane::Plane;
use crate::{LOOK_EVERY, ports};

/// When the operator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    /// The write never gets to the server.
    Before,
    /// The server has done it, and nobody hears its answer.
    After,
}

/// Which writes are counted. Both kinds are on their way at the same time, and each has an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Makes and removes.
    Deed,
    /// Tells about it: statuses and events.
    Word,
}

/// What happens to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    Kills(Moment, i32),
    /// It is done when the gate opens again, whether or not anybody waits for its answer still.
    Waits,
}

#[derive(Default)]
struct State {
    armed: Option<Armed>,
    /// Writes of this kind stand still.
    held: Option<&'static str>,
    waiting: usize,
    /// How the server has answered them when the gate was open again.
    late: Vec<String>,
}

struct Armed {
    pid: i32,
    kind: Kind,
    nth: usize,
    moment: Moment,
    writes: Vec<String>,
}

pub(crate) struct Gate {
    /// For the operator.
    pub(crate) kubeconfig: PathBuf,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    pub(crate) async fn before(plane: &Plane) -> Self {
        let port = ports::one();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let (state, server, tls) = (Arc::<Mutex<State>>::default(), plane.port(), connector(plane));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server, tls.clone(), Arc::clone(&shared)));
            }
        });
        let kubeconfig = plane.kubeconfig();
        let text = std::fs::read_to_string(&kubeconfig).unwrap();
        std::fs::write(&kubeconfig, text.replace(&plane.url(), &format!("http://127.0.0.1:{port}"))).unwrap();
        Self { kubeconfig, state, task }
    }

    /// From now on writes of a kind are counted, and this process dies at the `nth`, which begins with 1.
    pub(crate) fn arm(&self, pid: i32, kind: Kind, nth: usize, moment: Moment) {
        lock(&self.state).armed = Some(Armed { pid, kind, nth, moment, writes: Vec::new() });
    }

    /// Nobody dies any more; the write at which somebody did, or is just about to.
    pub(crate) fn disarm(&self) -> Option<String> {
        let armed = lock(&self.state).armed.take()?;
        armed.writes.into_iter().nth(armed.nth - 1)
    }

    /// Writes of this kind stand still in the gate until it is opened.
    pub(crate) fn hold(&self, write: &'static str) {
        lock(&self.state).held = Some(write);
    }

    /// How many writes have stood still.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting
    }

    /// Status lines of the answers to writes that have stood still.
    pub(crate) fn late(&self) -> Vec<String> {
        lock(&self.state).late.clone()
    }

    /// What stands still goes on, and is done.
    pub(crate) fn open(&self) {
        lock(&self.state).held = None;
    }
}

fn connector(plane: &Plane) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(plane.authority()).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

async fn carry(near: TcpStream, server: u16, tls: TlsConnector, state: Arc<Mutex<State>>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let Ok(far) = tls.connect(name, far).await else { return };
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), split(far));
    let (mut asked, mut request, mut answer) = (Vec::new(), vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            read = from_far.read(&mut answer) => match read {
                Ok(read) if read > 0 && to_near.write_all(&answer[..read]).await.is_ok() => {}
                _ => return,
            },
            read = from_near.read(&mut request) => {
                match read {
                    Ok(read) if read > 0 => asked.extend_from_slice(&request[..read]),
                    _ => return,
                }
                // One at a time: the next request follows the answer to this one.
                let Some((method, path)) = whole(&asked) else { continue };
                let fate = write(&method, &path).map_or(Fate::Passes, |write| fate(&state, write));
                if let Fate::Kills(Moment::Before, pid) = fate {
                    return kill(pid);
                }
                while fate == Fate::Waits && lock(&state).held.is_some() {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                if to_far.write_all(&asked).await.is_err() || to_far.flush().await.is_err() {
                    return;
                }
                asked.clear();
                if fate == Fate::Waits {
                    let read = from_far.read(&mut answer).await.unwrap_or_default();
                    let line = String::from_utf8_lossy(&answer[..read]).lines().next().unwrap_or_default().to_owned();
                    lock(&state).late.push(line);
                    // Who asked has gone, or hears nothing more.
                    return;
                }
                if let Fate::Kills(Moment::After, pid) = fate {
                    let _ = from_far.read(&mut answer).await;
                    return kill(pid);
                }
            }
        }
    }
}

fn fate(state: &Mutex<State>, write: String) -> Fate {
    let mut state = lock(state);
    if state.held == Some(write.as_str()) {
        state.waiting += 1;
        return Fate::Waits;
    }
    let Some(armed) = &mut state.armed else { return Fate::Passes };
    let kind = if write.ends_with("/status") || write.ends_with(" events") { Kind::Word } else { Kind::Deed };
    // A deed that is done again, as the machine was slow, is none of the next ones.
    if kind != armed.kind || (kind == Kind::Deed && armed.writes.contains(&write)) {
        return Fate::Passes;
    }
    armed.writes.push(write);
    if armed.writes.len() == armed.nth { Fate::Kills(armed.moment, armed.pid) } else { Fate::Passes }
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Method and path of a request; `None` while more of it is to come.
fn whole(bytes: &[u8]) -> Option<(String, String)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(bytes).unwrap() else { return None };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.map_or(0, |header| std::str::from_utf8(header.value).unwrap().parse().unwrap());
    assert!(bytes.len() <= head + length, "a request came before the answer to the one before");
    (bytes.len() == head + length).then(|| (request.method.unwrap().to_owned(), request.path.unwrap().to_owned()))
}

/// `PATCH proxies/status`: method, kind and subresource. Nothing for reads, for questions that are put as writes, and for
/// what has to do with no Proxy.
fn write(method: &str, path: &str) -> Option<String> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let parts: Vec<&str> = path.split('/').collect();
    // /api/v1/.. or /apis/group/version/.., and then a namespace or none.
    let parts = parts.get(if parts.get(1) == Some(&"api") { 3 } else { 4 }..)?;
    let parts = if parts.len() > 2 && parts[0] == "namespaces" { &parts[2..] } else { parts };
    let aside = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "providerhealths", "leases"];
    if method == "GET" || query.contains("dryRun") || aside.contains(parts.first()?) {
        return None;
    }
    let sub = parts.get(2).map(|sub| format!("/{sub}")).unwrap_or_default();
    Some(format!("{method} {}{sub}", parts[0]))
}
