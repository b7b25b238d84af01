//! Events of standalone mode: lines in the log, and the latest of them in memory for the admin endpoint.
//!
//! The log is written by a thread of its own that never makes us wait, so acknowledged events are written the same way:
//! there is no other place in which they could be safer.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::ports::{Event, EventSink};

/// Enough to see what happened lately on a machine of a few dozen proxies.
const KEPT: usize = 256;

/// The sink.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: Mutex<VecDeque<(SystemTime, Event)>>,
}

impl Events {
    /// The latest events, oldest first.
    pub(super) fn recent(&self) -> Vec<(SystemTime, Event)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[async_trait]
impl EventSink for Events {
    fn emit(&self, event: Event) {
        event.log();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((SystemTime::now(), event));
    }

    async fn emit_acked(&self, event: Event) -> Result<(), OpError> {
        self.emit(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use egress_actors::domain::id::ProviderName;
    use egress_actors::domain::reason::Reason;
    use egress_actors::ports::{Severity, Subject};

    use super::*;

    #[tokio::test]
    async fn only_the_latest_events_are_kept() {
        let events = Events::default();
        for i in 0..=KEPT {
            let about = Subject::Provider(ProviderName::parse("local").unwrap());
            let event = Event { about, severity: Severity::Normal, reason: Reason::Timeout, note: i.to_string() };
            events.emit_acked(event).await.unwrap();
        }
        let notes: Vec<_> = events.recent().into_iter().map(|(_, event)| event.note).collect();
        assert_eq!((notes.len(), notes[0].as_str(), notes[KEPT - 1].as_str()), (KEPT, "1", "256"));
    }
}
