//! A real operator process that is killed in the middle of its work.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

const CHILD: &str = "EGRESS_TEST_STANDALONE_DIR";

/// Not a test by itself: the operator that the next test kills.
#[tokio::test]
async fn child_that_adopts_for_ever() {
    let Ok(root) = std::env::var(CHILD) else { return };
    let (dir, state) = (Path::new(&root).join("manifests"), Path::new(&root).join("state"));
    let standalone = Standalone::open(&dir, &state, FAST).unwrap();
    let mut events = standalone.source().events();
    let records = standalone.records();
    // Ends by itself if nobody kills it.
    while let Ok(Some(event)) = tokio::time::timeout(LIMIT, events.next()).await {
        let SourceEvent::Applied(Applied { desired, .. }) = event else { continue };
        if !desired.finalizer {
            let host = HostName::parse("local").unwrap();
            records
                .adopt(&desired.key, &desired.uid, Some(&host), &egress_actors::ports::Mandate::always())
                .await
                .unwrap();
            println!("adopted {} {}", desired.key, desired.uid);
        }
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_and_the_lock_does_not() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, state) = (temp.path().join("manifests"), temp.path().join("state"));
    fs::create_dir(&dir).unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        for i in 0..20 {
            let name = format!("px-{round}-{i}");
            fs::write(dir.join(format!("{name}.yaml")), managed(&name)).unwrap();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "standalone::tests::kill::child_that_adopts_for_ever", "--nocapture"])
            .env(CHILD, temp.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Killed in the middle of its work.
        for line in lines.filter(|line| line.starts_with("adopted ")).take(12) {
            let (key, uid) = line["adopted ".len()..].split_once(' ').unwrap();
            acknowledged.push((ProxyKey::parse(key).unwrap(), Uid::parse(uid).unwrap()));
            if acknowledged.len() % 12 == 1 {
                let error = Standalone::open(&dir, &state, FAST).unwrap_err().to_string();
                assert!(error.contains(&format!("in use by another operator (process {})", child.id())), "{error}");
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut rig = Rig::start(temp, FAST);
    let mut seen = std::collections::HashMap::new();
    rig.until(|event| match event {
        SourceEvent::Applied(applied) => {
            seen.insert(applied.desired.key.clone(), applied.desired);
            None
        }
        SourceEvent::Synced { .. } => Some(()),
        _ => None,
    })
    .await;
    assert_eq!((acknowledged.len(), seen.len()), (36, 60));
    for (key, uid) in acknowledged {
        let desired = &seen[&key];
        assert!(desired.uid == uid && desired.finalizer && desired.host.is_some(), "{key} was forgotten");
    }
}
