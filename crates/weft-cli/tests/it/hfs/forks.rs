//! Both forks out and in: every way of packing them, lossless, and as other tools understand it.

use super::{have, macbinary, noise, read, run, volume};
use crate::run::Bench;

/// A volume with a file of both forks, an icon file of no data, a plain one, and a text.
fn filled() -> (Bench, Vec<u8>, Vec<u8>) {
    let bench = volume();
    let (data, resource) = (noise(30_000, 3), noise(12_345, 4));
    bench.write("Game.bin", &macbinary(b"Game \xc4", b"APPLWeFt", &data, &resource));
    bench.ok(&["put", "--as", "macbinary", "Game.bin", "v.img:/", "--quiet"]);
    bench.write("Icon.bin", &macbinary(b"Icon\r", b"iconMACS", b"", &noise(700, 5)));
    bench.ok(&["put", "--as", "auto", "Icon.bin", "v.img:/", "--quiet"]);
    bench.write("plain.txt", b"plain");
    bench.ok(&["put", "plain.txt", "v.img:/", "--quiet"]);
    (bench, data, resource)
}

/// What a volume says of everything on it, without inode numbers.
fn state(bench: &Bench, image: &str) -> serde_json::Value {
    let mut list = bench.json(&["hfs", "ls", "-R", &format!("{image}:/")]);
    for rows in list.as_array_mut().unwrap() {
        for row in rows.as_array_mut().unwrap() {
            row["id"] = 0.into();
            row["created"] = "".into();
            row["backed_up"] = "".into();
        }
    }
    list
}

