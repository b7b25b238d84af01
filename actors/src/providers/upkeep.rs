//! What a look at the ProviderHealths that are there asks for. Level, not edge: what was missed, by whatever cause, is
//! found by the next look.

use std::collections::HashMap;

use crate::domain::id::ProviderName;
use crate::ports::FoundHealth;

/// What is to be done with one ProviderHealth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upkeep {
    /// There, and ours.
    Kept,
    /// Somebody removed it, or it was never written.
    Missing,
    /// Somebody else's: never written, never removed.
    Foreign,
    /// Ours, of an entry that is not configured any more.
    LeftOver,
}

/// One verdict for each configured entry, and for each of our objects without one. An object that is neither is nobody's
/// business here.
pub(super) fn upkeep<'a>(
    configured: impl IntoIterator<Item = &'a ProviderName>,
    found: &'a [FoundHealth],
) -> Vec<(&'a ProviderName, Upkeep)> {
    let mut found: HashMap<_, _> = found.iter().map(|health| (&health.entry, health.is_ours)).collect();
    let mut verdicts: Vec<_> = configured
        .into_iter()
        .map(|entry| match found.remove(entry) {
            Some(true) => (entry, Upkeep::Kept),
            Some(false) => (entry, Upkeep::Foreign),
            None => (entry, Upkeep::Missing),
        })
        .collect();
    verdicts.extend(found.into_iter().filter(|(_, is_ours)| *is_ours).map(|(entry, _)| (entry, Upkeep::LeftOver)));
    verdicts.sort_by_key(|(entry, _)| *entry);
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ProviderName {
        ProviderName::parse(name).expect("valid")
    }

    #[test]
    fn ours_are_kept_written_and_removed_and_those_of_others_are_left_alone() {
        // A letter an entry; behind it `+` ours, `-` another's.
        for (configured, found, verdicts) in [
            ("", "", ""),
            ("", "a+", "a:LeftOver"),
            ("", "a-", ""),
            ("a", "", "a:Missing"),
            ("a", "a+", "a:Kept"),
            ("a", "a-", "a:Foreign"),
            ("a b c d", "a+ b- d+ e+ f-", "a:Kept b:Foreign c:Missing d:Kept e:LeftOver"),
        ] {
            let entries: Vec<_> = configured.split_whitespace().map(name).collect();
            let found: Vec<_> = found
                .split_whitespace()
                .map(|word| FoundHealth { entry: name(&word[..1]), is_ours: word.ends_with('+') })
                .collect();
            let told: Vec<_> =
                upkeep(&entries, &found).iter().map(|(name, verdict)| format!("{name}:{verdict:?}")).collect();
            assert_eq!(told.join(" "), verdicts, "{configured} | {found:?}");
        }
    }
}
