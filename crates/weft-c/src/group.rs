//! Patchgroups. `unsafe` as all functions for C.

use crate::argument::{path, place, reference, store, take, text};
use crate::error::{answer, done, status, Failure, Result};
use crate::volume::weft_volume;
use std::ffi::{c_char, c_int, OsStr};
use std::num::NonZeroU16;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weft::patchgroups::{Fsync, Kind, Scope};
use weft::Group;

/// The changes of the group are in no order among themselves.
pub const WEFT_GROUP_ORDINARY: u32 = 0;
/// Each change of the group is ordered after the one before it.
pub const WEFT_GROUP_LINEAR: u32 = 1;
/// After a power cut all changes of the group are there, or none: see weft_group_commit(). Needs a volume
/// with a journal; on a mount, root or the user who runs it.
pub const WEFT_GROUP_ATOMIC: u32 = 2;
/// An atomic group whose changes can be undone: see weft_group_abort().
pub const WEFT_GROUP_ABORTABLE: u32 = 3;

/// The changes of the calling thread.
pub const WEFT_SCOPE_THREAD: u32 = 0;
/// The changes of the calling process, and of all processes that it starts, directly or not, as long as
/// they descend from it. It survives execve(2).
pub const WEFT_SCOPE_PROCESS: u32 = 1;

/// fsync(2) waits until the file is durable.
pub const WEFT_FSYNC_WAIT: u32 = 0;
/// fsync(2), fdatasync(2) and writes with O_SYNC do not wait: what is changed afterwards is never durable
/// before what was changed until then. After a power cut some of the last changes may be lost that fsync
/// had confirmed, but never an earlier one without all later ones.
pub const WEFT_FSYNC_BARRIER: u32 = 0xFFFF_FFFF;

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
    // SAFETY: the caller's.
    unsafe { weft_group_on_volume_of_kind(volume, WEFT_GROUP_ORDINARY, group) }
}

/// As weft_group_on_volume(), of a kind (WEFT_GROUP_...). While an atomic group has changes and has not
/// ended, syncs by others wait for that, up to 5 seconds; let no thread that is in one sync.
/// -EOPNOTSUPP: an atomic group, and the volume has no journal, or too small a one, or
/// (WEFT_GROUP_ABORTABLE) nothing can be undone on it; -EMFILE: more than 64 of these; -EINVAL: an unknown
/// kind.
#[no_mangle]
pub unsafe extern "C" fn weft_group_on_volume_of_kind(
    volume: *const weft_volume,
    kind: u32,
    group: *mut *mut weft_group,
) -> c_int {
    done(|| {
        // SAFETY: the caller's.
        unsafe {
            store(group, "group", || {
                let volume = &reference(volume, "the volume")?.0;
                Ok(weft_group(volume.group_of_kind(kind_of(kind)?)?))
            })
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
    unsafe { weft_group_on_mount_of_kind(path, WEFT_GROUP_ORDINARY, group) }
}

/// As weft_group_on_mount(), of a kind (WEFT_GROUP_...). fsync(2) of those who are in an atomic group does
/// not wait: nothing is durable before its end.
/// -EOPNOTSUPP: the volume has no journal, or too small a one, or (WEFT_GROUP_ABORTABLE) nothing can be
/// undone on it; -EPERM: an atomic group, by neither root nor the user who runs the mount; -EINVAL: an
/// unknown kind.
#[no_mangle]
pub unsafe extern "C" fn weft_group_on_mount_of_kind(
    path: *const c_char,
    kind: u32,
    group: *mut *mut weft_group,
) -> c_int {
    // SAFETY: the caller's.
    done(|| unsafe { store(group, "group", || on_mount(path, kind)) })
}

unsafe fn on_mount(at: *const c_char, kind: u32) -> Result<weft_group> {
    // SAFETY: the caller's.
    let at = Path::new(OsStr::from_bytes(unsafe { path(at, "path") }?));
    Ok(weft_group(Group::on_mount_of_kind(at, kind_of(kind)?)?))
}

fn kind_of(number: u32) -> Result<Kind> {
    match number {
        WEFT_GROUP_ORDINARY => Ok(Kind::Ordinary),
        WEFT_GROUP_LINEAR => Ok(Kind::Linear),
        WEFT_GROUP_ATOMIC => Ok(Kind::Atomic),
        WEFT_GROUP_ABORTABLE => Ok(Kind::Abortable),
        _ => Err(Failure::invalid(format!("unknown kind of group: {number}"))),
    }
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

/// Gives a group of a mount a label, for people, which `weft order --list` shows: at most 63 bytes of UTF-8
/// without control characters (-EINVAL). -EOPNOTSUPP: the group is one of a volume.
#[no_mangle]
pub unsafe extern "C" fn weft_group_set_label(
    group: *const weft_group,
    label: *const c_char,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.set_label(text(label, "label")?)?)) }
}

/// As weft_group_engage(), for a scope (WEFT_SCOPE_...), and with a meaning of fsync(2) to those who are
/// engaged: WEFT_FSYNC_WAIT, WEFT_FSYNC_BARRIER, or a number of milliseconds from 1 to 65535, which is a
/// barrier whose changes are durable within that time. -EOPNOTSUPP: the group is one of a volume, which
/// takes WEFT_SCOPE_THREAD and WEFT_FSYNC_WAIT.
#[no_mangle]
pub unsafe extern "C" fn weft_group_engage_scope(
    group: *const weft_group,
    scope: u32,
    fsync: u32,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(group, |group| Ok(group.engage_scope(scope_of(scope)?, meaning_of_fsync(fsync)?)?))
    }
}

/// Ends what weft_group_engage_scope() has begun for this thread or process, if it has.
#[no_mangle]
pub unsafe extern "C" fn weft_group_disengage_scope(group: *const weft_group, scope: u32) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.disengage_scope(scope_of(scope)?)?)) }
}

