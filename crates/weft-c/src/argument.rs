//! Arguments of C, made into references: NULL and text that is not UTF-8 are errors. `unsafe`, since
//! only the caller can vouch that a pointer that is not NULL is valid.

use crate::error::{Failure, Result};
use std::ffi::{c_char, CStr};

/// Returns what a pointer points to.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// Returns a place for a result.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller's.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// Stores the handle that a call makes, or NULL if it fails.
pub(crate) unsafe fn store<T>(
    out: *mut *mut T,
    what: &str,
    make: impl FnOnce() -> Result<T>,
) -> Result<()> {
    // SAFETY: the caller's.
    let out = unsafe { place(out, what) }?;
    *out = std::ptr::null_mut();
    *out = Box::into_raw(Box::new(make()?));
    Ok(())
}

/// Takes back a handle that [`store`] has given out.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the handle is from `store`, and is passed here once.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Returns the bytes of a path.
pub(crate) unsafe fn path<'a>(text: *const c_char, what: &str) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's: it ends with a zero.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns a text of UTF-8.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the caller's.
    let bytes = unsafe { path(text, what) }?;
    std::str::from_utf8(bytes).map_err(|_| {
        let shown = String::from_utf8_lossy(bytes);
        Failure::new(libc::EILSEQ, format!("{what} is not UTF-8: '{shown}'"))
    })
}

/// Returns the length of a buffer, which no more than this process has memory for can have.
pub(crate) fn length<T>(pointer: *const T, len_bytes: usize, what: &str) -> Result<usize> {
    if len_bytes > isize::MAX as usize {
        return Err(Failure::invalid(format!("{what} of {len_bytes} bytes: too long")));
    }
    if pointer.is_null() && len_bytes > 0 {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    Ok(len_bytes)
}

/// Checks that no flags are set but known ones.
pub(crate) fn flags(flags: u32, known: u32) -> Result<u32> {
    if flags & !known == 0 {
        return Ok(flags);
    }
    Err(Failure::invalid(format!("unknown flags: {:#x}", flags & !known)))
}
