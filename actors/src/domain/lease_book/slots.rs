//! Sets of slots, as sorted chunks of bits: the index under the stock.
//!
//! Every Proxy has a slot, a small number. "Has tier=dc", "has one lease", "is cooled for shop.example" are sets of
//! slots, and a question to the fleet is their intersection, 512 Proxies at a step. Sets are sparse, as there may be
//! one set for each value of an attribute, and each value may be carried by one Proxy only.

const WORDS: usize = 8;
const CHUNK: usize = WORDS * 64;

type Bits = [u64; WORDS];

/// A set of slots. Empty chunks are not kept.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotSet {
    /// Sorted by chunk number.
    chunks: Vec<(usize, Bits)>,
    len: usize,
}

impl SlotSet {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, slot: usize) -> bool {
        let (chunk, word, bit) = split(slot);
        self.bits(chunk).is_some_and(|bits| bits[word] & bit != 0)
    }

    /// True if the slot was not in the set.
    pub(super) fn insert(&mut self, slot: usize) -> bool {
        let (chunk, word, bit) = split(slot);
        let at = self.place(chunk).unwrap_or_else(|at| {
            if self.chunks.is_empty() {
                // Many sets are of one Proxy, and stay so.
                self.chunks.reserve_exact(1);
            }
            self.chunks.insert(at, (chunk, [0; WORDS]));
            at
        });
        let bits = &mut self.chunks[at].1[word];
        let new = *bits & bit == 0;
        *bits |= bit;
        self.len += usize::from(new);
        new
    }

    /// True if the slot was in the set.
    pub(super) fn remove(&mut self, slot: usize) -> bool {
        let (chunk, word, bit) = split(slot);
        let Ok(at) = self.place(chunk) else { return false };
        let bits = &mut self.chunks[at].1;
        if bits[word] & bit == 0 {
            return false;
        }
        bits[word] &= !bit;
        if *bits == [0; WORDS] {
            self.chunks.remove(at);
        }
        self.len -= 1;
        true
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().flat_map(|(chunk, bits)| {
            let base = chunk * CHUNK;
            bits.iter().enumerate().flat_map(move |(word, &bits)| Ones(bits).map(move |bit| base + word * 64 + bit))
        })
    }

    /// How many slots are in both.
    pub(super) fn common(&self, other: &Self) -> usize {
        let (few, many) = if self.chunks.len() <= other.chunks.len() { (self, other) } else { (other, self) };
        few.chunks
            .iter()
            .filter_map(|(chunk, bits)| many.bits(*chunk).map(|others| (bits, others)))
            .map(|(bits, others)| bits.iter().zip(others).map(|(a, b)| (a & b).count_ones() as usize).sum::<usize>())
            .sum()
    }

    /// What is in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let (few, many) = if self.chunks.len() <= other.chunks.len() { (self, other) } else { (other, self) };
        let mut both = Self::default();
        for (chunk, bits) in &few.chunks {
            if let Some(others) = many.bits(*chunk) {
                both.push(*chunk, std::array::from_fn(|word| bits[word] & others[word]));
            }
        }
        both
    }

    /// Adds all of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        for (chunk, others) in &other.chunks {
            match self.place(*chunk) {
                Ok(at) => {
                    for (bits, other) in self.chunks[at].1.iter_mut().zip(others) {
                        self.len += (other & !*bits).count_ones() as usize;
                        *bits |= other;
                    }
                }
                Err(at) => {
                    self.chunks.insert(at, (*chunk, *others));
                    self.len += ones(others);
                }
            }
        }
    }

    fn push(&mut self, chunk: usize, bits: Bits) {
        let more = ones(&bits);
        if more > 0 {
            self.chunks.push((chunk, bits));
            self.len += more;
        }
    }

    fn bits(&self, chunk: usize) -> Option<&Bits> {
        self.place(chunk).ok().map(|at| &self.chunks[at].1)
    }

    /// Where the chunk is, or would go. A set that leaves no chunk out has chunk n at place n.
    fn place(&self, chunk: usize) -> Result<usize, usize> {
        if self.chunks.get(chunk).is_some_and(|(there, _)| *there == chunk) {
            return Ok(chunk);
        }
        self.chunks.binary_search_by_key(&chunk, |(there, _)| *there)
    }
}

/// A question: the slots that are in all of `within` and in none of `without`.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter<'a> {
    pub(super) within: Vec<&'a SlotSet>,
    pub(super) without: Vec<&'a SlotSet>,
}

