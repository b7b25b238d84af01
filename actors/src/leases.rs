//! The lease registry: the only writer of the lease book.
//!
//! Owns who may be leased and who holds what. Spoken to by proxy actors (what is on offer) and by the HTTP edge (calls,
//! through a bounded entry). It does no I/O and waits for nobody, so that a grant costs a few microseconds whatever else
//! happens. A grant whose answer nobody takes is taken back at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::domain::clock::Now;
use crate::domain::id::{LeaseId, ProxyKey, Uid};
use crate::domain::lease_book::{
    Absence, Announcement, Ask, Cordon, Ended, EndedBy, Explanation, Granted, Lease, LeaseBook, LookNow, NotHeld,
    Offer, ProxyView, Refusal, Release, Report, Terms,
};
use crate::election::Claim;
use crate::kit::actor::InitError;
use crate::kit::{Answer, Behavior, CallError, ChildSpec, Ctx, Entry, Env, Fired, Permit, Ref, Tell, Timers};
use crate::names;

/// Calls on their way in. At 10 us a call the last of them waits 40 ms.
const PLACES: usize = 4096;

/// An answer that takes longer finds nobody waiting: the edge says 503 then.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Gauges of the book are set at most this often: counting is cheap, not free.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// Why there is no lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotGranted {
    Refused(Refusal),
    /// This replica does not lead.
    NotLeading,
}

/// The verbs of the registry.
#[derive(Debug, Clone)]
pub struct LeasesHandle {
    to: Ref<LeasesMsg>,
    entry: Entry<LeasesMsg>,
}

impl LeasesHandle {
    pub fn new(env: &Arc<Env>) -> Self {
        let to = Ref::new("leases");
        let entry = Entry::new(env, Leases::KIND, &to, PLACES);
        Self { to, entry }
    }

    pub fn spec(&self, args: LeasesArgs) -> ChildSpec {
        let (to, counted) = (self.to.clone(), Arc::<AtomicU64>::default());
        ChildSpec::of::<Leases>("leases", &self.to, move || (args.clone(), counted.clone(), to.clone()))
    }

    // --- from proxy actors

    /// The Proxy exists, and is not on offer yet.
    pub fn announce(&self, news: Announcement) {
        self.to.cast_or_drop(LeasesMsg::Announce(Box::new(news)));
    }

    /// The Proxy may be leased.
    pub fn offer(&self, offer: impl Into<Arc<Offer>>) {
        self.to.cast_or_drop(LeasesMsg::Offer(offer.into()));
    }

    /// No new grants. `left` hears how many leases are out, now and after each that ends.
    pub fn withdraw(&self, key: &ProxyKey, uid: &Uid, absence: Absence, left: Tell<u32>) {
        self.to.cast_or_drop(LeasesMsg::Withdraw(key.clone(), uid.clone(), absence, left));
    }

    /// Never granted again while it stands; `left` hears how many leases are out, now and after each that ends.
    pub fn cordon(&self, key: &ProxyKey, uid: &Uid, cordon: Option<Cordon>, left: Tell<u32>) {
        self.to.cast_or_drop(LeasesMsg::Cordon(key.clone(), uid.clone(), cordon, left));
    }

    /// The instance is gone or about to go: whoever holds it, holds nothing any more.
    pub fn end_leases(&self, key: &ProxyKey, uid: &Uid, how: EndedBy) {
        self.to.cast_or_drop(LeasesMsg::EndLeases(key.clone(), uid.clone(), how));
    }

    /// The Proxy is gone, and its leases with it.
    pub fn remove(&self, key: &ProxyKey, uid: &Uid) {
        self.to.cast_or_drop(LeasesMsg::Remove(key.clone(), uid.clone()));
    }

    /// A complete list: who is not in it is gone.
    pub fn synced(&self, living: Arc<[(ProxyKey, Uid)]>) {
        self.to.cast_or_drop(LeasesMsg::Synced(living));
    }

