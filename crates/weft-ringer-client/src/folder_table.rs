//! The query folders that the front end has references to, and the names and links in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use weft_ringer::query::Query;
use weft_ringer::{Bytes, CellId, RnodeId};
use weft_ringer_net::{Hit, wall};
use weft_vfs::{Attr, Entry, FileKind, Ino, Time};

/// The attribute of a mount's root that shows the state of the cells entered; and of a query folder
/// the result of each cell's search.
pub const CELLS_XATTR: &[u8] = b"user.weft.cells";
/// The folder of query folders, in the root of a mount.
pub(super) const TOP_NAME: &[u8] = b".query";
/// The most bytes of the file's name in a link's name, beside the number of its inode.
const BASE_MAX_BYTES: usize = weft_vfs::NAME_MAX_BYTES - 21;
/// Inode numbers from here on are of no rnode, nor of anything in a [cell inside](super::cells).
const FIRST: u64 = 0b11 << 62;
pub(super) const TOP: u64 = FIRST;

/// Returns true if an inode number is of a query folder, or of a link in one.
pub(super) fn is_of_folders(ino: Ino) -> bool {
    ino.0 >= FIRST
}

/// The object behind an inode number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// The folder of this query.
    Folder(String),
    /// A link to this path from the root of the cell.
    Link(Vec<u8>),
    /// The snapshots of this directory.
    Snapshots(RnodeId),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) references: u64,
}

/// The result of a folder's search.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) at: Instant,
    /// Names and paths, by name.
    pub(super) links: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) complete: bool,
    /// The result of each cell's search, as text, if others are searched.
    pub(super) cells: String,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) nodes: HashMap<u64, Node>,
    pub(super) found: HashMap<u64, Arc<Found>>,
}

/// The query folders that the front end has references to.
#[derive(Debug, Default)]
pub(super) struct Folders {
    pub(super) table: Mutex<Table>,
    /// The searcher of the attached cells, if this is the outermost.
    pub(super) remote_cells: OnceLock<Box<dyn RemoteSearch>>,
}

/// The result of the search in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// All matches are returned.
    Complete,
    /// There are more matches, or may be.
    Cut,
    /// By the cell's summary it has no matches; and nothing was added since that was made.
    Pruned,
    /// The cell did not answer.
    Unreachable,
    /// The cell refused, or may not be asked.
    Refused,
}

impl Asked {
    /// Returns true if all matches are known.
    pub(super) fn is_all(self) -> bool {
        matches!(self, Self::Complete | Self::Pruned)
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cut => "cut",
            Self::Pruned => "pruned",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
        }
    }
}

/// The matches in an attached cell.
#[derive(Debug)]
pub(super) struct CellAnswer {
    pub(super) cell: CellId,
    /// Its path from the root of the outermost cell.
    pub(super) path: Vec<u8>,
    pub(super) asked: Asked,
    /// The matches, with paths from that root too.
    pub(super) hits: Vec<Hit>,
    /// The reason why matches are missing.
    pub(super) why: String,
}

impl CellAnswer {
    /// The answer as a line of [`CELLS_XATTR`]: cell number, result, number of matches, path of the
    /// cell, and the reason why matches are missing; with tabs between them.
    pub(super) fn line(&self) -> String {
        let path = String::from_utf8_lossy(&self.path).replace(['\t', '\n'], "?");
        let why = self.why.replace(['\t', '\n'], " ");
        let path = if path.is_empty() { "/" } else { &path };
        format!("{}\t{}\t{}\t{path}\t{why}\n", self.cell, self.asked.word(), self.hits.len())
    }
}

/// Searches attached cells.
pub(super) trait RemoteSearch: std::fmt::Debug + Send + Sync {
    /// Returns the matches in each of them; waits for a bounded time.
    fn search(&self, text: &str, query: &Query) -> Vec<CellAnswer>;
}

impl Place {
    /// Its inode number: the same on every mount, and whether the front end has a reference or not.
    pub(super) fn number(&self) -> u64 {
        let id;
        let (what, text) = match self {
            Self::Folder(text) => (b'f', text.as_bytes()),
            Self::Link(path) => (b'l', &path[..]),
            Self::Snapshots(dir) => {
                id = dir.0.to_be_bytes();
                (b's', &id[..])
            }
        };
        let hash = blake3::Hasher::new().update(&[what]).update(text).finalize();
        let (number, _) = hash.as_bytes().split_first_chunk().unwrap_or((&[1; 8], &[]));
        FIRST | u64::from_le_bytes(*number).max(1)
    }
}

