//! Trees go from the host into a volume, out as a tar stream, into another volume and back to the
//! host, and are the same.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use weft::transfer::{
    Content, Counted, HostSink, HostSource, Item, ItemKind, NoContent, Ownership, Sink, Tally,
    TarSink, TarSource, VolumeSink, VolumeSource,
};
use weft::vfs::{FileSystem, MemFs, Node, Time, Walker};

/// A tree with one of everything that needs no privilege.
fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("deep/er/and deeper")).unwrap();
    fs::write(top.join("empty"), b"").unwrap();
    fs::write(top.join("deep/small"), b"some bytes").unwrap();
    let big: Vec<u8> =
        (0..3_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(top.join("deep/er/big"), &big).unwrap();
    fs::write(top.join("x".repeat(255)), b"long name").unwrap();
    fs::hard_link(top.join("deep/small"), top.join("zz-second-name")).unwrap();
    symlink("deep/small", top.join("link")).unwrap();
    symlink("/nowhere/at all", top.join("dangling")).unwrap();
    fs::set_permissions(top.join("empty"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(top.join("deep/er"), fs::Permissions::from_mode(0o1711)).unwrap();
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"far out", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
}

/// Every path with what must survive.
fn describe(top: &Path) -> Vec<String> {
    fn walk(dir: &Path, top: &Path, into: &mut Vec<String>) {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        for path in names {
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(top).unwrap().display().to_string();
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            let content = if meta.is_file() {
                let bytes = fs::read(&path).unwrap();
                format!(
                    "{} bytes, sum {}",
                    bytes.len(),
                    bytes
                        .iter()
                        .fold(0_u64, |s, b| { s.wrapping_mul(31).wrapping_add(u64::from(*b)) })
                )
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else {
                String::new()
            };
            into.push(format!(
                "{name} {:o} {}:{} links {links} at {}: {content}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime()
            ));
            if meta.is_dir() {
                walk(&path, top, into);
            }
        }
    }
    let mut lines = Vec::new();
    walk(top, top, &mut lines);
    assert!(lines.len() > 5, "{lines:?}");
    lines
}

fn put_host(fs: &MemFs, from: &Path) -> Tally {
    let mut sink =
        VolumeSink::new(fs, Node::root(fs).unwrap(), Some(b"tree"), b"/", Ownership::Keep);
    let mut calls = 0;
    let mut each = |_: &Tally| calls += 1;
    let mut counted = Counted::new(&mut sink, &mut each);
    HostSource::new(from).send(&mut counted).unwrap();
    let tally = counted.tally();
    assert_eq!(calls, tally.names());
    tally
}

#[test]
fn a_tree_survives_every_way_round() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let expected = describe(&from);

    let first = MemFs::new();
    let tally = put_host(&first, &from);
    assert_eq!((tally.files, tally.symlinks, tally.hard_links), (5, 2, 1));
    assert_eq!(tally.directories, 4);

    let mut stream = Vec::new();
    let top = Walker::new(&first).resolve(b"/tree").unwrap();
    VolumeSource::new(&first, b"/tree").send(top, &mut TarSink::new(&mut stream)).unwrap();

    let second = MemFs::new();
    let root = Node::root(&second).unwrap();
    let mut sink = VolumeSink::new(&second, root, None, b"/", Ownership::Keep);
    TarSource::new(Cursor::new(&stream)).send(&mut sink).unwrap();
    drop(sink);

    let to = dir.path().join("to");
    let mut sink = HostSink::new(&to);
    let root = Node::root(&second).unwrap();
    VolumeSource::new(&second, b"/").send(root, &mut sink).unwrap();
    assert_eq!(sink.left_out(), &[] as &[String]);
    assert_eq!(describe(&to), expected);

    // Once more over what is there: everything is replaced, nothing is doubled.
    let root = Node::root(&second).unwrap();
    VolumeSource::new(&second, b"/").send(root, &mut HostSink::new(&to)).unwrap();
    assert_eq!(describe(&to), expected);
}

#[test]
fn holes_stay_holes_into_the_volume_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let fs = MemFs::new();
    put_host(&fs, &from);
    let sparse = Walker::new(&fs).resolve(b"/tree/sparse").unwrap();
    let in_volume = sparse.stat().unwrap();
    assert_eq!(in_volume.size_bytes, 9 << 20);
    assert!(in_volume.blocks_512 * 512 < 1 << 20, "{in_volume:?}");

    let to = dir.path().join("sparse");
    VolumeSource::new(&fs, b"/tree/sparse").send(sparse, &mut HostSink::new(&to)).unwrap();
    let meta = std::fs::metadata(&to).unwrap();
    assert_eq!(meta.len(), 9 << 20);
    assert!(meta.blocks() * 512 < 2 << 20, "{} blocks", meta.blocks());
}

#[test]
fn the_systems_tar_reads_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    make_tree(&from);
    let fs = MemFs::new();
    put_host(&fs, &from);
    let tar = dir.path().join("out.tar");
    let file = std::io::BufWriter::new(std::fs::File::create(&tar).unwrap());
    let top = Walker::new(&fs).resolve(b"/tree").unwrap();
    VolumeSource::new(&fs, b"/tree").send(top, &mut TarSink::new(file)).unwrap();

    let to = dir.path().join("to");
    std::fs::create_dir(&to).unwrap();
    let status = std::process::Command::new("tar")
        .args(["-x", "-p", "-f"])
        .arg(&tar)
        .arg("-C")
        .arg(&to)
        .status()
        .expect("tar runs");
    assert!(status.success());
    assert_eq!(describe(&to), describe(&from));
}

