//! One operator as a process: started, asked, signalled, killed.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::api::Api;
use super::log::Log;
use super::site::Site;
use super::{AMPLE, eventually, squids};

const BINARY: &str = env!("CARGO_BIN_EXE_egress-proxies-operator");

/// What is asked for with every request to the lease API. Nobody may ever show it.
pub(crate) const TOKEN: &str = "discovery-token-of-the-test";

/// A command line to be.
pub(crate) struct Launch<'a> {
    site: &'a Site,
    /// What runs the binary, if it is not run directly.
    around: Vec<OsString>,
    probe_target: String,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    reads_log: bool,
    in_cluster: bool,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(site: &'a Site) -> Self {
        let probe_target = site.target.url();
        let (around, arguments, environment) = (Vec::new(), Vec::new(), Vec::new());
        Self { site, around, probe_target, arguments, environment, reads_log: true, in_cluster: false }
    }

    pub(crate) fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(OsString::from));
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    pub(crate) fn probe_target(self, probe_target: String) -> Self {
        Self { probe_target, ..self }
    }

    /// The binary and its arguments become the last arguments of this command.
    pub(crate) fn inside(self, command: &[&str]) -> Self {
        Self { around: command.iter().map(OsString::from).collect(), ..self }
    }

    /// Its Proxies are those of a cluster.
    #[allow(dead_code, reason = "used by the tests of a cluster, which share this file")]
    pub(crate) fn in_cluster(self, kubeconfig: &std::path::Path) -> Self {
        Self { in_cluster: true, ..self }.env("KUBECONFIG", kubeconfig)
    }

    /// Nobody reads its stdout until it is asked for.
    pub(crate) fn with_stalled_log(self) -> Self {
        Self { reads_log: false, ..self }
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(self) -> Operator {
        let mut operator = self.spawn();
        eventually("the operator is ready", async || {
            assert!(!operator.has_ended(), "it ended at the start");
            operator.api.admin("/readyz").await.ok().filter(|answer| answer.0 == 200)
        })
        .await;
        operator
    }

    pub(crate) fn spawn(self) -> Operator {
        let site = self.site;
        let mut line = self.around;
        line.push(BINARY.into());
        for (flag, value) in [
            ("--standalone", site.manifests().into()),
            ("--state-dir", site.state().into()),
            ("--providers-config", site.providers_config().into()),
            ("--discovery-addr", site.discovery.to_string().into()),
            ("--admin-addr", site.admin.to_string().into()),
            ("--probe-target", OsString::from(self.probe_target)),
            ("--log-format", "json".into()),
        ] {
            let given = self.arguments.iter().any(|argument| *argument == *flag);
            let fits = !(self.in_cluster && flag == "--standalone");
            line.extend((fits && !given).then_some([flag.into(), value]).into_iter().flatten());
        }
        line.extend(self.arguments);
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            // What the developer has set must not decide.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LLVM_PROFILE_FILE"))
            .env("DISCOVERY_TOKEN", TOKEN)
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Log::default();
        let mut readers = vec![log.follow(child.stderr.take().unwrap())];
        let mut unread = child.stdout.take();
        if self.reads_log {
            readers.extend(unread.take().map(|stdout| log.follow(stdout)));
        }
        Operator { api: Api::new(site.discovery, site.admin), log, child, readers, unread }
    }
}

pub(crate) struct Operator {
    pub(crate) api: Api,
    pub(crate) log: Log,
    child: Child,
    readers: Vec<JoinHandle<()>>,
    unread: Option<ChildStdout>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the operator's last lines:\n{}\n---", self.log.tail());
        }
    }
}

impl Operator {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        squids::signal(self.pid(), signal);
    }

    /// As a machine that loses power, as far as this process is concerned.
    pub(crate) async fn kill(self) {
        self.signal(Signal::KILL);
        let ended = self.ended().await;
        assert_eq!(ended.signal, Some(9), "it ended before it was killed");
    }

    /// SIGTERM, and the end.
    pub(crate) async fn terminate(self) -> Ended {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(mut self) -> Ended {
        let began = Instant::now();
        let status = eventually("the operator ends", async || self.child.try_wait().unwrap()).await;
        // The streams end with the process: nobody inherits them.
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let took = began.elapsed();
        assert!(took < AMPLE);
        Ended { code: status.code(), signal: status.signal(), took, log: self.log.clone() }
    }

    /// Takes in the log that nobody has read so far.
    pub(crate) fn read_log(&mut self) {
        let stdout = self.unread.take().expect("a log that nobody reads");
        self.readers.push(self.log.follow(stdout));
    }
}

/// How an operator ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) took: Duration,
    pub(crate) log: Log,
}
