//! Copies are exact: a seeded campaign makes trees with random modes, owners, access control lists
//! (default lists, odd masks, entries that refuse), capabilities, attributes, links and nodes, takes
//! each through every way in and out, by weft and by other people's tar, and compares all of it. The
//! directories that copies are put into have default lists of their own. Copies on the host are also
//! looked at as other users: each may read, write and execute what it may in the source.

use crate::run::{Bench, tool};
use rustix::fs::Mode;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weft::vfs::acl::{self, Acl};
use weft::vfs::path::Tree;
use weft::vfs::{FileKind, Ino, Walker};
use weft_testing::Rng;

/// Every path of a tree with all that must survive.
type Described = BTreeMap<String, String>;

fn list(text: &str) -> Vec<u8> {
    Acl::from_text(text, &|_, _| None).expect("a valid list").to_xattr()
}

fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, rustix::fs::XattrFlags::empty())
}

fn shown(name: &[u8], value: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    match Acl::parse(value) {
        Ok(Some(list)) if name.starts_with("system.posix_acl") => {
            format!("{name}={}", list.to_text())
        }
        _ => format!("{name}={}", String::from_utf8_lossy(value).escape_debug()),
    }
}

/// Describes one item; `same` is the first path of its inode.
fn line(
    (kind, perm, uid, gid): (FileKind, u32, u32, u32),
    (mtime, rdev): (i64, (u32, u32)),
    content: &str,
    same: &str,
    xattrs: &mut [String],
) -> String {
    xattrs.sort();
    // The mode of a symbolic link means nothing.
    let perm = if kind == FileKind::Symlink { 0 } else { perm };
    let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let rdev = if device { rdev } else { (0, 0) };
    let xattrs = xattrs.join(" ");
    format!("{kind:?} {perm:04o} {uid}:{gid} at {mtime} {rdev:?} [{content}] as {same} {xattrs}")
}

fn host_xattrs(path: &Path) -> Vec<String> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).expect("the names of attributes");
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]);
            shown(name, &value[..len.expect("the value of an attribute")])
        })
        .collect()
}

