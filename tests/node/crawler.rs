//! Crawlers: one that asks when it is told to, and some that never stop asking and keep count of what they were told.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// No answer takes longer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Crawler {
    client: Client,
    url: String,
    token: String,
}

impl Crawler {
    /// Asks at the Service's own address, over a new connection each time.
    pub(crate) async fn of(cluster: &Cluster) -> Self {
        Self::at(&cluster.discovery().await, &cluster.token().await, 0)
    }

    /// The same over connections that are kept.
    pub(crate) async fn that_keeps_connections(cluster: &Cluster) -> Self {
        Self::at(&cluster.discovery().await, &cluster.token().await, 4)
    }

    pub(crate) fn at(url: &str, token: &str, idle: usize) -> Self {
        egress_operator::crypto::install();
        let client = Client::builder().no_proxy().timeout(ANSWERS_WITHIN).pool_max_idle_per_host(idle).build().unwrap();
        Self { client, url: url.into(), token: token.into() }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<Value>) -> reqwest::Result<Response> {
        let request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        match body {
            Some(body) => request.json(&body),
            None => request,
        }
        .send()
        .await
    }

    pub(crate) async fn ask(&self, n: &str) -> reqwest::Result<Response> {
        self.send(Method::POST, "/v1/leases", Some(json!({"selectors": [{"n": n}], "ttlSeconds": 300}))).await
    }

    /// A lease of the Proxy with this attribute.
    pub(crate) async fn lease(&self, n: &str) -> Value {
        crate::eventually(&format!("{n} is leased"), async || {
            let answer = self.ask(n).await.ok().filter(|answer| answer.status() == 201)?;
            Some(answer.json::<Value>().await.ok()?["leases"][0].take())
        })
        .await
    }

    pub(crate) async fn renew(&self, id: &str) -> reqwest::Result<Response> {
        self.send(Method::POST, &format!("/v1/leases/{id}/renew"), Some(json!({"ttlSeconds": 300}))).await
    }

    pub(crate) async fn release(&self, id: &str) -> reqwest::Result<Response> {
        self.send(Method::DELETE, &format!("/v1/leases/{id}"), None).await
    }
}

/// A request through a leased proxy: the status, or what went wrong.
pub(crate) async fn fetch(lease: &Value, url: &str) -> Result<u16, String> {
    let proxy = reqwest::Proxy::all(lease["proxy"]["url"].as_str().unwrap()).unwrap();
    egress_operator::crypto::install();
    let client = Client::builder().proxy(proxy).timeout(ANSWERS_WITHIN).build().unwrap();
    client.get(url).send().await.map(|answer| answer.status().as_u16()).map_err(|error| error.to_string())
}

/// What crawlers were told, from one moment to another.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By what was asked and what came.
    pub(crate) counts: BTreeMap<(&'static str, String), u32>,
    /// The longest time without a lease granted or renewed.
    pub(crate) longest_gap: Duration,
    last_good: Option<Instant>,
}

impl Tally {
    /// Everything that is no answer of ours, or a wrong one.
    pub(crate) fn unexpected(&self) -> Vec<String> {
        let expected = ["ok", "503 not_ready, Retry-After", "404 no_such_lease"];
        let all = self.counts.iter().filter(|((_, told), _)| !expected.contains(&told.as_str()));
        all.map(|((asked, told), count)| format!("{asked}: {told} ({count} times)")).collect()
    }

    pub(crate) fn count(&self, told: &str) -> u32 {
        self.counts.iter().filter(|((_, what), _)| what == told).map(|(_, count)| count).sum()
    }

    pub(crate) fn line(&self) -> String {
        let each: Vec<_> = self.counts.iter().map(|((asked, told), count)| format!("{asked} {told} {count}")).collect();
        format!("{} (longest gap {} ms)", each.join(", "), self.longest_gap.as_millis())
    }

    fn note(&mut self, asked: &'static str, told: String) {
        if told == "ok" {
            let now = Instant::now();
            if let Some(last) = self.last_good.replace(now) {
                self.longest_gap = self.longest_gap.max(now - last);
            }
        }
        *self.counts.entry((asked, told)).or_default() += 1;
    }
}

/// Ask without a pause until they are stopped: one asks for leases and gives them back over new connections, the other
/// renews one over a kept connection, and asks for another when it is told that there is no such lease.
pub(crate) struct Crawlers {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Crawlers {
    pub(crate) async fn start(cluster: &Cluster, n: &'static str) -> Self {
        let (tally, stop) = (Arc::<Mutex<Tally>>::default(), Arc::<AtomicBool>::default());
        let (fresh, kept) = (Crawler::of(cluster).await, Crawler::that_keeps_connections(cluster).await);
        let (of_asking, of_renewing) = ((tally.clone(), stop.clone()), (tally.clone(), stop.clone()));
        let tasks = vec![
            tokio::spawn(async move {
                while !of_asking.1.load(Ordering::SeqCst) {
                    if let Some(id) = granted(&of_asking.0, fresh.ask(n).await).await {
                        let told = told(fresh.release(&id).await).await.0;
                        of_asking.0.lock().unwrap().note("release", told);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }),
            tokio::spawn(async move {
                let mut held = None;
                while !of_renewing.1.load(Ordering::SeqCst) {
                    held = match held.take() {
                        None => granted(&of_renewing.0, kept.ask(n).await).await,
                        Some(id) => {
                            let told = told(kept.renew(&id).await).await.0;
                            let lost = told.starts_with("404") || told.starts_with("410");
                            of_renewing.0.lock().unwrap().note("renew", told);
                            (!lost).then_some(id)
                        }
                    };
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                if let Some(id) = held {
                    let _gone = kept.release(&id).await;
                }
            }),
        ];
        Self { tally, stop, tasks }
    }

    /// How often they succeeded so far.
    pub(crate) fn good(&self) -> u32 {
        self.tally.lock().unwrap().count("ok")
    }

    /// Something came that was not what they asked for.
    pub(crate) fn is_missed(&self) -> bool {
        self.tally.lock().unwrap().counts.keys().any(|(_, told)| told != "ok")
    }

    /// All that they were told.
    pub(crate) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut *self.tally.lock().unwrap())
    }
}

async fn granted(tally: &Mutex<Tally>, answer: reqwest::Result<Response>) -> Option<String> {
    let (told, body) = told(answer).await;
    tally.lock().unwrap().note("ask", told);
    body["leases"][0]["id"].as_str().map(str::to_owned)
}

/// An answer in a few words, and its body.
async fn told(answer: reqwest::Result<Response>) -> (String, Value) {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return (went_wrong(&error), Value::Null),
    };
    let status = answer.status();
    let retry = answer.headers().get("retry-after").is_some();
    let body: Value = match answer.text().await {
        Ok(text) => serde_json::from_str(&text).unwrap_or_default(),
        Err(error) => return (format!("cut off: {error}"), Value::Null),
    };
    if status.is_success() {
        return ("ok".to_owned(), body);
    }
    let code = body["code"].as_str().unwrap_or("no code");
    (format!("{} {code}{}", status.as_u16(), if retry { ", Retry-After" } else { "" }), body)
}

fn went_wrong(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return format!("{:?}", io.kind());
        }
        cause = inner.source();
    }
    if error.is_timeout() { "timeout".to_owned() } else { error.to_string() }
}
