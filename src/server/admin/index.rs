//! What there is on the admin endpoint, for who knows its address only.

use std::fmt::Write as _;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::server::body::json;
use crate::server::negotiate::{Form, preferred};

#[derive(Debug, Serialize)]
pub(super) struct Endpoint {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    about: &'static str,
}

const fn endpoint(method: &'static str, path: &'static str, about: &'static str) -> Endpoint {
    Endpoint { method, path, about }
}

/// All of them, in the order in which people need them. A test asks for each.
pub(super) const ENDPOINTS: [Endpoint; 10] = [
    endpoint("GET", "/livez", "whether the process answers"),
    endpoint("GET", "/readyz", "whether it can serve or lead; ?verbose lists the checks"),
    endpoint("GET", "/metrics", "metrics for Prometheus"),
    endpoint("GET", "/admin", "this list"),
    endpoint("GET", "/admin/actors", "the running tree; Accept: text/plain draws it"),
    endpoint(
        "GET",
        "/admin/providers",
        "the entries of the providers config and how they are; Accept: text/plain makes a table",
    ),
    endpoint("GET", "/admin/problems", "manifests that cannot be used, by file and line"),
    endpoint("POST", "/admin/reload", "reads the providers config and the certificates anew"),
    endpoint("GET", "/admin/log-level", "the log filter in use"),
    endpoint("PUT", "/admin/log-level", "sets the log filter: the body is one, such as info,egress_actors=debug"),
];

#[derive(Debug, Serialize)]
struct IndexBody {
    endpoints: &'static [Endpoint],
}

pub(super) async fn index(headers: HeaderMap) -> Response {
    if preferred(&headers) == Form::Json {
        return json(&IndexBody { endpoints: &ENDPOINTS });
    }
    let mut text = String::new();
    for Endpoint { method, path, about } in &ENDPOINTS {
        writeln!(text, "{method:4} {path:17} {about}").expect("writing to a string cannot fail");
    }
    text.into_response()
}
