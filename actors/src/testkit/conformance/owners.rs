//! Claims about what belongs to somebody else, and about what nobody is to read.

use secrecy::ExposeSecret as _;

use super::{
    ConformanceRig, all_rows, assert_conflict, exactly_one, gone, listed, made, made_by, running, skipped, unlisted,
};
use crate::domain::error::{Class, OpError};
use crate::domain::id::OperatorId;
use crate::domain::instance::{Credentials, Instance, InstanceSpec, OwnerMark, SecretBytes};
use crate::domain::reason::Reason;

const PASSWORD: &str = "hush-4711-never-shown";
const USER_DATA: &str = "#cloud-config\n# hush-0815-never-shown\n";

pub async fn an_instance_whose_mark_was_changed_by_hand_is_left_alone(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let before = made(rig, &mark).await;
    listed(rig, &mark).await;
    let Some(changed) = rig.change_mark(&mark).await else {
        skipped("a mark that somebody changes");
        return gone(rig, &mark).await;
    };
    assert_ne!(changed.operator, mark.operator, "the rig left the mark as it was");
    unlisted(rig, &mark).await;
    assert!(all_rows(rig, &mark.operator, &changed).await.is_empty(), "another operator's, and listed");
    assert_is_not_ours("get", rig.backend().get(&mark).await);
    assert_conflict("create in the place of what is not ours", rig.backend().create(&rig.spec(&mark)).await);
    delete_in_vain(rig, &mark).await;

    exactly_one(rig, &changed).await;
    let after = running(rig, &changed).await;
    assert_eq!((&after.provider_id, &after.endpoint), (&before.provider_id, &before.endpoint));
    gone(rig, &changed).await;
}

pub async fn another_operators_list_is_empty_and_its_delete_touches_nothing(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let before = made(rig, &mark).await;
    listed(rig, &mark).await;
    let other = OperatorId::parse("somebody-else").expect("a valid id");
    for entry in [Some(&mark.entry), None] {
        let list = rig.backend().list(&other, entry).await.expect("a list of a well host");
        assert!(list.is_empty(), "another operator's list of {entry:?}: {list:?}");
    }
    let theirs = OwnerMark { operator: other, ..mark.clone() };
    assert_is_not_ours("get", rig.backend().get(&theirs).await);
    delete_in_vain(rig, &theirs).await;

    exactly_one(rig, &mark).await;
    let after = running(rig, &mark).await;
    assert_eq!((&after.provider_id, &after.endpoint), (&before.provider_id, &before.endpoint));
    gone(rig, &mark).await;
}

/// A conflict where the place is taken; done already where somebody else's is in another place.
async fn delete_in_vain(rig: &dyn ConformanceRig, mark: &OwnerMark) {
    if let Err(error) = rig.backend().delete(mark).await {
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{error}");
    }
}

fn assert_is_not_ours(what: &str, answer: Result<Instance, OpError>) {
    let error = answer.expect_err(what);
    assert!(error.class == Class::NotFound || error.reason == Reason::NameConflict, "{what}: {error}");
}

pub async fn no_secret_is_in_a_debug_or_an_error(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let spec = with_secrets(rig.spec(&mark));
    assert_silent("a spec", &format!("{spec:?}"), &[]);
    let taken = what_is_taken(rig, spec).await;
    let instance = made_by(&*rig.backend(), &taken).await;
    let generated: Vec<String> =
        instance.generated.iter().map(|made| made.password.expose_secret().to_owned()).collect();
    assert_silent("an instance", &format!("{instance:?}"), &generated);
    let list = rig.backend().list(&mark.operator, Some(&mark.entry)).await;
    assert_silent("a list", &format!("{list:?}"), &generated);

    // What goes wrong while the secrets are at hand.
    if rig.make_unreadable(&mark).await {
        let backend = rig.backend();
        for (what, answer) in [
            ("create of what cannot be read", backend.create(&taken).await.map(Some)),
            ("get of what cannot be read", backend.get(&mark).await.map(Some)),
        ] {
            assert_answer_is_silent(what, &answer, &generated);
        }
        let list = backend.list(&mark.operator, None).await;
        assert_silent("a list that cannot be read", &format!("{list:?}"), &generated);
        rig.make_readable(&mark).await;
    }
    gone(rig, &mark).await;

    let mark = rig.mark();
    if rig.make_foreign(&mark).await {
        let answer = rig.backend().create(&InstanceSpec { mark, ..taken }).await.map(Some);
        assert!(answer.is_err(), "create over a foreign instance");
        assert_answer_is_silent("create over a foreign instance", &answer, &generated);
    }
}

fn with_secrets(spec: InstanceSpec) -> InstanceSpec {
    let credentials = Credentials { username: "crawler".into(), password: std::sync::Arc::new(PASSWORD.into()) };
    InstanceSpec { user_data: Some(SecretBytes(USER_DATA.as_bytes().into())), credentials: Some(credentials), ..spec }
}

/// Without what this backend refuses; a refusal has no secret in it either.
async fn what_is_taken(rig: &dyn ConformanceRig, spec: InstanceSpec) -> InstanceSpec {
    let without_data = InstanceSpec { user_data: None, ..spec.clone() };
    let plain = InstanceSpec { credentials: None, ..without_data.clone() };
    for spec in [spec, without_data] {
        let answer = rig.backend().create(&spec).await.map(Some);
        assert_answer_is_silent("create with secrets", &answer, &[]);
        if !answer.is_err_and(|error| error.class == Class::Permanent) {
            return spec;
        }
    }
    plain
}

fn assert_answer_is_silent(what: &str, answer: &Result<Option<Instance>, OpError>, more: &[String]) {
    assert_silent(what, &format!("{answer:?}"), more);
    if let Err(error) = answer {
        assert_silent(what, &error.to_string(), more);
    }
}

fn assert_silent(what: &str, said: &str, more: &[String]) {
    let secrets = [PASSWORD, "hush-0815"].into_iter().chain(more.iter().map(String::as_str));
    for (n, secret) in secrets.enumerate() {
        // The message of a failure is no place for it either.
        assert!(!said.contains(secret), "{what} shows secret number {n}");
    }
}
