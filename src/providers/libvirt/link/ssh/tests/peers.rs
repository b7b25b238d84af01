//! Peers that are no sshd, or one that does not want us now.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::sshd::Sshd;
use super::*;

/// Serves one connection.
async fn peer<F>(serve: impl FnOnce(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await });
    addr
}

/// Until the other side closes.
async fn drain(mut tcp: TcpStream) {
    while tcp.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {}
}

async fn dial(addrs: &[SocketAddr], limits: &SshLimits) -> OpError {
    let sshd = Sshd::start("");
    let material = sshd.material(&sshd.known("ed25519"), "ed25519").await;
    refused(SshConnection::dial(&sshd.target(), addrs, &material, limits).await)
}

fn short() -> SshLimits {
    SshLimits { dial: Duration::from_millis(400), ..SshLimits::default() }
}

#[tokio::test]
async fn a_peer_that_is_silent_is_late_and_its_socket_is_closed() {
    let (closed, hear) = tokio::sync::oneshot::channel();
    let addr = peer(async |tcp| {
        drain(tcp).await;
        let _ = closed.send(());
    })
    .await;
    let error = dial(&[addr], &short()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::Timeout));
    assert!(error.detail.contains("within 0.4 s: it accepts connections and says nothing"), "{error}");
    timeout(SOON, hear).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_peer_that_stops_after_its_banner_leaves_no_task_and_no_socket() {
    let (closed, hear) = tokio::sync::oneshot::channel();
    let addr = peer(async |mut tcp| {
        tcp.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        drain(tcp).await;
        let _ = closed.send(());
    })
    .await;
    let error = dial(&[addr], &short()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::Timeout));
    assert!(error.detail.contains("it stopped in the middle"), "{error}");
    timeout(SOON, hear).await.unwrap().unwrap();
    let metrics = tokio::runtime::Handle::current().metrics();
    eventually("no task is left", || metrics.num_alive_tasks() == 0).await;
}

#[tokio::test]
async fn a_dial_that_is_dropped_closes_its_socket() {
    let sshd = Sshd::start("");
    let material = sshd.material(&sshd.known("ed25519"), "ed25519").await;
    let (closed, hear) = tokio::sync::oneshot::channel();
    let (begun, started) = tokio::sync::oneshot::channel();
    let addr = peer(async |mut tcp| {
        tcp.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        let _ = tcp.read(&mut [0; 2000]).await;
        let _ = begun.send(());
        drain(tcp).await;
        let _ = closed.send(());
    })
    .await;
    let (target, addrs, limits) = (sshd.target(), [addr], SshLimits::default());
    tokio::select! {
        dialled = SshConnection::dial(&target, &addrs, &material, &limits) => panic!("{dialled:?}"),
        _ = started => {}
    }
    timeout(SOON, hear).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_peer_that_is_no_ssh_server_is_told_with_its_words() {
    let addr = peer(async |mut tcp| {
        let _ = tcp.read(&mut [0; 100]).await;
        tcp.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await.unwrap();
    })
    .await;
    let error = dial(&[addr], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::SSHHandshakeFailed));
    assert!(error.detail.contains("it says `HTTP/1.1 400 Bad Request`: is the port right?"), "{error}");

    let noise = peer(async |mut tcp| {
        let _ = tcp.write_all(&b"\x15\x03\x01\x00\x02\x02\x16".repeat(1000)).await;
        drain(tcp).await;
    })
    .await;
    let error = dial(&[noise], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::SSHHandshakeFailed));

    let garbage = peer(async |mut tcp| {
        let _ = tcp.write_all(b"SSH-2.0-x\r\n").await;
        let _ = tcp.write_all(&[0x11; 5000]).await;
        drain(tcp).await;
    })
    .await;
    let error = dial(&[garbage], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::SSHHandshakeFailed), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_refused_or_closed_at_once_is_unreachable() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let error = dial(&[gone], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable));
    assert!(error.detail.contains("127.0.0.1: connection refused"), "{error}");

    let error = dial(&[], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable));
    assert!(error.detail.contains("it has no address"), "{error}");

    let closes = peer(async |tcp| drop(tcp)).await;
    let error = dial(&[closes], &SshLimits::default()).await;
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable));
    assert!(error.detail.contains("MaxStartups"), "{error}");
}

#[tokio::test]
async fn each_address_is_tried() {
    let sshd = Sshd::start("");
    let material = sshd.material(&sshd.known("ed25519"), "ed25519").await;
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let addrs = [gone, sshd.addr()];
    SshConnection::dial(&sshd.target(), &addrs, &material, &SshLimits::default()).await.unwrap();
}

#[tokio::test]
async fn an_sshd_that_takes_no_more_logins_for_now_is_unreachable_and_not_wrong() {
    let sshd = Sshd::start("MaxStartups 1:100:1");
    let mut held = TcpStream::connect(sshd.addr()).await.unwrap();
    let mut banner = [0; 4];
    held.read_exact(&mut banner).await.unwrap();
    assert_eq!(&banner, b"SSH-");
    let error = refused(sshd.dial_with(&sshd.known("ed25519"), "ed25519", &SshLimits::default()).await);
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable), "{error}");
    assert!(error.detail.contains("MaxStartups"), "{error}");
    drop(held);
    eventually("sshd has noticed", || sshd.sessions().is_empty()).await;
    sshd.dial(&SshLimits::default()).await;
}
