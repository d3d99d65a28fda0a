//! Outputs of networks that are kept on disk.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use weft_testing::Rng;
use weft_transform::{Meters, OutputCache, Rules, TransformFs, TransformOptions};
use weft_vfs::{
    Caller, FileSystem, Handle, MemFs, OpenFlags, Result, SetAttr, SetTime, Time, Walker,
};

use crate::common::{lines, registry};
use crate::hooked::Hooked;

const RULES: &[u8] =
    b"*.log zstd\n*.sum guard | rot13\nvault/ aead key=work\n*@json json\n*@one view: increment\n";

/// Ends a test that would wait for ever. No test is decided by it: it only bounds one that fails.
const WATCHDOG: Duration = Duration::from_secs(300);

struct Cached {
    fs: TransformFs,
    below: Arc<dyn FileSystem>,
    meters: Arc<Meters>,
}

impl Cached {
    fn new(below: &Arc<impl FileSystem + 'static>, cache: &Path) -> Self {
        let meters = Arc::<Meters>::default();
        let options = TransformOptions {
            rules: Rules::parse(RULES).expect("rules"),
            meters: Some(meters.clone()),
            outputs: Some(Arc::new(OutputCache::open(cache, 100 << 20).expect("a cache"))),
            ..TransformOptions::default()
        };
        let fs = TransformFs::new(below.clone(), registry(), options).expect("a root");
        Self { fs, below: below.clone(), meters }
    }

    /// The file below was changed an hour ago.
    fn settle(&self, path: &[u8]) {
        self.set_changed(path, -3600);
    }

    /// The file below was changed so long after now.
    fn set_changed(&self, path: &[u8], secs: i64) {
        let then = Time { secs: Time::now().secs + secs, nanos: 0 };
        let set =
            SetAttr { mtime: Some(SetTime::At(then)), ctime: Some(then), ..SetAttr::default() };
        let walker = Walker::new(&*self.below);
        let node = walker.resolve(path).expect("there");
        self.below.setattr(&Caller::ROOT, node.ino(), &set).expect("set");
    }

    /// Opens and reads a file as the kernel does, in the order of `pieces` of 128 KiB.
    fn read(&self, path: &[u8], backwards: bool) -> Result<Vec<u8>> {
        const PIECE: usize = 128 << 10;
        let walker = Walker::new(&self.fs);
        let node = walker.resolve(path)?;
        let opened = self.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
        let mut all = Vec::new();
        if opened.direct_io {
            loop {
                let mut piece = vec![0; PIECE];
                let got = self.fs.read(node.ino(), opened.handle, all.len() as u64, &mut piece)?;
                all.extend_from_slice(&piece[..got]);
                if got < PIECE {
                    break;
                }
            }
        } else {
            let len = self.fs.getattr(node.ino())?.size_bytes as usize;
            all.resize(len, 0);
            let mut starts: Vec<usize> = (0..len).step_by(PIECE).collect();
            if backwards {
                starts.reverse();
            }
            for at in starts {
                let end = (at + PIECE).min(len);
                let got = self.fs.read(node.ino(), opened.handle, at as u64, &mut all[at..end])?;
                assert_eq!(got, end - at);
            }
        }
        self.fs.release(node.ino(), opened.handle)?;
        Ok(all)
    }

