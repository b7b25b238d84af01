//! What the API server itself refuses: CEL rules with sentences, for the schema of `proxy`.
//!
//! They say what `accept` says, earlier and to the person who types; `accept` stays the second check, as an object may
//! have been written under an older CRD, or without a cluster. What is accepted here must be accepted there: the table
//! in `accept/tests` is played against a real API server (`tests/cluster/crd`).
//!
//! Rules of one value are on its parent with a field path: the server repeats the value of a failed rule, and a value
//! may hold a password.

use kube::core::{Message, Rule};

use super::accept::IMMUTABLE;

/// Whole numbers with the units that `duration` reads.
const DURATION: &str = "^([0-9]+(h|m|s|ms))+$";

/// A DNS-1123 subdomain, as `ProxyKey` and `ProviderName` read names.
const NAME: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$";

/// `host`, `host:port`, `[v6]:port`; ports are 1 to 65535.
const AUTHORITY: &str = concat!(
    "([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_.])?|[[][0-9A-Fa-f:.]+[]])",
    "(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?"
);

/// The query keys of the lease API; `accept` has the same list.
const RESERVED: &str = "['target', 'ttl', 'session', 'count', 'partial', 'owner', 'exclude']";

fn rule(expression: impl Into<String>, sentence: impl Into<String>) -> Rule {
    Rule::new(expression).message(Message::Message(sentence.into()))
}

/// Exactly one of two optional fields.
pub(super) fn one_of(a: &str, b: &str) -> Rule {
    rule(format!("has(self.{a}) != has(self.{b})"), format!("exactly one of {a} and {b} must be set"))
}

/// The flavor stays what it was. As exactly one is set, watching one is enough.
pub(super) fn same_flavor() -> Rule {
    rule("has(self.managed) == has(oldSelf.managed)", format!("managed or external, which one is set is {IMMUTABLE}"))
}

/// A required field that never changes.
pub(super) fn same(field: &str) -> Rule {
    rule(format!("self.{field} == oldSelf.{field}"), format!("{field} is {IMMUTABLE}")).field_path(format!(".{field}"))
}

/// An optional field that never changes, nor comes, nor goes. It stands on the parent: a rule on the field itself is
/// not looked at when the field is not there before or after.
pub(super) fn same_or_absent(field: &str) -> Rule {
    let expression =
        format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})");
    rule(expression, format!("{field} is {IMMUTABLE}")).field_path(format!(".{field}"))
}

/// A duration of at least `least`.
pub(super) fn at_least(field: &str, least: &str) -> Rule {
    rule(
        format!("self.matches('{DURATION}') && duration(self) >= duration('{least}')"),
        format!("{field} must be a duration of at least {least}, like 30s, 5m or 1h30m"),
    )
}

/// Without a timeout the default shrinks with the interval, so only a written one can be too long.
pub(super) fn timeout_within_interval() -> Rule {
    let interval = "(has(self.interval) ? duration(self.interval) : duration('30s'))";
    let read = format!("(has(self.interval) && !self.interval.matches('{DURATION}'))");
    rule(
        format!(
            "!has(self.timeout) || !self.timeout.matches('{DURATION}') || {read} || duration(self.timeout) <= {interval}"
        ),
        "timeout must be at most interval (30s, where it is not set)",
    )
    .field_path(".timeout")
}

/// An entry of the providers config. The schema has its length.
pub(super) fn entry_name(field: &str) -> Rule {
    rule(
        format!("self.matches('{NAME}')"),
        format!(
            "{field} must be the name of an entry of the providers config: at most 63 lower-case letters, digits, '-' and \
             '.', with a letter or digit at both ends and on both sides of each '.'"
        ),
    )
}

/// The name of another object.
pub(super) fn object_name(field: &str) -> Rule {
    rule(
        format!("self.matches('{NAME}')"),
        format!("{field} must be the name of a Secret: lower-case letters, digits, '-' and '.', at most 253"),
    )
}

/// A key of a Secret.
pub(super) fn secret_key() -> Rule {
    rule("self.matches('^[-_.A-Za-z0-9]+$')", "key must be 1 to 253 letters, digits, '-', '_' and '.'")
}

/// A part of a placement: any text without spaces.
pub(super) fn unspaced(field: &str) -> Rule {
    rule(r"self.matches('^[^ \\p{Cc}]+$')", format!("{field} must be 1 to 2048 characters without spaces"))
}

/// The schema counts characters; what the instance gets, and what we keep in memory, is bytes.
pub(super) fn inline_bytes() -> Rule {
    rule("size(bytes(self)) <= 65536", "inline must be at most 65536 bytes: let the instance fetch the rest")
}

/// No password in the open.
pub(super) fn no_userinfo(field: &str, way_out: &str) -> Rule {
    rule(
        optional(field, &format!("!self.{field}.contains('@')")),
        format!("{field} must not hold user and password: {way_out}"),
    )
    .field_path(format!(".{field}"))
}

/// How a proxy is spoken to: nothing behind the port.
pub(super) fn proxy_url(field: &str) -> Rule {
    rule(
        format!("self.{field}.contains('@') || self.{field}.matches('^https?://{AUTHORITY}/?$')"),
        format!("{field} must be like http://203.0.113.7:3128: http or https, a host, a port of 1 to 65535, nothing behind it"),
    )
    .field_path(format!(".{field}"))
}

/// What is fetched through a proxy.
pub(super) fn target_url(field: &str) -> Rule {
    rule(
        optional(
            field,
            &format!(
                r"self.{field}.contains('@') || self.{field}.matches('^https?://{AUTHORITY}([/?#][^\\pZ\\p{{Cc}}]*)?$')"
            ),
        ),
        format!("{field} must be an http or https URL without spaces, like https://www.gstatic.com/generate_204"),
    )
    .field_path(format!(".{field}"))
}

fn optional(field: &str, expression: &str) -> String {
    format!("!has(self.{field}) || {expression}")
}

/// The keys of the attributes.
pub(super) fn attribute_keys() -> Rule {
    rule(
        "self.all(key, key.matches('^[A-Za-z0-9]([-A-Za-z0-9_./]{0,61}[A-Za-z0-9])?$'))",
        "a key of attributes must be 1 to 63 letters, digits, '-', '_', '.' and '/', and start and end with a letter or digit",
    )
}

/// The keys that mean something else in the lease API.
pub(super) fn no_reserved_keys() -> Rule {
    rule(
        format!("!self.exists(key, key in {RESERVED})"),
        "attributes must not have the keys target, ttl, session, count, partial, owner and exclude: \
         they are parameters of the lease API",
    )
}

/// Values go into headers and log lines.
pub(super) fn printable_values() -> Rule {
    rule(r"self.all(key, self[key].matches('^\\P{Cc}*$'))", "a value of attributes must have no control characters")
}