    /// The role of this replica changed.
    pub fn claim_changed(&self) {
        self.to.cast_or_drop(LeasesMsg::ClaimChanged);
    }

    // --- from the HTTP edge

    pub async fn acquire(&self, ask: Ask) -> Result<Result<Granted, NotGranted>, CallError> {
        let granted = self.call(|answer| LeaseCall::Acquire(Box::new(ask), answer)).await?;
        Ok(granted.map(Unclaimed::claim))
    }

    pub async fn explain(&self, ask: Ask) -> Result<Explanation, CallError> {
        self.call(|answer| LeaseCall::Explain(Box::new(ask), answer)).await
    }

    pub async fn renew(
        &self,
        id: LeaseId,
        ttl: Duration,
        generation: Option<u64>,
    ) -> Result<Result<Lease, NotHeld>, CallError> {
        self.call(|answer| LeaseCall::Renew(id, ttl, generation, answer)).await
    }

    pub async fn report(&self, id: LeaseId, report: Report) -> Result<Result<(), NotHeld>, CallError> {
        self.call(|answer| LeaseCall::Report(id, Box::new(report), answer)).await
    }

    pub async fn release(&self, id: LeaseId) -> Result<Release, CallError> {
        self.call(|answer| LeaseCall::Release(id, answer)).await
    }

    pub async fn get(&self, id: LeaseId) -> Result<Result<Lease, NotHeld>, CallError> {
        self.call(|answer| LeaseCall::Get(id, answer)).await
    }

    /// The leases of a token, or of one of its owners.
    pub async fn list(&self, token: Arc<str>, owner: Option<Arc<str>>) -> Result<Vec<Lease>, CallError> {
        self.call(|answer| LeaseCall::List(token, owner, answer)).await
    }

    /// How the book sees each Proxy.
    pub async fn proxies(&self) -> Result<HashMap<ProxyKey, ProxyView>, CallError> {
        self.call(LeaseCall::Proxies).await
    }

    async fn call<T: Send + 'static>(&self, call: impl FnOnce(Answer<T>) -> LeaseCall) -> Result<T, CallError> {
        self.entry.call(ANSWER_WITHIN, |answer, place| LeasesMsg::Call(call(answer), place)).await
    }
}

enum LeasesMsg {
    /// The Proxy exists, and is not on offer yet.
    Announce(Box<Announcement>),
    /// The Proxy may be leased.
    Offer(Arc<Offer>),
    /// No new grants.
    Withdraw(ProxyKey, Uid, Absence, Tell<u32>),
    /// Never granted again while it stands.
    Cordon(ProxyKey, Uid, Option<Cordon>, Tell<u32>),
    EndLeases(ProxyKey, Uid, EndedBy),
    /// The Proxy is gone.
    Remove(ProxyKey, Uid),
    /// Who is not in the list is gone.
    Synced(Arc<[(ProxyKey, Uid)]>),
    /// The role of this replica changed.
    ClaimChanged,
    /// A question from the edge.
    Call(LeaseCall, Permit),
    /// A grant was answered, and nobody took the answer.
    Unclaimed(Vec<LeaseId>),
    Timer(Fired<Alarm>),
}

crate::named!(LeasesMsg: Announce, Offer, Withdraw, Cordon, EndLeases, Remove, Synced, ClaimChanged, Call, Unclaimed, Timer);

/// A grant on its way to its caller. Dropped on the way, because the caller went while the answer lay there, it gives its
/// leases back.
struct Unclaimed {
    granted: Option<Granted>,
    to: Ref<LeasesMsg>,
}

impl Unclaimed {
    fn claim(mut self) -> Granted {
        self.granted.take().expect("a grant is claimed once, and this is where")
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(granted) = self.granted.take() {
            let ids = granted.leases.into_iter().map(|lease| lease.id).collect();
            self.to.cast_or_drop(LeasesMsg::Unclaimed(ids));
        }
    }
}

