//! The lease book: which Proxies may be leased, who holds them until when, and who rests for which target.
//!
//! Written by the `leases` actor only. Pure: time comes in with each call, randomness with the constructor, and what
//! follows goes out as values (`Ended`, `Cooled`, `LookNow`) that a journal can record. It never touches a Proxy, never
//! waits, never logs, and never reads the whole fleet to grant one lease.
//!
//! ```text
//! announce, offer, withdraw, cordon, remove --> stock     who is there and where it stands (slots, domains)
//! ask --> choice among the stock without who rests (cooling) --> register   the leases, live and past (holders)
//! report                 --> cooling: Cooling -> Remembered -> forgotten
//! Held --renew--> Held      Held --expire | release | Proxy removed or replaced--> Past --10 min--> forgotten
//! ```
//!
//! # What stays true
//! - At no instant does a Proxy have more holders by grant than its capacity.
//! - A lease is over at its expiry, whether or not anybody called `expire`: every call first ends what is due.
//! - Nothing brings an ended lease back.
//! - A name with another uid is another Proxy: no leases or cooldowns pass on. Fencing numbers only grow per name.
//! - A lease is a way in: when the address or the credentials that it was granted with are the Proxy's no more, it ends.
//! - Everything kept is bounded by the fleet, by the leases out, or by [`Terms`].
//!
//! # To come (issue 7)
//! Idempotency keys, waiting, sessions, quotas and the journal. Ready for them: leases carry the token's name and their
//! owner, [`LeaseBook::held_by`] counts per token, pairs keep their strikes, and [`LeaseBook::next_deadline`] tells
//! when something may have come free.

mod answer;
mod ask;
mod choice;
mod cooling;
mod domains;
mod forecast;
mod holders;
mod register;
mod slots;
mod stock;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use answer::{
    Breakdown, Cooled, Ended, EndedBy, Explanation, Gone, Granted, Lease, LeaseState, LookNow, NotHeld, ProxyView,
    Refusal, Release, Reported, Totals, Verdict,
};
pub use ask::{Absence, Announcement, Ask, Cordon, Offer, Outcome, Report, Target, Terms};

use self::choice::Search;
use self::cooling::{Cause, Cooling};
use self::register::{Found, Held, Register};
use self::slots::SlotSet;
use self::stock::Stock;
use super::clock::Now;
use super::desired::Attributes;
use super::id::{LeaseId, ProxyKey, Uid};

/// The prober is asked about one Proxy at most once in this time: a crawler in trouble reports many errors.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The least time to live: a lease of nothing would be over before its answer is written.
const MIN_TTL: Duration = Duration::from_millis(1);

/// The single source of truth about leases.
pub struct LeaseBook {
    terms: Terms,
    random: Box<dyn FnMut() -> u128 + Send>,
    /// The latest time seen: it never runs backwards in here.
    time: Instant,
    stock: Stock,
    register: Register,
    cooling: Cooling,
    /// Expired, and not yet told to whoever calls [`LeaseBook::expire`].
    expired: Vec<Ended>,
}

impl fmt::Debug for LeaseBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseBook({} proxies, {} leases)", self.stock.len(), self.register.len())
    }
}

// --- the fleet -------------------------------------------------------------------------------------------------------

impl LeaseBook {
    /// `random` makes the ids of leases: who can guess them can release them.
    pub fn new(terms: Terms, now: Now, random: impl FnMut() -> u128 + Send + 'static) -> Self {
        Self {
            stock: Stock::counting_from(terms.counted),
            terms,
            random: Box::new(random),
            time: now.mono,
            register: Register::default(),
            cooling: Cooling::default(),
            expired: Vec::new(),
        }
    }

    /// A Proxy exists and is not on offer: no new grants, its leases go on. Returns the leases of whoever had the name.
    pub fn announce(&mut self, news: Announcement, now: Now) -> Vec<Ended> {
        self.advance(now);
        if self.stock.is_stale(&news.key, &news.uid) {
            return Vec::new();
        }
        let ended = self.replace(&news.key, &news.uid);
        self.stock.announce(news);
        ended
    }

