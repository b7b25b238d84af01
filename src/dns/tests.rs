use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use hickory_resolver::Hosts;
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use super::{Dns, DnsError, Limits, configuration};

const LIMIT: Duration = Duration::from_secs(20);

/// A name server of its own port. `silent-*` is never answered, `slow.test` after 150 ms, `gone.test` does not exist,
/// everything else is 192.0.2.7 with a TTL of 0, so that no cache helps. IPv6 is never answered for `half.test`.
struct Server {
    port: u16,
    /// Datagrams seen, by name and query type.
    seen: Arc<Mutex<HashMap<(String, u16), usize>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let port = socket.local_addr().unwrap().port();
        let seen: Arc<Mutex<HashMap<(String, u16), usize>>> = Arc::default();
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            let mut buffer = [0_u8; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let (name, family, question) = read_question(&buffer[..length]);
                *noted.lock().unwrap().entry((name.clone(), family)).or_default() += 1;
                if name.starts_with("silent-") || (name == "half.test" && family == 28) {
                    continue;
                }
                let reply = reply(&buffer[..2], question, &name, family);
                let socket = socket.clone();
                tokio::spawn(async move {
                    if name == "slow.test" {
                        tokio::time::sleep(Duration::from_millis(150)).await;
                    }
                    let _ = socket.send_to(&reply, from).await;
                });
            }
        });
        Self { port, seen, task }
    }

    fn dns(&self, limits: Limits) -> Dns {
        let mut server = NameServerConfig::udp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        server.connections[0].port = self.port;
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut hosts = Hosts::default();
        hosts.read_hosts_conf("192.0.2.99 pinned.test\n".as_bytes()).unwrap();
        Dns::with(config, ResolverOpts::default(), hosts, limits)
    }

    /// Distinct names with this prefix that were asked for.
    fn names_seen(&self, prefix: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.keys().filter(|(name, family)| *family == 1 && name.starts_with(prefix)).count()
    }
}

/// Name, query type, and the question's bytes.
fn read_question(datagram: &[u8]) -> (String, u16, &[u8]) {
    let mut name = String::new();
    let mut at = 12;
    while datagram[at] != 0 {
        let end = at + 1 + usize::from(datagram[at]);
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(std::str::from_utf8(&datagram[at + 1..end]).unwrap());
        at = end;
    }
    let family = u16::from_be_bytes([datagram[at + 1], datagram[at + 2]]);
    (name.to_lowercase(), family, &datagram[12..at + 5])
}

fn reply(id: &[u8], question: &[u8], name: &str, family: u16) -> Vec<u8> {
    let refused = name == "gone.test";
    let answers = u8::from(family == 1 && !refused);
    let mut reply = id.to_vec();
    reply.extend([0x81, if refused { 0x83 } else { 0x80 }, 0, 1, 0, answers, 0, 0, 0, 0]);
    reply.extend(question);
    if answers == 1 {
        // The name by pointer, A, IN, TTL 0, four bytes.
        reply.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, 7]);
    }
    reply
}