impl Filter<'_> {
    /// The first such slot of `pool` and outside of `avoid`, at or after `from`, else from the start on. Gives up after `at_most`
    /// chunks. Cost: one step for each 512 slots of the smallest set.
    pub(super) fn first(&self, pool: &SlotSet, avoid: &[&SlotSet], from: usize, at_most: usize) -> Option<usize> {
        let driver = self.within.iter().copied().min_by_key(|set| set.chunks.len());
        let driver = driver.filter(|set| set.chunks.len() < pool.chunks.len()).unwrap_or(pool);
        let chunks = driver.chunks.len();
        let (from_chunk, from_word, from_bit) = split(from);
        let start = driver.chunks.partition_point(|(chunk, _)| *chunk < from_chunk);
        // The chunk of `from` is looked at twice: its upper part first, its lower part last.
        for step in 0..=chunks.min(at_most) {
            let (chunk, mut bits) = *driver.chunks.get((start + step) % chunks.max(1))?;
            let split_here = chunk == from_chunk;
            if step == chunks && !split_here {
                break;
            }
            if split_here && (step == 0 || step == chunks) {
                let upper = upper_part(from_word, from_bit);
                for (bits, upper) in bits.iter_mut().zip(upper) {
                    *bits &= if step == 0 { upper } else { !upper };
                }
            }
            self.narrow(&mut bits, chunk, driver, pool, avoid);
            if let Some(word) = bits.iter().position(|&word| word != 0) {
                return Some(chunk * CHUNK + word * 64 + bits[word].trailing_zeros() as usize);
            }
        }
        None
    }

    fn narrow(&self, bits: &mut Bits, chunk: usize, driver: &SlotSet, pool: &SlotSet, avoid: &[&SlotSet]) {
        for set in self.within.iter().copied().chain([pool]).filter(|set| !std::ptr::eq(*set, driver)) {
            match set.bits(chunk) {
                Some(others) => bits.iter_mut().zip(others).for_each(|(bits, other)| *bits &= other),
                None => return *bits = [0; WORDS],
            }
        }
        for set in self.without.iter().chain(avoid) {
            if let Some(others) = set.bits(chunk) {
                bits.iter_mut().zip(others).for_each(|(bits, other)| *bits &= !other);
            }
        }
    }
}

/// The bits of one word, lowest first.
struct Ones(u64);

impl Iterator for Ones {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

fn split(slot: usize) -> (usize, usize, u64) {
    (slot / CHUNK, slot % CHUNK / 64, 1 << (slot % 64))
}

fn ones(bits: &Bits) -> usize {
    bits.iter().map(|word| word.count_ones() as usize).sum()
}

/// All bits at or after the given one.
fn upper_part(word: usize, bit: u64) -> Bits {
    std::array::from_fn(|at| match at.cmp(&word) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => !(bit - 1),
        std::cmp::Ordering::Greater => u64::MAX,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(slots: &BTreeSet<usize>) -> SlotSet {
        let mut set = SlotSet::default();
        for &slot in slots {
            assert!(set.insert(slot));
        }
        set
    }

    fn slots() -> impl Strategy<Value = BTreeSet<usize>> {
        prop_oneof![
            proptest::collection::btree_set(0_usize..200, 0..150),
            proptest::collection::btree_set(0_usize..3000, 0..60),
        ]
    }

    proptest! {
        #[test]
        fn sets_of_slots_do_what_sets_do(a in slots(), b in slots(), gone in slots()) {
            let (mut left, right) = (set(&a), set(&b));
            prop_assert_eq!(left.common(&right), a.intersection(&b).count());
            prop_assert_eq!(left.and(&right).iter().collect::<Vec<_>>(), a.intersection(&b).copied().collect::<Vec<_>>());
            left.add(&right);
            let mut model: BTreeSet<usize> = a.union(&b).copied().collect();
            prop_assert_eq!(left.len(), model.len());
            for slot in gone {
                prop_assert_eq!(left.remove(slot), model.remove(&slot));
                prop_assert!(!left.contains(slot));
            }
            prop_assert_eq!(left.iter().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn a_search_starts_at_its_cursor_and_goes_once_around(
            pool in slots(), one in slots(), not in slots(), avoid in slots(), from in 0_usize..3100,
        ) {
            let fits: Vec<usize> =
                pool.iter().copied().filter(|s| one.contains(s) && !not.contains(s) && !avoid.contains(s)).collect();
            let expected = fits.iter().copied().find(|&s| s >= from).or(fits.first().copied());
            let (pool, one, not, avoid) = (set(&pool), set(&one), set(&not), set(&avoid));
            let filter = Filter { within: vec![&one], without: vec![&not] };
            prop_assert_eq!(filter.first(&pool, &[&avoid], from, usize::MAX), expected);
        }
    }
}
