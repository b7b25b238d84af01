//! What a generated Squid lets through, and to whom. All traffic stays on loopback.

use std::net::SocketAddr;

use base64_of::basic;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Answers each connection with the request that it got, as the body.
async fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let request = head(&mut stream).await;
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}", request.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

/// Up to the empty line, or what came before the end.
async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") && text.len() < 16 * 1024 {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

struct Client {
    proxy: SocketAddr,
    authorization: String,
}

impl Client {
    fn of(instance: &Instance) -> Self {
        let Endpoint { host, port, .. } = instance.endpoint.as_ref().expect("an address");
        let proxy = SocketAddr::new(host.parse().expect("an address"), *port);
        Self { proxy, authorization: instance.generated.as_ref().map(basic).unwrap_or_default() }
    }

    fn with(mut self, authorization: String) -> Self {
        self.authorization = authorization;
        self
    }

    async fn ask(&self, request: &str) -> (TcpStream, String) {
        let asked = async {
            let mut stream = TcpStream::connect(self.proxy).await.expect("the proxy listens");
            stream.write_all(format!("{request}{}\r\n", self.authorization).as_bytes()).await.expect("a request");
            let answer = head(&mut stream).await;
            (stream, answer)
        };
        tokio::time::timeout(Duration::from_secs(15), asked).await.expect("an answer in time")
    }

