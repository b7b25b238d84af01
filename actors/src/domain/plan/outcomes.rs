//! How operations end, and what lists and probes tell: the facts about the instance.

use std::time::Instant;

use super::Observed;
use super::facts::{Latch, Removal, Sight};
use super::observed::lives;
use super::tries::Task;
use crate::domain::clock::Now;
use crate::domain::error::{Class, OpError};
use crate::domain::health::{Blame, Probed, Verdict};
use crate::domain::instance::{Instance, InstanceState};
use crate::domain::reason::Reason;

/// Trouble with the event sink that comes so often does not hold up the finalizer: the actor logs the event as an error.
const TELL_ATTEMPTS: u32 = 3;

impl Observed {
    pub fn on_get(&mut self, outcome: Result<Instance, OpError>, now: Now) {
        let Some(started) = self.on_host.filter(|running| running.task == Task::Get).map(|running| running.since)
        else {
            return;
        };
        match outcome {
            Err(error) if error.class == Class::NotFound => {
                self.ended(Task::Get, Ok(()), now);
                self.look_at = None;
                self.saw_nothing(started, now);
            }
            Err(error) => {
                if let Some(removal) = &mut self.removal
                    && error.class == Class::Permanent
                {
                    // Looking will not do. The delete may say more: that what is there is somebody else's.
                    if removal.asked {
                        let first = removal.blind.map_or(now.mono, |(first, _)| first);
                        removal.blind = Some((first, now.mono));
                    }
                    removal.asked = false;
                }
                self.ended::<()>(Task::Get, Err(error), now);
                self.look_at = Some(now.mono);
            }
            Ok(instance) => {
                self.ended(Task::Get, Ok(()), now);
                self.look_at = None;
                self.saw(instance, started, now);
            }
        }
    }

    pub fn on_create(&mut self, outcome: Result<Instance, OpError>, now: Now) {
        if self.on_host.is_none_or(|running| running.task != Task::Create) {
            return;
        }
        if is_unknown(&outcome) {
            self.doubt_since = Some(now.mono);
            self.sight = Sight::Unseen;
        }
        if let Some(instance) = self.ended(Task::Create, outcome, now) {
            self.user_data = None;
            self.hand_over = false;
            self.remaking = None;
            self.look_at = None;
            self.polls.reset();
            self.saw(instance, now.mono, now);
        } else {
            // Get before create, also before the next one.
            self.look_at = Some(now.mono);
        }
    }

    pub fn on_delete(&mut self, outcome: Result<(), OpError>, now: Now) {
        if self.on_host.is_none_or(|running| running.task != Task::Delete) {
            return;
        }
        if is_unknown(&outcome) {
            self.doubt_since = Some(now.mono);
        }
        let outcome = match outcome {
            Err(error) if error.class == Class::NotFound => Ok(()),
            other => other,
        };
        if self.ended(Task::Delete, outcome, now).is_some() {
            let before = self.removal.take().unwrap_or_default();
            let accepted_at = before.accepted_at.or(Some(now.mono));
            self.removal = Some(Removal { asked: true, accepted_at, clean_at: None, ..before });
            self.look_at = Some(now.mono);
        }
    }

    /// The Warning is written; or could not be, and was logged as an error by the actor.
    pub fn on_given_up(&mut self, outcome: Result<(), OpError>, now: Now) {
        let hopeless = matches!(&outcome, Err(error) if error.class == Class::Permanent);
        let told = self.ended(Task::TellGivenUp, outcome, now).is_some();
        self.given_up |= told || hopeless || self.tries.failures(Task::TellGivenUp) >= TELL_ATTEMPTS;
    }

    /// The write was accepted; what counts is the object that is gone.
    pub fn on_released(&mut self, outcome: Result<(), OpError>, now: Now) {
        if self.ended(Task::Release, outcome, now).is_some() {
            self.released_at = Some(now.mono);
        }
    }

