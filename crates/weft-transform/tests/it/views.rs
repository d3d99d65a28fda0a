//! Views by name, links, networks that change under a file, and explanations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_testing::Rng;
use weft_transform::{
    CONVERT_ATTRIBUTE, EXPLAIN_ATTRIBUTE, Explanation, LINK, NETWORK_ATTRIBUTE, Rules, Source,
    TransformFs, TransformOptions, link_content,
};
use weft_vfs::{
    Caller, DirCursor, Error, FileSystem, Ino, Invalidate, MemFs, OpenFlags, RenameFlags, Result,
    SetAttr, Walker, XattrSet,
};

use crate::common::{lines, network, registry};
use crate::hooked::Hooked;

fn over(below: &Arc<MemFs>, rules: &str) -> TransformFs {
    let options = TransformOptions {
        rules: Rules::parse(rules.as_bytes()).expect("rules"),
        ..TransformOptions::default()
    };
    TransformFs::new(below.clone(), registry(), options).expect("a root")
}

fn names(fs: &dyn FileSystem, ino: Ino) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(ino, DirCursor::START, &mut |d| {
        names.push(String::from_utf8_lossy(d.name).into_owned());
        true
    })
    .expect("a directory");
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// What was announced to the front.
#[derive(Debug, Default)]
struct Announced(Mutex<(Vec<Ino>, Vec<Vec<u8>>)>);

impl Invalidate for Announced {
    fn inode(&self, ino: Ino, _: bool) {
        self.0.lock().expect("announced").0.push(ino);
    }

    fn entry(&self, _: Ino, name: &[u8]) {
        self.0.lock().expect("announced").1.push(name.to_vec());
    }
}

#[test]
fn views_by_name_show_and_hide() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "*.log zstd\n*.txt@loud upper\n");
    let walker = Walker::new(&fs);
    let text = lines(&mut Rng::new(1), 300_000);
    walker.write_file(b"/a.txt", b"quiet words", 0o640)?;
    walker.write_file(b"/b.log", &text, 0o644)?;
    assert_eq!(walker.read_file(b"/a.txt@loud")?, b"QUIET WORDS", "named by a rule");
    assert_eq!(walker.read_file(b"/a.txt@upper+rot13")?, b"DHVRG JBEQF", "made of stages");
    assert_eq!(walker.read_file(b"/b.log@upper")?, text.to_ascii_uppercase(), "of what is read");
    assert_eq!(walker.read_file(b"/a.txt@upper@lower")?, b"quiet words", "a view of a view");
    for none in [&b"/a.txt@nothing"[..], b"/none@upper", b"/a.txt@", b"/@upper", b"/b.log@loud"] {
        assert!(matches!(walker.read_file(none), Err(Error::NotFound)), "{none:?}");
    }
    let deep = format!("/a.txt{}", "@lower".repeat(30));
    assert!(matches!(walker.read_file(deep.as_bytes()), Err(Error::SymlinkLoop)));
    assert_eq!(names(&fs, fs.root()), ["a.txt", "b.log"], "hidden from listings");

    let view = walker.resolve(b"/a.txt@loud")?;
    let attr = view.stat()?;
    assert_eq!((attr.perm, attr.size_bytes, attr.nlink), (0o440, 11, 1));
    assert_ne!(attr.ino, walker.resolve(b"/a.txt")?.ino());
    // Nobody writes, moves or removes it.
    assert!(matches!(view.write_at(&Caller::ROOT, 0, b"x"), Err(Error::ReadOnly)));
    assert!(matches!(fs.open(&Caller::ROOT, view.ino(), OpenFlags::WRITE), Err(Error::ReadOnly)));
    assert!(matches!(walker.remove(b"/a.txt@loud"), Err(Error::NotFound)));
    let set = fs.setxattr(&Caller::ROOT, view.ino(), NETWORK_ATTRIBUTE, b"rot13", XattrSet::Any);
    assert!(matches!(set, Err(Error::ReadOnly)));
    assert!(fs.link(&Caller::ROOT, view.ino(), fs.root(), b"other").is_err());
    // A real file of that name goes before it.
    Walker::new(&*below).write_file(b"/b.log@upper", b"real", 0o644)?;
    assert_eq!(walker.read_file(b"/b.log@upper")?, b"real");
    Ok(())
}

