//! What an answer of the API server means to those above: its class, its reason and a sentence.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;
use kube::core::Status;

use crate::causes;

/// How long one call may take. The callers have deadlines of their own; this one holds where they have none.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(15);

/// One call, with its deadline. `what` says what it was about, as in `write the status of proxy crawl/px-1`.
pub(super) async fn call<T>(
    what: impl Display + Send,
    call: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, OpError> {
    match tokio::time::timeout(CALL_WITHIN, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(what, &error)),
        Err(_) => Err(OpError::transient(
            Reason::Timeout,
            format!("cannot {what}: the API server did not answer within {} s", CALL_WITHIN.as_secs()),
        )),
    }
}

/// Never permanent: what is wrong with rights or with the server is put right outside, and nobody tells us.
pub(super) fn failed(what: impl Display, error: &kube::Error) -> OpError {
    match error {
        kube::Error::Api(status) => refused(what, status),
        other => OpError::transient(Reason::Unreachable, format!("cannot {what}: {}", causes::told(other))),
    }
}

pub(super) fn refused(what: impl Display, status: &Status) -> OpError {
    let said = if status.message.is_empty() { &status.reason } else { &status.message };
    let (class, reason) = match status.code {
        404 if is_evidence(status) => (Class::NotFound, Reason::NotFound),
        401 => (Class::Transient, Reason::Unauthorized),
        403 => (Class::Transient, Reason::Forbidden),
        504 => (Class::Transient, Reason::Timeout),
        _ => (Class::Transient, Reason::APIError),
    };
    // A rule reads a field whose type it does not know, also of the object as it was: nobody can write it any more.
    let way_out = if status.code == 422 && said.contains("evaluating rule") {
        "; no write to this object is taken: see \"An object that takes no update\" in docs/operating.md"
    } else {
        ""
    };
    OpError::new(class, reason, format!("cannot {what}: {said} ({}){way_out}", status.code))
}

/// The server's own word that this object does not exist. Where the whole kind is not served (its definition is gone, or not
/// yet in use), and where something before the server answers, there is a 404 too, which names no object.
pub(super) fn is_evidence(status: &Status) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// Was another write first, or is the object another one?
pub(super) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub(super) fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_answer_has_its_class_and_none_latches() {
        for (code, class, reason) in [
            (404, Class::Transient, Reason::APIError),
            (401, Class::Transient, Reason::Unauthorized),
            (403, Class::Transient, Reason::Forbidden),
            (409, Class::Transient, Reason::APIError),
            (422, Class::Transient, Reason::APIError),
            (429, Class::Transient, Reason::APIError),
            (500, Class::Transient, Reason::APIError),
            (504, Class::Transient, Reason::Timeout),
        ] {
            let status = Status::failure("no way", "Because").with_code(code).boxed();
            let error = failed("read it", &kube::Error::Api(status));
            assert_eq!((error.class, error.reason), (class, reason), "{code}");
            assert_eq!(error.detail, format!("cannot read it: no way ({code})"));
        }
    }

    #[test]
    fn a_404_is_evidence_only_if_it_names_the_object() {
        for (details, class) in [
            (json!({"name": "px-1", "group": "crawl.example.com", "kind": "proxies"}), Class::NotFound),
            (json!({"group": "crawl.example.com", "kind": "proxies"}), Class::Transient),
            (json!(null), Class::Transient),
        ] {
            let status = json!({"status": "Failure", "code": 404, "message": "not found", "details": details});
            let status = serde_json::from_value::<Status>(status).unwrap().boxed();
            assert_eq!(failed("read it", &kube::Error::Api(status)).class, class, "{details}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_frees_its_caller() {
        let error = call("read it", std::future::pending::<Result<(), kube::Error>>()).await.unwrap_err();
        assert_eq!(error.reason, Reason::Timeout);
    }
}
