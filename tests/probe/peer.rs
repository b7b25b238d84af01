//! A scripted TCP peer: does the same to each of its callers, and writes down what they said.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

#[derive(Clone)]
pub(crate) enum Act {
    /// Reads a request's head and writes it down.
    Hear,
    Say(Vec<u8>),
    /// Says this again and again, one byte in each 20 ms, until the caller goes.
    Drip(&'static [u8]),
    /// Speaks TLS from here on.
    Tls(TlsAcceptor),
    /// Keeps the connection open and says nothing until the caller goes.
    Hold,
}

pub(crate) fn say(text: &str) -> Act {
    Act::Say(text.as_bytes().to_vec())
}

/// What a proxy says when the tunnel is open.
pub(crate) fn open() -> Act {
    say("HTTP/1.1 200 Connection established\r\n\r\n")
}

pub(crate) struct Peer {
    pub(crate) port: u16,
    pub(crate) heard: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    pub(crate) async fn start(script: Vec<Act>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = heard.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(play(Box::new(stream), script.clone(), noted.clone()));
            }
        });
        Self { port, heard, task }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn play(mut stream: Box<dyn Stream>, script: Vec<Act>, heard: Arc<Mutex<Vec<String>>>) {
    for act in script {
        match act {
            Act::Hear => {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                heard.lock().unwrap().push(String::from_utf8(head).unwrap());
            }
            Act::Say(bytes) => {
                if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
            Act::Drip(bytes) => {
                for byte in bytes.iter().cycle() {
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Act::Tls(acceptor) => match acceptor.accept(stream).await {
                Ok(inner) => stream = Box::new(inner),
                Err(_) => return,
            },
            Act::Hold => {
                let mut rest = [0; 1024];
                while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
                return;
            }
        }
    }
    let _ = stream.shutdown().await;
}