    fn count(&self, name: &str) -> u64 {
        let text = self.meters.open_metrics();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Runs `step` again and again until an output was found in the cache.
    fn until_kept(&self, mut step: impl FnMut()) {
        let found = || self.count("weft_network_outputs_found_total");
        let before = found();
        let end = Instant::now() + WATCHDOG;
        while found() == before {
            step();
            assert!(Instant::now() < end, "never kept");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Reads again and again until the answer comes from the cache.
    fn read_until_kept(&self, path: &[u8], want: &[u8]) {
        self.until_kept(|| assert!(self.read(path, false).expect("read") == want));
    }
}

#[test]
fn what_was_made_once_is_there_after_a_new_mount() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = dir.path().join("cache");
    let below = Arc::new(MemFs::new());
    let text = lines(&mut Rng::new(5), 700_000);
    let first = Cached::new(&below, &cache);
    for path in [&b"/x.log"[..], b"/y.sum"] {
        Walker::new(&first.fs).write_file(path, &text, 0o644)?;
    }
    first.fs.sync()?;
    for path in [&b"/x.log"[..], b"/y.sum"] {
        first.settle(path);
        assert!(first.read(path, true)? == text, "in whatever order");
        first.read_until_kept(path, &text);
    }
    first.fs.unmount()?;
    // No stage does anything any more, and the length is known.
    let second = Cached::new(&below, &cache);
    for path in [&b"/x.log"[..], b"/y.sum"] {
        assert!(second.read(path, false)? == text);
    }
    assert_eq!(second.count("weft_network_outputs_found_total"), 2);
    let copy = Walker::new(&*below).read_file(b"/x.log")?;
    // A copy of what is stored has the same output, as its content says.
    Walker::new(&*below).write_file(b"/copy.log", &copy, 0o644)?;
    second.settle(b"/copy.log");
    assert!(second.read(b"/copy.log", false)? == text);
    assert_eq!(second.count("weft_network_outputs_found_total"), 3);
    Ok(())
}

/// What a reader is too fast for is made once more, behind its back.
#[test]
fn who_reads_once_and_fast_finds_all_of_it_kept() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, dir.path().join("cache").as_path());
    let text = lines(&mut Rng::new(3), 12_345_678);
    Walker::new(&*below).write_file(b"/x", &text, 0o644)?;
    cached.settle(b"/x");
    let want: Vec<u8> = text.iter().map(|byte| byte.wrapping_add(1)).collect();
    let node = Walker::new(&cached.fs).resolve(b"/x@one")?;
    assert!(cached.read(b"/x@one", false)? == want);
    // From here on nothing is read, only opened.
    cached.until_kept(|| {
        let opened = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ).expect("opened");
        cached.fs.release(node.ino(), opened.handle).expect("closed");
    });
    assert!(cached.read(b"/x@one", true)? == want);
    Ok(())
}

#[test]
fn what_changes_is_made_anew() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, dir.path().join("cache").as_path());
    let walker = Walker::new(&cached.fs);
    let old = lines(&mut Rng::new(1), 300_000);
    walker.write_file(b"/x.log", &old, 0o644)?;
    cached.fs.sync()?;
    cached.settle(b"/x.log");
    cached.read_until_kept(b"/x.log", &old);
    let node = walker.resolve(b"/x.log")?;
    // From above, also while it is not committed, and while somebody has it open.
    let held = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    node.write_at(&Caller::ROOT, 100_000, b"written")?;
    let mut new = old.clone();
    new[100_000..100_007].copy_from_slice(b"written");
    let mut piece = [0; 7];
    cached.fs.read(node.ino(), held.handle, 100_000, &mut piece)?;
    assert_eq!(&piece, b"written");
    assert!(cached.read(b"/x.log", false)? == new);
    cached.fs.fsync(&Caller::ROOT, node.ino(), false)?;
    assert!(cached.read(b"/x.log", false)? == new);
    cached.fs.release(node.ino(), held.handle)?;
    drop(node);
    // Cut off while it is read into the cache: neither the old nor half of the new is kept.
    cached.settle(b"/x.log");
    let node = walker.resolve(b"/x.log")?;
    let opened = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    let mut half = vec![0; 150_000];
    cached.fs.read(node.ino(), opened.handle, 0, &mut half)?;
    cached.fs.setattr(
        &Caller::ROOT,
        node.ino(),
        &SetAttr { size_bytes: Some(10), ..SetAttr::default() },
    )?;
    cached.fs.read(node.ino(), opened.handle, 150_000, &mut half)?;
    cached.fs.release(node.ino(), opened.handle)?;
    assert!(cached.read(b"/x.log", false)? == new[..10]);
    Ok(())
}

