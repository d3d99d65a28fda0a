//! Logs of dm-log-writes as recordings.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use crate::program::{Check, content};
use tempfile::NamedTempFile;
use weft_block::{BlockDevice, Event, LogReader, LogWriter, MemoryDevice};
use weft_crash_test::{
    Error, Finding, Judge, Limits, LogOptions, Model, Nature, Outcome, Recording, Result, Subject,
    describe, search,
};
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::memfs::Snapshot;
use weft_vfs::{Caller, FileSystem, Handle, RenameFlags, SetAttr, Walker, XattrSet};

const VOLUME_BYTES: u64 = 4 << 20;

/// A log, and a file with the volume before its first entry.
struct Logged {
    log: Vec<u8>,
    base: NamedTempFile,
}

impl Logged {
    /// Runs calls on an ext3 volume; they get a way to put marks into the log.
    fn new(calls: impl FnOnce(&dyn FileSystem, &dyn Fn(&str))) -> Self {
        Self::of(&MkfsOptions::ext3(), Policy::Journal(JournalMode::Ordered), calls)
    }

    fn of(
        made: &MkfsOptions,
        policy: Policy,
        calls: impl FnOnce(&dyn FileSystem, &dyn Fn(&str)),
    ) -> Self {
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        mkfs(&*device, made).unwrap();
        let recorder = Arc::new(weft_block::Recorder::new(Arc::clone(&device)));
        let engine = Options { policy, background: false, ..Options::default() };
        let options = OpenOptions { engine, ..OpenOptions::default() };
        let mount =
            || Ext2::open(Arc::clone(&recorder) as Arc<dyn BlockDevice>, options.clone()).unwrap();
        let fs = mount();
        Walker::new(&*fs).write_file(b"/f", b"old", 0o644).unwrap();
        fs.unmount().unwrap();
        let fs = mount();
        let (base, before) = (device.snapshot(), recorder.event_count());
        calls(&*fs, &|mark| recorder.mark(mark).unwrap());
        FileSystem::sync(&*fs).unwrap();
        let log = log_of(&recorder.events()[before..]);
        let file = NamedTempFile::new().unwrap();
        let mut bytes = vec![0; VOLUME_BYTES as usize];
        base.read(&mut bytes, 0).unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Self { log, base: file }
    }

    fn options(&self) -> LogOptions {
        LogOptions { volume: Some(self.base.path().to_owned()), ..LogOptions::default() }
    }

    fn recording(&self, options: &LogOptions) -> Result<Recording> {
        Recording::read_log(Path::new("the.log"), Cursor::new(&self.log), options)
    }

    /// The same volume, and a log in which a block of it is cleared and then written as it was.
    fn rewritten(self, offset: u64) -> Self {
        let base = std::fs::read(self.base.path()).unwrap();
        let was = &base[offset as usize..offset as usize + 1024];
        let write = |data: &[u8]| Event::Write { offset, data: data.into(), fua: false };
        let flush = |covers| Event::Flush { covers };
        let events = [write(&[0; 1024]), flush(1), write(was), flush(3)];
        Self { log: log_of(&events), ..self }
    }

    fn events(&self) -> Vec<Event> {
        LogReader::new(Cursor::new(&self.log)).unwrap().read_all().unwrap()
    }
}

fn log_of(events: &[Event]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut log = LogWriter::new(&mut bytes).unwrap();
    events.iter().for_each(|event| log.append(event).unwrap());
    log.finish().unwrap();
    bytes.into_inner()
}

/// Searches all states; `passes` gets the content of `/f` and the marks.
fn findings(
    recording: &Recording,
    passes: impl Fn(Option<&[u8]>, &[&str]) -> bool + Send + 'static,
) -> Vec<Finding> {
    let subject = Subject::new(recording, Model::Volume, &[]);
    let check = Check(move |tree: &_, marks: &[&str]| {
        passes(crate::program::content(tree, "f").as_deref(), marks)
    });
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(check)];
    let limits = Limits { states: 400, ..Limits::default() };
    search(&subject, &mut judges, limits, &|_| {}).unwrap().findings
}

fn old_or_new(content: Option<&[u8]>, marks: &[&str]) -> bool {
    match content {
        Some(b"new") => true,
        Some(b"old") => !marks.contains(&"saved"),
        _ => false,
    }
}

