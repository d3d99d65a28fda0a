//! Names that collide: whatever goes into a volume or out of it, by each way there is, comes out
//! with all its content, or an error that counts. Files are seeded; each has content of its own, so
//! that one which replaces another, or swallows it, is missed.

use super::{have, macbinary, noise};
use crate::run::{Bench, can_mount};
use std::collections::BTreeMap;
use std::path::Path;
use weft::block::Rng;
use weft::hfs::interchange::{Meta, apple, extension};
use weft::hfs::macroman;
use weft::hfs::streams::MacVolume;
use weft::vfs::{Caller, DirCursor, FileKind, Handle, Ino};
use weft::{Options, Stack};

/// The content of a file, without its name: data fork, resource fork, and the type and creator that
/// its name does not say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Content {
    data: String,
    resource: String,
    kind: String,
}

/// How many items have each content; folders are counted under one of their own.
type Contents = BTreeMap<Content, usize>;

/// The content of a file that is a data fork and nothing else.
fn plain(data: impl Into<String>) -> Content {
    Content { data: data.into(), resource: String::new(), kind: String::new() }
}

fn folder() -> Content {
    plain("a folder")
}

/// Names that files have, and that ways of packing give to parts of them.
const NAMES: [&str; 17] = [
    "App",
    "._App",
    "._._App",
    "App.bin",
    "App.hqx",
    "App.as",
    "App.rsrc",
    "App..rsrc",
    "App..finf",
    ".rsrc",
    ".finf",
    "App 2",
    "App 2.bin",
    "._App.bin",
    "app.txt",
    "._.rsrc",
    "Icon\r",
];

struct Item {
    /// The folder it is in, among the folders.
    folder: usize,
    name: Vec<u8>,
    content: Content,
}

/// The items of a volume: folders, the first of which is the root, and files.
struct Tree {
    folders: Vec<(usize, Vec<u8>)>,
    items: Vec<Item>,
}

impl Tree {
    fn new(rng: &mut Rng, with_folders: bool) -> Self {
        let mut folders = vec![(0, Vec::new())];
        let mut items: Vec<Item> = Vec::new();
        let count = 3 + rng.below(6);
        for n in 0..count * 2 {
            let folder = rng.index(folders.len());
            let name = NAMES[rng.index(NAMES.len())].as_bytes().to_vec();
            let same = |other: &[u8]| other.eq_ignore_ascii_case(&name);
            if items.iter().any(|item| item.folder == folder && same(&item.name))
                || folders.iter().any(|(parent, other)| *parent == folder && same(other))
            {
                continue;
            }
            if with_folders && rng.below(5) == 0 {
                folders.push((folder, name));
                continue;
            }
            let resource = if rng.below(2) == 0 { format!("fork {n}") } else { String::new() };
            let kind = if rng.below(3) == 0 { "APPLweft".into() } else { String::new() };
            let content = Content { data: format!("data {n}"), resource, kind };
            items.push(Item { folder, name, content });
        }
        Self { folders, items }
    }

    fn contents(&self) -> Contents {
        let mut all = Contents::new();
        self.items.iter().for_each(|item| *all.entry(item.content.clone()).or_default() += 1);
        if self.folders.len() > 1 {
            all.insert(folder(), self.folders.len() - 1);
        }
        all
    }

    /// Makes the items on the volume in `image`.
    fn put(&self, image: &Path) {
        let stack = Stack::open(image.to_str().unwrap(), &Options::default()).unwrap();
        let volume = stack.mac().unwrap();
        let mut inos = vec![volume.root()];
        for (parent, name) in &self.folders[1..] {
            let name = macroman::name_to_unix(name);
            let made = volume.mkdir(&Caller::ROOT, inos[*parent], name.as_bytes(), 0o755).unwrap();
            inos.push(made.attr.ino);
        }
        for item in &self.items {
            let name = macroman::name_to_unix(&item.name);
            let (parent, regular) = (inos[item.folder], FileKind::Regular);
            let made =
                volume.mknod(&Caller::ROOT, parent, name.as_bytes(), regular, 0o644, 0).unwrap();
            let (ino, content) = (made.attr.ino, &item.content);
            volume.write(&Caller::ROOT, ino, Handle::NONE, 0, content.data.as_bytes()).unwrap();
            volume.write_resource(ino, 0, content.resource.as_bytes()).unwrap();
            if !content.kind.is_empty() {
                let mut meta = volume.meta(ino).unwrap();
                meta.finder_info[..8].copy_from_slice(content.kind.as_bytes());
                volume.set_meta(ino, &meta).unwrap();
            }
        }
        stack.close().unwrap();
    }

