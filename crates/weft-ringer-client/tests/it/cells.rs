//! Cells in cells, as one file system of several clients.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use weft_block::Rng;
use weft_ringer::{CELL_MOUNT_XATTR, CellId, CellMount};
use weft_ringer_client::{CELLS_XATTR, COMPLETE_XATTR, CellTree, RingerFsOptions};
use weft_ringer_net::{Answer, Ask, ask};
use weft_vfs::{
    Caller, DirCursor, Error, FileSystem, Handle, Ino, OpenFlags, RenameFlags, Result, XattrSet,
};

use super::Cell;
use weft_testing::wait_for;

const EPOCH: Duration = Duration::from_secs(15);

fn number(cell: &Cell) -> CellId {
    match ask(&cell.address(), None, &Ask::Status {}).expect("it answers") {
        Answer::Status { status } => CellId(status.cell),
        other => panic!("{other:?}"),
    }
}

pub fn cell_mount_to(cell: &Cell) -> String {
    CellMount { cell: number(cell), servers: vec![cell.address().to_string()] }.to_string()
}

fn options(cell: &Cell, name: &str) -> RingerFsOptions {
    let mut options = cell.options(name);
    options.patience = Duration::from_secs(2);
    options
}

fn join(cell: &Cell, name: &str) -> CellTree {
    CellTree::join(options(cell, name)).expect("it joins")
}

fn ino(fs: &dyn FileSystem, path: &str) -> Result<Ino> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(fs.root(), |dir, name| {
        // As the kernel does after `ESTALE`.
        match fs.lookup(dir, name.as_bytes()) {
            Err(Error::Stale(_)) => fs.lookup(dir, name.as_bytes()),
            found => found,
        }
        .map(|entry| entry.attr.ino)
    })
}

fn mkdir(fs: &dyn FileSystem, path: &str) -> Ino {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let above = ino(fs, above).expect("it is there");
    let made = fs.mkdir(&Caller::ROOT, above, name.as_bytes(), 0o755);
    made.expect("a directory").attr.ino
}

fn set(fs: &dyn FileSystem, dir: Ino, cell_mount: &str) -> Result<()> {
    fs.setxattr(&Caller::ROOT, dir, CELL_MOUNT_XATTR, cell_mount.as_bytes(), XattrSet::Any)
}

fn attach(fs: &dyn FileSystem, path: &str, cell: &Cell) {
    set(fs, mkdir(fs, path), &cell_mount_to(cell)).expect("a cell mount");
}

fn write(fs: &dyn FileSystem, path: &str, content: &[u8]) {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let above = ino(fs, above).expect("it is there");
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let made = fs.create(&Caller::ROOT, above, name.as_bytes(), 0o644, flags);
    let (entry, opened) = made.expect("a file");
    fs.write(&Caller::ROOT, entry.attr.ino, opened.handle, 0, content).expect("it is written");
    fs.release(entry.attr.ino, opened.handle).expect("it is closed");
    fs.forget(entry.attr.ino, 1);
}

fn read(fs: &dyn FileSystem, path: &str) -> Result<Vec<u8>> {
    let file = ino(fs, path)?;
    let mut content = vec![0; 100];
    let n = fs.read(file, Handle::NONE, 0, &mut content)?;
    content.truncate(n);
    Ok(content)
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<(String, Ino)>> {
    let mut names = Vec::new();
    fs.readdir_plus(dir, DirCursor(0), &mut |dirent, entry| {
        let name = String::from_utf8_lossy(dirent.name).into_owned();
        assert_eq!(dirent.ino, entry.attr.ino, "{name}");
        if name != "." && name != ".." {
            fs.forget(entry.attr.ino, 1);
        }
        names.push((name, entry.attr.ino));
        true
    })?;
    Ok(names)
}

fn errno<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, |e| e.errno())
}

