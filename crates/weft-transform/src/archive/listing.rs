//! A compact listing of an archive's members.
//!
//! An item takes 64 bytes, its name (or link target) its own length in one byte array shared by
//! all, and its entry in its directory 4 bytes. While the archive is read a hash table finds items
//! by directory and name, in 8 bytes for each on average; then each directory is sorted by name,
//! and the table is dropped. All of it is bounded by [`LISTING_MAX_BYTES`].

use std::hash::{BuildHasher, RandomState};

use weft_vfs::{FileKind, Time};

use super::corrupt;
use crate::{Error, Result};

/// Maximum memory of a listing, in bytes: some ten million files.
pub(super) const LISTING_MAX_BYTES: usize = 1 << 30;
/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 128;
/// The owner of an item whose owner the archive does not name: that of the archive.
pub(crate) const OF_ARCHIVE: u32 = u32::MAX;
/// The time of an item whose time the archive does not name: that of the archive.
pub(crate) const TIME_OF_ARCHIVE: i64 = i64::MIN;
/// The parent of an item that is no longer in a directory.
const NOWHERE: u32 = u32::MAX;

/// A member of an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    pub(crate) kind: FileKind,
    name_len: u8,
    pub(crate) perm: u16,
    parent: u32,
    name_at: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The children of a directory: the index of the first in `Listing.order`, and their number.
    first: u32,
    count: u32,
    pub(super) mtime_secs: i64,
    pub(crate) len_bytes: u64,
    pub(super) data: Data,
}

/// The location of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    None,
    /// Stored unencoded, from this byte of the archive on.
    Plain(u64),
    /// The zip entry of this number.
    Packed(u32),
    /// The sparse file of this number in a tar archive.
    Sparse(u32),
    /// The target of a symbolic link: its offset in the names, and its length in bytes.
    Target(u32, u32),
    /// Not readable, for the given reason.
    Unknown(Unknown),
}

/// The reason why a file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    LinkToNothing,
    SparseMap,
    CutShort,
    Encrypted,
}

impl Unknown {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::LinkToNothing => "a link to nothing",
            Self::SparseMap => "a sparse file whose map makes no sense",
            Self::CutShort => "the archive ends within this file",
            Self::Encrypted => "an encrypted file of a zip archive",
        }
    }
}

impl Item {
    pub(super) fn new(kind: FileKind, perm: u16) -> Self {
        Self {
            kind,
            name_len: 0,
            perm,
            parent: 0,
            name_at: 0,
            uid: OF_ARCHIVE,
            gid: OF_ARCHIVE,
            first: 0,
            count: 0,
            mtime_secs: 0,
            len_bytes: 0,
            data: Data::None,
        }
    }

    fn directory() -> Self {
        Self { mtime_secs: TIME_OF_ARCHIVE, ..Self::new(FileKind::Directory, 0o755) }
    }

    /// Returns the time of modification; `None` for that of the archive.
    pub(crate) fn mtime(&self) -> Option<Time> {
        (self.mtime_secs != TIME_OF_ARCHIVE).then_some(Time { secs: self.mtime_secs, nanos: 0 })
    }

    /// The number of its directory.
    pub(crate) fn parent(&self) -> usize {
        self.parent as usize
    }
}

/// The members of an archive: the first is its root.
#[derive(Debug)]
pub(super) struct Listing {
    items: Vec<Item>,
    /// The names of items and the targets of links.
    names: Vec<u8>,
    /// Once the listing is complete: the items of each directory, sorted by name.
    order: Vec<u32>,
    table: Table,
    max_bytes: usize,
}

/// A hash table of item numbers by directory and name. The hash is randomized, so that an attacker
/// cannot provoke collisions. The root is in no directory, and 0 marks an empty slot.
#[derive(Debug, Default)]
struct Table {
    slots: Vec<u32>,
    used: usize,
    hasher: RandomState,
}

impl Table {
    /// Returns the slots in which an item may be, in probing order.
    fn way(&self, parent: u32, name: &[u8]) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len().wrapping_sub(1);
        // The lower bits of the hash suffice.
        let start = self.hasher.hash_one((parent, name)) as usize;
        (0..self.slots.len()).map(move |step| start.wrapping_add(step) & mask)
    }
}

/// Returns the components of a name; `None` if it contains `..`, an invalid component, or too many
/// components.
fn parts(name: &[u8]) -> Option<impl DoubleEndedIterator<Item = &[u8]>> {
    let parts = || name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    let fits = |part: &[u8]| part != b".." && part.len() <= 255 && !part.contains(&0);
    (parts().take(DEPTH_MAX + 1).count() <= DEPTH_MAX && parts().all(fits)).then(parts)
}

impl Listing {
    pub(super) fn new() -> Self {
        Self::bounded(LISTING_MAX_BYTES)
    }

    fn bounded(max_bytes: usize) -> Self {
        let (names, order, table) = (Vec::new(), Vec::new(), Table::default());
        Self { items: vec![Item::directory()], names, order, table, max_bytes }
    }

    pub(super) fn item(&self, nr: usize) -> Option<&Item> {
        self.items.get(nr)
    }

