//! What is missing, taken, damaged or refused, and how it is told.

use std::net::TcpListener;

use egress_actors::domain::error::Class;
use egress_actors::domain::reason::Reason;
use futures::future::join_all;

use super::*;

pub(super) fn assert_told<T: std::fmt::Debug>(
    answer: Result<T, OpError>,
    class: Class,
    reason: Reason,
    words: &[&str],
) {
    let error = answer.expect_err("an error");
    assert_eq!((error.class, error.reason), (class, reason), "{error}");
    for word in words {
        assert!(error.detail.contains(word), "`{word}` is not in: {error}");
    }
}

#[tokio::test]
async fn a_missing_squid_is_permanent_and_names_the_path_and_the_package() {
    let Some(mut rig) = rig() else { return };
    rig.entry.binary = "/nonexistent/squid".into();
    let mark = rig.mark();
    let told = ["/nonexistent/squid", "package `squid`"];
    let created = rig.process().create(&rig.spec(&mark)).await;
    assert_told(created, Class::Permanent, Reason::BinaryMissing, &told);
    assert_told(rig.process().check().await, Class::Permanent, Reason::BinaryMissing, &told);
    // What cannot be made can be looked at, listed and deleted.
    assert_eq!(rig.count(&mark).await, 0);
    assert!(rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list").is_empty());
    rig.process().delete(&mark).await.expect("a delete");
}

#[tokio::test]
async fn a_refused_configuration_is_permanent_with_squids_own_words_and_leaves_nothing() {
    let Some(mut rig) = rig() else { return };
    rig.script(&format!("echo 'acl broken dst 1.2.3.4/99' >> \"$CONF\"\nexec {SQUID} \"$@\""));
    let mark = rig.mark();
    let created = rig.process().create(&rig.spec(&mark)).await;
    assert_told(created, Class::Permanent, Reason::ConfigRefused, &["Bungled", "acl broken dst 1.2.3.4/99"]);
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn a_squid_that_is_killed_has_refused_nothing() {
    let Some(mut rig) = rig() else { return };
    rig.script("kill -9 $$");
    let created = rig.process().create(&rig.spec(&rig.mark())).await;
    assert_told(created, Class::Transient, Reason::InstanceStopped, &["ended at once"]);
}

#[tokio::test]
async fn a_squid_that_ends_at_once_for_another_cause_is_transient_with_its_words() {
    let Some(mut rig) = rig() else { return };
    rig.script("[ \"$1\" = -k ] && exit 0\necho 'FATAL: the moon is full' >&2\nexit 1");
    let mark = rig.mark();
    let created = rig.process().create(&rig.spec(&mark)).await;
    assert_told(created, Class::Transient, Reason::InstanceStopped, &["the moon is full"]);
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn a_squid_that_never_listens_is_starting_and_can_be_deleted() {
    let Some(mut rig) = rig() else { return };
    rig.script("sleep 600");
    let mark = rig.mark();
    let spec = rig.spec(&mark);
    // Dropped at a deadline, as the actors do.
    let process = rig.process();
    let _late = tokio::time::timeout(Duration::from_secs(1), process.create(&spec)).await;
    let seen = rig.process().get(&mark).await.expect("an instance");
    assert_eq!((seen.state, seen.endpoint), (InstanceState::Starting, None));
    rig.process().delete(&mark).await.expect("a delete");
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn taken_ports_are_skipped_and_a_full_range_is_told() {
    let Some(mut rig) = rig() else { return };
    let first = *rig.entry.ports.start();
    rig.entry.ports = first..=first + 3;
    let taken: Vec<_> = [first, first + 2].map(|port| TcpListener::bind(("127.0.0.1", port)).expect("free")).into();
    let process = rig.process();
    process.check().await.expect("there is room");

    let marks = [rig.mark(), rig.mark()];
    let specs: Vec<_> = marks.iter().map(|mark| rig.spec(mark)).collect();
    let made = join_all(specs.iter().map(|spec| process.create(spec))).await;
    let mut ports: Vec<u16> =
        made.into_iter().map(|one| one.expect("a create").endpoint.expect("an address").port).collect();
    ports.sort_unstable();
    assert_eq!(ports, [first + 1, first + 3]);

    let mark = rig.mark();
    let created = process.create(&rig.spec(&mark)).await;
    let range = format!("{first}-{}", first + 3);
    assert_told(created, Class::Transient, Reason::PortRangeExhausted, &[&range, "`local`"]);
    assert_eq!(rig.count(&mark).await, 0);
    assert_told(process.check().await, Class::Transient, Reason::PortRangeExhausted, &[&range]);
    // Full of our own instances alone is not a fault of the host.
    drop(taken);
    rig.entry.ports = first + 1..=first + 1;
    rig.process().check().await.expect("full, and well");
    // A port that was given up is free again.
    process.delete(&marks[0]).await.expect("a delete");
    process.create(&rig.spec(&mark)).await.expect("a create");
}

#[tokio::test]
async fn eight_creates_at_once_on_eight_ports_all_get_one() {
    let Some(mut rig) = rig() else { return };
    let first = *rig.entry.ports.start();
    rig.entry.ports = first..=first + 7;
    let specs: Vec<_> = (0..8).map(|_| rig.spec(&rig.mark())).collect();
    let process = rig.process();
    let made = join_all(specs.iter().map(|spec| process.create(spec))).await;
    let mut ports: Vec<u16> =
        made.into_iter().map(|one| one.expect("a create").endpoint.expect("an address").port).collect();
    ports.sort_unstable();
    assert_eq!(ports, (first..=first + 7).collect::<Vec<_>>());
    assert_eq!(process.capacity(), 8);
}

#[tokio::test]
async fn a_port_that_is_taken_while_squid_starts_is_given_up_for_another() {
    let Some(mut rig) = rig() else { return };
    let dir = rig.dir.path().to_owned();
    // The first start waits until the test has taken its port.
    rig.script(&format!(
        "if mkdir {0}/first 2>/dev/null; then\n\
         sed -n 's/^http_port .*:\\([0-9]*\\)$/\\1/p' \"$CONF\" > {0}/port.new; mv {0}/port.new {0}/port\n\
         while [ ! -e {0}/go ]; do sleep 0.01; done\nfi\nexec {SQUID} \"$@\"",
        dir.display()
    ));
    let mark = rig.mark();
    let (process, spec) = (rig.process(), rig.spec(&mark));
    let thief = async {
        let port: u16 = eventually("squid is asked to listen", || async {
            fs::read_to_string(dir.join("port"))
                .map_err(|e| e.to_string())?
                .trim()
                .parse()
                .map_err(|_| "no port".to_owned())
        })
        .await;
        let taken = TcpListener::bind(("127.0.0.1", port)).expect("squid does not listen yet");
        fs::write(dir.join("go"), "").expect("a file");
        taken
    };
    let (made, taken) = tokio::join!(process.create(&spec), thief);
    let made = made.expect("a create");
    assert_eq!(made.state, InstanceState::Running);
    assert_ne!(made.endpoint.expect("an address").port, taken.local_addr().expect("an address").port());
    assert_eq!(rig.count(&mark).await, 1);
}

#[tokio::test]
async fn a_folder_without_a_mark_is_not_ours_unless_it_is_empty() {
    let Some(rig) = rig() else { return };
    let mark = rig.mark();
    let folder = rig.folder(&mark);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("thesis.txt"), "years of work").expect("a file");
    assert_told(rig.process().create(&rig.spec(&mark)).await, Class::Permanent, Reason::NameConflict, &["owner mark"]);
    assert_told(rig.process().delete(&mark).await, Class::Permanent, Reason::NameConflict, &["owner mark"]);
    assert!(rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list").is_empty());
    assert_eq!(fs::read_to_string(folder.join("thesis.txt")).expect("still there"), "years of work");

    fs::remove_file(folder.join("thesis.txt")).expect("a file");
    rig.process().create(&rig.spec(&mark)).await.expect("a create over an empty folder");
}

#[tokio::test]
async fn a_state_directory_that_is_away_is_an_error_and_not_emptiness() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let base = rig.dir.path().join("process");
    let away = rig.dir.path().join("away");
    fs::rename(&base, &away).expect("a rename");
    let (process, told, pid) = (rig.process(), ["mounted"], rig.pid(&mark));
    let never = rig.mark();
    // Nothing in its place, or what a mount point is without its mount.
    for is_there in [false, true] {
        if is_there {
            fs::create_dir_all(base.join("local")).expect("a directory");
        }
        for entry in [Some(&mark.entry), None] {
            assert_told(process.list(&mark.operator, entry).await, Class::Transient, Reason::StorageNotFound, &told);
        }
        for mark in [&mark, &never] {
            assert_told(process.get(mark).await, Class::Transient, Reason::StorageNotFound, &told);
            assert_told(process.create(&rig.spec(mark)).await, Class::Transient, Reason::StorageNotFound, &told);
            assert_told(process.delete(mark).await, Class::Transient, Reason::StorageNotFound, &told);
        }
        assert_told(process.check().await, Class::Transient, Reason::StorageNotFound, &told);
        assert_eq!(rig.pid(&mark), pid, "a squid was ended or made beside it");
    }
    fs::remove_dir(base.join("local")).expect("nothing was made in it");
    fs::remove_dir(&base).expect("nothing was made in it");
    fs::rename(&away, &base).expect("a rename");
    assert_eq!(rig.state(&mark).await, InstanceState::Running);
    assert_eq!(rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list").len(), 1);

    let missing = ProcessBackend::new(rig.entry.clone(), &rig.dir.path().join("missing"), []);
    let told = ["missing"];
    assert_told(
        missing.list(&mark.operator, Some(&mark.entry)).await,
        Class::Transient,
        Reason::StorageNotFound,
        &told,
    );
    assert_told(missing.get(&mark).await, Class::Transient, Reason::StorageNotFound, &told);
    assert_told(missing.create(&rig.spec(&mark)).await, Class::Transient, Reason::StorageNotFound, &told);
    assert_told(missing.check().await, Class::Transient, Reason::StorageNotFound, &told);
}

#[tokio::test]
async fn what_a_killed_operator_left_half_made_is_swept_by_the_next_create() {
    let Some(rig) = rig() else { return };
    let (_, _) = rig.made().await;
    let base = rig.dir.path().join("process/local");
    for left in [".new-0000", ".gone-1111"] {
        fs::create_dir(base.join(left)).expect("a folder");
        fs::write(base.join(left).join(directory::CONF), "").expect("a file");
    }
    rig.made().await;
    assert!(!base.join(".new-0000").exists() && !base.join(".gone-1111").exists());
}

#[tokio::test]
async fn credentials_are_refused_where_squids_user_cannot_come_to_them() {
    let Some(mut rig) = rig() else { return };
    if auth::squid_user().is_none() {
        println!("skipped: squid runs as who we are");
        return;
    }
    rig.entry.auth = Auth::Generated;
    fs::set_permissions(rig.dir.path(), fs::Permissions::from_mode(0o700)).expect("a mode");
    let mark = rig.mark();
    let told = ["chmod o+x", "closed to user"];
    assert_told(rig.process().create(&rig.spec(&mark)).await, Class::Permanent, Reason::Forbidden, &told);
    assert_told(rig.process().check().await, Class::Permanent, Reason::Forbidden, &told);
    // Without credentials Squid needs no file of its own.
    rig.entry.auth = Auth::None;
    rig.made().await;
}

#[tokio::test]
async fn a_state_directory_that_squid_cannot_read_is_told_before_anything_is_made() {
    let Some(rig) = rig() else { return };
    let blank = rig.dir.path().join("with blank");
    fs::create_dir(&blank).expect("a directory");
    let process = ProcessBackend::new(rig.entry.clone(), &blank, []);
    let mark = rig.mark();
    let told = ["with blank", "--state-dir"];
    assert_told(process.create(&rig.spec(&mark)).await, Class::Permanent, Reason::ConfigInvalid, &told);
    assert_told(process.check().await, Class::Permanent, Reason::ConfigInvalid, &told);
    process.delete(&mark).await.expect("a delete");
    assert!(!blank.join("process").exists());
}

#[tokio::test]
async fn a_check_that_is_late_leaves_nothing_of_what_it_started_behind() {
    let Some(mut rig) = rig() else { return };
    let told = rig.dir.path().join("pid");
    rig.script(&format!("sleep 600 & echo $! > '{}'; wait", told.display()));
    assert_told(rig.process().check().await, Class::Transient, Reason::Timeout, &["squid.sh -v"]);
    let pid: u32 = fs::read_to_string(&told).expect("a pid").trim().parse().expect("a number");
    // Not waited for by us: it is a zombie until whoever inherits it looks.
    let ended = || match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !ended() {
        assert!(std::time::Instant::now() < until, "{pid} runs on");
        tokio::task::yield_now().await;
    }
}
