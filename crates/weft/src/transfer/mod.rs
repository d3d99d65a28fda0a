//! Moves trees of files between the host, a volume and tar streams.
//!
//! A *source* ([`VolumeSource`], [`HostSource`], [`TarSource`]) walks its tree and hands each file,
//! as an [`Item`], to a [`Sink`] ([`VolumeSink`], [`HostSink`], [`TarSink`]), so that any source
//! works with any sink. Paths are relative to the top that was given, without a leading slash; the
//! top itself is the empty path. A directory comes before its content.

mod ahead;
mod basilisk;
pub mod fit;
mod host_sink;
mod host_source;
pub mod mac;
mod mac_names;
mod made;
mod past_names;
mod pax;
mod sparse;
mod tar_members;
mod tar_sink;
mod tar_source;
mod volume_sink;
mod volume_source;

pub use ahead::ReadAhead;
pub use host_sink::HostSink;
pub use host_source::HostSource;
pub use past_names::PastNames;
pub use tar_sink::TarSink;
pub use tar_source::TarSource;
pub use volume_sink::{Ownership, VolumeSink};
pub use volume_source::VolumeSource;

use crate::Result;
use std::ops::Range;
use weft_vfs::{FileKind, Time};

/// One file in transfer.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Relative path: components joined by `/`, none of them empty, `.` or `..`.
    pub path: &'a [u8],
    /// Its type.
    pub kind: ItemKind<'a>,
    /// Low 12 bits of the mode.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, if the source knows it.
    pub atime: Option<Time>,
    /// Last change.
    pub mtime: Time,
    /// Extended attributes with their prefixes.
    pub xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// The type of a file, with the data of that type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind<'a> {
    /// A regular file of this many bytes.
    File {
        /// Length in bytes.
        len_bytes: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// Another name of an earlier item, given by its relative path.
    HardLink(&'a [u8]),
    /// A device node, FIFO or socket.
    Special {
        /// Its type.
        kind: FileKind,
        /// Device number, as `makedev(3)` packs it.
        rdev: u32,
    },
}

/// The content of a regular file, read from its beginning to its end.
pub trait Content {
    /// Fills `buf` with the next run of data and returns its offset in the file and its length in
    /// bytes; `None` at the end. The bytes between two runs are a hole.
    ///
    /// # Errors
    /// Those of the source.
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>>;

    /// Returns the extents outside of which there are only holes, in order, if the source knows
    /// them before the content is read; else `None`.
    ///
    /// # Errors
    /// Those of the source.
    fn extents(&mut self) -> Result<Option<Vec<Range<u64>>>> {
        Ok(None)
    }
}

/// A destination of items.
pub trait Sink {
    /// Takes one item. `content` is the content of a regular file.
    ///
    /// # Errors
    /// Those of the destination, and of the content's source.
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()>;

    /// Ends the transfer: sets times of directories, writes the end of a stream.
    ///
    /// # Errors
    /// Those of the destination.
    fn finish(&mut self) -> Result<()>;
}

/// The empty content, for items without one.
#[derive(Debug)]
pub struct NoContent;

impl Content for NoContent {
    fn next_run(&mut self, _: &mut [u8]) -> Result<Option<(u64, usize)>> {
        Ok(None)
    }
}

/// Counts of the items moved so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Device nodes, FIFOs and sockets.
    pub specials: u64,
    /// Bytes of the regular files, holes included.
    pub bytes: u64,
}

impl Tally {
    /// Counts `item`.
    pub fn count(&mut self, item: &Item<'_>) {
        match item.kind {
            ItemKind::File { len_bytes } => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(len_bytes);
            }
            ItemKind::Directory => self.directories += 1,
            ItemKind::Symlink(_) => self.symlinks += 1,
            ItemKind::HardLink(_) => self.hard_links += 1,
            ItemKind::Special { .. } => self.specials += 1,
        }
    }

    /// The number of all names.
    #[must_use]
    pub fn names(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.specials
    }
}

/// A sink that counts items, passes them to another sink, and calls `each` after every item.
pub struct Counted<'a> {
    sink: &'a mut dyn Sink,
    tally: Tally,
    each: &'a mut dyn FnMut(&Tally),
}

impl std::fmt::Debug for Counted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl<'a> Counted<'a> {
    /// Counts the items that go to `sink`.
    pub fn new(sink: &'a mut dyn Sink, each: &'a mut dyn FnMut(&Tally)) -> Self {
        Self { sink, tally: Tally::default(), each }
    }

    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

impl Sink for Counted<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        self.sink.put(item, content)?;
        self.tally.count(item);
        (self.each)(&self.tally);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.sink.finish()
    }
}

/// The size in bytes of one run of content.
const RUN_BYTES: usize = 1 << 20;

/// `path` without its last component, and that component.
fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// `parent/name`, or `name` under the top.
fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(parent.len() + 1 + name.len());
    path.extend_from_slice(parent);
    if !parent.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The path of an item below `shown`, the path of its top in messages.
fn below(shown: &[u8], path: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        shown.to_vec()
    } else {
        join(shown.strip_suffix(b"/").unwrap_or(shown), path)
    }
}