/// Adds the changes that are made by an open file of the mount to the group, and no others: `fd` is any
/// descriptor of it, in any process, so long as one is open. `fsync` is as for weft_group_engage_scope(),
/// for fsync(2) by this open file. Pages written through a mapping belong to the group at msync(2). Before
/// another group is made to depend on this one, end it by weft_group_disengage_file().
/// -EOPNOTSUPP: the mount is without the option open_files, or the group is one of a volume; -EINVAL: a
/// directory; -EXDEV: a file of another mount.
#[no_mangle]
pub unsafe extern "C" fn weft_group_engage_file(
    group: *const weft_group,
    fd: c_int,
    fsync: u32,
) -> c_int {
    // SAFETY: the caller's: the descriptor stays open during the call.
    unsafe { on(group, |group| Ok(group.engage_file(descriptor(fd)?, meaning_of_fsync(fsync)?)?)) }
}

/// Ends the engagement of an open file; `fd` is any descriptor of it.
#[no_mangle]
pub unsafe extern "C" fn weft_group_disengage_file(group: *const weft_group, fd: c_int) -> c_int {
    // SAFETY: the caller's: the descriptor stays open during the call.
    unsafe { on(group, |group| Ok(group.disengage_file(descriptor(fd)?)?)) }
}

fn scope_of(number: u32) -> Result<Scope> {
    match number {
        WEFT_SCOPE_THREAD => Ok(Scope::Thread),
        WEFT_SCOPE_PROCESS => Ok(Scope::Process),
        _ => Err(Failure::invalid(format!("unknown scope: {number}"))),
    }
}

fn meaning_of_fsync(number: u32) -> Result<Fsync> {
    match (number, u16::try_from(number).map(NonZeroU16::new)) {
        (WEFT_FSYNC_BARRIER, _) => Ok(Fsync::Barrier),
        (_, Ok(None)) => Ok(Fsync::Wait),
        (_, Ok(Some(ms))) => Ok(Fsync::Within(ms)),
        _ => Err(Failure::invalid(format!("fsync within {number} ms: at most 65535"))),
    }
}

/// Returns a descriptor of the caller.
unsafe fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(Failure::new(libc::EBADF, format!("{fd} is no descriptor")));
    }
    // SAFETY: the caller's; a number that is not open is an error of the call that it is used in.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Orders the changes of the group from now on after those until now.
#[no_mangle]
pub unsafe extern "C" fn weft_group_barrier(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.barrier()?)) }
}

/// Ends an atomic group: from now on a power cut leaves all of its changes, or none. Nothing is written,
/// and it takes no more changes. Does nothing to other groups. In an atomic group a call that could change
/// more blocks than it may fails with EFBIG, before it has changed anything.
/// -EBUSY: it is engaged; -ETIMEDOUT: it was open for longer than 5 seconds while others waited for its end.
/// Its changes are kept, but a power cut may have left a part of them; further calls of those who were in
/// it failed with ETIMEDOUT.
#[no_mangle]
pub unsafe extern "C" fn weft_group_commit(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.commit()?)) }
}

/// Undoes all changes of a group of WEFT_GROUP_ABORTABLE, and ends it and its engagements. The end of its
/// process without weft_group_commit() does that, too; weft_group_close() keeps the changes.
/// -EBUSY: others have changed what was changed here, too. Nothing is undone, and the group can still be
/// committed. -EINVAL: the group has ended, or is of another kind. With another error a part could not be
/// undone, and is kept.
#[no_mangle]
pub unsafe extern "C" fn weft_group_abort(group: *const weft_group) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(group, |group| Ok(group.abort()?)) }
}

/// Returns the most blocks that an atomic group may still change: 0 if it has ended, took too long
/// (ETIMEDOUT), or is not atomic.
#[no_mangle]
pub unsafe extern "C" fn weft_group_blocks_left(group: *const weft_group) -> i64 {
    answer(|| {
        // SAFETY: the caller's.
        let group = unsafe { reference(group, "the group") }?;
        Ok(group.0.blocks_left()?.into())
    })
}

/// Stores at `fd` a new descriptor that polls readable (poll(2), epoll(7)) once the changes made in the
/// group until now are durable, and what they depend on. Four bytes can be read then, whose values have no
/// meaning. Nothing is written to the disk for it: that happens by age, or by a sync. It is at its end of
/// file, with nothing to read, if the volume or the mount ends before. The caller closes it, by close(2);
/// it is not inherited through execve(2). -1 is stored if the call fails.
/// -EACCES: the mount is of another user, who is not root; -EMFILE: there are too many of them, 512 of a
/// mount.
#[no_mangle]
pub unsafe extern "C" fn weft_group_tell_durable(
    group: *const weft_group,
    fd: *mut c_int,
) -> c_int {
    done(|| {
        // SAFETY: the caller's.
        let fd = unsafe { place(fd, "fd") }?;
        *fd = -1;
        // SAFETY: the caller's.
        let group = unsafe { reference(group, "the group") }?;
        *fd = group.0.tell_durable()?.into_raw_fd();
        Ok(())
    })
}

/// Waits until the changes of the group are durable, and what they depend on. Nothing else is written
/// for it. An atomic group ends first, as by weft_group_commit(). The error of the disk, if it failed.
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

/// Closes the group and frees `group`. The order of its changes stays, and an atomic one ends and keeps its
/// changes. All threads that are engaged are disengaged.
#[no_mangle]
pub unsafe extern "C" fn weft_group_close(group: *mut weft_group) {
    // SAFETY: the caller's.
    done(|| {
        drop(unsafe { take(group) });
        Ok(())
    });
}
