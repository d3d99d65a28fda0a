//! Atomic writes of a file, by the commands that SQLite knows from F2FS.

use std::sync::Arc;

use weft_block::MemoryDevice;
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_ext2::{Ext2, OpenOptions};
use weft_order::OrderedFs;
use weft_patch::{JournalMode, Options, Policy};
use weft_testing::yield_until;
use weft_vfs::{Caller, Error, FileKind, FileSystem, Handle, Ino, SetAttr};

const START: u32 = 0xF501;
const COMMIT: u32 = 0xF502;
const ABORT: u32 = 0xF505;
const GET_FEATURES: u32 = 0x8004_F50C;

const EFBIG: i32 = 27;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOTTY: i32 = 25;
const EOPNOTSUPP: i32 = 95;

const PAGE: usize = 4096;

struct Volume {
    device: Arc<MemoryDevice>,
    ext2: Arc<Ext2>,
    fs: OrderedFs,
    file: Ino,
}

fn caller(pid: u32) -> Caller {
    Caller { pid, ..Caller::ROOT }
}

fn own() -> Caller {
    caller(std::process::id())
}

impl Volume {
    /// Makes a volume with a file of three pages of ones.
    fn new(policy: Policy) -> Self {
        let device = Arc::new(MemoryDevice::new(160 << 20));
        mkfs(&*device, &MkfsOptions { block_bytes: Some(4096), ..MkfsOptions::ext3() }).unwrap();
        let engine = Options { policy, background: false, ..Options::default() };
        let options = OpenOptions { engine, ..OpenOptions::default() };
        let ext2 = Ext2::open(device.clone(), options).unwrap();
        let fs = OrderedFs::new(ext2.clone(), ext2.engine().patchgroups());
        let made: &dyn FileSystem = &fs;
        let entry = made.mknod(&own(), made.root(), b"file", FileKind::Regular, 0o644, 0).unwrap();
        let file = entry.attr.ino;
        made.write(&own(), file, Handle::NONE, 0, &[1; 3 * PAGE]).unwrap();
        made.sync().unwrap();
        Self { device, ext2, fs, file }
    }

    fn ordered() -> Self {
        Self::new(Policy::Journal(JournalMode::Ordered))
    }

    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn command(&self, caller: &Caller, request: u32) -> i32 {
        match self.fs().command(caller, self.file, Handle::NONE, request, &[]) {
            Ok(answer) => answer.errno,
            Err(e) => e.errno(),
        }
    }

    fn write(&self, page: usize, value: u8) -> Result<usize, Error> {
        let at = (page * PAGE) as u64;
        self.fs().write(&own(), self.file, Handle::NONE, at, &[value; PAGE])
    }

    /// Returns the first byte of each page, of the volume, or of what a power cut would leave of it.
    fn pages(fs: &dyn FileSystem) -> Vec<u8> {
        let file = fs.lookup(fs.root(), b"file").unwrap().attr;
        let mut content = vec![0; usize::try_from(file.size_bytes).unwrap()];
        let n = fs.read(file.ino, Handle::NONE, 0, &mut content).unwrap();
        assert_eq!(n, content.len());
        assert!(content.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])));
        content.iter().step_by(PAGE).copied().collect()
    }

    fn pages_after_power_cut(&self) -> Vec<u8> {
        let engine =
            Options { policy: Policy::Journal(JournalMode::Ordered), ..Options::default() };
        let options = OpenOptions { engine, ..OpenOptions::default() };
        let copy = Arc::new(MemoryDevice::from_image(self.device.snapshot()));
        let fs = Ext2::open(copy, options).unwrap();
        Self::pages(&*fs)
    }
}

#[test]
fn a_power_cut_leaves_all_of_the_writes_or_none() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let volume = Volume::new(Policy::Journal(mode));
        let features = volume.fs().command(&own(), volume.file, Handle::NONE, GET_FEATURES, &[]);
        assert_eq!(features.unwrap().data, 4_u32.to_ne_bytes());
        assert_eq!(volume.command(&own(), START), 0);
        for (page, value) in [(0, 2), (2, 3), (3, 4)] {
            volume.write(page, value).unwrap();
            // As age and pressure would.
            volume.ext2.engine().write_back().unwrap();
            assert_eq!(volume.pages_after_power_cut(), [1, 1, 1], "{mode:?}");
        }
        assert_eq!(Volume::pages(volume.fs()), [2, 1, 3, 4]);
        assert_eq!(volume.command(&own(), COMMIT), 0);
        assert_eq!(volume.pages_after_power_cut(), [2, 1, 3, 4], "{mode:?}");
        assert_eq!(volume.command(&own(), COMMIT), EINVAL, "they have ended");
    }
}

#[test]
fn what_is_aborted_never_was() {
    let volume = Volume::ordered();
    assert_eq!(volume.command(&own(), START), 0);
    assert_eq!(volume.command(&own(), START), 0, "again");
    for (page, value) in [(0, 2), (0, 3), (5, 4)] {
        volume.write(page, value).unwrap();
    }
    assert_eq!(volume.command(&own(), ABORT), 0);
    assert_eq!(Volume::pages(volume.fs()), [1, 1, 1]);
    volume.fs().sync().unwrap();
    assert_eq!(volume.pages_after_power_cut(), [1, 1, 1]);
    assert_eq!(volume.command(&own(), ABORT), 0, "there is nothing");
}

#[test]
fn the_writes_of_a_process_that_ends_are_undone() {
    let volume = Volume::ordered();
    let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    assert_eq!(volume.command(&caller(child.id()), START), 0);
    volume.write(1, 9).unwrap();
    assert_eq!(volume.command(&own(), START), EBUSY, "of another process");
    assert_eq!(volume.command(&own(), COMMIT), EINVAL);
    assert_eq!(volume.command(&own(), ABORT), 0);
    assert_eq!(Volume::pages(volume.fs()), [1, 9, 1], "only its own");
    child.kill().unwrap();
    child.wait().unwrap();
    yield_until("they are undone", || Volume::pages(volume.fs()) == [1, 1, 1]);
    yield_until("the file is free", || volume.command(&own(), START) == 0);
}

#[test]
fn what_cannot_be_undone_is_refused_meanwhile() {
    let volume = Volume::new(Policy::Journal(JournalMode::Full));
    assert_eq!(volume.command(&own(), START), 0);
    let set = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    let cut = volume.fs().setattr(&own(), volume.file, &set);
    assert_eq!(cut.unwrap_err().errno(), EBUSY);
    let sync = volume.fs().fsync(&own(), volume.file, false);
    assert_eq!(sync.unwrap_err().errno(), EBUSY);
    // More than fits is refused, and all of it can be undone.
    let refused =
        (0..10_000).find_map(|page| volume.write(page % 3, 5).and(volume.write(page, 6)).err());
    assert_eq!(refused.expect("a limit").errno(), EFBIG);
    assert_eq!(volume.command(&own(), ABORT), 0);
    assert_eq!(Volume::pages(volume.fs()), [1, 1, 1]);
}

#[test]
fn without_a_journal_there_are_none() {
    let volume = Volume::new(Policy::Soft);
    let features = volume.fs().command(&own(), volume.file, Handle::NONE, GET_FEATURES, &[]);
    assert_eq!(features.unwrap().data, [0; 4]);
    assert_eq!(volume.command(&own(), START), EOPNOTSUPP);
    // Those who may not make others wait.
    let volume = Volume::ordered();
    let stranger = Caller { uid: 1234, ..own() };
    assert_eq!(volume.command(&stranger, GET_FEATURES), ENOTTY);
    assert_eq!(volume.command(&stranger, START), ENOTTY);
}
