//! Archives as the tools that everybody has make them, against what these tools read of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use weft_transform::{Rules, TransformFs, TransformOptions};
use weft_vfs::{Caller, FileKind, FileSystem, MemFs, Walker};

use crate::common::registry;

/// Runs a shell line in a directory; false if a tool is missing.
fn shell(dir: &Path, tools: &[&str], line: &str) -> bool {
    for tool in tools {
        let there =
            Command::new("sh").args(["-c", &format!("command -v {tool} >/dev/null")]).status();
        if !there.expect("sh").success() {
            eprintln!("skipped: {tool} is not installed");
            return false;
        }
    }
    let output = Command::new("sh").args(["-ec", line]).current_dir(dir).output().expect("sh");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    true
}

/// A file system with one archive, `x`.
fn archive(content: &[u8]) -> TransformFs {
    let below = Arc::new(MemFs::new());
    Walker::new(&*below).write_file(b"/x", content, 0o644).expect("a file");
    let options = TransformOptions { rules: Rules::default(), ..TransformOptions::default() };
    TransformFs::new(below, registry(), options).expect("a root")
}

fn read(fs: &TransformFs, path: &str) -> weft_vfs::Result<Vec<u8>> {
    Walker::new(fs).read_file(format!("/x@tree/{path}").as_bytes())
}

fn stat(fs: &TransformFs, path: &str) -> weft_vfs::Result<weft_vfs::Attr> {
    Ok(*Walker::new(fs).resolve(format!("/x@tree/{path}").as_bytes())?.attr())
}

fn target(fs: &TransformFs, path: &str) -> Vec<u8> {
    let link = Walker::new(fs).resolve_link(format!("/x@tree/{path}").as_bytes()).expect(path);
    fs.readlink(link.ino()).expect(path)
}

fn made(dir: &tempfile::TempDir, name: &str) -> TransformFs {
    archive(&fs::read(dir.path().join(name)).expect(name))
}

#[test]
fn hard_links_of_tar_lead_to_anything_and_in_both_directions() {
    let dir = tempfile::tempdir().expect("a directory");
    // The last member of a name counts, so that a deleted first one makes a link before its target.
    let line = "echo content > one; ln -s one sl; ln sl sl2; ln one two; ln one three; mkfifo pipe
        tar cf x.tar one two three sl sl2 pipe
        tar cf late.tar one two; tar --delete -f late.tar one
        tar cf rest.tar one; tar -A -f late.tar rest.tar";
    if !shell(dir.path(), &["tar", "mkfifo"], line) {
        return;
    }
    let fs = made(&dir, "x.tar");
    for name in ["one", "two", "three"] {
        assert_eq!(read(&fs, name).expect(name), b"content\n");
    }
    for name in ["sl", "sl2"] {
        assert_eq!(target(&fs, name), b"one", "{name}");
    }
    assert_eq!(stat(&fs, "pipe").expect("listed").kind, FileKind::Fifo);
    let fs = made(&dir, "late.tar");
    assert_eq!(read(&fs, "two").expect("a link before its target"), b"content\n");
}

#[test]
fn tars_of_all_ages_are_archives() {
    let dir = tempfile::tempdir().expect("a directory");
    let line = "mkdir -p d/empty; chmod 750 d/empty; echo content > d/f
        tar c --format=v7 -f v7.tar d; tar c -g snapshot -f incremental.tar d
        tar cf none.tar -T /dev/null; head -c 10240 /dev/zero > zeroes; echo x >> zeroes";
    if !shell(dir.path(), &["tar"], line) {
        return;
    }
    for name in ["v7.tar", "incremental.tar"] {
        let fs = made(&dir, name);
        assert_eq!(read(&fs, "d/f").expect(name), b"content\n");
        let empty = stat(&fs, "d/empty").expect(name);
        assert_eq!((empty.kind, empty.perm & 0o555), (FileKind::Directory, 0o550), "{name}");
        assert!(empty.mtime.secs > 1_000_000, "{name}");
    }
    assert!(shell(dir.path(), &["tar"], "tar cf implied.tar d/f"));
    let implied = stat(&made(&dir, "implied.tar"), "d").expect("implied by a name");
    assert!(implied.mtime.secs > 1_000_000, "the time of the archive");
    let fs = made(&dir, "none.tar");
    assert_eq!(stat(&fs, "").expect("an archive").kind, FileKind::Directory);
    assert!(stat(&made(&dir, "zeroes"), "").is_err(), "no archive");
    assert!(stat(&archive(&[0; 512]), "").is_err(), "no archive");
    assert!(stat(&archive(b""), "").is_err(), "no archive");
}