#[test]
fn views_follow_what_they_show() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "*.log zstd frame=4K\n");
    let announced = Arc::new(Announced::default());
    fs.set_invalidate(announced.clone());
    let walker = Walker::new(&fs);
    for name in ["/plain", "/x.log"] {
        let node = walker.write_file(name.as_bytes(), b"one", 0o644)?;
        let path = format!("{name}@upper");
        let view = walker.resolve(path.as_bytes())?;
        assert_eq!(view.read_all()?, b"ONE");
        for round in 0..20 {
            let content = format!("number {round}");
            node.write_at(&Caller::ROOT, 0, content.as_bytes())?;
            // Before it is committed, too.
            assert_eq!(view.read_all()?, content.to_uppercase().into_bytes(), "{name}");
            if round % 3 == 0 {
                fs.fsync(&Caller::ROOT, node.ino(), false)?;
            }
            assert!(announced.0.lock().expect("announced").0.contains(&view.ino()));
        }
        drop(view);
        let held = walker.resolve(path.as_bytes())?;
        walker.rename(name.as_bytes(), b"/elsewhere", RenameFlags::empty())?;
        let gone = path.trim_start_matches('/').as_bytes().to_vec();
        assert!(announced.0.lock().expect("announced").1.contains(&gone));
        assert!(walker.resolve(path.as_bytes()).is_err());
        assert_eq!(held.read_all()?, b"NUMBER 19", "who has it open goes on");
        drop((held, node));
        walker.remove(b"/elsewhere")?;
    }
    assert!(names(&fs, fs.root()).is_empty());
    Ok(())
}

/// What the kernel keeps of a view it may keep for a moment only, and not at all while the file
/// changes.
#[test]
fn attributes_of_views_are_kept_while_nothing_changes() -> Result<()> {
    let below = Arc::new(MemFs::new());
    Walker::new(&*below).write_file(b"/data", b"some bytes", 0o644)?;
    let fs = over(&below, "");
    let walker = Walker::new(&fs);
    let view = walker.resolve(b"/data@upper")?;
    let again = walker.resolve(b"/data@upper+rot13")?;
    let moment = fs.attr_lifetime(view.ino()).expect("a limit");
    assert!(!moment.is_zero() && moment < Duration::from_millis(100));
    assert_eq!(fs.attr_lifetime(again.ino()), Some(moment));
    let data = walker.resolve(b"/data")?;
    assert_eq!(fs.attr_lifetime(data.ino()), None);
    let opened = fs.open(&Caller::ROOT, data.ino(), OpenFlags::WRITE)?;
    fs.write(&Caller::ROOT, data.ino(), opened.handle, 10, b" more")?;
    for view in [&view, &again] {
        assert_eq!(fs.attr_lifetime(view.ino()), Some(Duration::ZERO));
        assert_eq!(view.stat()?.size_bytes, 15);
    }
    fs.release(data.ino(), opened.handle)
}

#[test]
fn views_of_unknown_length() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "");
    let walker = Walker::new(&fs);
    walker.write_file(b"/data", b"some bytes", 0o644)?;
    let view = walker.resolve(b"/data@hex")?;
    assert_eq!(view.stat()?.size_bytes, 0);
    assert_eq!(fs.attr_lifetime(view.ino()), Some(Duration::ZERO));
    let opened = fs.open(&Caller::ROOT, view.ino(), OpenFlags::READ)?;
    assert!(opened.direct_io);
    let mut buf = [0; 64];
    let got = fs.read(view.ino(), opened.handle, 0, &mut buf)?;
    assert_eq!(&buf[..got], b"736f6d65206279746573");
    fs.flush(view.ino(), opened.handle)?;
    fs.release(view.ino(), opened.handle)
}

