//! The blocks of ext2 and ext3.

use std::collections::BTreeMap;

use weft_ext2::layout::{Dirents, Incompat, Inode, ROOT_INO};
use weft_ext2::owners::{Content, Owners};
use weft_vfs::FileKind;

use super::causes::Touched;
use super::{Changed, Meaning, Names, some};
use crate::calls::{NodeNr, ROOT};

/// The number of an inode in the tree of a volume, and in a recording.
fn node(ino: u32) -> NodeNr {
    if ino == ROOT_INO { ROOT } else { NodeNr(u64::from(ino)) }
}

/// Returns the content of a block, if the volume's structures name it.
pub(super) fn meaning(
    owners: &Owners,
    block: u64,
    changed: &Changed<'_>,
    names: &Names<'_, '_>,
) -> Option<Meaning> {
    let block_bytes = changed.bytes.len() as u64;
    let geometry = owners.superblock().geometry();
    Some(match owners.content(block)? {
        Content::Superblock { group: 0 } => Meaning::new("superblock", "the superblock"),
        Content::Superblock { group } => {
            Meaning::new("superblock", format!("the copy of the superblock in group {group}"))
        }
        Content::Descriptors { first, count: 1 } => {
            Meaning::new("descriptors", format!("descriptor of group {first}"))
        }
        Content::Descriptors { first, count } => {
            let last = first + count.saturating_sub(1);
            Meaning::new("descriptors", format!("descriptors of groups {first} to {last}"))
        }
        Content::BlockBitmap { group } => {
            let first = geometry.group_first_block(group);
            let mut meaning = Meaning::new("block_bitmap", "");
            let (taken, freed) = bits(changed);
            for bit in taken.iter().chain(&freed) {
                meaning.touched.extend(touched_by_block(owners, first + bit, block_bytes));
            }
            let what = format!("bitmap of the blocks of group {group}");
            meaning.text = with_bits(&what, &taken, &freed, &|bit| (first + bit).to_string());
            meaning
        }
        Content::InodeBitmap { group } => {
            let ino = |bit: u64| geometry.inode_number(group, bit as u32);
            let (taken, freed) = bits(changed);
            let nodes = taken.iter().chain(&freed).map(|bit| Touched::Inode(node(ino(*bit))));
            let touched: Vec<Touched> = nodes.collect();
            let what = format!("bitmap of the inodes of group {group}");
            let text = with_bits(&what, &taken, &freed, &|bit| inode_text(names, ino(bit)));
            Meaning { touched, ..Meaning::new("inode_bitmap", text) }
        }
        Content::InodeTable { group, first_ino } => {
            let slot = geometry.inode_bytes as usize;
            inodes(group, first_ino, slot, changed, names)
        }
        Content::Pointers { ino, first, each } => {
            let changes = changed.before.chunks(4).zip(changed.bytes.chunks(4));
            let changes = (0..).zip(changes).filter(|(_, (a, b))| a != b).map(|(nr, _)| nr);
            let (from, to) = span(changes).unwrap_or((0, block_bytes / 4));
            let of = |nr: u64| (first + nr * each) * block_bytes;
            let content = names.content(node(ino), of(from), of(to) - of(from));
            let text = format!("pointers to {}", content.text);
            Meaning { text, structure: "pointers", ..content }
        }
        Content::Data { ino, kind: FileKind::Directory, .. } => {
            let filetype = geometry.features.incompat.contains(Incompat::FILETYPE);
            directory(ino, filetype, changed, names)
        }
        Content::Data { ino, index, .. } => {
            names.content(node(ino), index * block_bytes, block_bytes)
        }
        Content::Attributes { ino } => {
            let path = names.path(node(ino));
            Meaning {
                touched: vec![Touched::Inode(node(ino))],
                path: Some(path.clone()),
                ..Meaning::new("attributes", format!("extended attributes of {path:?}"))
            }
        }
    })
}

/// Returns the part of a file that is in a block: what a bit of the bitmap of blocks stands for.
fn touched_by_block(owners: &Owners, block: u64, block_bytes: u64) -> Option<Touched> {
    let (ino, index, count) = match owners.content(block)? {
        Content::Data { ino, index, .. } => (ino, index, 1),
        Content::Pointers { ino, first, each } => (ino, first, each),
        _ => return None,
    };
    Some(Touched::Bytes(node(ino), index * block_bytes, (index + count) * block_bytes))
}

fn inode_text(names: &Names<'_, '_>, ino: u32) -> String {
    format!("{ino}, {:?}", names.path(node(ino)))
}

/// The bits that are set, and those that are cleared.
fn bits(changed: &Changed<'_>) -> (Vec<u64>, Vec<u64>) {
    let (mut taken, mut freed) = (Vec::new(), Vec::new());
    for (nr, (before, after)) in (0..).zip(changed.before.iter().zip(changed.bytes)) {
        for bit in (0..8).filter(|bit| (before ^ after) >> bit & 1 == 1) {
            let list = if after >> bit & 1 == 1 { &mut taken } else { &mut freed };
            list.push(nr * 8 + bit);
        }
    }
    (taken, freed)
}