enum LeaseCall {
    Acquire(Box<Ask>, Answer<Result<Unclaimed, NotGranted>>),
    Explain(Box<Ask>, Answer<Explanation>),
    Renew(LeaseId, Duration, Option<u64>, Answer<Result<Lease, NotHeld>>),
    Report(LeaseId, Box<Report>, Answer<Result<(), NotHeld>>),
    Release(LeaseId, Answer<Release>),
    Get(LeaseId, Answer<Result<Lease, NotHeld>>),
    List(Arc<str>, Option<Arc<str>>, Answer<Vec<Lease>>),
    Proxies(Answer<HashMap<ProxyKey, ProxyView>>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Alarm {
    /// A lease or a rest ends.
    Due,
    Gauges,
}

#[derive(Debug, Clone)]
pub struct LeasesArgs {
    pub terms: Terms,
    pub claim: Claim,
    /// Go on granting while no replica can hold the claim.
    pub serve_without_claim: bool,
    /// The probe pool's verb: look at this one now.
    pub look_now: Tell<Uid>,
}

struct Leases {
    book: LeaseBook,
    /// The claim that the book is of: no grant, and no answer about a lease, is given under another.
    epoch: Option<u32>,
    terms: Terms,
    claim: Claim,
    serve_without_claim: bool,
    look_now: Tell<Uid>,
    /// Who wants to hear how many leases are left: what is withdrawn or cordoned.
    left: HashMap<Uid, Left>,
    /// The highest lower half of a generation that was given. It outlives this book, or the next one of the same epoch
    /// would count from the start again.
    counted: Arc<AtomicU64>,
    myself: Ref<LeasesMsg>,
    timers: Timers<Alarm>,
    /// What the timer is set to: most messages do not change it.
    armed: Option<Instant>,
}

/// Who hears how many leases a Proxy has left, and because of what.
#[derive(Debug)]
struct Left {
    tell: Tell<u32>,
    withdrawn: bool,
    cordoned: bool,
}

impl Leases {
    fn call(&mut self, call: LeaseCall, now: Now) {
        // An empty book must not be taken for the end of every lease: unanswered, the edge says that it is not ready.
        if self.claim.epoch().is_none() && !matches!(call, LeaseCall::Acquire(..)) {
            return;
        }
        match call {
            LeaseCall::Acquire(ask, answer) => self.acquire(&ask, answer, now),
            LeaseCall::Explain(ask, answer) => answer.give(self.book.explain(&ask, now)),
            LeaseCall::Renew(id, ttl, generation, answer) => {
                answer.give(self.book.renew(&id, ttl, generation, now));
            }
            LeaseCall::Report(id, report, answer) => {
                let outcome = report.outcome.as_str();
                let reported = self.book.report(&id, &report, now).map(|reported| {
                    metrics::counter!(names::REPORTS_TOTAL, "outcome" => outcome).increment(1);
                    if let Some(cooled) = reported.cooled {
                        tracing::debug!(
                            proxy = %cooled.key, target = %cooled.target, strikes = cooled.strikes, outcome, "pair cools down"
                        );
                    }
                    if let Some(LookNow { uid, .. }) = reported.look_now {
                        self.look_now.send(uid);
                    }
                    self.tell_left(reported.ended.as_ref().map(|ended| (&ended.key, &ended.uid)), now);
                });
                answer.give(reported);
            }
            LeaseCall::Release(id, answer) => {
                let released = self.book.release(&id, now);
                if let Release::Released(ended) = &released {
                    self.tell_left(Some((&ended.key, &ended.uid)), now);
                }
                answer.give(released);
            }
            LeaseCall::Get(id, answer) => answer.give(self.book.get(&id, now)),
            LeaseCall::List(token, owner, answer) => {
                answer.give(self.book.list(&token, owner.as_deref(), now));
            }
            LeaseCall::Proxies(answer) => answer.give(self.book.proxies(now).into_iter().collect()),
        }
    }

    fn acquire(&mut self, ask: &Ask, answer: Answer<Result<Unclaimed, NotGranted>>, now: Now) {
        if answer.is_abandoned() {
            return;
        }
        let state = self.claim.state();
        // Never while another is known to lead, whatever the flag says.
        let is_ours = state.epoch().is_some() && state.epoch() == self.epoch;
        let outcome = if is_ours && (self.serve_without_claim || state.leads(now.mono)) {
            self.book.grant(ask, now).map_err(NotGranted::Refused)
        } else {
            Err(NotGranted::NotLeading)
        };
        let label = match &outcome {
            Ok(_) => "granted",
            Err(NotGranted::Refused(Refusal::NoSuchSelector)) => "no_such_selector",
            Err(NotGranted::Refused(Refusal::NoneAvailable(_))) => "none_available",
            Err(NotGranted::NotLeading) => "not_ready",
        };
        metrics::counter!(names::LEASE_GRANTS_TOTAL, "outcome" => label).increment(1);
        let outcome = outcome.map(|granted| {
            for lease in &granted.leases {
                self.counted.fetch_max(lease.generation & u64::from(u32::MAX), Relaxed);
            }
            Unclaimed { granted: Some(granted), to: self.myself.clone() }
        });
        if let Err(Ok(mut unclaimed)) = answer.send(outcome)
            && let Some(granted) = unclaimed.granted.take()
        {
            // The client went away before its answer: it holds nothing.
            self.take_back(granted.leases.iter().map(|lease| &lease.id), now);
        }
    }

    /// A book of the claim that is ours now. The one of an earlier claim is void: another led in between.
    fn claim_changed(&mut self, now: Now) {
        let epoch = self.claim.epoch();
        if epoch.is_some() && epoch != self.epoch {
            self.epoch = epoch;
            self.left.clear();
            self.book = book(&self.terms, epoch, &self.counted, now);
        }
    }

    fn take_back<'a>(&mut self, leases: impl IntoIterator<Item = &'a LeaseId>, now: Now) {
        for id in leases {
            if let Release::Released(ended) = self.book.release(id, now) {
                self.tell_left(Some((&ended.key, &ended.uid)), now);
            }
        }
    }

    /// Notes why somebody wants to hear of the leases of this uid; with no reason left, nobody does.
    fn listen(&mut self, uid: &Uid, tell: Option<Tell<u32>>, note: impl FnOnce(&mut Left)) {
        let left = match (self.left.get_mut(uid), tell) {
            (Some(left), tell) => {
                left.tell = tell.unwrap_or_else(|| left.tell.clone());
                left
            }
            (None, Some(tell)) => {
                self.left.entry(uid.clone()).or_insert(Left { tell, withdrawn: false, cordoned: false })
            }
            (None, None) => return,
        };
        note(left);
        if !left.withdrawn && !left.cordoned {
            self.left.remove(uid);
        }
    }

    /// Tells who asked how many leases a Proxy has left.
    fn tell_left(&mut self, of: Option<(&ProxyKey, &Uid)>, now: Now) {
        let Some((key, uid)) = of else { return };
        let Some(left) = self.left.get(uid) else { return };
        let leases = self.book.proxy(key, now).filter(|view| view.uid == *uid).map_or(0, |view| view.leases);
        left.tell.send(u32::try_from(leases).unwrap_or(u32::MAX));
    }

    fn ended(&mut self, ended: Vec<Ended>, now: Now) {
        for end in ended {
            self.tell_left(Some((&end.key, &end.uid)), now);
        }
    }

    fn arm(&mut self) {
        let due = self.book.next_deadline();
        if due != self.armed {
            self.armed = due;
            match due {
                Some(at) => self.timers.arm_at(Alarm::Due, at),
                None => self.timers.cancel(&Alarm::Due),
            }
        }
    }

    fn set_gauges(&mut self, now: Now) {
        let totals = self.book.totals(now);
        let gauge = |name: &'static str, label: &'static str, value: &'static str, count: usize| {
            #[expect(clippy::cast_precision_loss, reason = "counts of leases are far below 2^52")]
            metrics::gauge!(name, label => value).set(count as f64);
        };
        gauge(names::LEASES, "state", "active", totals.leases_active);
        gauge(names::LEASES, "state", "draining", totals.leases_draining);
        gauge(names::COOLDOWNS, "scope", "target", totals.cooldowns);
    }
}