    fn bytes(&self, at: u32, len: u32) -> &[u8] {
        let (at, len) = (at as usize, len as usize);
        self.names.get(at..at + len).unwrap_or_default()
    }

    fn name(&self, nr: u32) -> &[u8] {
        let item = self.items.get(nr as usize);
        item.map(|item| self.bytes(item.name_at, item.name_len.into())).unwrap_or_default()
    }

    /// Returns the target of a symbolic link.
    pub(super) fn target(&self, nr: usize) -> &[u8] {
        match self.item(nr).map(|item| item.data) {
            Some(Data::Target(at, len)) => self.bytes(at, len),
            _ => &[],
        }
    }

    /// Returns the items of a directory in name order, once the listing is complete.
    fn order_of(&self, nr: usize) -> &[u32] {
        let range =
            self.item(nr).map(|item| item.first as usize..(item.first + item.count) as usize);
        range.and_then(|range| self.order.get(range)).unwrap_or_default()
    }

    /// Returns the items of a directory with their names, in name order, without the first `skip`,
    /// once the listing is complete.
    pub(super) fn children(&self, nr: usize, skip: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let listed = self.order_of(nr).get(skip..).unwrap_or_default();
        listed.iter().map(|nr| (*nr as usize, self.name(*nr)))
    }

    /// Returns the item `name` of a directory, once the listing is complete.
    pub(super) fn child(&self, nr: usize, name: &[u8]) -> Option<usize> {
        let order = self.order_of(nr);
        let found = order.binary_search_by(|child| self.name(*child).cmp(name)).ok()?;
        Some(order[found] as usize)
    }

    /// Returns the item `name` of a directory, while the listing is being built.
    fn listed(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let nrs = self.table.way(parent, name).map(|slot| self.table.slots[slot]);
        nrs.take_while(|nr| *nr != 0).find(|nr| self.is_called(*nr, parent, name))
    }

    fn is_called(&self, nr: u32, parent: u32, name: &[u8]) -> bool {
        self.items[nr as usize].parent == parent && self.name(nr) == name
    }

    /// Returns the item with a full path, while the listing is being built.
    pub(super) fn find(&self, name: &[u8]) -> Option<&Item> {
        let nr = parts(name)?.try_fold(0, |at, part| self.listed(at, part))?;
        self.item(nr as usize)
    }

    /// Adds an item under a path, creating missing parent directories. A later item of the same
    /// name replaces an earlier one.
    pub(super) fn add(&mut self, name: &[u8], mut item: Item) -> Result<()> {
        let Some(mut way) = parts(name) else { return Ok(()) };
        let Some(last) = way.next_back() else {
            // The root itself.
            if item.kind == FileKind::Directory {
                self.items[0] = item;
            }
            return Ok(());
        };
        let mut at = 0;
        for part in way {
            at = match self.listed(at, part) {
                Some(there) if self.items[there as usize].kind == FileKind::Directory => there,
                _ => self.push(at, part, Item::directory())?,
            };
        }
        match self.listed(at, last) {
            Some(there) if self.items[there as usize].kind == item.kind => {
                let before = &mut self.items[there as usize];
                (item.parent, item.name_at, item.name_len) =
                    (before.parent, before.name_at, before.name_len);
                *before = item;
            }
            _ => drop(self.push(at, last, item)?),
        }
        Ok(())
    }

    /// Stores bytes of an item among the names, and returns their offset.
    fn keep(&mut self, bytes: &[u8]) -> Result<u32> {
        let held = self.items.len() * (size_of::<Item>() + 4)
            + self.table.slots.len() * 4
            + self.names.len()
            + bytes.len();
        // Items have 32-bit numbers, and the bytes of names 32-bit offsets.
        if held > self.max_bytes {
            let max_bytes = self.max_bytes;
            let what = format!("an archive whose list takes more than {max_bytes} bytes");
            return Err(Error::Limit { stage: "tree", offset: 0, what });
        }
        let at = u32::try_from(self.names.len()).map_err(|_| corrupt(0, "too many names"))?;
        self.names.extend_from_slice(bytes);
        Ok(at)
    }

    /// Stores the target of a symbolic link, and returns it as an item's data.
    pub(super) fn add_target(&mut self, target: &[u8]) -> Result<Data> {
        let at = self.keep(target)?;
        Ok(Data::Target(at, u32::try_from(target.len()).unwrap_or(0)))
    }

    fn push(&mut self, parent: u32, name: &[u8], mut item: Item) -> Result<u32> {
        if self.table.used >= self.table.slots.len() / 4 * 3 {
            self.grow();
        }
        item.name_at = self.keep(name)?;
        // The length was checked when the name was split.
        item.name_len = u8::try_from(name.len()).unwrap_or(u8::MAX);
        item.parent = parent;
        let nr = u32::try_from(self.items.len()).map_err(|_| corrupt(0, "too many files"))?;
        self.items.push(item);
        for slot in self.table.way(parent, name) {
            let there = self.table.slots[slot];
            if there == 0 {
                self.table.used += 1;
            } else if self.is_called(there, parent, name) {
                self.items[there as usize].parent = NOWHERE;
            } else {
                continue;
            }
            self.table.slots[slot] = nr;
            break;
        }
        Ok(nr)
    }

