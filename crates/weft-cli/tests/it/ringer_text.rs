//! Full text through the real command: a policy, two mounts, search and query folders.

use crate::ringer::Cell;
use crate::run::can_mount;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use weft_testing::wait_until;

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    entries.map(|n| n.into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn what_small_files_say_is_found_on_every_mount() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let search = |condition: &str| {
        let found = cell.bench.json(&["ringer", "search", &cell.address(), condition]);
        let paths = found["paths"].as_array().unwrap().iter();
        paths.map(|p| p.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    fs::create_dir_all(a.join("notes/old")).unwrap();
    let out = cell.bench.json(&["ringer", "policy", "a/notes", "--text", "1K"]);
    assert_eq!(out["text_bytes"], 1024);
    let out = cell.bench.json(&["ringer", "policy", "b/notes/old", "--text", "none"]);
    assert_eq!((&out["text_bytes"], &out["own"]), (&0.into(), &true.into()));

    fs::write(a.join("notes/plan"), "The harvest is late this year.\n").unwrap();
    fs::write(a.join("notes/image"), b"harvest\0late").unwrap();
    fs::write(a.join("notes/long"), "harvest ".repeat(1000)).unwrap();
    fs::write(a.join("notes/old/plan"), "The harvest was early.\n").unwrap();
    fs::write(a.join("elsewhere"), "The harvest is late.\n").unwrap();
    // Listed where it was written, all of it is told first.
    assert_eq!(names(&a.join(".query/text:harvest")), set(&["plan"]));
    assert_eq!(names(&b.join(".query/text:\"is late\" & kind:file")), set(&["plan"]));
    let others = set(&["image", "long", "plan", "elsewhere"]);
    assert_eq!(names(&b.join(".query/kind:file -text:harv*")), others);
    assert_eq!(search("text:is late"), set(&["/notes/plan"]));

    // The other changes it: what it said is not found from then on, what it says is.
    fs::write(b.join("notes/plan"), "All is in the barn.\n").unwrap();
    File::open(&b).unwrap().sync_all().unwrap();
    assert_eq!((search("text:harvest"), search("text:barn")), (set(&[]), set(&["/notes/plan"])));

    // Moved to where it is not to be found, and what was there to where it is.
    fs::rename(a.join("notes/plan"), a.join("barn")).unwrap();
    fs::rename(a.join("elsewhere"), a.join("notes/moved")).unwrap();
    File::open(&a).unwrap().sync_all().unwrap();
    assert_eq!(search("text:harvest"), set(&["/notes/moved"]));
    wait_until("the text goes", || search("text:barn").is_empty());
    fs::remove_file(b.join("notes/moved")).unwrap();
    File::open(&b).unwrap().sync_all().unwrap();
    assert_eq!(search("text:harvest"), set(&[]));
    let report = cell.bench.json(&["ringer", "doctor", &cell.address()]);
    assert_eq!(report["problem_count"], 0, "{report}");

    for bad in ["2M", "-1", "some", "1 copies=3"] {
        let text = format!("--text={bad}");
        let err = cell.bench.fails(2, &["ringer", "policy", "a/notes", &text]);
        assert!(err.contains("at most 1M"), "{err}");
    }
    let err = cell.bench.fails(1, &["ringer", "search", &cell.address(), "text:--"]);
    assert!(err.contains("has no word"), "{err}");
}
