//! A libvirtd by script: it speaks libvirt's own protocol on a unix socket, to libvirt's own client library, and has
//! domains that run nothing and volumes that hold nothing. A test says what it answers, what it is silent about, and
//! when it hangs up.
//!
//! As libvirtd, it goes on with what it was silent about once it may speak, whether or not anybody still waits: until
//! then each such call is held ([`Daemon::held`]). One that is silent altogether reads nothing, as a stopped process.
//!
//! ```text
//! wire       messages, and the numbers and texts in them
//! calls      what is asked and answered
//! contents   domains and volumes
//! ```

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use wire::{CALL, CONTINUE, ERROR, Message, OK, REPLY, STREAM};

pub(crate) mod calls;
mod contents;
mod wire;

/// Its threads do next to nothing.
const STACK: usize = 256 * 1024;
/// What one message of a download holds.
const PIECE: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Works,
    /// Takes what comes and never answers.
    Silent,
    /// Ends the connection on which it is asked.
    Closes,
}

/// What a mood is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum About {
    All,
    /// Questions to guest agents.
    Agent,
    /// Whatever touches the pool.
    Pool,
    /// One of [`calls`].
    Call(u32),
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) socket: PathBuf,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    number: u8,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    moods: HashMap<About, Mood>,
    contents: contents::Contents,
    calls: HashMap<u32, usize>,
    held: usize,
    most_held: usize,
    clients: HashMap<usize, UnixStream>,
    accepted: usize,
    over: bool,
}

impl State {
    fn mood(&self, about: &[About]) -> Mood {
        let moods = about.iter().filter_map(|about| self.moods.get(about).copied());
        moods.into_iter().find(|mood| *mood != Mood::Works).unwrap_or(Mood::Works)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while it is silent about this. `None`: it has ended.
    fn mood(&self, about: &[About]) -> Option<Mood> {
        let silent = |state: &mut State| !state.over && state.mood(about) == Mood::Silent;
        let state = self.changed.wait_while(self.state(), silent).unwrap_or_else(PoisonError::into_inner);
        (!state.over).then(|| state.mood(about))
    }
}

impl Daemon {
    /// Anybody may connect. `number` is the last of the four in its instances' addresses: `100.x.y.<number>`.
    pub(crate) fn start(socket: &Path, number: u8) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        fs::set_permissions(socket, Permissions::from_mode(0o777)).unwrap();
        let shared = Arc::new(Shared { number, ..Shared::default() });
        let own = shared.clone();
        let accepts = thread(move || {
            for stream in listener.incoming().flatten() {
                let mut state = own.state();
                if state.over {
                    return;
                }
                state.accepted += 1;
                let id = state.accepted;
                state.clients.insert(id, stream.try_clone().unwrap());
                drop(state);
                let own = own.clone();
                thread(move || {
                    // The other end may go at any time.
                    let _ = Client::new(stream, own.clone()).and_then(Client::serve);
                    own.state().clients.remove(&id);
                });
            }
        });
        Self { socket: socket.to_owned(), shared, accepts: Some(accepts) }
    }

    pub(crate) fn set(&self, about: About, mood: Mood) {
        self.shared.state().moods.insert(about, mood);
        self.shared.changed.notify_all();
    }

    /// It works, and goes on with all that it held.
    pub(crate) fn heal(&self) {
        self.shared.state().moods.clear();
        self.shared.changed.notify_all();
    }

    /// How often a call came in.
    pub(crate) fn asked(&self, call: u32) -> usize {
        self.shared.state().calls.get(&call).copied().unwrap_or(0)
    }

    /// Calls that it has taken in and is silent about, with nobody at the other end or somebody.
    pub(crate) fn held(&self) -> usize {
        self.shared.state().held
    }

    /// The most that it ever held at once; from here on anew.
    pub(crate) fn most_held(&self) -> usize {
        let mut state = self.shared.state();
        let held = state.held;
        std::mem::replace(&mut state.most_held, held)
    }

    pub(crate) fn clients(&self) -> usize {
        self.shared.state().clients.len()
    }

    /// Names of the domains, with whether they run.
    pub(crate) fn domains(&self) -> Vec<(String, bool)> {
        let state = self.shared.state();
        state.contents.domains.values().map(|domain| (domain.name.clone(), domain.id.is_some())).collect()
    }

    /// Names of the volumes, with the bytes that were written to them.
    pub(crate) fn volumes(&self) -> Vec<(String, u64)> {
        let state = self.shared.state();
        state.contents.volumes.values().map(|volume| (volume.name.clone(), volume.written)).collect()
    }

    /// A domain that runs, with these volumes, as if they had been made long ago.
    pub(crate) fn plant(&self, domain: &str, volumes: &[&str]) {
        let mut state = self.shared.state();
        let defined = state.contents.define(self.shared.number, domain).unwrap().expect("no other domain of its name");
        state.contents.start(&defined.name);
        for volume in volumes {
            state.contents.make_volume(volume).unwrap();
        }
    }

