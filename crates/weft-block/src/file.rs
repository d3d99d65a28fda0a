//! An image file or a block special file as a device.
//!
//! Invariants:
//! - Every transfer is complete or fails: short ones are continued, interrupted ones repeated.
//! - A device opened for writing holds an exclusive `flock(2)`, one opened for reading, or for a part
//!   of it, a shared one, and a lock of its range, on a descriptor that is not inherited, so the lock
//!   ends with the process whatever ends it. A block special is opened with `O_EXCL` for writing as
//!   well, which the kernel refuses while it is mounted or part of another device. Each takes the locks
//!   of QEMU's users of images, too ([`image_locks`](crate::image_locks)). A file that the kernel uses
//!   behind a loop device or
//!   as swap is not opened for writing ([`kernel_use`](crate::kernel_use)).
//! - Nothing is read or written past the length seen at opening (or given to [`FileDevice::grow`]).

use crate::change::vectored_len;
use crate::image_locks;
use crate::range_lock;
use crate::{BlockDevice, Error, Extent, ExtentKind, Geometry, Result, SECTOR_BYTES, check_range};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The most buffers that one `pwritev(2)` takes (`IOV_MAX` on Linux).
const IOV_MAX: usize = 1024;

/// The attempts to lock a device, and the pause between two: a process that was killed, or a mount
/// that was just unmounted, releases its lock in a moment; so does
/// udev, which probes a block special.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// `TMPFS_MAGIC` in `include/uapi/linux/magic.h`
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The access with which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenMode {
    /// Whether writes are refused. A read-only device can be opened by many at once.
    pub read_only: bool,
    /// Whether the lock is taken. Off only for reading a volume that another process has locked,
    /// where torn and stale reads are accepted.
    pub lock: bool,
}

impl OpenMode {
    /// For reading, with a shared lock.
    pub const READ_ONLY: Self = Self { read_only: true, lock: true };
    /// For reading and writing, with an exclusive lock.
    pub const READ_WRITE: Self = Self { read_only: false, lock: true };
    /// For reading, whoever may be writing at the same time.
    pub const PEEK: Self = Self { read_only: true, lock: false };
}

/// An image file or a block special file.
#[derive(Debug)]
pub struct FileDevice {
    fd: OwnedFd,
    path: PathBuf,
    block_special: bool,
    read_only: bool,
    logical_block_bytes: u32,
    physical_block_bytes: u32,
    len_bytes: AtomicU64,
    /// The length changed since the last flush: the size must reach the disk too.
    grown: AtomicBool,
    /// The file system below has refused to punch holes or zero ranges; it is not asked again.
    no_punch: AtomicBool,
    no_zero_range: AtomicBool,
    /// The file is in tmpfs: it cannot be read with `RWF_NOWAIT`, but reading it waits for no medium.
    in_memory: bool,
}

