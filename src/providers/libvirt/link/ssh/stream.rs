//! A socket of the host, as a stream that its connection can close.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use russh::ChannelStream;
use russh::client::Msg;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

/// Reads and writes one channel. Its drop closes the channel.
pub(super) struct SshStream(Arc<Tap>);

/// What the stream and its connection share.
pub(super) struct Tap {
    state: Mutex<State>,
    /// russh starts a task when a channel is dropped, which may be on a thread that knows of no runtime.
    runtime: Handle,
}

#[derive(Default)]
struct State {
    channel: Option<ChannelStream<Msg>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl fmt::Debug for SshStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SshStream")
    }
}

impl SshStream {
    pub(super) fn new(channel: ChannelStream<Msg>) -> (Self, Weak<Tap>) {
        let state = State { channel: Some(channel), ..State::default() };
        let tap = Arc::new(Tap { state: Mutex::new(state), runtime: Handle::current() });
        let weak = Arc::downgrade(&tap);
        (Self(tap), weak)
    }
}

impl Tap {
    /// Takes the channel away; who waits for it is woken and told.
    pub(super) fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner));
        let _runtime = self.runtime.enter();
        drop(state.channel);
        state.reader.into_iter().chain(state.writer).for_each(Waker::wake);
    }

    fn with<T>(
        &self,
        cx: &mut Context<'_>,
        whose: fn(&mut State) -> &mut Option<Waker>,
        poll: impl FnOnce(Pin<&mut ChannelStream<Msg>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(channel) = &mut state.channel else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        let polled = poll(Pin::new(channel), cx);
        if polled.is_pending() {
            let waker = whose(&mut state);
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        polled
    }
}

impl Drop for SshStream {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl AsyncRead for SshStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.with(cx, |state| &mut state.reader, |channel, cx| channel.poll_read(cx, buf))
    }
}

impl AsyncWrite for SshStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // An error in russh, and nothing to do.
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.0.with(cx, |state| &mut state.writer, |channel, cx| channel.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.with(cx, |state| &mut state.writer, AsyncWrite::poll_flush)
    }

    /// Ends our direction only; what the host still sends can be read.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.with(cx, |state| &mut state.writer, AsyncWrite::poll_shutdown)
    }
}
