//! Archives as directories, one in the other, packed and damaged.

use std::io::{Cursor, Write};
use std::sync::Arc;

use weft_testing::Rng;
use weft_transform::{Rules, TransformFs, TransformOptions};
use weft_vfs::{
    Caller, DirCursor, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, MemFs, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Walker, XattrSet,
};

use crate::common::{lines, registry};

fn header(kind: tar::EntryType, len: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(len as u64);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    header
}

/// A tar of these files, with a directory, a link of each kind and a long name.
fn tarred(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |kind, name: &str, data: &[u8], mode| {
        tar.append_data(&mut header(kind, data.len(), mode), name, data).expect("added");
    };
    add(tar::EntryType::Directory, "d/", b"", 0o750);
    for (name, data) in files {
        add(tar::EntryType::Regular, name, data, 0o644);
    }
    let long = format!("d/{}/file", "n".repeat(180));
    add(tar::EntryType::Regular, &long, b"found", 0o600);
    let first = files[0].0;
    for (kind, name) in [(tar::EntryType::Symlink, "soft"), (tar::EntryType::Link, "hard")] {
        tar.append_link(&mut header(kind, 0, 0o777), name, first).expect("added");
    }
    tar.into_inner().expect("a tar")
}

fn zipped(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (nr, (name, data)) in files.iter().enumerate() {
        let method = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored][nr % 2];
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).expect("started");
        zip.write_all(data).expect("written");
    }
    zip.finish().expect("a zip").into_inner()
}

fn over(rules: &str) -> (Arc<MemFs>, TransformFs) {
    let below = Arc::new(MemFs::new());
    let rules = Rules::parse(rules.as_bytes()).expect("rules");
    let options = TransformOptions { rules, ..TransformOptions::default() };
    let fs = TransformFs::new(below.clone(), registry(), options).expect("a root");
    (below, fs)
}

fn names(fs: &dyn FileSystem, ino: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let mut cursor = DirCursor::START;
    // One at a time: each cursor must lead on.
    loop {
        let mut got = false;
        fs.readdir(ino, cursor, &mut |entry| {
            if got {
                return false;
            }
            got = true;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            cursor = entry.next;
            true
        })
        .expect("a directory");
        if !got {
            return names;
        }
    }
}

/// Its data without its holes is not its content.
#[test]
fn a_sparse_file_of_a_pax_archive_is_not_shown_as_it_is_stored() -> Result<()> {
    let mut tar = tar::Builder::new(Vec::new());
    let records = [
        ("GNU.sparse.size", "2097152"),
        ("GNU.sparse.numblocks", "1"),
        ("GNU.sparse.map", "1048576,4"),
        ("GNU.sparse.name", "d/sparse"),
    ];
    let records = records.iter().map(|(key, value)| (*key, value.as_bytes()));
    tar.append_pax_extensions(records).expect("records");
    let mut stored = header(tar::EntryType::Regular, 4, 0o644);
    tar.append_data(&mut stored, "d/GNUSparseFile.0/sparse", &b"data"[..]).expect("added");
    let mut plain = header(tar::EntryType::Regular, 4, 0o644);
    tar.append_data(&mut plain, "d/plain", &b"data"[..]).expect("added");
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    walker.write_file(b"/x.tar", &tar.into_inner().expect("a tar"), 0o644)?;
    assert_eq!(names(&fs, walker.resolve(b"/x.tar@tree/d")?.ino()), [".", "..", "plain", "sparse"]);
    let mut whole = vec![0; 2 << 20];
    whole[1 << 20..(1 << 20) + 4].copy_from_slice(b"data");
    assert!(walker.read_file(b"/x.tar@tree/d/sparse")? == whole);
    assert_eq!(walker.read_file(b"/x.tar@tree/d/plain")?, b"data");
    Ok(())
}

