//! Moves trees of files between the host, a volume and tar streams.
//!
//! A *source* ([`VolumeSource`], [`HostSource`], [`TarSource`]) walks its tree and hands each file,
//! as an [`Item`], to a [`Sink`] ([`VolumeSink`], [`HostSink`], [`TarSink`]), so that any source
//! works with any sink. Paths are relative to the top that was given, without a leading slash; the
//! top itself is the empty path. A directory comes before its content.

mod acls;
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
mod tar_attributes;
mod tar_members;
mod tar_sink;
mod tar_source;
mod volume_make;
mod volume_places;
mod volume_sink;
mod volume_source;
mod volume_whiteouts;

pub use ahead::ReadAhead;
pub use host_sink::HostSink;
pub use host_source::HostSource;
pub use past_names::PastNames;
pub use tar_sink::TarSink;
pub use tar_source::TarSource;
pub use volume_sink::{Ownership, VolumeSink};
pub use volume_source::VolumeSource;

use crate::{Error, Result};
use std::ops::Range;
use weft_vfs::{FileKind, Time};

/// Extended attributes: names with their prefixes, and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

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

    /// Takes note of an item that the source cannot read, or not to its end. A sink that goes on without
    /// it returns `Ok`.
    ///
    /// # Errors
    /// `e`, by default.
    fn unreadable(&mut self, path: &[u8], e: Error) -> Result<()> {
        let _ = path;
        Err(e)
    }

    /// Ends the transfer: sets lists, modes and times of directories, writes the end of a stream.
    ///
    /// # Errors
    /// Those of the destination.
    fn finish(&mut self) -> Result<()>;

    /// Ends a transfer that failed, in place of [`finish`](Self::finish): what is complete gets what
    /// it lacks, and a stream gets no end.
    fn abandon(&mut self) {}
}

/// Ends a transfer to `sink`, which was `sent`.
fn end(sent: Result<()>, sink: &mut dyn Sink) -> Result<()> {
    match sent {
        Ok(()) => sink.finish(),
        Err(e) => {
            sink.abandon();
            Err(e)
        }
    }
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

    /// Adds the counts of another transfer.
    pub fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.symlinks += other.symlinks;
        self.hard_links += other.hard_links;
        self.specials += other.specials;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// The number of all names.
    #[must_use]
    pub fn names(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.specials
    }
}

/// Where a transfer is: what [`Counted`] reports before each item, and after each piece of a file.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The counts of the items that are complete.
    pub done: Tally,
    /// The path of the item in transfer.
    pub path: &'a [u8],
    /// How much of its content has passed, holes included, in bytes.
    pub at_bytes: u64,
    /// The length of its content, as far as the source knows it.
    pub len_bytes: u64,
}

type Watch<'a> = &'a mut dyn FnMut(&Moment<'_>) -> Result<()>;

/// A sink that counts items, passes them to another sink, and calls `each` after every item.
pub struct Counted<'a> {
    sink: &'a mut dyn Sink,
    tally: Tally,
    each: &'a mut dyn FnMut(&Tally),
    watch: Option<Watch<'a>>,
}

impl std::fmt::Debug for Counted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl<'a> Counted<'a> {
    /// Counts the items that go to `sink`.
    pub fn new(sink: &'a mut dyn Sink, each: &'a mut dyn FnMut(&Tally)) -> Self {
        Self { sink, tally: Tally::default(), each, watch: None }
    }

    /// Calls `watch` before each item, after each piece of its content and at the content's end. An
    /// error of it ends the transfer as an error of the source does: the item is not complete.
    #[must_use]
    pub fn watched(mut self, watch: &'a mut dyn FnMut(&Moment<'_>) -> Result<()>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

impl Sink for Counted<'_> {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> Result<()> {
        if let Some(watch) = &mut self.watch {
            let len_bytes = match item.kind {
                ItemKind::File { len_bytes } => len_bytes,
                _ => 0,
            };
            let moment = Moment { done: self.tally, path: item.path, at_bytes: 0, len_bytes };
            watch(&moment)?;
            self.sink.put(item, &mut Watched { content, watch: &mut **watch, moment })?;
        } else {
            self.sink.put(item, content)?;
        }
        self.tally.count(item);
        (self.each)(&self.tally);
        Ok(())
    }

    fn unreadable(&mut self, path: &[u8], e: Error) -> Result<()> {
        self.sink.unreadable(path, e)
    }

    fn finish(&mut self) -> Result<()> {
        self.sink.finish()
    }

    fn abandon(&mut self) {
        self.sink.abandon();
    }
}

/// Content that is reported as it passes.
struct Watched<'a, 'w> {
    content: &'a mut dyn Content,
    watch: &'w mut dyn FnMut(&Moment<'_>) -> Result<()>,
    moment: Moment<'a>,
}

impl Content for Watched<'_, '_> {
    fn next_run(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let run = self.content.next_run(buf)?;
        if let Some((at, len)) = run {
            self.moment.at_bytes = at + len as u64;
        }
        (self.watch)(&self.moment)?;
        Ok(run)
    }

    fn extents(&mut self) -> Result<Option<Vec<Range<u64>>>> {
        self.content.extents()
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