    /// Makes the items on an HFS Plus volume, which weft only reads. xorriso gives files types and
    /// creators, and no resource forks. Returns false where it is not installed.
    fn put_plus(&mut self, bench: &Bench) -> bool {
        if !have(&["xorriso"]) {
            return false;
        }
        let mut paths = vec![std::path::PathBuf::from("plus")];
        std::fs::create_dir(bench.path("plus")).unwrap();
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        for (parent, name) in &self.folders[1..] {
            let path = paths[*parent].join(text(name));
            std::fs::create_dir(bench.dir().join(&path)).unwrap();
            paths.push(path);
        }
        // It gives no name with a control character.
        self.items.retain(|item| item.name != b"Icon\r");
        let mut make = "xorriso -as mkisofs -quiet -hfsplus -V Plus -o a.img".to_owned();
        for item in &mut self.items {
            item.content.resource.clear();
            let path = paths[item.folder].join(text(&item.name));
            std::fs::write(bench.dir().join(&path), &item.content.data).unwrap();
            if !item.content.kind.is_empty() {
                let path = path.strip_prefix("plus").unwrap().display();
                make += &format!(" -hfsplus-file-creator-type weft APPL '/{path}'");
            }
        }
        let made = bench.shell(&format!("{make} plus")).env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(made.status.success(), "{make}: {made:?}");
        true
    }

    fn told(&self) -> String {
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let folders: Vec<_> =
            self.folders.iter().map(|(p, n)| format!("{p}/{}", name(n))).collect();
        let file = |item: &Item| format!("{}/{} {:?}", item.folder, name(&item.name), item.content);
        format!("{folders:?}\n{:#?}", self.items.iter().map(file).collect::<Vec<_>>())
    }
}

/// Reads what the volume in `image` has.
fn contents(image: &Path) -> Contents {
    let stack = Stack::open(image.to_str().unwrap(), &Options::read_only()).unwrap();
    let volume = stack.mac().unwrap();
    let mut all = Contents::new();
    read_folder(&*volume, volume.root(), &mut all);
    all
}

fn read_folder(volume: &dyn MacVolume, dir: Ino, all: &mut Contents) {
    let mut found = Vec::new();
    volume
        .readdir(dir, DirCursor::START, &mut |entry| {
            found.push((entry.name.to_vec(), entry.kind));
            true
        })
        .unwrap();
    for (name, kind) in found.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
        let ino = volume.lookup(dir, &name).unwrap().attr.ino;
        if kind == FileKind::Directory {
            *all.entry(folder()).or_default() += 1;
            read_folder(volume, ino, all);
            continue;
        }
        let meta = volume.meta(ino).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut data = vec![0; meta.data_bytes as usize];
        volume.read(ino, Handle::NONE, 0, &mut data).unwrap();
        let mut resource = vec![0; meta.resource_bytes as usize];
        volume.read_resource(ino, 0, &mut resource).unwrap();
        let kind: [u8; 8] = meta.finder_info[..8].try_into().unwrap();
        let by_name = macroman::name_from_unix(&name).map(|mac| extension::guess(&mac)).unwrap();
        let is_said = kind != [0; 8] && kind != [by_name.0, by_name.1].concat()[..];
        let kind =
            if is_said && kind != *b"????????" { text(kind.to_vec()) } else { String::new() };
        let content = Content { data: text(data), resource: text(resource), kind };
        *all.entry(content).or_default() += 1;
    }
}

