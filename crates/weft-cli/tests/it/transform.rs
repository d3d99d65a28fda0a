//! `weft transform`: networks on files of the host, of volumes and of streams.

use crate::run::Bench;
use std::fs;
use std::io::Write;
use std::process::Stdio;

fn piped(bench: &Bench, args: &[&str], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = bench
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // It may end early.
        let _ = stdin.write_all(&input);
    });
    let out = child.wait_with_output().expect("it ends");
    writer.join().expect("a thread");
    (out.status.code().unwrap_or(-1), out.stdout, String::from_utf8_lossy(&out.stderr).into())
}

fn with_key() -> Bench {
    let bench = Bench::new();
    bench.ok(&["transform", "keys", "new", "./work.key"]);
    bench
}

#[test]
fn streams_run_both_ways() {
    let bench = with_key();
    let text = b"words that repeat, words that repeat\n".repeat(30_000);
    let key = ["--key", "work=work.key"];
    for network in ["rot13", "zstd", "gzip | base64", "lz4 | xor hex=5a", "zstd | aead key=work"] {
        let args = [&["transform", "run", network][..], &key].concat();
        let (code, stored, err) = piped(&bench, &args, &text);
        assert_eq!(code, 0, "{network}: {err}");
        assert_ne!(stored, text, "{network}");
        let args = [&["transform", "run", network, "--inverse"][..], &key].concat();
        let (code, back, err) = piped(&bench, &args, &stored);
        assert_eq!(code, 0, "{network}: {err}");
        assert!(back == text, "{network}");
    }
    let (_, shown, _) = piped(&bench, &["transform", "run", "view: upper"], b"quiet");
    assert_eq!(shown, b"QUIET");
    let (code, _, err) = piped(&bench, &["transform", "run", "zstd", "--inverse"], b"no zstd");
    assert_eq!(code, 1);
    assert!(err.contains("zstd"), "{err}");
}

#[test]
fn samples_prove_a_network() {
    let bench = with_key();
    bench.write("sample", b"my own");
    let report = bench.json(&[
        "transform",
        "test",
        "zstd | aead key=work",
        "sample",
        "--key",
        "work=work.key",
    ]);
    assert_eq!(report["failed"], 0);
    assert!(report["samples"].as_array().unwrap().iter().any(|s| s["sample"] == "sample"));
    // One that loses something is found out.
    let report = bench.run(&["transform", "test", "charset to=windows-1252", "--json"]);
    assert_eq!(report.code, 1, "{report:#?}");
    assert!(report.out.contains("\"same\": false"));
    // And what is refused for files says why, and what would do.
    let report = bench.run(&["transform", "test", "zstd | lz4"]);
    assert_eq!(report.code, 1, "{report:#?}");
    assert!(
        report.out.contains("written through it") && report.out.contains("would do"),
        "{report:#?}"
    );
    bench.fails(2, &["transform", "test", "view: upper"]);
}

#[test]
fn mistakes_are_explained() {
    let bench = with_key();
    bench.write("f", b"content");
    for (args, says) in [
        (&["transform", "attach", "zsdt", "f"][..], "did you mean \"zstd\"?"),
        (&["transform", "attach", "aead key=nobody", "f"], "no key named \"nobody\""),
        (&["transform", "attach", "zstd levle=3", "f"], "level"),
        (&["transform", "attach", "zstd", "f", "--for", "update"], "\"identity\" would do"),
        (&["transform", "attach", "zstd | gzip", "f"], "\"gzip\" would do"),
        (&["transform", "attach", "zstd |", "f"], "byte 6"),
        (&["transform", "attach", "zstd", "nothing"], "nothing"),
        (&["transform", "pop", "f"], "carries no network"),
        (&["transform", "push", "upper", "nothing"], "nothing"),
    ] {
        let err = bench.fails(1, args);
        assert!(err.contains(says), "{args:?}: {err}");
    }
    assert_eq!(fs::read(bench.path("f")).unwrap(), b"content");
}

