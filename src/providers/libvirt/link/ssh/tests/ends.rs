//! How connections end, and what is left of them: nothing.

use std::net::{Ipv4Addr, SocketAddr};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::sockets::Echo;
use super::sshd::{Sshd, public, sockets_to};
use super::*;

/// Ended within the budget, and its task and socket with it.
async fn gone(sshd: &Sshd, connection: &SshConnection, budget: Duration) {
    assert!(timeout(budget, connection.closed()).await.is_ok(), "not ended within {budget:?}");
    assert!(connection.is_closed());
    eventually("no socket is left", || sshd.our_sockets().is_empty()).await;
}

#[tokio::test]
async fn a_quiet_connection_stays_because_answers_to_keepalives_are_activity() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&quick()).await;
    let mut stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    // Twice the time of the inactivity timer.
    assert!(timeout(quick().inactivity * 2, connection.closed()).await.is_err(), "{}", connection.why_closed().await);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn a_session_that_is_stopped_is_found_by_keepalives() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&SshLimits { inactivity: patient().inactivity, ..quick() }).await;
    let mut stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    assert!(!sshd.sessions().is_empty());
    sshd.signal_sessions(Signal::STOP);
    let since = Instant::now();
    let error = timeout(SOON, connection.why_closed()).await.unwrap();
    // Three are unanswered, and the fourth is due.
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable));
    assert!(error.detail.contains("does not answer keepalives"), "{error}");
    assert_eq!(timeout(SOON, stream.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    assert!(stream.write_all(b"x").await.is_err());
    let late = connection.open_socket(&[echo.path()], SOON).await.unwrap_err();
    assert_eq!(late, error);
    gone(&sshd, &connection, SOON).await;
}

#[tokio::test]
async fn keepalives_of_the_host_are_answered_and_its_end_is_noticed() {
    let sshd = Sshd::start("ClientAliveInterval 1\nClientAliveCountMax 1");
    let connection = sshd.dial(&patient()).await;
    assert!(timeout(Duration::from_secs(4), connection.closed()).await.is_err());

    let sshd = Sshd::start("");
    let connection = sshd.dial(&patient()).await;
    sshd.signal_sessions(Signal::KILL);
    gone(&sshd, &connection, SOON).await;
    assert_eq!(told(&connection.why_closed().await), (Class::Transient, Reason::Unreachable));
}

#[tokio::test]
async fn the_last_clone_that_is_dropped_ends_all() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let connection = sshd.dial(&patient()).await;
    let mut stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let clone = connection.clone();
    drop(connection);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    drop(clone);
    let read = timeout(SOON, stream.read(&mut [0; 1])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    eventually("no socket is left", || sshd.our_sockets().is_empty()).await;
    eventually("no task is left", || metrics.num_alive_tasks() == before).await;
    eventually("the host's process is gone", || sshd.sessions().is_empty()).await;
}

#[tokio::test]
async fn an_abort_wakes_who_reads_and_who_writes() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&patient()).await;
    let mut reads = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let mut writes = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let reader = tokio::spawn(async move { reads.read(&mut [0; 1]).await });
    sshd.signal_sessions(Signal::STOP);
    let writer = tokio::spawn(async move {
        loop {
            if let Err(error) = writes.write(&vec![0; 65536]).await {
                return error;
            }
        }
    });
    eventually("something is on its way", || sshd.our_sockets() != [0]).await;
    connection.abort();
    gone(&sshd, &connection, SOON).await;
    let kinds =
        [timeout(SOON, reader).await.unwrap().unwrap().unwrap_err(), timeout(SOON, writer).await.unwrap().unwrap()];
    assert!(kinds.iter().all(|error| error.kind() == std::io::ErrorKind::ConnectionAborted), "{kinds:?}");
    assert_eq!(
        told(&connection.open_socket(&[echo.path()], SOON).await.unwrap_err()),
        (Class::Transient, Reason::Unreachable)
    );
}

#[tokio::test]
async fn an_abort_ends_a_session_that_waits_for_a_stream_nobody_reads() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let connection = sshd.dial(&quick()).await;
    let stream = connection.open_socket(&[echo.path()], SOON).await.unwrap();
    let (held, mut write) = tokio::io::split(stream);
    let (told, stuck) = watch::channel(0_usize);
    let writer = tokio::spawn(async move {
        while write.write_all(&vec![0; 65536]).await.is_ok() {
            told.send_modify(|written| *written += 65536);
        }
    });
    // No more gets through for longer than keepalives would be silent: the session's task is held up.
    let mut stuck = stuck;
    while timeout(Duration::from_secs(2), stuck.changed()).await.is_ok_and(|changed| changed.is_ok()) {}
    assert!(*stuck.borrow() > 0);
    connection.abort();
    gone(&sshd, &connection, SOON).await;
    timeout(SOON, writer).await.unwrap().unwrap();
    drop(held);
}

