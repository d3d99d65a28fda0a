//! Invariants of a store at rest: the tree is consistent, and every count in it is right.

use std::collections::{BTreeMap, BTreeSet};

use weft_ringer::mds::check;
use weft_ringer::store::{MemoryStore, Store};
use weft_ringer::wire::decode;
use weft_ringer::{Body, Dirent, Name, Rnode, RnodeId, ToldText, Version};

use super::{says, value_of};

pub fn records(store: &MemoryStore, kind: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = store.range(&[kind], &[kind + 1], usize::MAX).expect("memory");
    // Snapshots were looked at by `check`.
    let is_live =
        |key: &[u8]| key.len() < 9 || kind == b'p' || !RnodeId(number(&key[1..9])).is_of_snapshot();
    let live = all.into_iter().filter(|(key, _)| is_live(key));
    live.map(|(key, record)| (key, record.value)).collect()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns of how many files the text is kept, and how many snapshots there are.
pub fn audit(seed: u64, store: &MemoryStore) -> (usize, usize) {
    let checked = check(store).expect("memory");
    assert_eq!(checked.problem_count, 0, "seed {seed}: {:?}", checked.problems);
    let rnodes: BTreeMap<RnodeId, Rnode> = records(store, b'r')
        .into_iter()
        .map(|(key, value)| (RnodeId(number(&key[1..])), decode(&value).expect("an rnode")))
        .collect();
    let orphans: BTreeSet<RnodeId> =
        records(store, b'o').into_iter().map(|(key, _)| RnodeId(number(&key[1..]))).collect();
    let mut dirents: BTreeMap<(RnodeId, Name), Dirent> = BTreeMap::new();
    for (key, value) in records(store, b'd') {
        let name = Name::new(&key[9..]).expect("a name");
        dirents.insert((RnodeId(number(&key[1..9])), name), decode(&value).expect("a dirent"));
    }
    let mut listed = BTreeMap::new();
    for (key, value) in records(store, b'l') {
        let name: Name = decode(&value).expect("a name");
        listed.insert((RnodeId(number(&key[1..9])), name), number(&key[9..]));
    }
    let cookies: BTreeMap<_, _> = dirents.iter().map(|(k, d)| (k.clone(), d.cookie.0)).collect();
    assert_eq!(listed, cookies, "seed {seed}: listings are of the names there are");

    let mut names: BTreeMap<RnodeId, u32> = BTreeMap::new();
    let mut entries: BTreeMap<RnodeId, (u64, u32)> = BTreeMap::new();
    for ((dir, name), dirent) in &dirents {
        let rnode = rnodes.get(&dirent.id);
        let rnode = rnode.unwrap_or_else(|| panic!("seed {seed}: {name:?} in {dir} names nothing"));
        assert_eq!(rnode.kind(), dirent.kind, "seed {seed}: {name:?}");
        *names.entry(dirent.id).or_default() += 1;
        let of = entries.entry(*dir).or_default();
        of.0 += 1;
        if let Body::Directory { parent, .. } = rnode.body {
            of.1 += 1;
            assert_eq!(parent, *dir, "seed {seed}: the parent of {}", dirent.id);
        }
    }
    for (id, rnode) in &rnodes {
        let named = names.get(id).copied().unwrap_or(0) + u32::from(*id == RnodeId::ROOT);
        assert_eq!(rnode.id, *id);
        assert_eq!(rnode.nlink == 0, orphans.contains(id), "seed {seed}: {id}");
        let Body::Directory { entries: count, .. } = rnode.body else {
            assert_eq!(rnode.nlink, named, "seed {seed}: links of {id}");
            continue;
        };
        let (have, dirs) = entries.get(id).copied().unwrap_or_default();
        assert_eq!(count, have, "seed {seed}: entries of {id}");
        if rnode.nlink > 0 {
            assert_eq!((named, rnode.nlink), (1, 2 + dirs), "seed {seed}: links of directory {id}");
        } else {
            assert_eq!((named, have), (0, 0), "seed {seed}: removed directory {id}");
        }
        // Up to the root in fewer steps than there are directories.
        let (mut at, mut steps) = (*id, 0);
        while at != RnodeId::ROOT && rnodes[&at].nlink > 0 {
            let Body::Directory { parent, .. } = rnodes[&at].body else {
                panic!("seed {seed}: {at} is in a file")
            };
            (at, steps) = (parent, steps + 1);
            assert!(steps <= rnodes.len(), "seed {seed}: {id} is within itself");
        }
    }
    (audit_texts(seed, store, &rnodes), records(store, b'p').len())
}

/// Checks that the stored text of a file agrees with its content.
fn audit_texts(seed: u64, store: &MemoryStore, rnodes: &BTreeMap<RnodeId, Rnode>) -> usize {
    let texts: BTreeMap<u64, ToldText> = records(store, b'T')
        .into_iter()
        .map(|(key, value)| (number(&key[1..]), decode(&value).expect("a text")))
        .collect();
    let contents = records(store, b't')
        .into_iter()
        .map(|(key, value)| (number(&key[1..]), decode::<Version>(&value).expect("a version")));
    let told: BTreeMap<_, _> = texts.iter().map(|(id, told)| (*id, told.content)).collect();
    assert_eq!(told, contents.collect(), "seed {seed}: texts");
    for (id, ToldText { content, text }) in &texts {
        let body = rnodes.get(&RnodeId(*id)).map(|rnode| &rnode.body);
        let Some(body @ Body::File { content: now, .. }) = body else {
            panic!("seed {seed}: the text of {id}, which is no file")
        };
        assert_eq!(content, now, "seed {seed}: the text of {id}");
        assert_eq!(*text, says(value_of(body).expect("a file")), "seed {seed}: the text of {id}");
    }
    texts.len()
}
