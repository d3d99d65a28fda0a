//! A summary of a cell's index: a Bloom filter of its tags, the names of its attributes, and the
//! prefixes of the words of its names.
//!
//! Invariant: a summary has no false negatives for the index at its revision ([`Summary::may_have`]
//! is true of every query with a match). So a query need not be sent to a cell if its summary rules
//! the query out *and* nothing was added since: no transaction after the summary's revision has
//! added anything to the index, in the same generation of the server (a cell restored from a copy
//! counts its revisions again). A removal since then only causes a useless query.

use crate::query::{Condition, Query};
use crate::rnode::Bytes;
use crate::store::Term;
use crate::wire::wire_struct;

/// The largest filter, in bytes.
const BYTES_MAX: usize = 256 << 10;
/// The smallest.
const BYTES_MIN: usize = 1 << 10;
/// The filter bits for each key; with seven of them set, one in a hundred absent terms seems
/// present.
const BITS_EACH: usize = 10;
const PROBES: u64 = 7;
/// The longest prefix of a word in the filter, in bytes; longer prefixes are cut to it.
const PREFIX_MAX_BYTES: usize = 6;

/// A summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    bits: Bytes,
}
wire_struct!(Summary { bits });

/// Returns the longest prefix of a word of which all bytes are ASCII, up to [`PREFIX_MAX_BYTES`].
fn ascii_start(word: &str) -> &str {
    let len = word.bytes().take(PREFIX_MAX_BYTES).take_while(u8::is_ascii).count();
    word.get(..len).unwrap_or_default()
}

/// Returns the filter keys of a term.
fn keys(term: &Term) -> Vec<Vec<u8>> {
    let key = |kind: u8, text: &str| [&[kind], text.as_bytes()].concat();
    match term {
        Term::Tag(tag) => vec![key(b't', tag)],
        Term::Attribute(name) => vec![key(b'a', name)],
        Term::Word(word) => {
            let start = ascii_start(word);
            (1..=start.len()).map(|len| key(b'w', &start[..len])).collect()
        }
    }
}

/// Returns the filter key that must be present if an rnode matches a condition; `None` if none need
/// be.
fn needed(condition: &Condition) -> Option<Vec<u8>> {
    let key = |kind: u8, text: &str| Some([&[kind], text.as_bytes()].concat());
    match condition {
        Condition::Tag(tag) => key(b't', tag),
        Condition::Attribute(name, _) => key(b'a', name),
        // Any other word may be several words, or be spelt otherwise in the index.
        Condition::Word(word) if word.bytes().all(|b| b.is_ascii_alphanumeric()) => {
            key(b'w', &ascii_start(word).to_ascii_lowercase()).filter(|key| key.len() > 1)
        }
        _ => None,
    }
}

impl Summary {
    /// Returns the summary of all terms of an index.
    #[must_use]
    pub fn of(terms: &[Term]) -> Self {
        let all: std::collections::BTreeSet<Vec<u8>> = terms.iter().flat_map(keys).collect();
        let len = (all.len() * BITS_EACH / 8).next_power_of_two().clamp(BYTES_MIN, BYTES_MAX);
        let mut bits = vec![0_u8; len];
        for key in &all {
            for at in places(key, len) {
                if let Some(byte) = bits.get_mut(at / 8) {
                    *byte |= 1 << (at % 8);
                }
            }
        }
        Self { bits: Bytes(bits) }
    }

    fn has(&self, key: &[u8]) -> bool {
        let bits = &self.bits.0;
        places(key, bits.len()).all(|at| bits.get(at / 8).is_none_or(|b| b & (1 << (at % 8)) != 0))
    }

    /// Returns true if an rnode may match a query. `false` is never wrong at the summary's
    /// revision.
    #[must_use]
    pub fn may_have(&self, query: &Query) -> bool {
        let wanted = query.0.iter().filter(|(_, is_wanted)| *is_wanted);
        wanted.filter_map(|(condition, _)| needed(condition)).all(|key| self.has(&key))
    }
}

/// Returns the bit positions of a key in a filter of `len_bytes` bytes. For a length that no filter
/// has, the positions lie outside the filter, and the key seems present.
fn places(key: &[u8], len_bytes: usize) -> impl Iterator<Item = usize> {
    let hash = blake3::hash(key);
    let half = |at: usize| {
        let bytes = hash.as_bytes().get(at..at + 8).and_then(|b| b.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let (start, step) = (half(0), half(8) | 1);
    let bits = (len_bytes as u64 * 8).max(1);
    (0..PROBES).map(move |n| {
        let at = start.wrapping_add(n.wrapping_mul(step)) % bits;
        usize::try_from(at).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(text: &str) -> Query {
        text.parse().expect("a query")
    }

    #[test]
    fn summary_prunes_only_what_is_absent() {
        let terms = [
            Term::Tag("un".into()),
            Term::Attribute("project".into()),
            Term::Word("reports".into()),
            Term::Word("gro\u{df}e".into()),
        ];
        let summary = Summary::of(&terms);
        for there in [
            "tag:un",
            "project:x",
            "rep",
            "REPORTS",
            "reportsandmore",
            "r",
            "gro",
            "kind:file",
            "-tag:other",
            "text:x",
            "size>1",
            "\"two words\"",
            "gr\u{f6}\u{df}e",
            "a_b",
            "report tag:un",
        ] {
            assert!(summary.may_have(&query(there)), "{there}");
        }
        for absent in ["tag:Un", "tag:u", "projects:x", "port", "x9", "report tag:draft"] {
            assert!(!summary.may_have(&query(absent)), "{absent}");
        }
        assert!(Summary { bits: Bytes(Vec::new()) }.may_have(&query("tag:any")));
        assert!(!Summary::of(&[]).may_have(&query("tag:any")));
    }

    proptest! {
        #[test]
        fn summary_has_no_false_negatives(
            tags in prop::collection::vec("[a-z]{1,3}", 0..40),
            words in prop::collection::vec("[a-z0-9\u{e9}]{1,9}", 1..200),
            which: prop::sample::Index,
            len in 1..9_usize,
        ) {
            let mut terms: Vec<Term> = words.iter().cloned().map(Term::Word).collect();
            terms.extend(tags.iter().cloned().map(Term::Tag));
            let summary = Summary::of(&terms);
            for tag in &tags {
                let query = Query(vec![(Condition::Tag(tag.clone()), true)]);
                prop_assert!(summary.may_have(&query));
            }
            let start: String = which.get(&words).chars().take(len).collect();
            let query = Query(vec![(Condition::Word(start.to_uppercase()), true)]);
            prop_assert!(summary.may_have(&query));
        }
    }
}
