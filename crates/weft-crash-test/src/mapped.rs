//! The bytes of a file in memory that all processes share which read it.
//!
//! `unsafe` is needed to map a file, and to take the mapping for a slice, which must not change as long
//! as it is borrowed. So only files are mapped that a test has written into its own directory
//! (`scratch`), which nothing writes after that. If something does shorten one, the process that reads
//! it ends with SIGBUS.

use std::ffi::c_void;
use std::fs::File;
use std::ptr::NonNull;

use bytes::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping, which ends when it is dropped.
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the memory belongs to no thread, and is only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` on are mapped until this is dropped, and nothing writes the
        // file.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped; nothing borrows it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of this process can be unmapped");
    }
}

/// Maps a file of a test's own directory, which must not be changed from here on.
pub(crate) fn map(file: &File) -> std::io::Result<Bytes> {
    let len = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
    if len == 0 {
        return Ok(Bytes::new());
    }
    let flags = MapFlags::PRIVATE;
    // SAFETY: the kernel chooses where, so that no other memory is affected.
    let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0)? };
    let start = NonNull::new(start).ok_or(std::io::ErrorKind::OutOfMemory)?;
    Ok(Bytes::from_owner(Mapping { start, len }))
}
