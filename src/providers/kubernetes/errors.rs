//! From what the API server says to what the caller is to do about it.
//!
//! The one place of this provider that decides a class.

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;
use kube::core::Status;

use super::calls::{Effect, LIMIT};
use crate::causes;

/// Longest part of the server's words that is repeated.
const WORDS_MAX: usize = 500;

/// What is in our place is not ours.
pub(super) fn conflict(what: &str, whose: &str) -> OpError {
    OpError::permanent(Reason::NameConflict, format!("{what} {whose}: it is not touched; move it away"))
}

/// Our own object of before is still on its way out.
pub(super) fn still_deleting(what: &str) -> OpError {
    OpError::transient(Reason::Deleting, format!("{what} of before is still being deleted"))
}

/// Somebody else was at the same object at the same time.
pub(super) fn raced(what: &str) -> OpError {
    OpError::transient(Reason::APIError, format!("{what} changed while it was worked on"))
}

pub(super) fn no_client(entry: &str, why: &str) -> OpError {
    let detail = format!(
        "provider `{entry}` needs a cluster and there is none: {why}; set KUBECONFIG, or run the operator in a cluster"
    );
    OpError::permanent(Reason::ConfigInvalid, detail)
}

/// Our own limit passed. A look had no effect; a change may have one.
pub(super) fn late(doing: &str, effect: Effect) -> OpError {
    let detail = format!("cannot {doing}: the API server did not answer within {} s", LIMIT.as_secs());
    OpError::new(unseen(effect), Reason::Timeout, detail)
}

pub(super) fn of(doing: &str, effect: Effect, error: &kube::Error) -> OpError {
    let told = |class, reason, why: &str| OpError::new(class, reason, format!("cannot {doing}: {}", words(why)));
    match error {
        kube::Error::Api(status) => refused(doing, effect, status),
        kube::Error::Auth(_) => told(Class::Transient, Reason::Unauthorized, &causes::told(error)),
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => {
            told(unseen(effect), Reason::Unreachable, &causes::told(error))
        }
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
            told(Class::Permanent, Reason::Internal, &causes::told(error))
        }
        _ => told(unseen(effect), Reason::APIError, &causes::told(error)),
    }
}

fn refused(doing: &str, effect: Effect, status: &Status) -> OpError {
    let said = words(&status.message);
    let told = |class, reason, way_out: &str| {
        let detail = format!("cannot {doing}: {said}{}{way_out}", if way_out.is_empty() { "" } else { "; " });
        OpError::new(class, reason, detail)
    };
    match status.code {
        401 => told(Class::Transient, Reason::Unauthorized, "the operator's credentials are not taken"),
        403 if is_terminating(status) => told(Class::Transient, Reason::NamespaceNotFound, ""),
        403 if status.message.contains("exceeded quota") => {
            told(Class::Transient, Reason::QuotaExceeded, "raise the ResourceQuota or delete a Proxy")
        }
        // Of our own pods only where something adds to them: a sidecar, a policy of the cluster.
        403 if status.message.contains("violates PodSecurity") => {
            told(Class::Permanent, Reason::Forbidden, "what adds to our pods must keep to the namespace's level")
        }
        // A namespace gets its ServiceAccount a moment after it is made.
        403 if status.message.contains("error looking up service account") => {
            told(Class::Transient, Reason::Forbidden, "the namespace is new, or somebody removed that ServiceAccount")
        }
        // The authorizer's words; it alone is about the rights of the operator. It says so too for a moment after its own
        // start, and a right that comes back tells nobody (fault 123).
        403 if status.message.contains("cannot ") && status.message.contains("in API group") => {
            told(Class::Transient, Reason::Forbidden, "grant it to the operator in that namespace")
        }
        // A webhook, a policy or a plugin of the cluster, in its own words.
        403 => told(Class::Permanent, Reason::Forbidden, "this is what the cluster's admission says"),
        404 if names_a_namespace(status) => {
            told(Class::Permanent, Reason::NamespaceNotFound, "create it, or correct `namespace` of the entry")
        }
        410 => told(Class::Transient, Reason::APIError, "the list took too long and is begun anew"),
        400 | 413 | 415 | 422 => told(Class::Permanent, Reason::ConfigInvalid, ""),
        // 503 is said instead of an effect, not after one.
        500.. if status.code != 503 => told(unseen(effect), Reason::APIError, ""),
        // Too many at once (429), somebody else at the same time (409), and what is new to us.
        _ => told(Class::Transient, Reason::APIError, ""),
    }
}