#[test]
fn packed_tars_may_have_frames_to_skip_and_padding() {
    let dir = tempfile::tempdir().expect("a directory");
    let line = "seq 300000 > f; tar cf x.tar f; pzstd -q x.tar -o x.zst; gzip -c x.tar > x.gz
        head -c 1000 /dev/zero >> x.gz; gzip -dc x.gz | cmp - x.tar
        cp x.gz bad.gz; echo garbage >> bad.gz";
    if !shell(dir.path(), &["tar", "pzstd", "gzip"], line) {
        return;
    }
    let f = fs::read(dir.path().join("f")).expect("made");
    for name in ["x.zst", "x.gz"] {
        assert!(read(&made(&dir, name), "f").expect(name) == f, "{name}");
    }
    assert!(read(&made(&dir, "bad.gz"), "f").is_err(), "what is behind the padding is damage");
}

#[test]
fn zips_have_owners_times_and_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let line = "echo content > file; touch -d '2001-02-03 04:05:07 UTC' file
        TZ=America/New_York zip -q x.zip file
        (echo '#!/bin/sh'; cat x.zip) > prefixed; zip -qA prefixed 2>/dev/null || true
        (echo 'no adjusted offsets'; cat x.zip) > raw
        python3 - <<'P'
import zipfile
with zipfile.ZipFile('names.zip', 'w') as z:
    z.writestr('../up', 'up'); z.writestr('a/../../b', 'b')
    z.writestr('gr\u{fc}n', 'green')
    z.writestr('gruen', 'cp437')
data = open('names.zip', 'rb').read().replace(b'gruen', b'gr\\x81-n')
open('names.zip', 'wb').write(data)
with zipfile.ZipFile('packed.zip', 'w') as z:
    for name, how in [('bzip2', zipfile.ZIP_BZIP2), ('lzma', zipfile.ZIP_LZMA)]:
        z.writestr(name, 'many ' * 50000, how)
P";
    if !shell(dir.path(), &["zip", "python3"], line) {
        return;
    }
    let own = fs::metadata(dir.path().join("file")).expect("made");
    for name in ["x.zip", "prefixed", "raw"] {
        let fs = made(&dir, name);
        assert_eq!(read(&fs, "file").expect(name), b"content\n");
        let attr = stat(&fs, "file").expect(name);
        assert_eq!((attr.mtime.secs, attr.uid, attr.gid), (981_173_107, own.uid(), own.gid()));
    }
    let fs = made(&dir, "names.zip");
    for (name, content) in
        [("up", "up"), ("a/b", "b"), ("gr\u{fc}n", "green"), ("gr\u{fc}-n", "cp437")]
    {
        assert_eq!(read(&fs, name).expect(name), content.as_bytes(), "{name}");
    }
    let fs = made(&dir, "packed.zip");
    for name in ["bzip2", "lzma"] {
        assert!(read(&fs, name).expect(name) == "many ".repeat(50_000).into_bytes(), "{name}");
    }
}

/// A stored file that is too long to be held is read in place, after its checksum.
#[test]
fn long_stored_files_of_zips_are_read_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let line = "seq 10000000 > f; zip -q0 x.zip f";
    if !shell(dir.path(), &["zip", "seq"], line) {
        return;
    }
    let f = fs::read(dir.path().join("f")).expect("made");
    assert!(f.len() > 64 << 20);
    let mut zip = fs::read(dir.path().join("x.zip")).expect("made");
    let look = |fs: &TransformFs, at: u64| {
        let node = Walker::new(fs).resolve(b"/x@tree/f").expect("listed");
        let ino = node.ino();
        let opened = fs.open(&Caller::ROOT, ino, weft_vfs::OpenFlags::READ)?;
        let mut buf = vec![0; 50_000];
        let got = fs.read(ino, opened.handle, at, &mut buf);
        fs.release(ino, opened.handle)?;
        got.map(|got| buf[..got].to_vec())
    };
    let fs = archive(&zip);
    for at in [0, 40_000_000, f.len() - 10] {
        let end = f.len().min(at + 50_000);
        assert!(look(&fs, at as u64).expect("read") == f[at..end], "at {at}");
    }
    let middle = zip.len() / 2;
    zip[middle] ^= 1;
    assert!(look(&archive(&zip), 0).is_err(), "the checksum is wrong");
}
