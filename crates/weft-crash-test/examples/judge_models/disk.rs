//! A disk whose writes and flushes are recorded in order, and the images that a power cut leaves.
//!
//! The disk is one file of a FUSE mount, beneath a loop device: the loop driver turns a flush into
//! `fsync`, and the block layer turns a forced write into a write and a flush.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_block::Rng;
use weft_vfs::{
    Caller, FallocateMode, FileSystem, Handle, Ino, Layer, MemFs, MemLimits, OpenFlags, Result,
};

/// The unit in which a disk may lose parts of a write.
pub const BLOCK_BYTES: u64 = 4096;

/// A request of the file system to its disk.
#[derive(Clone)]
pub enum Request {
    Write { offset: u64, data: Arc<[u8]> },
    Zero { offset: u64, len_bytes: u64 },
    Flush,
}

/// The file system of one file, the disk.
pub struct Disk {
    below: MemFs,
    ino: Ino,
    log: Mutex<Option<Vec<Request>>>,
}

/// The name of the file.
pub const NAME: &str = "disk";

impl Disk {
    pub fn new() -> Self {
        let limits = MemLimits { capacity_bytes: 4 << 30, ..MemLimits::default() };
        let below = MemFs::with_limits(limits);
        let fs: &dyn FileSystem = &below;
        let (entry, _) =
            fs.create(&Caller::ROOT, fs.root(), NAME.as_bytes(), 0o600, OpenFlags::WRITE).unwrap();
        Self { below, ino: entry.attr.ino, log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, Option<Vec<Request>>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content, but for blocks of zeroes.
    pub fn content(&self) -> Image {
        let snapshot = self.below.snapshot();
        let number = self.below.number(self.ino).unwrap();
        let node = snapshot.node(number).unwrap();
        let pages = node.pages().filter(|(_, page)| page.hash().is_some());
        pages.map(|(nr, page)| (nr, page.bytes().to_vec())).collect()
    }

    pub fn start(&self) {
        *self.log() = Some(Vec::new());
    }

    pub fn stop(&self) -> Vec<Request> {
        self.log().take().unwrap_or_default()
    }

    /// The number of requests until now.
    pub fn len(&self) -> usize {
        self.log().as_ref().map_or(0, Vec::len)
    }

    fn note<T>(&self, request: impl FnOnce() -> Request, call: impl FnOnce() -> T) -> T {
        let mut log = self.log();
        if let Some(log) = &mut *log {
            log.push(request());
        }
        call()
    }
}

impl Layer for Disk {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        at: u64,
        data: &[u8],
    ) -> Result<usize> {
        let request = || Request::Write { offset: at, data: data.into() };
        self.note(request, || FileSystem::write(&self.below, caller, ino, handle, at, data))
    }

    fn write_cached(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        Layer::write(self, caller, ino, handle, offset, data)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let request = || Request::Zero { offset, len_bytes };
        self.note(request, || {
            FileSystem::fallocate(&self.below, caller, ino, mode, offset, len_bytes)
        })
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.note(|| Request::Flush, || FileSystem::fsync(&self.below, caller, ino, data_only))
    }
}

/// The blocks of a disk by number; blocks of zeroes may be absent.
pub type Image = BTreeMap<u64, Vec<u8>>;

/// A state of the disk: the first requests, without some parts of those after the last flush.
pub struct DiskState {
    /// The number of requests that had reached the disk.
    pub upto: usize,
    /// The blocks that differ from the image at the beginning.
    pub changed: Image,
    /// True if no part of these requests is missing.
    pub whole: bool,
}

impl DiskState {
    /// A hash of the disk's content, given the image at the beginning.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.changed.hash(&mut hasher);
        hasher.finish()
    }
}

/// Applies the part of a request that lies in the blocks that `keep` names.
fn apply(base: &Image, changed: &mut Image, request: &Request, keep: &mut dyn FnMut() -> bool) {
    let (offset, len_bytes) = match request {
        Request::Write { offset, data } => (*offset, data.len() as u64),
        Request::Zero { offset, len_bytes } => (*offset, *len_bytes),
        Request::Flush => return,
    };
    let (mut at, end) = (offset, offset + len_bytes);
    while at < end {
        let (nr, start) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let len = (BLOCK_BYTES - start).min(end - at);
        if keep() {
            let range = start as usize..(start + len) as usize;
            let zeroes = || vec![0; BLOCK_BYTES as usize];
            let block =
                changed.entry(nr).or_insert_with(|| base.get(&nr).cloned().unwrap_or_else(zeroes));
            match request {
                Request::Write { data, .. } => {
                    let from = (at - offset) as usize;
                    block[range].copy_from_slice(&data[from..from + len as usize]);
                }
                _ => block[range].fill(0),
            }
        }
        at += len;
    }
}

/// The state that the first requests leave, of which those after the last flush lose each block
/// with a chance of `lost` in 8. A disk that lies forgets also what lies before a flush.
pub fn state(
    base: &Image,
    log: &[Request],
    upto: usize,
    lost: u64,
    rng: &mut Rng,
    lying: bool,
) -> DiskState {
    let flushed = log[..upto].iter().rposition(|r| matches!(r, Request::Flush)).unwrap_or(0);
    let mut changed = Image::new();
    for (nr, request) in log[..upto].iter().enumerate() {
        let durable = lost == 0 || (nr < flushed && !lying);
        apply(base, &mut changed, request, &mut || durable || !rng.chance(lost, 8));
    }
    DiskState { upto, changed, whole: lost == 0 }
}