#[test]
fn what_was_synced_before_a_mark_is_there_and_what_was_not_is_told() {
    let save = |sync: bool| {
        Logged::new(move |fs, mark| {
            mark("begin");
            let walker = Walker::new(fs);
            walker.write_file(b"/t", b"new", 0o644).unwrap();
            walker.rename(b"/t", b"/f", RenameFlags::empty()).unwrap();
            if sync {
                fs.sync().unwrap();
            }
            mark("saved");
        })
    };
    let synced = save(true);
    assert_eq!(findings(&synced.recording(&synced.options()).unwrap(), old_or_new).len(), 0);
    let careless = save(false);
    let recording = careless.recording(&careless.options()).unwrap();
    let found = findings(&recording, old_or_new);
    assert_eq!(found[0].nature, Nature::NotDurable, "{found:#?}");
    assert!(
        found[0].headline.contains(r#"though mark "saved" was reached"#),
        "{}",
        found[0].headline
    );
    // Calls are named by the mark that they follow.
    let writes = recording.calls.iter().position(|call| call.action.name() == "block write");
    let text = describe(&recording.base, &recording.calls, nr(writes.unwrap())).text;
    assert!(text.starts_with("block write(bytes ") && text.contains(r#" after mark "#), "{text}");
    // A recording of a log is one like any other.
    let kept = Recording::from_bytes(&recording.to_bytes().unwrap()).unwrap();
    assert_eq!(kept.calls, recording.calls);
    // All entries before a mark can be taken to be durable.
    let after = LogOptions { after_mark: Some("begin".into()), ..synced.options() };
    assert!(synced.recording(&after).unwrap().calls.len() < recording.calls.len() + 1);
}

#[test]
fn a_block_is_told_by_its_file_and_offset_also_without_calls() {
    // A record in one file, and then in another that it is valid, without an `fsync` in between.
    let logged = Logged::of(&MkfsOptions::ext2(), Policy::Async, |fs, mark| {
        let walker = Walker::new(fs);
        walker.mkdir(b"/d", 0o755).unwrap();
        walker.write_file(b"/d/records", &[b'o'; 3000], 0o644).unwrap();
        fs.sync().unwrap();
        walker.write_file(b"/d/valid", b"no!", 0o644).unwrap();
        fs.sync().unwrap();
        mark("begin");
        let records = walker.resolve(b"/d/records").unwrap().ino();
        let valid = walker.resolve(b"/d/valid").unwrap().ino();
        fs.write(&Caller::ROOT, records, Handle::NONE, 2048, &[b'n'; 952]).unwrap();
        fs.write(&Caller::ROOT, valid, Handle::NONE, 0, b"yes").unwrap();
    });
    let options = LogOptions { after_mark: Some("begin".into()), ..logged.options() };
    let recording = logged.recording(&options).unwrap();
    let subject = Subject::new(&recording, Model::Volume, &[]);
    let check = Check(|tree: &_, _: &[&str]| {
        let content = |path| crate::program::content(tree, path).unwrap_or_default();
        content("d/valid") != b"yes" || content("d/records").ends_with(&[b'n'; 952])
    });
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(check)];
    let found = search(&subject, &mut judges, Limits::default(), &|_| {}).unwrap().findings;
    assert_eq!(found[0].nature, Nature::Reordered, "{found:#?}");
    let records = &found[0].lost[0].blocks[0];
    assert_eq!(records.text, r#"bytes 2048 to 3000 of "d/records""#, "{found:#?}");
    assert_eq!(records.path.as_deref(), Some("d/records"));
    assert_eq!(records.bytes, Some((2048, 3000)));
    assert_eq!(records.cause, None);
    assert_eq!(found[0].kept_blocks[0].text, r#"bytes 0 to 3 of "d/valid""#);
    // The later one, or written with it.
    let said = r#"the block with bytes 2048 to 3000 of "d/records" is lost, but the "#;
    assert!(found[0].headline.starts_with(said), "{}", found[0].headline);
}

#[test]
fn a_block_of_a_journal_is_told_by_what_it_is_a_copy_of() {
    let logged = Logged::new(|fs, mark| {
        let walker = Walker::new(fs);
        walker.write_file(b"/t", b"new", 0o644).unwrap();
        walker.rename(b"/t", b"/f", RenameFlags::empty()).unwrap();
        fs.sync().unwrap();
        mark("end");
    });
    let recording = logged.recording(&logged.options()).unwrap();
    // The commit makes the new file durable.
    let found = findings(&recording, |f, marks| f == Some(b"old") || marks.contains(&"end"));
    let commit = &found[0].kept_blocks[0];
    assert!(commit.text.starts_with("commit of transaction "), "{found:#?}");
    assert!(commit.text.contains(r#"directory "." (changes "f")"#), "{found:#?}");
    assert!(commit.text.contains("inode table of group 0 (inode "), "{found:#?}");
    assert_eq!((commit.structure, commit.in_journal), ("journal", true));
}

/// All that a tree holds.
fn all_of(tree: &Snapshot) -> String {
    let mut all = String::new();
    for (number, node) in tree.nodes() {
        let pages: Vec<_> = node.pages().map(|(nr, page)| (nr, page.bytes().as_slice())).collect();
        let (names, xattrs): (Vec<_>, Vec<_>) = (node.entries().collect(), node.xattrs().collect());
        let (kind, size) = (node.kind(), node.size_bytes());
        let _ = writeln!(
            all,
            "{number} {kind:?} {size} {:?} {names:?} {xattrs:?} {pages:?}",
            node.attr()
        );
    }
    all
}

#[test]
fn a_tree_that_shares_what_was_read_before_is_that_of_its_state() {
    let logged = Logged::of(&MkfsOptions::ext2(), Policy::Soft, |fs, _| {
        let walker = Walker::new(fs);
        let ino = walker.resolve(b"/f").unwrap().ino();
        let size = |bytes| SetAttr { size_bytes: Some(bytes), ..SetAttr::default() };
        // More than a page, cut within one, a hole, other bytes at the same place, a new name, a link.
        walker.write_file(b"/g", &[7; 9000], 0o644).unwrap();
        FileSystem::sync(fs).unwrap();
        fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"new").unwrap();
        fs.setattr(&Caller::ROOT, ino, &size(20_000)).unwrap();
        FileSystem::sync(fs).unwrap();
        let g = walker.resolve(b"/g").unwrap().ino();
        fs.setattr(&Caller::ROOT, g, &size(4100)).unwrap();
        fs.setxattr(&Caller::ROOT, g, b"user.a", b"value", XattrSet::Any).unwrap();
        FileSystem::sync(fs).unwrap();
        fs.rename(&Caller::ROOT, fs.root(), b"g", fs.root(), b"f", RenameFlags::empty()).unwrap();
        walker.write_file(b"/g", &[7; 9000], 0o600).unwrap();
    });
    let recording = logged.recording(&logged.options()).unwrap();
    let subject = Subject::new(&recording, Model::Volume, &[]);
    let (mut shared, mut hashes, mut tried) =
        (weft_crash_test::Cursor::new(&subject), BTreeSet::new(), 0);
    let (limits, mut contents) = (Limits::default(), BTreeSet::new());
    for epoch in subject.epochs() {
        epoch.each_state(&subject.units, limits.bounds, &mut |state| {
            let tree = shared.tree(&state).unwrap();
            let alone = weft_crash_test::Cursor::new(&subject).tree(&state).unwrap();
            assert!(all_of(&tree) == all_of(&alone), "state {state}");
            assert_eq!(tree.hash(), alone.hash(), "state {state}");
            hashes.insert(tree.hash());
            contents.insert(content(&tree, "f"));
            tried += 1;
            true
        });
    }
    assert!(contents.len() >= 4, "{contents:?}");
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(Check(|_: &Snapshot, _: &[&str]| true))];
    let found = search(&subject, &mut judges, limits, &|_| {}).unwrap();
    assert_eq!((found.progress.tried, found.progress.distinct), (tried, hashes.len() as u64));
}

fn nr(index: usize) -> weft_crash_test::CallNr {
    weft_crash_test::CallNr(index as u32)
}

#[test]
fn a_state_that_cannot_be_mounted_fails_without_its_check() {
    // A program that rewrites the superblock in place, in two steps.
    let broken = Logged::new(|_, _| ()).rewritten(1024);
    let recording = broken.recording(&broken.options()).unwrap();
    let found = findings(&recording, |_, _| true);
    assert_eq!(found[0].outcome, Outcome::Damaged, "{found:#?}");
    assert!(found[0].output.starts_with("mounting the volume: "), "{}", found[0].output);
}

#[test]
fn fsck_finds_what_the_check_does_not_look_at() {
    // The same with the bitmap of blocks, of which the first descriptor of a group has the number.
    let logged = Logged::new(|_, _| ());
    let base = std::fs::read(logged.base.path()).unwrap();
    let bitmap = u32::from_le_bytes(base[2048..2052].try_into().unwrap());
    let wrong = logged.rewritten(u64::from(bitmap) * 1024);
    let mut recording = wrong.recording(&wrong.options()).unwrap();
    assert_eq!(findings(&recording, |_, _| true).len(), 0);
    recording.volume.as_mut().unwrap().kind.fsck = true;
    let found = findings(&recording, |_, _| true);
    assert_eq!(found[0].outcome, Outcome::Damaged, "{found:#?}");
    assert!(found[0].output.starts_with("fsck: "), "{}", found[0].output);
}

#[test]
fn a_log_that_is_damaged_or_of_another_volume_is_refused_with_the_reason() {
    let logged = Logged::new(|fs, mark| {
        mark("one");
        Walker::new(fs).write_file(b"/g", b"x", 0o644).unwrap();
    });
    let refused = |log: &[u8], options: &LogOptions| {
        Recording::read_log(Path::new("the.log"), Cursor::new(log), options).unwrap_err()
    };
    let options = logged.options();
    let corrupt = |log: &[u8], says: &str| match refused(log, &options) {
        e @ Error::Log { .. } => assert!(e.to_string().contains(says), "{says}: {e}"),
        e => panic!("{says}: {e:?}"),
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut log = logged.log.clone();
        log[at..at + bytes.len()].copy_from_slice(bytes);
        log
    };
    corrupt(&logged.log[..logged.log.len() - 100], "the log ends within");
    corrupt(b"", "the log ends within");
    corrupt(&with(0, b"no log!!"), "the magic number is");
    corrupt(&with(8, &[9]), "version 9 is not known");
    corrupt(&with(24, &700_u32.to_le_bytes()), "a sector of 700 bytes");
    corrupt(&with(16, &u64::MAX.to_le_bytes()), "the log ends within");
    let far = Event::Write { offset: VOLUME_BYTES, data: [1; 512].into(), fua: false };
    match refused(&log_of(&[Event::Flush { covers: 0 }, far]), &options) {
        Error::LogBeyondVolume { entry: 1, offset: VOLUME_BYTES, volume_bytes, .. } => {
            assert_eq!(volume_bytes, VOLUME_BYTES);
        }
        e => panic!("{e:?}"),
    }
    let after = LogOptions { after_mark: Some("two".into()), ..logged.options() };
    let e = refused(&logged.log, &after);
    assert!(matches!(&e, Error::NoMark { marks, .. } if marks == r#""one""#), "{e:?}");
    for (events, options, says) in [
        (vec![Event::Flush { covers: 0 }], options.clone(), "no write that can be lost"),
        (logged.events(), LogOptions::default(), "a volume that weft does not mount"),
    ] {
        let e = refused(&log_of(&events), &options);
        assert!(matches!(&e, Error::NotTested(why) if why.contains(says)), "{e:?}");
    }
    // A log that makes its volume, too.
    let base = std::fs::read(logged.base.path()).unwrap();
    let mut whole = vec![Event::Write { offset: 0, data: base.into(), fua: false }];
    whole.push(Event::Mark("made".into()));
    whole.extend(logged.events());
    let whole = log_of(&whole);
    let e = refused(&whole, &LogOptions::default());
    assert!(matches!(&e, Error::NotTested(why) if why.contains("--after-mark")), "{e:?}");
    let after = LogOptions { after_mark: Some("made".into()), ..LogOptions::default() };
    let recording = Recording::read_log(Path::new("the.log"), Cursor::new(&whole), &after).unwrap();
    assert_eq!(findings(&recording, |f, _| f == Some(b"old")).len(), 0);
}
