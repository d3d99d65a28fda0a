//! Big-endian numbers in a slice. Callers have checked the length: bytes outside the slice read as
//! 0 and are not written.

use core::ops::Range;

/// Returns the 16-bit number at byte `at`.
pub(crate) fn get16(raw: &[u8], at: usize) -> u16 {
    raw.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b))
}

/// Returns the 32-bit number at byte `at`.
pub(crate) fn get32(raw: &[u8], at: usize) -> u32 {
    raw.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

/// Returns the byte at `at`.
pub(crate) fn get8(raw: &[u8], at: usize) -> u8 {
    raw.get(at).copied().unwrap_or(0)
}

/// Returns `N` bytes from `at` on.
pub(crate) fn get<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    raw.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N])
}

/// Writes `bytes` at `at`.
pub(crate) fn put(raw: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = at.checked_add(bytes.len()).and_then(|end| raw.get_mut(at..end)) {
        to.copy_from_slice(bytes);
    }
}

/// Returns the range from the first to the last byte that differ; `None` if none do. Both slices
/// have the same length.
pub(crate) fn changed(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    // Most bytes are equal: compares a few words at a time.
    const STEP: usize = 16;
    let differs = |(a, b): (&u8, &u8)| a != b;
    let mut pairs = old.chunks(STEP).zip(new.chunks(STEP)).enumerate();
    let (at, (a, b)) = pairs.clone().find(|(_, (a, b))| a != b)?;
    let from = at * STEP + a.iter().zip(b).position(differs)?;
    let (at, (a, b)) = pairs.rfind(|(_, (a, b))| a != b)?;
    let to = at * STEP + a.iter().zip(b).rposition(differs)? + 1;
    Some(from..to)
}

pub(crate) fn put16(raw: &mut [u8], at: usize, value: u16) {
    put(raw, at, &value.to_be_bytes());
}

pub(crate) fn put32(raw: &mut [u8], at: usize, value: u32) {
    put(raw, at, &value.to_be_bytes());
}
