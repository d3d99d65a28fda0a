//! Little-endian access to bytes from a disk, in one place. No call panics: a read past the end
//! gives 0 and a write past the end does nothing. Parsers check lengths first, so neither decides
//! anything.

/// The 16-bit number at `at`.
#[must_use]
#[inline]
pub fn get16(buf: &[u8], at: usize) -> u16 {
    field(buf, at).map_or(0, u16::from_le_bytes)
}

/// The 32-bit number at `at`.
#[must_use]
#[inline]
pub fn get32(buf: &[u8], at: usize) -> u32 {
    field(buf, at).map_or(0, u32::from_le_bytes)
}

/// The 64-bit number at `at`.
#[must_use]
#[inline]
pub fn get64(buf: &[u8], at: usize) -> u64 {
    field(buf, at).map_or(0, u64::from_le_bytes)
}

/// The byte at `at`.
#[must_use]
#[inline]
pub fn get8(buf: &[u8], at: usize) -> u8 {
    buf.get(at).copied().unwrap_or(0)
}

/// The `N` bytes at `at`, zeroes if they are not there.
#[must_use]
#[inline]
pub fn get_array<const N: usize>(buf: &[u8], at: usize) -> [u8; N] {
    field(buf, at).unwrap_or([0; N])
}

#[inline]
fn field<const N: usize>(buf: &[u8], at: usize) -> Option<[u8; N]> {
    buf.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Puts bytes at `at`.
#[inline]
pub fn put(buf: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = at.checked_add(bytes.len()).and_then(|end| buf.get_mut(at..end)) {
        to.copy_from_slice(bytes);
    }
}

/// Puts a byte at `at`.
#[inline]
pub fn put8(buf: &mut [u8], at: usize, value: u8) {
    put(buf, at, &[value]);
}

/// Puts a 16-bit number at `at`.
#[inline]
pub fn put16(buf: &mut [u8], at: usize, value: u16) {
    put(buf, at, &value.to_le_bytes());
}

/// Puts a 32-bit number at `at`.
#[inline]
pub fn put32(buf: &mut [u8], at: usize, value: u32) {
    put(buf, at, &value.to_le_bytes());
}

/// Puts a 64-bit number at `at`.
#[inline]
pub fn put64(buf: &mut [u8], at: usize, value: u64) {
    put(buf, at, &value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_neither_panics_nor_writes() {
        let mut buf = [1_u8, 2, 3];
        assert_eq!(get16(&buf, 1), 0x0302);
        assert_eq!(get16(&buf, 2), 0);
        assert_eq!(get32(&buf, usize::MAX), 0);
        put32(&mut buf, 0, 9);
        put16(&mut buf, usize::MAX, 9);
        assert_eq!(buf, [1, 2, 3]);
        put16(&mut buf, 1, 0x0908);
        assert_eq!(buf, [1, 8, 9]);
    }
}