#[test]
fn owners_can_be_fixed() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("from"));
    let fs = MemFs::new();
    let mut sink = VolumeSink::new(
        &fs,
        Node::root(&fs).unwrap(),
        None,
        b"/",
        Ownership::Fixed { uid: 7, gid: 8 },
    );
    HostSource::new(dir.path().join("from")).send(&mut sink).unwrap();
    drop(sink);
    let mut seen = 0;
    for found in Walker::new(&fs).tree(b"/").unwrap() {
        let attr = *found.unwrap().node.attr();
        assert_eq!((attr.uid, attr.gid), (7, 8));
        seen += 1;
    }
    assert!(seen > 8);
}

fn item<'a>(path: &'a [u8], kind: ItemKind<'a>) -> Item<'a> {
    let mtime = Time { secs: 1, nanos: 0 };
    Item { path, kind, perm: 0o755, uid: 0, gid: 0, atime: None, mtime, xattrs: &[] }
}

#[test]
fn hostile_names_do_not_leave_the_destination() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("a/b");
    fs::create_dir_all(&top).unwrap();
    let mut sink = HostSink::new(&top);
    for path in [&b"../up"[..], b"x/../../up", b"a//b", b"a/./b", b".", b"..", b"nul\0"] {
        let put = sink.put(&item(path, ItemKind::Directory), &mut NoContent);
        assert!(put.is_err(), "{}", String::from_utf8_lossy(path));
    }
    // A link out of the tree is made as it is, but nothing is written through it.
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let target = out.to_str().unwrap().as_bytes().to_vec();
    sink.put(&item(b"way", ItemKind::Symlink(&target)), &mut NoContent).unwrap();
    assert!(sink.put(&item(b"way", ItemKind::Directory), &mut NoContent).is_err());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);

    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..9].copy_from_slice(b"../escape");
    header.set_size(0);
    header.set_mode(0o644);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    tar.append(&header, std::io::empty()).unwrap();
    let stream = tar.into_inner().unwrap();
    let fs = MemFs::new();
    let mut sink = VolumeSink::new(&fs, Node::root(&fs).unwrap(), None, b"/", Ownership::Keep);
    let e = TarSource::new(Cursor::new(stream)).send(&mut sink).unwrap_err();
    assert!(e.to_string().contains("leads out of the tree"), "{e}");
}

#[test]
fn a_tar_stream_may_name_files_before_their_directories_and_replace_what_is_there() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |path: &str, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        tar.append_data(&mut header, path, content).unwrap();
    };
    add("a/b/c/file", b"one");
    add("a/b/c/file", b"two, longer");
    add("a/other", b"three");
    let stream = tar.into_inner().unwrap();
    let fs = MemFs::new();
    let mut sink = VolumeSink::new(&fs, Node::root(&fs).unwrap(), None, b"/", Ownership::Keep);
    TarSource::new(Cursor::new(&stream)).send(&mut sink).unwrap();
    drop(sink);
    let walker = Walker::new(&fs);
    assert_eq!(walker.read_file(b"/a/b/c/file").unwrap(), b"two, longer");
    assert_eq!(walker.read_file(b"/a/other").unwrap(), b"three");
    assert_eq!(walker.resolve(b"/a/b").unwrap().attr().perm, 0o755);

    // Cut short in the middle of a file: an error that names it, not a panic or a short file.
    let cut = &stream[..520];
    let fs = MemFs::new();
    let mut sink = VolumeSink::new(&fs, Node::root(&fs).unwrap(), None, b"/", Ownership::Keep);
    assert!(TarSource::new(Cursor::new(cut)).send(&mut sink).is_err());
}

#[test]
fn a_source_that_fails_is_reported_by_the_tar_sink() {
    struct Broken;
    impl Content for Broken {
        fn next_run(&mut self, _: &mut [u8]) -> weft::Result<Option<(u64, usize)>> {
            Err(weft::Error::Invalid("the source broke".into()))
        }
    }
    let mut sink = TarSink::new(Vec::new());
    let e = sink.put(&item(b"f", ItemKind::File { len_bytes: 9 }), &mut Broken).unwrap_err();
    assert_eq!(e.to_string(), "the source broke");
}

#[test]
fn references_are_given_back() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("from"));
    let fs = MemFs::new();
    put_host(&fs, &dir.path().join("from"));
    let ino = Walker::new(&fs).resolve(b"/tree/deep/er/big").unwrap().ino();
    Walker::new(&fs).remove_tree(b"/tree", &mut |_| {}).unwrap();
    // Were a reference left, the inode would live on.
    assert!(matches!(fs.getattr(ino), Err(weft::vfs::Error::Stale(_))));
}
