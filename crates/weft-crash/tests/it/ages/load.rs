//! Loads: calls of programs, what each has changed and when, and whether a volume has it.

use std::collections::VecDeque;
use weft_block::Rng;
use weft_vfs::{Caller, Entry, Error, FileKind, FileSystem, Handle, Ino, RenameFlags, Result};

/// Files that exist at most; then the oldest is removed for each new one.
const KEPT: usize = 300;
const RECORD: usize = 100;
const BLOCK: usize = 4096;
const OVERWRITTEN: usize = 16;
const STREAMED: usize = 2048;
const DEPTH: usize = 12;
/// Directories that are made at most.
const MADE: usize = 3000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// New small files, and old ones that are removed.
    New,
    /// Records at the end of one file.
    Append,
    /// Blocks of one file, in turn.
    Overwrite,
    /// New files that get another name, some in another directory.
    Rename,
    /// Directories in directories.
    Nested,
    /// Large writes to one file, as `dd` makes them.
    Stream,
    Mixed,
}

pub const KINDS: [Kind; 7] = [
    Kind::New,
    Kind::Append,
    Kind::Overwrite,
    Kind::Rename,
    Kind::Nested,
    Kind::Stream,
    Kind::Mixed,
];

/// A change that was made.
#[derive(Debug, Clone, Copy)]
enum Change {
    Created(usize),
    Written(usize),
    Renamed(usize),
    Removed(usize),
    Appended(usize),
    Overwritten(usize),
    Streamed(usize),
    Made(usize),
}

/// What happened to a file, in the order of a file's life. Times are in microseconds.
#[derive(Debug, Default)]
struct File {
    ino: Option<Ino>,
    created: Option<u64>,
    written: Option<u64>,
    renamed: Option<u64>,
    removed: Option<u64>,
}

/// The next call.
#[derive(Debug, Clone, Copy)]
enum Call {
    Create,
    Write(usize),
    Rename(usize),
    Remove(usize),
    Append,
    Overwrite,
    Stream,
    Make,
}

pub struct Load {
    kind: Kind,
    rng: Rng,
    next: VecDeque<Call>,
    files: Vec<File>,
    removed: usize,
    dirs: Vec<Ino>,
    log: Ino,
    blocks: Ino,
    stream: Ino,
    appended: usize,
    overwritten: usize,
    streamed: usize,
    /// The directory that the next one is made in, and how deep it is.
    made: usize,
    made_in: Ino,
    root: Ino,
    /// Inodes that nothing uses any more.
    pub forgotten: Vec<Ino>,
    changes: Vec<(u64, Change)>,
}

fn content(j: usize) -> Vec<u8> {
    let len = 20 + j * 37 % 3000;
    format!("file {j}\n").into_bytes().into_iter().cycle().take(len).collect()
}

fn old_name(j: usize) -> Vec<u8> {
    format!("new{j}").into_bytes()
}

fn new_name(j: usize) -> Vec<u8> {
    format!("moved{j}").into_bytes()
}

fn record(i: usize) -> Vec<u8> {
    format!("{i:>99}\n").into_bytes()
}

fn numbered(i: usize) -> Vec<u8> {
    let mut block = vec![i as u8; BLOCK];
    block[..8].copy_from_slice(&(i as u64 + 1).to_le_bytes());
    block
}

/// Looks a name up, without keeping a reference.
fn find(fs: &dyn FileSystem, dir: Ino, name: &[u8]) -> Result<Option<Entry>> {
    match fs.lookup(dir, name) {
        Ok(entry) => Ok(Some(entry)),
        Err(Error::NotFound) => Ok(None),
        Err(e) => Err(e),
    }
}