#[test]
fn views_of_unknown_length_get_one() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = dir.path().join("cache");
    let below = Arc::new(MemFs::new());
    let first = Cached::new(&below, &cache);
    Walker::new(&first.fs).write_file(b"/t.csv", b"a,b\n1,2\n3,4\n", 0o644)?;
    first.settle(b"/t.csv");
    let json = first.read(b"/t.csv@json", false)?;
    assert!(json.starts_with(b"{\"a\":"));
    first.read_until_kept(b"/t.csv@json", &json);
    let node = Walker::new(&first.fs).resolve(b"/t.csv@json")?;
    let opened = first.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    assert!(!opened.direct_io && opened.keep_cache);
    assert_eq!(first.fs.getattr(node.ino())?.size_bytes, json.len() as u64);
    first.fs.release(node.ino(), opened.handle)?;
    // Its base changes.
    Walker::new(&first.fs).write_file(b"/t.csv", b"a,b\n5,6\n", 0o644)?;
    assert!(first.read(b"/t.csv@json", false)?.starts_with(b"{\"a\":"));
    assert!(first.read(b"/t.csv@json", false)? != json);
    Ok(())
}

#[test]
fn what_is_sealed_and_what_is_new_is_not_kept() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = dir.path().join("cache");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, &cache);
    let walker = Walker::new(&cached.fs);
    walker.mkdir(b"/vault", 0o755)?;
    walker.write_file(b"/vault/x", b"a secret", 0o644)?;
    walker.write_file(b"/new.log", b"of this moment", 0o644)?;
    cached.fs.sync()?;
    cached.settle(b"/vault/x");
    // New for as long as this test may take.
    cached.set_changed(b"/new.log", 3600);
    for _ in 0..3 {
        assert_eq!(cached.read(b"/vault/x", false)?, b"a secret");
        assert_eq!(cached.read(b"/new.log", false)?, b"of this moment");
        // Time to keep it: if it is too short, a mistake is not found.
        std::thread::sleep(Duration::from_millis(20));
    }
    for part in ["outputs", "fresh"] {
        assert_eq!(std::fs::read_dir(cache.join(part)).expect("there").count(), 0, "{part}");
    }
    assert_eq!(cached.count("weft_network_outputs_missed_total"), 0);
    Ok(())
}

/// A damaged entry costs its making once more, and nothing else.
#[test]
fn damage_in_the_cache_is_nobodys_business() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = dir.path().join("cache");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, &cache);
    let text = lines(&mut Rng::new(9), 400_000);
    Walker::new(&cached.fs).write_file(b"/x.log", &text, 0o644)?;
    cached.fs.sync()?;
    cached.settle(b"/x.log");
    cached.read_until_kept(b"/x.log", &text);
    let node = Walker::new(&cached.fs).resolve(b"/x.log")?;
    let opened = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    let entry = std::fs::read_dir(cache.join("outputs")).expect("there").next().expect("one");
    let path = entry.expect("one").path();
    let file = std::fs::File::options().write(true).open(&path).expect("ours");
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", 200_000).expect("written");
    let mut all = vec![0; text.len()];
    assert_eq!(cached.fs.read(node.ino(), opened.handle, 0, &mut all)?, text.len());
    assert!(all == text);
    assert!(!path.exists(), "removed");
    cached.fs.release(node.ino(), opened.handle)?;
    let stateless = cached.fs.read(node.ino(), Handle::NONE, 100, &mut all[..50])?;
    assert!(stateless == 50 && all[..50] == text[100..150]);
    Ok(())
}

