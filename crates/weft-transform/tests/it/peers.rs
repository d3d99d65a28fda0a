//! The stored files of compressing networks with the tools that everybody has.

use std::io::Write;
use std::process::{Command, Stdio};

use weft_testing::Rng;
use weft_transform::store::MemoryBase;

use crate::common::{lines, open_base, read_all};

/// The output of a command that is given `input`; `None` if there is no such command.
fn piped(command: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?} fails");
    let _ = writer.join();
    Some(output.stdout)
}

fn both_ways(text: &str, decode: &[&str], encode: &[&[&str]]) {
    for len in [0, 1, 70_000, 700_000] {
        let data = lines(&mut Rng::new(len as u64), len);
        let base = MemoryBase::default();
        let mut store = open_base(&base, text);
        store.write_at(0, b"x").expect(text);
        store.write_at(0, &data).expect(text);
        store.set_len(len as u64).expect(text);
        store.commit().expect(text);
        let Some(decoded) = piped(decode, &base.content()) else {
            eprintln!("skipped: {} is not installed", decode[0]);
            return;
        };
        assert!(decoded == data, "{text}: {decode:?} of {len} bytes");
        for encode in encode {
            let theirs = piped(encode, &data).expect("the same tool");
            // One file behind the other is a file too.
            let twice = [theirs.clone(), theirs].concat();
            let mut store = open_base(&MemoryBase::new(twice), text);
            let got = read_all(&mut *store, 9999).expect(text);
            assert!(got == [&data[..], &data].concat(), "{text}: reads {encode:?} of {len} bytes");
        }
    }
}

#[test]
fn zstd() {
    both_ways(
        "zstd frame=64K",
        &["zstd", "-dcq"],
        &[&["zstd", "-cq"], &["zstd", "-cq", "--no-check", "-T0", "-19"]],
    );
}

#[test]
fn gzip() {
    both_ways("gzip", &["gzip", "-dc"], &[&["gzip", "-c"], &["gzip", "-cn1"]]);
}

#[test]
fn xz() {
    let blocks = ["xz", "-c0", "-T2", "--block-size=64KiB", "--check=sha256"];
    both_ways("xz level=1", &["xz", "-dc"], &[&["xz", "-c0"], &blocks, &["xz", "-c0", "-Ccrc32"]]);
}

#[test]
fn lz4() {
    both_ways("lz4", &["lz4", "-dcq"], &[&["lz4", "-cq"], &["lz4", "-cqB4D", "--content-size"]]);
}

#[test]
fn base64() {
    both_ways("base64", &["base64", "-d"], &[]);
}
