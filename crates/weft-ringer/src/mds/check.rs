//! A consistency check of a cell's records: the tree is connected, and every count in it is right.
//!
//! The conditions hold whenever no transaction is in progress, and so at any moment that a server
//! looks. Records of unknown kinds are skipped.

use std::collections::{BTreeMap, BTreeSet};

use super::answered::Answer;
use super::archives::Archives;
use super::records::number_of;
use super::snapshots;
use crate::cell_mount::{CELL_MOUNT_XATTR, CellMount};
use crate::encryption;
use crate::rnode::{Body, Bytes, Dirent, Holders, Name, Rnode};
use crate::store::{Store, StoreResult};
use crate::text::ToldText;
use crate::types::{ArchiveId, Cookie, RnodeId, Version};
use crate::wire::{Wire, decode};

/// The most problems that are described; further ones are only counted.
pub const PROBLEMS_MAX: usize = 1000;
/// Records that are read at a time.
const PAGE: usize = 1000;
/// Texts that are read at a time: they are longer.
const TEXT_PAGE: usize = 20;

/// A violated condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem, as a fixed word.
    pub code: &'static str,
    /// A description for people.
    pub text: String,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Rnodes.
    pub rnodes: u64,
    /// Those of them without a name, which a client holds.
    pub orphans: u64,
    /// Names in directories.
    pub names: u64,
    /// The number of problems.
    pub problem_count: u64,
    /// The first [`PROBLEMS_MAX`] of them.
    pub problems: Vec<Problem>,
    /// Snapshots that are being cleared: some of their records are gone.
    skipped: BTreeSet<u32>,
}

impl Checked {
    fn found(&mut self, code: &'static str, text: String) {
        self.add(Problem { code, text });
    }