#[test]
fn nested_cells_are_one_tree() {
    let (outer, mid, inner) = (Cell::new(EPOCH), Cell::new(EPOCH), Cell::new(EPOCH));
    let (a, b) = (join(&outer, "a"), join(&outer, "b"));
    attach(&a, "m", &mid);
    attach(&a, "m/d", &inner);
    write(&a, "m/d/x", b"deep");
    write(&a, "m/y", b"half way");
    write(&a, "z", b"outside");
    assert_eq!(read(&b, "m/d/x").expect("it is there"), b"deep");
    assert_eq!(read(&b, "m/d/../y").expect("it is there"), b"half way");
    assert_eq!(read(&b, "m/../z").expect("it is there"), b"outside");

    // Each inode has one number, whatever way leads to it, and on every mount.
    let all = ["", "m", "m/d", "m/d/x", "m/y", "z"].map(|p| ino(&a, p).expect("it is there"));
    // Also of a cell mount that was never entered.
    attach(&a, "n", &inner);
    let unseen = ino(&a, "n").expect("it is there");
    assert_eq!(a.getattr(unseen).expect("attributes").ino, unseen);
    for (at, one) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other != one), "{all:?}");
        assert_eq!(a.getattr(*one).expect("attributes").ino, *one);
    }
    assert_eq!(ino(&b, "m/d/x").expect("it is there"), all[3]);
    let listed = names(&a, all[2]).expect("a listing");
    let [here, above, x] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((here.1, above.1, x.1), (all[2], all[1], all[3]));
    assert_eq!(names(&a, all[1]).expect("a listing")[1].1, all[0]);

    // As between two file systems: EXDEV.
    let across = a.rename(&Caller::ROOT, all[1], b"y", all[2], b"y", RenameFlags::empty());
    assert_eq!(errno(across), 18);
    assert_eq!(errno(a.link(&Caller::ROOT, all[3], all[0], b"x")), 18);
    a.rename(&Caller::ROOT, all[0], b"m", all[0], b"moved", RenameFlags::empty())
        .expect("a cell mount moves");
    assert_eq!(read(&b, "moved/d/x").expect("it is there"), b"deep");

    // A cell mount stays while it is one.
    assert_eq!(errno(a.rmdir(&Caller::ROOT, all[0], b"moved")), 16);
    assert_eq!(errno(set(&a, all[1], &cell_mount_to(&inner))), 17);
    assert_eq!(
        a.getxattr(all[1], CELL_MOUNT_XATTR).expect("it says"),
        cell_mount_to(&mid).as_bytes()
    );
    assert_eq!(a.listxattr(all[1]).expect("a list"), Vec::<Vec<u8>>::new());
    let plain = mkdir(&a, "plain");
    write(&a, "plain/in the way", b"");
    assert_eq!(errno(set(&a, plain, &cell_mount_to(&inner))), 39);
    let y = ino(&a, "moved/y").expect("it is there");
    assert_eq!(errno(set(&a, y, &cell_mount_to(&outer))), 40);
    let file = ino(&a, "z").expect("it is there");
    assert_eq!(errno(set(&a, file, &cell_mount_to(&inner))), 20);

    a.removexattr(&Caller::ROOT, all[1], CELL_MOUNT_XATTR).expect("it is detached");
    assert_eq!(errno(b.lookup(ino(&b, "moved").expect("it is there"), b"d")), 2);
    b.rmdir(&Caller::ROOT, b.root(), b"moved").expect("it is empty");
    a.unmount().expect("it ends well");
    b.unmount().expect("it ends well");
    // Changes in the inner cells have reached their servers.
    let alone = inner.join("alone");
    let x = ino(&alone, "x").expect("it is there");
    assert_eq!(alone.getattr(x).expect("attributes").size_bytes, 4);
}

