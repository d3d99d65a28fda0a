//! Inodes: 128 bytes, or more with nanosecond times, a birth time and room for attributes.

use super::bytes::{get16, get32, put, put16, put32};
use bitflags::bitflags;
use weft_unix::{Error, Result};
use weft_vfs::{FileKind, Time};

/// The bad-blocks inode.
pub const BAD_INO: u32 = 1;
/// The root directory's inode.
pub const ROOT_INO: u32 = 2;
/// The inode that holds the blocks reserved for growing the descriptor table.
pub const RESIZE_INO: u32 = 7;
/// The journal's inode.
pub const JOURNAL_INO: u32 = 8;
/// The first inode that is not reserved, on revision 0 volumes (and usually on others).
pub const GOOD_OLD_FIRST_INO: u32 = 11;
/// The most names an inode may have: that of the kernel's ext4 driver, which mounts ext2 and ext3, too.
/// (The former drivers of these stopped at 32,000, and read such volumes.)
pub const LINK_MAX: u16 = 65_000;
/// Size of an inode on revision 0 volumes, and of the part all inodes share.
pub const GOOD_OLD_INODE_BYTES: usize = 128;
/// Block slots of an inode.
pub const BLOCK_SLOTS: usize = 15;
/// Slots that point at data directly.
pub const DIRECT_SLOTS: usize = 12;
/// The slot of the indirect block.
pub const SLOT_INDIRECT: usize = 12;
/// The slot of the double indirect block.
pub const SLOT_DOUBLE: usize = 13;
/// The slot of the triple indirect block.
pub const SLOT_TRIPLE: usize = 14;
/// The longest target that lies in the inode itself.
pub const FAST_SYMLINK_MAX_BYTES: usize = 59;
/// Extra bytes that Linux (and weft) uses of a larger inode.
pub const WANT_EXTRA_BYTES: u16 = 32;

bitflags! {
    /// `i_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (ignored).
        const SECRM = 0x1;
        /// Undelete (ignored).
        const UNRM = 0x2;
        /// Compressed (ignored).
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only be appended to.
        const APPEND = 0x20;
        /// Not dumped.
        const NODUMP = 0x40;
        /// Access times stay.
        const NOATIME = 0x80;
        /// Not to be compressed (ignored).
        const NOCOMP = 0x400;
        /// The directory carries a hash tree.
        const INDEX = 0x1000;
        /// Data is journaled.
        const JOURNAL_DATA = 0x4000;
        /// The end of the file is not merged with others (ignored).
        const NOTAIL = 0x8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy: spread children.
        const TOPDIR = 0x2_0000;
        /// Mapped by extents (not on ext2).
        const EXTENTS = 0x8_0000;
        /// The value of an attribute.
        const EA_INODE = 0x20_0000;
        /// Data lies in the inode (not on ext2).
        const INLINE_DATA = 0x1000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// The flags that `lsattr(1)` may show.
    pub const USER_VISIBLE: Self = Self::from_bits_retain(0x3_DFFF);
    /// The flags that `chattr(1)` may change.
    pub const USER_MODIFIABLE: Self = Self::from_bits_retain(0x3_80FF);

    /// Those of these flags that an inode of `kind` can have.
    #[must_use]
    pub fn of_kind(self, kind: FileKind) -> Self {
        match kind {
            FileKind::Directory => self,
            FileKind::Regular => self - (Self::DIRSYNC | Self::TOPDIR),
            _ => self & (Self::NODUMP | Self::NOATIME),
        }
    }
}

/// The flags that new inodes inherit from their directory (the rest is for directories only, or
/// belongs to one inode).
const INHERITED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOCOMP)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC);

/// An inode's fields. In memory times have their full range, sizes and owners their full width.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inode {
    /// 0x00: `S_IFMT` bits and permissions.
    pub mode: u16,
    /// 0x02 and 0x78.
    pub uid: u32,
    /// 0x18 and 0x7A.
    pub gid: u32,
    /// 0x04, and 0x6C for regular files.
    pub size_bytes: u64,
    /// 0x08 and 0x8C.
    pub atime: Time,
    /// 0x0C and 0x84.
    pub ctime: Time,
    /// 0x10 and 0x88.
    pub mtime: Time,
    /// 0x90 and 0x94, where the inode has them.
    pub btime: Option<Time>,
    /// 0x14: when it was deleted (seconds since 1970), or the next in the list of orphaned inodes.
    pub dtime: u32,
    /// 0x1A
    pub links: u16,
    /// 0x1C: space taken in units of 512 bytes, indirect and attribute blocks included.
    pub blocks_512: u32,
    /// 0x20
    pub flags: InodeFlags,
    /// 0x28: block numbers; device number or the target of a fast symbolic link.
    pub block: [u32; BLOCK_SLOTS],
    /// 0x64
    pub generation: u32,
    /// 0x68: the attribute block.
    pub file_acl: u32,
    /// 0x80: bytes used behind the first 128, this field included; 0 in 128-byte inodes.
    pub extra_bytes: u16,
}

