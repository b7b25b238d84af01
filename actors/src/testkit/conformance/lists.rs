//! Claims about lists: whole or an error, behind the world at most, and of all entries where all are asked for.

use std::collections::HashSet;

use super::states::{assert_is_a_failed_look, assert_is_kept};
use super::{
    Breakage, ConformanceRig, all_rows, eventually, exactly_one, gone, listed, made, made_by, running, skipped,
    unlisted,
};
use crate::domain::error::Class;
use crate::domain::id::{OperatorId, ProviderName};
use crate::domain::instance::{Listed, OwnerMark};

pub async fn a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read(rig: &dyn ConformanceRig) {
    let marks = [rig.mark(), rig.mark()];
    for mark in &marks {
        made(rig, mark).await;
        listed(rig, mark).await;
    }
    let (operator, entry) = (&marks[0].operator, &marks[0].entry);
    for breakage in [Breakage::OnePart, Breakage::Everything] {
        if !rig.break_list(&marks, breakage).await {
            skipped(&format!("a list that fails ({breakage:?})"));
            continue;
        }
        for asked in [Some(entry), None] {
            match rig.backend().list(operator, asked).await {
                Err(error) => assert!(
                    matches!(error.class, Class::Transient | Class::Permanent),
                    "a list of {asked:?} that fails answers {:?}: {error}",
                    error.class
                ),
                Ok(list) if breakage == Breakage::OnePart => {
                    for mark in &marks {
                        nothing_looks_absent(rig, asked, mark, &list).await;
                    }
                }
                Ok(list) => panic!("{breakage:?} cannot be read, and a list of {asked:?} answers {list:?}"),
            }
        }
        rig.mend_list(&marks).await;
        for mark in &marks {
            running(rig, mark).await;
            listed(rig, mark).await;
        }
    }
    for mark in &marks {
        gone(rig, mark).await;
    }
}

/// What follows a uid in the list of its entry finds it there, and kept. A list of everything may leave out what has no
/// mark that can be read: `get` then says so.
pub(super) async fn nothing_looks_absent(
    rig: &dyn ConformanceRig,
    asked: Option<&ProviderName>,
    mark: &OwnerMark,
    list: &[Listed],
) {
    let of_uid: Vec<_> = list.iter().filter(|row| row.mark.entry == mark.entry && row.mark.uid == mark.uid).collect();
    match (of_uid.as_slice(), asked) {
        ([row], _) => assert_is_kept("list", &row.instance),
        ([], None) => match rig.backend().get(mark).await {
            Err(error) => assert_is_a_failed_look("get", &error),
            Ok(instance) => panic!("a list of everything is without {instance:?}: {list:?}"),
        },
        (rows, _) => panic!("rows of {}: {rows:?}", mark.uid),
    }
}

pub async fn get_finds_what_a_list_does_not_show_yet_and_a_list_never_shows_what_was_never_made(
    rig: &dyn ConformanceRig,
) {
    let (mark, never) = (rig.mark(), rig.mark());
    // A look and a delete are no create.
    let _absent = rig.backend().get(&never).await;
    rig.backend().delete(&never).await.expect("deleting what was never made is done already");
    let backend = rig.backend();
    let spec = rig.spec(&mark);
    eventually("it is made", || async { backend.create(&spec).await.map(drop).or_else(super::again) }).await;
    // Before anything else is asked, and so before a list can have caught up.
    rig.backend().get(&mark).await.expect("get finds at once what a create has made");
    only(rig, &mark.operator, &[&mark]).await;
    listed(rig, &mark).await;
    // A create may return before it runs.
    running(rig, &mark).await;

    gone(rig, &mark).await;
    unlisted(rig, &mark).await;
    only(rig, &mark.operator, &[]).await;
}

/// That no list has anything but these.
async fn only(rig: &dyn ConformanceRig, operator: &OperatorId, made: &[&OwnerMark]) {
    let list = rig.backend().list(operator, None).await.expect("a list of a well host");
    let mut seen = HashSet::new();
    for row in &list {
        assert!(made.contains(&&row.mark), "listed and never made: {:?}", row.mark);
        assert!(seen.insert(&row.mark), "two rows of one instance: {:?}", row.mark);
    }
}

pub async fn a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted(rig: &dyn ConformanceRig) {
    let Some((maker, theirs)) = rig.mark_of_another_entry().await else {
        return skipped("another entry of the same backend");
    };
    let own = rig.mark();
    assert_ne!(own.entry, theirs.entry, "the rig's marks are of one entry");
    assert_eq!(own.operator, theirs.operator, "the rig's marks are of two operators");
    let before = made(rig, &own).await;
    let instance = made_by(&*maker, &rig.spec(&theirs)).await;
    exactly_one(rig, &theirs).await;

    let row = eventually("a list of the whole backend has both", || async {
        let (theirs, own) = (all_rows(rig, &own.operator, &theirs).await, all_rows(rig, &own.operator, &own).await);
        match (theirs.as_slice(), own.as_slice()) {
            ([one], [_]) => Ok(one.clone()),
            (theirs, own) => Err(format!("of the other entry {theirs:?}, of this one {own:?}")),
        }
    })
    .await;
    assert_eq!(row.provider_id, instance.provider_id);
    let narrow = rig.backend().list(&own.operator, Some(&own.entry)).await.expect("a list of a well host");
    assert!(narrow.iter().all(|row| row.mark.entry == own.entry), "a list of one entry has another's: {narrow:?}");

    let got = rig.backend().get(&theirs).await.expect("what the list shows can be looked at");
    assert_eq!(got.provider_id, instance.provider_id);
    gone(rig, &theirs).await;
    unlisted(rig, &theirs).await;
    let after = running(rig, &own).await;
    assert_eq!(after.provider_id, before.provider_id);
    gone(rig, &own).await;
}
