//! Power cuts of a folder in use, without a mount: the directory is a file system in memory, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weft_crash_test::Model;
use weft_crash_test::live::{CutPoint, LiveFolder, LiveOptions, Loss, LossMode, Lost};
use weft_vfs::{Caller, Error, FileSystem, Handle, MemFs, OpenFlags, RenameFlags, Walker};

fn open(directory: &Arc<MemFs>, model: Model) -> Arc<LiveFolder> {
    let options = LiveOptions { model, size_bytes: 1 << 30, unsynced_bytes: 1 << 30 };
    LiveFolder::open(Arc::clone(directory) as Arc<dyn FileSystem>, &options).unwrap()
}

fn read(fs: &dyn FileSystem, path: &str) -> Option<Vec<u8>> {
    Walker::new(fs).read_file(path.as_bytes()).ok()
}

fn write(fs: &dyn FileSystem, path: &str, content: &[u8]) {
    Walker::new(fs).write_file(path.as_bytes(), content, 0o644).unwrap();
}

fn fsync(fs: &dyn FileSystem, path: &str) {
    let node = Walker::new(fs).resolve(path.as_bytes()).unwrap();
    if node.is_dir() {
        fs.fsync_dir(&Caller::ROOT, node.ino()).unwrap();
    } else {
        fs.fsync(&Caller::ROOT, node.ino(), false).unwrap();
    }
}

fn lose(folder: &LiveFolder, mode: LossMode, path: Option<&str>) -> Lost {
    folder.lose(&Loss { mode, path: path.map(str::to_owned) }, None).unwrap()
}

fn all(folder: &LiveFolder) -> Lost {
    lose(folder, LossMode::All, None)
}

fn paths(lost: &Lost) -> Vec<&str> {
    lost.lost.files.iter().map(|file| file.path.as_str()).collect()
}

#[test]
fn what_was_not_fsynced_is_lost_and_the_rest_is_not() {
    for model in Model::ALL {
        let directory = Arc::new(MemFs::new());
        write(&*directory, "/old", b"before");
        let folder = open(&directory, model);
        let fs = folder.fs();
        write(&*fs, "/kept", b"durable");
        fsync(&*fs, "/kept");
        fsync(&*fs, "/");
        write(&*fs, "/gone", b"volatile");
        write(&*fs, "/old", b"behind");

        let report = folder.report().unwrap();
        let named: Vec<_> = report.pending.files.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(named, ["gone", "old"], "{model}");
        assert_eq!(report.pending.files[1].ranges, [(0, 6)]);
        assert_eq!(report.pending.names[0].text, "creat(\"gone\")");
        // The directory holds what is durable.
        assert_eq!(read(&*directory, "/kept"), Some(b"durable".to_vec()));
        assert_eq!(read(&*directory, "/gone"), None);

        let lost = all(&folder);
        assert_eq!(paths(&lost), ["gone", "old"]);
        for fs in [&*fs, &*directory as &dyn FileSystem] {
            assert_eq!(read(fs, "/kept"), Some(b"durable".to_vec()), "{model}");
            assert_eq!(read(fs, "/gone"), None, "{model}");
            assert_ne!(read(fs, "/old"), Some(b"behind".to_vec()), "{model}");
        }
        assert!(folder.report().unwrap().pending.is_empty());
    }
}

#[test]
fn renames_and_directories_are_lost_too() {
    let directory = Arc::new(MemFs::new());
    write(&*directory, "/a", b"1");
    let folder = open(&directory, Model::Ext4Ordered);
    let fs = folder.fs();
    let walker = Walker::new(&*fs);
    walker.mkdir(b"/sub", 0o755).unwrap();
    walker.rename(b"/a", b"/sub/b", RenameFlags::empty()).unwrap();
    let lost = all(&folder);
    let names: Vec<_> = lost.lost.names.iter().map(|name| name.text.as_str()).collect();
    assert_eq!(names, ["mkdir(\"sub\")", "rename(\"a\", \"sub/b\")"]);
    assert_eq!(read(&*fs, "/a"), Some(b"1".to_vec()));
    assert!(Walker::new(&*fs).resolve(b"/sub").is_err());
    assert_eq!(read(&*directory, "/a"), Some(b"1".to_vec()));

    walker.mkdir(b"/sub", 0o755).unwrap();
    walker.rename(b"/a", b"/sub/b", RenameFlags::empty()).unwrap();
    fsync(&*fs, "/sub");
    assert!(all(&folder).lost.is_empty(), "the journal has both");
    assert_eq!(read(&*directory, "/sub/b"), Some(b"1".to_vec()));
}