fn on_host(top: &Path) -> Described {
    fn walk(path: &Path, top: &Path, firsts: &mut BTreeMap<u64, String>, all: &mut Described) {
        let meta = fs::symlink_metadata(path).expect("attributes");
        let name = path.strip_prefix(top).expect("below the top").display().to_string();
        let kind = FileKind::from_mode(meta.mode()).expect("a known kind");
        let content = match kind {
            FileKind::Regular => fs::read(path).expect("content"),
            FileKind::Symlink => {
                fs::read_link(path).expect("a target").into_os_string().as_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        let same = if kind == FileKind::Directory {
            name.clone()
        } else {
            firsts.entry(meta.ino()).or_insert_with(|| name.clone()).clone()
        };
        let rdev = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let line = line(
            (kind, meta.mode() & 0o7777, meta.uid(), meta.gid()),
            (meta.mtime(), rdev),
            &String::from_utf8_lossy(&content),
            &same,
            &mut host_xattrs(path),
        );
        all.insert(name, line);
        if kind == FileKind::Directory {
            let mut below: Vec<PathBuf> =
                fs::read_dir(path).expect("names").map(|e| e.expect("a name").path()).collect();
            below.sort();
            below.iter().for_each(|path| walk(path, top, firsts, all));
        }
    }
    let mut all = Described::new();
    walk(top, top, &mut BTreeMap::new(), &mut all);
    all
}

fn in_volume(image: &Path, top: &str) -> Described {
    let options = weft::Options::read_only();
    let stack = weft::Stack::open(image.to_str().expect("a name"), &options).expect("a volume");
    let fs = stack.fs();
    let node = Walker::new(fs).resolve(top.as_bytes()).expect("the top");
    let mut firsts: BTreeMap<Ino, String> = BTreeMap::new();
    let mut all = Described::new();
    let mut found: Vec<_> = Tree::new(node).map(|found| found.expect("an item")).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    for found in found {
        let attr = *found.node.attr();
        let name = String::from_utf8(found.path.clone()).expect("a name in UTF-8");
        let content = match attr.kind {
            FileKind::Regular => found.node.read_all().expect("content"),
            FileKind::Symlink => found.node.readlink().expect("a target"),
            _ => Vec::new(),
        };
        let same = if attr.kind == FileKind::Directory {
            name.clone()
        } else {
            firsts.entry(attr.ino).or_insert_with(|| name.clone()).clone()
        };
        let xattrs = fs.listxattr(attr.ino).expect("the names of attributes");
        let mut xattrs: Vec<String> = xattrs
            .iter()
            .map(|name| shown(name, &fs.getxattr(attr.ino, name).expect("an attribute")))
            .collect();
        let rdev = ((attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00));
        let line = line(
            (attr.kind, u32::from(attr.perm), attr.uid, attr.gid),
            (attr.mtime.secs, rdev),
            &String::from_utf8_lossy(&content),
            &same,
            &mut xattrs,
        );
        all.insert(name, line);
    }
    all
}

/// Fails with the first difference.
fn assert_same(what: &str, want: &Described, got: &Described) {
    for name in want.keys().chain(got.keys()) {
        assert_eq!(want.get(name), got.get(name), "{what}: {name:?} (wanted, got)");
    }
}

fn random_list(rng: &mut Rng) -> String {
    let perm = |rng: &mut Rng| {
        let bits = rng.below(8);
        ["---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"][bits as usize]
    };
    let mut entries = vec![format!("user::{}", perm(rng))];
    let users = rng.below(3);
    let groups = rng.below(3);
    entries.extend((0..users).map(|i| format!("user:{}:{}", 99 + i, perm(rng))));
    entries.push(format!("group::{}", perm(rng)));
    entries.extend((0..groups).map(|i| format!("group:{}:{}", 60 + i, perm(rng))));
    if users + groups > 0 || rng.below(2) == 0 {
        entries.push(format!("mask::{}", perm(rng)));
    }
    entries.push(format!("other::{}", perm(rng)));
    entries.join(",")
}

const CAPABILITY: &[u8] = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Makes a random tree. Its owners are random for root alone.
pub fn make_tree(top: &Path, rng: &mut Rng) {
    let mut dirs = vec![top.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut all = vec![(top.to_owned(), true)];
    fs::create_dir(top).expect("a directory");
    for number in 0..8 + rng.below(16) {
        let dir = &dirs[rng.below(dirs.len() as u64) as usize];
        let path = dir.join(format!("i{number:02}"));
        match rng.below(12) {
            0..=2 => {
                fs::create_dir(&path).expect("a directory");
                dirs.push(path.clone());
                all.push((path, true));
            }
            3 => symlink(format!("../x{number}"), &path).expect("a link"),
            4 if !files.is_empty() => {
                let first = &files[rng.below(files.len() as u64) as usize];
                fs::hard_link(first, &path).expect("a hard link");
            }
            5 => {
                let kind = rustix::fs::FileType::CharacterDevice;
                let device = rustix::fs::makedev(rng.below(300) as u32, rng.below(1 << 18) as u32);
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    &path,
                    kind,
                    Mode::from_raw_mode(0o600),
                    device,
                )
                .expect("a node");
                all.push((path, false));
            }
            6 => {
                let kind = rustix::fs::FileType::Fifo;
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, Mode::from_raw_mode(0o600), 0)
                    .expect("a FIFO");
                all.push((path, false));
            }
            _ => {
                fs::write(&path, format!("content {number}")).expect("a file");
                files.push(path.clone());
                all.push((path, false));
            }
        }
    }
    for (path, is_dir) in &all {
        let is_file = path.is_file();
        let (uid, gid) = (rng.below(3) as u32 * 50, rng.below(3) as u32 * 60);
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).expect("an owner");
        if is_file && rng.below(4) == 0 {
            set_xattr(path, b"security.capability", CAPABILITY).expect("a capability");
        }
        if (is_file || *is_dir) && rng.below(3) == 0 {
            set_xattr(path, b"user.colour", format!("blue\n{}", rng.below(9)).as_bytes())
                .expect("an attribute");
        }
        if rng.below(6) == 0 {
            set_xattr(path, b"trusted.note", b"kept").expect("an attribute");
        }
        let mode = (rng.below(8) << 9 | rng.below(512)) as u32;
        // A FIFO or device that is setuid is no case that matters, and GNU tar refuses some.
        let mode = if is_file || *is_dir { mode } else { mode & 0o777 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        if rng.below(2) == 0 {
            set_xattr(path, acl::ACCESS, &list(&random_list(rng))).expect("a list");
        }
    }
    for (path, _) in all.iter().filter(|(_, is_dir)| *is_dir) {
        if rng.below(2) == 0 {
            set_xattr(path, acl::DEFAULT, &list(&random_list(rng))).expect("a default list");
        }
    }
    set_times(top);
}

/// Sets times of whole seconds, which each format keeps, from the bottom up.
fn set_times(path: &Path) {
    let meta = fs::symlink_metadata(path).expect("attributes");
    if meta.is_dir() {
        fs::read_dir(path).expect("names").for_each(|e| set_times(&e.expect("a name").path()));
    }
    let number = i64::try_from(meta.ino() % (1 << 20)).expect("a small number");
    let time = rustix::fs::Timespec { tv_sec: 1_000_000_000 + number, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("times");
}

/// Users with their groups who look at a copy.
const USERS: [(&str, &str); 4] = [("99", "99"), ("100", "60"), ("50", "61"), ("7", "120")];

/// What a user may do in a tree, as find(1) sees it.
fn as_user(top: &Path, (uid, gid): (&str, &str)) -> Option<String> {
    let ids = [format!("--reuid={uid}"), format!("--regid={gid}"), "--clear-groups".into()];
    let tests = [
        "(",
        "-readable",
        "-printf",
        "r %P\\n",
        "-o",
        "-true",
        ")",
        "(",
        "-writable",
        "-printf",
        "w %P\\n",
        "-o",
        "-true",
        ")",
        "-executable",
        "-printf",
        "x %P\\n",
    ];
    let args = ids.iter().map(OsStr::new).chain([OsStr::new("find"), top.as_os_str()]);
    let ran = tool("setpriv", args.chain(tests.map(OsStr::new)))?;
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    Some(lines.join("\n"))
}

/// Compares a copy on the host with the source: all that is stored, and what users may do.
fn assert_copy(what: &str, source: &Path, want: &Described, copy: &Path) {
    assert_same(what, want, &on_host(copy));
    for user in USERS {
        let (Some(had), Some(has)) = (as_user(source, user), as_user(copy, user)) else { return };
        assert_eq!(had, has, "{what}, as user {user:?}");
    }
}

/// A destination on the host, with a default list that a copy must not get.
fn destination(bench: &Bench, name: &str, rng: &mut Rng) -> PathBuf {
    let dir = bench.path(name);
    fs::create_dir(&dir).expect("a directory");
    set_xattr(&dir, acl::DEFAULT, &list(&random_list(rng))).expect("a default list");
    set_xattr(&dir, acl::ACCESS, &list("u::rwx,u:99:rwx,g::rwx,m::rwx,o::rwx")).expect("a list");
    dir
}

/// Makes a volume with the directory /to, which has a default list and is a setgid directory.
pub fn volume(bench: &Bench, image: &str, rng: &mut Rng) {
    bench.ok(&["mkfs", "ext2", image, "--size", "16M", "--quiet", "--root-owner", "0:0"]);
    let made = bench.path("made");
    fs::create_dir(&made).expect("a directory");
    fs::create_dir(made.join("to")).expect("a directory");
    fs::set_permissions(made.join("to"), fs::Permissions::from_mode(0o2777)).expect("a mode");
    set_xattr(&made.join("to"), acl::DEFAULT, &list(&random_list(rng))).expect("a default list");
    bench.ok(&["import", "made", &format!("{image}:/")]);
    fs::remove_dir_all(&made).expect("it is gone");
}

fn tar(name: &str, args: &[&str]) -> bool {
    let Some(ran) = tool(name, args.iter().map(OsStr::new)) else { return false };
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}: {ran:#?}");
    true
}

const GNU_ALL: [&str; 4] = ["--acls", "--xattrs", "--xattrs-include=*", "-xpf"];

/// Returns how many rights of other users were compared.
fn every_way(seed: u64) -> usize {
    let rng = &mut Rng::new(seed);
    let bench = Bench::new();
    fs::set_permissions(bench.dir(), fs::Permissions::from_mode(0o711)).expect("a mode");
    let source = bench.path("source");
    make_tree(&source, rng);
    let want = on_host(&source);
    let ok = |args: &[&str]| {
        let ran = bench.run(args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "seed {seed}, {args:?}: {ran:#?}");
    };
    let what = |way: &str| format!("seed {seed}, {way}");
    volume(&bench, "v.img", rng);
    let image = bench.path("v.img");

    // In: a directory, by each verb that takes one.
    ok(&["import", "source", "v.img:/to/import"]);
    ok(&["put", "source", "v.img:/to"]);
    ok(&["cp", "source", "v.img:/to/cp"]);
    ok(&["cp", "v.img:/to/import", "v.img:/to/within"]);
    ok(&["mkfs", "ext3", "d.img", "--size", "16M", "-d", "source", "--quiet"]);
    for top in ["/to/import", "/to/source", "/to/cp", "/to/within"] {
        assert_same(&what(&format!("into v.img:{top}")), &want, &in_volume(&image, top));
    }
    let made = in_volume(&bench.path("d.img"), "/");
    for (name, want) in want.iter().filter(|(name, _)| !name.is_empty()) {
        assert_eq!(made.get(name), Some(want), "{}: {name}", what("mkfs -d"));
    }
    let root = |all: &Described| all[""].split(" [").next().map(str::to_owned);
    assert_eq!(root(&made), root(&want), "{}", what("the root of mkfs -d"));
    ok(&["cp", "v.img:/to/import", "d.img:/across"]);
    assert_same(&what("cp to another volume"), &want, &in_volume(&bench.path("d.img"), "/across"));
    // Once more over what is there.
    ok(&["import", "source", "v.img:/to/import"]);
    assert_same(&what("import, twice"), &want, &in_volume(&image, "/to/import"));

    // Out: into a directory, new and existing, and as a tar stream.
    let to = destination(&bench, "out", rng);
    ok(&["export", "v.img:/to/import", "out/export"]);
    assert_copy(&what("export"), &source, &want, &to.join("export"));
    ok(&["get", "v.img:/to/source", "out"]);
    assert_copy(&what("get"), &source, &want, &to.join("source"));
    ok(&["cp", "v.img:/to/cp", "out/cp"]);
    assert_copy(&what("cp out"), &source, &want, &to.join("cp"));
    ok(&["export", "v.img:/to/import", "out"]);
    let merged = on_host(&to);
    for (name, want) in &want {
        assert_eq!(merged.get(name), Some(want), "{}: {name}", what("export over a directory"));
    }
    ok(&["export", "v.img:/to/import", "weft.tar"]);
    ok(&["import", "weft.tar", "v.img:/to/weft-tar"]);
    assert_same(&what("weft's tar"), &want, &in_volume(&image, "/to/weft-tar"));

    // Other people's tar reads weft's streams, and weft theirs.
    let archive = bench.path("weft.tar");
    let archive = archive.to_str().expect("a name");
    for (name, args) in
        [("tar", &[&GNU_ALL[..], &[archive]].concat()[..]), ("bsdtar", &["-xpf", archive][..])]
    {
        let to = bench.path(&format!("by-{name}"));
        fs::create_dir(&to).expect("a directory");
        let place = to.to_str().expect("a name");
        if tar(name, &[args, &["-C", place]].concat()) {
            // libarchive restores trusted.* nowhere, and the time of `.` not always.
            let strip = |all: Described| -> Described {
                let known = |path: &str, line: &str| {
                    name == "tar" || !path.is_empty() && !line.contains("trusted.")
                };
                all.into_iter().filter(|(path, line)| known(path, line)).collect()
            };
            assert_same(&what(name), &strip(want.clone()), &strip(on_host(&to)));
        }
    }
    for (name, args) in
        [("tar", &["--acls", "--xattrs", "--xattrs-include=*"][..]), ("bsdtar", &[][..])]
    {
        let archive = bench.path(&format!("{name}.tar"));
        let (archive, dir) = (archive.to_str().expect("a name"), bench.dir().to_str());
        let made = ["-cf", archive, "-C", dir.expect("a name"), "source"];
        if tar(name, &[args, &made].concat()) {
            let ran = bench.run(&["import", archive, &format!("v.img:/to/{name}")]);
            assert_eq!(ran.code, 0, "{}: {ran:#?}", what(name));
            let top = format!("/to/{name}/source");
            assert_same(&what(&format!("import from {name}")), &want, &in_volume(&image, &top));
        }
    }
    bench.e2fsck_clean("v.img");
    bench.e2fsck_clean("d.img");
    USERS.iter().filter_map(|user| as_user(&source, *user)).map(|seen| seen.lines().count()).sum()
}

/// Whether random owners, nodes and lists can be made here; if not, a line says so.
pub fn can_make() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root, who alone makes files of other users");
        return false;
    }
    let bench = Bench::new();
    let ok = set_xattr(bench.dir(), acl::DEFAULT, &list("u::rwx,u:9:r-x,g::r-x,m::r-x,o::---"));
    if ok.is_err() {
        println!("not here: the file system of temporary files has no access control lists");
    }
    ok.is_ok()
}

#[test]
fn every_way_in_and_out_keeps_what_the_source_has_and_no_more() {
    if !can_make() {
        return;
    }
    let rights: usize = (1..=3).map(every_way).sum();
    // Otherwise the users have seen nothing to compare.
    assert!(rights > 10 || tool("setpriv", [OsStr::new("--version")]).is_none(), "{rights}");
}

/// For a sixteenth of `WEFT_LONG_SECONDS`, from seed `WEFT_COPY_SEED` on.
#[test]
#[ignore = "a long campaign: WEFT_LONG_SECONDS / 16"]
fn long_copies_of_random_trees_are_exact() {
    if !can_make() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let end = Duration::from_secs(number("WEFT_LONG_SECONDS").unwrap_or(60).div_ceil(16));
    let first = number("WEFT_COPY_SEED").unwrap_or(1000);
    let began = Instant::now();
    let mut seed = first;
    while began.elapsed() < end {
        every_way(seed);
        seed += 1;
    }
    println!("{} trees, seeds {first} to {}", seed - first, seed - 1);
}
