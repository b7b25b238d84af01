//! A Kubernetes control plane for tests: real etcd and kube-apiserver, about 4 s from nothing, on loopback.
//!
//! ```text
//! let plane = Plane::shared().await;                      one for the whole test binary; never break it
//! let plane = Plane::start(Options::default()).await;     one of your own: stop, freeze, restart as you like
//! plane.client().await            kube::Client as cluster admin (one per test: it belongs to the test's runtime)
//! plane.namespace("life").await   a fresh namespace with its `default` ServiceAccount -> its name
//! plane.token(ns, sa).await       a real ServiceAccount token;  plane.client_for(&token).await;  plane.kubeconfig_for(&token)
//! plane.kubectl(&["get", "px"])   the real kubectl -> Said {ok, out, err}
//! plane.api.freeze() .thaw() .stop() .kill()       SIGSTOP, SIGCONT, SIGTERM, SIGKILL; the same on plane.etcd
//! plane.start_api().await  plane.start_etcd().await       again on the same port and data, until it answers
//! plane.audited()                 every request so far, from the audit log
//! ```
//! Our CRDs (`config/crd`) are installed. `Options {audit, controllers}`; `controllers` also starts kube-controller-manager, without which no namespace ever
//! goes away, nothing is garbage-collected and no Deployment makes pods. There is no kubelet and no scheduler: a test
//! plays them. RBAC and the admission of ServiceAccounts are on.
//!
//! Nothing outlives the test process, however it ends: each child is killed by the kernel when we die, and a janitor
//! removes the directory. Missing programs are an error that says what to run.

#![allow(dead_code, reason = "the kit for all tests to come; not every verb has its user yet")]

#[path = "plane/audit.rs"]
mod audit;
#[path = "plane/binaries.rs"]
pub(crate) mod binaries;
#[path = "plane/part.rs"]
mod part;
#[path = "plane/settings.rs"]
mod settings;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use egress_operator::crd::manifests;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Client, Config};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;

pub(crate) use self::audit::Audited;
pub(crate) use self::part::Part;
use self::settings::Ports;

/// How long a part may take to answer after its start. Ample: tests compile beside other tests.
const UP_WITHIN: Duration = Duration::from_secs(90);

/// Limit of one look at whether a part answers.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// What a plane has beside etcd and API server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Keep an audit log of every request (level Metadata), for [`Plane::audited`].
    pub(crate) audit: bool,
    /// Start kube-controller-manager too.
    pub(crate) controllers: bool,
}

/// A running control plane.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) etcd: Part,
    pub(crate) api: Part,
    pub(crate) controllers: Option<Part>,
    ports: Ports,
    namespaces: AtomicU32,
    kubeconfigs: AtomicU32,
    // Dropped after the parts, whose data is in it.
    dir: TempDir,
}

