//! The one error that crosses the ports: what class of trouble, which one, and a sentence for people.

use std::fmt;

use super::reason::Reason;

/// What the caller is to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Back off and try again; nothing about the object is known to have changed.
    Transient,
    /// Trying again is pointless until the spec, a used Secret or the providers config changes.
    Permanent,
    /// There is evidence that the thing does not exist.
    NotFound,
    /// Cancelled before it was handed to the backend: there is no effect.
    Cancelled,
    /// It was handed to the backend and the end was not seen: the effect may be there, or may still come.
    EffectUnknown,
}

/// A failed operation. `detail` is for people: lower case, no full stop, names the thing; never a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct OpError {
    pub class: Class,
    pub reason: Reason,
    pub detail: String,
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

/// Longest detail that is kept; longer ones would end up in statuses and events (fault 124).
const DETAIL_MAX: usize = 1024;

impl OpError {
    pub fn new(class: Class, reason: Reason, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_MAX {
            let cut = (0..=DETAIL_MAX).rev().find(|&i| detail.is_char_boundary(i)).unwrap_or(0);
            detail.truncate(cut);
            detail.push('…');
        }
        Self { class, reason, detail }
    }

    pub fn transient(reason: Reason, detail: impl Into<String>) -> Self {
        Self::new(Class::Transient, reason, detail)
    }

    pub fn permanent(reason: Reason, detail: impl Into<String>) -> Self {
        Self::new(Class::Permanent, reason, detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Class::NotFound, Reason::NotFound, detail)
    }

    pub fn cancelled(detail: impl Into<String>) -> Self {
        Self::new(Class::Cancelled, Reason::Cancelled, detail)
    }

    pub fn effect_unknown(reason: Reason, detail: impl Into<String>) -> Self {
        Self::new(Class::EffectUnknown, reason, detail)
    }
}