/// A way out of `a.img` and one into `b.img`, by commands; the ways through mounts are apart.
struct Way {
    out: Vec<&'static str>,
    back: Vec<&'static str>,
    /// The parts of a file that this command and format keep, by the documentation.
    keeps: Keeps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    All,
    /// All but type and creator.
    Forks,
    /// The data fork.
    Data,
}

const GET: [&str; 5] = ["get", "-r", "a.img:/", "out", "--quiet"];

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    let mut add = |keeps, out: &[&'static str], back: &[&'static str]| {
        ways.push(Way { out: out.to_vec(), back: back.to_vec(), keeps });
    };
    for back in [
        &["put", "out/.", "b.img:/"][..],
        &["put", "out/.", "b.img:/", "--as", "appledouble"],
        &["put", "out/.", "b.img:/", "--as", "auto"],
        &["import", "out", "b.img:/"],
        &["cp", "out/.", "b.img:/"],
        &["mkfs", "hfs", "b.img", "--size", "2M", "--force", "--import", "out"],
    ] {
        add(Keeps::All, &GET, back);
    }
    // All have that creator.
    add(Keeps::Forks, &GET, &["put", "out/.", "b.img:/", "--creator", "weft"]);
    add(Keeps::All, &["export", "a.img:/", "out"], &["import", "out", "b.img:/"]);
    add(Keeps::All, &["export", "a.img:/", "out.tar"], &["import", "out.tar", "b.img:/"]);
    add(Keeps::All, &["cp", "a.img:/", "out"], &["put", "out/.", "b.img:/"]);
    add(Keeps::All, &["cp", "a.img:/", "c.img:/"], &["cp", "c.img:/", "b.img:/"]);
    let get_as = |format| ["get", "-r", "--as", format, "a.img:/", "out"];
    add(Keeps::All, &get_as("appledouble"), &["put", "out/.", "b.img:/"]);
    add(Keeps::All, &get_as("macbinary"), &["put", "out/.", "b.img:/", "--as", "auto"]);
    for format in ["macbinary", "applesingle", "binhex", "auto", "basilisk", "xattr", "raw"] {
        let keeps = if format == "raw" { Keeps::Data } else { Keeps::All };
        add(keeps, &get_as(format), &["put", "out/.", "b.img:/", "--as", format]);
    }
    ways
}

/// The content that is left by a way which keeps these parts.
fn kept(all: &Contents, keeps: Keeps) -> Contents {
    let mut kept = Contents::new();
    for (content, count) in all {
        let content = match keeps {
            Keeps::All => content.clone(),
            Keeps::Forks => Content { kind: String::new(), ..content.clone() },
            Keeps::Data => plain(&*content.data),
        };
        *kept.entry(content).or_default() += count;
    }
    kept
}

/// Goes one way with one tree. Returns whether all arrived; an error that counts is none.
fn goes(bench: &Bench, tree: &Tree, way: &Way) -> Result<bool, String> {
    for name in ["out", "out.tar"] {
        let path = bench.path(name);
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
    }
    for (image, size) in [("b.img", "2M"), ("c.img", "2M")] {
        bench.ok(&["mkfs", "hfs", image, "--size", size, "--force", "--quiet"]);
    }
    std::fs::create_dir(bench.path("out")).unwrap();
    if way.out[0] == "export" || way.out[0] == "cp" {
        std::fs::remove_dir(bench.path("out")).unwrap();
    }
    let mut told = String::new();
    for args in [&way.out, &way.back] {
        let ran = bench.run(args);
        told += &format!("weft {}: {} {}{}\n", args.join(" "), ran.code, ran.out, ran.err);
        if ran.code != 0 {
            return Ok(false);
        }
    }
    let wanted = kept(&tree.contents(), way.keeps);
    let found = kept(&contents(&bench.path("b.img")), way.keeps);
    if found == wanted { Ok(true) } else { Err(format!("{told}{found:#?}")) }
}