/// An empty book. The epoch of the claim is the upper half of its generations; without a claim nothing is granted.
fn book(terms: &Terms, epoch: Option<u32>, counted: &AtomicU64, now: Now) -> LeaseBook {
    let terms = Terms { epoch: epoch.unwrap_or(terms.epoch), counted: counted.load(Relaxed), ..terms.clone() };
    LeaseBook::new(terms, now, rand::random)
}

impl Behavior for Leases {
    const KIND: &'static str = "leases";
    type Msg = LeasesMsg;
    type Args = (LeasesArgs, Arc<AtomicU64>, Ref<LeasesMsg>);

    fn init((args, counted, myself): Self::Args, ctx: &mut Ctx<LeasesMsg>) -> Result<Self, InitError> {
        let mut timers = Timers::new(ctx.tell(LeasesMsg::Timer));
        timers.arm_in(Alarm::Gauges, GAUGES_EVERY);
        let epoch = args.claim.epoch();
        Ok(Self {
            book: book(&args.terms, epoch, &counted, ctx.now()),
            epoch,
            terms: args.terms,
            counted,
            myself,
            claim: args.claim,
            serve_without_claim: args.serve_without_claim,
            look_now: args.look_now,
            left: HashMap::new(),
            timers,
            armed: None,
        })
    }

