//! Names that a Macintosh volume cannot have, and names that are one on it.

use super::{noise, read, volume};
use crate::run::Bench;
use std::collections::BTreeSet;

/// Names as Unix has them: too long, not of MacRoman, and one that fits.
fn foreign(bench: &Bench) -> Vec<String> {
    let mut names: Vec<String> = ["日本.txt", "plain.txt"].map(str::to_owned).to_vec();
    // They differ where they are cut.
    names.extend(
        (0..300).map(|n| format!("the same beginning of all of them, and then {n}.tar.gz")),
    );
    for (n, name) in names.iter().enumerate() {
        bench.write(&format!("tree/{name}"), n.to_string().as_bytes());
    }
    bench.write(&format!("tree/{}/file in it", "f".repeat(40)), b"deep");
    names
}

#[test]
fn names_are_made_to_fit_on_request_and_stay_apart() {
    let bench = volume();
    let names = foreign(&bench);
    let refused = bench.fails(1, &["put", "tree", "v.img:/"]);
    assert!(refused.contains("name too long") || refused.contains("MacRoman"), "{refused}");
    bench.ok(&["mkfs", "hfs", "v.img", "--force", "--quiet"]);

    let mut lists = Vec::new();
    // In whatever way they come, they are called the same.
    for (image, args) in [
        ("v.img:/there", &["import", "--fit-names", "tree", "v.img:/there"][..]),
        ("w.img:/", &["mkfs", "hfs", "w.img", "--size", "20M", "--import", "tree", "--fit-names"]),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 0, "{ran:#?}");
        assert!(ran.err.contains("日本.txt is copied as __#"), "{ran:#?}");
        assert!(!ran.err.contains("plain.txt is copied as"), "{ran:#?}");
        let list = bench.ok(&["ls", image]);
        let there: BTreeSet<&str> = list.lines().collect();
        assert_eq!(there.len(), names.len() + 1, "each has a name of its own");
        assert!(there.iter().all(|name| name.chars().count() <= 31), "{there:?}");
        assert!(there.contains("plain.txt"));
        let out = format!("out-{}", lists.len());
        bench.ok(&["get", image, &out, "--quiet"]);
        let content = |name: &str| {
            let bytes = read(&bench.path(&format!("{out}/{name}")));
            String::from_utf8(bytes).unwrap()
        };
        let (folders, files): (Vec<&str>, Vec<&str>) =
            there.iter().partition(|name| name.starts_with("ffff"));
        assert_eq!(content(&format!("{}/file in it", folders[0])), "deep");
        let found: BTreeSet<String> = files.iter().map(|name| content(name)).collect();
        assert_eq!(found, (0..names.len()).map(|n| n.to_string()).collect());
        lists.push(list);
    }
    assert_eq!(lists[0], lists[1]);
    bench.ok(&["fsck", "v.img"]);
    bench.ok(&["fsck", "w.img"]);
}

#[test]
fn a_file_alone_takes_its_other_half_along_under_the_new_name() {
    let bench = volume();
    let long = format!("{}.sit", "long".repeat(10));
    bench.write(&long, b"data");
    let mut double = [0x0005_1607_u32, 0x0002_0000].map(u32::to_be_bytes).concat();
    double.resize(24, 0);
    double.extend([0, 1]);
    double.extend([2, 38, 5000_u32].map(u32::to_be_bytes).concat());
    double.extend(noise(5000, 31));
    bench.write(&format!("._{long}"), &double);
    bench.ok(&["put", "--fit-names", &long, "v.img:/", "--quiet"]);
    let list = bench.json(&["hfs", "ls", "v.img:/"]);
    let file = &list[0][0];
    let name = file["path"].as_str().unwrap();
    assert!(name.starts_with("longlong") && name.ends_with(".sit"), "{list}");
    assert_eq!(file["resource_bytes"], 5000, "{list}");
}

#[test]
fn two_names_that_are_one_do_not_replace_each_other() {
    let bench = volume();
    bench.write("tree/README", b"loud");
    bench.write("tree/readme", b"soft");
    for args in [
        &["put", "tree", "v.img:/"][..],
        &["put", "tree/README", "tree/readme", "v.img:/"],
        &["import", "tree", "v.img:/there"],
        &["mkfs", "hfs", "w.img", "--size", "5M", "--import", "tree"],
    ] {
        let said = bench.fails(1, args);
        assert!(said.contains("the same on this volume"), "{said}");
    }
    assert_eq!(bench.ok(&["cat", "v.img:/README"]), "loud");
    // A file that was there before is replaced, in whatever case.
    bench.ok(&["put", "tree/README", "v.img:/Other", "--quiet"]);
    bench.ok(&["put", "tree/readme", "v.img:/OTHER", "--quiet"]);
    assert_eq!(bench.ok(&["cat", "v.img:/other"]), "soft");
    bench.ok(&["fsck", "v.img"]);
}