fn all_ways(seeds: std::ops::Range<u64>) -> (u64, u64) {
    let (mut whole, mut refused) = (0, 0);
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let bench = Bench::new();
        let format = ["mfs", "hfs", "hfs", "hfs+"][rng.index(4)];
        let mut tree = Tree::new(&mut rng, format != "mfs");
        if format == "hfs+" {
            if !tree.put_plus(&bench) {
                continue;
            }
        } else {
            let size = if format == "mfs" { "800K" } else { "2M" };
            bench.ok(&["mkfs", format, "a.img", "--size", size, "--quiet"]);
            tree.put(&bench.path("a.img"));
        }
        assert_eq!(contents(&bench.path("a.img")), tree.contents(), "seed {seed}, {format}");
        for way in ways() {
            match goes(&bench, &tree, &way) {
                Ok(true) => whole += 1,
                Ok(false) => refused += 1,
                Err(told) => panic!("seed {seed}, {format}: {}\n{told}", tree.told()),
            }
        }
    }
    (whole, refused)
}

#[test]
fn each_way_out_and_in_keeps_all_content() {
    let (whole, refused) = all_ways(0..12);
    // An error that counts is allowed, and is the exception.
    assert!(refused * 10 <= whole, "{whole} arrived whole, {refused} were refused");
}

#[test]
#[ignore = "long"]
fn long_each_way_out_and_in_keeps_all_content() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds.unwrap_or(60));
    let mut seed = 1000;
    while std::time::Instant::now() < end {
        all_ways(seed..seed + 1);
        seed += 1;
    }
    println!("{} seeds", seed - 1000);
}

/// Through mounts, both views, by cp.
#[test]
fn mounts_keep_all_content() {
    if !can_mount() {
        return;
    }
    for seed in 100..106 {
        for forks in ["appledouble", "suffix"] {
            let mut rng = Rng::new(seed);
            let bench = Bench::new();
            let mut tree = Tree::new(&mut rng, true);
            if forks == "suffix" {
                // What is written to NAME..finf is Finder information, whatever it is.
                tree.items.retain(|item| !item.name.ends_with(b"..finf"));
            }
            for (image, dir) in [("a.img", "a"), ("b.img", "b")] {
                bench.ok(&["mkfs", "hfs", image, "--size", "2M", "--quiet"]);
                std::fs::create_dir(bench.path(dir)).unwrap();
            }
            tree.put(&bench.path("a.img"));
            for (image, dir) in [("a.img", "a"), ("b.img", "b")] {
                bench.ok(&["mount", image, dir, "--background", "--quiet", "--forks", forks]);
            }
            // Companions behind their files, as they are listed, by way of the host.
            let out = bench.shell("mkdir x && cp -a a/. x/ && cp -a x/. b/").output().unwrap();
            let ends = ["a", "b"].map(|dir| bench.run(&["umount", dir]).code);
            assert_eq!(ends, [0, 0]);
            let found = contents(&bench.path("b.img"));
            if forks == "suffix" && !out.status.success() {
                continue;
            }
            assert!(out.status.success(), "seed {seed}, {forks}: {out:?}");
            assert_eq!(found, tree.contents(), "seed {seed}, {forks}: {}", tree.told());
            bench.ok(&["fsck", "b.img"]);
        }
    }
}

