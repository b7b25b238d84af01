//! The bounded, lossy way of log lines to the outside.
//!
//! ```text
//! whoever logs --push--> [ queue: one byte buffer, at most QUEUE_BYTES ] --swap--> writer thread --> stdout
//! ```
//! Owns the queue and the thread. `push` copies a line under a lock that is held for that copy (or for the swap of two
//! buffers) only, never over a write: a reader that stalls stdout stalls the thread, the queue fills up, and further
//! lines are dropped and counted. At most two buffers exist, the queue and the one being written.
//!
//! Why not `tracing-appender`: its queue is bounded in lines and not in bytes, its guard prints to the stalled stdout
//! when the queue is full at the end (which hangs the exit), and write errors are neither counted nor told.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Some ten thousand lines: enough for a burst, little beside the fleet.
pub(super) const QUEUE_BYTES: usize = 2 * 1024 * 1024;
/// Longer lines help nobody and push out the others.
pub(super) const LONGEST_LINE: usize = 64 * 1024;

/// Where lines go in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LogWriter(Arc<Shared>);

/// Writes out what is queued when dropped, within its limit.
#[derive(Debug)]
pub struct LogGuard {
    shared: Arc<Shared>,
    within: Duration,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread: there are lines, or it is over.
    filled: Condvar,
    /// Wakes who waits for the end.
    ended: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Lines refused since the thread last took the queue: told in the place where they are missing.
    dropped: u64,
    closing: bool,
    ended: bool,
}

impl LogWriter {
    /// Starts the thread. `notice` makes the line that tells of dropped ones.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        within: Duration,
        notice: fn(u64) -> Vec<u8>,
    ) -> io::Result<(Self, LogGuard)> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            filled: Condvar::new(),
            ended: Condvar::new(),
            dropped: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        // Never joined: it may hang in a write for ever.
        thread::Builder::new().name("log-writer".to_owned()).spawn(move || of_thread.run(out, notice))?;
        Ok((Self(Arc::clone(&shared)), LogGuard { shared, within }))
    }

    /// Queues one line (with its newline), or drops and counts it. Never waits for a reader.
    pub fn push(&self, line: &[u8]) {
        let mut queue = self.0.lock();
        if queue.closing || queue.bytes.len() + line.len() > QUEUE_BYTES {
            queue.dropped += 1;
            drop(queue);
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let wake = queue.bytes.is_empty();
        queue.bytes.extend_from_slice(line);
        drop(queue);
        if wake {
            self.0.filled.notify_one();
        }
    }

    /// Lines dropped since the start, for want of room or because the reader has gone.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics under this lock, and a log must outlive what does elsewhere.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut out: impl Write, notice: fn(u64) -> Vec<u8>) {
        let mut batch = Vec::new();
        loop {
            let mut queue = self
                .filled
                .wait_while(self.lock(), |q| q.bytes.is_empty() && !q.closing)
                .unwrap_or_else(PoisonError::into_inner);
            let last = queue.closing;
            let dropped = std::mem::take(&mut queue.dropped);
            std::mem::swap(&mut queue.bytes, &mut batch);
            drop(queue);

            self.write(&mut out, &batch);
            batch.clear();
            if dropped > 0 {
                self.write(&mut out, &notice(dropped));
            }
            if last {
                self.lock().ended = true;
                self.ended.notify_all();
                return;
            }
        }
    }

    /// Writes all, however long the reader takes. What an error swallows is counted.
    fn write(&self, out: &mut impl Write, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match out.write(bytes) {
                Ok(0) => break,
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Somebody who shares the descriptor made it non-blocking. This thread has nothing else to do.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        let lost = bytes.split(|byte| *byte == b'\n').count() - 1;
        self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closing = true;
        self.shared.filled.notify_one();
        // Both results are the same to us: written out, or the reader had its time.
        let _ = self.shared.ended.wait_timeout_while(queue, self.within, |q| !q.ended);
    }
}

/// One event of tracing's text format comes as one call.
impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if event.len() <= LONGEST_LINE {
            self.push(event);
        } else {
            let mut shortened = String::from_utf8_lossy(&event[..LONGEST_LINE]).into_owned();
            shortened.push_str("...\n");
            self.push(shortened.as_bytes());
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