fn read(fs: &dyn FileSystem, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let got = fs.read(ino, Handle::NONE, offset, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}

impl Load {
    pub fn new(fs: &dyn FileSystem, kind: Kind, seed: u64) -> Self {
        let (caller, root) = (Caller::ROOT, fs.root());
        let dir = |name: &[u8]| fs.mkdir(&caller, root, name, 0o755).unwrap().attr.ino;
        let file = |name: &[u8]| {
            let kind = FileKind::Regular;
            fs.mknod(&caller, root, name, kind, 0o644, 0).unwrap().attr.ino
        };
        let dirs = vec![dir(b"a"), dir(b"b"), dir(b"c")];
        let (log, blocks, stream) = (file(b"log"), file(b"blocks"), file(b"stream"));
        let made_in = dir(b"nest");
        fs.sync().unwrap();
        Self {
            kind,
            rng: Rng::new(seed),
            next: VecDeque::new(),
            files: Vec::new(),
            removed: 0,
            dirs,
            log,
            blocks,
            stream,
            appended: 0,
            overwritten: 0,
            streamed: 0,
            made: 0,
            made_in,
            root,
            forgotten: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The number of changes that were made.
    pub fn made(&self) -> usize {
        self.changes.len()
    }

    fn dir(&self, j: usize) -> Ino {
        self.dirs[j % self.dirs.len()]
    }

    fn dir_after_rename(&self, j: usize) -> Ino {
        self.dir(if j.is_multiple_of(2) { j } else { j + 1 })
    }

    fn choose(&mut self) {
        let kind = match self.kind {
            Kind::Mixed => KINDS[self.rng.index(KINDS.len() - 1)],
            kind => kind,
        };
        let j = self.files.len();
        match kind {
            Kind::New => self.next.extend([Call::Create, Call::Write(j)]),
            Kind::Rename => self.next.extend([Call::Create, Call::Write(j), Call::Rename(j)]),
            Kind::Append => self.next.push_back(Call::Append),
            Kind::Overwrite => self.next.push_back(Call::Overwrite),
            Kind::Stream => self.next.extend([Call::Stream; 8]),
            Kind::Nested if self.made < MADE => self.next.push_back(Call::Make),
            Kind::Nested => self.next.push_back(Call::Append),
            Kind::Mixed => unreachable!("a mixed load chooses another kind"),
        }
        if matches!(kind, Kind::New | Kind::Rename) && j - self.removed >= KEPT {
            self.next.push_back(Call::Remove(self.removed));
            self.removed += 1;
        }
    }

    /// Makes the next call, of one operation. One that fails with `WouldBlock` has changed nothing,
    /// and is made again by the next step.
    pub fn step(&mut self, fs: &dyn FileSystem, time: impl Fn() -> u64) -> Result<()> {
        if self.next.is_empty() {
            self.choose();
        }
        let call = *self.next.front().expect("chosen");
        let (caller, flags) = (Caller::ROOT, RenameFlags::empty());
        let change = match call {
            Call::Create => {
                let (j, kind) = (self.files.len(), FileKind::Regular);
                let entry = fs.mknod(&caller, self.dir(j), &old_name(j), kind, 0o644, 0)?;
                let ino = Some(entry.attr.ino);
                self.files.push(File { ino, created: Some(time()), ..File::default() });
                Change::Created(j)
            }
            Call::Write(j) => {
                let ino = self.files[j].ino.expect("created");
                fs.write(&caller, ino, Handle::NONE, 0, &content(j))?;
                self.files[j].written = Some(time());
                Change::Written(j)
            }
            Call::Rename(j) => {
                let (from, to) = (self.dir(j), self.dir_after_rename(j));
                fs.rename(&caller, from, &old_name(j), to, &new_name(j), flags)?;
                self.files[j].renamed = Some(time());
                Change::Renamed(j)
            }
            Call::Remove(j) => {
                let moved = self.files[j].renamed.is_some();
                let dir = if moved { self.dir_after_rename(j) } else { self.dir(j) };
                let name = if moved { new_name(j) } else { old_name(j) };
                fs.unlink(&caller, dir, &name)?;
                self.files[j].removed = Some(time());
                self.forgotten.extend(self.files[j].ino);
                Change::Removed(j)
            }
            Call::Append => {
                let i = self.appended;
                let offset = (i * RECORD) as u64;
                fs.write(&caller, self.log, Handle::NONE, offset, &record(i))?;
                self.appended += 1;
                Change::Appended(i)
            }
            Call::Overwrite => {
                let i = self.overwritten;
                let offset = (i % OVERWRITTEN * BLOCK) as u64;
                fs.write(&caller, self.blocks, Handle::NONE, offset, &numbered(i))?;
                self.overwritten += 1;
                Change::Overwritten(i)
            }
            Call::Stream => {
                let i = self.streamed;
                let offset = (i % STREAMED * BLOCK) as u64;
                fs.write(&caller, self.stream, Handle::NONE, offset, &numbered(i))?;
                self.streamed += 1;
                Change::Streamed(i)
            }
            Call::Make => {
                let k = self.made;
                let parent = if k.is_multiple_of(DEPTH) { self.root } else { self.made_in };
                let name = format!("deep{k}");
                let entry = fs.mkdir(&caller, parent, name.as_bytes(), 0o755)?;
                self.made_in = entry.attr.ino;
                self.made += 1;
                Change::Made(k)
            }
        };
        self.next.pop_front();
        self.changes.push((time(), change));
        Ok(())
    }

    /// Checks that a volume has the changes from number `from` on that were made until `until`.
    /// Returns the number of the first later one.
    ///
    /// # Errors
    /// The change that it has not, and the time at which it was made.
    pub fn check(
        &self,
        fs: &dyn FileSystem,
        from: usize,
        until: u64,
    ) -> std::result::Result<usize, String> {
        let mut at = from;
        while let Some(&(made, change)) = self.changes.get(at)
            && made <= until
        {
            let fault = |what: String| format!("{change:?}, made at {} ms: {what}", made / 1000);
            self.check_change(fs, change, until)
                .map_err(|e| fault(format!("{e:?}")))?
                .map_err(fault)?;
            at += 1;
        }
        Ok(at)
    }

    fn check_change(
        &self,
        fs: &dyn FileSystem,
        change: Change,
        until: u64,
    ) -> Result<std::result::Result<(), String>> {
        let root = fs.root();
        let ino =
            |name: &[u8]| -> Result<Option<Ino>> { Ok(find(fs, root, name)?.map(|e| e.attr.ino)) };
        match change {
            Change::Created(j) | Change::Written(j) | Change::Renamed(j) | Change::Removed(j) => {
                self.check_file(fs, j, until)
            }
            Change::Appended(i) => {
                let Some(log) = ino(b"log")? else { return Ok(Err("no log".into())) };
                let found = read(fs, log, (i * RECORD) as u64, RECORD)?;
                Ok(if found == record(i) { Ok(()) } else { Err(shown(&found)) })
            }
            Change::Overwritten(i) => check_block(fs, ino(b"blocks")?, i, OVERWRITTEN),
            Change::Streamed(i) => check_block(fs, ino(b"stream")?, i, STREAMED),
            Change::Made(k) => {
                let mut dir = root;
                for depth in k - k % DEPTH..=k {
                    let name = format!("deep{depth}");
                    let Some(entry) = find(fs, dir, name.as_bytes())? else {
                        return Ok(Err(format!("no {name}")));
                    };
                    dir = entry.attr.ino;
                }
                Ok(Ok(()))
            }
        }
    }

    /// Checks what must be so of a file by what was done to it until `until`, and what may be so by
    /// what was done since.
    fn check_file(
        &self,
        fs: &dyn FileSystem,
        j: usize,
        until: u64,
    ) -> Result<std::result::Result<(), String>> {
        let file = &self.files[j];
        let by_then = |time: Option<u64>| time.is_some_and(|t| t <= until);
        let root = fs.root();
        let in_dir = |dir: Ino, name: &[u8]| -> Result<Option<Entry>> {
            // By name, as inode numbers need not be those of the volume that was written.
            let at = self.dirs.iter().position(|d| *d == dir).expect("a directory of the load");
            let Some(dir) = find(fs, root, &[b'a' + at as u8])? else { return Ok(None) };
            find(fs, dir.attr.ino, name)
        };
        let old = in_dir(self.dir(j), &old_name(j))?;
        let new = in_dir(self.dir_after_rename(j), &new_name(j))?;
        if old.is_some() && (by_then(file.renamed) || by_then(file.removed)) {
            return Ok(Err("the old name is still there".into()));
        }
        if new.is_some() && by_then(file.removed) {
            return Ok(Err("the new name is still there".into()));
        }
        if file.removed.is_some() {
            return Ok(Ok(()));
        }
        if by_then(file.renamed) && new.is_none() {
            return Ok(Err("the new name is missing".into()));
        }
        let Some(found) = new.or(old) else {
            let missing = by_then(file.created);
            return Ok(if missing { Err("the file is missing".into()) } else { Ok(()) });
        };
        if by_then(file.written) {
            let bytes = read(fs, found.attr.ino, 0, BLOCK)?;
            if bytes != content(j) {
                return Ok(Err(shown(&bytes)));
            }
        }
        Ok(Ok(()))
    }
}

/// Checks that a block has the number `i`, or a later one.
fn check_block(
    fs: &dyn FileSystem,
    ino: Option<Ino>,
    i: usize,
    blocks: usize,
) -> Result<std::result::Result<(), String>> {
    let Some(ino) = ino else { return Ok(Err("no file".into())) };
    let found = read(fs, ino, (i % blocks * BLOCK) as u64, 8)?;
    let Ok(number) = found.as_slice().try_into().map(u64::from_le_bytes) else {
        return Ok(Err(shown(&found)));
    };
    let newer = number > i as u64 && (number as usize - 1) % blocks == i % blocks;
    Ok(if newer { Ok(()) } else { Err(format!("the block is number {number}")) })
}

fn shown(bytes: &[u8]) -> String {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]);
    format!("{} bytes that begin with {start:?}", bytes.len())
}