#[test]
fn links_lead_to_their_base() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "*.weftlink link\ndata/* zstd\n");
    let walker = Walker::new(&fs);
    walker.mkdir_all(b"/data/deep", 0o755)?;
    walker.mkdir_all(b"/links", 0o755)?;
    walker.write_file(b"/data/words", b"hello", 0o644)?;
    let make = |path: &[u8], base: &str| -> Result<()> {
        let node = walker.write_file(
            path,
            link_content(base, &network("view: upper")).as_bytes(),
            0o644,
        )?;
        fs.setxattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE, LINK, XattrSet::Any)
    };
    make(b"/links/up", "../data/words")?;
    assert_eq!(walker.read_file(b"/links/up")?, b"HELLO");
    // Without weft it is text.
    let raw = Walker::new(&*below).read_file(b"/links/up")?;
    assert!(raw.starts_with(b"weft link 1\nbase: ../data/words\n"));
    // By a rule, in a tree that is opened again.
    let body = link_content("/links/up", &network("view: lower"));
    Walker::new(&*below).write_file(b"/by-rule.weftlink", body.as_bytes(), 0o644)?;
    assert_eq!(walker.read_file(b"/by-rule.weftlink")?, b"hello", "a link to a link");
    // It follows its base, and says so when that is gone.
    walker.write_file(b"/data/words", b"other", 0o644)?;
    assert_eq!(walker.read_file(b"/links/up")?, b"OTHER");
    walker.remove(b"/data/words")?;
    drop(fs);
    let fs = over(&below, "*.weftlink link\n");
    let walker = Walker::new(&fs);
    let dangling = walker.resolve(b"/links/up")?;
    assert_eq!(dangling.read_all().expect_err("no base").errno(), 2);
    let of_dangling = walker.resolve(b"/links/up@lower")?;
    assert_eq!(of_dangling.read_all().expect_err("no base").errno(), 2);
    walker.write_file(b"/data/words", b"again", 0o644)?;
    let opened = fs.open(&Caller::ROOT, of_dangling.ino(), OpenFlags::READ);
    assert!(matches!(opened, Err(Error::Stale(_))), "it may be reached by others now");
    assert_eq!(of_dangling.read_all()?, b"again", "there again");
    let opened = fs.open(&Caller::ROOT, dangling.ino(), OpenFlags::READ);
    assert!(matches!(opened, Err(Error::Stale(_))), "its permissions are others now");
    let opened = fs.open(&Caller::ROOT, dangling.ino(), OpenFlags::READ)?;
    fs.release(dangling.ino(), opened.handle)?;
    assert_eq!(dangling.read_all()?, b"AGAIN", "there again");
    // A circle is an error, not an endless search.
    for (link, base) in [(&b"/c1.weftlink"[..], "c2.weftlink"), (b"/c2.weftlink", "c1.weftlink")] {
        let body = link_content(base, &network("view: lower"));
        Walker::new(&*below).write_file(link, body.as_bytes(), 0o644)?;
    }
    assert_eq!(walker.resolve(b"/c1.weftlink")?.read_all().expect_err("a circle").errno(), 40);
    Ok(())
}

/// Links that lead to each other are errors however often they are looked at, and whoever looks: a
/// look locks a link and then its base.
#[test]
fn links_in_a_circle_are_errors_again_and_again() {
    let (done, watch) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let below = Arc::new(MemFs::new());
        let fs = over(&below, "*.weftlink link\n");
        for (link, base) in
            [("a", "b"), ("b", "c"), ("c", "a"), ("p", "q"), ("q", "p"), ("own", "own")]
        {
            let body = link_content(&format!("{base}.weftlink"), &network("view: lower"));
            let path = format!("/{link}.weftlink");
            Walker::new(&*below).write_file(path.as_bytes(), body.as_bytes(), 0o644).unwrap();
        }
        // As a kernel does, who looks keeps what it has found.
        let look = |links: &[&str]| {
            let walker = Walker::new(&fs);
            let names = links.iter().flat_map(|link| ["", "@upper"].map(|view| (link, view)));
            let found: Vec<_> = names
                .filter_map(|(link, view)| {
                    walker.resolve(format!("/{link}.weftlink{view}").as_bytes()).ok()
                })
                .collect();
            assert_eq!(found.len(), 2 * links.len(), "their names are there");
            for node in found.iter().cycle().take(300) {
                let _ = node.stat();
                assert!(node.read_all().is_err(), "a circle has no content");
            }
        };
        std::thread::scope(|scope| {
            for links in [["a", "b", "c", "p", "q", "own"], ["q", "c", "own", "p", "b", "a"]] {
                scope.spawn(move || look(&links));
            }
        });
        done.send(()).unwrap();
    });
    let patience = Duration::from_secs(300);
    assert!(watch.recv_timeout(patience).is_ok(), "a look at a circle stands still, or failed");
}

