//! Volumes. `unsafe` as all functions for C.

use crate::argument::{flags, path, place, reference, store, take, text};
use crate::error::{done, status, Result};
use std::ffi::{c_char, c_int};
use weft::vfs::Attr;
use weft::{Options, Volume};

/// An opened volume.
#[derive(Debug)]
pub struct weft_volume(pub(crate) Volume);

/// Opens the volume for reading only: nothing is written, not even a mark that it is open.
pub const WEFT_VOLUME_READ_ONLY: u32 = 1;
/// Reading leaves access times as they are.
pub const WEFT_VOLUME_NO_ATIME: u32 = 2;

/// The attributes of a file.
#[derive(Debug)]
#[repr(C)]
pub struct weft_attributes {
    /// Number of the inode.
    pub ino: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Space that it takes, in units of 512 bytes.
    pub blocks_512: u64,
    /// Last access, in seconds since 1970.
    pub atime_sec: i64,
    /// Last change of the content.
    pub mtime_sec: i64,
    /// Last change of the inode.
    pub ctime_sec: i64,
    /// Nanoseconds of the last access.
    pub atime_nsec: u32,
    /// Nanoseconds of the last change of the content.
    pub mtime_nsec: u32,
    /// Nanoseconds of the last change of the inode.
    pub ctime_nsec: u32,
    /// Kind and permissions, as `st_mode` of stat(2) has them: S_ISDIR(mode) and the like.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as makedev(3) packs it.
    pub rdev: u32,
}

impl From<Attr> for weft_attributes {
    fn from(attr: Attr) -> Self {
        Self {
            ino: attr.ino.0,
            size_bytes: attr.size_bytes,
            blocks_512: attr.blocks_512,
            atime_sec: attr.atime.secs,
            mtime_sec: attr.mtime.secs,
            ctime_sec: attr.ctime.secs,
            atime_nsec: attr.atime.nanos,
            mtime_nsec: attr.mtime.nanos,
            ctime_nsec: attr.ctime.nanos,
            mode: attr.kind.mode_bits() | u32::from(attr.perm),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
        }
    }
}

/// Runs a call on a volume.
unsafe fn on(volume: *const weft_volume, call: impl FnOnce(&Volume) -> Result<()>) -> c_int {
    // SAFETY: the caller's.
    done(|| call(&unsafe { reference(volume, "the volume") }?.0))
}

/// Opens the volume in `source`: an image file or a block device, a partition in one
/// ("disk.img?partition=2"), or a network disk ("nbd://host/").
///
/// `flags` are 0 or WEFT_VOLUME_... `order` is the order of writes: "soft", "journal",
/// "journal=ordered", "journal=full", "async"; NULL is the default of the volume. Permissions are not
/// checked, as the image is the caller's; new files belong to the user of the process.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_open(
    source: *const c_char,
    flags: u32,
    order: *const c_char,
    volume: *mut *mut weft_volume,
) -> c_int {
    // SAFETY: the caller's.
    done(|| unsafe { store(volume, "volume", || open(source, flags, order)) })
}

unsafe fn open(source: *const c_char, given: u32, order: *const c_char) -> Result<weft_volume> {
    // SAFETY: the caller's.
    let source = unsafe { text(source, "source") }?;
    let given = flags(given, WEFT_VOLUME_READ_ONLY | WEFT_VOLUME_NO_ATIME)?;
    let order = match order.is_null() {
        true => None,
        // SAFETY: the caller's.
        false => Some(unsafe { text(order, "order") }?.parse()?),
    };
    let options = Options {
        read_only: given & WEFT_VOLUME_READ_ONLY != 0,
        no_atime: given & WEFT_VOLUME_NO_ATIME != 0,
        order,
        ..Options::default()
    };
    Ok(weft_volume(Volume::open(source, &options)?))
}

/// Makes everything durable, marks the volume clean, closes it and frees `volume`, also if it fails.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_close(volume: *mut weft_volume) -> c_int {
    // SAFETY: the caller's.
    done(|| match unsafe { take(volume) } {
        Some(volume) => Ok(volume.0.close()?),
        None => Ok(()),
    })
}

/// Makes all changes of the volume durable.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_sync(volume: *const weft_volume) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(volume, |volume| Ok(volume.sync()?)) }
}

/// Returns 1 if the volume refuses changes, else 0.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_is_read_only(volume: *const weft_volume) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let volume = unsafe { reference(volume, "the volume") }?;
        Ok(c_int::from(volume.0.is_read_only()?))
    })
}

/// Stores the attributes of the file or directory at `path`. Symbolic links are followed.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_stat(
    volume: *const weft_volume,
    path: *const c_char,
    attributes: *mut weft_attributes,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { examine(volume, path, attributes, Volume::stat) }
}

/// As weft_volume_stat(), but of a symbolic link itself.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_lstat(
    volume: *const weft_volume,
    path: *const c_char,
    attributes: *mut weft_attributes,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { examine(volume, path, attributes, Volume::stat_link) }
}

unsafe fn examine(
    volume: *const weft_volume,
    at: *const c_char,
    attributes: *mut weft_attributes,
    how: impl FnOnce(&Volume, &[u8]) -> weft::Result<Attr>,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(volume, |volume| {
            let attributes = place(attributes, "attributes")?;
            *attributes = how(volume, path(at, "path")?)?.into();
            Ok(())
        })
    }
}

/// Makes a directory with the permission bits `mode` (0755).
#[no_mangle]
pub unsafe extern "C" fn weft_volume_mkdir(
    volume: *const weft_volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(volume, |volume| {
            let at = crate::argument::path(path, "path")?;
            Ok(volume.make_dir(at, permissions(mode)?)?)
        })
    }
}

/// Removes a name that is not that of a directory.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_unlink(
    volume: *const weft_volume,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(volume, |volume| Ok(volume.remove_file(crate::argument::path(path, "path")?)?)) }
}

/// Removes an empty directory.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_rmdir(
    volume: *const weft_volume,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(volume, |volume| Ok(volume.remove_dir(crate::argument::path(path, "path")?)?)) }
}

/// Renames `path` to `new_path`, and replaces what that named before, as rename(2) does.
#[no_mangle]
pub unsafe extern "C" fn weft_volume_rename(
    volume: *const weft_volume,
    path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(volume, |volume| {
            let from = crate::argument::path(path, "path")?;
            Ok(volume.rename(from, crate::argument::path(new_path, "new_path")?)?)
        })
    }
}

/// Returns permission bits: the low 12 bits of a mode.
pub(crate) fn permissions(mode: u32) -> Result<u16> {
    Ok(flags(mode, 0o7777)? as u16)
}
