//! Commands of `ioctl(2)`: flags of files, and other commands of the file system.
//!
//! The flags have two forms: that of `lsattr(1)` and `chattr(1)`, and a part of a `struct fsxattr`.
//! The kernel has checked the caller's permission before it sends the request.

use weft_vfs::{CommandAnswer, FileFlags, Handle, Ino, TrimRange};

use super::{Answered, Front, Refusal};
use crate::wire::{Body, Header, Reply, errno, ioctl_flags};

/// `FS_IOC_GETFLAGS` and related commands, from `linux/fs.h`. Regardless of the length in their
/// numbers, flags are transferred as 32 bits.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_FSXATTR: u32 = 0x801C_581F;
const SET_FSXATTR: u32 = 0x401C_5820;

/// `FITRIM`, with a `struct fstrim_range`: start, length, shortest extent.
const TRIM: u32 = 0xC018_5879;

/// Bytes of a `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;

/// Each flag with its bit (`FS_XFLAG_*`) in a `struct fsxattr`.
const XFLAGS: [(FileFlags, u32); 5] = [
    (FileFlags::IMMUTABLE, 0x8),
    (FileFlags::APPEND, 0x10),
    (FileFlags::SYNC, 0x20),
    (FileFlags::NOATIME, 0x40),
    (FileFlags::NODUMP, 0x80),
];

/// Returns a `struct fsxattr` with only these flags.
fn fsxattr(flags: FileFlags) -> Vec<u8> {
    let bits = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, bit)| bit);
    let mut bytes = bits.sum::<u32>().to_ne_bytes().to_vec();
    bytes.resize(FSXATTR_BYTES, 0);
    bytes
}

/// Returns the flags that a `struct fsxattr` gives a file with the flags `old`.
fn flags_of_fsxattr(mut body: Body<'_>, old: FileFlags) -> Result<FileFlags, Refusal> {
    let bits = body.u32()?;
    let others = body.bytes(FSXATTR_BYTES - 4)?;
    let known = XFLAGS.iter().map(|(_, bit)| bit).sum::<u32>();
    // Extent sizes and projects are for file systems that have them. The number of extents, the
    // second word there, is read-only.
    let [extent_size, _extents, project, cow_extent_size] =
        [0, 4, 8, 12].map(|at| others[at..at + 4].iter().any(|byte| *byte != 0));
    if bits & !known != 0 || extent_size || project || cow_extent_size {
        return Err(Refusal::Protocol(errno::EOPNOTSUPP));
    }
    let mut flags = old;
    for (flag, bit) in XFLAGS {
        flags.set(flag, bits & bit != 0);
    }
    Ok(flags)
}

impl Front {
    /// Executes a command whose number contains the length of its data: the kernel has copied the
    /// data here, and copies the answer back.
    pub(super) fn ioctl(
        &self,
        head: &Header,
        ino: Ino,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answered {
        let handle = Handle(body.u64()?);
        let (flags, request) = (body.u32()?, body.u32()?);
        body.skip(8)?;
        let (in_bytes, out_bytes) = (body.u32()?, body.u32()?);
        if flags & ioctl_flags::UNRESTRICTED != 0 {
            return Err(Refusal::Protocol(errno::ENOTTY));
        }
        let mut done = |data| {
            let answer = CommandAnswer { errno: 0, data };
            reply.commanded(&answer, out_bytes as usize);
            Ok(())
        };
        match request {
            GET_FLAGS => done(self.fs.file_flags(ino)?.bits().to_ne_bytes().to_vec()),
            GET_FSXATTR => done(fsxattr(self.fs.file_flags(ino)?)),
            SET_FLAGS => {
                self.set_flags(head, ino, handle, FileFlags::from_bits_retain(body.u32()?))?;
                done(Vec::new())
            }
            SET_FSXATTR => {
                let flags = flags_of_fsxattr(body, self.fs.file_flags(ino)?)?;
                self.set_flags(head, ino, handle, flags)?;
                done(Vec::new())
            }
            TRIM => {
                let range = TrimRange {
                    start: body.u64()?,
                    len_bytes: body.u64()?,
                    min_len_bytes: body.u64()?,
                };
                let trimmed = self.trim(head, &range)?;
                let words = [range.start, trimmed, range.min_len_bytes];
                done(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
            _ => {
                let data = body.bytes(in_bytes as usize)?;
                let answer =
                    self.fs.command(&Self::caller_by(head, handle), ino, handle, request, data)?;
                reply.commanded(&answer, out_bytes as usize);
                Ok(())
            }
        }
    }

    /// Discards free space, for root and the user who runs the mount.
    fn trim(&self, head: &Header, range: &TrimRange) -> Result<u64, Refusal> {
        if head.uid != 0 && head.uid != rustix::process::geteuid().as_raw() {
            return Err(Refusal::Protocol(errno::EPERM));
        }
        Ok(self.fs.trim(range)?)
    }

    /// Sets flags, for the owner and root; immutable and append-only, for root. Linux checks that
    /// itself since 5.13, and before that forwards the requests of any user.
    fn set_flags(&self, head: &Header, ino: Ino, handle: Handle, flags: FileFlags) -> Answered {
        if head.uid != 0 {
            let guarded = FileFlags::IMMUTABLE | FileFlags::APPEND;
            let guarded_change = (self.fs.file_flags(ino)? ^ flags).intersects(guarded);
            if guarded_change || head.uid != self.fs.getattr(ino)?.uid {
                return Err(Refusal::Protocol(errno::EPERM));
            }
        }
        self.fs.set_file_flags(&Self::caller_by(head, handle), ino, flags)?;
        // The kernel does not know the new change time.
        self.announce_attributes(head.node);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_through_fsxattr_and_back() {
        let others = FileFlags::from_bits_retain(0x1_0000);
        let flags = FileFlags::IMMUTABLE | FileFlags::NODUMP | FileFlags::NOATIME;
        let bytes = fsxattr(flags | others);
        assert_eq!(bytes.len(), FSXATTR_BYTES);
        let back = |bytes: &[u8], old| flags_of_fsxattr(Body::new(bytes), old).ok();
        assert_eq!(back(&bytes, others | FileFlags::SYNC), Some(flags | others));
        assert_eq!(back(&bytes[..27], others), None, "too short");
        for word in [4, 12, 16] {
            let mut bytes = bytes.clone();
            bytes[word] = 1;
            assert_eq!(back(&bytes, others), None, "word at {word}");
        }
        let mut bytes = bytes;
        bytes[8] = 1;
        assert_eq!(back(&bytes, others), Some(flags | others), "the number of extents");
        bytes[1] = 1;
        assert_eq!(back(&bytes, others), None, "an unknown flag");
    }
}
