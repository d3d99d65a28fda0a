//! hfsutils both ways: what one writes the other reads, forks, names and all.

use super::{have, macbinary, noise, read, run, volume};
use crate::run::Bench;
use std::process::Command;

const HFSUTILS: [&str; 5] = ["hformat", "hmount", "hls", "hcopy", "humount"];

/// The names of a folder as hfsutils show them: bytes of MacRoman.
fn hls(bench: &Bench, folder: &str) -> Vec<Vec<u8>> {
    let out = Command::new("hls")
        .args(["-1b", folder])
        .env("HOME", bench.dir())
        .current_dir(bench.dir())
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    out.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(unescaped).collect()
}

/// A name as `hls -b` writes it: what is no plain letter in octal, or behind a backslash.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    let mut rest = line;
    while let Some((&byte, mut behind)) = rest.split_first() {
        let mut letter = byte;
        if byte == b'\\' {
            let octal = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
            let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
            letter = octal.unwrap_or(behind[0]);
            behind = &behind[if octal.is_some() { 3 } else { 1 }..];
        }
        name.push(letter);
        rest = behind;
    }
    name
}

#[test]
fn hfsutils_read_what_the_command_writes() {
    if !have(&HFSUTILS) {
        return;
    }
    let bench = volume();
    // Every letter that MacRoman has, sixteen to a name: those that are one to HFS kept apart by
    // numbers.
    let letters: Vec<u8> = (0x80..=0xff).collect();
    let mut wanted = Vec::new();
    for (number, some) in letters.chunks(16).enumerate() {
        let name = [format!("{number:02} ").as_bytes(), some].concat();
        let unix = weft::hfs::macroman::name_to_unix(&name);
        bench.write(&format!("in/{unix}"), &noise(5000 + number, number as u64));
        wanted.push(name);
    }
    // A slash on the Macintosh is a colon here.
    bench.write("in/24:7", b"slash");
    wanted.push(b"24/7".to_vec());
    bench.ok(&["put", "in/.", "v.img:/", "--quiet"]);
    let packed = macbinary(b"Both", b"APPLWeFt", &noise(100_000, 1), &noise(70_001, 2));
    bench.write("Both.bin", &packed);
    bench.ok(&["put", "--as", "macbinary", "Both.bin", "v.img:/", "--quiet"]);
    bench.ok(&["hfs", "set", "v.img:/Both", "--flags", "+bundle,+invisible"]);

    run(bench.dir(), "hmount", &["v.img"]);
    let names = hls(&bench, ":");
    for name in &wanted {
        assert!(names.contains(name), "{name:x?} is not among {names:x?}");
    }
    assert_eq!(names.len(), wanted.len(), "invisible files are not listed: {names:?}");
    run(bench.dir(), "hcopy", &["-m", ":Both", "by-hcopy.bin"]);
    let theirs = read(&bench.path("by-hcopy.bin"));
    assert_eq!(theirs[65..73], *b"APPLWeFt");
    assert_eq!(theirs[73] & 0x60, 0x60, "bundle and invisible");
    assert!(theirs[128..].starts_with(&noise(100_000, 1)));
    let resource = 128 + 100_000_usize.next_multiple_of(128);
    assert!(theirs[resource..].starts_with(&noise(70_001, 2)));
    run(bench.dir(), "hcopy", &["-r", ":24/7", "slash"]);
    assert_eq!(read(&bench.path("slash")), b"slash");
    let hattrib = run(bench.dir(), "hls", &["-la", ":Both"]).stdout;
    assert!(String::from_utf8_lossy(&hattrib).contains("APPL/WeFt"));
    run(bench.dir(), "humount", &[]);
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn the_command_reads_what_hfsutils_write() {
    if !have(&HFSUTILS) {
        return;
    }
    let bench = Bench::new();
    std::fs::File::create(bench.path("v.img")).unwrap().set_len(5 << 20).unwrap();
    run(bench.dir(), "hformat", &["-l", "Theirs", "v.img"]);
    run(bench.dir(), "hmount", &["v.img"]);
    bench.write(
        "Both.bin",
        &macbinary(b"Both \x8e", b"APPLWeFt", &noise(40_000, 1), &noise(9_999, 2)),
    );
    run(bench.dir(), "hcopy", &["-m", "Both.bin", ":"]);
    run(bench.dir(), "hmkdir", &["Folder"]);
    bench.write("text", b"one\ntwo\n");
    run(bench.dir(), "hcopy", &["-t", "text", ":Folder:text"]);
    run(bench.dir(), "humount", &[]);

    assert_eq!(bench.json(&["info", "v.img"])["label"], "Theirs");
    // libhfs fills in fields that must be zero; nothing else is wrong.
    let report = bench.run(&["fsck", "--json", "v.img"]).out;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for problem in report["problems"].as_array().unwrap() {
        let what = problem["problem"].as_str().unwrap();
        assert!(what.contains("filStBlk") || what.contains("filRStBlk"), "{what}");
    }
    assert_eq!(bench.run(&["fsck", "--repair", "v.img"]).code, 1);
    bench.ok(&["get", "--as", "macbinary", "v.img:/Both é", "back.bin", "--quiet"]);
    let back = read(&bench.path("back.bin"));
    assert_eq!(back[65..73], *b"APPLWeFt");
    assert!(back[128..].starts_with(&noise(40_000, 1)));
    let resource = 128 + 40_000_usize.next_multiple_of(128);
    assert!(back[resource..].starts_with(&noise(9_999, 2)));
    bench.ok(&["get", "--as", "text", "v.img:/Folder/text", "back", "--quiet"]);
    assert_eq!(read(&bench.path("back")), b"one\ntwo\n");
    // Changed by weft, and read again by them.
    bench.ok(&["cp", "v.img:/Both é", "v.img:/Folder/Second", "--quiet"]);
    bench.ok(&["rm", "v.img:/Both é"]);
    run(bench.dir(), "hmount", &["v.img"]);
    run(bench.dir(), "hcopy", &["-m", ":Folder:Second", "second.bin"]);
    run(bench.dir(), "humount", &[]);
    assert!(read(&bench.path("second.bin"))[128..].starts_with(&noise(40_000, 1)));
    bench.ok(&["fsck", "v.img"]);
}
