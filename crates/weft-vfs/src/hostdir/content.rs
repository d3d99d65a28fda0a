//! Bytes of files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate, ftruncate, seek};
use rustix::io::{Errno, pread, pwrite};

use super::HostDir;
use super::attributes::stat;
use super::descriptors::Descriptor;
use super::errno::os;
use super::inodes::Inode;
use crate::mutex::locked;
use crate::{Error, FallocateMode, FileKind, Handle, Ino, Result, SeekFrom, keeps_access_times};

/// The longest file length that a system call accepts.
const FILE_MAX_BYTES: u64 = i64::MAX.cast_unsigned();

/// The content of a file.
pub(super) enum Content {
    /// The descriptor of an open handle, or of one call.
    Opened(Arc<OwnedFd>),
    /// The descriptor of the inode.
    Own(Arc<Descriptor>),
}

impl AsFd for Content {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Opened(fd) => fd.as_fd(),
            Self::Own(descriptor) => descriptor.as_fd(),
        }
    }
}

impl HostDir {
    /// Returns the descriptor for the content of a file: that of the handle, or else the inode's.
    fn content(&self, ino: Ino, handle: Handle, write: bool) -> Result<Content> {
        let inode = self.inode(ino)?;
        let opened = locked(&self.handles).get(handle).cloned();
        match opened {
            Some(opened) if opened.inode.ino == ino => Ok(Content::Opened(opened.file)),
            // Only the owner may ask the host for that.
            _ if !write && inode.kind == FileKind::Regular && keeps_access_times() => {
                match self.open_inode(&inode, OFlags::RDONLY | OFlags::NOATIME) {
                    Ok(file) => Ok(Content::Opened(Arc::new(file))),
                    Err(_) => self.own_content(&inode, write).map(Content::Own),
                }
            }
            _ => self.own_content(&inode, write).map(Content::Own),
        }
    }

    /// Opens the content of an inode for reading and (if `write`) writing, without a handle.
    pub(super) fn own_content(&self, inode: &Inode, write: bool) -> Result<Arc<Descriptor>> {
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsADirectory),
            _ => return Err(Error::Invalid("not a regular file")),
        }
        if let Some(content) = inode.content(write) {
            return Ok(content);
        }
        let (file, writable) = match self.open_inode(inode, OFlags::RDWR) {
            Ok(file) => (file, true),
            // A file that may only be read, or a running program.
            Err(_) if !write => (self.open_inode(inode, OFlags::RDONLY)?, false),
            Err(e) => return Err(e),
        };
        let content = self.descriptors.keep(file);
        inode.set_content(&content, writable);
        Ok(content)
    }

    pub(super) fn read_content(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let file = self.content(ino, handle, false)?;
        let mut done = 0;
        while done < buf.len() {
            let Some(at) = offset.checked_add(done as u64).filter(|at| i64::try_from(*at).is_ok())
            else {
                break;
            };
            match pread(&file, &mut buf[done..], at) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(Errno::INTR) => {}
                // The bytes transferred before the error are returned; the next call returns the
                // error.
                Err(e) if done == 0 => return Err(os(e)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Returns true if Linux ignores the offsets of writes by this handle.
    pub(super) fn appends(&self, handle: Handle) -> bool {
        locked(&self.handles).get(handle).is_some_and(|opened| opened.appends)
    }

    pub(super) fn write_content(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let file = self.content(ino, handle, true)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset.saturating_add(done as u64);
            // The host refuses a range that reaches past this limit as a whole.
            let room = usize::try_from(FILE_MAX_BYTES.saturating_sub(at)).unwrap_or(usize::MAX);
            if room == 0 {
                return if done > 0 { Ok(done) } else { Err(Error::TooLarge) };
            }
            let piece = &data[done..done + room.min(data.len() - done)];
            // On an append handle, Linux ignores the offset.
            match pwrite(&file, piece, at) {
                Ok(0) => break,
                Ok(put) => done += put,
                Err(Errno::INTR) => {}
                Err(e) if done == 0 => return Err(os(e)),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    pub(super) fn allocate(
        &self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let file = self.content(ino, Handle::NONE, true)?;
        if len_bytes == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = offset.checked_add(len_bytes).filter(|end| i64::try_from(*end).is_ok());
        end.ok_or(Error::TooLarge)?;
        let keep = |keep| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = match mode {
            FallocateMode::Allocate { keep_size } => keep(keep_size),
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep(true),
            FallocateMode::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        };
        match (fallocate(&file, flags, offset, len_bytes), mode) {
            // Some file systems (tmpfs) punch holes and zero nothing: the range reads the same.
            (Err(Errno::OPNOTSUPP), FallocateMode::ZeroRange { keep_size }) => {
                let flags = FallocateFlags::PUNCH_HOLE | keep(true);
                fallocate(&file, flags, offset, len_bytes).map_err(os)?;
                let end = offset + len_bytes;
                if !keep_size && end > stat(&file)?.stx_size {
                    ftruncate(&file, end).map_err(os)?;
                }
                Ok(())
            }
            (result, _) => result.map_err(os),
        }
    }

    /// Copies within the host, which may share blocks; `None` if it cannot.
    pub(super) fn copy_on_host(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<Option<u64>> {
        let source = self.content(from, Handle::NONE, false)?;
        let target = self.content(to, Handle::NONE, true)?;
        let (mut at, mut to_at) = (from_offset, to_offset);
        let mut done = 0;
        while done < len_bytes {
            let want = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(1 << 30);
            match copy_file_range(&source, Some(&mut at), &target, Some(&mut to_at), want) {
                Ok(0) => break,
                Ok(put) => done += put as u64,
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if done == 0 => {
                    return Ok(None);
                }
                Err(e) if done == 0 => return Err(os(e)),
                Err(_) => break,
            }
        }
        Ok(Some(done))
    }

    pub(super) fn seek_content(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let file = self.content(ino, Handle::NONE, false)?;
        let (SeekFrom::Data(at) | SeekFrom::Hole(at)) = from;
        if i64::try_from(at).is_err() {
            return Err(Error::NoAddress);
        }
        // No other call uses the file position that this moves.
        let from = match from {
            SeekFrom::Data(at) => rustix::fs::SeekFrom::Data(at),
            SeekFrom::Hole(at) => rustix::fs::SeekFrom::Hole(at),
        };
        seek(&file, from).map_err(os)
    }
}
