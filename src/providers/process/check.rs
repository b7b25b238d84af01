//! Check: can this entry make another instance? Takes no turn, and no permit that operations wait for.

use std::io;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use tokio::process::Command;

use super::auth::Wanted;
use super::{Site, directory, errors, oneshot, port, spawn, steps};

/// `squid -v` takes 0.01 s.
const VERSION_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn check(site: &Arc<Site>) -> Result<(), OpError> {
    steps::check_look(site, "checking the entry", |site| {
        directory::state_dir(site)?;
        directory::absence_counts(site)?;
        spawn::installed(site, &Wanted::of(site, None))?;
        room(site)
    })
    .await?;

    let binary = &site.entry.binary;
    let mut version = Command::new(binary);
    version.arg("-v").stderr(Stdio::null());
    match oneshot::run(version, VERSION_LIMIT).await {
        Ok(Some(Output { status, .. })) if status.success() => Ok(()),
        Ok(Some(Output { status, .. })) => {
            Err(errors::binary_missing(binary, &format!("does not run (`-v`: {status})")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(errors::binary_missing(binary, "does not exist, or its interpreter does not"))
        }
        Err(error) => Err(errors::binary_missing(binary, &format!("cannot be executed ({error})"))),
        Ok(None) => {
            let detail = format!("`{} -v` did not end within {VERSION_LIMIT:?}", binary.display());
            Err(OpError::transient(Reason::Timeout, detail))
        }
    }
}

/// That the range is not used up by others. An entry that is full of our own instances is well: its capacity says so.
fn room(site: &Site) -> Result<(), OpError> {
    let promised = port::promised(site, None)?;
    let mut others = 0;
    for port in site.entry.ports.clone() {
        if promised.contains(&port) {
            continue;
        }
        if port::is_free(site, port)? {
            return Ok(());
        }
        others += 1;
    }
    if others == 0 {
        return Ok(());
    }
    let range = &site.entry.ports;
    let detail = format!(
        "ports {}-{} on {}: {} used by instances, {others} taken by others, none free; widen `ports` of entry `{}`",
        range.start(),
        range.end(),
        site.entry.listen,
        promised.len(),
        site.entry.name
    );
    Err(OpError::transient(Reason::PortRangeExhausted, detail))
}