    /// A Proxy may be leased, or its offer changed. Leases end with the address and the credentials that they were
    /// granted with: a holder that could renew would hold what does not work, and a place of what does. Cooldowns end
    /// with the exit that earned them. Returns the leases that ended, those of whoever had the name too.
    pub fn offer(&mut self, offer: impl Into<Arc<Offer>>, now: Now) -> Vec<Ended> {
        let offer = offer.into();
        self.advance(now);
        if self.stock.is_stale(&offer.key, &offer.uid) {
            return Vec::new();
        }
        let mut ended = self.replace(&offer.key, &offer.uid);
        let (slot, change) = self.stock.offer(offer);
        if change.is_new_exit {
            self.cooling.forget(slot);
        }
        if change.is_new_way_in {
            ended.extend(self.end_all(slot, EndedBy::ProxyReplaced));
        }
        ended
    }

    /// No new grants; holders may renew, report and release. False if this is not the current uid of a known Proxy.
    pub fn withdraw(&mut self, key: &ProxyKey, uid: &Uid, absence: Absence, now: Now) -> bool {
        self.advance(now);
        let slot = self.stock.slot_of(key, uid);
        if let Some(slot) = slot {
            self.stock.withdraw(slot, absence);
        }
        slot.is_some()
    }

    /// Never granted again while the cordon stands; `None` lifts it. It stays over withdraw and offer. False if this is
    /// not the current uid of a known Proxy.
    pub fn cordon(&mut self, key: &ProxyKey, uid: &Uid, cordon: Option<Cordon>, now: Now) -> bool {
        self.advance(now);
        let slot = self.stock.slot_of(key, uid);
        if let Some(slot) = slot {
            self.stock.cordon(slot, cordon);
        }
        slot.is_some()
    }

    /// The instance behind the Proxy is gone or about to go: its leases end, and the Proxy stays known. Another uid than
    /// the current one changes nothing.
    pub fn end_leases(&mut self, key: &ProxyKey, uid: &Uid, how: EndedBy, now: Now) -> Vec<Ended> {
        self.advance(now);
        self.stock.slot_of(key, uid).map_or_else(Vec::new, |slot| self.end_all(slot, how))
    }

    /// The Proxy is gone, and its leases with it. Another uid than the current one changes nothing.
    pub fn remove(&mut self, key: &ProxyKey, uid: &Uid, now: Now) -> Vec<Ended> {
        self.advance(now);
        self.stock.slot_of(key, uid).map_or_else(Vec::new, |slot| self.drop_slot(slot))
    }

    /// Removes every Proxy that is not among the living: what a complete list of the source says.
    pub fn retain(&mut self, is_living: impl Fn(&ProxyKey, &Uid) -> bool, now: Now) -> Vec<Ended> {
        self.advance(now);
        let gone: Vec<usize> =
            self.stock.iter().filter(|(_, proxy)| !is_living(&proxy.key, &proxy.uid)).map(|(slot, _)| slot).collect();
        gone.into_iter().flat_map(|slot| self.drop_slot(slot)).collect()
    }

    fn replace(&mut self, key: &ProxyKey, uid: &Uid) -> Vec<Ended> {
        match self.stock.slot(key) {
            Some(slot) if self.stock.get(slot).uid != *uid => self.drop_slot(slot),
            Some(_) | None => Vec::new(),
        }
    }

    fn end_all(&mut self, slot: usize, how: EndedBy) -> Vec<Ended> {
        let leases = self.stock.get(slot).leases.clone();
        leases.into_iter().map(|number| self.end(number, how, self.time)).collect()
    }

    fn drop_slot(&mut self, slot: usize) -> Vec<Ended> {
        let ended = self.end_all(slot, EndedBy::ProxyRemoved);
        self.cooling.forget(slot);
        self.stock.remove(slot);
        ended
    }
}

// --- leases ----------------------------------------------------------------------------------------------------------

