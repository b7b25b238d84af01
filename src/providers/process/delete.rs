//! Delete: the process first, then the folder, each only after another look at the mark.

use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::OwnerMark;
use egress_actors::domain::reason::Reason;
use rustix::process::Signal;
use tokio::time::Instant;

use super::evidence::{self, Child};
use super::steps::{self, Turn};
use super::{Site, directory};

/// The kernel ends a killed process at once, unless a disk or a driver holds it.
const KILLED_WITHIN: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(25);

pub(super) async fn delete(site: &Arc<Site>, mark: &OwnerMark) -> Result<(), OpError> {
    let turn = Turn::take(site, &mark.uid).await?;
    end(&turn, site, mark).await?;
    let mark = mark.clone();
    turn.change("removing the instance", move |site| retire(site, &mark)).await
}

/// Ends every Squid on this instance's configuration: asks, waits, kills. Where its folder is gone the arguments are all
/// there is: they name our own directory and this uid.
pub(super) async fn end(turn: &Turn, site: &Arc<Site>, mark: &OwnerMark) -> Result<(), OpError> {
    for (signal, limit) in [(Signal::TERM, site.grace), (Signal::KILL, KILLED_WITHIN)] {
        let of = mark.clone();
        let children = turn.change("signalling squid", move |site| signal_all(site, &of, signal)).await?;
        if have_ended(site, children, limit).await? {
            return Ok(());
        }
    }
    let detail = format!("squid of instance `{}` does not end, not even by a kill", mark.uid);
    Err(OpError::transient(Reason::Timeout, detail))
}

fn signal_all(site: &Site, mark: &OwnerMark, signal: Signal) -> Result<Vec<Child>, OpError> {
    directory::read(site, mark)?;
    let children = evidence::of(site, &mark.uid)?;
    for &child in &children {
        evidence::signal(site, &mark.uid, child, signal)?;
        // A stopped process takes note of nothing but a kill.
        evidence::signal(site, &mark.uid, child, Signal::CONT)?;
    }
    Ok(children)
}

async fn have_ended(site: &Arc<Site>, children: Vec<Child>, limit: Duration) -> Result<bool, OpError> {
    let until = Instant::now() + limit;
    let mut left = children;
    loop {
        left = steps::look(site, "waiting for squid's end", move |_| {
            left.retain(|&child| evidence::is_there(child));
            Ok(left)
        })
        .await?;
        if left.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Removes the folder of an instance that does not run, and what is left where somebody else removed it.
pub(super) fn retire(site: &Site, mark: &OwnerMark) -> Result<(), OpError> {
    directory::read(site, mark)?;
    if evidence::one_of(site, &mark.uid)?.is_some() {
        let detail = format!("a squid of instance `{}` appeared while the instance was removed", mark.uid);
        return Err(OpError::transient(Reason::Busy, detail));
    }
    directory::retire(site, &mark.uid)
}