    /// Only domains and volumes with such names are left.
    pub(crate) fn keep(&self, is_kept: impl Fn(&str) -> bool) {
        let mut state = self.shared.state();
        state.contents.domains.retain(|name, _| is_kept(name));
        state.contents.volumes.retain(|name, _| is_kept(name));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.over = true;
        for client in state.clients.values() {
            let _ = client.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        // It looks when somebody comes.
        let _ = UnixStream::connect(&self.socket);
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

/// One connection.
struct Client {
    shared: Arc<Shared>,
    from: UnixStream,
    to: Arc<Mutex<UnixStream>>,
    /// What is being uploaded, by the serial of its call.
    uploads: HashMap<u32, String>,
}

impl Client {
    fn new(stream: UnixStream, shared: Arc<Shared>) -> io::Result<Self> {
        let to = Arc::new(Mutex::new(stream.try_clone()?));
        Ok(Self { shared, from: stream, to, uploads: HashMap::new() })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            let message = Message::read(&mut self.from)?;
            let Some(mood) = self.shared.mood(&[About::All]) else { return Ok(()) };
            if mood == Mood::Closes {
                return self.from.shutdown(Shutdown::Both);
            }
            match (message.program, message.kind) {
                (wire::PROGRAM, CALL) => self.call(message)?,
                (wire::PROGRAM, STREAM) => self.stream(&message)?,
                _ => return Err(io::Error::other("another protocol")),
            }
        }
    }

    fn call(&mut self, message: Message) -> io::Result<()> {
        let mut about = vec![About::Call(message.procedure)];
        if calls::asks_agent(message.procedure, &message.body) {
            about.push(About::Agent);
        }
        if calls::asks_pool(message.procedure) {
            about.push(About::Pool);
        }
        let mut state = self.shared.state();
        *state.calls.entry(message.procedure).or_default() += 1;
        match state.mood(&about) {
            Mood::Closes => return self.from.shutdown(Shutdown::Both),
            Mood::Silent => {
                state.held += 1;
                state.most_held = state.most_held.max(state.held);
                drop(state);
                let (shared, to) = (self.shared.clone(), self.to.clone());
                thread(move || {
                    let mood = shared.mood(&about);
                    shared.state().held -= 1;
                    if mood.is_some() {
                        // Nobody may be there any more.
                        let _ = reply(&shared, &to, &message);
                    }
                });
                return Ok(());
            }
            Mood::Works => drop(state),
        }
        if message.procedure == calls::VOLUME_UPLOAD {
            self.uploads.insert(message.serial, calls::volume_of(&message.body));
        }
        reply(&self.shared, &self.to, &message)
    }

    /// A piece of an upload, or the end of a transfer.
    fn stream(&mut self, message: &Message) -> io::Result<()> {
        // As libvirtd: a transfer under way holds up its connection.
        if self.shared.mood(&[About::Pool]).is_none() {
            return Ok(());
        }
        if message.status == CONTINUE {
            let mut state = self.shared.state();
            let volume = self.uploads.get(&message.serial).and_then(|name| state.contents.volumes.get_mut(name));
            if let Some(volume) = volume {
                volume.takes(&message.body);
            }
            return Ok(());
        }
        self.uploads.remove(&message.serial);
        send(&self.to, &message.answer(STREAM, OK, Vec::new()))
    }
}

/// Does what is asked, and says so.
fn reply(shared: &Shared, to: &Mutex<UnixStream>, message: &Message) -> io::Result<()> {
    let mut state = shared.state();
    let answer = calls::answer(&mut state.contents, shared.number, message.procedure, &message.body);
    let download = (message.procedure == calls::VOLUME_DOWNLOAD)
        .then(|| state.contents.volumes.get(&calls::volume_of(&message.body)).map(|volume| volume.bytes.clone()))
        .flatten();
    drop(state);
    match answer {
        Ok(body) => send(to, &message.answer(REPLY, OK, body))?,
        Err(refusal) => return send(to, &message.answer(REPLY, ERROR, refusal.body())),
    }
    let Some(bytes) = download else { return Ok(()) };
    for piece in bytes.chunks(PIECE) {
        send(to, &message.answer(STREAM, CONTINUE, piece.to_vec()))?;
    }
    // Its end.
    send(to, &message.answer(STREAM, CONTINUE, Vec::new()))
}

fn send(to: &Mutex<UnixStream>, message: &Message) -> io::Result<()> {
    message.write(&mut *to.lock().unwrap_or_else(PoisonError::into_inner))
}

fn thread(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().name("scripted-libvirtd".to_owned()).stack_size(STACK).spawn(run).unwrap()
}