/// `WHAT (takes A to B; frees C)`.
fn with_bits(what: &str, taken: &[u64], freed: &[u64], name: &dyn Fn(u64) -> String) -> String {
    let list = |verb: &str, bits: &[u64]| {
        let words = bits.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
            [] => None,
            [one] => Some(name(*one)),
            [first, .., last] => Some(format!("{} to {}", name(*first), name(*last))),
        });
        format!("{verb} {}", some(words.collect()))
    };
    let parts = [("takes", taken), ("frees", freed)];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, bits)| !bits.is_empty())
        .map(|(verb, bits)| list(verb, bits))
        .collect();
    if parts.is_empty() { what.to_owned() } else { format!("{what} ({})", parts.join("; ")) }
}

/// The first, and the one behind the last.
fn span(numbers: impl Iterator<Item = u64>) -> Option<(u64, u64)> {
    numbers.fold(None, |span, nr| Some((span.map_or(nr, |(from, _)| from), nr + 1)))
}

fn inodes(
    group: u32,
    first_ino: u32,
    slot_bytes: usize,
    changed: &Changed<'_>,
    names: &Names<'_, '_>,
) -> Meaning {
    let slots = changed.before.chunks(slot_bytes).zip(changed.bytes.chunks(slot_bytes));
    let mut meaning = Meaning::new("inodes", "");
    let mut words = Vec::new();
    let mut paths = Vec::new();
    for (ino, (before, after)) in (first_ino..).zip(slots).filter(|(_, (a, b))| a != b) {
        let path = names.path(node(ino));
        words.push(format!("inode {ino}, {path:?}: {}", inode_change(before, after)));
        paths.push(path);
        meaning.touched.push(Touched::Inode(node(ino)));
    }
    let what = format!("inode table of group {group}");
    meaning.text = match words.is_empty() {
        true => what,
        false => format!("{what} ({})", some(words).replace(", inode ", "; inode ")),
    };
    meaning.path = paths.pop().filter(|_| paths.is_empty());
    meaning
}

/// Describes the change of an inode by a write.
fn inode_change(before: &[u8], after: &[u8]) -> String {
    let (Ok(before), Ok(after)) = (Inode::parse(before), Inode::parse(after)) else {
        return "changed".into();
    };
    if after.links == 0 && before.links > 0 {
        return "freed".into();
    }
    if before.links == 0 && after.links > 0 {
        return format!("new, size {}", after.size_bytes);
    }
    let mut words = Vec::new();
    if before.size_bytes != after.size_bytes {
        words.push(format!("size {} to {}", before.size_bytes, after.size_bytes));
    }
    if before.links != after.links {
        words.push(format!("links {} to {}", before.links, after.links));
    }
    if before.block != after.block {
        words.push("pointers to its blocks".into());
    }
    let rights = |inode: &Inode| (inode.mode, inode.uid, inode.gid, inode.file_acl);
    if rights(&before) != rights(&after) {
        words.push("attributes".into());
    }
    if words.is_empty() { "times".into() } else { words.join(" and ") }
}

/// The names that a write of a block of a directory changes.
fn directory(ino: u32, filetype: bool, changed: &Changed<'_>, names: &Names<'_, '_>) -> Meaning {
    let entries = |block| -> BTreeMap<Vec<u8>, u32> {
        let all = Dirents::new(block, filetype).flatten().filter(|entry| entry.ino != 0);
        all.map(|entry| (entry.name.to_vec(), entry.ino)).collect()
    };
    let path = names.path(node(ino));
    let changes = name_changes(&entries(changed.before), &entries(changed.bytes));
    let dir = node(ino);
    let mut touched: Vec<Touched> =
        changes.iter().map(|(_, name)| Touched::Name(dir, name.clone())).collect();
    if touched.is_empty() {
        touched.push(Touched::Inode(dir));
    }
    Meaning {
        touched,
        path: Some(path.clone()),
        ..Meaning::new("directory", with_names(&format!("directory {path:?}"), &changes))
    }
}

/// The names that are added, removed, or have another meaning.
pub(super) fn name_changes<N: Ord + Clone, V: PartialEq>(
    before: &BTreeMap<N, V>,
    after: &BTreeMap<N, V>,
) -> Vec<(&'static str, N)> {
    let added = after.iter().filter_map(|(name, value)| match before.get(name) {
        None => Some(("adds", name.clone())),
        Some(old) if old != value => Some(("changes", name.clone())),
        Some(_) => None,
    });
    let removed = before.keys().filter(|name| !after.contains_key(name));
    added.chain(removed.map(|name| ("removes", name.clone()))).collect()
}

/// `WHAT (adds "a", removes "b")`.
pub(super) fn with_names(what: &str, changes: &[(&str, Vec<u8>)]) -> String {
    if changes.is_empty() {
        return what.to_owned();
    }
    let word =
        |(verb, name): &(&str, Vec<u8>)| format!("{verb} {:?}", String::from_utf8_lossy(name));
    format!("{what} ({})", some(changes.iter().map(word).collect()))
}
