//! Ten thousand Proxies on a real API server: how soon all are Ready, with how many writes, in how much memory.
//!
//! `cargo bench --bench scale`. Needs Squid and the Kubernetes programs of the tests (`scripts/kube-tools.sh`).
//!
//! ```text
//!   ours    the objects are there; from the start of the operator until every status says Ready
//!   bare    kube alone: as many status writes as ours made, of the same size, by the same verb, as many at once
//! ```
//! All Proxies are external ones behind one real Squid, probed in earnest. etcd does not sync to disk.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "the plane is that of the tests")]

#[path = "../measure.rs"]
mod measure;
#[path = "../../tests/cluster/plane.rs"]
mod plane;
#[path = "../../tests/e2e/ports.rs"]
mod ports;
#[path = "../squid.rs"]
mod squid;

use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use egress_operator::crd::proxy::Proxy;
use futures::StreamExt as _;
use futures::stream;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use measure::{Section, Trouble, is_quick, plain, row, say};
use plane::{Options, Plane};
use squid::Squid;

const BINARY: &str = env!("CARGO_BIN_EXE_egress-proxies-operator");

/// Writes in flight: as many as the operator has.
const AT_ONCE: usize = egress_actors::records::AT_ONCE;

/// So long nothing may be written once all is Ready.
const STEADY: Duration = Duration::from_secs(60);

const CONVERGED_WITHIN: Duration = Duration::from_mins(10);

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    measure::run("scale", true, || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut section = Section::new("Ten thousand Proxies on a real API server");
        section.paragraph(
            "External Proxies behind one real Squid, probed in earnest; real etcd (without syncing to disk) and \
             kube-apiserver on the same machine. `ours` is from the start of the operator, with all objects there, until \
             every status says Ready; `bare` is a kube client that makes the same writes: as many, server-side apply of a \
             status of the same size, as many in flight. RSS is that of the operator after it has converged.",
        );
        let sizes: &[usize] = if is_quick() { &[500] } else { &[5_000, 10_000] };
        let mut rows = vec![row([
            &"Proxies",
            &"ours s",
            &"bare s",
            &"of bare",
            &"writes each",
            &"RSS MiB",
            &"writes then, in 60 s",
        ])];
        for &size in sizes {
            let run = runtime.block_on(Run::of(size))?;
            rows.push(run.row());
            run.result(&mut section);
        }
        section.table(&rows);
        Ok(section)
    })
}

/// What one fleet came to.
struct Run {
    size: usize,
    ours: Duration,
    bare: Duration,
    writes: f64,
    resident: f64,
    later: f64,
}

impl Run {
    async fn of(size: usize) -> Result<Self, Trouble> {
        let target = Target::start()?;
        let squid = Squid::start(&[target.port])?;
        let plane = Plane::start(Options::default()).await;
        let namespace = plane.namespace("scale").await;
        let proxies: Api<Proxy> = Api::namespaced(plane.client().await, &namespace);
        let begun = Instant::now();
        make(&proxies, size, squid.port).await?;
        say(&format!("  {size} objects made in {:.1?}", begun.elapsed()));

        let operator = Operator::start(&plane, &namespace, &target)?;
        let begun = Instant::now();
        converged(&proxies, size, begun).await?;
        let ours = begun.elapsed();
        let written = operator.writes().await?;
        say(&format!("  ours: {ours:.1?}, {written} writes"));
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = operator.writes().await?;
        tokio::time::sleep(if is_quick() { Duration::from_secs(5) } else { STEADY }).await;
        let later = operator.writes().await? - before;
        let resident = operator.resident()?;
        drop(operator);

        let bare = bare(&proxies, size, before).await?;
        say(&format!("  bare: {bare:.1?}"));
        #[expect(clippy::cast_precision_loss)]
        let writes = before / size as f64;
        Ok(Self { size, ours, bare, writes, resident, later })
    }

    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.bare.as_secs_f64()
    }

    fn row(&self) -> Vec<String> {
        row([
            &self.size,
            &plain(self.ours.as_secs_f64()),
            &plain(self.bare.as_secs_f64()),
            &plain(self.ratio()),
            &plain(self.writes),
            &plain(self.resident),
            &plain(self.later),
        ])
    }

    fn result(&self, section: &mut Section) {
        section.result(
            "scale",
            &format!("proxies_{}", self.size),
            &[
                ("converge_ratio", self.ratio()),
                ("converge_s", self.ours.as_secs_f64()),
                ("bare_s", self.bare.as_secs_f64()),
                ("writes_per_proxy", self.writes),
                ("rss_mib", self.resident),
                ("steady_writes", self.later),
            ],
        );
    }
}

