//! What the API server wrote down about each request.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;

/// One stage of one request. A request has up to three: `RequestReceived`, `ResponseStarted` (watches only),
/// `ResponseComplete`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Audited {
    pub(crate) stage: String,
    #[serde(rename = "requestURI")]
    pub(crate) uri: String,
    pub(crate) verb: String,
    pub(crate) user: User,
    #[serde(default)]
    pub(crate) object_ref: ObjectRef,
    pub(crate) response_status: Option<ResponseStatus>,
    pub(crate) request_received_timestamp: Timestamp,
    pub(crate) stage_timestamp: Timestamp,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct User {
    /// Empty for a request whose client was gone before it was known who it is.
    #[serde(default)]
    pub(crate) username: String,
}

/// Empty parts are those that the request does not have (a list has no name).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObjectRef {
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) api_group: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ResponseStatus {
    #[serde(default)]
    pub(crate) code: u16,
}

impl Audited {
    /// Whether it changes anything: create, update, patch, delete, deletecollection.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options")
    }

    /// Whether this is the last stage, so that counting these counts requests.
    pub(crate) fn is_complete(&self) -> bool {
        self.stage == "ResponseComplete"
    }
}

/// All that is written so far; a line that is half written is left out.
pub(super) fn read(path: &Path) -> Vec<Audited> {
    let text = std::fs::read_to_string(path).expect("this plane has an audit log (Options::audit)");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}"))).collect()
}