/// In between, until told to stop: then it reads nothing more, as a host that is gone.
struct Between {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Between {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        // Small, so that our side is full soon.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            let (mut ours, _) = listener.accept().await.unwrap();
            let mut theirs = TcpStream::connect(to).await.unwrap();
            let mut watched = stopped.clone();
            tokio::select! {
                biased;
                _ = watched.wait_for(|stop| *stop) => {}
                _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs) => return,
            }
            // Both ends stay open for as long as the test runs.
            std::future::pending::<()>().await;
        });
        Self { addr, stop }
    }

    /// What we have not got rid of.
    fn queued(&self) -> u64 {
        sockets_to(self.addr.port()).into_iter().sum()
    }
}

/// A connection whose session sits in a TCP write.
async fn stuck(sshd: &Sshd, echo: &Echo, limits: &SshLimits) -> (SshConnection, Between) {
    let between = Between::start(sshd.addr()).await;
    let mut target = sshd.target();
    target.port = between.addr.port();
    let known = format!("[127.0.0.1]:{} {}", target.port, public("ed25519"));
    let material = sshd.material(&known, "ed25519").await;
    let connection = SshConnection::dial(&target, &[between.addr], &material, limits).await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(connection.open_socket(&[echo.path()], SOON).await.unwrap());
    }
    between.stop.send(true).unwrap();
    for mut stream in streams {
        tokio::spawn(async move { while stream.write_all(&vec![0; 65536]).await.is_ok() {} });
    }
    (connection, between)
}

/// Until nothing more goes into the socket.
async fn full(between: &Between) {
    let mut last = 0;
    let mut same = 0;
    eventually("the send buffer is full", || {
        let now = between.queued();
        same = if now > 0 && now == last { same + 1 } else { 0 };
        last = now;
        same > 20
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_given_up_though_the_session_sits_in_a_write() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    // Keepalives cannot be sent: the inactivity timer alone must do it (fault 1).
    let (connection, between) =
        stuck(&sshd, &echo, &SshLimits { tcp_user_timeout: patient().tcp_user_timeout, ..quick() }).await;
    let error = timeout(Duration::from_secs(6), connection.why_closed()).await.expect("given up in time");
    assert_eq!(told(&error), (Class::Transient, Reason::Unreachable));
    eventually("no task sits in it", || connection.is_closed()).await;
    connection.abort();
    eventually("no socket is left", || sockets_to(between.addr.port()).is_empty()).await;
}

#[tokio::test]
async fn an_abort_frees_a_session_that_sits_in_a_write_at_once() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let (connection, between) = stuck(&sshd, &echo, &patient()).await;
    full(&between).await;
    assert!(!connection.is_closed());
    let since = Instant::now();
    connection.abort();
    timeout(SOON, connection.closed()).await.unwrap();
    eventually("no socket is left", || sockets_to(between.addr.port()).is_empty()).await;
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_dropped_connection_that_sits_in_a_write_leaves_no_task() {
    let (sshd, echo) = (Sshd::start(""), Echo::start());
    let limits = SshLimits { tcp_user_timeout: Duration::from_secs(1), ..patient() };
    let (connection, between) = stuck(&sshd, &echo, &limits).await;
    full(&between).await;
    let ending = connection.0.ending.clone();
    drop(connection);
    timeout(SOON, ending.ended()).await.expect("the task has ended");
    eventually("no socket is left", || sockets_to(between.addr.port()).is_empty()).await;
}

#[tokio::test]
async fn twenty_connections_leave_nothing() {
    let sshd = Sshd::start("MaxStartups 200");
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for _ in 0..20 {
        drop(sshd.dial(&SshLimits::default()).await);
    }
    eventually("no socket is left", || sshd.our_sockets().is_empty()).await;
    eventually("no task is left", || metrics.num_alive_tasks() == before).await;
    eventually("the host has no session left", || sshd.sessions().is_empty()).await;
}

#[tokio::test]
async fn what_is_shown_of_a_connection_has_no_key_in_it() {
    let sshd = Sshd::start("");
    let connection = sshd.dial(&SshLimits::default()).await;
    let shown = format!("{connection:?}");
    assert!(shown.contains("127.0.0.1") && shown.len() < 200, "{shown}");
}
