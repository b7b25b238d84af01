//! What is taken out of a Secret, wherever it came from. No value is ever in an error.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::{Credentials, SecretBytes};
use egress_actors::domain::reason::Reason;
use secrecy::SecretString;

use super::SECRET_LABEL;

/// The decoded values of a Secret, by key.
pub type Values = BTreeMap<String, SecretBytes>;

/// A Secret without the label is not read. `whose` is `namespace/name`.
pub fn not_labelled(whose: impl Display) -> OpError {
    let detail = format!("Secret `{whose}` is not for proxies: label it {SECRET_LABEL}: \"true\"");
    OpError::permanent(Reason::SecretNotLabelled, detail)
}

/// `username` and `password`, fit for HTTP.
pub fn credentials(values: &Values, whose: &str) -> Result<Credentials, OpError> {
    let username = text(values, whose, "username")?;
    if username.contains(':') {
        let detail = format!("Secret `{whose}`: `username` has a `:`, which ends a user name in HTTP");
        return Err(OpError::permanent(Reason::SecretInvalid, detail));
    }
    let password = text(values, whose, "password")?;
    Ok(Credentials { username: username.into(), password: Arc::new(SecretString::from(password)) })
}

/// One value, byte for byte; never an empty one.
pub fn value<'s>(values: &'s Values, whose: &str, key: &str) -> Result<&'s SecretBytes, OpError> {
    let invalid = |what: &str| OpError::permanent(Reason::SecretInvalid, format!("Secret `{whose}`: {what}"));
    let value = values.get(key).ok_or_else(|| invalid(&format!("key `{key}` is missing: add it")))?;
    if value.0.is_empty() { Err(invalid(&format!("key `{key}` is empty: give it a value"))) } else { Ok(value) }
}

fn text(values: &Values, whose: &str, key: &str) -> Result<String, OpError> {
    let invalid =
        |what: &str| OpError::permanent(Reason::SecretInvalid, format!("Secret `{whose}`: key `{key}` {what}"));
    let bytes = value(values, whose, key)?;
    let text = std::str::from_utf8(&bytes.0).map_err(|_| invalid("is not UTF-8 text"))?;
    if text.ends_with('\n') {
        return Err(invalid("ends with a line break: encode it with `printf %s` instead of `echo`"));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid("has control characters, which HTTP does not carry"));
    }
    Ok(text.to_owned())
}
