//! A random workload, run on the kernel's file system and recorded on one in memory alike.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weft_block::Rng;
use weft_crash_test::{Call, Header, Recorder, Recording};
use weft_vfs::memfs::{MemFs, Snapshot};
use weft_vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, RenameFlags, SetAttr, Walker};

use crate::host::Result;

/// Names in the tree: few, so that calls meet each other.
const FILES: [&str; 7] = ["a", "b", "c", "d/a", "d/b", "e/a", "d/s/a"];
const DIRS: [&str; 5] = ["", "d", "e", "d/s", "g"];

/// The folder of the workload in the mounted file system, and a file beside it.
pub const FOLDER: &str = "t";
const BESIDE: &str = "beside";

const CALLER: &Caller = &Caller::ROOT;

/// An open file.
struct Open {
    path: String,
    file: File,
    ino: Ino,
    handle: Handle,
}

/// A workload in the making.
pub struct Workload<'a> {
    root: PathBuf,
    mem: Arc<MemFs>,
    fs: Arc<Recorder>,
    rng: Rng,
    open: Vec<Open>,
    /// The call in words, for messages.
    pub steps: Vec<String>,
    /// For each recorded call the number of requests to the disk when it had returned.
    pub returned: Vec<usize>,
    requests: &'a dyn Fn() -> usize,
    fill: u8,
}

/// The result of one step of a workload.
enum Done {
    Yes(String),
    /// The state of the tree does not permit it.
    No,
}

impl<'a> Workload<'a> {
    /// Makes the folder and some files at the beginning.
    pub fn new(mount: &Path, seed: u64, requests: &'a dyn Fn() -> usize) -> Result<Self> {
        let mem = Arc::new(MemFs::new());
        let fs = Arc::new(Recorder::new(Arc::clone(&mem) as Arc<dyn FileSystem>, 1 << 30));
        let root = mount.join(FOLDER);
        fs::DirBuilder::new().mode(0o755).create(&root)?;
        fs::write(mount.join(BESIDE), "x")?;
        let rng = Rng::new(seed);
        let (open, steps, returned) = Default::default();
        let mut new = Self { root, mem, fs, rng, open, steps, returned, requests, fill: b'a' - 1 };
        for dir in ["d", "e", "d/s"] {
            if new.rng.chance(2, 3) {
                new.mkdir(dir)?;
            }
        }
        for file in FILES {
            if new.rng.chance(1, 2) && matches!(new.creat(file)?, Done::Yes(_)) {
                let len = *new.rng.pick(&[0, 100, 4096, 5000, 8192, 9000]).unwrap();
                new.write(0, 0, len)?;
                new.close(0)?;
            }
        }
        new.fill = b'A' - 1;
        new.steps.clear();
        Ok(new)
    }

    /// Ends the preparation, whose changes are taken to be durable, and begins to record calls.
    pub fn start(&mut self) -> Snapshot {
        self.returned.clear();
        self.fs.start(None, None);
        self.mem.snapshot()
    }

    pub fn finish(mut self, base: Snapshot) -> (Recording, Vec<String>, Vec<usize>) {
        let calls: Vec<Call> = self.fs.stop().unwrap();
        let steps = std::mem::take(&mut self.steps);
        (Recording { header: Header::default(), base, calls, volume: None }, steps, self.returned)
    }

    /// The tree as it is in memory.
    pub fn tree(&self) -> Snapshot {
        self.mem.snapshot()
    }