    /// The host's periodic list told of this Proxy's instance, or did not have it. A list may be older than our latest
    /// operation: it refreshes what is known and asks for a look, it never concludes.
    pub fn on_listed(&mut self, row: Option<&Instance>, now: Now) {
        if self.removal.is_some() || self.on_host.is_some_and(|running| running.task != Task::Get) {
            return;
        }
        let agrees = match (&self.sight, row) {
            (Sight::Absent, None) => return,
            (Sight::Unseen, Some(row)) => lives(row.state),
            (Sight::Present(seen), Some(row)) => {
                lives(row.state)
                    && row.provider_id == seen.provider_id
                    && (row.endpoint == seen.endpoint || seen.endpoint.is_none() || row.endpoint.is_none())
            }
            (Sight::Unseen | Sight::Present(_), None) | (Sight::Absent, Some(_)) => false,
        };
        match row {
            Some(row) if agrees => {
                if matches!(self.sight, Sight::Unseen) && self.on_host.is_none() {
                    self.look_at = None;
                    self.put_right(Task::Get);
                }
                // The list may have begun a while ago: it settles a doubt later than a look of our own.
                let looked_at = now.mono.checked_sub(self.settle()).unwrap_or(now.mono);
                self.saw(row.clone(), looked_at, now);
            }
            Some(_) | None => self.look_at = Some(now.mono),
        }
    }

    /// One more probe of what is tracked has ended. Answers about an older track must not come here.
    pub fn on_probed(&mut self, probed: Probed, now: Now) {
        let Some(endpoint) = self.tracked.clone() else { return };
        let was_well = self.last_probe.as_ref().is_none_or(|probe| probe.ok);
        let fell = match &probed.verdict {
            Verdict::Unknown => false,
            Verdict::Healthy => {
                self.unhealthy_since = None;
                self.losses.reset();
                false
            }
            Verdict::Unhealthy { .. } => {
                let fell = self.unhealthy_since.is_none();
                self.unhealthy_since.get_or_insert(now.mono);
                fell
            }
        };
        if probed.verdict != Verdict::Unknown {
            self.presumed = None;
        }
        // Once when failing begins and once when it is a verdict: in between and after, the host's list tells.
        if probed.blame == Some(Blame::Proxy) && (was_well || fell) {
            self.look_at = Some(now.mono);
        }
        // The Secret changed while nobody looked, or the backend was slow to take it in.
        if probed.probe.reason == Some(Reason::ProxyAuthRequired) && self.credentials.is_some() && !self.was_refused {
            (self.hand_over, self.was_refused) = (true, true);
        }
        if probed.exit_ip.is_some() {
            self.exit_ip = probed.exit_ip;
        }
        self.last_probe = Some(probed.probe);
        self.judged = Some((endpoint, probed.verdict));
    }

    /// Ends a running task and notes how. An outcome of something that is not running is an old one: it is dropped.
    pub(super) fn ended<T>(&mut self, task: Task, outcome: Result<T, OpError>, now: Now) -> Option<T> {
        let slot = if task.is_on_host() { &mut self.on_host } else { &mut self.aside };
        if slot.is_none_or(|running| running.task != task) {
            return None;
        }
        *slot = None;
        match outcome {
            Ok(value) => {
                self.put_right(task);
                Some(value)
            }
            Err(error) => {
                let latches = match task {
                    Task::Reserve | Task::ReadSecrets | Task::Get | Task::Create | Task::Delete => true,
                    // A right that was lost comes back without a sign (fault 123).
                    Task::Adopt | Task::TellGivenUp | Task::Release => false,
                };
                if latches && error.class == Class::Permanent {
                    self.latch = Some(Latch { task, error: error.clone(), since: now.mono });
                }
                self.tries.failed(task, error, self.retry, self.seed, now);
                None
            }
        }
    }

