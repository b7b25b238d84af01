//! An operator's HTTP, as a crawler and an administrator use it, and the way through a leased proxy.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::eventually;
use super::operator::TOKEN;

/// No answer takes longer, whatever the operator waits for.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Less than the operator keeps an idle connection (10 s): a request on one that it is just closing would be lost.
const IDLE_FOR: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    discovery: SocketAddr,
    admin: SocketAddr,
}

impl Api {
    pub(crate) fn new(discovery: SocketAddr, admin: SocketAddr) -> Self {
        egress_operator::crypto::install();
        let client = Client::builder().no_proxy().timeout(ANSWERS_WITHIN).pool_idle_timeout(IDLE_FOR).build().unwrap();
        Self { client, discovery, admin }
    }

    // --- admin

    pub(crate) async fn admin(&self, path: &str) -> reqwest::Result<(u16, String)> {
        self.admin_as(Method::GET, path, "").await
    }

    pub(crate) async fn admin_as(&self, method: Method, path: &str, body: &str) -> reqwest::Result<(u16, String)> {
        let url = format!("http://{}{path}", self.admin);
        let answer = self.client.request(method, url).body(body.to_owned()).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    pub(crate) async fn admin_json(&self, path: &str) -> Value {
        let (status, body) = self.admin(path).await.unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The line of a check in `/readyz?verbose`, mark included.
    pub(crate) async fn check(&self, name: &str) -> String {
        let (_, body) = self.admin("/readyz?verbose").await.unwrap();
        let of = |line: &&str| line.get(3..).is_some_and(|rest| rest.starts_with(&format!("{name}:")));
        body.lines().find(of).unwrap_or_else(|| panic!("no check `{name}` in {body}")).to_owned()
    }

    /// A sample of `/metrics`, by its name with its labels.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let (_, body) = self.admin("/metrics").await.unwrap();
        let of = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        body.lines().find_map(of)
    }

    /// A counter, which is not there before it counts.
    pub(crate) async fn count(&self, series: &str) -> f64 {
        self.metric(series).await.unwrap_or(0.0)
    }

    pub(crate) async fn probes(&self, result: &str) -> f64 {
        self.count(&format!("egress_probes_total{{result=\"{result}\"}}")).await
    }

    pub(crate) async fn problems(&self) -> Vec<Value> {
        let mut body = self.admin_json("/admin/problems").await;
        serde_json::from_value(body["problems"].take()).unwrap()
    }

    // --- leases

    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let url = format!("http://{}{path}", self.discovery);
        let mut request = self.client.request(method, url).bearer_auth(TOKEN);
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        (status, body)
    }

    /// Sends bytes as they are, with these headers and no others: the status, and the problem that is told.
    pub(crate) async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
        let url = format!("http://{}{path}", self.discovery);
        let mut request = self.client.request(method, url).body(body.to_owned());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{path}");
        (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Of an operator that may end while it is asked.
    #[allow(dead_code, reason = "used by the tests of the real binary alone")]
    pub(crate) async fn try_get(&self, path: &str) -> reqwest::Result<Value> {
        let url = format!("http://{}{path}", self.discovery);
        self.client.get(url).bearer_auth(TOKEN).send().await?.error_for_status()?.json().await
    }

    /// Asks for a lease of the Proxy with this attribute `n`.
    pub(crate) async fn try_lease(&self, name: &str) -> (u16, Value) {
        self.call(Method::POST, "/v1/leases", Some(&json!({"selectors": [{"n": name}], "ttlSeconds": 600}))).await
    }

    /// A lease of that Proxy, which has one.
    pub(crate) async fn lease(&self, name: &str) -> Value {
        let (status, mut body) = self.try_lease(name).await;
        assert_eq!(status, 201, "{body}");
        body["leases"][0].take()
    }

    pub(crate) async fn release(&self, lease: &Value) {
        let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        assert_eq!(self.call(Method::DELETE, &path, None).await.0, 204);
    }

    pub(crate) async fn proxies(&self) -> Vec<Value> {
        let mut body = self.get("/v1/proxies").await;
        serde_json::from_value(body["proxies"].take()).unwrap()
    }

    pub(crate) async fn proxy(&self, name: &str) -> Option<Value> {
        let name = format!("crawl/{name}");
        self.proxies().await.into_iter().find(|proxy| proxy["name"] == name.as_str())
    }

    pub(crate) async fn is(&self, name: &str, phase: &str) -> bool {
        self.proxy(name).await.is_some_and(|proxy| proxy["phase"] == phase)
    }

    pub(crate) async fn becomes(&self, name: &str, phase: &str) -> Value {
        eventually(&format!("{name} is {phase}"), async || {
            self.proxy(name).await.filter(|proxy| proxy["phase"] == phase)
        })
        .await
    }

    /// There are this many Proxies, and all of them are Ready.
    pub(crate) async fn all_ready(&self, count: usize) {
        eventually(&format!("{count} proxies are Ready"), async || {
            let proxies = self.proxies().await;
            (proxies.len() == count && proxies.iter().all(|proxy| proxy["phase"] == "Ready")).then_some(())
        })
        .await;
    }
}

/// Fetches by GET through a leased proxy.
pub(crate) async fn fetch(lease: &Value, url: &str) -> reqwest::Response {
    let proxy = reqwest::Proxy::all(lease["proxy"]["url"].as_str().unwrap()).unwrap();
    egress_operator::crypto::install();
    let client = Client::builder().proxy(proxy).timeout(ANSWERS_WITHIN).build().unwrap();
    client.get(url).send().await.unwrap()
}

/// CONNECTs through a leased proxy with its credentials: the status, and the tunnel if there is one.
pub(crate) async fn connect(lease: &Value, to: &str) -> (u16, TcpStream) {
    let proxy = &lease["proxy"];
    let auth = authorization(lease);
    let port = u16::try_from(proxy["port"].as_u64().unwrap()).unwrap();
    let mut stream = TcpStream::connect((proxy["host"].as_str().unwrap(), port)).await.unwrap();
    let head = say(&mut stream, &format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{auth}\r\n")).await;
    (status_of(&head), stream)
}

/// The header with a lease's credentials, if it has some.
pub(crate) fn authorization(lease: &Value) -> String {
    match (lease["proxy"]["username"].as_str(), lease["proxy"]["password"].as_str()) {
        (Some(user), Some(password)) => {
            format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("{user}:{password}")))
        }
        _ => String::new(),
    }
}

/// Sends a request, and reads the head of the answer.
pub(crate) async fn say(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    let answer = async {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    };
    tokio::time::timeout(ANSWERS_WITHIN, answer).await.expect("an answer in time")
}

pub(crate) fn status_of(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}
