//! The order of names on Macintosh volumes: the ROM's `RelString`, ignoring case and keeping
//! diacritical marks.
//!
//! The order is built here from published descriptions: names are compared byte by byte by weights,
//! and a name comes before its continuations (Inside Macintosh: Text, "Using the Standard String
//! Comparison Routines"; Files, catalog keys). The weights follow the codes, except that letters
//! are equal to their lower case, and that accented letters, ligatures and quotation marks of the
//! first Macintosh character set come directly after the characters they resemble. Later additions
//! (`Á`, `Ÿ`, `‹`) keep the position of their codes, and differ from their lower case. A test
//! compares the order with that in which hfsutils sorts a catalog.

use core::cmp::Ordering;

/// The groups that deviate from the order of codes: a character and those that follow it, each
/// class of equal weight in a string of its own, in MacRoman.
const CLASSES: &[&[&[u8]]] = &[
    // Space and no-break space.
    &[b" \xca"],
    // Double quotes: “ ” « ».
    &[b"\"", b"\xd2", b"\xd3", b"\xc7", b"\xc8"],
    // Single quotes: ‘ ’.
    &[b"'", b"\xd4", b"\xd5"],
    // A À Ä Ã Å Æ, the grave accent alone, á â ª.
    &[
        b"Aa",
        b"\x88\xcb",
        b"\x80\x8a",
        b"\x8b\xcc",
        b"\x81\x8c",
        b"\xae\xbe",
        b"`",
        b"\x87",
        b"\x89",
        b"\xbb",
    ],
    &[b"Bb"],
    // Ç
    &[b"Cc", b"\x82\x8d"],
    &[b"Dd"],
    // É è ê ë
    &[b"Ee", b"\x83\x8e", b"\x8f", b"\x90", b"\x91"],
    &[b"Ff"],
    &[b"Gg"],
    &[b"Hh"],
    // í ì î ï
    &[b"Ii", b"\x92", b"\x93", b"\x94", b"\x95"],
    &[b"Jj"],
    &[b"Kk"],
    &[b"Ll"],
    &[b"Mm"],
    // Ñ
    &[b"Nn", b"\x84\x96"],
    // Ö Õ Ø Œ ó ò ô º
    &[
        b"Oo",
        b"\x85\x9a",
        b"\x9b\xcd",
        b"\xaf\xbf",
        b"\xce\xcf",
        b"\x97",
        b"\x98",
        b"\x99",
        b"\xbc",
    ],
    &[b"Pp"],
    &[b"Qq"],
    &[b"Rr"],
    // ß
    &[b"Ss", b"\xa7"],
    &[b"Tt"],
    // Ü ú ù û
    &[b"Uu", b"\x86\x9f", b"\x9c", b"\x9d", b"\x9e"],
    &[b"Vv"],
    &[b"Ww"],
    &[b"Xx"],
    // ÿ
    &[b"Yy", b"\xd8"],
    &[b"Zz"],
];

/// The weight of each byte.
const WEIGHTS: [u8; 256] = {
    // The index in CLASSES of each byte, plus one; 0 for a byte that heads no group.
    let mut moved = [false; 256];
    let mut heads = [0; 256];
    let mut i = 0;
    while i < CLASSES.len() {
        let group = CLASSES[i];
        let mut class = 0;
        while class < group.len() {
            let mut at = 0;
            while at < group[class].len() {
                moved[group[class][at] as usize] = true;
                at += 1;
            }
            class += 1;
        }
        i += 1;
        heads[group[0][0] as usize] = i;
    }
    let mut weights = [0; 256];
    let mut weight = 0_u8;
    let mut byte = 0;
    while byte < 256 {
        if heads[byte] != 0 {
            let group = CLASSES[heads[byte] - 1];
            let mut class = 0;
            while class < group.len() {
                let mut at = 0;
                while at < group[class].len() {
                    weights[group[class][at] as usize] = weight;
                    at += 1;
                }
                weight += 1;
                class += 1;
            }
        } else if !moved[byte] {
            weights[byte] = weight;
            // The last byte has the last weight.
            weight = weight.saturating_add(1);
        }
        byte += 1;
    }
    weights
};

