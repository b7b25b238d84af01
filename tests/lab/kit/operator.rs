//! The real binary, standalone, with a directory and ports of its own: started, asked, ended.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Host, eventually};

const BINARY: &str = env!("CARGO_BIN_EXE_egress-proxies-operator");

/// Names another binary than the one that was built with the tests: a release, whose memory is measured.
const OTHER_BINARY: &str = "LAB_OPERATOR";
const TOKEN: &str = "discovery-token-of-the-test";

/// Also where much of the machine is busy.
const AMPLE: Duration = Duration::from_mins(1);

/// Of one answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// What is started.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os(OTHER_BINARY).map_or_else(|| BINARY.into(), PathBuf::from)
}

/// Whether that is another one than ours, which is not optimized.
pub(crate) fn is_release() -> bool {
    std::env::var_os(OTHER_BINARY).is_some()
}

/// Its files and ports; operators come and go on it.
pub(crate) struct Site {
    dir: TempDir,
    discovery: u16,
    admin: u16,
    pub(crate) echo: u16,
}

impl Site {
    /// `entries` are items of `providers`.
    pub(crate) fn new(entries: &str) -> Self {
        // Held together, so that they differ.
        let held: Vec<_> = (0..3).map(|_| TcpListener::bind("0.0.0.0:0").unwrap()).collect();
        let port = |n: usize| held[n].local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let site = Self { dir, discovery: port(0), admin: port(1), echo: port(2) };
        fs::create_dir(site.path("manifests")).unwrap();
        fs::write(site.path("providers.yaml"), format!("providers:\n{entries}")).unwrap();
        site
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A Proxy with its own name as attribute `n`; `managed` is the inside of `spec.managed`.
    pub(crate) fn apply(&self, name: &str, managed: &str) {
        let text = format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: crawl}}\nspec:\n  \
             managed: {{{managed}}}\n  attributes: {{n: {name}}}\n  maxLeases: 1\n  \
             healthCheck: {{interval: 1s, timeout: 1s, failureThreshold: 2}}\n"
        );
        self.place(name, &text);
    }

    /// A file of manifests, which appears whole.
    pub(crate) fn place(&self, name: &str, text: &str) {
        let hidden = self.path(name);
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, self.path("manifests").join(name).with_extension("yaml")).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path("manifests").join(name).with_extension("yaml")).unwrap();
    }

    /// Started, and ready. Its probes leave for its own echo server, as guests of this host see that.
    pub(crate) fn start(&self, host: &Host) -> Operator<'_> {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let child = Command::new(binary())
            .arg("--standalone")
            .arg(self.path("manifests"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--providers-config")
            .arg(self.path("providers.yaml"))
            .args(["--discovery-addr", &format!("127.0.0.1:{}", self.discovery)])
            .args(["--admin-addr", &format!("127.0.0.1:{}", self.admin)])
            .args(["--echo-addr", &format!("0.0.0.0:{}", self.echo)])
            .args(["--probe-target", &format!("http://{}:{}/echo", host.outside, self.echo)])
            // A test removes all that it has.
            .args(["--allow-mass-removal", "--log-format", "json"])
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LLVM_PROFILE_FILE"))
            .env("DISCOVERY_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut operator = Operator { site: self, child };
        eventually(AMPLE, "the operator is ready", || {
            assert!(operator.child.try_wait().unwrap().is_none(), "it ended at the start");
            ask(self.admin, "GET", "/readyz", None).filter(|(status, _)| *status == 200)
        });
        operator
    }
}

/// A process, killed with the value.
pub(crate) struct Operator<'a> {
    site: &'a Site,
    child: Child,
}

impl Drop for Operator<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.site.path("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().filter(|line| !line.contains("\"DEBUG\"")).collect();
            let last = lines[lines.len().saturating_sub(15)..].iter().map(|line| line.get(..400).unwrap_or(line));
            println!("--- the operator's last lines:\n{}", last.collect::<Vec<_>>().join("\n"));
        }
    }
}

impl Operator<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Whether it ignores a signal of this number.
    pub(crate) fn ignores(&self, signal: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & (1 << (signal - 1)) != 0
    }

    /// SIGTERM: how it ended, and after how long. Fails if it has not by then.
    pub(crate) fn ends(mut self, limit: Duration) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = eventually(limit, "the operator ends", || self.child.try_wait().unwrap());
        (status, begun.elapsed())
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        ask(self.site.discovery, "GET", path, None).filter(|(status, _)| *status == 200).map(|(_, body)| body)
    }

    /// What the lease API shows of a Proxy. `None` also if there is no answer.
    pub(crate) fn proxy(&self, name: &str) -> Option<Value> {
        let name = format!("crawl/{name}");
        self.get("/v1/proxies")?["proxies"].as_array()?.iter().find(|proxy| proxy["name"] == name.as_str()).cloned()
    }

    /// That it has no Proxy at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.get("/v1/proxies").is_some_and(|body| body["proxies"].as_array().is_some_and(Vec::is_empty))
    }

    pub(crate) fn becomes_ready(&self, limit: Duration, name: &str) -> Value {
        eventually(limit, &format!("{name} is Ready"), || self.proxy(name).filter(|proxy| proxy["phase"] == "Ready"))
    }

    /// A lease of the Proxy of this name: host and port.
    pub(crate) fn lease(&self, name: &str) -> (String, u16) {
        self.lease_of(&json!({"n": name}))
    }

    /// A lease of a Proxy with these attributes: host and port.
    pub(crate) fn lease_of(&self, selector: &Value) -> (String, u16) {
        let wish = json!({"selectors": [selector], "ttlSeconds": 600});
        let (status, body) = ask(self.site.discovery, "POST", "/v1/leases", Some(&wish)).expect("an answer");
        assert_eq!(status, 201, "{body}");
        let proxy = &body["leases"][0]["proxy"];
        (proxy["host"].as_str().unwrap().to_owned(), proxy["port"].as_u64().unwrap().try_into().unwrap())
    }
}

/// Sends one request, and reads what comes until the end: status and body. `None` if there is none, or a part of it.
fn ask(port: u16, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
    let mut stream = connect(("127.0.0.1", port))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    );
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    write!(stream, "{head}{kind}Content-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or_default()))
}

/// What `GET path` answers through a CONNECT of this proxy: status of the CONNECT, and the answer.
pub(crate) fn through(proxy: (&str, u16), to: &str, path: &str) -> Option<(u16, String)> {
    through_as(proxy, None, to, path)
}

/// The same as `user:password`. A tunnel that is refused has no answer.
pub(crate) fn through_as(proxy: (&str, u16), user: Option<&str>, to: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = connect(proxy)?;
    let user = user.map(|user| format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(user)));
    let user = user.unwrap_or_default();
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{user}\r\n").ok()?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let status = String::from_utf8_lossy(&head).split(' ').nth(1)?.parse().ok()?;
    if status != 200 {
        return Some((status, String::new()));
    }
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some((status, answer))
}

fn connect(to: (&str, u16)) -> Option<TcpStream> {
    let stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN)).ok()?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN)).ok()?;
    Some(stream)
}
