//! Commands that are run to their end within a limit: `squid -v`, `squid -k parse`.
//!
//! Each is the first of a process group of its own. If it is late, or nobody waits for it any more, all that it started ends
//! with it: `binary` may be a script. Never used for a Squid that is to stay.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

/// Ends the group when it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody of it is left: that is what is wanted.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// How it ends, and what it says on stderr if the caller has piped that; `None` if it takes longer.
pub(super) async fn run(mut command: Command, within: Duration) -> io::Result<Option<Output>> {
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.process_group(0).kill_on_drop(true).spawn()?;
    let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut end = Box::pin(child.wait_with_output());
    // Dropped before `end`: the number is the group's for as long as its leader is not waited for.
    let mut group = Group(leader);
    let Ok(output) = tokio::time::timeout(within, &mut end).await else { return Ok(None) };
    group.0 = None;
    output.map(Some)
}
