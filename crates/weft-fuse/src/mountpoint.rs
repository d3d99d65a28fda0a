//! The mount point: checked before mounting, released at the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::{Error, Result};

const DEVICE: &str = "/dev/fuse";
const MOUNTS: &str = "/proc/self/mountinfo";
/// `STATX_MNT_ID_UNIQUE` (Linux 6.8)
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// The most dead mounts on one directory that are cleared away.
const DEAD_MAX: usize = 16;
const HELPER: &str = "fusermount3";

/// Checks that a mount is possible there; returns the absolute path. A dead mount of an earlier run
/// (its daemon was killed) is removed.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf> {
    check_device()?;
    let mut found = find(path);
    for _ in 0..DEAD_MAX {
        // The kernel ends the rings of a process that was killed after the process: the mount may
        // die while it is looked at.
        if !matches!(&found, Err(e) if is_dead(e)) {
            break;
        }
        tracing::warn!(mountpoint = %path.display(), "clearing away a dead mount");
        detach(path)?;
        found = find(path);
    }
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Error::NoMountpoint(path.into()),
        io::ErrorKind::NotADirectory => Error::NotADirectory(path.into()),
        _ => Error::Mount { mountpoint: path.into(), source },
    };
    // The directory may hold files, as with mount(8): they reappear when it is unmounted.
    match found.map_err(failed)? {
        (absolute, true) => Ok(absolute),
        (_, false) => Err(Error::NotADirectory(path.into())),
    }
}

/// Returns the absolute path, and whether it is a directory.
fn find(path: &Path) -> io::Result<(PathBuf, bool)> {
    let absolute = path.canonicalize()?;
    let is_dir = fs::metadata(&absolute)?.is_dir();
    Ok((absolute, is_dir))
}

/// Returns true if an error says that the daemon of a mount is gone.
pub(crate) fn is_dead(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED))
}

fn check_device() -> Result<()> {
    match fs::metadata(DEVICE) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoDevice),
        Err(e) => return Err(Error::Device(e)),
    }
    if !rustix::process::geteuid().is_root() && !has_helper() {
        return Err(Error::NoFusermount);
    }
    Ok(())
}

fn has_helper() -> bool {
    let in_path = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(HELPER).is_file()));
    in_path || ["/bin", "/usr/bin", "/sbin"].iter().any(|dir| Path::new(dir).join(HELPER).is_file())
}

/// Converts an error of mounting.
pub(crate) fn mount_error(mountpoint: &Path, source: io::Error) -> Error {
    let text = source.to_string();
    if text.contains("user_allow_other") {
        return Error::AllowOther;
    }
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::NXIO | Errno::NODEV) => Error::Device(source),
        _ => Error::Mount { mountpoint: mountpoint.into(), source },
    }
}

/// Sets the kernel's readahead for files of the mount. The protocol negotiates only an upper limit;
/// the kernel starts with 128 KiB, at which reading a long file takes twice as long. Only root may
/// change it: for other users, and where there is no sysfs, nothing changes.
pub(crate) fn read_ahead(mountpoint: &Path, len_bytes: u32) {
    let set = || -> io::Result<()> {
        let (major, minor) = device(mountpoint)?;
        let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(knob, (len_bytes >> 10).to_string())
    };
    if let Err(e) = set() {
        tracing::debug!("the kernel reads ahead as it likes: {e}");
    }
}

/// Returns the device number of the mount at a path. No file system is asked: a thread of this process
/// that waits for a mount of its own could not be killed.
fn device(path: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// Returns the number of the mount at a path, which no other mount ever has; `None` if that is
/// unknown. No file system is asked.
pub(crate) fn id(path: &Path) -> Option<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, UNIQUE_ID).ok()?;
    let is_known = StatxFlags::from_bits_retain(found.stx_mask).contains(UNIQUE_ID);
    is_known.then_some(found.stx_mnt_id)
}

/// Waits until the mount `id` at a path is no longer there, and neither is it elsewhere in this mount
/// namespace.
pub(crate) fn wait_until_detached(path: &Path, id: u64) -> io::Result<()> {
    let (major, minor) = device(path)?;
    let device = format!(" {major}:{minor} ");
    let mounts = fs::File::open(MOUNTS)?;
    loop {
        // The kernel announces each change; what came before this descriptor was opened is seen now.
        let is_there = self::id(path) == Some(id)
            || fs::read_to_string(MOUNTS)?.lines().any(|line| line.contains(&device));
        if !is_there {
            return Ok(());
        }
        let mut changed = [PollFd::new(&mounts, PollFlags::PRI)];
        match poll(&mut changed, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Unmounts if no file there is in use.
pub(crate) fn release(mountpoint: &Path) -> Result<()> {
    end(mountpoint, UnmountFlags::NOFOLLOW, &["-u", "--"])
}

/// Detaches the mount from the tree at once; it ends when the last open file is closed.
pub(crate) fn detach(mountpoint: &Path) -> Result<()> {
    end(mountpoint, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z", "--"])
}

fn end(mountpoint: &Path, flags: UnmountFlags, helper_arguments: &[&str]) -> Result<()> {
    match unmount(mountpoint, flags) {
        // Another process unmounted it.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(mountpoint.into())),
        Err(Errno::PERM) => by_helper(mountpoint, helper_arguments),
        Err(e) => Err(Error::Unmount { mountpoint: mountpoint.into(), source: e.into() }),
    }
}

fn by_helper(mountpoint: &Path, arguments: &[&str]) -> Result<()> {
    let failed = |source| Error::Unmount { mountpoint: mountpoint.into(), source };
    let output = match Command::new(HELPER).args(arguments).arg(mountpoint).output() {
        Ok(output) => output,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoFusermount),
        Err(e) => return Err(failed(e)),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(Error::Busy(mountpoint.into()));
    }
    if said.contains("not found in /etc/mtab") || said.contains("not mounted") {
        return Ok(());
    }
    Err(failed(io::Error::other(said)))
}
