//! Building replies.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use weft_vfs::{Attr, CommandAnswer, DirEntry, Entry, Opened, StatFs, Time};

use super::Opcode;

/// Bytes before the body of a reply (`fuse_out_header`).
pub(crate) const HEADER_BYTES: usize = 16;

/// Bits of `fuse_open_out::open_flags`.
mod open_flags {
    /// Bypasses the page cache: the length of the file need not be known.
    pub(super) const DIRECT_IO: u32 = 1 << 0;
    /// The content of the page cache stays valid.
    pub(super) const KEEP_CACHE: u32 = 1 << 1;
    /// No request is needed before the last descriptor is closed.
    pub(super) const NO_FLUSH: u32 = 1 << 5;
    /// The kernel uses the registered file whose number is in the reply.
    pub(super) const PASSTHROUGH: u32 = 1 << 7;
}

/// The times for which the kernel may trust names and attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetimes {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    /// For a name that does not exist.
    pub(crate) absent: Duration,
}

/// The memory in which a reply is built.
#[derive(Debug)]
enum Buffer<'b> {
    /// It grows as needed, and is reused for the next reply.
    Own(Vec<u8>),
    /// Memory that the kernel knows, as long as the longest reply.
    Lent(&'b mut [u8]),
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Lent(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Lent(bytes) => bytes,
        }
    }
}

/// One reply under construction.
#[derive(Debug)]
pub(crate) struct Reply<'b> {
    buf: Buffer<'b>,
    /// Bytes in use; the bytes after them are old.
    len: usize,
}

impl Default for Reply<'_> {
    fn default() -> Self {
        Self { buf: Buffer::Own(Vec::new()), len: 0 }
    }
}

impl<'b> Reply<'b> {
    /// Returns a reply that is built in `memory`: its header, then its body.
    pub(crate) fn within(memory: &'b mut [u8]) -> Self {
        Self { buf: Buffer::Lent(memory), len: 0 }
    }
}

