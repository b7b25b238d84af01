//! What stands for every provider entry at once: suspect probe targets, and a providers config that is refused.
//!
//! A cell: `probes` and `providers` write their part of it, provider actors and the HTTP edge read it. What it says becomes
//! two conditions of each ProviderHealth.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use url::Url;

use crate::domain::health::Suspicion;
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, ConditionType, Truth};

/// So many suspect targets are named in a message; of the others the number is told.
const NAMED: usize = 10;

/// A probe target whose faults do not count against proxies just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// As people may see it.
    pub target: Arc<str>,
    pub why: Suspicion,
}

impl Suspect {
    pub fn new(target: &Url, why: Suspicion) -> Self {
        Self { target: shown(target).into(), why }
    }
}

/// Without user, password, query and fragment: there may be a secret in each.
pub fn shown(target: &Url) -> String {
    format!("{}{}", target.origin().ascii_serialization(), target.path())
}

/// See the module. Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    suspects: Arc<ArcSwap<Vec<Suspect>>>,
    refused: Arc<ArcSwapOption<String>>,
}

impl Standing {
    pub fn suspects(&self) -> Arc<Vec<Suspect>> {
        self.suspects.load_full()
    }

    pub fn set_suspects(&self, mut suspects: Vec<Suspect>) {
        suspects.sort_by(|a, b| a.target.cmp(&b.target));
        self.suspects.store(Arc::new(suspects));
    }

    /// Why the providers config on disk is not the one in use, if it is not.
    pub fn refused(&self) -> Option<Arc<String>> {
        self.refused.load_full()
    }

    pub fn set_refused(&self, why: Option<String>) {
        self.refused.store(why.map(Arc::new));
    }

    /// As every ProviderHealth tells it.
    pub fn conditions(&self, since: SystemTime) -> [Condition; 2] {
        [suspicion(&self.suspects(), since), acceptance(self.refused().as_deref(), since)]
    }
}

fn suspicion(suspects: &[Suspect], since: SystemTime) -> Condition {
    let (truth, reason, message) = if suspects.is_empty() {
        (Truth::False, Reason::ProbeTargetTrusted, "failed probes count against proxies".to_owned())
    } else {
        let told: Vec<_> = suspects.iter().take(NAMED).map(|s| format!("{}: {}", s.target, why(s.why))).collect();
        let more = more(suspects.len());
        let message = format!("faults at these targets do not count against proxies: {}{more}", told.join("; "));
        (Truth::True, Reason::ProbeTargetSuspect, message)
    };
    Condition { kind: ConditionType::ProbeTargetSuspect, truth, reason, message: message.into(), since }
}

fn why(suspicion: Suspicion) -> String {
    match suspicion {
        Suspicion::Direct => "the operator's own look at it fails".to_owned(),
        Suspicion::Fleet { failing, probed, domains } => {
            format!("{failing} of {probed} Proxies fail at it, in {domains} failure domains")
        }
    }
}

fn more(all: usize) -> String {
    if all > NAMED { format!("; and {} more", all - NAMED) } else { String::new() }
}

/// The suspects by name only, so that an event that comes again has the same words.
pub(crate) fn names(suspects: &[Suspect]) -> String {
    let told: Vec<_> = suspects.iter().take(NAMED).map(|suspect| &*suspect.target).collect();
    format!("{}{}", told.join("; "), more(suspects.len()))
}

fn acceptance(refused: Option<&String>, since: SystemTime) -> Condition {
    let (truth, reason, message) = match refused {
        None => (Truth::True, Reason::ConfigAccepted, "the providers config on disk is the one in use".to_owned()),
        Some(why) => (Truth::False, Reason::ConfigInvalid, refusal(why)),
    };
    Condition { kind: ConditionType::ConfigAccepted, truth, reason, message: message.into(), since }
}

/// What is wrong, what goes on, and the way out.
pub fn refusal(why: &str) -> String {
    format!(
        "the providers config on disk is refused, and the one before goes on: {why}; correct the file, it is read again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(url: &str, why: Suspicion) -> Suspect {
        Suspect::new(&Url::parse(url).expect("valid"), why)
    }

    #[test]
    fn a_target_is_named_without_what_may_be_secret() {
        for (url, seen) in [
            ("https://target.example/204", "https://target.example/204"),
            ("http://ann:sesame@target.example:8080/a?key=sesame#x", "http://target.example:8080/a"),
            ("http://[2001:db8::1]/", "http://[2001:db8::1]/"),
        ] {
            assert_eq!(&*suspect(url, Suspicion::Direct).target, seen);
        }
    }

    #[test]
    fn what_stands_is_told_with_its_reason_and_the_way_out() {
        let standing = Standing::default();
        let told = || standing.conditions(SystemTime::UNIX_EPOCH).map(|c| (c.truth, c.reason, c.message.to_string()));
        let [suspicion, acceptance] = told();
        assert_eq!((suspicion.0, suspicion.1), (Truth::False, Reason::ProbeTargetTrusted));
        assert_eq!((acceptance.0, acceptance.1), (Truth::True, Reason::ConfigAccepted));

        let fleet = Suspicion::Fleet { failing: 8, probed: 9, domains: 4 };
        standing.set_suspects(vec![suspect("https://b/", Suspicion::Direct), suspect("https://a/", fleet)]);
        standing.set_refused(Some("providers.yaml:2:5: unknown field `colour`".to_owned()));
        let [suspicion, acceptance] = told();
        assert_eq!((suspicion.0, suspicion.1), (Truth::True, Reason::ProbeTargetSuspect));
        assert!(
            suspicion.2.ends_with(
                "https://a/: 8 of 9 Proxies fail at it, in 4 failure domains; https://b/: the operator's own look at it fails"
            ),
            "{}",
            suspicion.2
        );
        assert_eq!((acceptance.0, acceptance.1), (Truth::False, Reason::ConfigInvalid));
        for words in ["providers.yaml:2:5", "the one before goes on", "correct the file"] {
            assert!(acceptance.2.contains(words), "{}", acceptance.2);
        }
    }

    #[test]
    fn a_thousand_suspects_are_told_in_a_line() {
        let standing = Standing::default();
        standing.set_suspects((0..1000).map(|n| suspect(&format!("https://t{n}/"), Suspicion::Direct)).collect());
        let [told, _] = standing.conditions(SystemTime::UNIX_EPOCH);
        assert!(told.message.ends_with("; and 990 more") && told.message.len() < 2000, "{}", told.message);
        assert!(names(&standing.suspects()).ends_with("; and 990 more"));
    }
}