/// A host's directory in which names, and the names in packed files, collide.
fn host_tree(rng: &mut Rng, dir: &Path) -> (Contents, Contents) {
    let names = [
        "App",
        "app",
        "._App",
        "._app",
        "App.bin",
        "Other.bin",
        "App.rsrc",
        "._App.bin",
        "Game.txt",
        "._Game.txt",
        "GAME.TXT",
        "Game.txt.rsrc",
        "._Lone",
        "\u{2024}_App",
        "e\u{301}",
        "é",
    ];
    let double = |kind: &[u8; 8], fork: &str| {
        let mut meta = Meta { resource_bytes: fork.len() as u64, ..Meta::default() };
        meta.finder_info[..8].copy_from_slice(kind);
        [&apple::short_header(&meta).unwrap()[..], fork.as_bytes()].concat()
    };
    std::fs::create_dir_all(dir).unwrap();
    let (mut unpacked, mut packed_too) = (Contents::new(), Contents::new());
    let chosen: Vec<&str> = names.into_iter().filter(|_| rng.below(2) == 0).collect();
    let mut doubles: BTreeMap<String, Content> = BTreeMap::new();
    let mut files: Vec<(String, Vec<u8>, Option<Content>)> = Vec::new();
    for (n, name) in chosen.iter().enumerate() {
        let base = name.strip_prefix("._").or(name.strip_suffix(".rsrc"));
        let text = format!("text {n}");
        let said =
            Content { data: String::new(), resource: format!("fork {n}"), kind: "APPLweft".into() };
        match base {
            Some(base) if chosen.contains(&base) && rng.below(3) > 0 => {
                let whole = double(b"APPLweft", &said.resource);
                // NAME.rsrc is a file of its own beside anything called ._NAME.
                let is_beside = name.starts_with("._") || !chosen.contains(&&*format!("._{base}"));
                if rng.below(3) > 0 && is_beside && !doubles.contains_key(base) {
                    doubles.insert(base.to_owned(), said);
                    files.push(((*name).to_owned(), whole, None));
                } else {
                    let cut = whole[..rng.below(whole.len() as u64) as usize].to_vec();
                    let content = plain(String::from_utf8_lossy(&cut));
                    files.push(((*name).to_owned(), cut, Some(content)));
                }
            }
            None if name.ends_with(".bin") && rng.below(2) == 0 => {
                let packed =
                    macbinary(b"App", b"APPLweft", text.as_bytes(), said.resource.as_bytes());
                files.push(((*name).to_owned(), packed, Some(Content { data: text, ..said })));
            }
            _ => {
                let content = plain(&*text);
                files.push(((*name).to_owned(), text.into_bytes(), Some(content)));
            }
        }
    }
    for (name, bytes, content) in files {
        std::fs::write(dir.join(&name), &bytes).unwrap();
        let Some(mut content) = content else { continue };
        if let Some(said) = doubles.get(&name) {
            content = Content { data: content.data, ..said.clone() };
        }
        *packed_too.entry(content.clone()).or_default() += 1;
        let data = String::from_utf8_lossy(&bytes).into_owned();
        let (resource, kind) = match doubles.get(&name) {
            Some(said) => (said.resource.clone(), said.kind.clone()),
            None => Default::default(),
        };
        *unpacked.entry(Content { data, resource, kind }).or_default() += 1;
    }
    (unpacked, packed_too)
}

/// Every way in, from directories in which names collide. If the command does not fail, all is
/// there; if it does, what is there is right.
#[test]
fn ways_in_from_a_host_keep_all_content() {
    let (mut whole, mut refused) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(5000 + seed);
        let bench = Bench::new();
        let (plain, auto) = host_tree(&mut rng, &bench.path("in"));
        // Companions before their files, and behind them.
        for (order, name) in [("", "sorted"), ("-r", "reverse")] {
            let tar = format!("LC_ALL=C sort {order} | tar cf ../{name}.tar --no-recursion -T -");
            bench.shell(&format!("cd in && find . -type f | {tar}")).status().unwrap();
        }
        let ways: [(&[&str], &Contents); 8] = [
            (&["put", "in/.", "b.img:/"], &plain),
            (&["put", "in/.", "b.img:/", "--as", "auto"], &auto),
            (&["put", "in/.", "b.img:/", "--fit-names"], &plain),
            (&["import", "in", "b.img:/"], &plain),
            (&["import", "sorted.tar", "b.img:/"], &plain),
            (&["import", "reverse.tar", "b.img:/"], &plain),
            (&["cp", "in/.", "b.img:/"], &plain),
            (&["mkfs", "hfs", "b.img", "--size", "2M", "--force", "--import", "in"], &plain),
        ];
        for (args, wanted) in ways {
            bench.ok(&["mkfs", "hfs", "b.img", "--size", "2M", "--force", "--quiet"]);
            let ran = bench.run(args);
            let found = contents(&bench.path("b.img"));
            let told = || {
                let list = std::fs::read_dir(bench.path("in")).unwrap();
                let list: Vec<_> = list.map(|e| e.unwrap().file_name()).collect();
                format!("seed {seed}: weft {}: {ran:#?}\n{list:?}", args.join(" "))
            };
            // A tar stream has its halves under the names that the volume joins.
            let is_tar = args[1].ends_with(".tar");
            if ran.code == 0 && !is_tar {
                assert_eq!(&found, wanted, "{}", told());
                whole += 1;
            } else if ran.code == 0 {
                // An AppleDouble of unar is one of the files there.
                let there: String =
                    found.keys().flat_map(|c| [&c.data[..], "\n", &c.resource[..], "\n"]).collect();
                let all = pieces(wanted);
                assert!(all.iter().all(|piece| there.contains(piece)), "{}\n{found:#?}", told());
                whole += 1;
            } else {
                assert_eq!(ran.code, 1, "{}", told());
                refused += 1;
            }
        }
    }
    assert!(whole > 100 && refused > 20, "{whole} arrived whole, {refused} were refused");
}

