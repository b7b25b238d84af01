//! What runs, what is adopted, and what is never signalled.

use std::process::{Command, Stdio};

use super::*;

fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).expect("a pid"), signal).expect("a signal");
}

#[tokio::test]
async fn a_killed_squid_is_stopped_leaves_no_zombie_and_is_started_again_with_its_credentials() {
    let Some(mut rig) = rig() else { return };
    rig.entry.auth = Auth::Generated;
    let (mark, before) = rig.made().await;
    let pid = rig.pid(&mark);
    kill(pid, Signal::KILL);
    eventually("it is stopped", || async {
        match rig.state(&mark).await {
            InstanceState::Stopped => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a zombie is left");
    let listed = rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list");
    assert_eq!(listed.iter().map(|row| row.instance.state).collect::<Vec<_>>(), [InstanceState::Stopped]);

    let after = rig.process().create(&rig.spec(&mark)).await.expect("a create");
    assert_eq!(after.state, InstanceState::Running);
    assert!(before.generated.is_some() && before.generated == after.generated);
    assert_ne!(rig.pid(&mark), pid);
}

#[tokio::test]
async fn a_stopped_process_is_still_running_and_can_be_deleted_with_grace() {
    let Some(rig) = rig() else { return };
    let (mark, instance) = rig.made().await;
    kill(rig.pid(&mark), Signal::STOP);
    let seen = rig.process().get(&mark).await.expect("an instance");
    assert_eq!((seen.state, &seen.endpoint), (InstanceState::Running, &instance.endpoint));

    let begun = std::time::Instant::now();
    rig.with_long_grace().delete(&mark).await.expect("a delete");
    assert!(begun.elapsed() < GRACE, "it was killed, not asked: {:?}", begun.elapsed());
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn another_operator_process_adopts_what_runs() {
    let Some(mut rig) = rig() else { return };
    rig.entry.auth = Auth::Generated;
    let (mark, before) = rig.made().await;
    let pid = rig.pid(&mark);

    let again = rig.process();
    assert_eq!(again.get(&mark).await.expect("an instance"), before);
    assert_eq!(again.create(&rig.spec(&mark)).await.expect("a create"), before);
    assert_eq!(again.list(&mark.operator, Some(&mark.entry)).await.expect("a list")[0].instance, before);
    assert_eq!(rig.pid(&mark), pid);
    again.delete(&mark).await.expect("a delete");
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn a_child_without_a_record_is_adopted_by_its_arguments() {
    // As after a kill -9 of the operator between the start and the record.
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let pid = rig.pid(&mark);
    fs::remove_file(rig.folder(&mark).join(directory::RECORD)).expect("a record");
    let again = rig.process().create(&rig.spec(&mark)).await.expect("a create");
    assert_eq!((again.state, rig.pid(&mark)), (InstanceState::Running, pid));
    rig.process().delete(&mark).await.expect("a delete");
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn a_reused_pid_is_neither_running_nor_signalled() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let conf = rig.process().site.conf(&mark.uid);
    // One bystander has the recorded pid, by its true start time; the other one has the path among its arguments.
    let mut reused = Command::new("sleep").arg("600").spawn().expect("sleep");
    let mut reader =
        Command::new("tail").arg("-f").arg(&conf).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("tail");
    kill(rig.pid(&mark), Signal::KILL);
    let recorded = evidence::look_at(i32::try_from(reused.id()).expect("a pid")).expect("it runs");
    let json = serde_json::to_vec(&recorded).expect("two numbers");
    fs::write(rig.folder(&mark).join(directory::RECORD), json).expect("a record");

    eventually("it is stopped", || async {
        match rig.state(&mark).await {
            InstanceState::Stopped => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let site = Arc::clone(&rig.process().site);
    evidence::signal(&site, &mark.uid, recorded, Signal::KILL).expect("nothing is signalled");
    rig.process().delete(&mark).await.expect("a delete");
    assert!(reused.try_wait().expect("a look").is_none(), "a reused pid was signalled");
    assert!(reader.try_wait().expect("a look").is_none(), "a reader of the file was signalled");
    for bystander in [&mut reused, &mut reader] {
        bystander.kill().expect("a kill");
        bystander.wait().expect("an end");
    }
}

#[tokio::test]
async fn a_process_of_another_start_time_is_not_signalled() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let child = rig.children(&mark)[0];
    let older = evidence::Child { started: child.started - 1, ..child };
    evidence::signal(&rig.process().site, &mark.uid, older, Signal::KILL).expect("nothing is signalled");
    assert!(evidence::is_there(child));
}

#[tokio::test]
async fn squid_has_a_session_of_its_own_and_nothing_of_our_environment() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let pid = rustix::process::Pid::from_raw(rig.pid(&mark));
    assert_eq!(Some(rustix::process::getsid(pid).expect("a session")), pid);
    let process = procfs::process::Process::new(rig.pid(&mark)).expect("it runs");
    let mut names: Vec<_> = process.environ().expect("an environment").into_keys().collect();
    names.sort();
    assert_eq!(names, ["LC_ALL", "PATH"]);
}

#[tokio::test]
async fn an_instance_whose_folder_was_removed_is_stopped_and_can_be_made_anew() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let stray = rig.pid(&mark);
    fs::remove_dir_all(rig.folder(&mark)).expect("a folder");
    assert_eq!(rig.state(&mark).await, InstanceState::Stopped);
    let made = rig.process().create(&rig.spec(&mark)).await.expect("a create");
    assert_eq!(made.state, InstanceState::Running);
    assert_ne!(rig.pid(&mark), stray);

    fs::remove_dir_all(rig.folder(&mark)).expect("a folder");
    rig.process().delete(&mark).await.expect("a delete");
    assert_eq!(rig.count(&mark).await, 0);
}

#[tokio::test]
async fn long_logs_are_cut_by_a_list_and_written_on() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let log = rig.folder(&mark).join(directory::CACHE_LOG);
    let length = || fs::metadata(&log).expect("a log").len();
    assert!(length() > 0, "squid does not write to its log");
    let mut long = fs::OpenOptions::new().append(true).open(&log).expect("a log");
    std::io::Write::write_all(&mut long, &vec![b'x'; 1024 * 1024 + 1]).expect("space");
    rig.process().list(&mark.operator, Some(&mark.entry)).await.expect("a list");
    assert_eq!(length(), 0);
    kill(rig.pid(&mark), Signal::TERM);
    eventually("squid writes on at the new end", || async {
        match length() {
            0 => Err("nothing".to_owned()),
            some if some < 100_000 => Ok(()),
            hole => Err(format!("{hole} bytes")),
        }
    })
    .await;
}

#[tokio::test]
async fn no_password_is_in_an_argument_a_log_or_a_debug_text() {
    use secrecy::ExposeSecret as _;
    let Some(mut rig) = rig() else { return };
    rig.entry.auth = Auth::Generated;
    let (mark, instance) = rig.made().await;
    let generated = instance.generated.clone().expect("generated credentials");
    let password = generated.password.expose_secret();
    assert!(password.len() >= 24 && generated.username.len() >= 8);
    assert!(!format!("{instance:?} {:?}", rig.process()).contains(password));

    let folder = rig.folder(&mark);
    for file in [directory::CONF, directory::CACHE_LOG, directory::OUTPUT, directory::PASSWORDS, directory::OWNER] {
        let text = fs::read_to_string(folder.join(file)).expect("a file");
        assert!(!text.contains(password), "{file} has the password");
    }
    let mode = |file: &str| fs::metadata(folder.join(file)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode(directory::CREDENTIALS), mode(directory::PASSWORDS) & 0o007), (0o600, 0));
    let arguments = procfs::process::all_processes().expect("/proc").flatten().filter_map(|p| p.cmdline().ok());
    assert!(!arguments.into_iter().flatten().any(|argument| argument.contains(password)));
}

#[tokio::test]
async fn the_shared_memory_of_each_squid_has_a_name_of_its_own_and_goes_with_it() {
    let Some(rig) = rig() else { return };
    let (mark, _) = rig.made().await;
    let (neighbour, _) = rig.made().await;
    assert_ne!(shared_memory(&mark), 0, "squid makes shared memory under another name");
    // Killed, so that Squid itself cannot clean up.
    kill(rig.pid(&mark), Signal::KILL);
    rig.process().delete(&mark).await.expect("a delete");
    assert_eq!(shared_memory(&mark), 0);
    assert_ne!(shared_memory(&neighbour), 0);
}

#[tokio::test]
async fn a_squid_that_is_just_dying_is_waited_for_by_its_delete() {
    let Some(rig) = rig() else { return };
    // Some look meets the moment in which the process gives up its arguments: on a busy machine one in fifty does.
    for _ in 0..40 {
        let (mark, _) = rig.made().await;
        kill(rig.pid(&mark), Signal::KILL);
        rig.process().delete(&mark).await.expect("a delete");
    }
}
