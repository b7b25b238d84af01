//! Signals, and the end in order: says what it waits for, and leaves or removes the instances as asked.

use std::time::Duration;

use egress_actors::kit::Root;
use egress_actors::operator::Handles;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

use super::world::World;
use crate::args::OnExit;
use crate::standalone::Standalone;

/// Deleting on exit may take longer than stopping: every Squid has its own grace.
const DELETE_WITHIN: Duration = Duration::from_secs(60);

const TELL_EVERY: Duration = Duration::from_secs(3);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(super) struct Signals(Mutex<(Signal, Signal)>);

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self(Mutex::new((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))))
    }

    pub(super) async fn first(&self) -> &'static str {
        let mut both = self.0.lock().await;
        let (terminate, interrupt) = &mut *both;
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    }

    pub(super) async fn second(&self) -> &'static str {
        self.first().await
    }
}

/// Ends the tree. True if everything ended within its limit. `in_vain`: nothing can be stored any more, so nothing is
/// deleted either.
pub(super) async fn end(
    signal: &'static str,
    in_vain: bool,
    root: Root,
    handles: &Handles,
    world: &World,
    within: Duration,
) -> bool {
    let deletes = match world {
        World::Directory(standalone, OnExit::Delete) if !in_vain => Some(standalone),
        World::Directory(..) | World::Cluster(..) => None,
    };
    let on_exit = if deletes.is_some() { OnExit::Delete } else { OnExit::Keep };
    tracing::info!(signal, on_exit = ?on_exit, "ending; a second signal ends at once");
    let deleted = match deletes {
        None => true,
        Some(standalone) => delete_all(handles, standalone).await,
    };
    let stopping = root.stop_within(within);
    tokio::pin!(stopping);
    let in_order = loop {
        tokio::select! {
            in_order = &mut stopping => break in_order,
            () = tokio::time::sleep(TELL_EVERY) => {
                let still: Vec<_> = handles.env.registry.all().into_iter()
                    .filter(|stat| stat.current().is_some() || stat.status().as_str() == "stopping")
                    .map(|stat| stat.path().to_string()).take(10).collect();
                tracing::info!(waiting_for = ?still, "still ending");
            }
        }
    };
    if in_order {
        let instances = match (on_exit, deleted) {
            (OnExit::Keep, _) => "left running",
            (OnExit::Delete, true) => "deleted",
            (OnExit::Delete, false) => "not all deleted",
        };
        tracing::info!(instances, "ended in order");
    } else {
        tracing::error!(within_s = within.as_secs(), "not everything ended in time");
    }
    in_order && deleted
}

async fn delete_all(handles: &Handles, standalone: &Standalone) -> bool {
    standalone.delete_all();
    let limit = tokio::time::Instant::now() + DELETE_WITHIN;
    let mut tell_at = tokio::time::Instant::now();
    while !handles.board.is_empty() {
        if tokio::time::Instant::now() >= limit {
            tracing::error!(
                left = handles.board.len(),
                "not every instance could be deleted in time; they are adopted or deleted at the next start"
            );
            return false;
        }
        if tokio::time::Instant::now() >= tell_at {
            tell_at += TELL_EVERY;
            let still: Vec<_> = handles.board.all().iter().map(|view| view.key.to_string()).take(10).collect();
            tracing::info!(waiting_for = ?still, left = handles.board.len(), "waiting for deletions");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tracing::info!("every instance is deleted");
    true
}
