//! The life of objects by looks and writes, told as lines.

use egress_actors::domain::error::Class;

use super::*;
use crate::standalone::documents;

/// A fleet with a clock of its own; what happened is told in lines.
struct Told {
    fleet: Fleet,
    start: Instant,
}

fn fleet() -> Told {
    Told { fleet: Fleet::new(Rows::new(), Duration::from_secs(2), false), start: Instant::now() }
}

fn at() -> Time {
    Time("2026-12-01T00:00:00Z".parse().unwrap())
}

fn view(files: &[(&str, String)]) -> View {
    View { files: files.iter().map(|(n, text)| ((*n).into(), documents::read(text.as_bytes()).into())).collect() }
}

fn managed(name: &str, provider: &str, more: &str) -> String {
    format!(
        "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: crawl{more}}}\n\
         spec: {{managed: {{provider: {provider}}}}}\n"
    )
}

fn external(name: &str, port: u16) -> String {
    format!(
        "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}, namespace: crawl}}\n\
         spec: {{external: {{url: 'http://203.0.113.7:{port}'}}}}\n"
    )
}

fn key(name: &str) -> ProxyKey {
    ProxyKey::new("crawl", name).unwrap()
}

impl Told {
    fn look(&mut self, seconds: u64, files: &[(&str, String)]) -> Vec<String> {
        self.look_at(seconds, &view(files))
    }

    fn look_at(&mut self, seconds: u64, view: &View) -> Vec<String> {
        let now = self.start + Duration::from_secs(seconds);
        let problems = self.fleet.look(view, now, &at());
        let mut told = self.told();
        told.extend(problems.iter().map(|problem| format!("problem {problem}")));
        told
    }

    fn told(&mut self) -> Vec<String> {
        let told = |event| match event {
            SourceEvent::Applied(applied) => {
                let d = &applied.desired;
                let mut line = format!("{} generation {}", d.key.name(), d.generation);
                for (word, yes) in [
                    ("deleting", d.deleting),
                    ("finalizer", d.finalizer),
                    ("drain", d.annotations.drain),
                    ("skips", d.annotations.skip_cleanup),
                ] {
                    if yes {
                        line.extend([" ", word]);
                    }
                }
                line.push_str(&d.host.as_ref().map_or_else(String::new, |host| format!(" on {host}")));
                line
            }
            SourceEvent::Rejected(rejected) => format!("{} rejected {}", rejected.key.name(), rejected.message),
            SourceEvent::Gone { key, .. } => format!("{} gone", key.name()),
            SourceEvent::Synced { living } => format!("synced {}", living.len()),
            SourceEvent::ListStarted => "list".to_owned(),
            SourceEvent::SecretChanged { .. } | SourceEvent::Unreadable(_) => unreachable!("not from the fleet"),
        };
        self.fleet.written().into_iter().map(told).collect()
    }

    /// As a new process finds it in the store.
    fn restarted(&self, allow_mass_removal: bool) -> Self {
        let row = |(key, entry): (&ProxyKey, &Entry)| (key.clone(), (Record::clone(&entry.record), None));
        let rows: Rows = self.fleet.entries.iter().map(row).collect();
        Self { fleet: Fleet::new(rows, Duration::from_secs(2), allow_mass_removal), start: Instant::now() }
    }

    fn uid(&self, name: &str) -> Uid {
        Uid::parse(&self.fleet.entries[&key(name)].record.uid).unwrap()
    }

