//! One process of the plane: started, stopped, frozen and killed; and what makes sure that it ends with us.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::binaries;

/// After SIGTERM; the API server waits for its long requests otherwise.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The tail of a log that a failed test shows.
const WORDS: usize = 4_000;

/// A program with fixed arguments, running or not.
pub(crate) struct Part {
    name: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("name", &self.name).field("pid", &self.pid()).finish_non_exhaustive()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Part {
    pub(super) fn new(name: &'static str, dir: &Path, arguments: Vec<String>) -> Self {
        Self { name, arguments, log: dir.join(format!("{name}.log")), child: Mutex::new(None) }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Starts it, unless it runs. Whether it answers is another question.
    pub(super) fn start(&self) {
        let mut child = self.child();
        if child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return;
        }
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        // The kernel kills it when the thread that started it ends, hence the keeper.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(binaries::find(self.name)).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        *child = Some(kept(command).unwrap_or_else(|e| panic!("setpriv (Debian: util-linux) cannot be started: {e}")));
    }

    /// Asks it to end, and waits for that; kills it if it takes too long.
    pub(crate) fn stop(&self) {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while self.is_running() && begun.elapsed() < ENDS_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Ends it without warning, frozen or not, and waits until it is gone.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// From now on it neither answers nor notices anything; its sockets stay open.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// It goes on where it was frozen.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(WORDS)..]).into_owned()
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = self.child().as_ref() {
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that ends with this process and not before: the parent whose death the kernel tells
/// is a thread, and the thread of a test is soon gone.
fn kept(command: Command) -> io::Result<Child> {
    static KEEPER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || {
                for (mut command, reply) in taken {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        orders
    });
    let (reply, answer) = mpsc::channel();
    keeper.send((command, reply)).expect("the keeper never ends");
    answer.recv().expect("the keeper answers each order")
}

/// Removes the directory when this process has ended, however it did: a static is never dropped, and a killed process
/// drops nothing. A shell waits at a pipe for it. While processes that die with us still write, it tries again.
pub(super) fn clean_after_us(dir: &Path) {
    const SCRIPT: &str =
        r#"trap '' INT TERM HUP; read -r _; for _ in 1 2 3 4 5; do rm -rf "$1" && exit; sleep 0.2; done"#;
    let janitor = Command::new("sh")
        .args(["-c", SCRIPT, "janitor"])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("sh can be started");
    // Our end of its pipe is closed by our end alone.
    std::mem::forget(janitor);
}