    fn grow(&mut self) {
        let slots = (self.table.slots.len() * 2).max(16);
        let before = std::mem::replace(&mut self.table.slots, vec![0; slots]);
        for nr in before.into_iter().filter(|nr| *nr != 0) {
            let way = self.table.way(self.items[nr as usize].parent, self.name(nr));
            if let Some(free) = way.into_iter().find(|slot| self.table.slots[*slot] == 0) {
                self.table.slots[free] = nr;
            }
        }
    }

    /// Completes the listing: sorts the directories.
    pub(super) fn finish(mut self) -> Self {
        self.table = Table::default();
        self.items.shrink_to_fit();
        self.names.shrink_to_fit();
        for nr in 1..self.items.len() {
            let parent = self.items[nr].parent as usize;
            if let Some(directory) = self.items.get_mut(parent) {
                directory.count += 1;
            }
        }
        let mut first = 0;
        for item in &mut self.items {
            item.first = first;
            first += std::mem::take(&mut item.count);
        }
        let mut order = vec![0; first as usize];
        for nr in 1..self.items.len() {
            let parent = self.items[nr].parent as usize;
            if let Some(directory) = self.items.get_mut(parent) {
                // The number fits: items have 32-bit numbers.
                order[(directory.first + directory.count) as usize] = nr as u32;
                directory.count += 1;
            }
        }
        for directory in self.items.iter().filter(|item| item.count > 1) {
            let (first, count) = (directory.first as usize, directory.count as usize);
            // The items are mostly sorted already.
            order[first..first + count].sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        }
        self.order = order;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len_bytes: u64) -> Item {
        Item { len_bytes, ..Item::new(FileKind::Regular, 0o644) }
    }

    fn names(listing: &Listing, nr: usize) -> Vec<String> {
        let names = listing.children(nr, 0).map(|(_, name)| String::from_utf8_lossy(name).into());
        names.collect()
    }

    #[test]
    fn an_item_takes_as_much_as_the_documents_say() {
        assert_eq!(size_of::<Item>(), 64);
    }

    #[test]
    fn later_items_take_the_place_of_earlier_ones() -> Result<()> {
        let mut listing = Listing::new();
        listing.add(b"d/x", file(1))?;
        listing.add(b"./d//b", file(2))?;
        listing.add(b"d", Item::new(FileKind::Directory, 0o700))?;
        listing.add(b"d/x", file(3))?;
        listing.add(b"d/../out", file(4))?;
        listing.add(b"f", file(5))?;
        assert_eq!(listing.find(b"/d/./x").map(|item| item.len_bytes), Some(3));
        // A file replaces a directory, and a directory replaces that file.
        listing.add(b"e/gone", file(6))?;
        listing.add(b"e", file(7))?;
        listing.add(b"e/there", file(8))?;
        let listing = listing.finish();
        assert_eq!(names(&listing, 0), ["d", "e", "f"]);
        let d = listing.child(0, b"d").expect("listed");
        assert_eq!(
            (names(&listing, d), listing.items[d].perm),
            (vec!["b".into(), "x".into()], 0o700)
        );
        assert_eq!(names(&listing, listing.child(0, b"e").expect("listed")), ["there"]);
        let x = listing.child(d, b"x").expect("listed");
        assert_eq!((listing.items[x].len_bytes, listing.items[x].parent()), (3, d));
        assert_eq!(listing.child(0, b"x"), None);
        Ok(())
    }

    #[test]
    fn many_items_are_found_and_listed_by_name() -> Result<()> {
        let mut listing = Listing::new();
        for nr in 0..20_000_u64 {
            let scattered = nr * 7919 % 20_000;
            listing.add(format!("all/{scattered:05}").as_bytes(), file(scattered))?;
        }
        let held = listing.names.len() + listing.items.len() * 64 + listing.table.slots.len() * 4;
        assert!(held <= 20_100 * (64 + 5 + 16), "{held} bytes");
        let listing = listing.finish();
        let all = listing.child(0, b"all").expect("listed");
        let mut expected = 0;
        for (nr, name) in listing.children(all, 0) {
            assert_eq!(name, format!("{expected:05}").as_bytes());
            assert_eq!(listing.items[nr].len_bytes, expected);
            assert_eq!(listing.child(all, name), Some(nr));
            expected += 1;
        }
        assert_eq!(expected, 20_000);
        assert_eq!(listing.children(all, 19_998).count(), 2);
        Ok(())
    }

    #[test]
    fn a_list_that_takes_too_much_is_refused() {
        let mut listing = Listing::bounded(100_000);
        let added = (0..5000).try_for_each(|nr| listing.add(format!("{nr}").as_bytes(), file(0)));
        assert!(matches!(added, Err(Error::Limit { .. })), "{added:?}");
        assert!(listing.items.len() > 900, "{} items", listing.items.len());
    }
}