impl LeaseBook {
    /// Grants by the first selector that can be met, or says why there is none.
    pub fn grant(&mut self, ask: &Ask, now: Now) -> Result<Granted, Refusal> {
        self.advance(now);
        let excluded = self.excluded(ask);
        let Some((selector, slots)) = self.choose(ask, &excluded) else {
            let (matching, breakdown) = self.break_down(ask, &excluded);
            return Err(if matching { Refusal::NoneAvailable(breakdown) } else { Refusal::NoSuchSelector });
        };
        let leases = slots.into_iter().map(|slot| self.lease(slot, selector, ask)).collect();
        Ok(Granted { leases, selector })
    }

    /// What `grant` would say, with no lease taken.
    pub fn explain(&mut self, ask: &Ask, now: Now) -> Explanation {
        self.advance(now);
        let excluded = self.excluded(ask);
        let (matching, breakdown) = self.break_down(ask, &excluded);
        let verdict = match self.choose(ask, &excluded) {
            Some((selector, _)) => Verdict::WouldGrant { selector },
            None if matching => Verdict::NoneAvailable,
            None => Verdict::NoSuchSelector,
        };
        Explanation { verdict, breakdown }
    }

    /// Lets the lease end `ttl` from now. A lease that ended stays ended.
    pub fn renew(&mut self, id: &LeaseId, ttl: Duration, generation: Option<u64>, now: Now) -> Result<Lease, NotHeld> {
        self.advance(now);
        let number = self.register.holding(id, generation)?;
        self.register.prolong(number, self.time, self.clamp(ttl));
        Ok(self.show(number))
    }

    /// Takes in what a crawler tells. Accepted until [`Terms::remember`] after the lease's end; then it is unknown.
    /// It counts for the address that the lease was granted with, never for a later one.
    pub fn report(&mut self, id: &LeaseId, report: &Report, now: Now) -> Result<Reported, NotHeld> {
        self.advance(now);
        let (number, held, proxy, target) = match self.register.find(id).ok_or(NotHeld::Unknown)? {
            Found::Held(number, held) => (Some(number), held.lease.generation, &held.lease.proxy, &held.lease.target),
            Found::Past(past) => (None, past.generation, &past.proxy, &past.target),
        };
        if report.generation.is_some_and(|given| given != held) {
            return Err(NotHeld::GenerationMismatch { held });
        }
        let (proxy, target) = (proxy.clone(), report.target.clone().or_else(|| target.clone()));
        let slot = self
            .stock
            .slot_of(&proxy.key, &proxy.uid)
            .filter(|&slot| self.stock.get(slot).offer.as_ref().is_some_and(|offer| offer.is_same_exit(&proxy)));
        let mut reported = Reported::default();
        match (report.outcome, slot) {
            (Outcome::Banned | Outcome::Captcha, Some(slot)) => {
                reported.cooled = self.cool(slot, target, Cause::Banned);
            }
            (Outcome::RateLimited, Some(slot)) => reported.cooled = self.cool(slot, target, Cause::Limited),
            (Outcome::ProxyError | Outcome::Timeout, Some(slot)) => reported.look_now = self.look_now(slot),
            (Outcome::Ok | Outcome::TargetError, _) | (_, None) => {}
        }
        if report.release {
            reported.ended = number.map(|number| self.end(number, EndedBy::Released, self.time));
        }
        Ok(reported)
    }

    /// Ends the lease, once.
    pub fn release(&mut self, id: &LeaseId, now: Now) -> Release {
        self.advance(now);
        match self.register.find(id) {
            Some(Found::Held(number, _)) => Release::Released(self.end(number, EndedBy::Released, self.time)),
            Some(Found::Past(past)) => Release::AlreadyGone(past.gone),
            None => Release::Unknown,
        }
    }

    pub fn get(&mut self, id: &LeaseId, now: Now) -> Result<Lease, NotHeld> {
        self.advance(now);
        self.register.holding(id, None).map(|number| self.show(number))
    }

