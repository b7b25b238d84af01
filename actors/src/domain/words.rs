//! Texts that thousands of Proxies have in common, kept once.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// Of each thread. Two texts that meet in one place only share less.
const PLACES: usize = 64;

thread_local! {
    static LATEST: RefCell<[Option<Arc<str>>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

/// The same text, in memory that the latest who said it have too.
pub fn shared(text: &str) -> Arc<str> {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
    let place = usize::try_from(hash % PLACES as u64).unwrap_or_default();
    LATEST.with_borrow_mut(|latest| match &mut latest[place] {
        Some(known) if **known == *text => known.clone(),
        place => place.insert(text.into()).clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_are_kept_once_and_no_other_words_are_taken_for_them() {
        let first = shared("the probes pass");
        assert!(Arc::ptr_eq(&first, &shared("the probes pass")));
        for number in 0..10 * PLACES {
            assert_eq!(*shared(&format!("the latest of {number}")), format!("the latest of {number}"));
        }
        assert_eq!(*shared("the probes pass"), *first);
    }
}