impl Table {
    /// Returns the entry of an object, with a reference on it.
    pub(super) fn enter(&mut self, place: Place) -> Entry {
        let number = place.number();
        let new = || Node { place, references: 0 };
        let node = self.nodes.entry(number).or_insert_with(new);
        node.references += 1;
        Entry { attr: attr(number, Some(node)), generation: 0 }
    }

    pub(super) fn forget(&mut self, number: u64, count: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.references = node.references.saturating_sub(count);
        if node.references == 0 {
            self.nodes.remove(&number);
            self.found.remove(&number);
        }
    }
}

pub(super) fn attr_of_top() -> Attr {
    attr(TOP, None)
}

pub(super) fn attr(number: u64, node: Option<&Node>) -> Attr {
    let (kind, perm, nlink, size_bytes) = match node.map(|node| &node.place) {
        Some(Place::Link(path)) => (FileKind::Symlink, 0o777, 1, target(path).len() as u64),
        // A search checks no permissions: it is for the mount's own user. A folder of snapshots has
        // the permissions of its directory (`like_directory`).
        _ => (FileKind::Directory, 0o500, 2, 0),
    };
    // A kernel keeps listings while the directory's time does not change.
    let time = if kind == FileKind::Directory { wall() } else { Time::default() };
    Attr {
        ino: Ino(number),
        kind,
        perm,
        nlink,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        size_bytes,
        blocks_512: 0,
        io_bytes: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
    }
}

/// Gives a folder of snapshots the permissions of its directory.
pub(super) fn like_directory(attr: Attr, dir: &Attr) -> Attr {
    Attr { perm: dir.perm & 0o555, uid: dir.uid, gid: dir.gid, ..attr }
}

/// The target of a link, relative to its folder: `/a/b` is `../../a/b`.
pub(super) fn target(path: &[u8]) -> Vec<u8> {
    [b"../..", path].concat()
}

pub(super) fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// The names of links to these rnodes, with their paths, in the order of names.
pub(super) fn named(hits: Vec<Hit>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut uses: HashMap<Vec<u8>, u32> = HashMap::new();
    for hit in &hits {
        *uses.entry(base_name(&hit.path.0).to_vec()).or_default() += 1;
    }
    let mut links = BTreeMap::new();
    let mut others = Vec::new();
    for Hit { rnode, path: Bytes(path) } in hits {
        let base = base_name(&path);
        if uses.get(base) == Some(&1) {
            links.insert(base.to_vec(), path);
        } else {
            others.push((rnode, path));
        }
    }
    for (rnode, path) in others {
        let whole = path.strip_prefix(b"/").unwrap_or(&path);
        let mut name: Vec<u8> = whole.iter().map(|b| if *b == b'/' { b':' } else { *b }).collect();
        // A file may have such a name, and a path may be longer than a name. The inode number then
        // tells them apart.
        if name.len() > weft_vfs::NAME_MAX_BYTES || links.contains_key(&name) {
            name = base_name(&path).iter().copied().take(BASE_MAX_BYTES).collect();
            name.extend(format!(":{}", rnode.0).bytes());
        }
        links.entry(name).or_insert(path);
    }
    links.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_different_names() {
        let long = format!("/{}/x", "d/".repeat(200));
        let paths = ["/a/x", "/b/x", "/c", "/d/a:x", "/d", &long];
        let hits = (7..)
            .zip(paths)
            .map(|(n, path)| Hit { rnode: RnodeId(n), path: Bytes(path.as_bytes().to_vec()) });
        let links = named(hits.collect());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let links: Vec<_> = links.iter().map(|(name, path)| (text(name), text(path))).collect();
        let wanted = [
            ("a:x", "/d/a:x"),
            ("b:x", "/b/x"),
            ("c", "/c"),
            ("d", "/d"),
            ("x:12", &long),
            ("x:7", "/a/x"),
        ];
        assert_eq!(links, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(target(b"/a/b"), b"../../a/b");
    }
}