/// The forks that are not empty, wherever they are.
fn pieces(all: &Contents) -> Vec<String> {
    let forks = all.keys().flat_map(|c| [c.data.clone(), c.resource.clone()]);
    forks.filter(|fork| fork.starts_with("text") || fork.starts_with("fork")).collect()
}

/// Several sources with one name: none replaces another.
#[test]
fn sources_of_one_name_do_not_replace_each_other() {
    let bench = Bench::new();
    for image in ["v.img", "w.img"] {
        bench.ok(&["mkfs", "hfs", image, "--size", "2M", "--quiet"]);
    }
    for dir in ["p1", "p2"] {
        bench.write(&format!("{dir}/f"), dir.as_bytes());
        bench.write(&format!("{dir}/g-{dir}"), dir.as_bytes());
    }
    let said = bench.fails(1, &["put", "p1/f", "p2/f", "p2/g-p2", "v.img:/"]);
    assert!(said.contains("/f") && said.contains("1 name left out"), "{said}");
    assert_eq!(bench.ok(&["cat", "v.img:/f"]), "p1");
    assert_eq!(bench.ok(&["cat", "v.img:/g-p2"]), "p2", "the rest is copied");
    // From an earlier time it is replaced, as always.
    bench.ok(&["put", "p2/f", "v.img:/", "--quiet"]);
    assert_eq!(bench.ok(&["cat", "v.img:/f"]), "p2");
    bench.ok(&["mkdir", "v.img:/d"]);
    bench.ok(&["put", "p1/f", "v.img:/d", "--quiet"]);
    bench.fails(1, &["cp", "v.img:/d/f", "v.img:/f", "w.img:/"]);
    assert_eq!(bench.ok(&["cat", "w.img:/f"]), "p1");
    std::fs::create_dir(bench.path("out")).unwrap();
    for format in [&[][..], &["--as", "appledouble"]] {
        bench.fails(1, &[&["get", "v.img:/d/f", "v.img:/f", "out"], format].concat());
        assert_eq!(std::fs::read(bench.path("out/f")).unwrap(), b"p1");
    }
    // Packed files get another name.
    for (n, inner) in ["one", "two"].iter().enumerate() {
        let packed = macbinary(b"Game", b"APPLweft", inner.as_bytes(), &noise(50, n as u64));
        bench.write(&format!("Game-{n}.bin"), &packed);
    }
    let ran = bench.run(&["put", "--as", "auto", "Game-0.bin", "Game-1.bin", "w.img:/"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("Game 2"), "{ran:#?}");
    assert_eq!(bench.ok(&["cat", "w.img:/Game"]), "one");
    assert_eq!(bench.ok(&["cat", "w.img:/Game 2"]), "two");
    bench.write("Game.bin", b"a plain file of this name");
    bench.ok(&["put", "Game.bin", "w.img:/", "--quiet"]);
    std::fs::create_dir(bench.path("packed")).unwrap();
    let ran = bench.run(&["get", "--as", "auto", "-r", "w.img:/", "packed"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.err.contains("Game 2.bin") || ran.err.contains("Game 3.bin"), "{ran:#?}");
    let mut count = 0;
    for entry in std::fs::read_dir(bench.path("packed")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        count += usize::from(name.starts_with("Game"));
    }
    assert_eq!(count, 3);
}
