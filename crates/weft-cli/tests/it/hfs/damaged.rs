//! Damaged and odd volumes through the command: what is whole is read, what is not is said and
//! counted, and nothing is promised that is not done.

use super::{noise, read, volume};
use crate::run::Bench;

/// Changes the first place where `what` stands in the image, from byte `at` of it on.
fn poke(bench: &Bench, image: &str, what: &[u8], at: usize, bytes: &[u8]) {
    let mut all = read(&bench.path(image));
    let place = all.windows(what.len()).position(|w| w == what).expect("it is there") + at;
    all[place..place + bytes.len()].copy_from_slice(bytes);
    std::fs::write(bench.path(image), all).unwrap();
}

/// Three folders of files.
fn filled() -> Bench {
    let bench = volume();
    for folder in ["one", "two", "three"] {
        for n in 0..6 {
            bench.write(&format!("tree/{folder}/file {n}"), format!("{folder} {n}").as_bytes());
        }
    }
    bench.ok(&["import", "tree", "v.img:/", "--quiet"]);
    bench
}

/// A catalog key: parent, name. It is followed by the record, at an even place.
fn key(parent: u32, name: &str) -> Vec<u8> {
    let mut key = vec![6 + name.len() as u8, 0];
    key.extend(parent.to_be_bytes());
    key.push(name.len() as u8);
    key.extend(name.as_bytes());
    key.resize(key.len().next_multiple_of(2), 0);
    key
}