#[test]
fn unreachable_cell_mount_fails_alone() {
    let (outer, inner) = (Cell::new(EPOCH), Cell::new(EPOCH));
    let a = join(&outer, "a");
    write(&a, "file", b"here");
    let (own, there) = (number(&outer), inner.address().to_string());
    // An invalid cell mount is refused, also from root.
    let dir = mkdir(&a, "d");
    let long = format!("cell {own}\nserver {}", "x".repeat(2000));
    for bad in ["", "cell\0", "server nowhere", "\u{1}", &long] {
        assert_eq!(errno(set(&a, dir, bad)), 22, "{bad:?}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let web = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let _ = socket.and_then(|mut s| s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    for (name, cell, server, wanted) in [
        ("another", CellId(7), &there, 121),
        ("itself", own, &outer.address().to_string(), 40),
        ("unreachable", CellId(8), &format!("unix:{}", outer.path("none").display()), 110),
        ("a web server", CellId(9), &web, 110),
        ("no address", CellId(10), &"a/b".to_owned(), 5),
    ] {
        let cell_mount = CellMount { cell, servers: vec![server.clone()] }.to_string();
        let dir = mkdir(&a, name);
        if name == "itself" {
            assert_eq!(errno(set(&a, dir, &cell_mount)), wanted);
            continue;
        }
        set(&a, dir, &cell_mount).expect("it is a cell mount all the same");
        let root = ino(&a, name).expect("it can be looked at");
        let walked = names(&a, root).expect_err(name);
        assert_eq!(walked.errno(), wanted, "{name}: {walked}");
        assert!(walked.to_string().contains(&cell.to_string()), "{name}: {walked}");
        assert!(walked.to_string().contains(server.as_str()), "{name}: {walked}");
        assert!(a.getattr(root).is_ok());
    }
    // Only the reason of the failure is kept.
    assert!(!outer.path("a/cells").join(CellId(8).to_string()).exists());
    let told = a.getxattr(a.root(), CELLS_XATTR).expect("it says");
    let told = String::from_utf8_lossy(&told).into_owned();
    assert_eq!(told.matches("\tclosed\t").count(), 4, "{told}");
    // Other operations continue.
    assert_eq!(names(&a, a.root()).expect("a listing").len(), 2 + 7);
    assert_eq!(read(&a, "file").expect("it is there"), b"here");
    let dead = ino(&a, "unreachable").expect("it is there");
    a.removexattr(&Caller::ROOT, dead, CELL_MOUNT_XATTR)
        .expect("it is detached, without a word of it");
    assert_eq!(names(&a, ino(&a, "unreachable").expect("there")).expect("a listing").len(), 2);
}

#[test]
fn cyclic_cell_mounts_are_refused() {
    let (one, two) = (Cell::new(EPOCH), Cell::new(EPOCH));
    // Neither client sees that it is one.
    let (a, b) = (join(&one, "a"), join(&two, "b"));
    attach(&a, "two", &two);
    attach(&b, "one", &one);
    let end = ino(&a, "two/one").expect("it can be looked at");
    assert_eq!(errno(names(&a, end)), 40);
    assert_eq!(errno(ino(&b, "one/two/x")), 40);
    assert_eq!(errno(ino(&b, "one/x")), 2);
}

#[test]
fn cell_mounted_twice_has_one_client() {
    let (outer, inner) = (Cell::new(EPOCH), Cell::new(EPOCH));
    let a = join(&outer, "a");
    attach(&a, "first", &inner);
    attach(&a, "second", &inner);
    write(&a, "first/x", b"once");
    assert_eq!(read(&a, "second/x").expect("it is there"), b"once");
    let (first, second) = (ino(&a, "first/x"), ino(&a, "second/x"));
    assert_ne!(first.expect("it is there"), second.expect("it is there"));
    let (from, to) = (ino(&a, "first").expect("there"), ino(&a, "second").expect("there"));
    assert_eq!(errno(a.rename(&Caller::ROOT, from, b"x", to, b"y", RenameFlags::empty())), 18);
    let Answer::Status { status } =
        ask(&inner.address(), None, &Ask::Status {}).expect("it answers")
    else {
        panic!("another answer")
    };
    assert_eq!(status.clients.len(), 1);
}

#[test]
fn changes_in_an_inner_cell_survive_a_crash() {
    let (outer, mut inner) = (Cell::new(EPOCH), Cell::new(EPOCH));
    let a = join(&outer, "a");
    attach(&a, "in", &inner);
    write(&a, "in/before", b"1");
    a.sync().expect("it is with both servers");
    write(&a, "in/after", b"2");
    inner.stop();
    a.vanish();
    drop(a);
    inner.start();
    // Without a program that enters the inner cell.
    let _a = join(&outer, "a");
    let b = inner.join("b");
    wait_for("the change arrives", || b.lookup(b.root(), b"after"));
    assert_eq!(read(&b, "after").expect("it is there"), b"2");
}

/// The folder of a query: paths of what is in it, whether that is all, and how each cell was asked.
fn search(fs: &dyn FileSystem, query: &str) -> (Vec<String>, bool, Vec<String>) {
    let top = fs.lookup(fs.root(), b".query").expect("the folders").attr.ino;
    let folder = fs.lookup(top, query.as_bytes()).expect("a folder").attr.ino;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let mut paths = Vec::new();
    fs.readdir_plus(folder, DirCursor(0), &mut |dirent, entry| {
        if dirent.name != b"." && dirent.name != b".." {
            let target = text(fs.readlink(entry.attr.ino).expect("a link"));
            paths.push(target.strip_prefix("../..").expect("from the root").to_owned());
            fs.forget(entry.attr.ino, 1);
        }
        true
    })
    .expect("a listing");
    paths.sort();
    let complete = fs.getxattr(folder, COMPLETE_XATTR).expect("it says") == b"1";
    let cells = text(fs.getxattr(folder, CELLS_XATTR).expect("it says"));
    fs.forget(folder, 1);
    let cells = cells.lines().map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        format!("{} {}", words[3], words[1])
    });
    (paths, complete, cells.collect())
}

fn tag(fs: &dyn FileSystem, path: &str, tags: &str) {
    let file = ino(fs, path).expect("it is there");
    fs.setxattr(&Caller::ROOT, file, b"user.xdg.tags", tags.as_bytes(), XattrSet::Any)
        .expect("it is tagged");
}

