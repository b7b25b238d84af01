//! What a backend says is wrong with an instance reaches whoever looks at the Proxy.

use super::*;
use crate::domain::instance::Complaint;

fn complaining(instance: Instance, reason: Reason, detail: &str) -> Instance {
    Instance { complaint: Some(Complaint { reason, detail: detail.into() }), ..instance }
}

fn starting() -> Instance {
    instance("1", InstanceState::Starting, None)
}

#[test]
fn an_instance_that_does_not_come_up_tells_why_and_one_that_does_tells_it_no_more() {
    let mut life = Life::adopted(managed());
    life.turn();
    life.tell(|seen, now| seen.on_get(gone(), now));
    let stuck = complaining(starting(), Reason::Unschedulable, "0/3 nodes are available");
    life.tell(|seen, now| seen.on_create(Ok(stuck.clone()), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::Unschedulable));
    assert_eq!(life.message(ConditionType::Ready), "the instance has no address yet: 0/3 nodes are available");
    assert_eq!((life.warned(), life.phase()), (vec![Reason::Unschedulable], Phase::Provisioning));
    // Overdue, the backend's own words still say more.
    life.wait(Duration::from_hours(1));
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::Unschedulable));
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::Provisioned));
}

#[test]
fn the_last_words_of_one_that_stopped_are_a_warning_before_it_is_made_anew() {
    let mut life = Life::ready();
    let ended = complaining(instance("1", InstanceState::Stopped, None), Reason::Evicted, "the node was low on memory");
    life.tell(|seen, now| seen.on_listed(Some(&ended), now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Ok(ended.clone()), now));
    assert_eq!(life.plan.step, delete(Reason::InstanceStopped));
    assert_eq!(life.warned(), [Reason::Evicted]);
    assert_eq!(life.message(ConditionType::Ready), "the instance has stopped: the node was low on memory");
}

#[test]
fn an_instance_of_which_nothing_can_be_read_keeps_the_credentials_that_it_is_known_to_have() {
    let mut life = Life::ready();
    let told = Instance { generated: Some(credentials("g")), ..running("1") };
    life.tell(|seen, now| seen.on_listed(Some(&told), now));
    let unread = complaining(
        instance("1", InstanceState::Unknown, None),
        Reason::InstanceUnknown,
        "its owner mark is not readable",
    );
    life.tell(|seen, now| seen.on_listed(Some(&unread), now));
    let Serving::Offer(route) = &life.plan.serving else { panic!("{:?}", life.plan) };
    assert_eq!(route.credentials, Some(credentials("g")));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::InstanceUnknown));
    // One that says that it has none has none.
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    let Serving::Offer(route) = &life.plan.serving else { panic!("{:?}", life.plan) };
    assert_eq!(route.credentials, None);
}

#[test]
fn a_complaint_about_one_that_serves_is_told_and_decides_nothing() {
    let mut life = Life::ready();
    let dying = complaining(starting(), Reason::CrashLooping, "squid ended with exit code 1");
    life.tell(|seen, now| seen.on_listed(Some(&dying), now));
    assert!(life.offers(), "the probes decide");
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::CrashLooping));
    assert!(life.warned().is_empty(), "{:?}", life.plan.notices);
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::Unhealthy));
    let said = life.message(ConditionType::Ready);
    assert!(said.ends_with("and the backend says: CrashLooping: squid ended with exit code 1"), "{said}");
}
