//! What others say to a host, and what its lists tell them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use super::{Checked, Host, HostArgs, HostMsg, Job, Stock, busy};
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName, Uid};
use crate::domain::instance::{Instance, InstanceState};
use crate::domain::reason::Reason;
use crate::kit::{Behavior, ChildSpec, Entry, Env, Ref, Refused, Reply, Tell};

/// Places of a host's entry: enough for a burst of a few thousand proxies, each with one operation.
const PLACES: usize = 4096;

/// What the periodic list shows of one instance.
#[derive(Debug, Clone, PartialEq)]
pub enum Sighting {
    Present(Instance),
    /// A complete list did not have it. It may lag: a single look decides.
    Absent,
    /// The host could not be listed. Nothing is known.
    Unread(OpError),
}

impl Sighting {
    /// A wanted instance would not look like this.
    pub(super) const fn is_trouble(&self) -> bool {
        match self {
            Self::Present(instance) => match instance.state {
                InstanceState::Stopped | InstanceState::Deleting => true,
                InstanceState::Starting | InstanceState::Running | InstanceState::Paused | InstanceState::Unknown => {
                    false
                }
            },
            Self::Absent => true,
            Self::Unread(_) => false,
        }
    }
}

/// The verbs of a host. Outlives restarts of the host and of the fleet.
#[derive(Debug, Clone)]
pub struct HostHandle {
    pub name: HostName,
    to: Ref<HostMsg>,
    entry: Entry<HostMsg>,
    followers: Followers,
}

/// Who wants to hear of which uid. Kept beside the actor, so that a restarted host finds its followers again.
pub(super) type Followers = Arc<DashMap<Uid, Follower>>;

impl HostHandle {
    pub fn new(env: &Arc<Env>, provider: &ProviderName, name: &HostName) -> Self {
        let to = Ref::new(format!("host/{provider}/{name}"));
        let entry = Entry::new(env, Host::KIND, &to, PLACES);
        Self { name: name.clone(), to, entry, followers: Followers::default() }
    }

    /// Hands an operation over. The reply hears exactly once how it ended; `Busy` and a host that is down count as
    /// cancelled: the backend never saw it.
    pub fn submit(&self, job: Job) {
        match self.entry.place() {
            Ok(place) => {
                if let Err(down) = self.to.cast(HostMsg::Submit(Box::new(job), place))
                    && let HostMsg::Submit(job, _) = down.0
                {
                    job.refuse(OpError::cancelled(format!("host `{}` is restarting", self.name)));
                }
            }
            Err(Refused::Full | Refused::Down) => job.refuse(busy(&self.name)),
        }
    }

    /// Ends what runs or waits for this uid. What was started and mutates ends as `EffectUnknown`.
    pub fn cancel(&self, uid: &Uid) {
        self.to.cast_or_drop(HostMsg::Cancel(uid.clone()));
    }

    /// Another replica leads: what waits is void, and a mutation under way is cut, as nobody here will see to its end.
    pub fn stand_down(&self) {
        self.followers.clear();
        self.to.cast_or_drop(HostMsg::StandDown);
    }

    /// Tells `tell` what lists show of this uid; a later follow of the same uid replaces this one.
    pub fn follow(&self, uid: &Uid, tell: Tell<Sighting>) {
        self.followers.insert(uid.clone(), Follower { tell, told: None });
        self.to.cast_or_drop(HostMsg::Followed);
    }

    pub fn unfollow(&self, uid: &Uid) {
        self.followers.remove(uid);
    }

    /// Unfollows whoever is not among the living.
    pub fn keep_only(&self, living: &HashSet<Uid>) {
        self.followers.retain(|uid, _| living.contains(uid));
    }

    /// True if both are the same host's.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.followers, &other.followers)
    }

    /// The uids that are followed here: the living Proxies whose recorded host this is.
    pub fn followed(&self) -> HashSet<Uid> {
        self.followers.iter().map(|follower| follower.key().clone()).collect()
    }

    /// Checks the host beside its operations; a check that still runs is joined.
    pub fn check(&self, within: Duration, tell: Tell<Checked>) {
        self.to.cast_or_drop(HostMsg::Check(within, tell));
    }

    /// Lists everything of ours on the host, of every entry, beside its operations. Answers exactly once, also when the
    /// host dies with the question.
    pub fn take_stock(&self, within: Duration, done: impl FnOnce(Result<Stock, OpError>) + Send + 'static) {
        let reply = Reply::new(done, || Err(OpError::transient(Reason::Lost, "the host is restarting")));
        self.to.cast_or_drop(HostMsg::TakeStock(within, reply));
    }

    /// How the host is started under its provider.
    pub fn spec(&self, args: HostArgs) -> ChildSpec {
        let followers = self.followers.clone();
        ChildSpec::of::<Host>(format!("host/{}", self.name), &self.to, move || (args.clone(), followers.clone()))
    }
}

#[derive(Debug)]
pub(super) struct Follower {
    pub(super) tell: Tell<Sighting>,
    pub(super) told: Option<Sighting>,
}