#[test]
fn search_across_cells_reports_each_cell() {
    let (outer, mid) = (Cell::new(EPOCH), Cell::new(EPOCH));
    let mut inner = Cell::new(EPOCH);
    let a = join(&outer, "a");
    attach(&a, "m", &mid);
    attach(&a, "m/d", &inner);
    for path in ["one", "m/two", "m/d/three"] {
        write(&a, path, b"x");
        tag(&a, path, "un");
    }
    let all = ["/m/d/three", "/m/two", "/one"].map(str::to_owned).to_vec();
    let asked = |how: [&str; 3]| {
        let paths = ["/", "/m", "/m/d"];
        paths.iter().zip(how).map(|(path, how)| format!("{path} {how}")).collect::<Vec<_>>()
    };
    let complete = asked(["complete"; 3]);
    assert_eq!(search(&a, "tag:un"), (all.clone(), true, complete.clone()));
    // The client has the summaries of all cells now.
    let pruned = asked(["complete", "pruned", "pruned"]);
    assert_eq!(search(&a, "tag:draft"), (vec![], true, pruned.clone()));
    assert_eq!(
        search(&a, "thr"),
        (vec!["/m/d/three".into()], true, asked(["complete", "pruned", "complete"]))
    );
    assert_eq!(search(&a, "project:x").2, pruned);
    assert_eq!(search(&a, "kind:dir").2, complete);
    // Files added since, by any client, are found.
    let b = inner.join("b");
    tag(&b, "three", "un,draft");
    b.sync().expect("it is with the server");
    assert_eq!(search(&a, "tag:draft").0, ["/m/d/three"]);
    // The same after the inner server has restarted.
    inner.stop();
    let (found, is_all, how) = search(&a, "tag:un");
    assert_eq!((&found[..], is_all), (&all[1..], false));
    assert_eq!(how, asked(["complete", "complete", "unreachable"]));
    inner.start();
    b.sync().expect("it goes on");
    assert_eq!(search(&a, "tag:un"), (all, true, complete));
    // Another cell at the address is not asked.
    let wrong = CellMount { cell: CellId(7), servers: vec![inner.address().to_string()] };
    set(&a, mkdir(&a, "wrong"), &wrong.to_string()).expect("a cell mount");
    let (_, is_all, how) = search(&a, "tag:draft");
    assert!(!is_all && how.contains(&"/wrong refused".to_owned()), "{how:?}");
}

#[test]
fn searches_across_cells_agree_with_a_list_of_all_files() {
    let (outer, mid, inner) = (Cell::new(EPOCH), Cell::new(EPOCH), Cell::new(EPOCH));
    let a = join(&outer, "a");
    attach(&a, "m", &mid);
    attach(&a, "m/d", &inner);
    let direct = inner.join("b");
    let rng = &mut Rng::new(0x5eed);
    let tags = ["un", "deux", "trois", "quatre", "cinq"];
    let words = ["alpha", "beta", "betamax", "gamma"];
    let mut files: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    let mut pruned = 0;
    for round in 0..80_u32 {
        let dir = ["", "m/", "m/d/"][rng.index(3)];
        let file = format!("{dir}{} {}", words[rng.index(words.len())], rng.below(2));
        // One cell is changed by other clients as well.
        let (fs, path): (&dyn FileSystem, &str) = match file.strip_prefix("m/d/") {
            Some(rest) if round % 2 == 0 => (&direct, rest),
            _ => (&a, &file),
        };
        if files.contains_key(&file) && rng.below(3) == 0 {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let above = ino(fs, above).expect("it is there");
            fs.unlink(&Caller::ROOT, above, name.as_bytes()).expect("it is removed");
            files.remove(&file);
        } else if rng.below(2) == 0 {
            let set = tags[rng.index(tags.len())];
            write(fs, path, b"");
            tag(fs, path, set);
            files.insert(file.clone(), set.to_owned());
        }
        direct.sync().expect("it is with the server");
        let wanted = tags[rng.index(tags.len())];
        let start = ["alp", "beta", "betam", "g", "delta"][rng.index(5)];
        for (query, fits) in [
            (
                format!("tag:{wanted}"),
                Box::new(|_: &str, t: &str| t == wanted) as Box<dyn Fn(&str, &str) -> bool>,
            ),
            (
                format!("{start} kind:file"),
                Box::new(|f: &str, _: &str| {
                    f.rsplit('/').next().is_some_and(|name| name.starts_with(start))
                }),
            ),
        ] {
            let model = files.iter().filter(|(file, t)| fits(file, t));
            let model: Vec<String> = model.map(|(file, _)| format!("/{file}")).collect();
            let (found, is_all, how) = search(&a, &query);
            assert_eq!((found, is_all), (model, true), "round {round}: {query}: {how:?}");
            pruned += how.iter().filter(|line| line.ends_with("pruned")).count();
        }
    }
    assert!(pruned > 0, "summaries are of no use");
}