    /// A look found the instance.
    fn saw(&mut self, mut instance: Instance, looked_at: Instant, now: Now) {
        if let Some(removal) = &mut self.removal {
            (removal.clean_at, removal.blind) = (None, None);
            removal.asked &= instance.state == InstanceState::Deleting;
            // Not faster than the looks, however often it comes back.
            self.look_at = Some(now.mono + self.polls.next(self.seed));
            self.sight = Sight::Present(Box::new(instance));
            return;
        }
        match (&self.sight, &instance.endpoint) {
            // It tells no address just now: that is not evidence that it has none (fault 96: the probe decides).
            (Sight::Present(before), None) if before.provider_id == instance.provider_id => {
                instance.endpoint.clone_from(&before.endpoint);
            }
            (Sight::Unseen, None) if self.provider_id().as_ref() == Some(&instance.provider_id) => {
                instance.endpoint.clone_from(&self.remembered);
            }
            (Sight::Present(_) | Sight::Unseen | Sight::Absent, _) => {}
        }
        // Nor is it evidence that it has no credentials, where the backend cannot tell.
        if let Sight::Present(before) = &self.sight
            && instance.state == InstanceState::Unknown
            && before.provider_id == instance.provider_id
            && instance.generated.is_none()
        {
            instance.generated.clone_from(&before.generated);
        }
        let another = self.provider_id().is_some_and(|id| id != instance.provider_id);
        if another || matches!(self.sight, Sight::Absent) {
            self.forget_verdict();
        }
        if lives(instance.state) {
            // It is there: what stood in the way of making it does not any more. In the way of handing over it may.
            if !self.hand_over {
                self.put_right(Task::Create);
            }
            if self.secret.is_none() || (self.credentials.is_some() && !self.secrets_stale) {
                self.put_right(Task::ReadSecrets);
            }
            if self.doubt_since.is_some_and(|since| looked_at >= since + self.settle()) {
                self.doubt_since = None;
            }
            if instance.endpoint.is_none() {
                self.addressless_since.get_or_insert(now.mono);
                let poll = now.mono + self.polls.next(self.seed);
                self.look_at = Some(self.look_at.map_or(poll, |at| at.min(poll)));
            } else {
                self.addressless_since = None;
                self.polls.reset();
            }
        } else {
            self.needs_no_hand_over();
            if matches!(&self.sight, Sight::Present(before) if lives(before.state)) || self.remembered.is_some() {
                self.lost(now);
            }
        }
        self.remembered = None;
        self.sent_to = None;
        self.sight = Sight::Present(Box::new(instance));
    }

    /// A look found evidence that there is no instance.
    fn saw_nothing(&mut self, started: Instant, now: Now) {
        self.needs_no_hand_over();
        let settle = self.settle();
        if let Some(removal) = &mut self.removal {
            removal.blind = None;
            if !removal.asked {
                // Nobody asked for it to go yet, but gone it is; the delete that is still to come tidies up.
                return;
            }
            match removal.clean_at {
                None if self.doubt_since.is_some() => {
                    removal.clean_at = Some(now.mono);
                    self.look_at = Some(now.mono + settle);
                    return;
                }
                Some(first) if started < first + settle => {
                    self.look_at = Some(first + settle);
                    return;
                }
                None | Some(_) => {}
            }
            self.removal = None;
            self.cleaned = true;
            self.doubt_since = None;
        } else if self.provider_id().is_some() {
            self.remaking = Some((Reason::NotFound, self.provider_id()));
            self.lost(now);
        }
        self.forget_verdict();
        self.addressless_since = None;
        self.remembered = None;
        self.sent_to = None;
        self.sight = Sight::Absent;
    }

    /// An instance went by itself. The first is replaced at once, those that follow without having been healthy later
    /// and later.
    fn lost(&mut self, now: Now) {
        let first = self.losses.failures() == 0;
        let delay = self.losses.next(self.seed);
        self.remake_at = (!first).then_some(now.mono + delay);
    }

    pub(super) fn forget_verdict(&mut self) {
        self.judged = None;
        self.presumed = None;
        self.unhealthy_since = None;
    }
}

fn is_unknown<T>(outcome: &Result<T, OpError>) -> bool {
    matches!(outcome, Err(error) if error.class == Class::EffectUnknown)
}