    fn adopt(&mut self, name: &str) -> Vec<String> {
        let (uid, host) = (self.uid(name), HostName::parse("local").unwrap());
        self.fleet.adopt(&key(name), &uid, Some(&host)).unwrap();
        self.told()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn an_object_comes_changes_and_goes() {
    let mut told = fleet();
    assert_eq!(told.look(0, &[("a.yaml", external("a", 1))]), ["a generation 1"]);
    let uid = told.uid("a");
    assert_eq!(told.look(1, &[("a.yaml", external("a", 1))]), NOTHING);
    assert_eq!(told.look(2, &[("a.yaml", external("a", 2))]), ["a generation 2"]);
    assert_eq!(told.uid("a"), uid);
    assert_eq!(told.look(3, &[]), NOTHING, "one look is not enough");
    assert_eq!(told.look(4, &[]), NOTHING, "nor is one a second later");
    assert_eq!(told.look(5, &[]), ["a gone"]);
    assert_eq!(told.look(6, &[("a.yaml", external("a", 2))]), ["a generation 1"]);
    assert_ne!(told.uid("a"), uid, "a recreated name is a new object");
}

#[test]
fn a_manifest_that_blinks_is_not_removed() {
    let mut told = fleet();
    let file = [("a.yaml", external("a", 1))];
    told.look(0, &file);
    for round in 0..10 {
        assert_eq!(told.look(3 * round + 1, &[]), NOTHING);
        assert_eq!(told.look(3 * round + 2, &file), NOTHING);
    }
}

#[test]
fn an_unreadable_directory_between_two_looks_starts_the_wait_anew() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", external("a", 1))]);
    told.look(1, &[]);
    told.fleet.unreadable();
    assert_eq!(told.look(10, &[]), NOTHING);
    assert_eq!(told.look(12, &[]), ["a gone"]);
}

#[test]
fn an_object_with_a_finalizer_lives_on_until_it_is_released() {
    let mut told = fleet();
    let file = [("a.yaml", managed("a", "local", ""))];
    told.look(0, &file);
    assert_eq!(told.adopt("a"), ["a generation 1 finalizer on local"]);
    let old = told.uid("a");
    told.look(1, &[]);
    assert_eq!(told.look(3, &[]), ["a generation 1 deleting finalizer on local"]);
    assert_eq!(told.look(5, &[]), NOTHING);
    // The manifest comes back: the old object ends first.
    assert_eq!(told.look(6, &file), NOTHING);
    assert!(told.fleet.exists(&key("a"), &old));
    told.fleet.release(&key("a"), &old);
    assert_eq!(told.told(), ["a gone"]);
    assert_eq!(told.look(7, &file), ["a generation 1"]);
    assert_ne!(told.uid("a"), old);
    assert!(!told.fleet.exists(&key("a"), &old));
}

#[test]
fn a_deleting_object_takes_annotations_of_a_returned_manifest_and_nothing_else() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "local", ""))]);
    told.adopt("a");
    told.look(1, &[]);
    told.look(3, &[]);
    let skip = ", annotations: {crawl.example.com/skip-cleanup: 'true', crawl.example.com/drain: 'true'}";
    let returned = [("b.yaml", managed("a", "other", skip))];
    assert_eq!(told.look(4, &returned), ["a generation 1 deleting finalizer drain skips on local"]);
    assert_eq!(told.fleet.entries[&key("a")].record.spec.managed.as_ref().unwrap().provider, "local");
    assert_eq!(told.look(5, &returned), NOTHING);
}

/// A Proxy whose deletion is blocked, and its manifest put back to give the instance up.
fn given_up() -> (Told, [(&'static str, String); 1]) {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "local", ""))]);
    told.adopt("a");
    told.look(1, &[]);
    told.look(3, &[]);
    let answer = [("a.yaml", managed("a", "local", ", annotations: {crawl.example.com/skip-cleanup: 'true'}"))];
    assert_eq!(told.look(4, &answer), ["a generation 1 deleting finalizer skips on local"]);
    let uid = told.uid("a");
    told.fleet.release(&key("a"), &uid);
    assert_eq!(told.told(), ["a gone"]);
    (told, answer)
}

#[test]
fn a_manifest_put_back_to_give_up_a_blocked_deletion_does_not_make_the_proxy_anew() {
    let (mut told, answer) = given_up();
    let problem = format!("problem a.yaml line 2: Proxy `crawl/a`: its {ANSWERS}");
    for second in [5, 60] {
        assert_eq!(told.look(second, &answer), [problem.as_str()]);
    }
    // Read anew, or moved to another file, it is still the same.
    let moved = [("b.yaml", answer[0].1.clone())];
    assert_eq!(told.look(61, &moved), [problem.replace("a.yaml", "b.yaml").as_str()]);
    assert_eq!(told.look(62, &[]), NOTHING);
}

#[test]
fn a_manifest_that_gave_up_a_deletion_makes_the_proxy_anew_once_it_changes_or_comes_back() {
    let (mut told, _) = given_up();
    assert_eq!(told.look(5, &[("a.yaml", managed("a", "local", ""))]), ["a generation 1"], "without the annotation");
    let (mut told, _) = given_up();
    let other = [("a.yaml", managed("a", "other", ", annotations: {crawl.example.com/skip-cleanup: 'true'}"))];
    assert_eq!(told.look(5, &other), ["a generation 1 skips"], "with another spec");
    let (mut told, answer) = given_up();
    assert_eq!(told.look(5, &[]), NOTHING);
    assert_eq!(told.look(6, &answer), ["a generation 1 skips"], "it went and came back");
}

#[test]
fn an_immutable_change_is_rejected_once_and_the_good_version_stays() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "local", ""))]);
    let bad = view(&[("a.yaml", managed("a", "other", ""))]);
    let message = "a.yaml line 2: Proxy `crawl/a`: spec.managed.provider: was `local`, now is `other`; \
                   immutable: delete and recreate, or annotate crawl.example.com/recreate for a fresh instance of the old spec";
    assert_eq!(told.look_at(1, &bad), [format!("a rejected {message}"), format!("problem {message}")]);
    assert_eq!(told.look_at(2, &bad), [format!("problem {message}")], "told once, shown as long as it lasts");
    assert_eq!(told.look(3, &[("a.yaml", managed("a", "local", ""))]), ["a generation 1"], "no longer rejected");
    assert_eq!(told.look(4, &[("a.yaml", managed("a", "local", ""))]), NOTHING);
}

