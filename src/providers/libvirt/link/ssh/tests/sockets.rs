//! Unix sockets of the host, through a connection.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use super::sshd::Sshd;
use super::*;

/// A unix socket that gives back what it gets.
pub(super) struct Echo {
    _dir: TempDir,
    pub(super) path: PathBuf,
    /// One for each connection that has ended.
    ended: mpsc::UnboundedReceiver<()>,
}

impl Echo {
    pub(super) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, ended) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.into_split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = tell.send(());
                });
            }
        });
        Self { _dir: dir, path, ended }
    }

    pub(super) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn nowhere(dir: &Path) -> String {
    dir.join("nowhere").to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_megabytes_survive_many_key_exchanges_both_ways() {
    const LENGTH: usize = 50 << 20;
    let (sshd, echo) = (Sshd::start("RekeyLimit 1M"), Echo::start());
    let connection = sshd.dial(&SshLimits::default()).await;
    let stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let (mut read, mut write) = split(stream);
    let chunk: Vec<u8> = (0..1 << 20).map(|i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
    let mut sent = Sha256::new();
    for number in 0..LENGTH >> 20 {
        sent.update((number as u64).to_be_bytes());
        sent.update(&chunk[8..]);
    }
    let writer = tokio::spawn(async move {
        let mut chunk = chunk;
        for number in 0..LENGTH >> 20 {
            chunk[..8].copy_from_slice(&(number as u64).to_be_bytes());
            write.write_all(&chunk).await.unwrap();
        }
        write.shutdown().await.unwrap();
        write
    });
    let reader = async {
        let (mut got, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
        loop {
            match read.read(&mut buffer).await.unwrap() {
                0 => return (got, length),
                n => {
                    got.update(&buffer[..n]);
                    length += n;
                }
            }
        }
    };
    let (got, length) = timeout(SOON * 3, reader).await.expect("all comes back in time");
    assert_eq!(length, LENGTH);
    assert_eq!(got.finalize(), sent.finalize());
    assert!(!connection.is_closed());
    drop(writer.await.unwrap());
}

#[tokio::test]
async fn the_first_path_that_can_be_opened_is_taken() {
    let (sshd, mut echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&SshLimits::default()).await;
    let paths = [nowhere(sshd.dir.path()), echo.path().to_owned()];
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut stream = connection.open_socket(&paths, SOON).await.unwrap();
    assert_eq!(stream.write(&[]).await.unwrap(), 0, "nothing to write is no error");
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hello");
    drop(stream);
    timeout(SOON, echo.ended.recv()).await.expect("the host's end is closed").unwrap();
}

#[tokio::test]
async fn a_stream_may_be_dropped_on_a_thread_that_knows_no_runtime() {
    let (sshd, mut echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&SshLimits::default()).await;
    let stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    std::thread::spawn(move || drop(stream)).join().unwrap();
    timeout(SOON, echo.ended.recv()).await.expect("the host's end is closed").unwrap();
}

#[tokio::test]
async fn a_refused_path_is_told_with_all_its_causes_and_the_connection_stays() {
    for settings in ["", "AllowStreamLocalForwarding no", "DisableForwarding yes"] {
        let (sshd, echo) = (Sshd::start(settings), Echo::start());
        let connection = sshd.dial(&SshLimits::default()).await;
        let gone = nowhere(sshd.dir.path());
        let paths = if settings.is_empty() { vec![gone.as_str()] } else { vec![gone.as_str(), echo.path()] };
        let error = connection.open_socket(&paths, SOON).await.unwrap_err();
        assert_eq!(told(&error), (Class::Transient, Reason::LibvirtSocketUnavailable));
        let said = format!("user `{}` cannot open {} on 127.0.0.1:", sshd.target().user, paths.join(" or "));
        assert!(error.detail.starts_with(&said), "{error}");
        for cause in ["is not running", "elsewhere", "group libvirt", "AllowStreamLocalForwarding", "`restrict`"] {
            assert!(error.detail.contains(cause), "{cause}: {error}");
        }
        assert!(!connection.is_closed());
    }
}

#[tokio::test]
async fn a_socket_that_is_opened_too_late_is_closed_again() {
    let (sshd, mut echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&patient()).await;
    sshd.signal_sessions(Signal::STOP);
    let error = connection.open_socket(&[echo.path()], Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(told(&error), (Class::Transient, Reason::Timeout));
    assert!(error.detail.contains("within 0.2 s"), "{error}");
    sshd.signal_sessions(Signal::CONT);
    timeout(SOON, echo.ended.recv()).await.expect("it was opened, and closed again").unwrap();
    connection.open_socket(&[echo.path()], SOON).await.unwrap();
}

#[tokio::test]
async fn a_socket_that_the_host_closes_reads_as_its_end() {
    let (sshd, echo) = (Sshd::start("ChannelTimeout direct-streamlocal@openssh.com=1s"), Echo::start());
    let connection = sshd.dial(&SshLimits::default()).await;
    let mut stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let read = timeout(SOON, stream.read(&mut [0; 10])).await.expect("sshd closes it in time");
    assert_eq!(read.unwrap(), 0);
    assert!(!connection.is_closed());
    connection.open_socket(&[echo.path()], SOON).await.unwrap();
}

#[tokio::test]
async fn two_streams_do_not_mix() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&SshLimits::default()).await;
    let paths = [echo.path()];
    let (a, b) = tokio::join!(connection.open_socket(&paths, SOON), connection.open_socket(&paths, SOON));
    for (mut stream, text) in [(a.unwrap(), b"one"), (b.unwrap(), b"two")] {
        stream.write_all(text).await.unwrap();
        let mut back = [0; 3];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, text);
    }
}