fn decode_time(secs: u32, extra: u32) -> Time {
    // The 32 bits are signed; two bits of the extra word count 2^32 seconds on top.
    let secs = i64::from(secs.cast_signed()) + (i64::from(extra & 3) << 32);
    Time { secs, nanos: (extra >> 2).min(999_999_999) }
}

/// The two words of a time. Without room for the second one, times past 2038 are cut to what 32
/// signed bits hold.
fn encode_time(time: Time, has_extra: bool) -> (u32, u32) {
    let min = i64::from(i32::MIN);
    if has_extra {
        let secs = time.secs.clamp(min, i64::from(i32::MAX) + (3 << 32));
        #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
        let low = secs as i32;
        let epoch = ((secs - i64::from(low)) >> 32) as u32 & 3;
        (low.cast_unsigned(), (time.nanos.min(999_999_999) << 2) | epoch)
    } else {
        let secs = i32::try_from(time.secs.clamp(min, i64::from(i32::MAX))).unwrap_or(0);
        (secs.cast_unsigned(), 0)
    }
}

impl Inode {
    /// Reads an inode from its slot (`bytes` is the whole slot, 128 bytes or more).
    ///
    /// # Errors
    /// A sentence, if `i_extra_isize` is impossible or the slot is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() < GOOD_OLD_INODE_BYTES {
            return Err("slot too short");
        }
        let extra_bytes = if bytes.len() > GOOD_OLD_INODE_BYTES { get16(bytes, 0x80) } else { 0 };
        let room = bytes.len() - GOOD_OLD_INODE_BYTES;
        let mode = get16(bytes, 0);
        if mode != 0
            && room > 0
            && (usize::from(extra_bytes) > room || !extra_bytes.is_multiple_of(4))
        {
            return Err("i_extra_isize is invalid");
        }
        let end = GOOD_OLD_INODE_BYTES + usize::from(extra_bytes).min(room);
        let extra = |at: usize| if at + 4 <= end { get32(bytes, at) } else { 0 };
        let mut block = [0; BLOCK_SLOTS];
        for (i, slot) in block.iter_mut().enumerate() {
            *slot = get32(bytes, 0x28 + 4 * i);
        }
        let regular = mode & 0o170_000 == 0o100_000;
        let size_high = if regular { u64::from(get32(bytes, 0x6C)) } else { 0 };
        Ok(Self {
            mode,
            uid: u32::from(get16(bytes, 0x02)) | u32::from(get16(bytes, 0x78)) << 16,
            gid: u32::from(get16(bytes, 0x18)) | u32::from(get16(bytes, 0x7A)) << 16,
            size_bytes: u64::from(get32(bytes, 0x04)) | size_high << 32,
            atime: decode_time(get32(bytes, 0x08), extra(0x8C)),
            ctime: decode_time(get32(bytes, 0x0C), extra(0x84)),
            mtime: decode_time(get32(bytes, 0x10), extra(0x88)),
            btime: (end >= 0x98).then(|| decode_time(get32(bytes, 0x90), get32(bytes, 0x94))),
            dtime: get32(bytes, 0x14),
            links: get16(bytes, 0x1A),
            blocks_512: get32(bytes, 0x1C),
            flags: InodeFlags::from_bits_retain(get32(bytes, 0x20)),
            block,
            generation: get32(bytes, 0x64),
            file_acl: get32(bytes, 0x68),
            extra_bytes,
        })
    }

    /// Puts the fields over an inode's slot. Attributes behind `i_extra_isize` and fields this
    /// type does not know stay.
    pub fn encode_into(&self, bytes: &mut [u8]) {
        let extra_bytes = usize::from(self.extra_bytes);
        let end = GOOD_OLD_INODE_BYTES
            + extra_bytes.min(bytes.len().saturating_sub(GOOD_OLD_INODE_BYTES));
        let has = |at: usize| at + 4 <= end;
        put16(bytes, 0x00, self.mode);
        put16(bytes, 0x02, low16(self.uid));
        put16(bytes, 0x78, low16(self.uid >> 16));
        put16(bytes, 0x18, low16(self.gid));
        put16(bytes, 0x7A, low16(self.gid >> 16));
        put32(bytes, 0x04, low32(self.size_bytes));
        if self.kind() == Some(FileKind::Regular) {
            put32(bytes, 0x6C, low32(self.size_bytes >> 32));
        }
        for (time, at, at_extra) in
            [(self.atime, 0x08, 0x8C), (self.ctime, 0x0C, 0x84), (self.mtime, 0x10, 0x88)]
        {
            let (secs, extra) = encode_time(time, has(at_extra));
            put32(bytes, at, secs);
            if has(at_extra) {
                put32(bytes, at_extra, extra);
            }
        }
        if let Some(btime) = self.btime
            && has(0x94)
        {
            let (secs, extra) = encode_time(btime, true);
            put32(bytes, 0x90, secs);
            put32(bytes, 0x94, extra);
        }
        put32(bytes, 0x14, self.dtime);
        put16(bytes, 0x1A, self.links);
        put32(bytes, 0x1C, self.blocks_512);
        put32(bytes, 0x20, self.flags.bits());
        for (i, slot) in self.block.iter().enumerate() {
            put32(bytes, 0x28 + 4 * i, *slot);
        }
        put32(bytes, 0x64, self.generation);
        put32(bytes, 0x68, self.file_acl);
        if bytes.len() > GOOD_OLD_INODE_BYTES {
            put16(bytes, 0x80, self.extra_bytes);
        }
    }

    /// Bytes of a slot that the fields take, which a patch of them covers.
    #[must_use]
    pub fn fields_len_bytes(&self, slot_bytes: usize) -> usize {
        (GOOD_OLD_INODE_BYTES + usize::from(self.extra_bytes)).min(slot_bytes).min(0xA0)
    }

    /// The kind of file, if the mode names one.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(u32::from(self.mode))
    }

    /// Permission bits with setuid, setgid and sticky.
    #[must_use]
    pub fn perm(&self) -> u16 {
        self.mode & 0o7777
    }

    /// Reports whether a time of this inode can be later than 2038 and has nanoseconds.
    #[must_use]
    pub fn has_wide_times(&self) -> bool {
        self.extra_bytes >= 0x10
    }

    /// The time as this inode can hold it (what `stat` shows after it has been set).
    #[must_use]
    pub fn storable(&self, time: Time) -> Time {
        let wide = self.has_wide_times();
        let (secs, extra) = encode_time(time, wide);
        decode_time(secs, extra)
    }

    /// Reports whether the slots hold block numbers: not in devices, FIFOs, sockets, fast links.
    #[must_use]
    pub fn has_blocks(&self, block_bytes: u32) -> bool {
        match self.kind() {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => !self.is_fast_symlink(block_bytes),
            _ => false,
        }
    }

    /// Reports whether this is a symbolic link whose target lies in the inode.
    #[must_use]
    pub fn is_fast_symlink(&self, block_bytes: u32) -> bool {
        let acl_512 = if self.file_acl == 0 { 0 } else { block_bytes / 512 };
        self.kind() == Some(FileKind::Symlink) && self.blocks_512 == acl_512
    }

    /// The target of a fast symbolic link.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the size cannot be one.
    pub fn fast_symlink(&self, ino: u32, block: u64) -> Result<Vec<u8>> {
        let len = usize::try_from(self.size_bytes).unwrap_or(usize::MAX);
        if len == 0 || len > FAST_SYMLINK_MAX_BYTES {
            return Err(Error::corrupt(
                format!("inode {ino}"),
                block,
                format!("a symbolic link of {len} bytes in the inode"),
            ));
        }
        let mut target: Vec<u8> = self.block.iter().flat_map(|w| w.to_le_bytes()).collect();
        target.truncate(len);
        Ok(target)
    }

    /// Puts the target of a fast symbolic link (at most [`FAST_SYMLINK_MAX_BYTES`] bytes).
    pub fn set_fast_symlink(&mut self, target: &[u8]) {
        let mut bytes = [0_u8; 4 * BLOCK_SLOTS];
        put(&mut bytes, 0, target);
        for (i, slot) in self.block.iter_mut().enumerate() {
            *slot = get32(&bytes, 4 * i);
        }
        self.size_bytes = target.len() as u64;
    }

    /// The device number of a device node, as `makedev(3)` packs it in 32 bits.
    #[must_use]
    pub fn rdev(&self) -> u32 {
        match self.kind() {
            Some(FileKind::BlockDevice | FileKind::CharDevice) => {
                // The old encoding, 8 bits each, is the new one's low half.
                if self.block[0] == 0 { self.block[1] } else { self.block[0] & 0xFFFF }
            }
            _ => 0,
        }
    }

    /// Sets the device number: in the old place if it fits there, else in the new one.
    pub fn set_rdev(&mut self, rdev: u32) {
        self.block = [0; BLOCK_SLOTS];
        self.block[usize::from(rdev > 0xFFFF)] = rdev;
    }

    /// The flags a new inode of `kind` inherits from its directory.
    #[must_use]
    pub fn inherited_flags(&self, kind: FileKind) -> InodeFlags {
        (self.flags & INHERITED).of_kind(kind)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn low16(value: u32) -> u16 {
    value as u16
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn low32(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(extra: u16) -> Inode {
        Inode {
            mode: 0o100_644,
            uid: 0x12345,
            gid: 0xABCDE,
            size_bytes: 5 << 32 | 17,
            links: 3,
            blocks_512: 88,
            generation: 9,
            file_acl: 77,
            block: std::array::from_fn(|i| u32::try_from(i).unwrap() + 100),
            extra_bytes: extra,
            btime: (extra >= 0x18).then(Time::default),
            ..Inode::default()
        }
    }

    #[test]
    fn round_trip_in_both_sizes() {
        let small = sample(0);
        let mut slot = vec![0; 128];
        small.encode_into(&mut slot);
        assert_eq!(Inode::parse(&slot).unwrap(), small);
        let mut big = sample(32);
        big.mtime = Time { secs: 5_000_000_000, nanos: 123_456_789 };
        let mut slot = vec![0xEE; 256];
        big.encode_into(&mut slot);
        assert_eq!(Inode::parse(&slot).unwrap(), big);
        assert!(slot[160..].iter().all(|b| *b == 0xEE), "attributes stay");
    }

    #[test]
    fn times_beyond_2038() {
        // The table in the kernel's documentation of inode timestamps.
        for (secs, low, epoch) in [
            (-1_i64, 0xFFFF_FFFF_u32, 0_u32),
            (-0x8000_0000, 0x8000_0000, 0),
            (0, 0, 0),
            (0x7FFF_FFFF, 0x7FFF_FFFF, 0),
            (0x8000_0000, 0x8000_0000, 1),
            (0xFFFF_FFFF, 0xFFFF_FFFF, 1),
            (0x1_0000_0000, 0, 1),
            (0x3_7FFF_FFFF, 0x7FFF_FFFF, 3),
        ] {
            assert_eq!(encode_time(Time { secs, nanos: 0 }, true), (low, epoch), "{secs:#x}");
            assert_eq!(decode_time(low, epoch).secs, secs);
        }
        assert_eq!(encode_time(Time { secs: 1 << 40, nanos: 5 }, false), (0x7FFF_FFFF, 0));
    }

    #[test]
    fn device_numbers() {
        let mut inode = Inode { mode: 0o060_600, ..Inode::default() };
        for rdev in [0x0801, 0x10_0801, 0xFFFF, 0xFFF0_0001] {
            inode.set_rdev(rdev);
            assert_eq!(inode.rdev(), rdev);
        }
        inode.set_rdev(0x0801);
        assert_eq!(inode.block[0], 0x0801);
    }

    #[test]
    fn lying_extra_size_is_refused() {
        let mut slot = vec![0; 256];
        sample(32).encode_into(&mut slot);
        put16(&mut slot, 0x80, 200);
        assert!(Inode::parse(&slot).is_err());
        put16(&mut slot, 0x80, 33);
        assert!(Inode::parse(&slot).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(slot in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(inode) = Inode::parse(&slot) {
                let mut copy = slot.clone();
                inode.encode_into(&mut copy);
                let again = Inode::parse(&copy);
                prop_assert_eq!(again, Ok(inode));
            }
        }
    }
}
