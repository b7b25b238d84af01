//! The way of one operator to the API server, to be cut while everybody else goes on with it.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ports;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Connections end, and new ones are ended at once.
    Cut,
    /// Connections stay and nothing comes through, as with a network that swallows packets. They are never mended.
    Silent,
}

pub(crate) struct Relay {
    pub(crate) port: u16,
    way: watch::Sender<Way>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub(crate) async fn before(port: u16) -> Self {
        let own = ports::one();
        let listener = TcpListener::bind(("127.0.0.1", own)).await.unwrap();
        let (way, changed) = watch::channel(Way::Open);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, port, changed.clone()));
            }
        });
        Self { port: own, way, task }
    }

    pub(crate) fn cut(&self) {
        self.way.send_replace(Way::Cut);
    }

    pub(crate) fn silence(&self) {
        self.way.send_replace(Way::Silent);
    }

    /// For new connections.
    pub(crate) fn mend(&self) {
        self.way.send_replace(Way::Open);
    }
}

async fn carry(mut near: TcpStream, port: u16, mut way: watch::Receiver<Way>) {
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    tokio::select! {
        biased;
        _ = way.wait_for(|&way| way != Way::Open) => {}
        _ = copy_bidirectional(&mut near, &mut far) => return,
    }
    // Both ends stay open until the other side gives up, or the way is cut.
    let _ = way.wait_for(|&way| way == Way::Cut).await;
}
