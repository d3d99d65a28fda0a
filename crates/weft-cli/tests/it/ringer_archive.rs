//! Archives through the real command: a directory, and S3.

use crate::ringer::Cell;
use crate::run::can_mount;
use crate::s3::S3;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use weft_testing::wait_until;

fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|n| (n % 249) as u8 ^ (n >> 18) as u8).collect()
}

#[test]
fn a_directory_keeps_what_its_writer_has_lost() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (bench, server) = (&cell.bench, cell.address());
    let (a, b) = (cell.mount("a"), cell.mount("b"));
    let url = format!("file://{}", bench.path("archive").display());
    bench.fails(1, &["ringer", "archive", "add", &server, &url]);
    bench.fails(1, &["ringer", "archive", "add", &server, "ftp://somewhere"]);
    fs::create_dir(bench.path("archive")).unwrap();
    let added = bench.json(&["ringer", "archive", "add", &server, &url]);
    let number = added["archive"].as_str().unwrap().to_owned();
    bench.fails(1, &["ringer", "archive", "add", &server, &url]);
    let list = bench.json(&["ringer", "archive", "list", &server]);
    assert_eq!((&list[0]["url"], list.as_array().unwrap().len()), (&url.clone().into(), 1));

    fs::create_dir(a.join("safe")).unwrap();
    let out = bench.json(&["ringer", "policy", "a/safe", "--archive", "fsync"]);
    assert_eq!((&out["archive"], &out["copies"]), (&"fsync".into(), &0.into()));
    let bytes = pattern(3_000_000);
    write_durably(&a.join("safe/file"), &bytes).expect("archived");
    let out = bench.json(&["ringer", "holders", "b/safe/file"]);
    let is_archived = |out: &serde_json::Value| {
        let copies = out["copies"].as_array().unwrap();
        copies.iter().any(|c| c["archive"] == true && c["current"] == true)
    };
    assert!(is_archived(&out), "{out}");
    cell.kill("a");
    fs::remove_dir_all(bench.path("a.store")).unwrap();
    assert!(fs::read(b.join("safe/file")).unwrap() == bytes);
    let status = bench.json(&["ringer", "status", "b"]);
    assert_eq!(status["archive_bytes_read"], 3_000_000, "{status}");

    // What nobody needs goes, and nothing before it was asked for.
    write_durably(&b.join("safe/short"), &pattern(1000)).expect("archived");
    fs::remove_file(b.join("safe/short")).unwrap();
    let sweep = |more: &[&str]| {
        bench.json(&[&["ringer", "archive", "sweep", &server][..], more].concat())[0].clone()
    };
    wait_until("one block is of no use", || sweep(&["--dry-run"])["unused_blocks"] == 1);
    let swept = sweep(&[&number]);
    assert_eq!((&swept["blocks"], &swept["deleted_blocks"]), (&13.into(), &1.into()), "{swept}");
    fs::write(b.join("safe/late"), b"late").unwrap();
    wait_until("it is archived in time", || {
        is_archived(&bench.json(&["ringer", "holders", "b/safe/late"]))
    });
    bench.ok(&["ringer", "doctor", &server]);

    bench.ok(&["ringer", "archive", "remove", &server, &number]);
    bench.fails(1, &["ringer", "archive", "remove", &server, &number]);
    let error = write_durably(&b.join("safe/more"), b"more").expect_err("there is none");
    assert_eq!(error.raw_os_error(), Some(6));
}

#[test]
fn s3_keeps_what_its_writer_has_lost() {
    if !can_mount() {
        return;
    }
    let cell = Cell::new();
    let (bench, server) = (&cell.bench, cell.address());
    let s3 = S3::start("the-key");
    let with = |key: &str, args: &[&str]| {
        let mut command = bench.command(args);
        command.env("AWS_ACCESS_KEY_ID", key).env("AWS_SECRET_ACCESS_KEY", "secret");
        command.env("AWS_REGION", "here").env("AWS_ENDPOINT_URL", &s3.endpoint);
        command.env("AWS_ALLOW_HTTP", "true");
        command.output().unwrap()
    };
    let add = ["ringer", "archive", "add", &server, "s3://bucket/cells/family"];
    let refused = with("another-key", &add);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("refused access to weft-archive"), "{said}");
    assert!(with("the-key", &add).status.success());
    assert!(s3.objects.lock().unwrap().contains_key("cells/family/weft-archive"));
    let records = fs::read(bench.path("cell")).unwrap();
    for secret in ["the-key", "secret"] {
        assert!(!records.windows(secret.len()).any(|w| w == secret.as_bytes()), "{secret}");
    }

    let mount = |name: &str, key: &str| {
        fs::create_dir(bench.path(name)).unwrap();
        let (store, pid) = (format!("{name}.store"), format!("{name}.pid"));
        let args = ["ringer", "mount", &server, name, "--store", &store, "--background"];
        let more = ["--pid-file", &pid, "--block-size", "64K", "--patience", "5"];
        let out = with(key, &[&args[..], &more].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        bench.path(name)
    };
    let (a, b) = (mount("a", "the-key"), mount("b", "the-key"));
    bench.ok(&["ringer", "policy", "a", "--archive", "fsync"]);
    let bytes = pattern(1_000_000);
    write_durably(&a.join("file"), &bytes).expect("archived");
    assert_eq!(s3.blocks(), 16);
    // Who may not write there hears so at once.
    let c = mount("c", "another-key");
    let error = write_durably(&c.join("other"), b"other").expect_err("no key");
    assert_eq!(error.raw_os_error(), Some(13));
    assert_eq!(fs::read(c.join("other")).unwrap(), b"other", "it is here");
    cell.kill("a");
    fs::remove_dir_all(bench.path("a.store")).unwrap();
    assert!(fs::read(b.join("file")).unwrap() == bytes);

    fs::remove_file(b.join("file")).unwrap();
    let sweep = |more: &[&str]| {
        let args = [&["ringer", "archive", "sweep", &server, "--json"][..], more].concat();
        let out = with("the-key", &args);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()[0].clone()
    };
    wait_until("its blocks are of no use", || sweep(&["--dry-run"])["unused_blocks"] == 16);
    assert_eq!(s3.blocks(), 16);
    assert_eq!(sweep(&[])["deleted_blocks"], 16);
    assert_eq!(s3.blocks(), 0);
}