/// Compares two names in MacRoman. Names that compare equal cannot be in one folder.
///
/// ```
/// use core::cmp::Ordering;
/// use weft_hfs::relstring::compare;
/// assert_eq!(compare(b"ReadMe", b"README"), Ordering::Equal);
/// assert_eq!(compare(b"r\x8esum\x8e", b"resume"), Ordering::Greater); // résumé
/// assert_eq!(compare(b"\x8ft\x8e", b"f"), Ordering::Less); // èté
/// ```
#[must_use]
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    for (&x, &y) in a.iter().zip(b) {
        let order = weight(x).cmp(&weight(y));
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// Returns the weight of a byte: equal for bytes that names do not distinguish.
#[must_use]
#[inline]
pub fn weight(byte: u8) -> u8 {
    WEIGHTS[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::macroman::char_of;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn each_byte_is_in_one_class() {
        let all: Vec<u8> = CLASSES.iter().flat_map(|g| g.concat()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for group in CLASSES {
            // The head of a group keeps the position of its code among the bytes that are not
            // moved.
            let head = group[0][0];
            assert!(head.is_ascii());
        }
    }

    #[test]
    fn pairs_of_bytes_have_the_properties_of_the_order() {
        let mut distinct = BTreeSet::new();
        for a in 0..=255_u8 {
            distinct.insert(weight(a));
            for b in 0..=255_u8 {
                let order = compare(&[a], &[b]);
                assert_eq!(order, compare(&[b], &[a]).reverse());
                if a == b {
                    assert!(order.is_eq());
                } else if order.is_eq() {
                    // Each is equal to its lower case only, and space to no-break space.
                    let (x, y) = (char_of(a), char_of(b));
                    let folded = x.to_lowercase().eq(y.to_lowercase());
                    assert!(folded || (x == ' ' || y == ' '), "{x:?} and {y:?}");
                } else if a < 0x80 && b < 0x80 && !a.is_ascii_lowercase() && !b.is_ascii_lowercase()
                {
                    // ASCII keeps its order, except for the grave accent.
                    assert!(a == b'`' || b == b'`' || order == a.cmp(&b), "{a:#x} and {b:#x}");
                }
                for c in [0, b'a', 0xff] {
                    assert_eq!(compare(&[c, a, 0], &[c, b, 1]).is_lt(), order.is_le());
                }
            }
        }
        // 26 letters, 13 accented or ligatures in both cases, the space.
        assert_eq!(distinct.len(), 256 - 26 - 13 - 1);
        assert_eq!(distinct.last(), Some(&215), "without gaps");
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(a: Vec<u8>, b: Vec<u8>, c: Vec<u8>) {
            let mut sorted = [&a, &b, &c];
            sorted.sort_by(|x, y| compare(x, y));
            prop_assert!(compare(sorted[0], sorted[1]).is_le());
            prop_assert!(compare(sorted[1], sorted[2]).is_le());
            prop_assert!(compare(sorted[0], sorted[2]).is_le());
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            let swap = |name: &[u8]| name.iter().map(|b| {
                if b.is_ascii_lowercase() { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() }
            }).collect::<Vec<_>>();
            prop_assert!(compare(&a, &swap(&a)).is_eq());
            prop_assert_eq!(compare(&swap(&a), &b), compare(&a, &b));
        }

        #[test]
        fn a_name_comes_before_its_continuations(a: Vec<u8>, more in proptest::collection::vec(any::<u8>(), 1..9)) {
            let longer = [&a[..], &more].concat();
            prop_assert!(compare(&a, &longer).is_lt());
        }
    }
}
