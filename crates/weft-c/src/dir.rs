//! Directories. `unsafe` as all functions for C.

use crate::argument::{path, place, reference, store, take};
use crate::error::{done, status, Failure, Result};
use crate::volume::weft_volume;
use std::ffi::{c_char, c_int, CString};

/// The names of a directory, as they were when it was opened.
#[derive(Debug)]
pub struct weft_dir {
    names: Vec<(CString, u64, u32)>,
    next: usize,
}

/// A name of a directory.
#[derive(Debug)]
#[repr(C)]
pub struct weft_entry {
    /// The name. It belongs to the weft_dir, and is valid until that is closed.
    pub name: *const c_char,
    /// Number of the inode.
    pub ino: u64,
    /// The kind, as `st_mode` of stat(2) has it (S_ISDIR(mode)), without permissions.
    pub mode: u32,
}

/// Reads the names of the directory at `path`, but "." and "..", in no particular order.
#[no_mangle]
pub unsafe extern "C" fn weft_dir_open(
    volume: *const weft_volume,
    path: *const c_char,
    dir: *mut *mut weft_dir,
) -> c_int {
    // SAFETY: the caller's.
    done(|| unsafe { store(dir, "dir", || open(volume, path)) })
}

unsafe fn open(volume: *const weft_volume, at: *const c_char) -> Result<weft_dir> {
    // SAFETY: the caller's.
    let (volume, at) = unsafe { (reference(volume, "the volume")?, path(at, "path")?) };
    let mut names = Vec::new();
    for listed in volume.0.list(at)? {
        let name = CString::new(listed.name).map_err(|_| {
            Failure::new(libc::EILSEQ, "the directory has a name with a zero in it")
        })?;
        names.push((name, listed.ino.0, listed.kind.mode_bits()));
    }
    Ok(weft_dir { names, next: 0 })
}

/// Stores the next name. Returns 1, or 0 if there are no more. One thread at a time may call it.
#[no_mangle]
pub unsafe extern "C" fn weft_dir_next(dir: *mut weft_dir, entry: *mut weft_entry) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let (dir, entry) = unsafe { (place(dir, "dir")?, place(entry, "entry")?) };
        let Some((name, ino, mode)) = dir.names.get(dir.next) else {
            return Ok(0);
        };
        dir.next += 1;
        *entry = weft_entry { name: name.as_ptr(), ino: *ino, mode: *mode };
        Ok(1)
    })
}

/// Frees `dir` and its names.
#[no_mangle]
pub unsafe extern "C" fn weft_dir_close(dir: *mut weft_dir) {
    // SAFETY: the caller's.
    done(|| {
        drop(unsafe { take(dir) });
        Ok(())
    });
}
