//! kill -9 at each change of the world that an operator makes in a Squid's life: files, processes, signals. The next
//! operator on the state directory adopts what is there: one Squid, or none and no leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use super::lanes::lanes;
use super::manifest::managed;
use super::operator::{Launch, Operator};
use super::program;
use super::site::Site;

/// Lives side by side. Much of their time they wait: after a kill nothing counts as absent before the killed operator's
/// last step cannot be under way any more (10 s).
const LANES: usize = 24;

/// Between two looks; so many at once would be half of the work.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// That wait, and all the rest of a life beside so many others.
const LIMIT: Duration = Duration::from_mins(4);

/// A killed create that goes on and a killed deletion that goes on; a killed create that is not wanted any more.
const VARIANTS: usize = 2;

const CREATE: &str = "create";
const UNWANTED: &str = "create of what is removed then";
const DELETE: &str = "delete";

/// Makes the tracer; `None` where a compiler is missing and may be.
fn tracer(folder: &Path) -> Option<PathBuf> {
    let (compiler, source, binary) = (program("gcc")?, folder.join("tracer.c"), folder.join("tracer"));
    fs::write(&source, include_str!("kills/tracer.c")).unwrap();
    let made =
        Command::new(compiler).args(["-O1", "-Wall", "-Werror", "-o"]).arg(&binary).arg(source).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(binary)
}

/// At which step of what is begun.
#[derive(Clone, Copy, Debug)]
enum At<'s> {
    Nth(usize),
    /// The first that is called so, with paths from the site's folder on.
    Named(&'s str),
}

struct Life<'t> {
    site: Site,
    tracer: &'t Path,
    reports: AtomicUsize,
}

/// An operator that may be killed at a step, and where that is told.
struct Traced {
    operator: Operator,
    report: PathBuf,
}

impl Life<'_> {
    fn operator(&self) -> Launch<'_> {
        self.site.operator().args(&["--list-interval", "5s", "--allow-mass-removal"])
    }

    async fn traced(&self, at: At<'_>) -> Traced {
        let at = match at {
            At::Nth(nth) => nth.to_string(),
            At::Named(step) => step.replace("state/", &self.site.path("state/").display().to_string()),
        };
        let report = self.site.path(&format!("report-{}", self.reports.fetch_add(1, Ordering::Relaxed)));
        let command = [self.tracer.to_str().unwrap(), &at, report.to_str().unwrap()];
        Traced { operator: self.operator().inside(&command).start().await, report }
    }

    /// With a second probe: all that follows the first is over.
    async fn is_ready(&self, operator: &Operator) -> bool {
        let well = async || {
            let (_, metrics) = operator.api.admin("/metrics").await.ok()?;
            let probes = metrics.lines().find_map(|line| line.strip_prefix("egress_probes_total{result=\"ok\"} "))?;
            let rows = operator.api.try_get("/v1/proxies").await.ok()?;
            Some(probes.parse::<f64>().ok()? >= 2.0 && rows["proxies"][0]["phase"] == "Ready")
        };
        well().await == Some(true)
    }

    async fn is_gone(&self, operator: &Operator) -> bool {
        let rows = operator.api.try_get("/v1/proxies").await;
        let none = rows.is_ok_and(|rows| rows["proxies"].as_array().is_some_and(Vec::is_empty));
        none && self.site.squids().is_empty() && self.site.folders().is_empty()
    }

    /// Begins something, and kills the operator at the step after it that it is traced for. Where it is done before: not killed.
    async fn killed_at(
        &self,
        mut traced: Traced,
        begin: impl FnOnce(),
        is_done: impl AsyncFn(&Operator) -> bool,
    ) -> Result<String, Operator> {
        traced.operator.signal(Signal::USR1);
        begin();
        until("it is done, or the operator is dead", async || {
            traced.operator.has_ended() || is_done(&traced.operator).await
        })
        .await;
        if !traced.operator.has_ended() {
            traced.operator.signal(Signal::USR2);
        }
        until("it is told how it went", async || traced.report.exists()).await;
        let told = fs::read_to_string(&traced.report).unwrap();
        if told == "passed" {
            return Err(traced.operator);
        }
        assert_eq!(traced.operator.ended().await.signal, Some(9), "{told}");
        Ok(told.replace(&self.site.path("").display().to_string(), ""))
    }

    async fn created_with_a_kill_at(&self, at: At<'_>) -> Result<String, Operator> {
        let begin = || self.site.apply("px.yaml", &managed("px").yaml());
        self.killed_at(self.traced(at).await, begin, async |operator| self.is_ready(operator).await).await
    }

    /// Uids of which there is a folder, whole or not.
    fn uids(&self) -> BTreeSet<String> {
        let bare = |name: String| name.trim_start_matches(".new-").trim_start_matches(".gone-").to_owned();
        self.site.folders().into_iter().map(bare).collect()
    }

    async fn goes_without_a_trace(&self, operator: Operator, uids: &BTreeSet<String>, after: &str) {
        until(&format!("it is gone after {after}"), async || self.is_gone(&operator).await).await;
        assert_eq!(operator.terminate().await.code, Some(0));
        assert!(self.site.squids().is_empty(), "a squid came back after {after}");
        for port in self.site.squid_ports.clone() {
            TcpListener::bind(("127.0.0.1", port)).unwrap_or_else(|e| panic!("port {port} after {after}: {e}"));
        }
        for uid in uids {
            let digest = Sha256::digest(uid);
            let name = digest[..15].iter().fold("eg".to_owned(), |name, byte| name + &format!("{byte:02x}"));
            let shared = fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name());
            let left: Vec<_> = shared.filter(|file| file.to_string_lossy().starts_with(&name)).collect();
            assert!(left.is_empty(), "{left:?} after {after}");
        }
        let left: BTreeSet<_> = files(&self.site.state());
        let known = ["lock", "standalone.redb", "leases.redb", "process/local/.entry"].map(String::from).into();
        assert!(left.is_subset(&known), "{left:?} after {after}");
    }
}

