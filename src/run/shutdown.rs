//! Signals, and the end in order: says what it waits for, and leaves or removes the instances as asked.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use egress_actors::board::ProxyView;
use egress_actors::kit::Root;
use egress_actors::operator::Handles;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

use super::world::World;
use crate::args::OnExit;
use crate::standalone::Standalone;

/// Deleting on exit may take longer than stopping: every Squid has its own grace.
const DELETE_WITHIN: Duration = Duration::from_secs(60);

/// So many Proxies are named; a fleet may have a thousand.
const NAMED: usize = 10;

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
    let left = match deletes {
        None => Vec::new(),
        Some(standalone) => delete_all(handles, standalone).await,
    };
    let deleted = left.is_empty();
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
    let last_words = last_words(in_order, left.len());
    if in_order && deleted {
        let instances = if on_exit == OnExit::Keep { "left running" } else { "deleted" };
        tracing::info!(instances, "{last_words}");
    } else {
        tracing::error!(within_s = within.as_secs(), left = left.len(), "{last_words}");
    }
    in_order && deleted
}

/// What could not be deleted in time; told already.
async fn delete_all(handles: &Handles, standalone: &Standalone) -> Vec<Arc<ProxyView>> {
    standalone.delete_all();
    let limit = tokio::time::Instant::now() + DELETE_WITHIN;
    let mut tell_at = tokio::time::Instant::now();
    loop {
        let left = handles.board.all();
        if left.is_empty() {
            tracing::info!("every instance is deleted");
            return left;
        }
        if tokio::time::Instant::now() >= limit {
            tracing::error!(
                proxies = what_is_left(&left),
                left = left.len(),
                "not every instance could be deleted in time; they are adopted or deleted at the next start"
            );
            return left;
        }
        if tokio::time::Instant::now() >= tell_at {
            tell_at += TELL_EVERY;
            tracing::info!(waiting_for = what_is_left(&left), left = left.len(), "waiting for deletions");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// How it ended: "in order" only if nothing is left to do for anybody.
fn last_words(in_order: bool, left: usize) -> &'static str {
    match (in_order, left) {
        (true, 0) => "ended in order",
        (true, _) => "ended, but not every instance is deleted",
        (false, 0) => "not everything ended in time",
        (false, _) => "not everything ended in time, and not every instance is deleted",
    }
}

/// Which Proxies, and why they are still there.
fn what_is_left(left: &[Arc<ProxyView>]) -> String {
    let mut text = String::new();
    for view in left.iter().take(NAMED) {
        let separator = if text.is_empty() { "" } else { "; " };
        let (reason, message) = view.why().unwrap_or(("Unknown", ""));
        let colon = if message.is_empty() { "" } else { ": " };
        write!(text, "{separator}{}: {reason}{colon}{message}", view.key).expect("writing to a string cannot fail");
    }
    if left.len() > NAMED {
        write!(text, "; and {} more", left.len() - NAMED).expect("writing to a string cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use egress_actors::domain::desired::Attributes;
    use egress_actors::domain::id::{ProxyKey, Uid};
    use egress_actors::domain::reason::Reason;
    use egress_actors::domain::status::{Condition, ConditionType, Phase, Status, Truth};

    use super::*;

    fn view(name: &str, ready: Option<(Reason, &str)>) -> Arc<ProxyView> {
        let mut status = Status::blank(Phase::Deleting, 1);
        status.conditions.extend(ready.map(|(reason, message)| Condition {
            kind: ConditionType::Ready,
            truth: Truth::False,
            reason,
            message: message.into(),
            since: SystemTime::UNIX_EPOCH,
        }));
        Arc::new(ProxyView {
            key: ProxyKey::new("crawl", name).unwrap(),
            uid: Uid::parse("u-1").unwrap(),
            provider: None,
            host: None,
            attributes: Arc::new(Attributes::default()),
            max_leases: 1,
            status: Arc::new(status),
            last_probe: None,
            exit_ip: None,
        })
    }

    #[test]
    fn who_waits_for_deletions_is_told_which_proxies_are_left_and_why() {
        let blocked = Some((Reason::DeletionBlocked, "entry `far`: no answer"));
        for (left, expect) in [
            (vec![], ""),
            (vec![view("px-1", blocked)], "crawl/px-1: DeletionBlocked: entry `far`: no answer"),
            (
                vec![view("px-1", blocked), view("px-2", Some((Reason::Deleting, ""))), view("px-3", None)],
                "crawl/px-1: DeletionBlocked: entry `far`: no answer; crawl/px-2: Deleting; crawl/px-3: Unknown",
            ),
        ] {
            assert_eq!(what_is_left(&left), expect);
        }
        let many: Vec<_> = (0..12).map(|i| view(&format!("px-{i:02}"), blocked)).collect();
        let told = what_is_left(&many);
        assert!(told.contains("crawl/px-09: ") && !told.contains("px-10") && told.ends_with("; and 2 more"), "{told}");
    }

    #[test]
    fn in_order_is_said_only_of_an_end_that_left_no_instance_behind() {
        assert_eq!(last_words(true, 0), "ended in order");
        for (in_order, left) in [(true, 1), (false, 0), (false, 1)] {
            assert!(!last_words(in_order, left).contains("in order"));
            assert_eq!(last_words(in_order, left).contains("not every instance is deleted"), left > 0);
        }
    }
}