async fn make(proxies: &Api<Proxy>, size: usize, port: u16) -> Result<(), Trouble> {
    let made = stream::iter(0..size).map(|number| {
        let spec = json!({
            "external": {"url": format!("http://127.0.0.1:{port}")},
            "attributes": {"tier": "dc", "n": number.to_string()},
            // Later than the end of the run: what is measured is the way to Ready.
            "healthCheck": {"interval": "10m", "timeout": "10s"},
        });
        async move {
            let proxy = Proxy::new(&format!("px-{number}"), serde_json::from_value(spec)?);
            proxies.create(&PostParams::default(), &proxy).await?;
            Ok::<_, Trouble>(())
        }
    });
    let mut made = made.buffer_unordered(AT_ONCE);
    while let Some(one) = made.next().await {
        one?;
    }
    Ok(())
}

/// Waits until the API server has nobody who is not Ready.
async fn converged(proxies: &Api<Proxy>, size: usize, begun: Instant) -> Result<(), Trouble> {
    let ready = ListParams::default().fields("status.phase=Ready");
    loop {
        let found = proxies.list_metadata(&ready).await?.items.len();
        if found == size {
            return Ok(());
        }
        if begun.elapsed() > CONVERGED_WITHIN {
            return Err(format!("after {CONVERGED_WITHIN:?} {found} of {size} are Ready").into());
        }
        // A list of all is work for the server too: the more are missing, the longer until the next.
        let missing = u64::try_from(size - found)?;
        tokio::time::sleep(Duration::from_millis(200 + missing.min(10_000) / 5)).await;
    }
}

/// As many status writes as ours, of statuses as ours.
async fn bare(proxies: &Api<Proxy>, size: usize, writes: f64) -> Result<Duration, Trouble> {
    let listed = proxies.list(&ListParams::default()).await?.items;
    let statuses: Vec<(String, Value)> = listed
        .into_iter()
        .map(|proxy| {
            let name = proxy.metadata.name.unwrap_or_default();
            Ok((name, serde_json::to_value(proxy.status)?))
        })
        .collect::<Result<_, Trouble>>()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let writes = writes as usize;
    let begun = Instant::now();
    let written = stream::iter(0..writes).map(|number| {
        let (name, status) = &statuses[number % size];
        let mut status = status.clone();
        // Each write changes something, as ours do.
        status["observedGeneration"] = json!(2 + number / size);
        let object = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": name}, "status": status,
        });
        async move {
            let params = PatchParams::apply("bare").force();
            proxies.patch_status(name, &params, &Patch::Apply(&object)).await
        }
    });
    let mut written = written.buffer_unordered(AT_ONCE);
    while let Some(one) = written.next().await {
        one?;
    }
    Ok(begun.elapsed())
}

// --- the operator

struct Operator {
    child: Child,
    admin: u16,
    http: reqwest::Client,
    _dir: tempfile::TempDir,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Operator {
    fn start(plane: &Plane, namespace: &str, target: &Target) -> Result<Self, Trouble> {
        let dir = tempfile::tempdir()?;
        let providers = dir.path().join("providers.yaml");
        std::fs::write(&providers, "providers: []\n")?;
        let own = ports::free(2);
        let (lease, admin) = (*own.start(), own.start() + 1);
        let log = std::fs::File::create(dir.path().join("log"))?;
        let child = Command::new(BINARY)
            .env_clear()
            .env("KUBECONFIG", plane.kubeconfig())
            .env("DISCOVERY_TOKEN", "token-of-the-benchmark")
            .args(["--proxy-namespace", namespace, "--health-workers", "400", "--log-format", "json"])
            .args(["--probe-target", &format!("http://127.0.0.1:{}/echo", target.port)])
            .args(["--discovery-addr", &format!("127.0.0.1:{lease}"), "--admin-addr", &format!("127.0.0.1:{admin}")])
            .arg("--providers-config")
            .arg(&providers)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        egress_operator::crypto::install();
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { child, admin, http, _dir: dir })
    }

    /// Writes to the API server so far.
    async fn writes(&self) -> Result<f64, Trouble> {
        let page = self.http.get(format!("http://127.0.0.1:{}/metrics", self.admin)).send().await?.text().await?;
        let of = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            series.starts_with("egress_api_writes_total").then(|| value.parse::<f64>().ok())?
        };
        Ok(page.lines().filter_map(of).sum())
    }

    fn resident(&self) -> Result<f64, Trouble> {
        let process = procfs::process::Process::new(i32::try_from(self.child.id())?)?;
        #[expect(clippy::cast_precision_loss)]
        let mebibytes = (process.statm()?.resident * procfs::page_size()) as f64 / (1024.0 * 1024.0);
        Ok(mebibytes)
    }
}

/// Answers every request, on a thread of its own.
struct Target {
    port: u16,
}

impl Target {
    fn start() -> Result<Self, Trouble> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async move {
                if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                    egress_operator::echo::serve(listener, std::future::pending()).await;
                }
            });
        });
        Ok(Self { port })
    }
}