/// A user who can create files can create a long chain of links. Lookups of it must not keep the mount
/// busy.
#[test]
fn a_long_chain_of_links_is_an_error_soon() -> Result<()> {
    let below = Arc::new(Hooked::default());
    for nr in 1..=40 {
        let body = link_content(&format!("{}.weftlink", nr + 1), &network("view: lower"));
        let path = format!("/{nr}.weftlink");
        Walker::new(&below.fs).write_file(path.as_bytes(), body.as_bytes(), 0o644)?;
    }
    Walker::new(&below.fs).write_file(b"/41.weftlink", b"no link", 0o644)?;
    let options = TransformOptions {
        rules: Rules::parse(b"*.weftlink link\n41.weftlink none\n").expect("rules"),
        ..TransformOptions::default()
    };
    let fs = TransformFs::new(below.clone(), registry(), options).expect("a root");
    let calls = Arc::new(AtomicU64::new(0));
    let counter = calls.clone();
    below.before_getattr(move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let walker = Walker::new(&fs);
    assert_eq!(walker.read_file(b"/38.weftlink")?, b"no link", "three links");
    assert_eq!(walker.read_file(b"/1.weftlink").expect_err("forty links").errno(), 40);
    let calls = calls.load(Ordering::Relaxed);
    assert!(calls < 10_000, "{calls} calls of getattr");
    Ok(())
}

#[test]
fn a_link_does_not_lead_around_permissions() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let raw = Walker::new(&*below);
    raw.write_file(b"/private", b"secret", 0o600)?;
    let link = raw.write_file(
        b"/mine",
        link_content("private", &network("view: upper")).as_bytes(),
        0o644,
    )?;
    let set = weft_vfs::SetAttr { uid: Some(1000), ..weft_vfs::SetAttr::default() };
    below.setattr(&Caller::ROOT, link.ino(), &set)?;
    below.setxattr(&Caller::ROOT, link.ino(), NETWORK_ATTRIBUTE, LINK, XattrSet::Any)?;
    let fs = over(&below, "");
    let refused = Walker::new(&fs).read_file(b"/mine").expect_err("of another owner");
    assert_eq!(refused.errno(), 13);
    // One of the owner's own has the permissions of its base.
    let set = weft_vfs::SetAttr { uid: Some(0), ..weft_vfs::SetAttr::default() };
    below.setattr(&Caller::ROOT, link.ino(), &set)?;
    let fs = over(&below, "");
    let shown = Walker::new(&fs).resolve(b"/mine")?;
    assert_eq!(shown.stat()?.perm, 0o400);
    assert_eq!(shown.read_all()?, b"SECRET");
    Ok(())
}

