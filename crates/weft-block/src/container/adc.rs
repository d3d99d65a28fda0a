//! Apple Data Compression: literals and copies of what was there before, in chunks of NDIF and
//! UDIF.
//!
//! A byte with bit 7 set begins 1 to 128 literals; one with bit 6 set a copy of 4 to 67 bytes from
//! up to 64 KiB back, in three bytes; any other a copy of 3 to 18 from up to 1 KiB back, in two.

/// Unpacks `from` into all of `to`. Returns what is wrong if it does not fill it.
pub(super) fn unpack(from: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    const SHORT: &str = "it ends too early";
    let mut input = from;
    let mut next = |len: usize| {
        let (taken, rest) = input.split_at_checked(len).ok_or(SHORT)?;
        input = rest;
        Ok::<_, &str>(taken)
    };
    let mut at = 0;
    while at < to.len() {
        let left = to.len() - at;
        let code = next(1)?[0];
        // What is too much at the end is left out, as others do.
        if code & 0x80 != 0 {
            let literals = next(usize::from(code & 0x7f) + 1)?;
            let n = literals.len().min(left);
            to[at..at + n].copy_from_slice(&literals[..n]);
            at += n;
            continue;
        }
        let (len, back) = if code & 0x40 != 0 {
            let back = next(2)?;
            (usize::from(code & 0x3f) + 4, usize::from(back[0]) << 8 | usize::from(back[1]))
        } else {
            (usize::from(code >> 2) + 3, usize::from(code & 3) << 8 | usize::from(next(1)?[0]))
        };
        let start = at.checked_sub(back + 1).ok_or("a copy from before its beginning")?;
        let n = len.min(left);
        for i in 0..n {
            // The two may overlap: this repeats.
            to[at + i] = to[start + i];
        }
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::unpack;

    #[test]
    fn literals_and_both_copies_are_unpacked() {
        let mut out = [0; 14];
        // "abc"; 3 from 3 back; 6 that repeat the last one; two literals.
        unpack(b"\x82abc\x00\x02\x42\x00\x00\x81xy", &mut out).unwrap();
        assert_eq!(&out, b"abcabcccccccxy");
    }

    #[test]
    fn what_does_not_fill_its_chunk_is_refused() {
        let mut out = [0; 8];
        for bad in [&[][..], &[0x83, 1, 2], &[0], &[0x40, 0], &[0, 0], &[0x80, 1, 0x40, 0, 1]] {
            assert!(unpack(bad, &mut out).is_err(), "{bad:02x?}");
        }
    }
}