#[test]
fn archives_are_directories() -> Result<()> {
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    let data = lines(&mut Rng::new(3), 200_000);
    let tar = tarred(&[("d/a", &data), ("b/c/empty", b"")]);
    let zip = zipped(&[("one", &data), ("d/two", b"stored"), ("../out", b"no")]);
    walker.write_file(b"/x.tar", &tar, 0o644)?;
    walker.write_file(b"/y.zip", &zip, 0o644)?;
    walker.write_file(b"/nested.tar", &tarred(&[("in/y.zip", &zip), ("in/x.tar", &tar)]), 0o644)?;
    walker.write_file(b"/plain", b"no archive", 0o644)?;

    let root = walker.resolve(b"/x.tar@tree")?;
    assert_eq!(names(&fs, root.ino()), [".", "..", "b", "d", "hard", "soft"]);
    assert_eq!(walker.read_file(b"/x.tar@tree/d/a")?, data);
    assert_eq!(walker.read_file(b"/x.tar@tree/hard")?, data);
    assert_eq!(walker.read_file(b"/x.tar@tree/b/c/empty")?, b"");
    let long = format!("/x.tar@tree/d/{}/file", "n".repeat(180));
    assert_eq!(walker.read_file(long.as_bytes())?, b"found");
    let link = fs.lookup(root.ino(), b"soft")?.attr;
    assert!(link.kind == FileKind::Symlink && fs.readlink(link.ino)? == b"d/a");
    let attr = fs.lookup(root.ino(), b"d")?.attr;
    assert_eq!((attr.perm, attr.mtime.secs), (0o550, 1_000_000_000));
    assert_eq!(fs.lookup(root.ino(), b"..")?.attr.ino, fs.root());

    assert_eq!(walker.read_file(b"/y.zip@tree/one")?, data);
    assert_eq!(walker.read_file(b"/y.zip@tree/d/two")?, b"stored");
    // A zip says nothing of owners: its files belong to the owner of the archive.
    let set = SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() };
    let node = walker.resolve(b"/y.zip")?;
    fs.setattr(&Caller::ROOT, node.ino(), &set)?;
    drop(node);
    for path in [&b"/y.zip@tree/one"[..], b"/y.zip@tree/d", b"/y.zip@tree/d/two"] {
        let attr = walker.resolve(path)?.stat()?;
        assert_eq!((attr.uid, attr.gid), (1000, 100));
    }
    // No name leads out of the tree: it loses its `..`, as with unzip.
    assert_eq!(names(&fs, walker.resolve(b"/y.zip@tree")?.ino()), [".", "..", "d", "one", "out"]);
    assert_eq!(walker.read_file(b"/y.zip@tree/out")?, b"no");
    assert!(matches!(walker.read_file(b"/out"), Err(Error::NotFound)));

    assert_eq!(walker.read_file(b"/nested.tar@tree/in/y.zip@tree/one")?, data);
    assert_eq!(walker.read_file(b"/nested.tar@tree/in/x.tar@tree/d/a")?, data);

    for none in [&b"/plain@tree"[..], b"/x.tar@tree/none", b"/x.tar@tree/d/a@tree", b"/d@tree"] {
        assert!(matches!(walker.read_file(none), Err(Error::NotFound)), "{none:?}");
    }
    // Nobody writes.
    let file = walker.resolve(b"/x.tar@tree/d/a")?;
    assert!(matches!(fs.open(&Caller::ROOT, file.ino(), OpenFlags::WRITE), Err(Error::ReadOnly)));
    assert!(walker.write_file(b"/x.tar@tree/new", b"", 0o644).is_err());
    assert!(walker.remove(b"/x.tar@tree/d/a").is_err());
    Ok(())
}