#[test]
fn a_refusal_stays_on_the_proxy_when_the_operator_writes_its_status() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "local", ""))]);
    let bad = view(&[("a.yaml", managed("a", "other", ""))]);
    let refusal = told.look_at(1, &bad).remove(0);
    assert!(refusal.starts_with("a rejected "), "{refusal}");
    let uid = told.uid("a");
    // Each echo of a write of our own takes the refusal back, and so brings it again.
    told.fleet.write_status(&key("a"), &uid, ProxyStatus::default()).unwrap();
    assert_eq!(told.told(), ["a generation 1".to_owned(), refusal.clone()]);
    assert_eq!(told.adopt("a"), ["a generation 1 finalizer on local".to_owned(), refusal]);
    assert_eq!(told.look(2, &[("a.yaml", managed("a", "local", ""))]), ["a generation 1 finalizer on local"]);
    told.fleet.annotate_drain(&key("a"), &uid, true).unwrap();
    assert_eq!(told.told(), ["a generation 1 finalizer drain on local"], "it is refused no longer");
}

#[test]
fn a_new_object_that_is_not_valid_is_only_a_problem() {
    let mut told = fleet();
    let expected = "problem a.yaml line 2: Proxy `crawl/a`: spec.external.url: `http://203.0.113.7:0` given, has port 0: \
                    give the port where the proxy listens, 1 to 65535";
    assert_eq!(told.look(0, &[("a.yaml", external("a", 0))]), [expected]);
    assert_eq!(told.look(1, &[("a.yaml", external("a", 1))]), ["a generation 1"]);
}

#[test]
fn a_file_that_broke_keeps_the_objects_that_came_from_it() {
    let mut told = fleet();
    let good = external("a", 1) + &external("b", 1);
    told.look(0, &[("f.yaml", good.clone()), ("g.yaml", external("c", 1))]);
    for (second, broken) in [
        (10, String::new() + "kind: ["),
        (20, external("a", 1) + "---\nkind: Pro"),
        (30, external("a", 1) + "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: b, namesp"),
        // The name is cut too, and is that of another object.
        (40, external("a", 1) + "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: bb}\n"),
    ] {
        for later in [0, 5] {
            let lines = told.look(second + later, &[("f.yaml", broken.clone()), ("g.yaml", external("c", 1))]);
            assert!(lines.iter().all(|line| line.starts_with("problem f.yaml line ")), "{lines:?}");
        }
    }
    // The other documents of a broken file go on, with their changes.
    let half = external("a", 2) + "---\nkind: [";
    assert_eq!(told.look(50, &[("f.yaml", half), ("g.yaml", external("c", 1))])[0], "a generation 2");
    assert_eq!(told.look(60, &[("f.yaml", good), ("g.yaml", external("c", 1))]), ["a generation 3"]);
}

#[test]
fn an_object_that_broke_in_its_file_is_rejected_and_kept() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", external("a", 1))]);
    let broken = [("a.yaml", external("a", 1).replace("url:", "uri:"))];
    let message = "a.yaml line 5: Proxy `crawl/a`: spec.external.uri: is not a known field: remove it, or correct it to one of url, \
                   credentialsSecretRef (column 19)";
    assert_eq!(told.look(1, &broken), [format!("a rejected {message}"), format!("problem {message}")]);
    assert_eq!(told.look(9, &broken), [format!("problem {message}")]);
    assert_eq!(told.look(10, &[("a.yaml", external("a", 1))]), ["a generation 1"]);
}