    fn handle(&mut self, message: LeasesMsg, ctx: &mut Ctx<LeasesMsg>) {
        let now = ctx.now();
        match message {
            LeasesMsg::Announce(news) => {
                let ended = self.book.announce(*news, now);
                self.ended(ended, now);
            }
            LeasesMsg::Offer(offer) => {
                self.listen(&offer.uid, None, |left| left.withdrawn = false);
                let ended = self.book.offer(offer, now);
                self.ended(ended, now);
            }
            LeasesMsg::Withdraw(key, uid, absence, left) => {
                self.book.withdraw(&key, &uid, absence, now);
                self.listen(&uid, Some(left), |left| left.withdrawn = true);
                self.tell_left(Some((&key, &uid)), now);
            }
            LeasesMsg::Cordon(key, uid, cordon, left) => {
                self.book.cordon(&key, &uid, cordon, now);
                self.listen(&uid, Some(left), |left| left.cordoned = cordon.is_some());
                self.tell_left(Some((&key, &uid)), now);
            }
            LeasesMsg::EndLeases(key, uid, how) => {
                let ended = self.book.end_leases(&key, &uid, how, now);
                self.ended(ended, now);
            }
            LeasesMsg::Remove(key, uid) => {
                self.left.remove(&uid);
                self.book.remove(&key, &uid, now);
            }
            LeasesMsg::Synced(living) => {
                let uids: HashSet<_> = living.iter().map(|(_, uid)| uid).collect();
                let living: HashSet<_> = living.iter().map(|(key, uid)| (key, uid)).collect();
                self.book.retain(|key, uid| living.contains(&(key, uid)), now);
                self.left.retain(|uid, _| uids.contains(uid));
            }
            LeasesMsg::ClaimChanged => self.claim_changed(now),
            LeasesMsg::Unclaimed(ids) => self.take_back(&ids, now),
            LeasesMsg::Call(call, _place) => self.call(call, now),
            LeasesMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Due) => {
                    self.armed = None;
                    let ended = self.book.expire(now);
                    self.ended(ended, now);
                }
                Some(Alarm::Gauges) => {
                    self.set_gauges(now);
                    self.timers.arm_in(Alarm::Gauges, GAUGES_EVERY);
                }
                None => {}
            },
        }
        self.arm();
    }
}