/// Everything that would change a tree says what it is, and programs that only read get along: `cp`
/// copies ranges and looks for holes, `sync` is told that there is nothing to do.
#[test]
fn a_tree_is_a_read_only_file_system() -> Result<()> {
    let (_, fs) = over("*.z zstd\n");
    let walker = Walker::new(&fs);
    let data = lines(&mut Rng::new(4), 600_000);
    walker.write_file(b"/x.tar", &tarred(&[("d/a", &data)]), 0o644)?;
    walker.write_file(b"/outside", b"", 0o644)?;
    let (root, dir) = (fs.root(), walker.resolve(b"/x.tar@tree/d")?);
    let (dir, file) = (dir.ino(), walker.resolve(b"/x.tar@tree/d/a")?);
    let (file, caller) = (file.ino(), Caller::ROOT);
    let none = RenameFlags::empty();
    let refused = [
        fs.mknod(&caller, dir, b"new", FileKind::Regular, 0o644, 0).map(drop),
        fs.mkdir(&caller, dir, b"new", 0o755).map(drop),
        fs.symlink(&caller, dir, b"new", b"a").map(drop),
        fs.link(&Caller::ROOT, file, dir, b"new").map(drop),
        fs.link(&Caller::ROOT, file, root, b"new").map(drop),
        fs.unlink(&Caller::ROOT, dir, b"a"),
        fs.rmdir(&Caller::ROOT, dir, b"a"),
        fs.rename(&Caller::ROOT, dir, b"a", dir, b"new", none),
        fs.rename(&Caller::ROOT, dir, b"a", root, b"new", none),
        fs.rename(&Caller::ROOT, root, b"outside", dir, b"new", none),
        fs.write(&Caller::ROOT, file, Handle::NONE, 0, b"x").map(drop),
        fs.setattr(&Caller::ROOT, file, &SetAttr { size_bytes: Some(0), ..SetAttr::default() })
            .map(drop),
        fs.setxattr(&Caller::ROOT, file, b"user.x", b"x", XattrSet::Any),
        fs.removexattr(&Caller::ROOT, file, b"user.x"),
        fs.fallocate(&Caller::ROOT, file, FallocateMode::PunchHole, 0, 1),
    ];
    for (nr, refused) in refused.into_iter().enumerate() {
        assert!(matches!(refused, Err(Error::ReadOnly)), "change {nr}: {refused:?}");
    }
    fs.fsync(&Caller::ROOT, file, false)?;
    fs.fsync_dir(&Caller::ROOT, dir)?;
    let len = data.len() as u64;
    assert_eq!((fs.seek(file, SeekFrom::Data(7))?, fs.seek(file, SeekFrom::Hole(7))?), (7, len));
    assert!(matches!(fs.seek(file, SeekFrom::Data(len)), Err(Error::NoAddress)));
    for name in ["copy", "copy.z"] {
        let to = fs.mknod(&caller, root, name.as_bytes(), FileKind::Regular, 0o644, 0)?.attr.ino;
        assert_eq!(fs.copy_range(&Caller::ROOT, file, 0, to, 0, len + 100)?, len, "{name}");
        assert_eq!(walker.read_file(format!("/{name}").as_bytes())?, data, "{name}");
    }
    assert!(matches!(fs.copy_range(&Caller::ROOT, file, 0, file, len, 1), Err(Error::ReadOnly)));
    Ok(())
}

#[test]
fn packed_archives_are_seen_through() -> Result<()> {
    // Packed as files of networks, and packed by their content.
    let (below, fs) = over("*.log.tar zstd\nsecret.tar xz level=0 | aead key=work\n");
    let (walker, under) = (Walker::new(&fs), Walker::new(&*below));
    let data = lines(&mut Rng::new(4), 100_000);
    let tar = tarred(&[("a", &data)]);
    for name in [&b"/x.log.tar"[..], b"/secret.tar"] {
        walker.write_file(name, &tar, 0o644)?;
        assert!(under.read_file(name)? != tar);
        assert_eq!(walker.read_file(&[name, b"@tree/a"].concat())?, data);
    }
    for stage in ["gzip", "zstd", "xz level=0", "lz4"] {
        let packed = format!("/{}.tgz", stage.split(' ').next().unwrap_or_default());
        let stored = {
            let base = weft_transform::store::MemoryBase::default();
            let mut file = crate::common::open_base(&base, stage);
            file.write_at(0, &tar)?;
            file.commit()?;
            base.content()
        };
        walker.write_file(packed.as_bytes(), &stored, 0o644)?;
        assert_eq!(walker.read_file(format!("{packed}@tree/a").as_bytes())?, data, "{stage}");
    }
    walker.write_file(b"/h", &data_hex(&tar), 0o644)?;
    assert_eq!(walker.read_file(b"/h@~hex+tree/a")?, data, "by name");
    Ok(())
}

