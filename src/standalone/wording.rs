//! What the YAML parser found, said so that the writer of a manifest knows what to do.
//!
//! Never repeats a value: it may be a Secret's. Field names and paths are shown.

use std::fmt::Write as _;

use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter as _};

pub(super) use crate::crd::accept::shown;

/// `field: what is wrong: the way out (column n)`.
pub(super) fn of(error: &Error, path: &str) -> String {
    let error = innermost(error);
    let mut message = sentence(error).map_or_else(
        || {
            // Syntax. The parser's words name what it met, not values; where it stood says more than what it was at.
            let text = DefaultMessageFormatter.format_message(error);
            format!("is not valid YAML here: {}", text.escape_debug().to_string().replace("\\'", "'"))
        },
        // `?` stands for a part that was not reached.
        |what| match path.trim_end_matches('?').trim_end_matches('.') {
            "" => what,
            path => format!("{}: {what}", shown(path).trim_matches('`')),
        },
    );
    if let Some(at) = error.location().filter(|at| at.column() > 0) {
        let _ = write!(message, " (column {})", at.column());
    }
    message
}

fn innermost(error: &Error) -> &Error {
    match error.without_snippet() {
        Error::AliasError { error, .. } => innermost(error),
        other => other,
    }
}

/// What is wrong with a value, and the way out; `None` for an error of syntax.
fn sentence(error: &Error) -> Option<String> {
    let text = match error {
        // The path ends in the field.
        Error::SerdeUnknownField { expected, .. } => {
            format!("is not a known field: remove it, or correct it to one of {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => format!("field `{field}` is missing: add it"),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{} is given twice: keep one", shown(key)),
        Error::DuplicateMappingKey { key: None, .. } => "a key is given twice: keep one".to_owned(),
        Error::InvalidScalar { ty: "boolean" | "bool", .. } => "must be true or false".to_owned(),
        Error::InvalidScalar { ty: "i64", .. } => "must be a whole number".to_owned(),
        Error::NullIntoString { .. } => "has no value: give a text, or remove the line".to_owned(),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("has the wrong type: give {expected}")
        }
        Error::Unexpected { expected: "mapping start", .. } => {
            "must be a map, that is `key: value` lines indented below it".to_owned()
        }
        Error::Unexpected { expected: "sequence start", .. } => "must be a list, as in `[a, b]`".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => "must be a text".to_owned(),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } | Error::AliasExpansionLimitExceeded { .. } => {
            "is too large or too deep for one object: split it, and use fewer aliases".to_owned()
        }
        _ => return None,
    };
    Some(text)
}
