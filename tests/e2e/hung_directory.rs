//! A directory of manifests on a file system that hangs, as a dead network mount does.
//!
//! The operator runs in a mount namespace of its own. Over its DIR comes a file system in user space whose server never
//! answers.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::manifest::managed;
use super::operator::Operator;
use super::site::Site;
use super::{eventually, may_unshare, program};

/// The server that never answers. Its end is the end of the hanging: then whoever looks gets an error.
struct Silent(Child);

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In the operator's namespace.
fn inside(operator: &Operator, script: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &operator.pid().to_string(), "-m", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn hang(operator: &Operator, dir: &str) -> Silent {
    let options = "fd=9,rootmode=40000,user_id=0,group_id=0";
    // `exec`: the descriptor is in the process that is killed, and in no other.
    let script = format!("exec 9<>/dev/fuse && mount -i -t fuse -o {options} silent {dir} && exec sleep 600");
    Silent(inside(operator, &script).spawn().unwrap())
}

#[tokio::test]
async fn a_directory_that_hangs_is_told_and_holds_up_nothing_that_is_known() {
    let Some(site) = Site::new() else { return };
    if !may_unshare() || program("nsenter").is_none() {
        return;
    }
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("skipped: /dev/fuse cannot be used here");
        return;
    }
    site.apply_each(["a", "b"], managed);
    let launch = site.operator().args(&["--list-interval", "1s", "--allow-mass-removal"]);
    let operator = launch.inside(&["unshare", "-m"]).start().await;
    let api = &operator.api;
    api.all_ready(2).await;
    let age = "egress_standalone_look_age_seconds";
    assert!(api.metric(age).await.unwrap() < 15.0);
    assert!(api.check("manifests-looked-at").await.starts_with("[+]"));
    let old = site.squid_of("a").unwrap();

    let dir = site.manifests().display().to_string();
    let silent = hang(&operator, &dir);
    eventually("it is told that nothing is seen any more", async || {
        let line = api.check("manifests-looked-at").await;
        (line.starts_with("[!]") && line.contains("hangs")).then_some(())
    })
    .await;
    eventually("also as a number", async || (api.metric(age).await? > 15.0).then_some(())).await;
    // What is known is served, repaired and leased.
    assert_eq!(api.admin("/readyz").await.unwrap().0, 200);
    super::squids::signal(old, rustix::process::Signal::KILL);
    eventually("a new child", async || site.squid_of("a").filter(|&pid| pid != old)).await;
    api.all_ready(2).await;
    let lease = api.lease("b").await;

    // The mount dies: what cannot be read is not empty.
    drop(silent);
    eventually("it is told that DIR cannot be read", async || {
        api.check("source-readable").await.starts_with("[!]").then_some(())
    })
    .await;
    api.all_ready(2).await;
    assert!(inside(&operator, &format!("umount -l {dir}")).status().unwrap().success());
    site.apply_each(["c"], managed);
    api.all_ready(3).await;
    assert!(api.check("manifests-looked-at").await.starts_with("[+]"));
    api.release(&lease).await;

    // An end does not wait for what hangs.
    let _silent = hang(&operator, &dir);
    eventually("it hangs again", async || (api.metric(age).await? > 3.0).then_some(())).await;
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    assert!(ended.took < Duration::from_secs(10), "took {:?}", ended.took);
}