fn data_hex(data: &[u8]) -> Vec<u8> {
    data.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

#[test]
fn an_archive_that_changes_is_another_tree() -> Result<()> {
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    walker.write_file(b"/x.tar", &tarred(&[("a", b"first")]), 0o644)?;
    let old = walker.resolve(b"/x.tar@tree/a")?;
    let mut buf = [0; 16];
    assert_eq!(fs.read(old.ino(), weft_vfs::Handle::NONE, 0, &mut buf)?, 5);
    walker.write_file(b"/x.tar", &tarred(&[("b", b"second one"), ("a", b"other")]), 0o644)?;
    let read = fs.read(old.ino(), weft_vfs::Handle::NONE, 0, &mut buf);
    assert!(matches!(read, Err(Error::Stale(_))), "never bytes of another archive");
    assert_eq!(walker.read_file(b"/x.tar@tree/a")?, b"other");
    assert_eq!(walker.read_file(b"/x.tar@tree/b")?, b"second one");
    Ok(())
}

/// Names of a directory, and the error that came behind them.
fn listed(fs: &dyn FileSystem, path: &[u8]) -> (Vec<String>, Result<()>) {
    let walker = Walker::new(fs);
    let node = walker.resolve(path).expect("a directory");
    let ino = node.ino();
    let (mut names, mut cursor) = (Vec::new(), DirCursor::START);
    loop {
        let before = names.len();
        let read = fs.readdir(ino, cursor, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            cursor = entry.next;
            true
        });
        if read.is_err() || names.len() == before {
            return (names, read);
        }
    }
}

#[test]
fn one_bad_member_spoils_no_other() -> Result<()> {
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    let data = lines(&mut Rng::new(6), 3000);
    let tar = tarred(&[("a", &data), ("b", b"second"), ("c", b"third")]);
    walker.write_file(b"/whole.tar", &tar, 0o644)?;
    assert_eq!(listed(&fs, b"/whole.tar@tree").1.map_err(|e| e.to_string()), Ok(()));
    // The header of `b`, and of nothing else: directory, `a` with six blocks of data, then `b`.
    let header = 512 * (1 + 1 + 6);
    assert_eq!(&tar[header..header + 2], b"b\0");
    for at in [header, header + 105, header + 130, header + 150, header + 156] {
        let mut bad = tar.clone();
        bad[at] = b'!';
        walker.write_file(b"/x.tar", &bad, 0o644)?;
        assert_eq!(walker.read_file(b"/x.tar@tree/a")?, data, "byte {at}");
        assert_eq!(walker.read_file(b"/x.tar@tree/c")?, b"third", "byte {at}");
        assert!(walker.read_file(b"/x.tar@tree/b").is_err(), "byte {at}");
        let (names, error) = listed(&fs, b"/x.tar@tree");
        assert!(names.contains(&"c".to_owned()), "byte {at}: {names:?}");
        assert_eq!(error.expect_err("and it is said").errno(), 5, "byte {at}");
    }
    // A link to nothing, and an end within the last file.
    let mut broken = tar::Builder::new(Vec::new());
    let mut link = header_of_link();
    broken.append_link(&mut link, "nowhere", "not there").expect("added");
    let mut file = header_of_file(5000);
    broken.append_data(&mut file, "long", &vec![7; 5000][..]).expect("added");
    let broken = broken.into_inner().expect("a tar");
    walker.write_file(b"/y.tar", &broken[..3000], 0o644)?;
    for name in ["nowhere", "long"] {
        let read = walker.read_file(format!("/y.tar@tree/{name}").as_bytes());
        assert_eq!(read.expect_err(name).errno(), 5);
    }
    Ok(())
}

fn header_of_link() -> tar::Header {
    header(tar::EntryType::Link, 0, 0o777)
}

fn header_of_file(len: usize) -> tar::Header {
    header(tar::EntryType::Regular, len, 0o644)
}