/// Attributes of the user need a file system that has them.
fn has_attributes(bench: &Bench) -> bool {
    let probe = bench.path("probe");
    fs::write(&probe, "x").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let has = rustix::fs::setxattr(&probe, "user.probe", b"x", flags).is_ok();
    if !has {
        println!("not here: the file system of temporary files has no extended attributes");
    }
    has
}

#[test]
fn networks_come_and_go_on_files_of_the_host_and_of_volumes() {
    let bench = with_key();
    let text = "a line of a log\n".repeat(5000);
    bench.write("log", text.as_bytes());
    bench.ok(&["mkfs", "ext2", "v.img", "--size", "16M", "--quiet"]);
    bench.ok(&["put", "log", "v.img:/"]);
    let key = ["--key", "work=work.key"];
    let transform = |args: &[&str]| bench.ok(&[&["transform"][..], args, &key].concat());
    let mut files = vec!["v.img:/log"];
    if has_attributes(&bench) {
        files.push("log");
    }
    for file in files {
        let stored = || match file {
            "log" => fs::read(bench.path("log")).unwrap(),
            _ => {
                bench.ok(&["get", file, "./taken", "--no-xattrs"]);
                let taken = fs::read(bench.path("taken")).unwrap();
                fs::remove_file(bench.path("taken")).unwrap();
                taken
            }
        };
        transform(&["attach", "zstd | aead key=work", file]);
        assert_eq!(transform(&["show", file]), format!("{file}: zstd | aead key=work\n"));
        let sealed = stored();
        assert!(sealed.len() < text.len() / 4);
        let explained = bench.json(&[&["transform", "explain", file][..], &key].concat());
        assert_eq!(explained[0]["source"]["kind"], "attribute");
        assert_eq!(explained[0]["write"], "rewrite");
        assert_eq!(explained[0]["stages"][0]["stage"], "aead");
        // Pushed and popped: what is stored stays.
        transform(&["push", "rot13", file]);
        assert_eq!(transform(&["show", file]), format!("{file}: rot13 | zstd | aead key=work\n"));
        assert!(stored() == sealed);
        transform(&["pop", file]);
        transform(&["attach", "gzip", file]);
        let gzip = stored();
        assert_eq!(gzip[..2], [0x1f, 0x8b]);
        transform(&["detach", file]);
        assert!(stored() == text.as_bytes(), "{file}");
        // As it is stored, or as it is shown.
        transform(&["attach", "view: upper", file]);
        assert!(stored() == text.as_bytes());
        transform(&["detach", file]);
        assert!(stored() == text.as_bytes());
    }
}

#[test]
fn keys_are_made_listed_and_rotated() {
    let bench = Bench::new();
    let home = bench.path("keys");
    let keys = |args: &[&str]| {
        let mut command = bench.command(&[&["transform", "keys"][..], args].concat());
        crate::run::ran(&command.env("WEFT_KEYS", &home).output().expect("weft runs"))
    };
    assert_eq!(keys(&["new", "work"]).code, 0);
    let again = keys(&["new", "work"]);
    assert!(again.code == 1 && again.err.contains("--rotate"), "{again:#?}");
    let first = fs::read_to_string(home.join("work")).unwrap();
    assert_eq!(keys(&["new", "work", "--rotate"]).code, 0);
    let both = fs::read_to_string(home.join("work")).unwrap();
    assert_eq!(both.lines().count(), 2);
    assert!(both.ends_with(&first));
    let listed = keys(&["list"]);
    assert!(listed.out.starts_with("work") && !listed.out.contains(first.trim()), "{listed:#?}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(home.join("work")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn stages_are_listed() {
    let bench = Bench::new();
    let listed = bench.json(&["transform", "list"]);
    let zstd = listed.as_array().unwrap().iter().find(|s| s["stage"] == "zstd").expect("zstd");
    assert!(zstd["parameters"]["level"].is_string());
}