/// A link to nothing has a mode of its own. Once its base is there, nobody opens it by that mode.
#[test]
fn a_link_to_nothing_is_not_opened_by_its_own_mode_once_there_is_something() -> Result<()> {
    for name in [&b"/link"[..], b"/link@lower"] {
        let below = Arc::new(MemFs::new());
        let raw = Walker::new(&*below);
        let content = link_content("secret", &network("view: upper"));
        let link = raw.write_file(b"/link", content.as_bytes(), 0o644)?;
        below.setxattr(&Caller::ROOT, link.ino(), NETWORK_ATTRIBUTE, LINK, XattrSet::Any)?;
        let fs = over(&below, "");
        let shown = Walker::new(&fs).resolve(name)?;
        // The kernel asks who may read it, lets a reader in, and opens it for the reader.
        assert_eq!(shown.stat()?.perm & 0o444, 0o444, "to nothing yet");
        raw.write_file(b"/secret", b"secret", 0o600)?;
        let opened = fs.open(&Caller::ROOT, shown.ino(), OpenFlags::READ);
        assert!(matches!(opened, Err(Error::Stale(_))), "asked about nothing");
        // A reader who asks again learns what there is now.
        assert_eq!(shown.stat()?.perm, 0o400);
        let opened = fs.open(&Caller::ROOT, shown.ino(), OpenFlags::READ)?;
        fs.release(shown.ino(), opened.handle)?;
    }
    Ok(())
}

/// A kernel throws away attributes that it asked for before such a notice and has after it, and
/// decides by those that it knew.
#[test]
fn who_asks_for_the_permissions_of_a_link_gets_no_notice_with_them() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "");
    let walker = Walker::new(&fs);
    let chmod = |ino, perm| {
        fs.setattr(&Caller::ROOT, ino, &SetAttr { perm: Some(perm), ..SetAttr::default() })
            .map(drop)
    };
    let shut = walker.mkdir(b"/shut", 0o755)?;
    walker.write_file(b"/shut/words", b"words", 0o644)?;
    let content = link_content("shut/words", &network("view: upper"));
    let link = walker.write_file(b"/link", content.as_bytes(), 0o644)?;
    fs.setxattr(&Caller::ROOT, link.ino(), NETWORK_ATTRIBUTE, LINK, XattrSet::Any)?;
    let view = walker.resolve(b"/link@lower")?;
    let sink = Arc::new(Announced::default());
    fs.set_invalidate(sink.clone());
    for (perm, seen) in [(0o700, 0o400), (0o755, 0o444), (0o750, 0o440)] {
        chmod(shut.ino(), perm)?;
        assert_eq!((link.stat()?.perm, view.stat()?.perm), (seen, seen));
        assert_eq!(fs.attr_lifetime(link.ino()), Some(Duration::ZERO));
        assert_eq!(fs.attr_lifetime(view.ino()), Some(Duration::ZERO));
        let opened = fs.open(&Caller::ROOT, link.ino(), OpenFlags::READ)?;
        fs.release(link.ino(), opened.handle)?;
        // Between asking who may read it and opening it.
        chmod(shut.ino(), if perm == 0o755 { 0o711 } else { 0o755 })?;
        let opened = fs.open(&Caller::ROOT, link.ino(), OpenFlags::READ);
        assert_eq!(matches!(opened, Err(Error::Stale(_))), perm != 0o755);
    }
    assert_eq!(sink.0.lock().expect("announced").0, []);
    Ok(())
}

#[test]
fn content_is_kept_when_a_network_is_attached_and_taken() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let fs = over(&below, "");
    let walker = Walker::new(&fs);
    let text = lines(&mut Rng::new(3), 200_000);
    let node = walker.write_file(b"/f", &text, 0o600)?;
    let convert = |network: &[u8]| {
        fs.setxattr(&Caller::ROOT, node.ino(), CONVERT_ATTRIBUTE, network, XattrSet::Any)
    };
    for network in [&b"zstd"[..], b"aead key=work", b"lz4 | aead key=rotated", b""] {
        convert(network)?;
        assert!(node.read_all()? == text, "{network:?}");
        assert_eq!(fs.getxattr(node.ino(), NETWORK_ATTRIBUTE)?, network);
        let stored = Walker::new(&*below).read_file(b"/f")?;
        assert_eq!(stored == text, network.is_empty(), "{network:?}");
    }
    assert_eq!(node.stat()?.perm, 0o600);
    // Refused ones change nothing.
    for (network, errno) in [(&b"view: upper"[..], 95), (b"zstd | gzip", 95), (b"zsdt", 22)] {
        assert_eq!(convert(network).expect_err("refused").errno(), errno, "{network:?}");
    }
    assert!(Walker::new(&*below).read_file(b"/f")? == text);
    assert_eq!(names(&*below, below.root()), ["f"], "nothing is left beside it");
    Ok(())
}

