//! Big-endian numbers in a slice. Callers have checked the length: what lies outside reads as 0
//! and is not written.

/// The 16-bit number at byte `at`.
pub(crate) fn get16(raw: &[u8], at: usize) -> u16 {
    raw.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b))
}

/// The 32-bit number at byte `at`.
pub(crate) fn get32(raw: &[u8], at: usize) -> u32 {
    raw.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

/// The byte at `at`.
pub(crate) fn get8(raw: &[u8], at: usize) -> u8 {
    raw.get(at).copied().unwrap_or(0)
}

/// `N` bytes from `at` on.
pub(crate) fn get<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    raw.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0; N])
}

/// Writes `bytes` at `at`.
pub(crate) fn put(raw: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = at.checked_add(bytes.len()).and_then(|end| raw.get_mut(at..end)) {
        to.copy_from_slice(bytes);
    }
}

pub(crate) fn put16(raw: &mut [u8], at: usize, value: u16) {
    put(raw, at, &value.to_be_bytes());
}

pub(crate) fn put32(raw: &mut [u8], at: usize, value: u32) {
    put(raw, at, &value.to_be_bytes());
}
