//! The whole of it on real directories: live changes, restarts, and what must not be taken for a removal.

mod kill;

use std::fs;

use egress_actors::domain::desired::{Desired, SecretRef};
use egress_actors::domain::id::{HostName, ProxyKey, Uid};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{Phase, Status};
use egress_actors::ports::{Applied, Mandate, SourceEvent};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tempfile::TempDir;

use super::*;

const FAST: Options = Options {
    look_every: Duration::from_millis(5),
    removal_after: Duration::from_millis(40),
    allow_mass_removal: false,
};

/// Nothing here takes this long on any machine.
const LIMIT: Duration = Duration::from_secs(20);

struct Rig {
    temp: TempDir,
    standalone: Standalone,
    events: BoxStream<'static, SourceEvent>,
}

impl Rig {
    fn start(temp: TempDir, options: Options) -> Self {
        let (dir, state) = (temp.path().join("manifests"), temp.path().join("state"));
        let standalone = Standalone::open(&dir, &state, options).unwrap();
        let events = standalone.source().events();
        Self { temp, standalone, events }
    }

    fn with(files: &[(&str, &str)]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("manifests")).unwrap();
        for (name, text) in files {
            fs::write(temp.path().join("manifests").join(name), text).unwrap();
        }
        Self::start(temp, FAST)
    }

    async fn stop(self) -> TempDir {
        assert!(self.standalone.close(LIMIT).await, "the threads ended");
        self.temp
    }

    async fn restart(self, between: impl FnOnce(&Path), options: Options) -> Self {
        let temp = self.stop().await;
        between(&temp.path().join("manifests"));
        Self::start(temp, options)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("manifests").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    async fn next(&mut self) -> SourceEvent {
        tokio::time::timeout(LIMIT, self.events.next()).await.expect("an event within the limit").expect("no end")
    }

    /// Reads on to the event for which `pick` gives something.
    async fn until<T>(&mut self, mut pick: impl FnMut(SourceEvent) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.next().await) {
                return found;
            }
        }
    }

    async fn applied(&mut self, name: &str) -> Arc<Desired> {
        self.until(|event| match event {
            SourceEvent::Applied(Applied { desired, .. }) if desired.key.name() == name => Some(desired),
            _ => None,
        })
        .await
    }

    async fn rejected(&mut self, name: &str) -> String {
        self.until(|event| match event {
            SourceEvent::Rejected(rejected) if rejected.key.name() == name => Some(rejected.message),
            _ => None,
        })
        .await
    }

    async fn gone(&mut self, name: &str) -> Uid {
        self.until(|event| match event {
            SourceEvent::Gone { key, uid } if key.name() == name => Some(uid),
            _ => None,
        })
        .await
    }

    async fn synced(&mut self) -> Vec<String> {
        self.until(|event| match event {
            SourceEvent::Synced { living } => Some(living.iter().map(|(key, _)| key.name().to_owned()).collect()),
            _ => None,
        })
        .await
    }

    async fn adopt(&mut self, desired: &Desired) -> Arc<Desired> {
        let host = HostName::parse("local").unwrap();
        self.standalone.records().adopt(&desired.key, &desired.uid, Some(&host), &Mandate::always()).await.unwrap();
        let name = desired.key.name().to_owned();
        let seen = self.applied(&name).await;
        assert!(seen.finalizer && seen.host == Some(host), "the finalizer and the host are seen");
        seen
    }

    /// A look that began after now has ended, so what did not happen until then was not going to.
    async fn two_looks(&self) {
        for _ in 0..2 {
            let before = Instant::now();
            eventually("a look", || self.standalone.look_age() < before.elapsed()).await;
        }
    }
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !check() {
        assert!(Instant::now() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn external(name: &str, port: u16) -> String {
    format!(
        "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: crawl}}\n\
         spec: {{external: {{url: 'http://203.0.113.7:{port}'}}}}\n"
    )
}

fn managed(name: &str) -> String {
    format!(
        "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: crawl}}\n\
         spec: {{managed: {{provider: local}}}}\n"
    )
}

const SECRET: &str = "---\napiVersion: v1\nkind: Secret\n\
    metadata: {name: s, namespace: crawl, labels: {crawl.example.com/proxy-secret: 'true'}}\n\
    stringData: {username: u, password: p}\n";

#[tokio::test]
async fn the_first_list_has_everything_that_is_in_the_directory() {
    let mut rig = Rig::with(&[("a.yaml", &(external("a", 1) + &managed("b"))), ("c.yml", &external("c", 1))]);
    assert!(matches!(rig.next().await, SourceEvent::ListStarted));
    let mut names = Vec::new();
    let living = rig
        .until(|event| match event {
            SourceEvent::Applied(applied) => {
                names.push(applied.desired.key.name().to_owned());
                None
            }
            SourceEvent::Synced { living } => Some(living.len()),
            other => panic!("{other:?} in a list"),
        })
        .await;
    assert_eq!((names, living), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], 3));
}

