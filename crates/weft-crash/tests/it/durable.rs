//! What fsync has made durable is there when the power goes: in every order of writes.
//!
//! Directories with long names that grow past their direct blocks, files that come, grow and move,
//! directories that move, and now and then an fsync. At each fsync's end, and once at the end with
//! some of the writes under way, the power goes. What is on the disk is recovered or repaired, and
//! every file that was made durable and not changed since has its name and content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_block::{BlockDevice, CrashDevice, Image, MemoryDevice, Rng};
use weft_crash::{Ext2Target, HfsTarget, Mounted, Target, Tree};
use weft_ext2::mkfs::{Journal, MkfsOptions};
use weft_hfs::layout::Name;
use weft_patch::{JournalMode, Policy};
use weft_vfs::{Caller, Handle, Ino, OpenFlags, RenameFlags};

type Path = Vec<Vec<u8>>;

struct File {
    ino: Ino,
    content: Vec<u8>,
    durable: bool,
}

struct Run<'a> {
    what: String,
    rng: Rng,
    target: &'a dyn Target,
    device: Arc<CrashDevice<MemoryDevice>>,
    mounted: Mounted,
    files: BTreeMap<Path, File>,
    dirs: BTreeMap<Path, Ino>,
    names: u64,
}

/// ext2 with blocks of 1 KiB, of which twelve names nothing stands between.
fn ext2(policy: Policy) -> Ext2Target {
    let journal = matches!(policy, Policy::Journal(_));
    let base = if journal { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
    let options = MkfsOptions {
        block_bytes: Some(1024),
        inodes: Some(1024),
        journal: journal.then_some(Journal::Internal { len_bytes: Some(1 << 20) }),
        time: Some(1_700_000_000),
        ..base
    };
    let device = MemoryDevice::new(12 << 20);
    weft_ext2::mkfs::mkfs(&device, &options).unwrap();
    Ext2Target::new(policy).on_image(device.snapshot())
}

fn hfs(policy: Policy) -> HfsTarget {
    let device = MemoryDevice::new(12 << 20);
    let name = Name::new(b"Durable").unwrap();
    let options = weft_hfs::mkfs::MkfsOptions::new(name, 3_800_000_000);
    weft_hfs::mkfs::mkfs(&device, &options).unwrap();
    HfsTarget::new(policy).on_image(device.snapshot())
}

impl<'a> Run<'a> {
    fn new(seed: u64, target: &'a dyn Target) -> Self {
        let medium = MemoryDevice::from_image(target.fresh().unwrap());
        let device = Arc::new(CrashDevice::new(medium, seed));
        let mounted = target.mount(device.clone()).unwrap();
        let dirs = BTreeMap::from([(Path::new(), mounted.fs.root())]);
        Self {
            what: format!("WEFT_SEED={seed}, {:?} {}", target.tree(), target.options()),
            rng: Rng::new(seed),
            target,
            device,
            mounted,
            files: BTreeMap::new(),
            dirs,
            names: 0,
        }
    }

    fn some_dir(&mut self) -> (Path, Ino) {
        // Two of them most of the time, so that they grow past their direct blocks.
        let count = self.dirs.len();
        let count = if self.rng.chance(2, 3) { count.min(2) } else { count };
        let at = self.rng.index(count);
        let (path, ino) = self.dirs.iter().nth(at).unwrap();
        (path.clone(), *ino)
    }

    fn some_file(&mut self) -> Option<Path> {
        let at = self.rng.index(self.files.len().max(1));
        self.files.keys().nth(at).cloned()
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.names += 1;
        let mut name = self.names.to_string().into_bytes();
        let most = if self.target.tree() == Tree::Unix { 250 } else { 27 };
        name.resize(name.len() + self.rng.index(most), b'n');
        name
    }

    fn create(&mut self) {
        let (mut path, dir) = self.some_dir();
        let name = self.new_name();
        let flags = OpenFlags::empty();
        let (entry, _) = self.mounted.fs.create(&Caller::ROOT, dir, &name, 0o644, flags).unwrap();
        path.push(name);
        let file = File { ino: entry.attr.ino, content: Vec::new(), durable: false };
        self.files.insert(path.clone(), file);
        self.append(&path);
    }

    fn append(&mut self, path: &Path) {
        let mut data = vec![0; self.rng.index(6000)];
        self.rng.fill(&mut data);
        let file = self.files.get_mut(path).unwrap();
        let at = file.content.len() as u64;
        assert_eq!(
            self.mounted.fs.write(&Caller::ROOT, file.ino, Handle::NONE, at, &data).unwrap(),
            data.len()
        );
        file.content.extend(data);
        file.durable = false;
    }

    fn mkdir(&mut self) {
        let (mut path, dir) = self.some_dir();
        if path.len() > 3 {
            return;
        }
        let name = self.new_name();
        let ino = self.mounted.fs.mkdir(&Caller::ROOT, dir, &name, 0o755).unwrap().attr.ino;
        path.push(name);
        self.dirs.insert(path, ino);
    }

    /// Moves a file, or a directory with all that is in it, to a new name.
    fn rename(&mut self, from: &Path) {
        let (mut to, to_dir) = self.some_dir();
        if from.is_empty() || to.starts_with(from) {
            return;
        }
        let (name, parent) = from.split_last().unwrap();
        let new_name = self.new_name();
        let flags = RenameFlags::empty();
        self.mounted
            .fs
            .rename(&Caller::ROOT, self.dirs[parent], name, to_dir, &new_name, flags)
            .unwrap();
        to.push(new_name);
        let moved = |path: &Path| [&to[..], &path[from.len()..]].concat();
        let files: Vec<_> = self.files.keys().filter(|p| p.starts_with(from)).cloned().collect();
        for path in files {
            let file = self.files.remove(&path).unwrap();
            self.files.insert(moved(&path), File { durable: false, ..file });
        }
        let dirs: Vec<_> = self.dirs.keys().filter(|p| p.starts_with(from)).cloned().collect();
        for path in dirs {
            let ino = self.dirs.remove(&path).unwrap();
            self.dirs.insert(moved(&path), ino);
        }
    }

    fn fsync(&mut self) {
        let Some(path) = self.some_file() else { return };
        let file = self.files.get_mut(&path).unwrap();
        self.mounted.fs.fsync(&Caller::ROOT, file.ino, self.rng.chance(1, 3)).unwrap();
        file.durable = true;
        self.judge(self.device.inner().snapshot(), "an fsync");
    }

    fn judge(&self, left: Image, when: &str) {
        let what = format!("{}, {} names, at {when}", self.what, self.names);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(left));
        if !self.target.promises().clean_after_recovery {
            self.target.repair(Arc::clone(&device)).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        let Mounted { fs, .. } = self.target.mount(device).unwrap();
        for (path, file) in self.files.iter().filter(|(_, file)| file.durable) {
            let shown = || path.iter().map(|n| String::from_utf8_lossy(n)).collect::<Vec<_>>();
            let mut at = fs.root();
            for name in path {
                let found = fs.lookup(at, name).map(|entry| entry.attr.ino);
                at = found.unwrap_or_else(|e| panic!("{what}: {:?}: {e}", shown()));
            }
            let mut content = vec![0; file.content.len() + 1];
            let count = fs.read(at, Handle::NONE, 0, &mut content).unwrap();
            assert!(content[..count] == file.content[..], "{what}: content of {:?}", shown());
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..50 => self.create(),
            50..55 => self.mkdir(),
            55..65 => {
                if let Some(path) = self.some_file() {
                    self.append(&path);
                }
            }
            65..73 => {
                if let Some(path) = self.some_file() {
                    self.rename(&path);
                }
            }
            73..76 => {
                let (path, _) = self.some_dir();
                self.rename(&path);
            }
            76..82 => self.mounted.write_back().unwrap(),
            82..84 => {
                self.mounted.fs.sync().unwrap();
                self.files.values_mut().for_each(|file| file.durable = true);
            }
            _ => self.fsync(),
        }
    }
}

fn run(seed: u64, target: &dyn Target, steps: usize) {
    let mut run = Run::new(seed, target);
    for _ in 0..steps {
        run.step();
    }
    run.device.crash().unwrap();
    run.judge(run.device.inner().snapshot(), "the end");
}

const METADATA: Policy = Policy::Journal(JournalMode::Metadata);
const ORDERED: Policy = Policy::Journal(JournalMode::Ordered);
const FULL: Policy = Policy::Journal(JournalMode::Full);

fn each_order(seed: u64) {
    for policy in [Policy::Soft, METADATA, ORDERED, FULL, Policy::Async] {
        run(seed, &ext2(policy), 900);
    }
    for policy in [Policy::Soft, METADATA, ORDERED, Policy::Async] {
        run(seed, &hfs(policy), 900);
    }
}

#[test]
fn what_fsync_made_durable_is_there_in_every_order() {
    let given = std::env::var("WEFT_SEED").ok().and_then(|s| s.parse().ok());
    given.map_or(1..=3, |seed| seed..=seed).for_each(each_order);
}

#[test]
#[ignore = "long: make test-long"]
fn long_fsync() {
    let seconds = std::env::var("WEFT_LONG_SECONDS").ok().and_then(|s| s.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(600)) / 16;
    let mut seed = u64::from(std::process::id()) << 32;
    while Instant::now() < end {
        seed += 1;
        each_order(seed);
    }
}
