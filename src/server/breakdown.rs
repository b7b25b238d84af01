//! "Why did I get none?": the numbers, the sentence, and when to come back.

use std::fmt::Write as _;
use std::time::Duration;

use egress_actors::domain::lease_book::{Ask, Breakdown};
use serde::Serialize;

use super::error::whole_seconds;

/// The numbers as clients read them; each Proxy that matches is in exactly one of the parts.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counts {
    matching: usize,
    healthy: usize,
    available: usize,
    leased_out: usize,
    cooling_down: usize,
    banned_for_target: usize,
    draining: usize,
    provisioning: usize,
    unhealthy: usize,
    excluded: usize,
    next_free_in_seconds: Option<u64>,
}

/// What was asked for, and where the Proxies stand that match.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation<'a> {
    ask: &'a Ask,
    found: Breakdown,
}

impl<'a> Situation<'a> {
    pub(super) fn new(ask: &'a Ask, found: Breakdown) -> Self {
        Self { ask, found }
    }

    pub(super) fn counts(&self) -> Counts {
        let b = self.found;
        Counts {
            matching: b.matching,
            healthy: b.healthy,
            available: b.available,
            leased_out: b.leased_out,
            cooling_down: b.cooling_down,
            banned_for_target: b.banned_for_target,
            draining: b.draining,
            provisioning: b.provisioning,
            unhealthy: b.unhealthy,
            excluded: b.excluded,
            next_free_in_seconds: b.next_free_in.map(whole_seconds),
        }
    }

    /// When something may be free; `otherwise` where nobody knows; `None` where waiting changes nothing.
    pub(super) fn retry_after(&self, otherwise: Duration) -> Option<Duration> {
        (!self.is_all_excluded()).then(|| self.found.next_free_in.unwrap_or(otherwise))
    }

    /// The request itself leaves out whatever it could get.
    fn is_all_excluded(&self) -> bool {
        self.found.matching > 0 && self.found.excluded == self.found.matching
    }

    /// For people: `12 proxies match, 9 are healthy: 6 leased out, 2 cooling down for shop.example; next free in 14 s`.
    pub(super) fn sentence(&self) -> String {
        let b = &self.found;
        if b.matching == 0 {
            return "no proxy matches any of the selectors, whatever its state: check the attributes asked for".into();
        }
        let target = self.ask.target.as_ref().map_or_else(String::new, |target| format!(" for {target}"));
        let mut text = match b.matching {
            1 => "1 proxy matches".to_owned(),
            many => format!("{many} proxies match"),
        };
        if self.is_all_excluded() {
            let all = if b.matching == 1 { "and is" } else { "and all of them are" };
            return format!("{text}, {all} excluded by the request: waiting cannot help, exclude fewer");
        }
        text += &match b.healthy {
            0 => ", none is healthy".to_owned(),
            1 => ", 1 is healthy".to_owned(),
            many => format!(", {many} are healthy"),
        };
        let parts = |parts: &[(usize, &str)]| {
            let some = parts.iter().filter(|(count, _)| *count > 0);
            some.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
        };
        let healthy = parts(&[
            (b.available, "available"),
            (b.leased_out, "leased out"),
            (b.cooling_down, &format!("cooling down{target}")),
            (b.banned_for_target, &format!("banned{target}")),
            (b.draining, "draining"),
        ]);
        if !healthy.is_empty() {
            text += &format!(": {healthy}");
        }
        let others = parts(&[
            (b.provisioning, "provisioning"),
            (b.unhealthy, "unhealthy"),
            (b.excluded, "excluded by the request"),
        ]);
        if !others.is_empty() {
            text += &format!("; {others}");
        }
        if self.ask.count > 1 {
            write!(text, "; {} leases were asked for", self.ask.count).expect("writing to a string cannot fail");
        }
        if let Some(wait) = b.next_free_in {
            write!(text, "; next free in {} s", whole_seconds(wait)).expect("writing to a string cannot fail");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use egress_actors::domain::lease_book::Target;

    fn ask(target: Option<&str>, count: usize) -> Ask {
        Ask {
            selectors: Vec::new(),
            target: target.map(|text| Target::parse(text).unwrap()),
            ttl: Duration::from_secs(60),
            owner: None,
            token: "default".into(),
            exclude: Vec::new(),
            count,
            partial: false,
        }
    }

    #[test]
    fn a_person_understands_the_sentence() {
        let busy = Breakdown {
            matching: 12,
            healthy: 9,
            leased_out: 6,
            cooling_down: 2,
            banned_for_target: 1,
            provisioning: 3,
            next_free_in: Some(Duration::from_millis(13_200)),
            ..Breakdown::default()
        };
        let few = Breakdown { matching: 1, healthy: 1, available: 1, ..Breakdown::default() };
        let sick = Breakdown { matching: 2, unhealthy: 1, excluded: 1, ..Breakdown::default() };
        let excluded = |matching| Breakdown { matching, excluded: matching, ..Breakdown::default() };
        for (target, count, found, sentence) in [
            (
                Some("shop.example"),
                1,
                busy,
                "12 proxies match, 9 are healthy: 6 leased out, 2 cooling down for shop.example, 1 banned for shop.example; \
                 3 provisioning; next free in 14 s",
            ),
            (None, 5, few, "1 proxy matches, 1 is healthy: 1 available; 5 leases were asked for"),
            (None, 1, sick, "2 proxies match, none is healthy; 1 unhealthy, 1 excluded by the request"),
            (
                None,
                1,
                excluded(1),
                "1 proxy matches, and is excluded by the request: waiting cannot help, exclude fewer",
            ),
            (
                Some("shop.example"),
                3,
                excluded(2),
                "2 proxies match, and all of them are excluded by the request: waiting cannot help, exclude fewer",
            ),
        ] {
            assert_eq!(Situation::new(&ask(target, count), found).sentence(), sentence);
        }
    }

    #[test]
    fn a_client_is_told_to_come_when_something_is_free_and_not_before() {
        let after = |excluded, next_free_in| {
            let ask = ask(None, 1);
            let found = Breakdown { matching: 2, excluded, next_free_in, ..Breakdown::default() };
            Situation::new(&ask, found).retry_after(Duration::from_secs(5)).map(whole_seconds)
        };
        assert_eq!(after(0, None), Some(5));
        assert_eq!(after(0, Some(Duration::from_millis(1))), Some(1));
        assert_eq!(after(0, Some(Duration::from_millis(2001))), Some(3));
        assert_eq!(after(1, Some(Duration::from_secs(60))), Some(60));
        assert_eq!(after(2, None), None, "what is excluded stays excluded");
    }
}