#[test]
fn a_file_that_is_open_is_gone_with_the_power() {
    let directory = Arc::new(MemFs::new());
    let folder = open(&directory, Model::Posix);
    let fs = folder.fs();
    let (root, flags) = (fs.root(), OpenFlags::READ | OpenFlags::WRITE);
    let (entry, opened) = fs.create(&Caller::ROOT, root, b"f", 0o644, flags).unwrap();
    fsync(&*fs, "/f");
    fsync(&*fs, "/");
    all(&folder);
    let written = fs.write(&Caller::ROOT, entry.attr.ino, opened.handle, 0, b"late");
    assert!(matches!(written, Err(Error::Stale(_))));
    fs.release(entry.attr.ino, opened.handle).ok();
    assert_eq!(read(&*fs, "/f"), Some(Vec::new()));
    assert!(folder.report().unwrap().pending.is_empty());
}

#[test]
fn only_the_newest_calls_or_those_of_a_file() {
    let directory = Arc::new(MemFs::new());
    let folder = open(&directory, Model::Posix);
    let fs = folder.fs();
    write(&*fs, "/first", b"1");
    write(&*fs, "/second", b"2");
    // Closing is no change: the write, and before it the creation.
    let lost = lose(&folder, LossMode::Newest(1), None);
    assert_eq!((paths(&lost), lost.kept_calls), (vec!["second"], 3));
    assert_eq!(read(&*fs, "/first"), Some(b"1".to_vec()));
    assert_eq!(read(&*fs, "/second"), Some(Vec::new()));

    write(&*fs, "/wal-1", b"x");
    write(&*fs, "/data", b"y");
    let lost = lose(&folder, LossMode::All, Some("wal-*"));
    assert_eq!(paths(&lost), ["wal-1"]);
    assert_eq!(read(&*fs, "/wal-1"), None);
    assert_eq!(read(&*fs, "/data"), Some(b"y".to_vec()));
}

#[test]
fn the_last_write_is_torn() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let directory = Arc::new(MemFs::new());
        write(&*directory, "/log", &[1; 8192]);
        let folder = open(&directory, Model::Posix);
        let fs = folder.fs();
        let ino = Walker::new(&*fs).resolve(b"/log").unwrap().ino();
        fs.write(&Caller::ROOT, ino, Handle::NONE, 0, &[2; 8192]).unwrap();
        lose(&folder, LossMode::Torn(seed), None);
        let left = read(&*fs, "/log").unwrap();
        assert!(left.contains(&1) && left.contains(&2), "seed {seed}");
        assert!(left.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        seen.insert(left);
    }
    assert!(seen.len() > 10, "{}", seen.len());
    let folder = open(&Arc::new(MemFs::new()), Model::Posix);
    assert!(folder.lose(&Loss { mode: LossMode::Torn(1), path: None }, None).is_err());
    // The power is on again all the same, and paths are known.
    let fs = folder.fs();
    let sub = Walker::new(&*fs).mkdir(b"/sub", 0o755).unwrap().ino();
    let torn = Loss { mode: LossMode::Torn(1), path: Some("none".into()) };
    assert!(folder.lose(&torn, None).is_err());
    let at = CutPoint { call: "creat:sub/f".parse().unwrap(), nth: 1, after: false };
    let (made, lost) = cut_at(&folder, &at, |fs| {
        fs.create(&Caller::ROOT, sub, b"f", 0o644, OpenFlags::WRITE).is_ok()
    });
    assert!(!made);
    assert_eq!(lost.at.as_deref(), Some("creat(\"sub/f\")"));
}

#[test]
fn random_losses_follow_the_model_and_the_seed() {
    let trees = |seed| {
        let folder = open(&Arc::new(MemFs::new()), Model::Ext4Ordered);
        let fs = folder.fs();
        for nr in 0..12 {
            Walker::new(&*fs).mkdir(format!("/{nr}").as_bytes(), 0o755).unwrap();
        }
        lose(&folder, LossMode::Random(seed), None);
        let there: Vec<bool> = (0..12)
            .map(|nr| Walker::new(&*fs).resolve(format!("/{nr}").as_bytes()).is_ok())
            .collect();
        let first_lost = there.iter().position(|there| !there).unwrap_or(12);
        assert!(there[first_lost..].iter().all(|there| !there), "ext4 keeps the order: {there:?}");
        first_lost
    };
    assert_eq!(trees(3), trees(3));
    assert!((0..40).map(trees).collect::<std::collections::BTreeSet<_>>().len() > 3);
}