#[test]
fn one_bad_record_hides_nothing_else() {
    let bench = filled();
    let id = bench.json(&["stat", "v.img:/two"])[0]["inode"].as_u64().unwrap() as u32;
    let record = key(id, "file 3");
    poke(&bench, "v.img", &record, record.len(), &[9]);

    for (args, kept) in [
        (&["ls", "-R", "v.img:/"][..], vec!["file 2", "file 4", "three", "one"]),
        (&["tree", "v.img:/"], vec!["file 2", "file 4", "17 files", "3 directories"]),
        (&["ls", "v.img:/two"], vec!["file 2", "file 4"]),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 1, "{args:?}: {ran:#?}");
        assert!(kept.iter().all(|name| ran.out.contains(name)), "{args:?}: {ran:#?}");
        assert!(ran.err.contains("file 3") && ran.err.contains("1 thing"), "{args:?}: {ran:#?}");
        let strict = bench.run(&[args, &["--strict"]].concat());
        assert_eq!(strict.code, 1);
        assert!(!strict.out.contains("file 4"), "{strict:#?}");
    }
    let ran = bench.run(&["export", "v.img:/", "out"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert_eq!(read(&bench.path("out/two/file 4")), b"two 4");
    assert_eq!(read(&bench.path("out/three/file 5")), b"three 5");
    assert!(!bench.path("out/two/file 3").exists());
    assert_eq!(bench.run(&["get", "v.img:/", "got"]).code, 1);
    assert_eq!(read(&bench.path("got/two/file 4")), b"two 4");
    assert_eq!(bench.run(&["export", "v.img:/", "out.tar"]).code, 1);
    // What is whole is so as ever.
    bench.ok(&["ls", "-R", "v.img:/three"]);
    bench.ok(&["export", "v.img:/three", "three"]);
}

/// A real disk has such a thread, which is harmless.
#[test]
fn a_thread_with_another_name_is_noted() {
    let bench = filled();
    let id = bench.json(&["stat", "v.img:/two"])[0]["inode"].as_u64().unwrap() as u32;
    let thread = key(id, "");
    // Kind and reserved bytes, the folder that it lies in, and the name.
    poke(&bench, "v.img", &thread, thread.len() + 14, b"\x03TWO");
    poke(&bench, "v.img", &thread, thread.len() + 14, b"\x03Old");
    assert_eq!(bench.ok(&["ls", "v.img:/two"]).lines().count(), 6);
    assert!(bench.ok(&["tree", "v.img:/"]).contains("18 files"));
    bench.ok(&["export", "v.img:/", "out", "--quiet"]);
    assert!(bench.ok(&["fsck", "v.img"]).contains("note: "));
    bench.ok(&["put", "tree/one/file 1", "v.img:/two/more", "--quiet"]);
    assert_eq!(bench.ok(&["cat", "v.img:/TWO/more"]), "one 1");
}

#[test]
fn a_damaged_tree_is_made_anew_and_named() {
    let bench = filled();
    let image = read(&bench.path("v.img"));
    let number = |at: usize| usize::from(image[1024 + at]) << 8 | usize::from(image[1025 + at]);
    let catalog = (number(28) + number(150) * (number(22) / 512)) * 512;
    let mut damaged = image.clone();
    damaged[catalog..catalog + 14].fill(0x77);
    bench.write("v.img", &damaged);
    let said = bench.run(&["fsck", "v.img"]);
    assert_eq!(said.code, 4, "{said:#?}");
    assert!(said.out.contains("catalog") && !said.out.contains("MDB"), "{said:#?}");
    assert!(said.out.contains("--repair repairs them"), "{said:#?}");
    // It is shown as a repair would leave it, with a word about that.
    let ran = bench.run(&["ls", "-R", "v.img:/"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.out.contains("file 5") && ran.err.contains("repair"), "{ran:#?}");
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 1);
    assert!(bench.ok(&["tree", "v.img:/"]).contains("18 files"));
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn a_cut_image_is_read_and_no_repair_is_promised() {
    let bench = filled();
    bench.write("long", &noise(12 << 20, 5));
    bench.ok(&["put", "long", "v.img:/", "--quiet"]);
    let whole = read(&bench.path("v.img"));
    bench.write("v.img", &whole[..8 << 20]);
    let said = bench.run(&["fsck", "v.img"]);
    assert_eq!(said.code, 4, "{said:#?}");
    assert!(said.out.contains("the image is truncated"), "{said:#?}");
    assert!(!said.out.contains("--repair repairs them"), "{said:#?}");
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 4);
    assert!(read(&bench.path("v.img")) == whole[..8 << 20], "it is left as it is");
    let ran = bench.run(&["get", "v.img:/", "out"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert_eq!(read(&bench.path("out/three/file 5")), b"three 5");
    let (got, want) = (read(&bench.path("out/long")), noise(12 << 20, 5));
    assert_eq!(got.len(), want.len());
    let same = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
    assert!(same > 6 << 20, "{same} bytes were there");
    assert!(bench.fails(1, &["put", "long", "v.img:/again"]).contains("truncated"));
}

#[test]
fn a_cut_image_without_trees_is_promised_nothing() {
    let bench = filled();
    let whole = read(&bench.path("v.img"));
    bench.write("v.img", &whole[..8 << 10]);
    for args in [&["fsck", "--dry-run", "v.img"][..], &["fsck", "v.img"]] {
        let said = bench.run(args);
        assert_eq!(said.code, 4, "{said:#?}");
        assert!(said.out.contains("not a header node"), "{said:#?}");
        assert!(said.out.contains("is truncated"), "{said:#?}");
        assert!(!said.out.contains("would rebuild"), "{said:#?}");
        assert!(said.out.contains("a repair cannot help"), "{said:#?}");
    }
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 4);
    assert!(read(&bench.path("v.img")) == whole[..8 << 10], "it is left as it is");
}

#[test]
fn of_a_cut_fork_all_is_exported_that_is_there() {
    let bench = volume();
    let fork = noise(5000, 7);
    // AppleDouble (RFC 1740): the magic number and the version, Finder information and the fork.
    let mut double = [&[0, 5, 0x16, 7, 0, 2, 0, 0][..], &[0; 16], &[0, 2]].concat();
    for word in [9, 50, 32, 2, 82, 5000_u32] {
        double.extend(word.to_be_bytes());
    }
    double.extend(b"TEXTweft");
    double.resize(82, 0);
    double.extend(&fork);
    bench.write("tree/._file", &double);
    bench.write("tree/file", b"data");
    bench.ok(&["import", "tree", "v.img:/", "--quiet"]);
    let whole = read(&bench.path("v.img"));
    let start = whole.windows(512).position(|w| w == &fork[..512]).expect("the fork");
    bench.write("v.img", &whole[..start + 1024]);
    assert_eq!(bench.run(&["export", "v.img:/", "out"]).code, 1);
    let got = read(&bench.path("out/._file"));
    assert_eq!(got[..4], [0, 5, 0x16, 7], "what stands in front of the fork");
    let at = got.windows(512).position(|w| w == &fork[..512]).expect("the fork's beginning");
    assert_eq!(got.len(), at + fork.len());
    assert!(got[at..at + 1024] == fork[..1024], "what is there of it");
    assert!(got[at + 1024..].iter().all(|b| *b == 0), "and no more");
}

#[test]
fn a_folder_is_spelled_otherwise() {
    let bench = filled();
    bench.ok(&["mv", "v.img:/two", "v.img:/TWO"]);
    assert_eq!(bench.ok(&["ls", "v.img:/"]), "TWO\none\nthree\n");
    bench.ok(&["mv", "v.img:/TWO/file 1", "v.img:/two/FILE 1"]);
    assert!(bench.ok(&["ls", "v.img:/Two"]).contains("FILE 1\n"));
    // Into another one it goes as ever.
    bench.ok(&["mv", "v.img:/two", "v.img:/One"]);
    assert_eq!(bench.ok(&["cat", "v.img:/one/two/file 1"]), "two 1");
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn names_that_do_not_fit_cost_themselves_only() {
    let bench = volume();
    for name in ["A", "a", "z", "日本", &"x".repeat(40), "d/in", "D/in it too"] {
        bench.write(&format!("tree/{name}"), name.as_bytes());
    }
    bench.write(&format!("tree/{}/lost", "y".repeat(40)), b"lost");
    for (args, top) in [
        (&["put", "-r", "tree", "v.img:/"][..], "v.img:/tree"),
        (&["import", "tree", "v.img:/there"], "v.img:/there"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 1, "{ran:#?}");
        assert!(ran.err.contains("name too long") && ran.err.contains("MacRoman"), "{ran:#?}");
        assert!(ran.err.contains("the same on this volume"), "{ran:#?}");
        assert!(ran.err.contains("5 names left out"), "{ran:#?}");
        assert_eq!(bench.ok(&["cat", &format!("{top}/z")]), "z");
        assert_eq!(bench.ok(&["cat", &format!("{top}/d/in")]), "d/in");
        assert_eq!(bench.ok(&["cat", &format!("{top}/d/in it too")]), "D/in it too");
    }
    for (args, top) in [
        (&["put", "-r", "--fit-names", "tree", "v.img:/fit"][..], "v.img:/fit"),
        (&["import", "--fit-names", "tree", "v.img:/fit2"], "v.img:/fit2"),
    ] {
        let ran = bench.run(args);
        assert_eq!(ran.code, 0, "{ran:#?}");
        let list = bench.ok(&["ls", top]);
        assert_eq!(list.lines().count(), 8, "{list}");
        let all = bench.ok(&["ls", "-R", top]);
        assert!(all.contains("lost") && all.contains("in it too"), "{all}");
    }
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn nothing_half_made_is_left_on_a_full_volume() {
    for format in ["hfs", "mfs", "ext2"] {
        let bench = Bench::new();
        bench.ok(&["mkfs", format, "v.img", "--size", "800K", "--quiet"]);
        bench.write("tree/long", &noise(2 << 20, 1));
        for args in [
            &["put", "tree/long", "v.img:/"][..],
            &["import", "tree", "v.img:/"],
            &["put", "-r", "tree/.", "v.img:/"],
        ] {
            let said = bench.fails(1, args);
            assert!(said.contains("no space left"), "{said}");
            let list = bench.ok(&["ls", "v.img:/"]);
            assert!(!list.contains("long"), "{format}: {list}");
        }
        bench.ok(&["fsck", "v.img"]);
    }
}

#[test]
fn the_name_in_a_diskcopy_image_is_in_macroman() {
    let bench = Bench::new();
    let args =
        ["mkfs", "hfs", "f.image", "--size", "800K", "--diskcopy", "--label", "Été", "--quiet"];
    bench.ok(&args);
    let info = bench.json(&["info", "f.image"]);
    assert_eq!(info["layers"], serde_json::json!(["DiskCopy 4.2 \"Été\""]));
}

/// 16 GiB and more, where Apple wants another clump: checked with what weft's own check knows.
#[test]
fn large_volumes_are_clean() {
    let bench = Bench::new();
    for size in ["15G", "16G", "17G", "100G", "2T"] {
        bench.ok(&["mkfs", "hfs", "v.img", "--size", size, "--force", "--quiet"]);
        bench.ok(&["fsck", "v.img"]);
    }
    std::fs::remove_file(bench.path("v.img")).unwrap();
}