/// A look-up that runs whether it is awaited or not.
fn spawn_look_up(
    dns: &Dns,
    host: String,
    limit: Duration,
) -> impl Future<Output = Result<Arc<[IpAddr]>, DnsError>> + use<> {
    let dns = dns.clone();
    let task = tokio::spawn(async move { dns.look_up(&host, limit).await });
    async { task.await.unwrap() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn each_kind_of_name_gets_its_answer() {
    let server = Server::start().await;
    let dns = server.dns(Limits::default());
    let answers: [(&str, Result<Vec<IpAddr>, DnsError>); 10] = [
        ("192.0.2.1", Ok(vec![ip("192.0.2.1")])),
        ("2001:db8::1", Ok(vec![ip("2001:db8::1")])),
        ("localhost", Ok(vec![ip("127.0.0.1"), ip("::1")])),
        ("LocalHost.", Ok(vec![ip("127.0.0.1"), ip("::1")])),
        ("pinned.test", Ok(vec![ip("192.0.2.99")])),
        ("Pinned.Test.", Ok(vec![ip("192.0.2.99")])),
        ("good.test", Ok(vec![ip("192.0.2.7")])),
        ("gone.test", Err(DnsError::NoAddress("gone.test".into()))),
        ("", Err(DnsError::NotAName("".into()))),
        ("a..b", Err(DnsError::NotAName("a..b".into()))),
    ];
    for (host, expected) in answers {
        let got = dns.look_up(host, LIMIT).await.map(|found| found.to_vec());
        assert_eq!(got, expected, "for `{host}`");
    }
    assert_eq!(server.names_seen("pinned"), 0, "a name of the hosts file went to the name server");
    assert_eq!(dns.in_flight(), 0);
}

#[tokio::test]
async fn a_silent_name_ends_at_the_callers_limit() {
    let server = Server::start().await;
    let dns = server.dns(Limits::default());
    let began = Instant::now();
    let limit = Duration::from_millis(200);
    let error = dns.look_up("silent-1.test", limit).await.unwrap_err();
    assert_eq!(error, DnsError::Silent("silent-1.test".into(), limit));
    assert!(began.elapsed() < Duration::from_secs(2), "took {:?}", began.elapsed());
    assert_eq!(dns.in_flight(), 0, "a look-up that nobody waits for went on");
}

#[tokio::test]
async fn a_family_that_does_not_answer_holds_up_the_other_only_a_moment() {
    let server = Server::start().await;
    let dns = server.dns(Limits::default());
    let began = Instant::now();
    assert_eq!(&*dns.look_up("half.test", LIMIT).await.unwrap(), [ip("192.0.2.7")]);
    assert!(began.elapsed() < Duration::from_secs(2), "took {:?}", began.elapsed());
}

#[tokio::test]
async fn callers_of_one_name_share_one_look_up() {
    let server = Server::start().await;
    let dns = server.dns(Limits::default());
    let answers = join_all((0..50).map(|_| dns.look_up("slow.test", LIMIT))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(server.seen.lock().unwrap()[&("slow.test".to_owned(), 1)], 1);
}

#[tokio::test]
async fn names_that_never_answer_are_bounded_and_stall_nobody_who_has_answered() {
    let server = Server::start().await;
    let limits = Limits { look_up: Duration::from_secs(10), at_once: 8 };
    let dns = server.dns(limits);
    dns.look_up("good.test", LIMIT).await.unwrap();

    let storm =
        (0..60).map(|n| spawn_look_up(&dns, format!("silent-{n}.test"), Duration::from_secs(3))).collect::<Vec<_>>();
    eventually(|| server.names_seen("silent-") == 4).await;
    assert_eq!(dns.in_flight(), 60);

    let began = Instant::now();
    for _ in 0..20 {
        dns.look_up("good.test", Duration::from_secs(1)).await.expect("a name that has answered before found no room");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "twenty look-ups took {:?}", began.elapsed());
    assert_eq!(server.names_seen("silent-"), 4, "more newcomers than half of the places");
    for look_up in storm {
        assert!(matches!(look_up.await, Err(DnsError::Silent(..))));
    }
    assert_eq!(dns.in_flight(), 0);
}

#[tokio::test]
async fn names_that_were_silent_do_not_hold_up_newcomers() {
    let server = Server::start().await;
    let dns = server.dns(Limits { look_up: Duration::from_secs(10), at_once: 8 });
    let ask_all = |limit| join_all((0..4).map(|n| spawn_look_up(&dns, format!("silent-{n}.test"), limit)));
    assert!(ask_all(Duration::from_millis(300)).await.iter().all(Result::is_err));
    assert_eq!(server.names_seen("silent-"), 4);

    server.seen.lock().unwrap().clear();
    let again = tokio::spawn(ask_all(Duration::from_secs(2)));
    eventually(|| server.names_seen("silent-") == 1).await;
    dns.look_up("newcomer.test", Duration::from_secs(1)).await.expect("a newcomer waited for silent names");
    assert_eq!(server.names_seen("silent-"), 1, "more silent names than their lane has places");
    assert!(again.await.unwrap().iter().all(Result::is_err));
}

#[tokio::test]
async fn without_a_name_server_in_the_configuration_the_local_one_is_asked() {
    for broken in ["", "# nothing\n", "search example.test\n"] {
        let read = hickory_resolver::system_conf::parse_resolv_conf(broken);
        let (config, _) = configuration(read);
        assert_eq!(config.name_servers()[0].ip, ip("127.0.0.1"), "for {broken:?}");
    }
    let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
    let (config, _) = configuration(Err(NetError::from(missing)));
    assert_eq!(config.name_servers()[0].ip, ip("127.0.0.1"));
    let read = hickory_resolver::system_conf::parse_resolv_conf("nameserver 192.0.2.53\n");
    assert_eq!(configuration(read).0.name_servers()[0].ip, ip("192.0.2.53"));
}

#[tokio::test]
async fn localhost_and_literals_work_with_the_configuration_of_this_machine() {
    let dns = Dns::system();
    assert_eq!(dns.look_up("localhost", LIMIT).await.unwrap()[0], ip("127.0.0.1"));
    assert_eq!(&*dns.look_up("::1", LIMIT).await.unwrap(), [ip("::1")]);
}

async fn eventually(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "did not come true within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