    /// The leases of a token, or of one of its owners, oldest first.
    pub fn list(&mut self, token: &str, owner: Option<&str>, now: Now) -> Vec<Lease> {
        self.advance(now);
        let mut leases: Vec<Lease> =
            self.register.holders.list(token, owner).into_iter().map(|number| self.show(number)).collect();
        leases.sort_by(|a, b| (a.issued, a.generation, &a.id).cmp(&(b.issued, b.generation, &b.id)));
        leases
    }

    /// How many leases a token holds.
    pub fn held_by(&mut self, token: &str, now: Now) -> usize {
        self.advance(now);
        self.register.holders.count(token)
    }

    /// What expired since the last call, in the order of time. Whoever owns the book calls this at
    /// [`Self::next_deadline`], and so keeps the list of untold ends short.
    pub fn expire(&mut self, now: Now) -> Vec<Ended> {
        self.advance(now);
        std::mem::take(&mut self.expired)
    }

    /// When to call [`Self::expire`] next: a lease or a rest ends then, or already did.
    pub fn next_deadline(&self) -> Option<Instant> {
        if let Some(ended) = self.expired.first() {
            return Some(ended.gone.when);
        }
        let lease = self.register.ends.first().map(|(at, _)| *at);
        [lease, self.cooling.next_due()].into_iter().flatten().min()
    }
}

// --- views -----------------------------------------------------------------------------------------------------------

impl LeaseBook {
    pub fn proxy(&mut self, key: &ProxyKey, now: Now) -> Option<ProxyView> {
        self.advance(now);
        self.stock.slot(key).map(|slot| self.view(slot))
    }

    /// All known Proxies, in no order.
    pub fn proxies(&mut self, now: Now) -> Vec<(ProxyKey, ProxyView)> {
        self.advance(now);
        self.stock.iter().map(|(slot, proxy)| (proxy.key.clone(), self.view(slot))).collect()
    }

    pub fn totals(&mut self, now: Now) -> Totals {
        self.advance(now);
        let draining = self.stock.leases_draining();
        Totals {
            leases_active: self.register.len() - draining,
            leases_draining: draining,
            known: self.stock.len(),
            offered: self.stock.offered(),
            cooldowns: self.cooling.len(),
            remembered: self.register.remembered(),
        }
    }

    fn view(&self, slot: usize) -> ProxyView {
        let proxy = self.stock.get(slot);
        ProxyView {
            uid: proxy.uid.clone(),
            offered: proxy.is_offered(),
            cordoned: proxy.cordon.is_some(),
            leases: proxy.leases.len(),
            capacity: proxy.capacity,
            cooling_targets: self.cooling.targets(slot),
            cooldown_until: self.cooling.latest(slot),
        }
    }
}

// --- private parts ---------------------------------------------------------------------------------------------------

impl LeaseBook {
    /// Ends all that is over: what every call does first.
    fn advance(&mut self, now: Now) {
        self.time = self.time.max(now.mono);
        while let Some(&(at, number)) = self.register.ends.first()
            && at <= self.time
        {
            let ended = self.end(number, EndedBy::Expired, at);
            self.expired.push(ended);
        }
        self.cooling.advance(self.time);
        self.register.forget(self.time, &self.terms);
    }

    fn end(&mut self, number: usize, how: EndedBy, when: Instant) -> Ended {
        let (held, ended) = self.register.end(number, how, when);
        if let Some(moved) = self.stock.detach(held.slot, held.place) {
            self.register.moved(moved, held.place);
        }
        ended
    }

    /// The first selector that can be met, and the slots that meet it.
    fn choose(&self, ask: &Ask, excluded: &SlotSet) -> Option<(usize, Vec<usize>)> {
        let wanted = ask.count.max(1);
        let enough = if ask.partial { 1 } else { wanted };
        let search = self.search(ask, excluded);
        selectors(ask)
            .iter()
            .enumerate()
            .map(|(at, selector)| (at, self.stock.pick(selector, search, wanted)))
            .find(|(_, slots)| slots.len() >= enough)
    }

