//! Patchgroups. `unsafe` as all functions for C.

use crate::argument::{path, reference, store, take};
use crate::error::{done, status, Result};
use crate::volume::weft_volume;
use std::ffi::{c_char, c_int, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weft::Group;

/// A patchgroup: a set of changes of one volume that are ordered as a whole. It is made, takes
/// dependencies on others (weft_group_depend), then takes changes (weft_group_engage), and neither once
/// another depends on it; so there are no cycles.
#[derive(Debug)]
pub struct weft_group(Group);

/// Runs a call on a group.
unsafe fn on(group: *const weft_group, call: impl FnOnce(&Group) -> Result<()>) -> c_int {
    // SAFETY: the caller's.
    done(|| call(&unsafe { reference(group, "the group") }?.0))
}

/// Makes a group of an opened volume. It takes changes that threads make by calls of this library.
/// -EROFS: the volume is not open for writing.
#[no_mangle]
pub unsafe extern "C" fn weft_group_on_volume(
    volume: *const weft_volume,
    group: *mut *mut weft_group,
) -> c_int {
    done(|| {
        // SAFETY: the caller's.
        unsafe {
            store(group, "group", || Ok(weft_group(reference(volume, "the volume")?.0.group()?)))
        }
    })
}

/// Makes a group of the mount that the file or directory `path` of the host is on. It takes changes
/// that threads make by system calls: write(2), rename(2) and the like, but not through mmap(2). Until
/// it is closed it holds `path` open: the mount is in use.
/// -ENOTTY: this is no volume that weft has mounted for writing.
#[no_mangle]
pub unsafe extern "C" fn weft_group_on_mount(
    path: *const c_char,
    group: *mut *mut weft_group,
) -> c_int {
    // SAFETY: the caller's.
    done(|| unsafe { store(group, "group", || on_mount(path)) })
}

unsafe fn on_mount(at: *const c_char) -> Result<weft_group> {
    // SAFETY: the caller's.
    let at = Path::new(OsStr::from_bytes(unsafe { path(at, "path") }?));
    Ok(weft_group(Group::on_mount(at)?))
}

/// Makes `group` depend on `before`: no change of `group` is durable before all changes of `before` are.
/// `before` takes no more changes from now on. -EBUSY: `group` takes changes already, or `before` is
/// engaged; -EXDEV: they are of different volumes; -EDEADLK: they are the same.
#[no_mangle]
pub unsafe extern "C" fn weft_group_depend(
    group: *const weft_group,
    before: *const weft_group,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.depend(&reference(before, "before")?.0)?)) }
}

/// Ends the dependencies of the group: it takes no more of them. The first engagement does it too.
#[no_mangle]
pub unsafe extern "C" fn weft_group_release(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.release()?)) }
}

/// Adds the changes that the calling thread makes from now on to the group, until
/// weft_group_disengage() in this thread. A thread may be in several groups; to engage twice is to
/// engage once. -EBUSY: another group depends on this one.
#[no_mangle]
pub unsafe extern "C" fn weft_group_engage(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.engage()?)) }
}

/// Ends what weft_group_engage() has begun in this thread, if it has.
#[no_mangle]
pub unsafe extern "C" fn weft_group_disengage(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.disengage()?)) }
}

/// Orders the changes of the group from now on after those until now.
#[no_mangle]
pub unsafe extern "C" fn weft_group_barrier(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.barrier()?)) }
}

/// Waits until the changes of the group are durable, and what they depend on. Nothing else is written
/// for it. The error of the disk, if it failed.
#[no_mangle]
pub unsafe extern "C" fn weft_group_sync(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.sync()?)) }
}

/// Returns 1 if the changes of the group are durable, and what they depend on, else 0.
#[no_mangle]
pub unsafe extern "C" fn weft_group_is_durable(group: *const weft_group) -> c_int {
    status(|| {
        // SAFETY: the caller's.
        let group = unsafe { reference(group, "the group") }?;
        Ok(c_int::from(group.0.is_durable()?))
    })
}

/// Closes the group and frees `group`. The order of its changes stays. All threads that are engaged
/// are disengaged.
#[no_mangle]
pub unsafe extern "C" fn weft_group_close(group: *mut weft_group) {
    // SAFETY: the caller's.
    done(|| {
        drop(unsafe { take(group) });
        Ok(())
    });
}