#[tokio::test]
async fn changes_are_picked_up_live_and_bad_ones_are_reported_while_the_good_go_on() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1))]);
    let first = rig.applied("a").await;
    rig.write("b.yaml", &external("b", 1));
    let b = rig.applied("b").await;
    assert_eq!(b.generation, 1);
    rig.write("a.yaml", &external("a", 2));
    let changed = rig.applied("a").await;
    assert_eq!((changed.generation, &changed.uid), (2, &first.uid));
    // Half-written, not YAML, a duplicate, not UTF-8: each is a problem, and nothing happens to a and b.
    rig.write("a.yaml", &external("a", 2)[..70]);
    rig.write("b.yaml", "{");
    rig.write("c.yaml", &external("b", 9));
    fs::write(rig.path("d.yaml"), b"\xff").unwrap();
    eventually("four problems", || rig.standalone.problems().len() >= 4).await;
    let problems = rig.standalone.problems();
    let places: Vec<_> = problems.iter().map(|p| format!("{}:{}", p.file, p.line)).collect();
    assert_eq!(places, ["a.yaml:4", "b.yaml:1", "c.yaml:2", "d.yaml:1"], "{problems:?}");
    rig.two_looks().await;
    for desired in [changed, b] {
        assert!(rig.standalone.records().owner_exists(&desired.key, &desired.uid).await.unwrap());
    }
    // All is well again, and nothing has happened to a and b meanwhile.
    for name in ["c.yaml", "d.yaml"] {
        fs::remove_file(rig.path(name)).unwrap();
    }
    rig.write("a.yaml", &external("a", 2));
    rig.write("b.yaml", &external("b", 1));
    rig.write("z.yaml", &external("z", 1));
    let mut last = std::collections::HashMap::new();
    rig.until(|event| match event {
        SourceEvent::Applied(applied) => {
            let desired = applied.desired;
            last.insert(desired.key.name().to_owned(), desired.generation);
            (desired.key.name() == "z").then_some(())
        }
        SourceEvent::Gone { key, .. } => panic!("{key} is gone"),
        _ => None,
    })
    .await;
    assert!(last.get("a").is_none_or(|generation| *generation == 2), "{last:?}");
    assert!(last.get("b").is_none_or(|generation| *generation == 1), "{last:?}");
    eventually("no problems", || rig.standalone.problems().is_empty()).await;
}

#[tokio::test]
async fn a_removal_without_a_finalizer_is_gone_and_one_with_it_waits_for_the_release() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1)), ("b.yaml", &managed("b"))]);
    let a = rig.applied("a").await;
    let b = rig.applied("b").await;
    rig.adopt(&b).await;
    fs::remove_file(rig.path("a.yaml")).unwrap();
    assert_eq!(rig.gone("a").await, a.uid);
    fs::remove_file(rig.path("b.yaml")).unwrap();
    assert!(rig.applied("b").await.deleting);
    let records = rig.standalone.records();
    assert!(records.owner_exists(&b.key, &b.uid).await.unwrap());
    // It comes back while the old one is deleting.
    rig.write("b.yaml", &managed("b"));
    rig.two_looks().await;
    records.release(&b.key, &b.uid).await.unwrap();
    assert_eq!(rig.gone("b").await, b.uid);
    assert!(!records.owner_exists(&b.key, &b.uid).await.unwrap());
    let again = rig.applied("b").await;
    assert!(again.uid != b.uid && !again.finalizer && again.host.is_none(), "a recreated name inherits nothing");
}

#[tokio::test]
async fn a_manifest_removed_while_the_operator_was_down_is_cleaned_up_at_the_next_start() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1)), ("b.yaml", &managed("b")), ("c.yaml", &external("c", 1))]);
    let b = rig.applied("b").await;
    rig.adopt(&b).await;
    let mut rig = rig
        .restart(
            |dir| {
                fs::remove_file(dir.join("a.yaml")).unwrap();
                fs::remove_file(dir.join("b.yaml")).unwrap();
                fs::remove_file(dir.join("c.yaml")).unwrap();
                fs::write(dir.join("c.yaml"), external("c", 1)).unwrap();
                for i in 0..2 {
                    fs::write(dir.join(format!("new-{i}.yaml")), external(&format!("new-{i}"), 1)).unwrap();
                }
            },
            FAST,
        )
        .await;
    assert_eq!(rig.synced().await, ["a", "b", "c", "new-0", "new-1"], "nothing is gone before two looks");
    let mut a_gone = false;
    rig.until(|event| {
        match event {
            SourceEvent::Gone { key, .. } => a_gone |= key.name() == "a",
            SourceEvent::Applied(applied) if applied.desired.key.name() == "b" => {
                assert!(applied.desired.deleting && applied.desired.uid == b.uid);
                return a_gone.then_some(());
            }
            _ => {}
        }
        None
    })
    .await;
}