/// Cuts the power at a call that `program` makes, and returns what the program saw and what was lost.
fn cut_at<T: Send>(
    folder: &LiveFolder,
    at: &CutPoint,
    program: impl FnOnce(&dyn FileSystem) -> T + Send,
) -> (T, Lost) {
    let armed = AtomicBool::new(false);
    let fs = folder.fs();
    std::thread::scope(|scope| {
        let losing = scope.spawn(|| {
            let armed = || armed.store(true, Ordering::Release);
            folder.lose_at(&Loss::default(), at, None, &armed, &|| true).unwrap().unwrap()
        });
        while !armed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let seen = program(&*fs);
        (seen, losing.join().unwrap())
    })
}

#[test]
fn the_power_is_cut_at_the_nth_call() {
    let folder = open(&Arc::new(MemFs::new()), Model::Posix);
    let at = CutPoint { call: "rename:*.tmp".parse().unwrap(), nth: 2, after: false };
    let (renamed, lost) = cut_at(&folder, &at, |fs| {
        let walker = Walker::new(fs);
        let mut renamed = Vec::new();
        for nr in 0..3 {
            let (from, to) = (format!("/{nr}.tmp"), format!("/{nr}"));
            if walker.write_file(from.as_bytes(), b"new", 0o644).is_err() {
                break;
            }
            fsync(fs, &from);
            fsync(fs, "/");
            renamed
                .push(walker.rename(from.as_bytes(), to.as_bytes(), RenameFlags::empty()).is_ok());
        }
        renamed
    });
    assert_eq!(renamed[..2], [true, false]);
    assert_eq!(lost.at.as_deref(), Some("rename(\"1.tmp\", \"1\")"));
    let fs = folder.fs();
    assert_eq!(read(&*fs, "/1.tmp"), Some(b"new".to_vec()));
    assert_eq!(read(&*fs, "/1"), None);
}

#[test]
fn after_the_call_its_work_is_done_and_the_program_does_not_know() {
    for (after, survives) in [(false, false), (true, true)] {
        let folder = open(&Arc::new(MemFs::new()), Model::Ext4Ordered);
        let at = CutPoint { call: "fsync:f".parse().unwrap(), nth: 1, after };
        let (synced, _) = cut_at(&folder, &at, |fs| {
            write(fs, "/f", b"data");
            let ino = Walker::new(fs).resolve(b"/f").unwrap().ino();
            fs.fsync(&Caller::ROOT, ino, false).is_ok()
        });
        assert!(!synced);
        assert_eq!(read(&*folder.fs(), "/f").is_some(), survives, "after: {after}");
    }
}

#[test]
fn a_request_that_is_taken_back_cuts_nothing() {
    let folder = open(&Arc::new(MemFs::new()), Model::Posix);
    let at = CutPoint { call: "any".parse().unwrap(), nth: 1, after: false };
    let taken = folder.lose_at(&Loss::default(), &at, None, &|| (), &|| false).unwrap();
    assert_eq!(taken, None);
    write(&*folder.fs(), "/f", b"1");
    assert_eq!(folder.report().unwrap().waiting, 0);
}

#[test]
fn a_clean_end_keeps_everything() {
    let directory = Arc::new(MemFs::new());
    let folder = open(&directory, Model::Posix);
    let fs = folder.fs();
    write(&*fs, "/f", b"not fsynced");
    fs.unmount().unwrap();
    assert_eq!(read(&*directory, "/f"), Some(b"not fsynced".to_vec()));
}

#[test]
fn sync_makes_everything_durable() {
    for model in Model::ALL {
        let directory = Arc::new(MemFs::new());
        let folder = open(&directory, model);
        write(&*folder.fs(), "/f", b"1");
        folder.sync().unwrap();
        assert_eq!(read(&*directory, "/f"), Some(b"1".to_vec()), "{model}");
        assert!(all(&folder).lost.is_empty());
    }
}
