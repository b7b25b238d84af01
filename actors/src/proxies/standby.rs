//! The fleet without its actors: a standby knows every Proxy and runs none.
//!
//! What the watch tells is kept as it is, the recorded status with it, so that taking over needs no new list. When this
//! replica begins to lead, an actor is started for each; when another one leads, the fleet as a whole is stopped and
//! started again (see [`fleet`](crate::fleet)), and its new list fills this.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Alarm, Life, Proxies, ProxiesMsg};
use crate::kit::Ctx;

/// Actors started in one message: others get their turn in between.
const AT_ONCE: usize = 256;

/// From the last start to when the registry has heard of all: an actor announces its Proxy as it begins.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

impl Proxies {
    pub(super) fn claim_changed(&mut self, ctx: &mut Ctx<ProxiesMsg>) {
        let epoch = self.wires.claim.epoch();
        match (self.epoch, epoch) {
            (None, Some(_)) => self.begin(epoch, ctx),
            (Some(before), Some(now)) if before == now => {
                for member in self.members.values().filter(|member| matches!(member.life, Life::Up)) {
                    member.proxy.claim_changed();
                }
            }
            // Another leads, or did meanwhile: the fleet is about to be stopped.
            (Some(_), _) | (None, None) => {}
        }
    }

    fn begin(&mut self, epoch: Option<u32>, ctx: &mut Ctx<ProxiesMsg>) {
        self.epoch = epoch;
        for rejected in self.invalid.values() {
            self.tell_invalid(rejected, ctx.now().wall);
        }
        let kept = self.members.iter().filter(|(_, member)| matches!(member.life, Life::Kept));
        self.to_start = kept.map(|(key, _)| key.clone()).collect();
        tracing::info!(proxies = self.to_start.len(), "starting the actors of all proxies");
        self.start_kept(ctx);
    }

    /// Starts the next ones of those that were kept.
    pub(super) fn start_kept(&mut self, ctx: &mut Ctx<ProxiesMsg>) {
        let some = self.to_start.len().saturating_sub(AT_ONCE);
        for key in self.to_start.split_off(some) {
            if self.members.get(&key).is_some_and(|member| matches!(member.life, Life::Kept)) {
                self.start(&key, ctx);
            }
        }
        if self.to_start.is_empty() {
            // At the start of a process nothing is kept, and there is nothing to wait for.
            let wait = if some == 0 && self.members.is_empty() { Duration::ZERO } else { ANNOUNCED_AFTER };
            self.timers.arm_in(Alarm::Announced, wait);
        } else {
            ctx.cast_self(ProxiesMsg::StartKept);
        }
    }

    pub(super) fn all_announced(&self) {
        self.known.announced.store(true, Relaxed);
    }
}
