//! The blocks of HFS.

use std::collections::BTreeMap;

use weft_hfs::btree::TreeKind;
use weft_hfs::layout::{CatalogRecord, Fork, ROOT_ID};
use weft_hfs::macroman;
use weft_hfs::owners::{Content, Owners, entries};

use super::causes::Touched;
use super::ext::{name_changes, with_names};
use super::{Changed, Meaning, Names, some};
use crate::calls::{NodeNr, ROOT};

/// The number of a file or folder in the tree of a volume, and in a recording.
fn node(id: u32) -> NodeNr {
    if id == ROOT_ID { ROOT } else { NodeNr(u64::from(id)) }
}

/// Returns the content of a block, if the volume's structures name it.
pub(super) fn meaning(
    owners: &Owners,
    block: u64,
    changed: &Changed<'_>,
    names: &Names<'_, '_>,
) -> Option<Meaning> {
    Some(match owners.content(block)? {
        Content::Mdb { copy: false } => Meaning::new("superblock", "the Master Directory Block"),
        Content::Mdb { copy: true } => {
            Meaning::new("superblock", "the copy of the Master Directory Block")
        }
        Content::Bitmap { first } => {
            let last = first + changed.bytes.len() as u64 * 8 - 1;
            let text = format!("bitmap of the allocation blocks {first} to {last}");
            Meaning::new("block_bitmap", text)
        }
        Content::Node { tree: TreeKind::Extents, node } => {
            Meaning::new("extents", format!("node {node} of the extents overflow file"))
        }
        Content::Node { tree: TreeKind::Catalog, node } => catalog(node, changed, names),
        Content::Fork { id, fork, offset } => {
            let content = names.content(node(id), offset, changed.bytes.len() as u64);
            match fork {
                Fork::Data => content,
                Fork::Resource => {
                    let end = offset + changed.bytes.len() as u64;
                    let path = names.path(node(id));
                    let text = format!("bytes {offset} to {end} of the resource fork of {path:?}");
                    let touched = vec![Touched::Inode(node(id))];
                    Meaning { text, bytes: Some((offset, end)), touched, ..content }
                }
            }
        }
    })
}

/// The records that a write of a node of the catalog changes.
fn catalog(nr: u32, changed: &Changed<'_>, names: &Names<'_, '_>) -> Meaning {
    // By folder and name, what the volume keeps of it; threads have no name.
    let records = |bytes| -> BTreeMap<(u32, Vec<u8>), _> {
        let named = entries(bytes).into_iter().filter(|entry| !entry.key.name.is_empty());
        let key = |name: &[u8]| macroman::name_to_unix(name).into_bytes();
        named
            .map(|entry| ((entry.key.parent, key(entry.key.name.as_bytes())), entry.record))
            .collect()
    };
    let (before, after) = (records(changed.before), records(changed.bytes));
    let changes = name_changes(&before, &after);
    let mut by_folder: BTreeMap<u32, Vec<(&str, Vec<u8>)>> = BTreeMap::new();
    let mut meaning = Meaning::new("catalog", format!("node {nr} of the catalog"));
    for (verb, (folder, name)) in changes {
        let record = after.get(&(folder, name.clone()));
        // A record that is changed is that of its item: in HFS it is also the inode.
        meaning.touched.push(match record.and_then(CatalogRecord::id) {
            Some(id) if verb == "changes" => Touched::Inode(node(id)),
            _ => Touched::Name(node(folder), name.clone()),
        });
        by_folder.entry(folder).or_default().push((verb, name));
    }
    let folder = |(folder, changes): (&u32, &Vec<(&str, Vec<u8>)>)| {
        with_names(&format!("folder {:?}", names.path(node(*folder))), changes)
    };
    let words: Vec<String> = by_folder.iter().map(folder).collect();
    if !words.is_empty() {
        meaning.text = format!("{}: {}", meaning.text, some(words));
    }
    if let [folder] = by_folder.keys().collect::<Vec<_>>()[..] {
        meaning.path = Some(names.path(node(*folder)));
    }
    meaning
}