    fn lease(&mut self, slot: usize, selector: usize, ask: &Ask) -> Lease {
        self.stock.granted(&selectors(ask)[selector], ask.target.as_ref(), slot);
        let number = self.register.next_number();
        let (counter, place) = self.stock.attach(slot, number);
        let proxy = self.stock.get(slot).offer.clone().expect("only what was offered is free");
        let ttl = self.clamp(ask.ttl);
        let lease = Lease {
            id: self.new_id(),
            generation: (u64::from(self.terms.epoch) << 32) + counter,
            proxy,
            target: ask.target.clone(),
            owner: ask.owner.clone(),
            token: ask.token.clone(),
            selector,
            issued: self.time,
            expires: self.time + ttl,
            renew_after: ttl / 2,
            state: LeaseState::Active,
        };
        self.register.add(Held { lease: lease.clone(), slot, place });
        lease
    }

    fn show(&self, number: usize) -> Lease {
        let held = self.register.get(number);
        let cordon = self.stock.get(held.slot).cordon;
        let state = cordon.map_or(LeaseState::Active, |cordon| LeaseState::Draining { by: cordon.drain_by });
        Lease { state, ..held.lease.clone() }
    }

    /// Whether anything known matches, and where that stands.
    fn break_down(&self, ask: &Ask, excluded: &SlotSet) -> (bool, Breakdown) {
        let mut pool = self.stock.matching(selectors(ask));
        let mut breakdown = self.stock.breakdown(&pool, self.search(ask, excluded));
        for slot in excluded.iter() {
            pool.remove(slot);
        }
        let free_at = forecast::next_free(&self.stock, &self.register, &self.cooling, &pool, ask.target.as_ref());
        breakdown.next_free_in = free_at.map(|at| at.saturating_duration_since(self.time));
        (breakdown.matching > 0, breakdown)
    }

    fn search<'a>(&'a self, ask: &'a Ask, excluded: &'a SlotSet) -> Search<'a> {
        let target = ask.target.as_ref();
        Search { target, resting: self.cooling.resting(target), excluded }
    }

    fn excluded(&self, ask: &Ask) -> SlotSet {
        let mut slots = SlotSet::default();
        for slot in ask.exclude.iter().filter_map(|key| self.stock.slot(key)) {
            slots.insert(slot);
        }
        slots
    }

    fn cool(&mut self, slot: usize, target: Option<Target>, cause: Cause) -> Option<Cooled> {
        let target = target?;
        let cooldown = self.cooling.strike(slot, &target, cause, self.time, &self.terms)?;
        let proxy = self.stock.get(slot);
        Some(Cooled {
            key: proxy.key.clone(),
            uid: proxy.uid.clone(),
            target,
            until: cooldown.until,
            strikes: cooldown.strikes,
        })
    }

    fn look_now(&mut self, slot: usize) -> Option<LookNow> {
        let proxy = self.stock.get(slot);
        if proxy.looked_at.is_some_and(|at| self.time < at + LOOK_EVERY) {
            return None;
        }
        let look = LookNow { key: proxy.key.clone(), uid: proxy.uid.clone() };
        self.stock.looked_at(slot, self.time);
        Some(look)
    }

    fn clamp(&self, ttl: Duration) -> Duration {
        ttl.min(self.terms.max_ttl).max(MIN_TTL)
    }

    /// `ls_` and 26 letters and digits; the next free one should the source repeat itself.
    fn new_id(&mut self) -> LeaseId {
        let mut number = (self.random)();
        loop {
            let id = LeaseId::parse(&id_text(number)).expect("`ls_` and letters and digits");
            if self.register.find(&id).is_none() {
                return id;
            }
            number = number.wrapping_add(1);
        }
    }
}

/// The selectors of an ask; none at all is one that matches everything.
fn selectors(ask: &Ask) -> &[Attributes] {
    const EVERYTHING: &[Attributes] = &[Attributes::new()];
    if ask.selectors.is_empty() { EVERYTHING } else { &ask.selectors }
}

/// 26 digits of 5 bits: no letter that reads like another.
fn id_text(mut number: u128) -> String {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let mut text = String::with_capacity(29);
    text.push_str("ls_");
    for _ in 0..26 {
        text.push(char::from(DIGITS[(number & 31) as usize]));
        number >>= 5;
    }
    text
}