impl FileDevice {
    /// Opens an image file or a block special file.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Locked`], [`Error::InUse`], and [`Error::Invalid`] if `path` is
    /// neither.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        Self::open_with(path.as_ref(), mode, None)
    }

    /// As [`open`](Self::open), by a caller that uses only these bytes of it: the lock is of them, so
    /// that others may use the rest. (Where the file system has no locks of ranges, and of a block
    /// special, it is of all.)
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_part(path: impl AsRef<Path>, mode: OpenMode, part: Range<u64>) -> Result<Self> {
        Self::open_with(path.as_ref(), mode, Some(&part))
    }

    fn open_with(path: &Path, mode: OpenMode, part: Option<&Range<u64>>) -> Result<Self> {
        let open_error = |e: Errno| Error::Open { path: path.to_owned(), source: e.into() };
        // O_NONBLOCK: opening a FIFO by mistake must not hang.
        let access = if mode.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let kind = FileType::from_raw_mode(rustix::fs::stat(path).map_err(open_error)?.st_mode);
        let exclusive = kind == FileType::BlockDevice && mode.lock && !mode.read_only;
        let flags = if exclusive { flags | OFlags::EXCL } else { flags };
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::BUSY) => return Err(locked(path)),
            other => other.map_err(open_error)?,
        };
        Self::from_fd(fd, path, mode, part)
    }

    /// Makes a sparse image file of `len_bytes`, which must not exist yet, and opens it for
    /// writing.
    ///
    /// # Errors
    /// [`Error::Open`], with `AlreadyExists` if there is such a file.
    pub fn create(path: impl AsRef<Path>, len_bytes: u64) -> Result<Self> {
        Self::create_with_mode(path.as_ref(), len_bytes, 0o666)
    }

    /// As [`create`](Self::create), but only its owner may read and write the file: for copies of
    /// data that others may not read.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub fn create_private(path: impl AsRef<Path>, len_bytes: u64) -> Result<Self> {
        Self::create_with_mode(path.as_ref(), len_bytes, 0o600)
    }

    fn create_with_mode(path: &Path, len_bytes: u64, mode: u32) -> Result<Self> {
        let open_error = |e: Errno| Error::Open { path: path.to_owned(), source: e.into() };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(mode)).map_err(open_error)?;
        let made = rustix::fs::ftruncate(&fd, len_bytes)
            .map_err(open_error)
            .and_then(|()| Self::from_fd(fd, path, OpenMode::READ_WRITE, None));
        if made.is_err() {
            // It was made here a moment ago, and nothing is in it.
            let _ = rustix::fs::unlink(path);
        }
        let device = made?;
        device.grown.store(true, Ordering::Relaxed);
        Ok(device)
    }

    fn from_fd(
        fd: OwnedFd,
        path: &Path,
        mode: OpenMode,
        part: Option<&Range<u64>>,
    ) -> Result<Self> {
        let open_error = |e: Errno| Error::Open { path: path.to_owned(), source: e.into() };
        let stat = rustix::fs::fstat(&fd).map_err(open_error)?;
        let block_special = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            FileType::Directory => return Err(open_error(Errno::ISDIR)),
            _ => {
                let what = "neither an image file nor a block special file";
                return Err(Error::Invalid(format!("{} is {what}", path.display())));
            }
        };
        if mode.lock {
            lock(&fd, path, mode.read_only, part)?;
            image_locks::take(&fd, path, !mode.read_only, part.is_some())?;
            if !mode.read_only {
                crate::kernel_use::check(path, &stat)?;
                if block_special {
                    crate::kernel_use::check_backing(path, &stat)?;
                }
            }
        }
        // A block special's st_size is 0; its end can be sought on both kinds.
        let len_bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(open_error)?;
        let (logical_block_bytes, physical_block_bytes) = if block_special {
            let logical = rustix::fs::ioctl_blksszget(&fd).unwrap_or(SECTOR_BYTES as u32);
            let physical = rustix::fs::ioctl_blkpbszget(&fd).unwrap_or(logical);
            (logical, physical.max(logical))
        } else {
            (SECTOR_BYTES as u32, 4096)
        };
        let in_memory = !block_special
            && rustix::fs::fstatfs(&fd).is_ok_and(|found| found.f_type as u64 == TMPFS_MAGIC);
        Ok(Self {
            fd,
            in_memory,
            path: path.to_owned(),
            block_special,
            read_only: mode.read_only,
            logical_block_bytes,
            physical_block_bytes,
            len_bytes: AtomicU64::new(len_bytes),
            grown: AtomicBool::new(false),
            no_punch: AtomicBool::new(false),
            no_zero_range: AtomicBool::new(false),
        })
    }

    /// Returns the path by which the device was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true for a block special file, and false for an image file.
    #[must_use]
    pub fn is_block_special(&self) -> bool {
        self.block_special
    }

    /// Makes an image file longer; the new part reads as zeroes. A shorter length changes nothing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Invalid`] for a block special; [`Error::Io`].
    pub fn grow(&self, len_bytes: u64) -> Result<()> {
        self.check_writable()?;
        if self.block_special {
            let path = self.path.display();
            return Err(Error::Invalid(format!("{path} is a block special file: it cannot grow")));
        }
        let old = self.len_bytes.load(Ordering::Acquire);
        if len_bytes > old {
            rustix::fs::ftruncate(&self.fd, len_bytes)
                .map_err(|e| Error::io("grow", old, len_bytes - old, e.into()))?;
            self.grown.store(true, Ordering::Release);
            self.len_bytes.fetch_max(len_bytes, Ordering::AcqRel);
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn check(&self, op: &'static str, offset: u64, len_bytes: u64) -> Result<()> {
        check_range(op, offset, len_bytes, self.len_bytes.load(Ordering::Acquire))
    }

    /// Calls `fallocate(2)`. `Ok(false)`: this file cannot, and will not be asked again.
    fn fallocate(
        &self,
        op: &'static str,
        flags: FallocateFlags,
        refused: &AtomicBool,
        offset: u64,
        len_bytes: u64,
    ) -> Result<bool> {
        if refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match retry(|| rustix::fs::fallocate(&self.fd, flags, offset, len_bytes)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                refused.store(true, Ordering::Relaxed);
                Ok(false)
            }
            // A block special refuses ranges that are not multiples of its blocks: this one only.
            Err(Errno::INVAL) => Ok(false),
            Err(e) => Err(Error::io(op, offset, len_bytes, e.into())),
        }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes.load(Ordering::Acquire),
            logical_block_bytes: self.logical_block_bytes,
            physical_block_bytes: self.physical_block_bytes,
            read_only: self.read_only,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len_bytes = buf.len() as u64;
        self.check("read", offset, len_bytes)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let n = retry(|| rustix::io::pread(&self.fd, &mut buf[done..], at))
                .map_err(|e| Error::io("read", offset, len_bytes, e.into()))?;
            if n == 0 {
                // Somebody cut the file while it was open.
                let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(Error::io("read", offset, len_bytes, eof));
            }
            done += n;
        }
        Ok(())
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        if self.in_memory {
            return self.read_at(buf, offset).map(|()| true);
        }
        let len_bytes = buf.len() as u64;
        self.check("read", offset, len_bytes)?;
        let mut done = 0;
        while done < buf.len() {
            let mut rest = [io::IoSliceMut::new(&mut buf[done..])];
            let (at, nowait) = (offset + done as u64, ReadWriteFlags::NOWAIT);
            match rustix::io::preadv2(&self.fd, &mut rest, at, nowait) {
                Ok(0) => return Ok(false),
                Ok(n) => done += n,
                // Not in the page cache, or the file system cannot tell; whatever else is wrong
                // is met again by a read that waits.
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let len_bytes = buf.len() as u64;
        self.check_writable()?;
        self.check("write", offset, len_bytes)?;
        self.check_whole()?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let n = retry(|| rustix::io::pwrite(&self.fd, &buf[done..], at))
                .map_err(|e| Error::io("write", offset, len_bytes, e.into()))?;
            if n == 0 {
                let zero = io::Error::from(io::ErrorKind::WriteZero);
                return Err(Error::io("write", offset, len_bytes, zero));
            }
            done += n;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len_bytes = vectored_len(bufs);
        self.check_writable()?;
        self.check("write", offset, len_bytes)?;
        self.check_whole()?;
        let mut at = offset;
        let mut left: Vec<IoSlice<'_>> =
            bufs.iter().filter(|b| !b.is_empty()).map(|b| IoSlice::new(b)).collect();
        let mut left = left.as_mut_slice();
        while !left.is_empty() {
            let some = &left[..left.len().min(IOV_MAX)];
            let n = retry(|| rustix::io::pwritev(&self.fd, some, at))
                .map_err(|e| Error::io("write", offset, len_bytes, e.into()))?;
            if n == 0 {
                let zero = io::Error::from(io::ErrorKind::WriteZero);
                return Err(Error::io("write", offset, len_bytes, zero));
            }
            at += n as u64;
            IoSlice::advance_slices(&mut left, n);
        }
        Ok(())
    }

    fn check_whole(&self) -> Result<()> {
        if self.block_special {
            return Ok(());
        }
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let stat = retry(|| rustix::fs::fstat(&self.fd))
            .map_err(|e| Error::io("look", 0, len_bytes, e.into()))?;
        let now = u64::try_from(stat.st_size).unwrap_or(0);
        if now < len_bytes {
            let cut = format!("{} was cut to {now} bytes by another program", self.path.display());
            return Err(Error::io("flush", 0, len_bytes, io::Error::other(cut)));
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.check_whole()?;
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let grown = self.grown.swap(false, Ordering::AcqRel);
        let result = if grown {
            retry(|| rustix::fs::fsync(&self.fd))
        } else {
            retry(|| rustix::fs::fdatasync(&self.fd))
        };
        result.map_err(|e| {
            self.grown.fetch_or(grown, Ordering::AcqRel);
            Error::io("flush", 0, len_bytes, e.into())
        })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check("discard", offset, len_bytes)?;
        if len_bytes > 0 {
            // On a block special the kernel turns this into an unmap that reads as zeroes.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            self.fallocate("discard", flags, &self.no_punch, offset, len_bytes)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.check_writable()?;
        self.check("write zeroes", offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let op = "write zeroes";
        // A hole first: zeroes are not worth space on the disk.
        if self.fallocate(op, punch, &self.no_punch, offset, len_bytes)?
            || self.fallocate(op, zero, &self.no_zero_range, offset, len_bytes)?
        {
            return Ok(());
        }
        let zeroes = vec![0_u8; 1 << 20];
        let mut at = offset;
        let end = offset + len_bytes;
        while at < end {
            let n = usize::try_from(end - at).unwrap_or(usize::MAX).min(zeroes.len());
            self.write_at(&zeroes[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }

    fn extent_at(&self, offset: u64, len_bytes: u64) -> Result<Extent> {
        self.check("look", offset, len_bytes)?;
        let all = |kind| Extent { len_bytes, kind };
        if self.block_special || len_bytes == 0 {
            return Ok(all(ExtentKind::Data));
        }
        let up_to = |end: u64, kind| Extent { len_bytes: (end - offset).min(len_bytes), kind };
        // Moves the descriptor's offset, which nothing here uses.
        let seek = |from| retry(|| rustix::fs::seek(&self.fd, from));
        match seek(SeekFrom::Data(offset)) {
            Ok(data) if data > offset => Ok(up_to(data, ExtentKind::Hole)),
            // No data from here to the end.
            Err(Errno::NXIO) => Ok(all(ExtentKind::Hole)),
            Ok(_) => match seek(SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => Ok(up_to(hole, ExtentKind::Data)),
                _ => Ok(all(ExtentKind::Data)),
            },
            // This file system cannot say.
            Err(_) => Ok(all(ExtentKind::Data)),
        }
    }

    fn zeroes_are_fast(&self) -> bool {
        let may = |refused: &AtomicBool| !refused.load(Ordering::Relaxed);
        !self.block_special && (may(&self.no_punch) || may(&self.no_zero_range))
    }
}

/// Locks a file, or a part of it. A writer of all has it alone by flock(2); all others share that, and
/// have ranges.
fn lock(fd: impl AsFd, path: &Path, read_only: bool, part: Option<&Range<u64>>) -> Result<()> {
    let fd = fd.as_fd();
    let all = |how| retry(|| rustix::fs::flock(fd, how));
    if !read_only && part.is_none() {
        let alone = attempt(|| all(FlockOperation::NonBlockingLockExclusive));
        return alone.map_err(|e| refused(e, path));
    }
    attempt(|| all(FlockOperation::NonBlockingLockShared)).map_err(|e| refused(e, path))?;
    let range = part.unwrap_or(&(0..u64::MAX));
    match attempt(|| range_lock::lock(fd, range, !read_only)) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) if read_only => Err(locked(path)),
        // The file system has no such locks.
        Err(_) if read_only => Ok(()),
        // Or makes flock(2) of them.
        Err(_) => {
            attempt(|| all(FlockOperation::NonBlockingLockExclusive)).map_err(|e| refused(e, path))
        }
    }
}

fn refused(e: Errno, path: &Path) -> Error {
    match e {
        Errno::WOULDBLOCK => locked(path),
        e => Error::Open { path: path.to_owned(), source: e.into() },
    }
}

/// Tries to take a lock for a moment.
fn attempt(take: impl Fn() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 0..LOCK_TRIES {
        match take() {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
    take()
}

/// The error of a file that is locked: by this process, or by another.
fn locked(path: &Path) -> Error {
    let path = path.to_owned();
    if is_locked_here(&path) { Error::LockedHere { path } } else { Error::Locked { path } }
}

/// Returns true if this process has locked a file: the kernel lists the locks of each open file.
fn is_locked_here(path: &Path) -> bool {
    let Ok(wanted) = rustix::fs::stat(path) else { return false };
    let same = |fd: &str| {
        let found = rustix::fs::stat(format!("/proc/self/fd/{fd}"));
        found.is_ok_and(|found| (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino))
    };
    // Block special files are locked by the way in which they are opened.
    let is_device = FileType::from_raw_mode(wanted.st_mode) == FileType::BlockDevice;
    // A child of `fork` has its parent's open files, and the locks name who took them.
    let this = std::process::id().to_string();
    let is_locked = |fd: &str| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let mut locks = info.lines().filter(|line| line.contains("FLOCK"));
        is_device || locks.any(|line| line.split_whitespace().any(|word| word == this))
    };
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut names = open.filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|fd| same(&fd) && is_locked(&fd))
}

/// Repeats a system call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_get_a_clear_error_and_the_lock_ends_with_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        let first = FileDevice::create(&path, 1 << 20).unwrap();
        for mode in [OpenMode::READ_WRITE, OpenMode::READ_ONLY] {
            let second = FileDevice::open(&path, mode);
            let refused = second.expect_err("it is locked");
            assert!(matches!(refused, Error::LockedHere { .. }), "{refused}");
            assert!(refused.to_string().ends_with("use that, or close it first"), "{refused}");
        }
        assert!(FileDevice::open(&path, OpenMode::PEEK).is_ok());
        drop(first);
        let a = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
        let _b = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
        assert!(FileDevice::open(&path, OpenMode::READ_WRITE).is_err());
        assert!(matches!(a.write_at(&[0; 512], 0), Err(Error::ReadOnly)));
    }

    #[test]
    fn parts_that_do_not_overlap_have_writers_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        drop(FileDevice::create(&path, 1 << 20).unwrap());
        let part = |mode, range| FileDevice::open_part(&path, mode, range);
        let (one, two) = (0..4096, 4096..1 << 20);
        let first = part(OpenMode::READ_WRITE, one.clone()).unwrap();
        let second = part(OpenMode::READ_WRITE, two.clone()).unwrap();
        for mode in [OpenMode::READ_WRITE, OpenMode::READ_ONLY] {
            let refused = part(mode, 4000..5000).expect_err("it overlaps");
            assert!(matches!(refused, Error::LockedHere { .. }), "{refused}");
            assert!(FileDevice::open(&path, mode).is_err(), "all of it");
        }
        drop(first);
        let reader = part(OpenMode::READ_ONLY, one.clone()).unwrap();
        assert!(part(OpenMode::READ_ONLY, one.clone()).is_ok());
        assert!(part(OpenMode::READ_WRITE, one.clone()).is_err());
        drop((reader, second));
        let whole = FileDevice::open(&path, OpenMode::READ_ONLY).unwrap();
        assert!(part(OpenMode::READ_ONLY, two.clone()).is_ok());
        assert!(part(OpenMode::READ_WRITE, two.clone()).is_err(), "all of it is read");
        drop(whole);
        let whole = FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
        assert!(part(OpenMode::READ_ONLY, two).is_err());
        drop(whole);
    }

    #[test]
    fn create_does_not_overwrite_and_odd_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        std::fs::write(&path, b"precious").unwrap();
        let again = FileDevice::create(&path, 4096);
        assert!(matches!(again, Err(Error::Open { .. })), "{again:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(FileDevice::open(dir.path(), OpenMode::READ_ONLY).is_err());
        let null = FileDevice::open("/dev/null", OpenMode::READ_ONLY);
        assert!(matches!(null, Err(Error::Invalid(_))), "{null:?}");
    }

    #[test]
    fn vectored_writes_longer_than_iov_max_arrive_whole() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("v.img"), 1 << 20).unwrap();
        let parts: Vec<Vec<u8>> = (0..3000_u32).map(|i| vec![i as u8; (i % 7) as usize]).collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
        device.write_vectored_at(&slices, 100).unwrap();
        let want = parts.concat();
        let mut got = vec![0; want.len()];
        device.read_at(&mut got, 100).unwrap();
        assert_eq!(got, want);
    }

    #[test]
    fn holes_are_punched_and_growth_reads_as_zeroes() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("v.img"), 8192).unwrap();
        device.write_at(&[7; 8192], 0).unwrap();
        device.write_zeroes(1000, 5000).unwrap();
        device.grow(10_000).unwrap();
        device.flush().unwrap();
        let mut got = vec![1; 10_000];
        device.read_at(&mut got, 0).unwrap();
        assert!(got[..1000].iter().all(|&b| b == 7) && got[6000..8192].iter().all(|&b| b == 7));
        assert!(got[1000..6000].iter().chain(&got[8192..]).all(|&b| b == 0));
        assert!(matches!(device.read_at(&mut got, 1), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn extents_tell_holes_from_data_and_end_where_they_are_asked_to() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("v.img"), 4 << 20).unwrap();
        device.write_at(&[7; 65536], 1 << 20).unwrap();
        device.flush().unwrap();
        let mut at = 0;
        let mut data = 0;
        while at < 4 << 20 {
            let extent = device.extent_at(at, (4 << 20) - at).unwrap();
            assert!(extent.len_bytes > 0);
            if extent.kind == ExtentKind::Data {
                data += extent.len_bytes;
            } else {
                let mut bytes = vec![1; extent.len_bytes as usize];
                device.read_at(&mut bytes, at).unwrap();
                assert!(bytes.iter().all(|b| *b == 0));
            }
            at += extent.len_bytes;
        }
        assert!((65536..=4 << 20).contains(&data), "{data}");
        assert_eq!(device.extent_at((1 << 20) + 100, 10).unwrap().len_bytes, 10);
        assert_eq!(device.extent_at(4 << 20, 0).unwrap().len_bytes, 0);
        assert!(device.extent_at((4 << 20) - 1, 2).is_err());
    }
}