/// An output that can be kept is kept at last, also if the cache could not be written at first.
#[test]
fn an_output_is_kept_although_the_cache_could_not_be_written_at_first() -> Result<()> {
    // Without the one no output is begun, without the other none is finished.
    for part in ["fresh", "outputs"] {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = dir.path().join("cache");
        let below = Arc::new(MemFs::new());
        let cached = Cached::new(&below, &cache);
        let text = lines(&mut Rng::new(7), 300_000);
        let walker = Walker::new(&cached.fs);
        walker.write_file(b"/x.log", &text, 0o644)?;
        walker.write_file(b"/t.csv", b"a,b\n1,2\n3,4\n", 0o644)?;
        cached.fs.sync()?;
        for path in [&b"/x.log"[..], b"/t.csv"] {
            cached.settle(path);
        }
        // Somebody refers to both all along, so that what is known of them is not forgotten.
        let _log = walker.resolve(b"/x.log")?;
        let _json = walker.resolve(b"/t.csv@json")?;
        let away = cache.join("away");
        std::fs::rename(cache.join(part), &away).expect("taken away");
        let mut json = Vec::new();
        for _ in 0..10 {
            assert!(cached.read(b"/x.log", false)? == text);
            json = cached.read(b"/t.csv@json", false)?;
        }
        std::fs::rename(&away, cache.join(part)).expect("put back");
        cached.read_until_kept(b"/x.log", &text);
        cached.read_until_kept(b"/t.csv@json", &json);
    }
    Ok(())
}

/// Reading here and there leaves too many gaps to go on with, and keeps nothing out for good.
#[test]
fn an_output_is_kept_although_it_was_read_here_and_there_at_first() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, dir.path().join("cache").as_path());
    let text = lines(&mut Rng::new(8), 300_000);
    let walker = Walker::new(&cached.fs);
    walker.write_file(b"/x.log", &text, 0o644)?;
    cached.fs.sync()?;
    cached.settle(b"/x.log");
    let node = walker.resolve(b"/x.log")?;
    let opened = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ)?;
    for at in (0..text.len() - 10).step_by(500) {
        let mut piece = [0; 10];
        assert_eq!(cached.fs.read(node.ino(), opened.handle, at as u64, &mut piece)?, 10);
        assert!(piece == text[at..at + 10]);
    }
    cached.fs.release(node.ino(), opened.handle)?;
    cached.read_until_kept(b"/x.log", &text);
    Ok(())
}

/// The thread that writes the cache makes what it missed although somebody reads the file all the
/// time: such readers do not put it off for ever, and what they read again and again is owed once.
#[test]
fn an_output_is_kept_although_readers_never_pause() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let below = Arc::new(MemFs::new());
    let cached = Cached::new(&below, dir.path().join("cache").as_path());
    let text = lines(&mut Rng::new(9), 3 << 20);
    Walker::new(&*below).write_file(b"/x", &text, 0o644)?;
    cached.settle(b"/x");
    let want: Vec<u8> = text.iter().map(|byte| byte.wrapping_add(1)).collect();
    let _node = Walker::new(&cached.fs).resolve(b"/x@one")?;
    let end = Instant::now() + WATCHDOG;
    while cached.count("weft_network_outputs_found_total") == 0 {
        assert!(cached.read(b"/x@one", true)? == want);
        assert!(Instant::now() < end, "never kept");
    }
    Ok(())
}

/// A file that is closed and forgotten before the thread has written all of it is kept all the same.
#[test]
fn an_output_is_kept_although_its_file_is_forgotten_at_once() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let below = Arc::new(Hooked::default());
    let cached = Cached::new(&below, dir.path().join("cache").as_path());
    let text = lines(&mut Rng::new(6), 300_000);
    let walker = Walker::new(&cached.fs);
    walker.write_file(b"/x.log", &text, 0o644)?;
    cached.fs.sync()?;
    cached.settle(b"/x.log");
    // The thread that writes the cache gets no further than to its look at what is stored.
    let gate = Arc::new(RwLock::new(()));
    let shut = gate.write().unwrap_or_else(PoisonError::into_inner);
    let theirs = gate.clone();
    below.before_getattr(move |_, _| {
        if std::thread::current().name() == Some("weft-output") {
            drop(theirs.read().unwrap_or_else(PoisonError::into_inner));
        }
    });
    assert!(cached.read(b"/x.log", false)? == text);
    drop(shut);
    // From here on nothing is read, only opened.
    cached.until_kept(|| {
        let node = walker.resolve(b"/x.log").expect("there");
        let opened = cached.fs.open(&Caller::ROOT, node.ino(), OpenFlags::READ).expect("opened");
        cached.fs.release(node.ino(), opened.handle).expect("closed");
    });
    Ok(())
}
