//! Readiness as a list of named checks, each a look at a shared cell.
//!
//! `/livez` says that this endpoint's own runtime turns; `/readyz` says "able to serve or to lead". No check asks an
//! actor or the world: it must answer at once whatever they do.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::get;
use egress_actors::domain::status::Truth;
use egress_actors::domain::target::entry_health;
use egress_actors::election::{Claim, ClaimState};
use egress_actors::kit::Env;
use egress_actors::kit::stat::Status;
use egress_actors::operator::Handles;
use egress_actors::providers::EntryCard;
use egress_actors::watch::{SourceState, WatchHandle};

use super::error::{Code, with_fallbacks};

/// What the lease registry is called in the tree.
const LEASES: &str = "leases";

/// So many sick entries are named; `/admin/providers` has all.
const NAMED: usize = 10;

/// A registry that has not finished a message for so long serves nobody.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// What a check says: how it is, or what is wrong.
pub type Told = Result<String, String>;

/// One thing that readiness depends on, or that is told along with it.
#[derive(Clone)]
pub struct Check {
    pub name: &'static str,
    run: Arc<dyn Fn() -> Told + Send + Sync>,
    decides: bool,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).field("decides", &self.decides).finish_non_exhaustive()
    }
}

impl Check {
    /// Not ready while it fails.
    pub fn needed(name: &'static str, run: impl Fn() -> Told + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), decides: true }
    }

    /// Without a say from the moment at which that is set: who ends is asked for nothing but to hand over.
    #[must_use]
    pub fn until(self, ending: &Arc<AtomicBool>) -> Self {
        let (ending, run) = (ending.clone(), self.run);
        let run = move || match run() {
            Err(text) if ending.load(Ordering::SeqCst) => Ok(format!("ending: {text}")),
            told => told,
        };
        Self { run: Arc::new(run), ..self }
    }

    /// Told, and without a say.
    pub fn informative(name: &'static str, run: impl Fn() -> Told + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), decides: false }
    }
}

/// The checks of a running operator. `token_missing`: no token although we are in a cluster.
pub fn checks_of(handles: &Handles, token_missing: bool) -> Vec<Check> {
    let [synced, readable] = source(&handles.watch);
    let mut checks = vec![synced, readable, claim(&handles.claim, &handles.env), leases(&handles.env)];
    let directory = handles.directory.clone();
    checks.push(Check::informative("providers", move || {
        if directory.is_known() { providers(&directory.entries()) } else { Ok("not opened yet".to_owned()) }
    }));
    if token_missing {
        checks.push(Check::needed("discovery-token", || {
            Err("DiscoveryTokenMissing: set DISCOVERY_TOKEN, without it no crawler can reach the lease API".to_owned())
        }));
    }
    checks
}

/// Whether the fleet is known, and whether its source can be read just now: what is known is served on meanwhile.
pub fn source(watch: &WatchHandle) -> [Check; 2] {
    let (synced, readable) = (watch.clone(), watch.clone());
    [
        Check::needed("source-synced", move || is_synced(&synced.state())),
        Check::informative("source-readable", move || is_readable(&readable.state())),
    ]
}

fn is_synced(state: &SourceState) -> Told {
    match (&state.unreadable, state.synced) {
        (_, true) => Ok("the fleet is known".to_owned()),
        (Some((error, _)), false) => Err(format!("the fleet is not known, its source cannot be read: {error}")),
        (None, false) => Err("the fleet is being read".to_owned()),
    }
}

fn is_readable(state: &SourceState) -> Told {
    match &state.unreadable {
        None => Ok("nothing is wrong".to_owned()),
        Some((error, since)) => Err(format!("cannot be read since {}: {error}", super::dto::timestamp(*since))),
    }
}