fn unseen(effect: Effect) -> Class {
    match effect {
        Effect::None => Class::Transient,
        Effect::Change => Class::EffectUnknown,
    }
}

fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

fn names_a_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn words(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16, message: &str, kind: &str, cause: &str) -> kube::Error {
        let causes = vec![StatusCause { reason: cause.to_owned(), message: String::new(), field: String::new() }];
        let details = StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: kind.to_owned(),
            uid: String::new(),
            causes,
            retry_after_seconds: 0,
        };
        kube::Error::Api(Status::failure(message, "").with_code(code).with_details(details).boxed())
    }

    #[test]
    fn each_answer_has_its_class_and_its_way_out() {
        use Class::{EffectUnknown, Permanent, Transient};
        let forbidden =
            "pods is forbidden: User \"x\" cannot create resource \"pods\" in API group \"\" in the namespace \"a\"";
        let rows = [
            (401, "Unauthorized", "", "", (Transient, Transient), Reason::Unauthorized, "credentials"),
            (403, forbidden, "pods", "", (Transient, Transient), Reason::Forbidden, "; grant it to the operator"),
            (
                403,
                "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no tag",
                "pods",
                "",
                (Permanent, Permanent),
                Reason::Forbidden,
                "no tag; this is what the cluster's admission says",
            ),
            (403, "exceeded quota: q", "pods", "", (Transient, Transient), Reason::QuotaExceeded, "ResourceQuota"),
            (
                403,
                "error looking up service account a/default: not found",
                "pods",
                "",
                (Transient, Transient),
                Reason::Forbidden,
                "is new",
            ),
            (403, "violates PodSecurity", "pods", "", (Permanent, Permanent), Reason::Forbidden, "level"),
            (403, "x", "pods", "NamespaceTerminating", (Transient, Transient), Reason::NamespaceNotFound, "x"),
            (
                404,
                "namespaces \"a\" not found",
                "namespaces",
                "",
                (Permanent, Permanent),
                Reason::NamespaceNotFound,
                "`namespace`",
            ),
            (409, "the object has been modified", "secrets", "", (Transient, Transient), Reason::APIError, "modified"),
            (410, "expired", "pods", "", (Transient, Transient), Reason::APIError, "anew"),
            (422, "Pod \"a\" is invalid", "pods", "", (Permanent, Permanent), Reason::ConfigInvalid, "is invalid"),
            (429, "too many requests", "", "", (Transient, Transient), Reason::APIError, "too many"),
            (500, "etcdserver: request timed out", "", "", (Transient, EffectUnknown), Reason::APIError, "timed out"),
            (503, "unavailable", "", "", (Transient, Transient), Reason::APIError, "unavailable"),
            (504, "timeout", "", "", (Transient, EffectUnknown), Reason::APIError, "timeout"),
        ];
        for (code, message, kind, cause, (look, change), reason, says) in rows {
            for (effect, class) in [(Effect::None, look), (Effect::Change, change)] {
                let error = of("do it", effect, &status(code, message, kind, cause));
                assert_eq!((error.class, error.reason), (class, reason), "{code} {message}");
                assert!(error.detail.contains(says) && error.detail.starts_with("cannot do it: "), "{error}");
            }
        }
    }

    #[test]
    fn a_connection_that_broke_is_no_evidence_of_anything() {
        let broken = kube::Error::Service(std::io::Error::other("connection reset").into());
        assert_eq!(of("do it", Effect::None, &broken).class, Class::Transient);
        let unknown = of("do it", Effect::Change, &broken);
        assert_eq!((unknown.class, unknown.reason), (Class::EffectUnknown, Reason::Unreachable));
        assert_eq!(late("do it", Effect::None).class, Class::Transient);
        assert_eq!(late("do it", Effect::Change).class, Class::EffectUnknown);
    }
}