#[test]
fn of_two_objects_of_one_name_the_stored_one_goes_on() {
    let mut told = fleet();
    told.look(0, &[("b.yaml", external("a", 1))]);
    let both = [("a.yaml", external("a", 2)), ("b.yaml", external("a", 1))];
    let problem = "problem a.yaml line 2: Proxy `crawl/a` is also in b.yaml line 2, which goes on; \
                   this one is passed over: remove one of the two";
    assert_eq!(told.look(1, &both), [problem]);
    assert_eq!(told.look(2, &both[..1]), ["a generation 2"], "the other takes over when the first is removed");
    assert_eq!(told.look(9, &both[..1]), NOTHING);
}

#[test]
fn of_two_new_objects_of_one_name_the_first_by_file_name_goes_on() {
    let mut told = fleet();
    let lines = told.look(0, &[("b.yaml", external("a", 2)), ("a.yaml", external("x", 1) + &external("a", 1))]);
    let problem = "problem b.yaml line 2: Proxy `crawl/a` is also in a.yaml line 7, which goes on; \
                   this one is passed over: remove one of the two";
    assert_eq!(lines, ["a generation 1", "x generation 1", problem]);
    assert_eq!(told.fleet.entries[&key("a")].record.origin, "a.yaml");
}

#[test]
fn a_namesake_does_not_take_over_while_the_file_of_the_stored_one_is_broken() {
    let mut told = fleet();
    told.look(0, &[("b.yaml", external("a", 1))]);
    let files = [("a.yaml", external("a", 2)), ("b.yaml", "kind: [".to_owned())];
    for second in [1, 9] {
        let lines = told.look(second, &files);
        let problem = "problem a.yaml line 2: Proxy `crawl/a` is also in b.yaml, which cannot be read completely; \
                       this one is passed over: remove one of the two";
        assert_eq!(lines, [problem]);
    }
    assert_eq!(told.look(10, &files[..1]), ["a generation 2"]);
}

#[test]
fn most_of_the_fleet_gone_at_once_is_held_back_until_it_is_back() {
    let mut told = fleet();
    let files: Vec<_> = ["a", "b", "c", "d"].map(|n| (n, external(n, 1))).into();
    assert_eq!(told.look(0, &files).len(), 4);
    for second in [10, 20, 300] {
        assert_eq!(told.look(second, &files[..1]), NOTHING);
        let held = told.fleet.held_back().unwrap().to_string();
        assert!(
            held.starts_with("3 of 4 Proxies (`crawl/b`, `crawl/c`, `crawl/d`) have no manifest any more; "),
            "{held}"
        );
    }
    assert_eq!(told.look(301, &files), NOTHING);
    assert_eq!(told.fleet.held_back(), None);
    told.look(302, &files[..3]);
    assert_eq!(told.look(304, &files[..3]), ["d gone"], "a few may go");
}

#[test]
fn what_was_held_back_is_so_after_a_restart_too_until_it_is_allowed() {
    let mut told = fleet();
    let files: Vec<_> = ["a", "b", "c", "d"].map(|n| (n, external(n, 1))).into();
    told.look(0, &files);
    told.look(1, &files[..2]);
    assert_eq!(told.look(3, &files[..2]), ["c gone", "d gone"]);
    told.look(4, &files[..1]);
    assert_eq!(told.look(6, &files[..1]), NOTHING, "one more, after two others");
    let held = told.fleet.held_back().unwrap().to_string();
    assert!(held.contains("1 of 2 Proxies (`crawl/b`) has no manifest any more, after 2 others were"), "{held}");
    // By itself it would be few enough to go.
    let mut told = told.restarted(false);
    for second in [0, 10, 300] {
        assert_eq!(told.look(second, &files[..1]), NOTHING);
        assert_eq!(told.fleet.held_back().unwrap().proxies, [key("b")]);
    }
    let mut allowed = told.restarted(true);
    assert_eq!(allowed.look(0, &files[..1]), NOTHING);
    assert_eq!(allowed.look(2, &files[..1]), ["b gone"]);
    // Its manifest is back: the store forgets it too.
    told.look(301, &files[..2]);
    let mut told = told.restarted(false);
    told.look(0, &files[..1]);
    assert_eq!(told.look(2, &files[..1]), ["b gone"]);
}