#[tokio::test]
async fn everything_is_remembered_over_a_restart() {
    let mut rig = Rig::with(&[("b.yaml", &managed("b"))]);
    let b = rig.applied("b").await;
    rig.adopt(&b).await;
    let status = Status { provider_id: Some("process://local/local/1".into()), ..Status::blank(Phase::Ready, 1) };
    let records = rig.standalone.records();
    records.write_status(&b.key, &b.uid, &status, &Mandate::always()).await.unwrap();
    records.annotate_drain(&b.key, &b.uid, true).await.unwrap();
    let operator = rig.standalone.operator_id().clone();
    let mut rig = rig.restart(|_| {}, FAST).await;
    assert_eq!(rig.standalone.operator_id(), &operator);
    let applied = rig
        .until(|event| match event {
            SourceEvent::Applied(applied) => Some(applied),
            _ => None,
        })
        .await;
    assert_eq!(applied.recorded.as_deref(), Some(&status));
    let again = applied.desired;
    assert!(again.finalizer && again.annotations.drain && !again.deleting);
    assert_eq!((&again.uid, again.host.as_ref().map(HostName::as_str)), (&b.uid, Some("local")));
}

#[tokio::test]
async fn an_immutable_field_is_refused_against_the_stored_spec_also_after_a_restart() {
    let mut rig = Rig::with(&[("b.yaml", &managed("b"))]);
    rig.applied("b").await;
    let other = managed("b").replace("provider: local", "provider: other");
    let mut rig = rig.restart(|dir| fs::write(dir.join("b.yaml"), other).unwrap(), FAST).await;
    assert_eq!(
        rig.rejected("b").await,
        "b.yaml line 2: Proxy `crawl/b`: spec.managed.provider: was `local`, now is `other`; \
         immutable: delete and recreate, or annotate crawl.example.com/recreate for a fresh instance of the old spec"
    );
    assert_eq!(rig.standalone.problems()[0].file, "b.yaml");
    rig.write("b.yaml", &managed("b"));
    assert_eq!(rig.applied("b").await.generation, 1);
    assert_eq!(rig.standalone.problems(), []);
}

#[tokio::test]
async fn an_unreadable_directory_is_told_and_nothing_is_removed() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1))]);
    rig.applied("a").await;
    let (dir, away) = (rig.temp.path().join("manifests"), rig.temp.path().join("away"));
    fs::rename(&dir, &away).unwrap();
    let error = rig
        .until(|event| match event {
            SourceEvent::Unreadable(error) => Some(error),
            SourceEvent::Gone { .. } => panic!("something is gone"),
            _ => None,
        })
        .await;
    assert!(error.detail.contains("cannot be read: No such file or directory"), "{error}");
    assert_eq!(rig.standalone.problems()[0].file, dir.display().to_string());
    // It comes back, and everybody gets a new list.
    fs::rename(&away, &dir).unwrap();
    assert_eq!(rig.synced().await, ["a"]);
    assert_eq!(rig.standalone.problems(), []);
}

#[tokio::test]
async fn the_stored_fleet_goes_on_when_the_directory_is_missing_at_the_start() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1))]);
    rig.applied("a").await;
    let mut rig = rig.restart(|dir| fs::remove_dir_all(dir).unwrap(), FAST).await;
    assert_eq!(rig.synced().await, ["a"]);
    assert!(matches!(rig.next().await, SourceEvent::Unreadable(_)));
}

#[tokio::test]
async fn an_emptied_directory_is_held_back_until_it_is_allowed() {
    let files: Vec<_> = (0..5).map(|i| (format!("{i}.yaml"), external(&format!("px-{i}"), 1))).collect();
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let mut rig = Rig::with(&files);
    assert_eq!(rig.synced().await.len(), 5);
    for (name, _) in &files {
        fs::remove_file(rig.path(name)).unwrap();
    }
    // A slow `rm` may have lost its first few before the rest was seen to go.
    eventually("most are held back", || rig.standalone.held_back() >= 3).await;
    rig.two_looks().await;
    let held = rig.standalone.held_back();
    assert!(rig.standalone.problems()[0].message.contains("restart with --allow-mass-removal"));
    // Also at a start after downtime.
    let rig = rig.restart(|_| {}, FAST).await;
    eventually("still held back", || rig.standalone.held_back() == held).await;
    let mut rig = rig.restart(|_| {}, Options { allow_mass_removal: true, ..FAST }).await;
    for _ in 0..held {
        rig.until(|event| matches!(event, SourceEvent::Gone { .. }).then_some(())).await;
    }
    assert_eq!((rig.standalone.held_back(), rig.standalone.problems()), (0, Vec::new()));
}