/// What a program said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Plane {
    /// The plane of this test binary, with an audit log. Started by whoever asks first.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Plane> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start(Options { audit: true, controllers: false })).await
    }

    /// A plane of one's own, ended when it is dropped.
    pub(crate) async fn start(options: Options) -> Self {
        let begun = Instant::now();
        let dir = tempfile::Builder::new().prefix("egress-plane-").tempdir().unwrap();
        part::clean_after_us(dir.path());
        let ports = Ports::free();
        settings::write(dir.path());
        let etcd = Part::new("etcd", dir.path(), settings::etcd(dir.path(), ports));
        let api = Part::new("kube-apiserver", dir.path(), settings::api(dir.path(), ports, options));
        let mut plane = Self {
            etcd,
            api,
            controllers: None,
            ports,
            namespaces: AtomicU32::new(0),
            kubeconfigs: AtomicU32::new(0),
            dir,
        };
        plane.start_etcd().await;
        plane.start_api().await;
        plane.install_definitions().await;
        if options.controllers {
            settings::write_kubeconfig(
                &plane.dir.path().join("controllers.yaml"),
                &plane.url(),
                &plane.authority(),
                settings::ADMIN,
            );
            let controllers =
                Part::new("kube-controller-manager", plane.dir.path(), settings::controllers(plane.dir.path()));
            controllers.start();
            plane.controllers = Some(controllers);
        }
        eprintln!("control plane at {} up in {:.1?}", plane.url(), begun.elapsed());
        plane
    }

    /// Starts etcd if it does not run, and waits until it answers.
    pub(crate) async fn start_etcd(&self) {
        self.etcd.start();
        let health = format!("http://127.0.0.1:{}/health", self.ports.etcd);
        egress_operator::crypto::install();
        let http = reqwest::Client::builder().no_proxy().timeout(LOOK_WITHIN).build().unwrap();
        until_up(&self.etcd, async || http.get(&health).send().await.is_ok_and(|r| r.status().is_success())).await;
    }

    /// Starts the API server if it does not run, and waits until it is ready.
    pub(crate) async fn start_api(&self) {
        self.api.start();
        until_up(&self.api, async || self.is_ready().await).await;
    }

    /// Makes our kinds known: the files of `config/crd`, as they are shipped.
    async fn install_definitions(&self) {
        let definitions = Api::<CustomResourceDefinition>::all(self.client().await);
        for manifest in manifests::all() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifests::DIRECTORY).join(&manifest.file);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let definition: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
            let name = definition.metadata.name.clone().unwrap();
            definitions.create(&PostParams::default(), &definition).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
            tokio::time::timeout(UP_WITHIN, established).await.expect("a definition is established soon").unwrap();
        }
    }

    /// Whether `/readyz` says so now.
    pub(crate) async fn is_ready(&self) -> bool {
        // The certificate is made by the server at its first start.
        if !self.authority().exists() {
            return false;
        }
        let client = self.client().await;
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        tokio::time::timeout(LOOK_WITHIN, client.request_text(request)).await.is_ok_and(|answer| answer.is_ok())
    }

    /// Where the API server listens.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api)
    }

    /// The port of the API server.
    pub(crate) fn port(&self) -> u16 {
        self.ports.api
    }

    /// The certificate that its clients trust.
    pub(crate) fn authority(&self) -> PathBuf {
        settings::authority(self.dir.path())
    }

    /// A client that may do everything.
    pub(crate) async fn client(&self) -> Client {
        self.client_for(settings::ADMIN).await
    }

    /// A client with somebody's token.
    pub(crate) async fn client_for(&self, token: &str) -> Client {
        let text = settings::kubeconfig(&self.url(), &self.authority(), token);
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(Kubeconfig::from_yaml(&text).unwrap(), &options);
        Client::try_from(config.await.unwrap()).unwrap()
    }

    /// The kubeconfig of the admin, as a file.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_for(settings::ADMIN)
    }

    /// A kubeconfig with somebody's token, as a file.
    pub(crate) fn kubeconfig_for(&self, token: &str) -> PathBuf {
        let number = self.kubeconfigs.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("kubeconfig-{number}.yaml"));
        settings::write_kubeconfig(&path, &self.url(), &self.authority(), token);
        path
    }

    /// A namespace that nobody else uses. What controllers would put into it is there: the `default` ServiceAccount.
    pub(crate) async fn namespace(&self, prefix: &str) -> String {
        let name = format!("{prefix}-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let client = self.client().await;
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::<Namespace>::all(client).create(&PostParams::default(), &namespace).await.unwrap();
        if self.controllers.is_none() {
            self.service_account(&name, "default").await;
        }
        name
    }

    /// Makes a ServiceAccount.
    pub(crate) async fn service_account(&self, namespace: &str, name: &str) {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await, namespace);
        accounts.create(&PostParams::default(), &account).await.unwrap();
    }

    /// A token of a ServiceAccount that exists, good for an hour.
    pub(crate) async fn token(&self, namespace: &str, account: &str) -> String {
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let wanted = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let accounts = Api::<ServiceAccount>::namespaced(self.client().await, namespace);
        let given = accounts.create_token_request(account, &PostParams::default(), &wanted).await.unwrap();
        given.status.unwrap().token.unwrap()
    }

    /// What kubectl says, as the admin. Blocks its thread for as long as kubectl runs (30 s at most).
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Said {
        let path = self.dir.path().join("kubectl.yaml");
        if !path.exists() {
            settings::write_kubeconfig(&path, &self.url(), &self.authority(), settings::ADMIN);
        }
        let output = Command::new(binaries::find("kubectl"))
            .arg("--kubeconfig")
            .arg(&path)
            .args(["--cache-dir", &self.dir.path().join("kubectl").display().to_string(), "--request-timeout=30s"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Said { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Every request so far, oldest first. Needs `Options::audit`.
    pub(crate) fn audited(&self) -> Vec<Audited> {
        audit::read(&settings::audit_log(self.dir.path()))
    }

    /// Where the parts keep their data and logs.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.path()
    }
}

/// Looks until it is up; a part that ended or takes too long fails the test with its last words.
async fn until_up(part: &Part, look: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    loop {
        if look().await {
            return;
        }
        assert!(part.is_running(), "{} ended at its start:\n{}", part.name(), part.last_words());
        assert!(begun.elapsed() < UP_WITHIN, "{} does not come up:\n{}", part.name(), part.last_words());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