/// The role. It has no say: a standby is ready to lead, and who cannot renew its claim still renews, reports and releases
/// what it leased. If another leads meanwhile, the leader's label goes, and with it the Service.
pub fn claim(claim: &Claim, env: &Arc<Env>) -> Check {
    let (claim, env) = (claim.clone(), env.clone());
    Check::informative("claim", move || {
        let state = claim.state();
        match state {
            ClaimState::Standby => Ok(match claim.holder() {
                Some(leader) => format!("standing by, `{leader}` leads"),
                None => "standing by, no leader is known".to_owned(),
            }),
            ClaimState::Leading { epoch, .. } if state.leads(env.clock.now().mono) => {
                Ok(format!("leading, epoch {epoch}"))
            }
            ClaimState::Leading { .. } | ClaimState::Suspended { .. } => {
                Err("suspended: the claim ran out and could not be renewed: no new leases, no changes".to_owned())
            }
        }
    })
}

/// How many entries are well, and which are not and why.
fn providers(entries: &[Arc<EntryCard>]) -> Told {
    let (mut well, mut unknown, mut sick) = (0, 0, Vec::new());
    for card in entries {
        let health = entry_health(card.entry.hosts.len(), &card.verdicts.load());
        match health.ready {
            Truth::True => well += 1,
            Truth::Unknown => unknown += 1,
            Truth::False => sick.push(format!("`{}`: {}", card.entry.name, health.message)),
        }
    }
    let (all, are) = match entries.len() {
        0 => return Ok("there are no entries".to_owned()),
        1 => ("1 entry".to_owned(), "is"),
        all => (format!("{all} entries"), if well == 1 { "is" } else { "are" }),
    };
    let mut text = format!("{well} of {all} {are} well");
    if unknown > 0 {
        text += &format!(", {unknown} not checked yet");
    }
    if sick.is_empty() {
        return Ok(text);
    }
    let more = sick.len().saturating_sub(NAMED);
    sick.truncate(NAMED);
    text.extend(["; ", &sick.join("; ")]);
    if more > 0 {
        text += &format!("; and {more} more");
    }
    Err(text)
}

/// Whether the registry runs and gets on. It is looked for by its kind: a fleet that restarts has another one.
pub fn leases(env: &Arc<Env>) -> Check {
    let env = env.clone();
    Check::needed("leases", move || {
        let Some(stat) = env.registry.all().into_iter().find(|stat| stat.kind() == LEASES) else {
            return Err("the lease registry is not started".to_owned());
        };
        match stat.status() {
            Status::Running if stat.stalled_for() < STALLED_AFTER => Ok("running".to_owned()),
            Status::Running => Err(format!("no progress for {} s", stat.stalled_for().as_secs())),
            other @ (Status::Stopping | Status::Restarting | Status::Parked) => Err(other.as_str().to_owned()),
        }
    })
}

/// What all checks say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) is_ready: bool,
    pub(super) lines: String,
}

/// What the admin address answers as long as there is nothing but something to wait for.
pub fn waiting(check: Check) -> Router {
    let ready = move || {
        let told = readiness(std::slice::from_ref(&check));
        async move {
            if told.is_ready {
                return told.lines.into_response();
            }
            (Code::NotReady.status(), told.lines).into_response()
        }
    };
    with_fallbacks(Router::new().route("/livez", get(async || "ok\n")).route("/readyz", get(ready)))
}