    /// Adds a problem.
    pub fn add(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    fn expect(&mut self, is_so: bool, code: &'static str, text: impl FnOnce() -> String) {
        if !is_so {
            self.found(code, text());
        }
    }
}

/// The facts kept about an rnode during a check.
struct Seen {
    kind: weft_vfs::FileKind,
    nlink: u32,
    /// The parent of a directory.
    parent: Option<RnodeId>,
    entries: u64,
    /// The number of names found.
    named: u32,
    found_entries: u64,
    found_dirs: u32,
    has_blocks: bool,
    /// The content version of a file.
    content: Option<Version>,
    /// The original of a file in a snapshot.
    origin: Option<RnodeId>,
    /// The encryption attribute.
    mark: Option<Box<[u8]>>,
}

/// Calls `each` with every readable record of a kind.
fn every<T: Wire>(
    store: &dyn Store,
    kind: u8,
    checked: &mut Checked,
    mut each: impl FnMut(&[u8], T, &mut Checked),
) -> StoreResult<()> {
    let mut from = vec![kind];
    let at_once = if kind == b'T' { TEXT_PAGE } else { PAGE };
    loop {
        let page = store.range(&from, &[kind + 1], at_once)?;
        for (key, record) in &page {
            let slot = rnode_of(key).map(RnodeId::slot);
            if slot.is_some_and(|slot| checked.skipped.contains(&slot)) {
                continue;
            }
            match decode(&record.value) {
                Ok(value) => each(key, value, checked),
                Err(e) => checked.found("damaged-record", format!("{key:02x?}: {e}")),
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == at_once => from = [&last[..], &[0]].concat(),
            _ => return Ok(()),
        }
    }
}

/// Returns the rnode in the first nine bytes of a key.
fn rnode_of(key: &[u8]) -> Option<RnodeId> {
    key.get(..9).and_then(|k| number_of(k).ok()).map(RnodeId)
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Checks every record of the cell in `store`.
///
/// # Errors
/// [`StoreError`](crate::store::StoreError) if it cannot be read; problems in the records are not
/// an error.
pub fn check(store: &dyn Store) -> StoreResult<Checked> {
    let skipped = snapshots::cleared_slots(store)?;
    let mut checked = Checked { skipped, ..Checked::default() };
    let roots = snapshots::roots(store)?;
    let mut rnodes = read_rnodes(store, &roots, &mut checked)?;
    check_orphans(store, &rnodes, &mut checked)?;
    check_names(store, &mut rnodes, &mut checked)?;
    check_holders(store, &rnodes, &mut checked)?;
    check_texts(store, &rnodes, &mut checked)?;
    check_snapshots(store, &roots, &rnodes, &mut checked)?;
    check_counts(&rnodes, &mut checked);
    check_tree(&rnodes, &mut checked);
    Ok(checked)
}

fn read_rnodes(
    store: &dyn Store,
    roots: &BTreeMap<RnodeId, RnodeId>,
    checked: &mut Checked,
) -> StoreResult<BTreeMap<RnodeId, Seen>> {
    let mut rnodes = BTreeMap::new();
    every(store, b'r', checked, |key, rnode: Rnode, checked| {
        let id = rnode.id;
        checked.expect(rnode_of(key) == Some(id), "misplaced-rnode", || {
            format!("inode {id} is stored under the key {key:02x?} of another")
        });
        checked.rnodes += 1;
        checked.orphans += u64::from(rnode.nlink == 0);
        check_cell_mount(&rnode, checked);
        let is_copy = id.is_of_snapshot() && matches!(rnode.body, Body::File { .. });
        let origin = is_copy.then(|| snapshots::origin(&rnode));
        let (parent, entries) = match rnode.body {
            Body::Directory { parent, entries, .. } => (Some(parent), entries),
            _ => (None, 0),
        };
        let (has_blocks, content) = match &rnode.body {
            Body::File { blocks, content, .. } => (blocks.stored_bytes() > 0, Some(*content)),
            _ => (false, None),
        };
        let seen = Seen {
            kind: rnode.kind(),
            nlink: rnode.nlink,
            parent,
            entries,
            named: u32::from(id == RnodeId::ROOT || roots.contains_key(&id)),
            found_entries: 0,
            found_dirs: 0,
            has_blocks,
            content,
            origin,
            mark: encryption::mark(&rnode).map(Into::into),
        };
        rnodes.insert(id, seen);
    })?;
    checked.expect(rnodes.contains_key(&RnodeId::ROOT), "no-root", || {
        "the root directory is missing".into()
    });
    Ok(rnodes)
}

/// Checks that a cell mount can be parsed, and has no names of its own.
fn check_cell_mount(rnode: &Rnode, checked: &mut Checked) {
    let Some(text) = rnode.xattrs.get(&Bytes(CELL_MOUNT_XATTR.to_vec())) else { return };
    if let Err(e) = CellMount::parse(&text.0) {
        checked.found("damaged-cell-mount", format!("{}: {e}", rnode.id));
    }
    let is_empty = matches!(rnode.body, Body::Directory { entries: 0, .. });
    checked.expect(is_empty, "cell-mount", || {
        format!("inode {} has a cell attached and is not an empty directory", rnode.id)
    });
}

/// Checks that rnodes without a name are listed as orphans, so that they are removed when no client
/// holds them.
fn check_orphans(
    store: &dyn Store,
    rnodes: &BTreeMap<RnodeId, Seen>,
    checked: &mut Checked,
) -> StoreResult<()> {
    let mut listed = BTreeSet::new();
    for (key, _) in store.range(b"o", b"p", usize::MAX)? {
        listed.extend(rnode_of(&key));
    }
    for (id, rnode) in rnodes {
        checked.expect((rnode.nlink == 0) == listed.remove(id), "orphan", || {
            let without =
                if rnode.nlink == 0 { "has no name and is not" } else { "has a name and is" };
            format!("inode {id} {without} in the list of orphans")
        });
    }
    for id in listed {
        checked.found("orphan", format!("inode {id} is in the list of orphans and does not exist"));
    }
    Ok(())
}

fn check_names(
    store: &dyn Store,
    rnodes: &mut BTreeMap<RnodeId, Seen>,
    checked: &mut Checked,
) -> StoreResult<()> {
    // The expected listing entries, by directory and cookie.
    let mut cookies: BTreeMap<(RnodeId, Cookie), Vec<u8>> = BTreeMap::new();
    every(store, b'd', checked, |key, dirent: Dirent, checked| {
        let (Some(dir), Some(name)) = (rnode_of(key), key.get(9..)) else {
            return checked.found("damaged-record", format!("{key:02x?}"));
        };
        let what = || format!("{:?} in {dir}", text(name));
        checked.names += 1;
        checked.expect(Name::new(name).is_ok(), "bad-name", what);
        if cookies.insert((dir, dirent.cookie), name.to_vec()).is_some() {
            checked
                .found("listing", format!("{} has the listing position of another name", what()));
        }
        if let (Some(above), Some(rnode)) = (rnodes.get(&dir), rnodes.get(&dirent.id)) {
            let is_as_above = match (rnode.parent, rnode.content) {
                (Some(_), _) => above.mark.is_none() || rnode.mark.is_some(),
                (None, Some(_)) => above.mark == rnode.mark,
                (None, None) => true,
            };
            checked.expect(is_as_above, "encryption", || {
                format!("{} is not encrypted with the key of its directory", what())
            });
        }
        let is_dir = match rnodes.get_mut(&dirent.id) {
            None => {
                checked.found(
                    "dangling-name",
                    format!("{} is a name of inode {}, which does not exist", what(), dirent.id),
                );
                false
            }
            Some(rnode) => {
                rnode.named += 1;
                checked.expect(rnode.kind == dirent.kind, "kind", || {
                    format!(
                        "{} is {:?}, but its directory says {:?}",
                        what(),
                        rnode.kind,
                        dirent.kind
                    )
                });
                if let Some(parent) = rnode.parent {
                    checked.expect(parent == dir, "parent", || {
                        format!("{} has the parent {parent} recorded instead", what())
                    });
                }
                rnode.parent.is_some()
            }
        };
        match rnodes.get_mut(&dir) {
            Some(Seen { parent: Some(_), found_entries, found_dirs, .. }) => {
                *found_entries += 1;
                *found_dirs += u32::from(is_dir);
            }
            _ => checked.found("dangling-name", format!("{}, which is not a directory", what())),
        }
    })?;
    every(store, b'l', checked, |listing, name: Name, checked| {
        let cookie = listing.get(9..).and_then(|c| c.try_into().ok()).map(u64::from_be_bytes);
        let place = rnode_of(listing).zip(cookie.map(Cookie));
        let named = place.and_then(|place| cookies.remove(&place));
        checked.expect(named.as_deref() == Some(name.bytes()), "listing", || {
            format!(
                "listing entry {listing:02x?} has the name {:?}, which does not exist",
                text(name.bytes())
            )
        });
    })?;
    for ((dir, _), name) in cookies {
        checked.found("listing", format!("{:?} in {dir} has no listing entry", text(&name)));
    }
    Ok(())
}

fn check_holders(
    store: &dyn Store,
    rnodes: &BTreeMap<RnodeId, Seen>,
    checked: &mut Checked,
) -> StoreResult<()> {
    let mut held = BTreeSet::new();
    every(store, b'h', checked, |holding, holders: Holders, checked| {
        let id = rnode_of(holding);
        let is_there = id.is_some_and(|id| rnodes.contains_key(&id));
        checked.expect(is_there, "holders", || {
            format!("holder record {holding:02x?} belongs to no inode")
        });
        held.extend(id.filter(|_| !holders.clients.is_empty()));
    })?;
    // A file that its last client has released is in an archive, whole.
    let archives = Archives::ids(store)?;
    every(store, b'a', checked, |key, copies: BTreeMap<ArchiveId, Version>, checked| {
        let id = rnode_of(key);
        let is_there = id.is_some_and(|id| rnodes.contains_key(&id));
        checked.expect(is_there, "archived-file", || {
            format!("the record {key:02x?} of an archived file belongs to no inode")
        });
        let now = id.and_then(|id| rnodes.get(&id)?.content);
        let has =
            |(archive, of): (&ArchiveId, &Version)| archives.contains(archive) && Some(*of) == now;
        held.extend(id.filter(|_| copies.iter().any(has)));
    })?;
    for (id, rnode) in rnodes {
        checked.expect(!rnode.has_blocks || held.contains(id), "no-holder", || {
            format!("no client and no archive is recorded as a holder of the content of inode {id}")
        });
    }
    Ok(())
}

/// Checks that texts are of the present contents of files.
fn check_texts(
    store: &dyn Store,
    rnodes: &BTreeMap<RnodeId, Seen>,
    checked: &mut Checked,
) -> StoreResult<()> {
    let mut contents = BTreeMap::new();
    every(store, b't', checked, |key, content: Version, checked| {
        let Some(id) = rnode_of(key) else {
            return checked.found("damaged-record", format!("{key:02x?}"));
        };
        let now = rnodes.get(&id).and_then(|r| r.content);
        checked.expect(now == Some(content), "text", || {
            format!("the indexed text of inode {id} is not of its current content")
        });
        contents.insert(id, content);
    })?;
    every(store, b'T', checked, |key, told: ToldText, checked| {
        let of = rnode_of(key).and_then(|id| contents.remove(&id));
        checked.expect(of == Some(told.content), "text", || {
            format!("text record {key:02x?} is not of the content that was indexed")
        });
    })?;
    for id in contents.keys() {
        checked.found("text", format!("the indexed text of inode {id} is missing"));
    }
    Ok(())
}

/// Checks that snapshots are of existing directories, that each snapshot is below its root, and
/// that the blocks of its files are known to be needed.
fn check_snapshots(
    store: &dyn Store,
    roots: &BTreeMap<RnodeId, RnodeId>,
    rnodes: &BTreeMap<RnodeId, Seen>,
    checked: &mut Checked,
) -> StoreResult<()> {
    for (root, dir) in roots {
        let parent = rnodes.get(root).and_then(|r| r.parent);
        checked.expect(parent == Some(*dir) && rnodes.contains_key(dir), "snapshot", || {
            format!("snapshot {root} is not in its directory {dir}")
        });
    }
    let slots: BTreeSet<u32> = roots.keys().map(|root| root.slot()).collect();
    every(store, b'b', checked, |_, _: Answer, _| {})?;
    let mut origins = snapshots::origins(store)?;
    for (id, rnode) in rnodes.iter().filter(|(id, _)| id.is_of_snapshot()) {
        checked.expect(slots.contains(&id.slot()), "snapshot", || {
            format!("inode {id} belongs to a snapshot that does not exist")
        });
        if let Some(origin) = rnode.origin {
            checked.expect(origins.remove(&(origin, *id)), "snapshot", || {
                format!("snapshot file {id}: its blocks are not recorded as used by {origin}")
            });
        }
    }
    let skipped = std::mem::take(&mut checked.skipped);
    for (origin, id) in origins {
        checked.expect(skipped.contains(&id.slot()), "snapshot", || {
            format!(
                "inode {origin} is recorded as the origin of snapshot file {id}, which does not \
                exist"
            )
        });
    }
    Ok(())
}

fn check_counts(rnodes: &BTreeMap<RnodeId, Seen>, checked: &mut Checked) {
    for (id, rnode) in rnodes {
        let Seen { nlink, named, .. } = *rnode;
        if rnode.parent.is_none() {
            checked.expect(nlink == named, "link-count", || {
                format!("inode {id} has {named} names, but its link count is {nlink}")
            });
            continue;
        }
        checked.expect(rnode.entries == rnode.found_entries, "entry-count", || {
            format!(
                "directory {id} has {} entries, but its entry count is {}",
                rnode.found_entries, rnode.entries
            )
        });
        let links = if nlink == 0 { 0 } else { 2 + rnode.found_dirs };
        checked.expect(nlink == links && named == u32::from(nlink > 0), "link-count", || {
            format!(
                "directory {id} has {} directories and {named} names, but its link count is \
                {nlink}",
                rnode.found_dirs
            )
        });
    }
}

/// Checks that every directory is below the root.
fn check_tree(rnodes: &BTreeMap<RnodeId, Seen>, checked: &mut Checked) {
    let mut below: BTreeSet<RnodeId> = [RnodeId::ROOT].into();
    for (id, rnode) in rnodes {
        if rnode.parent.is_none() || rnode.nlink == 0 {
            continue;
        }
        let (mut at, mut way) = (*id, BTreeSet::new());
        while !below.contains(&at) && way.insert(at) {
            let parent = rnodes.get(&at).and_then(|r| r.parent);
            at = parent.unwrap_or(at);
        }
        if below.contains(&at) {
            below.append(&mut way);
        } else {
            checked.found("tree", format!("directory {id} is not below the root"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mds::records::key;
    use crate::store::{MemoryStore, Transaction};
    use crate::wire::encode;

    fn with(change: impl FnOnce(&mut Transaction)) -> Vec<&'static str> {
        let mut store = MemoryStore::new();
        let mut made = Transaction::default();
        let mut root = Rnode::root(weft_vfs::Time::default());
        let file = RnodeId(7);
        let dirent = Dirent { id: file, kind: weft_vfs::FileKind::Symlink, cookie: Cookie(1) };
        let name = Name::new(b"name").expect("a name");
        let mut link = root.clone();
        (link.id, link.nlink) = (file, 1);
        link.body = Body::Symlink { target: crate::Bytes(b"x".to_vec()) };
        if let Body::Directory { entries, .. } = &mut root.body {
            *entries = 1;
        }
        made.put(key(b'r', 1), encode(&root));
        made.put(key(b'r', 7), encode(&link));
        made.put([&key(b'd', 1)[..], b"name"].concat(), encode(&dirent));
        made.put([key(b'l', 1), 1_u64.to_be_bytes().to_vec()].concat(), encode(&name));
        change(&mut made);
        store.commit(&made).expect("memory");
        let mut codes: Vec<_> =
            check(&store).expect("memory").problems.into_iter().map(|p| p.code).collect();
        codes.dedup();
        codes
    }

    #[test]
    fn check_names_each_problem() {
        assert_eq!(RnodeId::ROOT, RnodeId(1));
        assert_eq!(with(|_| {}), [""; 0]);
        assert_eq!(with(|t| t.remove(key(b'r', 7))), ["dangling-name"]);
        let dirent = || [&key(b'd', 1)[..], b"name"].concat();
        assert_eq!(with(|t| t.remove(dirent())), ["listing", "entry-count", "link-count"]);
        assert_eq!(with(|t| t.put(dirent(), vec![9])).first(), Some(&"damaged-record"));
        let listed = [key(b'l', 1), 1_u64.to_be_bytes().to_vec()].concat();
        assert_eq!(with(|t| t.remove(listed)), ["listing"]);
        assert_eq!(with(|t| t.put(key(b'o', 7), vec![])), ["orphan"]);
        assert_eq!(with(|t| t.put(key(b'o', 8), vec![])), ["orphan"]);
        assert_eq!(with(|t| t.put(key(b'h', 9), encode(&Holders::default()))), ["holders"]);
        let content = encode(&Version::FIRST);
        assert_eq!(with(|t| t.put(key(b't', 7), content)), ["text"]);
        assert_eq!(with(|t| t.put(key(b'T', 7), vec![])), ["damaged-record"]);
        let root = encode(&Rnode::root(weft_vfs::Time::default()));
        assert_eq!(with(|t| t.put(key(b'r', 1), root)), ["entry-count"]);
        assert!(with(|t| t.remove(key(b'r', 1))).contains(&"no-root"));
        // An encrypted root with an entry: a link, and a plain directory.
        let encrypted = |t: &mut Transaction, body: Body| {
            let mut root = Rnode::root(weft_vfs::Time::default());
            let mut below = Rnode { id: RnodeId(7), nlink: 1, body, ..root.clone() };
            if let Body::Directory { entries, .. } = &mut root.body {
                *entries = 1;
            }
            (root.nlink, below.nlink) = if below.is_dir() { (3, 2) } else { (2, 1) };
            let mark = crate::KeyId([7; 16]).mark();
            root.xattrs.insert(crate::Bytes(crate::ENCRYPTION_XATTR.to_vec()), mark);
            let dirent = Dirent { id: RnodeId(7), kind: below.kind(), cookie: Cookie(1) };
            t.put(key(b'r', 1), encode(&root));
            t.put(key(b'r', 7), encode(&below));
            t.put([&key(b'd', 1)[..], b"name"].concat(), encode(&dirent));
        };
        let link = Body::Symlink { target: crate::Bytes(b"x".to_vec()) };
        assert_eq!(with(|t| encrypted(t, link)), [""; 0]);
        let plain = Body::Directory { parent: RnodeId::ROOT, entries: 0, last: Cookie(0) };
        assert_eq!(with(|t| encrypted(t, plain)), ["encryption"]);
    }
}