    /// Makes some calls; mostly such that change names, if `names` is true.
    pub fn run(&mut self, pauses: bool, names: bool) -> Result<()> {
        let mut left = 3 + self.rng.below(9);
        while left > 0 {
            let taken = match self.rng.below(6) {
                1.. if names => u64::from(self.name_step()?),
                0 => self.pattern()?,
                _ => u64::from(self.step(pauses)?),
            };
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    fn note(&mut self, done: Done) -> bool {
        // A step may have made several calls, and all have returned.
        self.returned.resize(self.fs.recorded(), (self.requests)());
        match done {
            Done::Yes(text) => self.steps.push(format!("{} [{}]", text, (self.requests)())),
            Done::No => return false,
        }
        true
    }

    /// One call, chosen at random; returns false if it was impossible.
    fn step(&mut self, pauses: bool) -> Result<bool> {
        let file = *self.rng.pick(&FILES).unwrap();
        let other = *self.rng.pick(&FILES).unwrap();
        let dir = *self.rng.pick(&DIRS).unwrap();
        let at = self.rng.index(self.open.len().max(1));
        let is_open = at < self.open.len();
        let done = match self.rng.below(40) {
            0..3 => self.creat(file)?,
            3..5 => self.open(file, false)?,
            5..7 => self.open(file, true)?,
            7..14 if is_open => {
                let (offset, len) = self.range(at)?;
                self.write(at, offset, len)?
            }
            14..17 if is_open => {
                let size = *self.rng.pick(&[0, 50, 4096, 4196, 6000, 12288]).unwrap();
                self.truncate(at, size)?
            }
            17..20 if is_open => self.close(at)?,
            20..22 if is_open => self.fsync(at, false)?,
            22..24 if is_open => self.fsync(at, true)?,
            24 => self.fsync_dir(dir)?,
            25..29 => self.rename(file, other)?,
            29 => self.rename_dir(dir)?,
            30 => self.link(file, other)?,
            31..33 => self.remove(file, false)?,
            33 => self.mkdir(dir)?,
            34 => self.remove(dir, true)?,
            35 => self.chmod(file)?,
            36 if self.rng.chance(1, 4) => self.sync()?,
            36..40 => self.hidden(at, pauses)?,
            _ => Done::No,
        };
        Ok(self.note(done))
    }

    /// One change of a name, or a call that may log one; returns false if it was impossible.
    fn name_step(&mut self) -> Result<bool> {
        let (files, dirs) = if self.find("d").is_some() && self.rng.chance(1, 4) {
            (&FILES[3..5], &DIRS[1..2])
        } else {
            (&FILES[..3], &DIRS[..1])
        };
        let file = *self.rng.pick(files).unwrap();
        let other = *self.rng.pick(files).unwrap();
        let at = self.rng.index(self.open.len().max(1));
        let done = match self.rng.below(16) {
            0..3 => self.fsync_dir(dirs[0])?,
            3..8 => self.rename(file, other)?,
            8..10 => self.remove(file, false)?,
            10 => self.link(file, other)?,
            11..13 => self.creat(file)?,
            13..15 if at < self.open.len() => self.fsync(at, false)?,
            15 => self.hidden(at, false)?,
            _ => self.open(file, false)?,
        };
        Ok(self.note(done))
    }

    /// Adds the calls by which programs save a file: write, fsync, rename and the like, together.
    fn pattern(&mut self) -> Result<u64> {
        let file = *self.rng.pick(&FILES).unwrap();
        let at = self.open.len();
        let tmp = ["b", "c"][self.rng.index(2)];
        let done = match self.rng.below(3) {
            0 => self.open(file, true)?,
            1 => self.open(file, false)?,
            _ => self.creat(tmp)?,
        };
        if !self.note(done) {
            return Ok(0);
        }
        let (offset, len) = self.range(at)?;
        let done = self.write(at, offset, len)?;
        self.note(done);
        if self.rng.chance(1, 3) {
            let data_only = self.rng.chance(1, 2);
            let done = self.fsync(at, data_only)?;
            self.note(done);
        }
        let path = self.open[at].path.clone();
        let done = self.close(at)?;
        self.note(done);
        if path == tmp {
            let done = self.rename(tmp, file)?;
            self.note(done);
        }
        if self.rng.chance(1, 4) {
            let done = self.fsync_dir("")?;
            self.note(done);
        }
        Ok(4)
    }

    /// Where to write: at the beginning, within, at the end, past it.
    fn range(&mut self, at: usize) -> Result<(u64, usize)> {
        let size = self.mem.getattr(self.open[at].ino)?.size_bytes;
        let offset = match self.rng.below(6) {
            0 => 0,
            1 => size / 2,
            2 | 3 => size,
            4 => size / 4096 * 4096,
            _ => size + 3000,
        };
        Ok((offset, *self.rng.pick(&[10, 100, 3000, 4096, 4096, 6000, 8192]).unwrap()))
    }

    fn host(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn find(&self, path: &str) -> Option<Ino> {
        let fs: &dyn FileSystem = &*self.mem;
        Some(Walker::new(fs).resolve(format!("/{path}").as_bytes()).ok()?.ino())
    }

    fn place<'p>(&self, path: &'p str) -> Option<(Ino, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Some((self.find(dir)?, name.as_bytes()))
    }

    fn creat(&mut self, path: &str) -> Result<Done> {
        let Some((dir, name)) = self.place(path) else { return Ok(Done::No) };
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let made = FileSystem::create(&*self.fs, CALLER, dir, name, 0o644, flags);
        let Ok((entry, opened)) = made else { return Ok(Done::No) };
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create_new(true).mode(0o644).open(self.host(path))?;
        let (ino, handle) = (entry.attr.ino, opened.handle);
        self.open.push(Open { path: path.to_owned(), file, ino, handle });
        Ok(Done::Yes(format!("creat {path}")))
    }

    fn open(&mut self, path: &str, truncate: bool) -> Result<Done> {
        let Some(ino) = self.find(path) else { return Ok(Done::No) };
        let mut flags = OpenFlags::READ | OpenFlags::WRITE;
        flags.set(OpenFlags::TRUNCATE, truncate);
        let Ok(opened) = FileSystem::open(&*self.fs, CALLER, ino, flags) else {
            return Ok(Done::No);
        };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).truncate(truncate).open(self.host(path))?;
        self.open.push(Open { path: path.to_owned(), file, ino, handle: opened.handle });
        Ok(Done::Yes(format!("open {path}{}", if truncate { " O_TRUNC" } else { "" })))
    }

    fn write(&mut self, at: usize, offset: u64, len: usize) -> Result<Done> {
        self.fill += 1;
        let data = vec![self.fill; len];
        let open = &self.open[at];
        FileSystem::write(&*self.fs, CALLER, open.ino, open.handle, offset, &data)?;
        open.file.write_all_at(&data, offset)?;
        let fill = char::from(self.fill);
        Ok(Done::Yes(format!("write {} {offset}+{len} '{fill}'", open.path)))
    }

    fn truncate(&mut self, at: usize, size: u64) -> Result<Done> {
        let open = &self.open[at];
        let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
        FileSystem::setattr(&*self.fs, CALLER, open.ino, &set)?;
        open.file.set_len(size)?;
        Ok(Done::Yes(format!("truncate {} {size}", open.path)))
    }

    fn close(&mut self, at: usize) -> Result<Done> {
        let open = self.open.remove(at);
        drop(open.file);
        FileSystem::release(&*self.fs, open.ino, open.handle)?;
        Ok(Done::Yes(format!("close {}", open.path)))
    }

    fn fsync(&mut self, at: usize, data_only: bool) -> Result<Done> {
        let open = &self.open[at];
        if data_only { open.file.sync_data() } else { open.file.sync_all() }?;
        FileSystem::fsync(&*self.fs, CALLER, open.ino, data_only)?;
        Ok(Done::Yes(format!("{} {}", if data_only { "fdatasync" } else { "fsync" }, open.path)))
    }

    fn fsync_dir(&mut self, path: &str) -> Result<Done> {
        let Some(ino) = self.find(path) else { return Ok(Done::No) };
        File::open(self.host(path))?.sync_all()?;
        FileSystem::fsync_dir(&*self.fs, CALLER, ino)?;
        Ok(Done::Yes(format!("fsync ./{path}")))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<Done> {
        let (Some((dir, name)), Some((to_dir, to_name))) = (self.place(from), self.place(to))
        else {
            return Ok(Done::No);
        };
        if self.find(from).is_none() || self.find(from) == self.find(to) {
            return Ok(Done::No);
        }
        let exchange = self.rng.chance(1, 8);
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        let fs: &dyn FileSystem = &*self.fs;
        if fs.rename(CALLER, dir, name, to_dir, to_name, flags).is_err() {
            return Ok(Done::No);
        }
        let (from_host, to_host) = (self.host(from), self.host(to));
        if exchange {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            renameat_with(CWD, from_host, CWD, to_host, RenameFlags::EXCHANGE)?;
        } else {
            fs::rename(from_host, to_host)?;
        }
        Ok(Done::Yes(format!("rename {from} {to}{}", if exchange { " EXCHANGE" } else { "" })))
    }

    fn rename_dir(&mut self, from: &str) -> Result<Done> {
        let to = *self.rng.pick(&DIRS).unwrap();
        if from.is_empty() || to.is_empty() {
            return Ok(Done::No);
        }
        self.rename(from, to)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<Done> {
        let (Some(ino), Some((dir, name))) = (self.find(from), self.place(to)) else {
            return Ok(Done::No);
        };
        if FileSystem::link(&*self.fs, CALLER, ino, dir, name).is_err() {
            return Ok(Done::No);
        }
        fs::hard_link(self.host(from), self.host(to))?;
        Ok(Done::Yes(format!("link {from} {to}")))
    }

    fn remove(&mut self, path: &str, is_dir: bool) -> Result<Done> {
        let Some((dir, name)) = self.place(path).filter(|_| !path.is_empty()) else {
            return Ok(Done::No);
        };
        let fs: &dyn FileSystem = &*self.fs;
        let removed =
            if is_dir { fs.rmdir(CALLER, dir, name) } else { fs.unlink(CALLER, dir, name) };
        if removed.is_err() {
            return Ok(Done::No);
        }
        let host = self.host(path);
        if is_dir { fs::remove_dir(host) } else { fs::remove_file(host) }?;
        Ok(Done::Yes(format!("{} {path}", if is_dir { "rmdir" } else { "unlink" })))
    }

    fn mkdir(&mut self, path: &str) -> Result<Done> {
        let Some((dir, name)) = self.place(path).filter(|_| !path.is_empty()) else {
            return Ok(Done::No);
        };
        if FileSystem::mkdir(&*self.fs, CALLER, dir, name, 0o755).is_err() {
            return Ok(Done::No);
        }
        fs::DirBuilder::new().mode(0o755).create(self.host(path))?;
        Ok(Done::Yes(format!("mkdir {path}")))
    }

    fn chmod(&mut self, path: &str) -> Result<Done> {
        let Some(ino) = self.find(path) else { return Ok(Done::No) };
        let perm = *self.rng.pick(&[0o600, 0o640, 0o755]).unwrap();
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        FileSystem::setattr(&*self.fs, CALLER, ino, &set)?;
        fs::set_permissions(self.host(path), PermissionsExt::from_mode(perm.into()))?;
        Ok(Done::Yes(format!("chmod {path} {perm:o}")))
    }

    fn sync(&mut self) -> Result<Done> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        FileSystem::sync(&*self.fs)?;
        Ok(Done::Yes("sync".to_owned()))
    }

    /// What the kernel may do at any time of its own accord: the model is not told.
    fn hidden(&mut self, at: usize, pauses: bool) -> Result<Done> {
        let text = match self.rng.below(if pauses { 6 } else { 5 }) {
            0 | 1 if at < self.open.len() => {
                // Begins to write the pages, as the kernel does with old ones.
                let file = &self.open[at].file;
                rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
                format!("(write back {})", self.open[at].path)
            }
            2 | 3 => {
                let path = self.root.with_file_name(BESIDE);
                let file = OpenOptions::new().write(true).open(path)?;
                file.write_all_at(b"x", 0)?;
                file.sync_all()?;
                "(fsync of a file elsewhere)".to_owned()
            }
            4 => {
                self.write_back()?;
                "(write back everything)".to_owned()
            }
            5 => {
                std::thread::sleep(Duration::from_millis(1500));
                "(pause)".to_owned()
            }
            _ => return Ok(Done::No),
        };
        Ok(Done::Yes(text))
    }

    /// Lets the kernel write back all that it holds.
    pub fn write_back(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }
}