#[tokio::test]
async fn a_changed_secret_is_told_and_read_at_once() {
    let mut rig = Rig::with(&[("s.yaml", SECRET)]);
    rig.synced().await;
    let (secrets, reference) = (rig.standalone.secrets(), SecretRef { name: "s".into() });
    assert_eq!(&*secrets.credentials("crawl", &reference).await.unwrap().username, "u");
    rig.write("s.yaml", &SECRET.replace("username: u", "username: v"));
    rig.until(|event| matches!(event, SourceEvent::SecretChanged { name, .. } if &*name == "s").then_some(())).await;
    assert_eq!(&*secrets.credentials("crawl", &reference).await.unwrap().username, "v");
    let error = secrets.credentials("other", &reference).await.unwrap_err();
    assert_eq!(error.reason, Reason::SecretNotFound);
}

#[tokio::test]
async fn a_thousand_manifests_are_applied_at_once_and_adopted_in_few_commits() {
    let many: String = (0..1000).map(|i| external(&format!("px-{i}"), 1)).collect();
    let mut rig = Rig::with(&[("many.yaml", &many)]);
    let mut all = Vec::new();
    rig.until(|event| match event {
        SourceEvent::Applied(applied) => {
            all.push(applied.desired);
            (all.len() == 1000).then_some(())
        }
        _ => None,
    })
    .await;
    let records = rig.standalone.records();
    let mandate = Mandate::always();
    let adoptions = all.iter().map(|desired| records.adopt(&desired.key, &desired.uid, None, &mandate));
    for adopted in futures::future::join_all(adoptions).await {
        adopted.unwrap();
    }
    let mut seen = std::collections::HashSet::new();
    rig.until(|event| match event {
        SourceEvent::Applied(applied) if applied.desired.finalizer => {
            seen.insert(applied.desired.key.clone());
            (seen.len() == 1000).then_some(())
        }
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_keeper_that_crashes_is_known_to_have_ended_and_refuses_what_it_cannot_store() {
    let mut rig = Rig::with(&[("a.yaml", &managed("a"))]);
    let desired = rig.applied("a").await;
    assert!(rig.standalone.is_kept());
    rig.standalone.queue.offer(Job::Crash).unwrap();
    tokio::time::timeout(LIMIT, rig.standalone.ended()).await.expect("its end is told");
    assert!(!rig.standalone.is_kept());
    let error = rig.standalone.records().release(&desired.key, &desired.uid).await.unwrap_err();
    assert!(error.detail.contains("closed"), "{error:?}");
}

#[test]
fn looks_that_crash_are_told_as_unreadable_and_looked_again() {
    let (queue, jobs) = Queue::new();
    let shared = Arc::new(Shared::default());
    let (wake, woken) = sync_channel(1);
    let told = Arc::new(AtomicUsize::new(0));
    let enough = Arc::clone(&told);
    let look = move || {
        assert!(enough.load(Ordering::Relaxed) > 1, "as asked");
        Ok(View::default())
    };
    let seen = Arc::clone(&shared);
    let thread = thread::spawn(move || watch_directory(look, &seen, &queue, &woken, Duration::from_millis(1)));
    loop {
        assert!(matches!(jobs.recv_timeout(LIMIT).expect("it looks again"), Job::Look));
        match shared.look.lock().unwrap().take() {
            Some(Err(Unreadable { message })) => assert!(message.contains("crashed"), "{message}"),
            Some(Ok(_)) => break,
            None => continue,
        }
        told.fetch_add(1, Ordering::Relaxed);
    }
    assert!(told.load(Ordering::Relaxed) > 1);
    drop(wake);
    thread.join().expect("it ends when nobody wants to know any more");
}

#[tokio::test]
async fn a_closed_store_answers_and_never_hangs() {
    let mut rig = Rig::with(&[("a.yaml", &external("a", 1))]);
    let a = rig.applied("a").await;
    let records = rig.standalone.records();
    rig.stop().await;
    assert_eq!(records.adopt(&a.key, &a.uid, None, &Mandate::always()).await.unwrap_err().reason, Reason::Internal);
    assert!(records.owner_exists(&a.key, &a.uid).await.is_err());
}