#[test]
fn a_drain_set_over_http_holds_until_the_manifest_speaks() {
    let mut told = fleet();
    let plain = [("a.yaml", managed("a", "local", ""))];
    let with = |value: &str| {
        [("a.yaml", managed("a", "local", &format!(", annotations: {{crawl.example.com/drain: '{value}'}}")))]
    };
    told.look(0, &plain);
    let uid = told.uid("a");
    told.fleet.annotate_drain(&key("a"), &uid, true).unwrap();
    assert_eq!(told.told(), ["a generation 1 drain"]);
    assert_eq!(told.look(1, &[("b.yaml", plain[0].1.clone())]), ["a generation 1 drain"], "the file was renamed");
    assert_eq!(told.look(2, &with("false")), ["a generation 1"]);
    told.fleet.annotate_drain(&key("a"), &uid, false).unwrap();
    told.told();
    assert_eq!(told.look(3, &with("true")), ["a generation 1 drain"]);
    told.fleet.annotate_drain(&key("a"), &uid, false).unwrap();
    assert_eq!(told.told(), ["a generation 1"]);
}

#[test]
fn writes_about_an_older_uid_change_nothing() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", external("a", 1))]);
    let other = Uid::parse("other").unwrap();
    assert_eq!(told.fleet.adopt(&key("a"), &other, None).unwrap_err().class, Class::NotFound);
    assert_eq!(told.fleet.write_status(&key("a"), &other, ProxyStatus::default()).unwrap_err().class, Class::NotFound);
    assert_eq!(told.fleet.annotate_drain(&key("a"), &other, true).unwrap_err().class, Class::NotFound);
    told.fleet.release(&key("a"), &other);
    told.fleet.release(&key("b"), &other);
    assert_eq!(told.told(), NOTHING);
    assert!(told.fleet.dirty().is_empty());
}

#[test]
fn a_deleting_object_takes_no_new_finalizer() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "local", ""))]);
    told.adopt("a");
    told.look(1, &[]);
    told.look(3, &[]);
    let (uid, other) = (told.uid("a"), HostName::parse("other").unwrap());
    assert_eq!(told.fleet.adopt(&key("a"), &uid, Some(&other)).unwrap_err().reason, Reason::Deleting);
    // The same once more is shown again, as its asker waits to see it.
    assert_eq!(told.adopt("a"), ["a generation 1 deleting finalizer on local"]);
}

#[test]
fn an_annotation_of_the_host_in_a_manifest_is_not_ours() {
    let mut told = fleet();
    let file = [("a.yaml", managed("a", "local", ", annotations: {crawl.example.com/host: elsewhere}"))];
    assert_eq!(told.look(0, &file), ["a generation 1"]);
    assert_eq!(told.adopt("a"), ["a generation 1 finalizer on local"]);
}

#[test]
fn what_could_not_be_stored_did_not_happen_and_is_found_again() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", external("a", 1)), ("b.yaml", external("b", 1)), ("c.yaml", managed("c", "p", ""))]);
    told.adopt("c");
    let uid = told.uid("a");
    let next = view(&[("a.yaml", external("a", 2)), ("d.yaml", external("d", 1)), ("c.yaml", managed("c", "q", ""))]);
    let change = |told: &mut Told| {
        for second in [1, 3] {
            let now = told.start + Duration::from_secs(second);
            told.fleet.look(&next, now, &at());
        }
        told.fleet.annotate_drain(&key("a"), &uid, true).unwrap();
    };
    change(&mut told);
    let dirty: Vec<_> = told.fleet.dirty().into_iter().map(ProxyKey::name).collect();
    assert_eq!(dirty, ["a", "b", "d"]);
    told.fleet.undo();
    assert_eq!(told.told(), NOTHING);
    assert!(told.fleet.exists(&key("a"), &uid) && told.fleet.entries.len() == 3);
    assert_eq!(told.fleet.entries[&key("a")].record.generation, 1);
    change(&mut told);
    let mut lines = told.told();
    lines.retain(|line| !line.contains("rejected"));
    assert_eq!(lines, ["a generation 2", "d generation 1", "b gone", "a generation 2 drain"]);
}

#[test]
fn a_list_has_everything_and_says_what_is_rejected() {
    let mut told = fleet();
    told.look(0, &[("a.yaml", managed("a", "p", "")), ("b.yaml", external("b", 1))]);
    told.look(1, &[("a.yaml", managed("a", "q", "")), ("b.yaml", external("b", 1))]);
    let list = told.fleet.list();
    told.fleet.events = list;
    let lines = told.told();
    assert_eq!((lines[0].as_str(), lines[1].as_str()), ("list", "a generation 1"));
    assert!(lines[2].starts_with("a rejected a.yaml line 2: Proxy `crawl/a`: spec.managed.provider"));
    assert_eq!(lines[3..], ["b generation 1", "synced 2"]);
}
