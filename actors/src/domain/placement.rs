//! Which host of a provider serves a Proxy.
//!
//! Asked once in the life of a Proxy: the answer is recorded on the object before the first create and never changes.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::desired::Placement;
use super::error::{Class, OpError};
use super::id::{HostName, ProviderName, Uid};
use super::reason::Reason;

/// One host as the choice sees it.
#[derive(Debug, Clone, Copy)]
pub struct Seat<'a> {
    pub host: &'a HostName,
    /// Most instances that it takes; `None` is without limit.
    pub capacity: Option<u32>,
    /// Instances that it has, and Proxies that reserved a place on it.
    pub taken: u32,
    /// What its latest check said; `None` if nobody has checked it yet.
    pub checked: Option<Result<(), &'a OpError>>,
}

impl<'a> Seat<'a> {
    fn free(&self) -> u32 {
        self.capacity.map_or(u32::MAX, |most| most).saturating_sub(self.taken)
    }

    fn is_well(&self) -> bool {
        self.checked == Some(Ok(()))
    }

    fn trouble(&self) -> Option<&'a OpError> {
        self.checked.and_then(Result::err)
    }
}

/// Whether the choice is better made later: a host that is recorded stays so, and what nobody has checked yet may not
/// answer. `patient`: a well host is not taken at once either, as the others may be about to say that they are too.
pub fn is_early(seats: &[Seat<'_>], placement: &Placement, patient: bool) -> bool {
    let unchecked = seats.iter().any(|seat| seat.checked.is_none());
    let well = seats.iter().any(|seat| seat.is_well() && seat.free() > 0);
    placement.zone.is_none() && unchecked && (patient || !well)
}

/// Picks the host with the most free places among those that passed their check. A host that is named by
/// `placement.zone` is taken even while it is not well: somebody wants that one, and it may come back.
pub fn host_for(
    entry: &ProviderName,
    seats: &[Seat<'_>],
    placement: &Placement,
    uid: &Uid,
) -> Result<HostName, OpError> {
    if let Some(zone) = &placement.zone {
        let Some(seat) = seats.iter().find(|seat| seat.host.as_str() == &**zone) else {
            return Err(OpError::permanent(
                Reason::NoHostAvailable,
                format!("placement.zone `{zone}` is not a host of provider `{entry}`; it has {}", names(seats)),
            ));
        };
        return match seat.free() {
            0 => Err(zone_full(entry, seat)),
            _ => Ok(seat.host.clone()),
        };
    }
    if seats.is_empty() {
        return Err(OpError::permanent(Reason::NoHostAvailable, format!("provider `{entry}` has no hosts")));
    }
    let open: Vec<_> = seats.iter().filter(|seat| seat.free() > 0).copied().collect();
    if open.is_empty() {
        return Err(full(entry, seats));
    }
    // Among equals the uid decides, so that a burst of Proxies spreads and a repeated question gets the same answer.
    let well = open.iter().filter(|seat| seat.is_well());
    well.max_by_key(|seat| (seat.free(), share(uid, seat.host), seat.host))
        .map_or_else(|| Err(unwell(entry, &open)), |seat| Ok(seat.host.clone()))
}

/// No host passes its check: the Proxy tells the same as the check, and waits only where waiting can help.
fn unwell(entry: &ProviderName, seats: &[Seat<'_>]) -> OpError {
    let troubles: Vec<_> = seats.iter().filter_map(|seat| Some((seat.host, seat.trouble()?))).collect();
    if troubles.len() < seats.len() {
        let text = format!("the first check of the hosts of provider `{entry}` has not ended: {}", names(seats));
        return OpError::transient(Reason::NoHostAvailable, text);
    }
    let hopeless = troubles.iter().all(|(_, trouble)| trouble.class == Class::Permanent);
    let reason = match troubles.split_first() {
        Some(((_, first), rest)) if rest.iter().all(|(_, other)| other.reason == first.reason) => first.reason,
        Some(_) | None => Reason::NoHostAvailable,
    };
    let list: Vec<_> = troubles.iter().map(|(host, trouble)| format!("`{host}`: {}", trouble.detail)).collect();
    let text = format!("no host of provider `{entry}` passes its check: {}", list.join("; "));
    if hopeless {
        OpError::permanent(reason, text)
    } else {
        // The placement of a Proxy never changes: it takes another one.
        let text = format!("{text}; this one waits, and a Proxy that names a host in placement.zone gets it anyway");
        OpError::transient(reason, text)
    }
}

/// The host that `placement.zone` asks for takes no more: room on the others does not count.
fn zone_full(entry: &ProviderName, seat: &Seat<'_>) -> OpError {
    OpError::transient(
        Reason::NoHostAvailable,
        format!(
            "placement.zone asks for a host of provider `{entry}` that is at its capacity: {}; delete a Proxy of it or \
             raise the capacity",
            usage(seat)
        ),
    )
}

fn usage(seat: &Seat<'_>) -> String {
    format!("`{}` {}/{}", seat.host, seat.taken, seat.capacity.map_or_else(|| "-".to_owned(), |most| most.to_string()))
}

fn full(entry: &ProviderName, seats: &[Seat<'_>]) -> OpError {
    let list: Vec<_> = seats.iter().map(usage).collect();
    OpError::transient(
        Reason::NoHostAvailable,
        format!("provider `{entry}` is at its capacity: {}; delete a Proxy or raise the capacity", list.join(", ")),
    )
}

fn names(seats: &[Seat<'_>]) -> String {
    let list: Vec<_> = seats.iter().map(|seat| format!("`{}`", seat.host)).collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}

fn share(uid: &Uid, host: &HostName) -> u64 {
    let mut hasher = DefaultHasher::new();
    (uid, host).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::domain::error::Class;

    /// name, capacity, taken, well
    type Row = (&'static str, Option<u32>, u32, bool);

    fn timeout() -> OpError {
        OpError::transient(Reason::Timeout, "the check did not end in time")
    }

    fn pick(rows: &[Row], zone: Option<&str>, uid: &str) -> Result<String, OpError> {
        let hosts: Vec<_> = rows.iter().map(|row| HostName::parse(row.0).expect("valid")).collect();
        let trouble = timeout();
        let seats: Vec<_> = rows
            .iter()
            .zip(&hosts)
            .map(|(&(_, capacity, taken, well), host)| {
                let checked = Some(if well { Ok(()) } else { Err(&trouble) });
                Seat { host, capacity, taken, checked }
            })
            .collect();
        let placement = Placement { zone: zone.map(Into::into), ..Placement::default() };
        let entry = ProviderName::parse("kvm").expect("valid");
        host_for(&entry, &seats, &placement, &Uid::parse(uid).expect("valid")).map(|h| h.as_str().to_owned())
    }

    #[test]
    fn the_host_is_chosen_by_zone_then_health_then_free_places() {
        let rows: &[(&[Row], Option<&str>, &str)] = &[
            (&[("a", Some(4), 3, true), ("b", Some(4), 1, true)], None, "b"),
            (&[("a", Some(4), 3, true), ("b", Some(4), 1, true)], Some("a"), "a"),
            (&[("a", Some(4), 3, true), ("b", None, 900, true)], None, "b"),
            (&[("a", None, 9, true), ("b", None, 3, true)], None, "b"),
            (&[("a", Some(4), 3, true), ("b", Some(9), 0, false)], None, "a"),
            (&[("a", Some(4), 3, true), ("b", Some(9), 0, false)], Some("b"), "b"),
            (&[("a", Some(4), 4, true), ("b", Some(1), 0, true)], None, "b"),
        ];
        for (seats, zone, wanted) in rows {
            assert_eq!(pick(seats, *zone, "u1").as_deref(), Ok(*wanted), "{seats:?} {zone:?}");
        }
    }

    #[test]
    fn a_refusal_names_what_was_asked_and_what_there_is_and_says_whether_waiting_helps() {
        type Refusal<'a> = (&'a [Row], Option<&'a str>, Class, &'a [&'a str]);
        let rows: &[Refusal<'_>] = &[
            (&[("a", None, 0, true), ("b", None, 0, true)], Some("c"), Class::Permanent, &["`c`", "`kvm`", "`a`, `b`"]),
            (&[("a", Some(4), 4, true), ("b", Some(2), 3, true)], None, Class::Transient, &["`a` 4/4", "`b` 3/2"]),
            (
                &[("a", Some(4), 4, true), ("b", Some(2), 0, true)],
                Some("a"),
                Class::Transient,
                &["placement.zone", "`a` 4/4"],
            ),
            (&[], None, Class::Permanent, &["no hosts"]),
            (&[], Some("a"), Class::Permanent, &["`a`", "none"]),
        ];
        for (seats, zone, class, words) in rows {
            let error = pick(seats, *zone, "u1").expect_err("refused");
            assert_eq!((error.class, error.reason), (*class, Reason::NoHostAvailable), "{error}");
            for word in *words {
                assert!(error.detail.contains(word), "{word} is not in: {error}");
            }
        }
    }

    #[test]
    fn where_no_host_passes_its_check_the_refusal_is_the_checks_own() {
        let missing = || OpError::permanent(Reason::BinaryMissing, "squid is not there");
        let unreachable = || OpError::transient(Reason::Unreachable, "nobody answers");
        let rows = [
            (vec![missing()], Class::Permanent, Reason::BinaryMissing),
            (vec![missing(), missing()], Class::Permanent, Reason::BinaryMissing),
            (vec![unreachable()], Class::Transient, Reason::Unreachable),
            (vec![missing(), unreachable()], Class::Transient, Reason::NoHostAvailable),
        ];
        let entry = ProviderName::parse("kvm").expect("valid");
        for (troubles, class, reason) in rows {
            let hosts: Vec<_> =
                (0..troubles.len()).map(|n| HostName::parse(&format!("h{n}")).expect("valid")).collect();
            let seats: Vec<_> = hosts
                .iter()
                .zip(&troubles)
                .map(|(host, trouble)| Seat { host, capacity: None, taken: 0, checked: Some(Err(trouble)) })
                .collect();
            let error = host_for(&entry, &seats, &Placement::default(), &Uid::parse("u1").expect("valid"))
                .expect_err("no host is well");
            assert_eq!((error.class, error.reason), (class, reason), "{error}");
            for (host, trouble) in hosts.iter().zip(&troubles) {
                assert!(error.detail.contains(&format!("`{host}`: {}", trouble.detail)), "{error}");
            }
            assert_eq!(error.detail.contains("placement.zone"), class == Class::Transient, "{error}");
        }
    }

    #[test]
    fn the_choice_waits_for_the_first_check_unless_a_host_is_named() {
        let (host, sick) = (HostName::parse("a").expect("valid"), timeout());
        let (new, well, bad) = (None, Some(Ok(())), Some(Err(&sick)));
        // What the hosts' checks said, whether one is named: is it early while patient, and after?
        let rows = [
            (vec![new], false, true, true),
            (vec![new, new], true, false, false),
            (vec![new, bad], false, true, true),
            (vec![new, well], false, true, false),
            (vec![well, bad], false, false, false),
            (vec![bad, bad], false, false, false),
        ];
        for (checks, named, patient, after) in rows {
            let seat = |checked: &_| Seat { host: &host, capacity: Some(1), taken: 0, checked: *checked };
            let seats: Vec<_> = checks.iter().map(seat).collect();
            let placement = Placement { zone: named.then(|| "a".into()), ..Placement::default() };
            let early = |patience| is_early(&seats, &placement, patience);
            assert_eq!((early(true), early(false)), (patient, after), "{checks:?} {named}");
        }
        let full = Seat { host: &host, capacity: Some(1), taken: 1, checked: well };
        let unchecked = Seat { checked: new, taken: 0, ..full };
        assert!(is_early(&[full, unchecked], &Placement::default(), false), "what is full is no choice");
    }

    #[test]
    fn among_equals_one_uid_always_gets_the_same_host_and_many_spread() {
        let seats: &[Row] = &[("a", None, 0, true), ("b", None, 0, true), ("c", None, 0, true)];
        let back: &[Row] = &[("c", None, 0, true), ("b", None, 0, true), ("a", None, 0, true)];
        let mut chosen = BTreeSet::new();
        for n in 0..60 {
            let uid = format!("uid-{n}");
            let host = pick(seats, None, &uid).expect("there is room");
            assert_eq!(pick(back, None, &uid).expect("there is room"), host, "the order of the config decided");
            chosen.insert(host);
        }
        assert_eq!(chosen.len(), 3);
    }
}