async fn until(claim: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {claim}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// All files below, by their paths.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            all.extend(files(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            all.insert(name);
        }
    }
    all
}

/// Kills in a create and goes on with it; then kills in the deletion, and goes on with that.
async fn is_kept(life: &Life<'_>, at: At<'_>) -> [Option<String>; 2] {
    let made_at = match life.created_with_a_kill_at(at).await {
        Ok(step) => Some(step),
        Err(operator) => {
            operator.kill().await;
            None
        }
    };
    let after = format!("{at:?} of the create, {made_at:?}");
    let traced = life.traced(at).await;
    until(&format!("it is Ready after {after}"), async || life.is_ready(&traced.operator).await).await;
    // Squid's helper is a fork for a moment.
    until(&format!("there is one squid after {after}"), async || life.site.squids().len() == 1).await;
    let uids = life.site.folders();
    assert_eq!(uids.len(), 1, "{uids:?} after {after}");

    let ended = life.killed_at(traced, || life.site.remove("px.yaml"), async |it| life.is_gone(it).await).await;
    let (step, operator) = match ended {
        Ok(step) => (Some(step), life.operator().start().await),
        Err(operator) => (None, operator),
    };
    life.goes_without_a_trace(operator, &uids, &format!("{at:?} of the deletion, {step:?}")).await;
    [made_at, step]
}

/// Kills in a create, and the manifest is removed before the next operator comes.
async fn is_dropped(life: &Life<'_>, at: At<'_>) -> Option<String> {
    let step = match life.created_with_a_kill_at(at).await {
        Ok(step) => step,
        Err(operator) => {
            operator.kill().await;
            return None;
        }
    };
    let uids = life.uids();
    life.site.remove("px.yaml");
    let operator = life.operator().start().await;
    life.goes_without_a_trace(operator, &uids, &format!("{at:?} of the create, {step}, and a removal meanwhile")).await;
    Some(step)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_is_killed_at_any_step_of_a_create_or_a_delete_leaves_one_squid_or_none_and_nothing_else() {
    let begun = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let Some(tracer) = tracer(folder.path()) else { return };
    let killed = Mutex::new(BTreeSet::new());
    let life = || Some(Life { site: Site::new()?, tracer: &tracer, reports: AtomicUsize::new(0) });
    let lives = lanes(LANES, VARIANTS, async |number| {
        let nth = number / VARIANTS + 1;
        let Some(life) = life() else { return false };
        let steps = if number % VARIANTS == 0 {
            let [create, delete] = is_kept(&life, At::Nth(nth)).await;
            [(CREATE, create), (DELETE, delete)]
        } else {
            [(UNWANTED, is_dropped(&life, At::Nth(nth)).await), ("", None)]
        };
        let mut killed = killed.lock().unwrap();
        let before = killed.len();
        killed.extend(steps.into_iter().filter_map(|(of, step)| Some((of, nth, step?))));
        killed.len() > before
    })
    .await;

    let killed = killed.into_inner().unwrap();
    for (of, nth, step) in &killed {
        eprintln!("killed in the {of}, step {nth}: {step}");
    }
    eprintln!("{} kills in {lives} lives, {:.1?}", killed.len(), begun.elapsed());

    for (of, least) in [(CREATE, 35), (UNWANTED, 35), (DELETE, 12)] {
        let count = killed.iter().filter(|kill| kill.0 == of).count();
        assert!(count >= least, "{count} steps are not all those of a {of}");
    }
    let folder = "state/process/local/";
    let made =
        ["mkdir state/process/local/.new-", "rename state/process/local/.new-", "owner.json.new", "passwords.new"];
    let run = ["squid.conf.new", "before fork", "after fork", "process.json.new", "sync state/standalone.redb"];
    let ended = ["before signal", "after signal", "sync state/standalone.redb", ".gone-"];
    let removed = [&format!("before rename {folder}"), &format!("after rename {folder}"), "unlink owner.json"];
    for (is_delete, steps) in [(false, &made[..]), (false, &run), (true, &ended), (true, &removed)] {
        for step in steps {
            if killed.iter().any(|kill| (kill.0 == DELETE) == is_delete && kill.2.contains(step)) {
                continue;
            }
            // Steps are counted as they come, and threads do theirs in another order in each life: this one was stepped over.
            eprintln!("and by its name: {step}");
            let [create, delete] = is_kept(&life().unwrap(), At::Named(step)).await;
            assert!(if is_delete { delete } else { create }.is_some(), "nobody was killed at `{step}`");
        }
    }
}
