//! Big-endian fields of a byte slice, with every bound checked.

/// Returns the 16-bit number at `at`, or `None` past the end.
pub(super) fn get16(buf: &[u8], at: usize) -> Option<u16> {
    let bytes = buf.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the 32-bit number at `at`, or `None` past the end.
pub(super) fn get32(buf: &[u8], at: usize) -> Option<u32> {
    let bytes = buf.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the 64-bit number at `at`, or `None` past the end.
pub(super) fn get64(buf: &[u8], at: usize) -> Option<u64> {
    let bytes = buf.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Stores `bytes` at `at`, or nothing if they do not fit: callers size their buffers first.
pub(super) fn put(buf: &mut [u8], at: usize, bytes: &[u8]) {
    let end = at.saturating_add(bytes.len());
    debug_assert!(end <= buf.len(), "field at {at} past a block of {} bytes", buf.len());
    if let Some(field) = buf.get_mut(at..end) {
        field.copy_from_slice(bytes);
    }
}

/// Stores a 32-bit number at `at`.
pub(super) fn put32(buf: &mut [u8], at: usize, value: u32) {
    put(buf, at, &value.to_be_bytes());
}