impl Reply<'_> {
    /// Starts the reply to the request `unique`.
    pub(crate) fn begin(&mut self, unique: u64) {
        self.len = 0;
        self.put(&[0; 8]);
        self.u64(unique);
    }

    /// Turns the reply into an error reply with `errno` and no body.
    pub(crate) fn fail(&mut self, errno: i32) {
        self.len = HEADER_BYTES;
        self.buf[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    }

    /// Returns the errno of an error reply, or 0.
    pub(crate) fn errno(&self) -> i32 {
        match self.buf.get(4..8) {
            Some(bytes) if self.is_begun() => {
                -i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            _ => 0,
        }
    }

    /// Returns the finished reply.
    pub(crate) fn finish(&mut self) -> &[u8] {
        // A reply is at most some MiB.
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        self.buf[..4].copy_from_slice(&len.to_ne_bytes());
        &self.buf[..self.len]
    }

    /// Returns true if the reply has a header.
    pub(crate) fn is_begun(&self) -> bool {
        self.len >= HEADER_BYTES
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.len - HEADER_BYTES
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn u16(&mut self, n: u16) {
        self.put(&n.to_ne_bytes());
    }

    pub(crate) fn u32(&mut self, n: u32) {
        self.put(&n.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, n: u64) {
        self.put(&n.to_ne_bytes());
    }

    pub(crate) fn i64(&mut self, n: i64) {
        self.put(&n.to_ne_bytes());
    }

    pub(crate) fn zeroes(&mut self, len: usize) {
        self.space(len).fill(0);
        self.len += len;
    }

    /// Returns `len` bytes at the end to write into; [`took`](Self::took) sets the number of valid
    /// ones.
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        let end = self.len + len;
        if self.buf.len() < end {
            match &mut self.buf {
                Buffer::Own(bytes) => bytes.resize(end, 0),
                Buffer::Lent(bytes) => panic!("a reply of {end} bytes in room for {}", bytes.len()),
            }
        }
        &mut self.buf[self.len..end]
    }

    pub(crate) fn took(&mut self, len: usize) {
        self.len += len;
    }

    /// `fuse_attr`
    fn attr_body(&mut self, attr: &Attr) {
        self.u64(attr.ino.0);
        self.u64(attr.size_bytes);
        self.u64(attr.blocks_512);
        self.i64(attr.atime.secs);
        self.i64(attr.mtime.secs);
        self.i64(attr.ctime.secs);
        self.u32(attr.atime.nanos);
        self.u32(attr.mtime.nanos);
        self.u32(attr.ctime.nanos);
        self.u32(attr.kind.mode_bits() | u32::from(attr.perm));
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u32(attr.rdev);
        self.u32(attr.io_bytes);
        self.u32(0);
    }

    /// `fuse_attr_out`
    pub(crate) fn attr(&mut self, attr: &Attr, lifetimes: Lifetimes) {
        self.u64(lifetimes.attr.as_secs());
        self.u32(lifetimes.attr.subsec_nanos());
        self.u32(0);
        self.attr_body(attr);
    }

    /// `fuse_entry_out`
    pub(crate) fn entry(&mut self, node: u64, entry: &Entry, lifetimes: Lifetimes) {
        self.u64(node);
        self.u64(entry.generation);
        self.u64(lifetimes.entry.as_secs());
        self.u64(lifetimes.attr.as_secs());
        self.u32(lifetimes.entry.subsec_nanos());
        self.u32(lifetimes.attr.subsec_nanos());
        self.attr_body(&entry.attr);
    }

    /// `fuse_entry_out` of a name that does not exist, which the kernel may remember.
    pub(crate) fn no_entry(&mut self, lifetime: Duration) {
        self.zeroes(16);
        self.u64(lifetime.as_secs());
        self.u64(0);
        self.u32(lifetime.subsec_nanos());
        self.zeroes(4 + 88);
    }

    /// `fuse_open_out`, alone or after an entry; with the number of the file that the kernel uses
    /// for passthrough. The file system receives each closing if it may have work there: written
    /// data, or locks.
    pub(crate) fn opened(&mut self, opened: &Opened, may_lose: bool, passthrough: Option<u32>) {
        let mut bits = 0;
        if passthrough.is_some() {
            // With `DIRECT_IO` the kernel would send the requests here.
            bits |= open_flags::PASSTHROUGH;
        } else {
            if opened.direct_io {
                bits |= open_flags::DIRECT_IO;
            }
            if opened.keep_cache {
                bits |= open_flags::KEEP_CACHE;
            }
        }
        if !may_lose {
            bits |= open_flags::NO_FLUSH;
        }
        self.u64(opened.handle.0);
        self.u32(bits);
        self.u32(passthrough.unwrap_or(0));
    }

    /// Returns node (0 if the reply is not about a new one) and handle of the reply that
    /// [`opened`](Self::opened) built; `None` for an error.
    pub(crate) fn opened_node(&self) -> Option<(u64, u64)> {
        let body = self.buf.get(HEADER_BYTES..self.len)?;
        let word = |at: usize| {
            let bytes = body.get(at..at + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        match body.len() {
            OPENED_BYTES => Some((0, word(0)?)),
            len if len == ENTRY_BYTES + OPENED_BYTES => Some((word(0)?, word(ENTRY_BYTES)?)),
            _ => None,
        }
    }

    /// Calls `each` with each node to which the kernel takes a reference by this reply to a request of
    /// this kind; not for files that are opened as well ([`opened_node`](Self::opened_node)).
    pub(crate) fn for_each_reference(&self, opcode: Opcode, mut each: impl FnMut(u64)) {
        let Some(mut body) = self.buf.get(HEADER_BYTES..self.len) else { return };
        let node = |body: &[u8]| body.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let name_bytes = |body: &[u8]| {
            let bytes = body.get(ENTRY_BYTES + 16..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*bytes) as usize)
        };
        match opcode {
            Opcode::Lookup | Opcode::MkNod | Opcode::MkDir | Opcode::Symlink | Opcode::Link
                if body.len() == ENTRY_BYTES =>
            {
                node(body).filter(|node| *node != 0).into_iter().for_each(each);
            }
            Opcode::ReadDirPlus => {
                while let (Some(node), Some(name_bytes)) = (node(body), name_bytes(body)) {
                    if node != 0 {
                        each(node);
                    }
                    let len = (DIRENT_BYTES + name_bytes).next_multiple_of(8);
                    body = body.get(ENTRY_BYTES + len..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    /// `fuse_write_out`
    pub(crate) fn written(&mut self, len_bytes: u32) {
        self.u32(len_bytes);
        self.u32(0);
    }

    /// `fuse_ioctl_out` of a command with data of a fixed length, at most `room_bytes`
    pub(crate) fn commanded(&mut self, answer: &CommandAnswer, room_bytes: usize) {
        self.u32((-answer.errno).cast_unsigned());
        self.zeroes(12);
        self.put(&answer.data[..answer.data.len().min(room_bytes)]);
    }

    /// `fuse_statfs_out`
    pub(crate) fn statfs(&mut self, st: &StatFs) {
        for n in [st.blocks, st.blocks_free, st.blocks_available, st.inodes, st.inodes_free] {
            self.u64(n);
        }
        for n in [st.block_bytes, st.name_max_bytes, st.block_bytes, 0] {
            self.u32(n);
        }
        self.zeroes(24);
    }

    /// `fuse_statx_out`
    pub(crate) fn statx(&mut self, attr: &Attr, lifetimes: Lifetimes) {
        /// `STATX_BASIC_STATS` and `STATX_BTIME`.
        const BASIC: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        self.u64(lifetimes.attr.as_secs());
        self.u32(lifetimes.attr.subsec_nanos());
        self.u32(0);
        self.zeroes(16);
        self.u32(if attr.btime.is_some() { BASIC | BTIME } else { BASIC });
        self.u32(attr.io_bytes);
        self.u64(0);
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u16((attr.kind.mode_bits() | u32::from(attr.perm)) as u16);
        self.u16(0);
        self.u64(attr.ino.0);
        self.u64(attr.size_bytes);
        self.u64(attr.blocks_512);
        self.u64(0);
        for time in [attr.atime, attr.btime.unwrap_or_default(), attr.ctime, attr.mtime] {
            self.statx_time(time);
        }
        self.u32((attr.rdev >> 8) & 0xfff);
        self.u32((attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
        self.zeroes(8 + 14 * 8);
    }

    fn statx_time(&mut self, time: Time) {
        self.i64(time.secs);
        self.u32(time.nanos);
        self.u32(0);
    }
}

/// The space for a directory listing in one reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listing {
    /// The size of the kernel's buffer in bytes.
    pub(crate) room_bytes: usize,
}

/// `fuse_dirent` has this many bytes before its name.
const DIRENT_BYTES: usize = 24;
/// `fuse_entry_out`
const ENTRY_BYTES: usize = 128;
/// `fuse_open_out`
const OPENED_BYTES: usize = 16;

/// Appends a name; returns false if it does not fit.
pub(crate) fn put_listed(reply: &mut Reply, listing: Listing, dirent: &DirEntry<'_>) -> bool {
    let bytes = (DIRENT_BYTES + dirent.name.len()).next_multiple_of(8);
    if reply.body_bytes() + bytes > listing.room_bytes {
        return false;
    }
    reply.u64(dirent.ino.0);
    reply.u64(dirent.next.0);
    // A name has at most 255 bytes.
    reply.u32(dirent.name.len() as u32);
    reply.u32(dirent.kind.mode_bits() >> 12);
    reply.put(dirent.name);
    reply.zeroes(bytes - DIRENT_BYTES - dirent.name.len());
    true
}

/// Appends a name with its node; returns false if it does not fit. `node` 0: the kernel takes no
/// reference.
pub(crate) fn put_listed_plus(
    reply: &mut Reply,
    listing: Listing,
    dirent: &DirEntry<'_>,
    node: u64,
    entry: &Entry,
    lifetimes: Lifetimes,
) -> bool {
    let fits = fits_with_entry(reply, listing, dirent);
    if fits {
        reply.entry(node, entry, lifetimes);
        put_listed(reply, listing, dirent);
    }
    fits
}

/// Appends a name in the format of [`put_listed_plus`], but without node and attributes; returns
/// false if it does not fit.
pub(crate) fn put_name_plus(reply: &mut Reply, listing: Listing, dirent: &DirEntry<'_>) -> bool {
    let fits = fits_with_entry(reply, listing, dirent);
    if fits {
        reply.zeroes(ENTRY_BYTES);
        put_listed(reply, listing, dirent);
    }
    fits
}

fn fits_with_entry(reply: &Reply, listing: Listing, dirent: &DirEntry<'_>) -> bool {
    let bytes = ENTRY_BYTES + (DIRENT_BYTES + dirent.name.len()).next_multiple_of(8);
    reply.body_bytes() + bytes <= listing.room_bytes
}

#[cfg(test)]
mod tests {
    use weft_vfs::{DirCursor, FileKind, FileSystem, Handle, Ino, MemFs};

    use super::*;

    fn attr() -> Attr {
        let fs = MemFs::new();
        fs.getattr(fs.root()).expect("root")
    }

    const LIFETIMES: Lifetimes = Lifetimes {
        entry: Duration::from_millis(1500),
        attr: Duration::from_secs(9),
        absent: Duration::ZERO,
    };

    #[test]
    fn opened_replies_roundtrip() {
        let opened = Opened { handle: Handle(77), keep_cache: true, direct_io: false };
        let mut reply = Reply::default();
        reply.begin(1);
        reply.opened(&opened, false, None);
        assert_eq!(reply.opened_node(), Some((0, 77)));
        assert_eq!(reply.finish()[24..28], 0x22_u32.to_ne_bytes());
        reply.begin(1);
        reply.entry(5, &Entry { attr: attr(), generation: 3 }, LIFETIMES);
        reply.opened(&Opened { direct_io: true, ..opened }, true, None);
        assert_eq!(reply.opened_node(), Some((5, 77)));
        reply.fail(5);
        assert_eq!(reply.opened_node(), None);
        reply.begin(1);
        reply.opened(&opened, true, Some(9));
        assert_eq!(reply.finish()[24..32], [0x80_u32.to_ne_bytes(), 9_u32.to_ne_bytes()].concat());
    }

    /// The sizes are those of the kernel's structures.
    #[test]
    fn bodies_have_the_size_of_the_structures() {
        let entry = Entry { attr: attr(), generation: 3 };
        let size = |put: &dyn Fn(&mut Reply)| {
            let mut reply = Reply::default();
            reply.begin(1);
            put(&mut reply);
            reply.body_bytes()
        };
        assert_eq!(size(&|r| r.attr(&attr(), LIFETIMES)), 104);
        assert_eq!(size(&|r| r.entry(5, &entry, LIFETIMES)), ENTRY_BYTES);
        assert_eq!(size(&|r| r.no_entry(LIFETIMES.entry)), ENTRY_BYTES);
        let answer = CommandAnswer { errno: 0, data: vec![0; 100] };
        assert_eq!(size(&|r| r.commanded(&answer, 64)), 16 + 64);
        assert_eq!(size(&|r| r.statfs(&StatFs::default())), 80);
        assert_eq!(size(&|r| r.statx(&attr(), LIFETIMES)), 288);
    }

    #[test]
    fn references_are_those_of_the_entries() {
        let references = |opcode, put: &dyn Fn(&mut Reply)| {
            let mut reply = Reply::default();
            reply.begin(1);
            put(&mut reply);
            let mut nodes = Vec::new();
            reply.for_each_reference(opcode, |node| nodes.push(node));
            nodes
        };
        let entry = Entry { attr: attr(), generation: 3 };
        assert_eq!(references(Opcode::Lookup, &|r| r.entry(5, &entry, LIFETIMES)), [5]);
        assert_eq!(references(Opcode::Lookup, &|r| r.no_entry(LIFETIMES.entry)), []);
        assert_eq!(references(Opcode::Lookup, &|r| r.fail(2)), []);
        assert_eq!(references(Opcode::GetAttr, &|r| r.attr(&attr(), LIFETIMES)), []);
        let list = |reply: &mut Reply| {
            let listing = Listing { room_bytes: 4096 };
            let dirent =
                |name| DirEntry { ino: Ino(4), kind: FileKind::Regular, name, next: DirCursor(77) };
            for (node, name) in [(0, &b".."[..]), (7, b"12345678"), (8, b"a")] {
                assert!(put_listed_plus(reply, listing, &dirent(name), node, &entry, LIFETIMES));
            }
            assert!(put_name_plus(reply, listing, &dirent(b"without")));
            assert!(put_listed_plus(reply, listing, &dirent(b"z"), 9, &entry, LIFETIMES));
        };
        assert_eq!(references(Opcode::ReadDirPlus, &list), [7, 8, 9]);
    }

    #[test]
    fn header_says_length_and_error() {
        let mut reply = Reply::default();
        reply.begin(0x1122);
        reply.put(b"body");
        let bytes = reply.finish();
        assert_eq!(bytes[..4], 20_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [0; 4]);
        assert_eq!(bytes[8..16], 0x1122_u64.to_ne_bytes());
        reply.fail(2);
        assert_eq!(reply.finish()[..8], [16_u32.to_ne_bytes(), (-2_i32).to_ne_bytes()].concat());
        // The buffer is reused: no old bytes appear.
        reply.begin(5);
        assert_eq!(reply.finish()[4..8], [0; 4]);
    }

    #[test]
    fn listing_stops_where_the_room_ends() {
        let mut reply = Reply::default();
        reply.begin(1);
        let dirent =
            |name| DirEntry { ino: Ino(4), kind: FileKind::Directory, name, next: DirCursor(77) };
        let listing = Listing { room_bytes: 64 };
        assert!(put_listed(&mut reply, listing, &dirent(b"12345678")));
        assert!(put_listed(&mut reply, listing, &dirent(b"a")));
        assert!(!put_listed(&mut reply, listing, &dirent(b"b")));
        assert_eq!(reply.body_bytes(), 64);
        let body = &reply.finish()[16..];
        assert_eq!(body[8..16], 77_u64.to_ne_bytes());
        assert_eq!(body[20..24], 4_u32.to_ne_bytes());
    }
}
