//! Files. `unsafe` as all functions for C.

use crate::argument::{flags, length, path, place, reference, store, take};
use crate::error::{answer, done, Result};
use crate::volume::{permissions, weft_attributes, weft_volume};
use std::ffi::{c_char, c_int, c_void};
use weft::vfs::OpenFlags;
use weft::File;

/// An open file of a volume.
#[derive(Debug)]
pub struct weft_file(File);

/// Opens a file for reading.
pub const WEFT_FILE_READ: u32 = 1;
/// Opens a file for writing.
pub const WEFT_FILE_WRITE: u32 = 2;
/// Makes the file if it does not exist.
pub const WEFT_FILE_CREATE: u32 = 4;
/// With WEFT_FILE_CREATE: fails if the file exists.
pub const WEFT_FILE_EXCLUSIVE: u32 = 8;
/// Cuts the file to length 0.
pub const WEFT_FILE_TRUNCATE: u32 = 16;

/// The flags, and what each means to a file system.
const FLAGS: [(u32, OpenFlags); 5] = [
    (WEFT_FILE_READ, OpenFlags::READ),
    (WEFT_FILE_WRITE, OpenFlags::WRITE),
    (WEFT_FILE_CREATE, OpenFlags::empty()),
    (WEFT_FILE_EXCLUSIVE, OpenFlags::EXCLUSIVE),
    (WEFT_FILE_TRUNCATE, OpenFlags::TRUNCATE),
];

/// Runs a call on a file.
unsafe fn on(file: *const weft_file, call: impl FnOnce(&File) -> Result<()>) -> c_int {
    // SAFETY: the caller's.
    done(|| call(&unsafe { reference(file, "the file") }?.0))
}

/// Opens the file at `path`. `flags` are WEFT_FILE_...; a file that is made has the permission bits
/// `mode` (0644). An open file stays readable after its name is removed.
#[no_mangle]
pub unsafe extern "C" fn weft_file_open(
    volume: *const weft_volume,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut weft_file,
) -> c_int {
    // SAFETY: the caller's.
    done(|| unsafe { store(file, "file", || open(volume, path, flags, mode)) })
}

unsafe fn open(
    volume: *const weft_volume,
    at: *const c_char,
    given: u32,
    mode: u32,
) -> Result<weft_file> {
    // SAFETY: the caller's.
    let (volume, at) = unsafe { (reference(volume, "the volume")?, path(at, "path")?) };
    let given = flags(given, FLAGS.iter().fold(0, |all, (flag, _)| all | flag))?;
    let set = FLAGS.iter().filter(|(flag, _)| given & flag != 0).map(|(_, meaning)| *meaning);
    let create = match given & WEFT_FILE_CREATE {
        0 => None,
        _ => Some(permissions(mode)?),
    };
    Ok(weft_file(volume.0.open_file(at, set.collect(), create)?))
}

/// Reads up to `len` bytes from byte `offset` on into `buffer`. Returns how many were read: fewer than
/// `len` only at the end of the file, 0 behind it.
#[no_mangle]
pub unsafe extern "C" fn weft_file_read(
    file: *const weft_file,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    answer(|| {
        // SAFETY: the caller's.
        let file = unsafe { reference(file, "the file") }?;
        let len = length(buffer, len, "buffer")?;
        if len == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's: the buffer is this long. It is only written to.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
        Ok(file.0.read_at(offset, buffer)? as i64)
    })
}

/// Writes all `len` bytes of `data` from byte `offset` on, and makes the file longer if need be. If it
/// fails, a part may have been written.
#[no_mangle]
pub unsafe extern "C" fn weft_file_write(
    file: *const weft_file,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(file, |file| {
            let len = length(data, len, "data")?;
            if len == 0 {
                return Ok(());
            }
            Ok(file.write_at(offset, std::slice::from_raw_parts(data.cast::<u8>(), len))?)
        })
    }
}

/// Cuts the file to `len` bytes, or makes it longer with zeroes.
#[no_mangle]
pub unsafe extern "C" fn weft_file_truncate(file: *const weft_file, len: u64) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(file, |file| Ok(file.set_len(len)?)) }
}

/// Stores the attributes of the file.
#[no_mangle]
pub unsafe extern "C" fn weft_file_stat(
    file: *const weft_file,
    attributes: *mut weft_attributes,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(file, |file| {
            *place(attributes, "attributes")? = file.stat()?.into();
            Ok(())
        })
    }
}

/// Makes the file durable, and no other, as fsync(2) does.
#[no_mangle]
pub unsafe extern "C" fn weft_file_sync(file: *const weft_file) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(file, |file| Ok(file.sync()?)) }
}

/// Closes the file and frees `file`, also if it fails. Nothing becomes durable by it.
#[no_mangle]
pub unsafe extern "C" fn weft_file_close(file: *mut weft_file) -> c_int {
    // SAFETY: the caller's.
    done(|| match unsafe { take(file) } {
        Some(file) => Ok(file.0.close()?),
        None => Ok(()),
    })
}