#[test]
fn every_packing_comes_back_as_it_was() {
    let (bench, data, resource) = filled();
    for (format, packed) in [
        ("macbinary", "Game ƒ.bin"),
        ("applesingle", "Game ƒ.as"),
        ("appledouble", "Game ƒ"),
        ("binhex", "Game ƒ.hqx"),
    ] {
        let dir = format!("out-{format}");
        std::fs::create_dir(bench.path(&dir)).unwrap();
        bench.ok(&["get", "v.img:/Game ƒ", &dir, "--as", format, "--quiet"]);
        let first = read(&bench.path(&format!("{dir}/{packed}")));
        let image = format!("{format}.img");
        bench.ok(&["mkfs", "hfs", &image, "--size", "2M", "--quiet"]);
        let from = format!("{dir}/{packed}");
        bench.ok(&["put", &from, &format!("{image}:/"), "--as", format, "--quiet"]);
        let (a, b) = (
            bench.json(&["hfs", "info", "v.img:/Game ƒ"])[0].clone(),
            bench.json(&["hfs", "info", &format!("{image}:/Game ƒ")])[0].clone(),
        );
        for field in ["file_type", "creator", "flags", "data_bytes", "resource_bytes"] {
            assert_eq!(a[field], b[field], "{format}: {field}");
        }
        if format != "binhex" {
            assert_eq!(
                (&a["created"], &a["modified"]),
                (&b["created"], &b["modified"]),
                "{format}"
            );
        }
        let back = format!("{image}:/Game ƒ");
        bench.ok(&["get", &back, "back", "--as", "data", "--quiet"]);
        assert_eq!(read(&bench.path("back")), data, "{format}");
        let fork = bench.command(&["cat", "--resource", &back]).output().unwrap();
        assert!(fork.stdout == resource, "{format}: the resource fork");
        // Packed again it is the same, byte for byte.
        std::fs::create_dir(bench.path("twice")).unwrap();
        bench.ok(&["get", &back, "twice", "--as", format, "--quiet"]);
        assert!(read(&bench.path(&format!("twice/{packed}"))) == first, "{format} twice");
        std::fs::remove_dir_all(bench.path("twice")).unwrap();
    }
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn trees_go_out_and_in_with_all_they_have() {
    let (bench, ..) = filled();
    bench.ok(&["mkdir", "v.img:/Folder"]);
    bench.ok(&["cp", "v.img:/Game ƒ", "v.img:/Folder", "--quiet"]);
    bench.ok(&["hfs", "set", "v.img:/Folder", "--view", "256", "--modified", "1999-09-09"]);
    let before = state(&bench, "v.img");
    // As AppleDoubles, which is what get, cp, import and export do unasked.
    bench.ok(&["export", "v.img:/", "tree", "--quiet"]);
    assert!(bench.path("tree/._Game ƒ").exists() && bench.path("tree/Folder/._Game ƒ").exists());
    assert!(!bench.path("tree/._plain.txt").exists(), "its name says all there is");
    for (image, how) in [("a.img", vec!["import", "tree"]), ("b.img", vec!["put", "tree/."])] {
        bench.ok(&["mkfs", "hfs", image, "--size", "20M", "--quiet"]);
        bench.ok(&[&how[..], &[&format!("{image}:/"), "--quiet"]].concat());
        assert_eq!(state(&bench, image), before, "{how:?}");
        bench.ok(&["fsck", image]);
    }
    // Packed, and by what they are.
    std::fs::create_dir(bench.path("packed")).unwrap();
    bench.ok(&["get", "-r", "v.img:/", "packed", "--as", "auto", "--quiet"]);
    assert!(bench.path("packed/Game ƒ.bin").exists() && bench.path("packed/plain.txt").exists());
    bench.ok(&["mkfs", "hfs", "c.img", "--size", "20M", "--quiet"]);
    bench.ok(&["put", "-r", "packed/.", "c.img:/", "--as", "auto", "--quiet"]);
    let names = |v: &serde_json::Value| {
        let rows = v[0].as_array().unwrap();
        rows.iter().map(|r| r["path"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&state(&bench, "c.img")), names(&before));
    // Between volumes, and onto one that knows no forks.
    bench.ok(&["mkfs", "mfs", "m.img", "--size", "800K", "--quiet"]);
    bench.ok(&["cp", "v.img:/Game ƒ", "m.img:/", "--quiet"]);
    assert_eq!(bench.json(&["hfs", "info", "m.img:/Game ƒ"])[0]["resource_bytes"], 12_345);
    bench.ok(&["mkfs", "ext2", "e.img", "--size", "8M", "--quiet"]);
    bench.ok(&["cp", "v.img:/Game ƒ", "e.img:/", "--quiet"]);
    assert!(bench.ok(&["ls", "-a", "e.img:/"]).contains("._Game ƒ"));
}

#[test]
fn folders_are_shared_with_basilisk_ii() {
    let (bench, data, resource) = filled();
    bench.ok(&["mkdir", "v.img:/Folder"]);
    bench.ok(&["cp", "v.img:/Game ƒ", "v.img:/Folder", "--quiet"]);
    bench.ok(&["hfs", "set", "v.img:/Folder", "--view", "256", "--comment-id", "77"]);
    let before = state(&bench, "v.img");
    std::fs::create_dir(bench.path("out")).unwrap();
    bench.ok(&["get", "v.img:/", "out", "--as", "basilisk", "--quiet"]);
    assert_eq!(read(&bench.path("out/Folder/Game ƒ")), data);
    assert_eq!(read(&bench.path("out/Folder/.rsrc/Game ƒ")), resource);
    let info = read(&bench.path("out/Folder/.finf/Game ƒ"));
    assert_eq!((info.len(), &info[..8]), (32, &b"APPLWeFt"[..]));
    assert!(!bench.path("out/.rsrc/plain.txt").exists());
    assert_eq!(read(&bench.path("out/.finf/Folder"))[14..16], [1, 0], "the view of a folder");
    bench.ok(&["mkfs", "hfs", "b.img", "--size", "20M", "--quiet"]);
    bench.ok(&["put", "out/.", "b.img:/", "--as", "basilisk", "--quiet"]);
    let (mut before, mut after) = (before, state(&bench, "b.img"));
    for list in [&mut before, &mut after] {
        for rows in list.as_array_mut().unwrap() {
            rows.as_array_mut().unwrap().iter_mut().for_each(|row| row["modified"] = "".into());
        }
    }
    assert_eq!(after, before, "all but the dates");
    let finder = |image: &str| {
        let info = bench.json(&["hfs", "info", &format!("{image}:/Folder")]);
        info[0]["finder"].clone()
    };
    assert_eq!(finder("b.img"), finder("v.img"));
    bench.ok(&["fsck", "b.img"]);
}

#[test]
fn text_is_converted_on_request_only() {
    let bench = volume();
    bench.write("letter", "Grüße\nzweite Zeile\n".as_bytes());
    bench.ok(&["put", "letter", "v.img:/plain", "--quiet"]);
    assert_eq!(bench.ok(&["cat", "v.img:/plain"]), "Grüße\nzweite Zeile\n");
    bench.ok(&["put", "letter", "v.img:/text", "--as", "text", "--quiet"]);
    let raw = bench.command(&["cat", "v.img:/text"]).output().unwrap().stdout;
    assert_eq!(raw, b"Gr\x9f\xa7e\rzweite Zeile\r");
    assert_eq!(bench.json(&["hfs", "info", "v.img:/text"])[0]["file_type"], "TEXT");
    bench.ok(&["get", "v.img:/text", "back", "--as", "text", "--quiet"]);
    assert_eq!(read(&bench.path("back")), "Grüße\nzweite Zeile\n".as_bytes());
    bench.write("japanese", "日本".as_bytes());
    let said = bench.fails(1, &["put", "japanese", "v.img:/x", "--as", "text"]);
    assert!(said.contains("MacRoman has no"), "{said}");
    assert_eq!(bench.ok(&["ls", "v.img:/"]), "plain\ntext\n", "nothing half made is left");
}

#[test]
fn what_is_lost_is_said() {
    let (bench, ..) = filled();
    let ran = bench.run(&["get", "v.img:/Game ƒ", "raw", "--as", "raw"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("12345 bytes of resource fork"), "{ran:#?}");
    bench.write("no.bin", b"this is no MacBinary");
    let said = bench.fails(1, &["put", "no.bin", "v.img:/", "--as", "macbinary"]);
    assert!(said.contains("MacBinary header"), "{said}");
    assert!(bench.fails(2, &["get", "v.img:/plain.txt", "x", "--as", "zip"]).contains("binhex"));
}

#[test]
fn files_of_this_computer_are_converted() {
    let (bench, data, resource) = filled();
    std::fs::create_dir(bench.path("out")).unwrap();
    let mut from = "Game.bin".to_owned();
    for (format, name) in [
        ("binhex", "Game ƒ.hqx"),
        ("applesingle", "Game ƒ.as"),
        ("appledouble", "Game ƒ"),
        ("macbinary", "Game ƒ.bin"),
    ] {
        let report = bench.json(&["hfs", "convert", &from, "out", "--as", format]);
        assert_eq!(
            (&report["data_bytes"], &report["resource_bytes"]),
            (&30_000.into(), &12_345.into())
        );
        from = format!("out/{name}");
        assert!(bench.path(&from).exists(), "{format}");
    }
    let whole = read(&bench.path(&from));
    assert!(whole[128..].starts_with(&data));
    assert!(whole.windows(resource.len()).any(|w| w == resource));
}

#[test]
fn other_tools_unpack_what_weft_packs() {
    if !have(&["unar", "macsave"]) {
        return;
    }
    let (bench, data, resource) = filled();
    let dir = bench.dir();
    for (format, name) in [("macbinary", "g.bin"), ("binhex", "g.hqx"), ("applesingle", "g.as")] {
        bench.ok(&["get", "v.img:/Game ƒ", name, "--as", format, "--quiet"]);
        // Resource forks as AppleDoubles beside the files.
        let out = format!("by-unar-{format}");
        run(dir, "unar", &["-q", "-k", "visible", "-D", "-o", &out, name]);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(bench.path(&out)).unwrap() {
            found.push(read(&entry.unwrap().path()));
        }
        assert!(found.contains(&data), "unar finds the data fork of {format}");
        let whole = |f: &Vec<u8>| f.windows(resource.len()).any(|w| w == resource);
        assert!(found.iter().any(whole), "unar finds the resource fork of {format}");
    }
    // macsave takes MacBinary apart into NAME.data, NAME.rsrc and NAME.info.
    let input = std::fs::File::open(bench.path("g.bin")).unwrap();
    let macsave =
        std::process::Command::new("macsave").arg("-3").current_dir(dir).stdin(input).output();
    assert!(macsave.unwrap().status.success());
    let taken = |suffix: &str| {
        let all = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let mut all = all.filter(|p| p.extension().is_some_and(|e| e == suffix));
        read(&all.next().unwrap_or_else(|| panic!("no .{suffix}")))
    };
    assert_eq!(taken("data"), data);
    assert_eq!(taken("rsrc"), resource);
}

#[test]
fn weft_unpacks_what_macutils_pack() {
    if !have(&["hexbin"]) {
        return;
    }
    let (bench, data, resource) = filled();
    bench.ok(&["get", "v.img:/Game ƒ", "g.hqx", "--as", "binhex", "--quiet"]);
    // hexbin turns it into MacBinary, of its own make.
    run(bench.dir(), "hexbin", &["g.hqx"]);
    let made = std::fs::read_dir(bench.dir()).unwrap().map(|e| e.unwrap().path());
    let own = ["Game.bin", "Icon.bin"].map(|name| bench.path(name));
    let made: Vec<_> =
        made.filter(|p| p.extension().is_some_and(|e| e == "bin") && !own.contains(p)).collect();
    let [made] = &made[..] else { panic!("hexbin made {made:?}") };
    let made = made.file_name().unwrap().to_str().unwrap();
    bench.ok(&["mkfs", "hfs", "h.img", "--size", "2M", "--quiet"]);
    bench.ok(&["put", made, "h.img:/back", "--as", "auto", "--quiet"]);
    let raw = bench.command(&["cat", "h.img:/back"]).output().unwrap().stdout;
    assert!(raw == data, "the data fork");
    let raw = bench.command(&["cat", "--resource", "h.img:/back"]).output().unwrap().stdout;
    assert!(raw == resource, "the resource fork");
}

/// AppleDoubles in the places where other programs put them are joined with their files.
#[test]
fn halves_in_other_places_are_joined() {
    let (bench, data, resource) = filled();
    std::fs::create_dir(bench.path("out")).unwrap();
    bench.ok(&["get", "v.img:/Game ƒ", "out/App", "--quiet"]);
    let double = read(&bench.path("out/._App"));
    bench.write("unar/App", &data);
    bench.write("unar/App.rsrc", &double);
    bench.write("unar/Plain.rsrc", b"no AppleDouble");
    bench.write("zip/Folder/App", &data);
    bench.write("zip/__MACOSX/Folder/._App", &double);
    bench.write("basilisk/App", &data);
    bench.write("basilisk/.rsrc/App", &resource);
    bench.write("basilisk/.finf/App", b"APPLWeFt\0\0\0\0\0\0\0\0");
    let ways: [&[&str]; 9] = [
        &["put", "unar/.", "w.img:/"],
        &["put", "unar/App", "unar/App.rsrc", "w.img:/"],
        &["put", "unar/App", "w.img:/"],
        &["import", "unar", "w.img:/"],
        &["put", "--as", "auto", "unar/.", "w.img:/"],
        &["mkfs", "hfs", "w.img", "--size", "2M", "--force", "--import", "unar"],
        &["put", "zip/.", "w.img:/"],
        &["put", "--as", "auto", "zip/.", "w.img:/"],
        &["put", "--as", "auto", "basilisk/.", "w.img:/"],
    ];
    for args in ways {
        bench.ok(&["mkfs", "hfs", "w.img", "--size", "2M", "--force", "--quiet"]);
        bench.ok(args);
        let path = if args.contains(&"zip/.") { "w.img:/Folder/App" } else { "w.img:/App" };
        let info = bench.json(&["hfs", "info", path])[0].clone();
        assert_eq!(info["resource_bytes"], 12_345, "{args:?}");
        assert_eq!(info["file_type"], "APPL", "{args:?}");
        assert!(bench.command(&["cat", path]).output().unwrap().stdout == data, "{args:?}");
        let all = bench.ok(&["ls", "-a", "-R", "w.img:/"]);
        assert!(!all.contains("App.rsrc") && !all.contains("__MACOSX"), "{args:?}: {all}");
        assert_eq!(
            all.contains("Plain.rsrc"),
            args.iter().any(|a| a.starts_with("unar") && *a != "unar/App" && *a != "unar/App.rsrc"),
            "{all}"
        );
    }
    // Others that would be lost are said.
    bench.ok(&["mkfs", "hfs", "w.img", "--size", "2M", "--force", "--quiet"]);
    let ran = bench.run(&["put", "basilisk/.", "w.img:/"]);
    assert!(ran.err.contains("--as basilisk"), "{ran:#?}");
}

/// A locked file of a floppy of 1984 survives each way.
#[test]
fn locked_files_keep_all_they_have() {
    let (bench, _, resource) = filled();
    for format in ["mfs", "hfs"] {
        for image in ["k.img", "n.img"] {
            bench.ok(&["mkfs", format, image, "--size", "800K", "--force", "--quiet"]);
        }
        bench.ok(&["cp", "v.img:/Game ƒ", "k.img:/App", "--quiet"]);
        bench.ok(&["hfs", "set", "k.img:/App", "--locked", "yes"]);
        bench.ok(&["cp", "k.img:/App", "k.img:/two", "--quiet"]);
        let _ = std::fs::remove_dir_all(bench.path("d"));
        bench.ok(&["export", "k.img:/", "d", "--quiet"]);
        bench.ok(&["export", "k.img:/", "k.tar", "--quiet"]);
        bench.ok(&["put", "d/App", "n.img:/one", "--quiet"]);
        bench.ok(&["import", "k.tar", "n.img:/", "--quiet"]);
        for path in ["k.img:/two", "n.img:/one", "n.img:/App", "n.img:/two"] {
            let info = bench.json(&["hfs", "info", path])[0].clone();
            assert_eq!(info["resource_bytes"], resource.len(), "{format} {path}");
            assert_eq!(info["file_type"], "APPL", "{format} {path}");
            assert_eq!(info["locked"], true, "{format} {path}");
        }
    }
}

/// Damage of a packed file shows at its end, by a checksum.
#[test]
fn a_packed_file_that_is_damaged_replaces_nothing() {
    let (bench, ..) = filled();
    bench.ok(&["get", "v.img:/Game ƒ", "Game.hqx", "--as", "binhex", "--quiet"]);
    let mut packed = read(&bench.path("Game.hqx"));
    let at = packed.len() * 9 / 10;
    packed[at] = if packed[at] == b'!' { b'"' } else { b'!' };
    bench.write("damaged.hqx", &packed);
    for image in ["v.img", "m.img"] {
        if image == "m.img" {
            bench.ok(&["mkfs", "mfs", image, "--size", "400K", "--quiet"]);
        }
        let to = format!("{image}:/Game ƒ");
        bench.ok(&["put", "--as", "binhex", "Game.hqx", &to, "--quiet"]);
        let before = state(&bench, image);
        bench.fails(1, &["put", "--as", "binhex", "damaged.hqx", &to]);
        assert_eq!(state(&bench, image), before, "{image}");
        bench.ok(&["put", "--as", "binhex", "Game.hqx", &to, "--quiet"]);
        assert_eq!(state(&bench, image), before, "{image}");
        assert_eq!(bench.run(&["fsck", image]).code, 0, "{image}");
    }
}

#[test]
fn a_packed_file_replaces_one_where_there_is_no_room_for_both() {
    let bench = Bench::new();
    for (format, size) in [("hfs", "800K"), ("mfs", "400K")] {
        let _ = std::fs::remove_file(bench.path("v.img"));
        bench.ok(&["mkfs", format, "v.img", "--size", size, "--quiet"]);
        let free = bench.json(&["df", "v.img"])[0].clone();
        let number = |key: &str| free[key].as_u64().expect("a number") as usize;
        let free = number("blocks_available") * number("block_bytes");
        for seed in [7, 8] {
            let (data, resource) = (noise(free / 3, seed), noise(free / 3, seed + 10));
            bench.write("Game.bin", &macbinary(b"Game", b"APPLWeFt", &data, &resource));
            let ran = bench.run(&["put", "--as", "macbinary", "Game.bin", "v.img:/"]);
            assert_eq!(ran.code, 0, "{format}: {ran:#?}");
            let said = ran.err.contains("/Game: the old file was removed first");
            assert_eq!(said, seed == 8, "{format}: {ran:#?}");
            bench.ok(&["get", "--as", "data", "v.img:/Game", "data", "--quiet"]);
            assert!(read(&bench.path("data")) == data, "{format}");
        }
        let big = noise(free, 9);
        bench.write("Game.bin", &macbinary(b"Game", b"APPLWeFt", &big, &big));
        bench.fails(1, &["put", "--as", "macbinary", "Game.bin", "v.img:/"]);
        bench.ok(&["get", "--as", "data", "v.img:/Game", "data", "--quiet"]);
        assert!(read(&bench.path("data")) == noise(free / 3, 8), "{format}: the old file is gone");
        assert_eq!(bench.run(&["fsck", "v.img"]).code, 0, "{format}");
    }
}