#[test]
fn explanations_name_the_rule() -> Result<()> {
    let below = Arc::new(MemFs::new());
    Walker::new(&*below).write_file(b"/old.log", b"", 0o644)?;
    let fs = over(&below, "# rules\n*.log zstd\n");
    let walker = Walker::new(&fs);
    walker.mkdir(b"/d", 0o755)?;
    walker.write_file(
        b"/d/.weftattributes",
        b"*.txt rot13 | aead key=work\n*.bad none\n",
        0o644,
    )?;
    walker.write_file(b"/d/x.txt", b"x", 0o644)?;
    walker.write_file(b"/d/y", b"y", 0o644)?;
    let explain = |path: &[u8]| -> Result<Explanation> {
        let json = fs.getxattr(walker.resolve(path)?.ino(), EXPLAIN_ATTRIBUTE)?;
        Ok(serde_json::from_slice(&json).expect("JSON"))
    };
    let log = explain(b"/old.log")?;
    assert_eq!(log.source, Source::MountRules { line: 2 });
    assert_eq!((log.network.as_deref(), log.write.as_str()), (Some("zstd"), "rewrite"));
    let pinned = explain(b"/d/x.txt")?;
    assert_eq!(pinned.source, Source::Attribute, "made under a rule");
    assert_eq!(pinned.write, "in-place");
    let stages: Vec<_> = pinned.stages.iter().map(|s| (&*s.stage, &*s.direction)).collect();
    assert_eq!(stages, [("aead", "inverse"), ("rot13", "inverse")], "from the stored file up");
    assert!(pinned.stages[0].guards && !pinned.stages[0].deterministic);
    fs.removexattr(&Caller::ROOT, walker.resolve(b"/d/x.txt")?.ino(), NETWORK_ATTRIBUTE)?;
    let directory = "d".to_owned();
    assert_eq!(explain(b"/d/x.txt")?.source, Source::RulesFile { directory, line: 1 });
    assert_eq!(explain(b"/d/y")?.source, Source::Nothing);
    let view = explain(b"/d/y@upper")?;
    assert_eq!((view.source, view.base.as_deref()), (Source::Name, Some("d/y")));
    assert!(fs.explain(fs.root()).is_err());
    Ok(())
}

#[test]
fn changes_from_behind_are_seen() -> Result<()> {
    let below = Arc::new(MemFs::new());
    let options = TransformOptions {
        rules: Rules::parse(b"* zstd").expect("rules"),
        shared: true,
        ..TransformOptions::default()
    };
    let fs = TransformFs::new(below.clone(), registry(), options)?;
    let walker = Walker::new(&fs);
    let node = walker.write_file(b"/f", b"first", 0o644)?;
    fs.fsync(&Caller::ROOT, node.ino(), false)?;
    let open = || -> Result<bool> {
        let opened = fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
        fs.release(node.ino(), opened.handle)?;
        Ok(opened.keep_cache)
    };
    assert!(open()? && open()?, "nothing changed");
    let other = {
        let memory = Arc::new(MemFs::new());
        let other = over(&memory, "* zstd");
        Walker::new(&other).write_file(b"/f", b"from behind", 0o644)?;
        other.unmount()?;
        Walker::new(&*memory).read_file(b"/f")?
    };
    // The times of files differ by then: a certain lower bound.
    std::thread::sleep(std::time::Duration::from_millis(20));
    Walker::new(&*below).resolve(b"/f")?.write_at(&Caller::ROOT, 0, &other)?;
    assert!(!open()?, "what the kernel has counts no more");
    assert_eq!(node.read_all()?, b"from behind");
    assert!(open()?);
    Ok(())
}