/// What GNU tar makes of a file with holes, in each of its forms.
#[test]
fn sparse_files_of_tar_are_read_with_their_holes() -> Result<()> {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().expect("a directory");
    let mut want = vec![0; 3 << 20];
    let file = std::fs::File::create(dir.path().join("holes")).expect("a file");
    // More pieces than a header has room for, the last one not a whole block.
    for nr in 0..40 {
        let (at, data) = (nr * 70_000, vec![b'a' + nr as u8 % 26; 300 + nr * 50]);
        file.write_all_at(&data, at as u64).expect("written");
        want[at..at + data.len()].copy_from_slice(&data);
    }
    file.set_len(want.len() as u64).expect("grown");
    file.sync_all().expect("on disk");
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    for form in
        ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"]
    {
        let format = if form.starts_with("--format") { form } else { "--format=posix" };
        let mut tar = std::process::Command::new("tar");
        tar.args(["-cSf", "-", format, form, "holes"]).current_dir(dir.path());
        let Ok(out) = tar.output() else {
            println!("skipped: tar is not installed");
            return Ok(());
        };
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(out.stdout.len() < want.len() / 2, "{form}: it is stored with holes");
        walker.write_file(b"/s.tar", &out.stdout, 0o644)?;
        assert_eq!(
            names(&fs, walker.resolve(b"/s.tar@tree")?.ino()),
            [".", "..", "holes"],
            "{form}"
        );
        assert!(walker.read_file(b"/s.tar@tree/holes")? == want, "{form}");
        let node = walker.resolve(b"/s.tar@tree/holes")?;
        let mut part = [1; 100];
        assert_eq!(node.read_at(70_250, &mut part)?, 100);
        assert_eq!(part[..], want[70_250..70_350], "{form}");
    }
    Ok(())
}

#[test]
fn damaged_archives_are_errors_or_right() -> Result<()> {
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    let data = lines(&mut Rng::new(5), 3000);
    let zip = zipped(&[("one", &data)]);
    for at in 0..zip.len() {
        let mut bad = zip.clone();
        bad[at] ^= 0x11;
        walker.write_file(b"/y.zip", &bad, 0o644)?;
        if let Ok(read) = walker.read_file(b"/y.zip@tree/one") {
            assert_eq!(read, data, "byte {at}: the zip has a checksum of it");
        }
    }
    // A tar has none of its files, but of their headers.
    let tar = tarred(&[("a", &data)]);
    for cut in (0..tar.len()).step_by(97) {
        walker.write_file(b"/x.tar", &tar[..cut], 0o644)?;
        if let Ok(read) = walker.read_file(b"/x.tar@tree/a") {
            assert_eq!(read, data, "cut at {cut}");
        }
    }
    for at in 0..600 {
        let mut bad = tar.clone();
        bad[at] ^= 0x11;
        walker.write_file(b"/x.tar", &bad, 0o644)?;
        let _ = walker.read_file(b"/x.tar@tree/a");
    }
    Ok(())
}

#[test]
fn a_tree_outlives_a_change_of_who_may_read_it() -> Result<()> {
    let (_, fs) = over("");
    let walker = Walker::new(&fs);
    let archive = walker.write_file(b"/x.tar", &tarred(&[("a", b"alpha")]), 0o644)?;
    let root = walker.resolve(b"/x.tar@tree")?;
    let file = walker.resolve(b"/x.tar@tree/a")?;
    for (perm, seen) in [(0o600, 0o500), (0o640, 0o550)] {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, archive.ino(), &set)?;
        assert_eq!(root.stat()?.perm, seen);
        assert!(names(&fs, root.ino()).contains(&"a".to_owned()));
        assert_eq!(file.read_all()?, b"alpha");
    }
    // Once the archive has changed, its name leads to another.
    assert_eq!(fs.name_lifetime(root.ino()), Some(std::time::Duration::ZERO));
    walker.write_file(b"/x.tar", &tarred(&[("b", b"beta")]), 0o644)?;
    assert!(matches!(file.read_all(), Err(Error::Stale(_))));
    assert_eq!(walker.read_file(b"/x.tar@tree/b")?, b"beta");
    Ok(())
}
