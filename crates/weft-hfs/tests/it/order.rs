//! The order of names beside the order in which hfsutils sorts its catalog.

use crate::tools::{have, run, tool};
use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use weft_hfs::relstring::compare;

/// The names of the root folder's files, in the order of the catalog's leaves.
fn catalog(image: &[u8]) -> Vec<Vec<u8>> {
    let be16 = |at: usize| usize::from(u16::from_be_bytes([image[at], image[at + 1]]));
    let be32 = |at: usize| be16(at) << 16 | be16(at + 2);
    let (block, first) = (be32(1024 + 20), be16(1024 + 28) * 512);
    // The three extents of the catalog file.
    let mut tree = Vec::new();
    for extent in [150, 154, 158] {
        let at = first + be16(1024 + extent) * block;
        tree.extend(&image[at..at + be16(1024 + extent + 2) * block]);
    }
    let be16 = |at: usize| usize::from(u16::from_be_bytes([tree[at], tree[at + 1]]));
    let be32 = |at: usize| be16(at) << 16 | be16(at + 2);
    let mut names = Vec::new();
    let mut node = be32(14 + 10) * 512;
    while node != 0 {
        for record in 0..be16(node + 10) {
            let key = node + be16(node + 510 - 2 * record);
            let name = &tree[key + 7..key + 7 + usize::from(tree[key + 6])];
            if be32(key + 2) == 2 && !name.is_empty() {
                names.push(name.to_vec());
            }
        }
        node = be32(node) * 512;
    }
    names
}

#[test]
fn the_order_is_the_one_hfsutils_sorts_by() {
    if !have(&["hformat", "hmount", "hcopy", "humount"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("volume");
    std::fs::write(&image, vec![0; 2 << 20]).unwrap();
    std::fs::write(dir.path().join("empty"), b"").unwrap();
    run(tool(dir.path(), "hformat").args(["-l", "order"]).arg(&image));
    run(tool(dir.path(), "hmount").arg(&image));
    // Every byte behind an `x`, and one more byte so that no name is a pattern. A name equal to
    // one that exists replaces it and changes nothing in the catalog's order.
    let all: Vec<u8> = (1..=255).filter(|b| !b":*?[{\\".contains(b)).collect();
    for &byte in &all {
        let path = [b':', b'x', byte, b'-'];
        run(tool(dir.path(), "hcopy").args(["-r", "empty"]).arg(OsStr::from_bytes(&path)));
    }
    run(&mut tool(dir.path(), "humount"));

    let names = catalog(&std::fs::read(&image).unwrap());
    for pair in names.windows(2) {
        assert_eq!(compare(&pair[0], &pair[1]), Ordering::Less, "{pair:02x?}");
    }
    // So a missing item was equal to another one: here too.
    for &byte in &all {
        let name = [b'x', byte, b'-'];
        let equal = names.iter().filter(|n| compare(n, &name).is_eq()).count();
        assert_eq!(equal, 1, "{byte:#x}");
    }
    let distinct: std::collections::BTreeSet<u8> =
        all.iter().map(|&b| weft_hfs::relstring::weight(b)).collect();
    assert_eq!(names.len(), distinct.len());
}