    async fn connect(&self, to: &str) -> u16 {
        status(&self.ask(&format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n")).await.1)
    }

    async fn get(&self, url: &str) -> u16 {
        status(&self.ask(&format!("GET {url} HTTP/1.1\r\nHost: x\r\n")).await.1)
    }
}

fn status(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no answer: {head:?}"))
}

fn allow(text: &str, port: Option<u16>) -> AllowedDestination {
    AllowedDestination { net: text.parse().expect("a network"), port }
}

#[tokio::test]
async fn a_squid_that_runs_with_an_older_configuration_says_so_until_it_is_made_anew() {
    let Some(mut rig) = rig() else { return };
    let open = |text: &str| AllowedDestination { net: text.parse().expect("a network"), port: None };
    rig.entry.allow_destinations = vec![open("10.1.0.0/16"), open("10.2.0.0/16")];
    let (mark, made) = rig.made().await;
    assert_eq!(made.outdated, None);
    rig.entry.allow_destinations = vec![open("10.2.0.0/16")];
    let seen = rig.process().get(&mark).await.expect("an instance");
    let outdated = seen.outdated.clone().expect("narrowed, and not applied");
    assert!(outdated.contains("still reaches 10.1.0.0/16"), "{outdated}");
    let listed = rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list");
    assert_eq!(listed[0].instance, seen, "by the list, too");

    rig.process().delete(&mark).await.expect("a delete");
    let anew = rig.process().create(&rig.spec(&mark)).await.expect("a create");
    assert_eq!(anew.outdated, None);
    rig.entry.auth = Auth::Generated;
    let seen = rig.process().get(&mark).await.expect("an instance");
    assert!(seen.outdated.as_deref().is_some_and(|words| words.contains("`auth`")), "{seen:?}");
    // Credentials of the Proxy's own Secret are asked for whatever `auth` says.
    rig.entry.auth = Auth::None;
    let given = rig.mark();
    let credentials = Credentials { username: "u".into(), password: Arc::new("p".to_owned().into()) };
    let spec = InstanceSpec { credentials: Some(credentials), ..rig.spec(&given) };
    let made = rig.process().create(&spec).await.expect("a create");
    assert_eq!(made.outdated, None, "{made:?}");
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_refused_in_every_spelling() {
    let Some(rig) = rig() else { return };
    let origin = origin().await;
    let (_, instance) = rig.made().await;
    let client = Client::of(&instance);
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "localhost",
        "LOCALHOST.",
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "[::1]",
        "[::]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::10.0.0.1]",
        "[64:ff9b:1::8.8.8.8]",
        "[::ffff:0:8.8.8.8]",
        "[::127.0.0.1]",
        "[2001::1]",
        "[2002:7f00:1::1]",
        "[fd00::1]",
        "[fe80::1]",
    ] {
        assert_eq!(client.connect(&format!("{host}:443")).await, 403, "CONNECT {host}:443");
        assert_eq!(client.get(&format!("http://{host}/")).await, 403, "GET http://{host}/");
    }
    assert_eq!(client.connect(&origin.to_string()).await, 403);
    assert_eq!(client.get(&format!("http://{origin}/")).await, 403);
    // Neither Squid's own pages, nor other schemes, nor other ports of the internet.
    let own = client.proxy;
    assert_eq!(client.get(&format!("http://{own}/squid-internal-mgr/info")).await, 403);
    assert_eq!(client.get("ftp://203.0.113.9/").await, 403);
    assert_eq!(client.get("https://203.0.113.9/").await, 403);
    assert_eq!(client.get("http://203.0.113.9:8080/").await, 403);
    assert_eq!(client.connect("203.0.113.9:80").await, 403);
    assert_eq!(client.connect("203.0.113.9:22").await, 403);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_told_as_denied() {
    let Some(rig) = rig() else { return };
    let (_, instance) = rig.made().await;
    let answer = Client::of(&instance).connect("no-such-name.invalid:443").await;
    assert!((500..600).contains(&answer), "{answer}");
}

#[tokio::test]
async fn an_allowed_port_of_an_address_is_reached_by_both_ways_and_its_other_ports_are_not() {
    let Some(mut rig) = rig() else { return };
    let (origin, other) = (origin().await, origin().await);
    rig.entry.allow_destinations = vec![allow("127.0.0.1/32", Some(origin.port()))];
    let (_, instance) = rig.made().await;
    let client = Client::of(&instance);

    let (mut tunnel, answer) = client.ask(&format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n")).await;
    assert_eq!(status(&answer), 200);
    tunnel.write_all(b"GET /through HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("a tunnel");
    assert_eq!(status(&head(&mut tunnel).await), 200);
    assert_eq!(client.get(&format!("http://{origin}/")).await, 200);
    // By a name too, as all that it resolves to is allowed.
    let localhost_is_v4_only =
        tokio::net::lookup_host(("localhost", 0)).await.is_ok_and(|mut all| all.all(|a| a.is_ipv4()));
    let by_name = client.connect(&format!("localhost:{}", origin.port())).await;
    assert_eq!(by_name, if localhost_is_v4_only { 200 } else { 403 });

    assert_eq!(client.connect(&other.to_string()).await, 403);
    assert_eq!(client.connect(&format!("127.0.0.2:{}", origin.port())).await, 403);
    assert_eq!(client.connect(&format!("203.0.113.9:{}", origin.port())).await, 403, "an open port of the internet");
}

#[tokio::test]
async fn a_network_allowed_without_a_port_is_reached_at_every_port() {
    let Some(mut rig) = rig() else { return };
    let (one, two) = (origin().await, origin().await);
    rig.entry.allow_destinations = vec![allow("127.0.0.0/8", None)];
    let (_, instance) = rig.made().await;
    let client = Client::of(&instance);
    for origin in [one, two] {
        assert_eq!(client.connect(&origin.to_string()).await, 200);
        assert_eq!(client.get(&format!("http://{origin}/")).await, 200);
    }
    assert_eq!(client.connect("10.0.0.1:443").await, 403);
    assert_eq!(client.connect("203.0.113.9:22").await, 403);
}

#[tokio::test]
async fn the_operators_own_targets_are_reached_and_only_as_they_are_named() {
    let Some(mut rig) = rig() else { return };
    let (by_name, echo) = (origin().await, origin().await);
    let url = format!("http://localhost:{}/generate_204", by_name.port()).parse().expect("a URL");
    rig.targets = vec![Opening::probe_target(&url).expect("a target"), Opening::echo(echo)];
    let (_, instance) = rig.made().await;
    let client = Client::of(&instance);
    assert_eq!(client.connect(&format!("localhost:{}", by_name.port())).await, 200);
    assert_eq!(client.connect(&by_name.to_string()).await, 403);
    assert_eq!(client.connect(&echo.to_string()).await, 200);
}

#[tokio::test]
async fn nobody_is_told_of_the_proxy_or_of_its_client() {
    let Some(mut rig) = rig() else { return };
    let origin = origin().await;
    rig.entry.allow_destinations = vec![allow("127.0.0.0/8", None)];
    let (_, instance) = rig.made().await;
    let request = format!(
        "GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\nX-Forwarded-For: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nConnection: close\r\n"
    );
    let (mut stream, answer) = Client::of(&instance).ask(&request).await;
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.expect("the body");
    for (what, text) in [("the origin", &seen), ("the client", &answer)] {
        let lower = text.to_lowercase();
        for header in ["via:", "forwarded", "x-cache", "squid", "10.9.9.9"] {
            assert!(!lower.contains(header), "{what} sees `{header}`: {text}");
        }
    }
    assert!(seen.starts_with("GET / "), "{seen}");
}

#[tokio::test]
async fn generated_credentials_are_asked_for_and_work() {
    let Some(mut rig) = rig() else { return };
    let origin = origin().await.to_string();
    rig.entry.allow_destinations = vec![allow("127.0.0.0/8", None)];
    rig.entry.auth = Auth::Generated;
    let (_, instance) = rig.made().await;
    let (_, neighbour) = rig.made().await;
    let client = || Client::of(&instance);
    assert_eq!(client().connect(&origin).await, 200);
    assert_eq!(client().with(String::new()).connect(&origin).await, 407);
    assert_eq!(client().with(basic(neighbour.generated.as_ref().expect("credentials"))).connect(&origin).await, 407);
    // Without credentials not even a refusal tells of a destination.
    assert_eq!(client().with(String::new()).connect("10.0.0.1:443").await, 407);
    assert_eq!(client().connect("10.0.0.1:443").await, 403);
}

#[tokio::test]
async fn given_credentials_win_over_generated_ones_and_a_changed_secret_is_taken_over() {
    let Some(mut rig) = rig() else { return };
    let origin = origin().await.to_string();
    rig.entry.allow_destinations = vec![allow("127.0.0.0/8", None)];
    rig.entry.auth = Auth::Generated;
    let given = |password: &str| Credentials {
        username: "Ann".into(),
        password: Arc::new(SecretString::from(password.to_owned())),
    };
    let first = given("a longer password: with % and blanks");
    let mark = rig.mark();
    let mut spec = rig.spec(&mark);
    spec.credentials = Some(first.clone());
    let instance = rig.process().create(&spec).await.expect("a create");
    assert!(instance.generated.is_none());
    let client = || Client::of(&instance);
    assert_eq!(client().with(basic(&first)).connect(&origin).await, 200);
    assert_eq!(client().with(String::new()).connect(&origin).await, 407);
    let kept = fs::read_to_string(rig.folder(&mark).join(directory::PASSWORDS)).expect("hashes");
    assert!(!kept.contains(first.password.expose_secret()));

    let second = given("another");
    spec.credentials = Some(second.clone());
    rig.process().create(&spec).await.expect("a create");
    assert_eq!(client().with(basic(&second)).connect(&origin).await, 200);
}

mod base64_of {
    use secrecy::ExposeSecret as _;

    use super::Credentials;

    /// `Proxy-Authorization` with these credentials.
    pub(super) fn basic(credentials: &Credentials) -> String {
        let plain = format!("{}:{}", credentials.username, credentials.password.expose_secret());
        format!("Proxy-Authorization: Basic {}\r\n", encode(plain.as_bytes()))
    }

    fn encode(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let all = three.iter().fold(0_u32, |all, &byte| all << 8 | u32::from(byte)) << (8 * (3 - three.len()));
            for n in 0..4 {
                let digit = usize::try_from(all >> (18 - 6 * n) & 63).expect("six bits");
                text.push(if n <= three.len() { char::from(DIGITS[digit]) } else { '=' });
            }
        }
        text
    }
}