/// One line a check, in the way of the API server's own: `[+]` well, `[-]` not, `[!]` not and without a say.
pub(super) fn readiness(checks: &[Check]) -> Readiness {
    let (mut is_ready, mut lines) = (true, String::new());
    for check in checks {
        let (mark, text) = match (check.run)() {
            Ok(text) => ("+", text),
            Err(text) if check.decides => {
                is_ready = false;
                ("-", text)
            }
            Err(text) => ("!", text),
        };
        // One line is one check, whatever an error message says.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        lines += &format!("[{mark}]{}: {text}\n", check.name);
    }
    lines += if is_ready { "ready\n" } else { "not ready\n" };
    Readiness { is_ready, lines }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use egress_actors::domain::error::{Class, OpError};
    use egress_actors::domain::reason::Reason;
    use egress_actors::kit::clock::Clock;

    use super::*;
    use crate::server::tests::entries::card;

    #[test]
    fn a_sick_entry_is_told_by_name_and_has_no_say_in_readiness() {
        let (well, sick, new) = (&[("a", true), ("b", true)][..], &[("a", true), ("b", false)][..], &[][..]);
        for (entries, line) in [
            (vec![], "[+]providers: there are no entries"),
            (vec![("home", well)], "[+]providers: 1 of 1 entry is well"),
            (vec![("far", well), ("home", new)], "[+]providers: 1 of 2 entries is well, 1 not checked yet"),
            (
                vec![("far", sick), ("home", well), ("kvm", well)],
                "[!]providers: 2 of 3 entries are well; `far`: b: BinaryMissing (no such file)",
            ),
        ] {
            let cards: Vec<_> = entries.into_iter().map(|(name, verdicts)| Arc::new(card(name, verdicts))).collect();
            let told = readiness(&[Check::informative("providers", move || providers(&cards))]);
            assert_eq!((told.is_ready, told.lines.lines().next()), (true, Some(line)));
        }
        let many: Vec<_> = (0..12).map(|i| Arc::new(card(&format!("far-{i:02}"), sick))).collect();
        let told = providers(&many).unwrap_err();
        assert!(told.contains("`far-09`: ") && !told.contains("far-10") && told.ends_with("; and 2 more"), "{told}");
    }

    #[test]
    fn only_needed_checks_decide() {
        let well = Check::needed("a", || Ok("fine".to_owned()));
        let told = Check::informative("b", || Err("old file\nin use".to_owned()));
        let bad = Check::needed("c", || Err("gone".to_owned()));
        let ready = readiness(&[well.clone(), told.clone()]);
        assert_eq!((ready.is_ready, ready.lines.as_str()), (true, "[+]a: fine\n[!]b: old file in use\nready\n"));
        let not = readiness(&[well, bad, told]);
        assert_eq!((not.is_ready, not.lines.lines().last()), (false, Some("not ready")));
        assert!(not.lines.contains("[-]c: gone\n"), "{}", not.lines);
    }

    #[test]
    fn who_ends_and_hands_over_stays_in_its_service() {
        let ending = Arc::default();
        let bad = Check::needed("leases", || Err("the lease registry is not started".to_owned())).until(&ending);
        assert!(!readiness(std::slice::from_ref(&bad)).is_ready);
        ending.store(true, Ordering::SeqCst);
        let told = readiness(&[bad]);
        assert!(told.is_ready && told.lines.contains("ending: the lease registry"), "{}", told.lines);
    }

    #[test]
    fn a_known_fleet_is_served_while_its_source_cannot_be_read() {
        let error =
            OpError { class: Class::Transient, reason: Reason::Unreachable, detail: "no such directory".into() };
        let broken = |synced| SourceState { synced, unreadable: Some((error.clone(), SystemTime::now())) };
        assert!(is_synced(&SourceState::default()).is_err());
        assert!(is_synced(&broken(true)).is_ok() && is_readable(&broken(true)).is_err());
        assert!(is_synced(&broken(false)).unwrap_err().contains("no such directory"));
    }

    #[test]
    fn every_role_is_ready_and_told() {
        let env = Env::new(Clock::System);
        let past = Instant::now();
        let later = past + Duration::from_secs(60);
        for (state, line) in [
            (ClaimState::Standby, "[+]claim: standing by, `pod-b` leads"),
            (ClaimState::Leading { epoch: 1, until: None }, "[+]claim: leading, epoch 1"),
            (ClaimState::Leading { epoch: 1, until: Some(later) }, "[+]claim: leading, epoch 1"),
            (ClaimState::Leading { epoch: 1, until: Some(past) }, "[!]claim: suspended: "),
            (ClaimState::Suspended { epoch: 1 }, "[!]claim: suspended: "),
        ] {
            let held = Claim::new(state).1.held_by("pod-b");
            let told = readiness(&[claim(&held, &env)]);
            assert!(told.is_ready && told.lines.starts_with(line), "{state:?}: {}", told.lines);
        }
    }
}
