//! Blocks that are being written: their bytes in memory, and how they are sealed.
//!
//! Small writes to a file whose write lease is at hand go to the journal and into memory; so a
//! block that is written often is stored once, when it is sealed: a second later, or when other
//! clients need to see it. A write right after another one to the same file replaces its change in
//! the log, under a new number. The bytes are redo records in the journal, and not written over the
//! block's file in place, because a killed process would leave half of such a write.
//!
//! Invariants:
//! - The bytes in memory are in the journal, or in the block's base: a file with a second name in
//!   `open/`. So [`recover`] rebuilds each block after a crash, with all writes or, if the
//!   journal's end was lost, with those before it.
//! - The *gate* of a file is held for writing by a thread that changes the bytes of its open
//!   blocks, including the change of the file, or seals them; and for reading by a thread that
//!   reads both. So they always agree. No thread waits for a lease or for another client behind a
//!   gate: recalls wait for gates.
//! - There is room for open blocks: it was reserved before (`room`). A block that still cannot be
//!   stored, because the disk fails, stays open, and no others are opened meanwhile.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use weft_ringer::client::{JournalRecord, LeftOpen, Redo, Written, left_open, naming};
use weft_ringer::{BlockHash, Incarnation, RnodeId};

use super::blocks::Blocks;
use super::encryption::{FileCipher, Keys};
use super::journal::Journal;
use super::mutex::locked;

const GATES: usize = 64;
/// The bytes of open blocks beyond which the oldest are sealed.
const OPEN_MAX_BYTES: u64 = 64 << 20;
/// The number of blocks in the order list, including sealed ones, beyond which those are dropped.
const ORDER_MAX: usize = 4096;
/// The disk space that is left to other uses.
const RESERVE_BYTES: u64 = 16 << 20;

/// An open block.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) rnode: RnodeId,
    pub(super) bytes: Vec<u8>,
    index: u32,
    /// The cipher of its file, if that is encrypted.
    cipher: Option<Arc<FileCipher>>,
}

impl OpenBlock {
    /// Returns its bytes as they are stored.
    pub(super) fn to_store(&self) -> io::Result<Cow<'_, [u8]>> {
        to_store(self.cipher.as_deref(), self.index, &self.bytes)
    }
}

/// Returns the bytes of a block as they are stored.
pub(super) fn to_store<'a>(
    cipher: Option<&FileCipher>,
    index: u32,
    bytes: &'a [u8],
) -> io::Result<Cow<'a, [u8]>> {
    match cipher {
        None => Ok(Cow::Borrowed(bytes)),
        Some(cipher) => cipher.encrypt_block(index, bytes).map(Cow::Owned),
    }
}

/// The open blocks behind one gate.
pub(super) type Behind = HashMap<BlockHash, OpenBlock>;

/// All open blocks.
#[derive(Debug)]
pub(super) struct OpenBlocks {
    gates: [RwLock<Behind>; GATES],
    incarnation: Incarnation,
    next: AtomicU64,
    bytes: AtomicU64,
    /// The blocks in the order they were opened; some are sealed already.
    order: Mutex<VecDeque<(RnodeId, BlockHash)>>,
    /// Whether no block may be opened now.
    closed: AtomicBool,
    /// Whether the last sealing failed.
    failing: AtomicBool,
    /// Files whose blocks are to be sealed.
    wanted: Mutex<BTreeSet<RnodeId>>,
    wakes: Condvar,
}

impl OpenBlocks {
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self {
            gates: std::array::from_fn(|_| RwLock::default()),
            incarnation,
            next: AtomicU64::new(1),
            bytes: AtomicU64::new(0),
            order: Mutex::default(),
            closed: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            wanted: Mutex::default(),
            wakes: Condvar::new(),
        }
    }

    fn at(&self, id: RnodeId) -> &RwLock<Behind> {
        &self.gates[id.count() as usize % GATES]
    }

    /// Locks the gate of a file for reading its open blocks.
    pub(super) fn look(&self, id: RnodeId) -> RwLockReadGuard<'_, Behind> {
        self.at(id).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the gate of a file for changing its open blocks.
    pub(super) fn change(&self, id: RnodeId) -> RwLockWriteGuard<'_, Behind> {
        self.at(id).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a name for a new block.
    pub(super) fn name(&self) -> BlockHash {
        BlockHash::open(self.incarnation, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns true if blocks of this many bytes may be opened. To be asked behind a gate, too.
    pub(super) fn may_open(&self, blocks: &Blocks, len_bytes: u64) -> bool {
        let is_room = || {
            let wanted = len_bytes + RESERVE_BYTES;
            let space = blocks.space();
            space.is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) > wanted)
        };
        !self.is_closed() && !self.failing.load(Ordering::Relaxed) && is_room()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Forbids or permits the opening of blocks.
    pub(super) fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    pub(super) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }

    /// Applies a write to open blocks of a file; `images` are the positions of the blocks, and the
    /// initial bytes of new ones. Called behind the file's gate.
    pub(super) fn apply(
        &self,
        behind: &mut Behind,
        id: RnodeId,
        cipher: Option<&Arc<FileCipher>>,
        redo: &[Redo],
        images: Vec<(u32, Vec<u8>)>,
    ) {
        for (part, (index, bytes)) in redo.iter().zip(images) {
            let open = behind.entry(part.name).or_insert_with(|| {
                locked(&self.order).push_back((id, part.name));
                self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                OpenBlock { rnode: id, bytes, index, cipher: cipher.cloned() }
            });
            let before = open.bytes.len() as u64;
            part.apply(&mut open.bytes);
            self.bytes.fetch_add(open.bytes.len() as u64, Ordering::Relaxed);
            self.bytes.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// Removes a block that was sealed.
    pub(super) fn remove(&self, behind: &mut Behind, name: &BlockHash) {
        if let Some(open) = behind.remove(name) {
            self.bytes.fetch_sub(open.bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the block that was opened first, if this many more bytes would exceed the limit.
    pub(super) fn oldest_if_full(&self, more_bytes: u64) -> Option<(RnodeId, BlockHash)> {
        let is_full = self.bytes.load(Ordering::Relaxed) + more_bytes > OPEN_MAX_BYTES;
        is_full.then(|| locked(&self.order).pop_front()).flatten()
    }

    /// All files that have open blocks.
    pub(super) fn files(&self) -> BTreeSet<RnodeId> {
        let gates = self.gates.iter().map(|g| g.read().unwrap_or_else(PoisonError::into_inner));
        let files = gates.flat_map(|behind| behind.values().map(|b| b.rnode).collect::<Vec<_>>());
        files.collect()
    }

    /// Requests that the blocks of a file are sealed soon.
    pub(super) fn want(&self, id: RnodeId) {
        if locked(&self.wanted).insert(id) {
            self.wakes.notify_one();
        }
    }

    /// Waits for files to be sealed.
    pub(super) fn wait(&self, limit: Duration) -> BTreeSet<RnodeId> {
        let wanted = locked(&self.wanted);
        let waited = self.wakes.wait_timeout_while(wanted, limit, |wanted| wanted.is_empty());
        std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Drops blocks from the order list that were sealed long ago.
    pub(super) fn tidy(&self) {
        let before: Vec<BlockHash> = locked(&self.order).iter().map(|(_, name)| *name).collect();
        if before.len() <= ORDER_MAX {
            return;
        }
        // The order is locked behind gates, never the other way round. Names are never reused: a
        // block that is not open now will not be again.
        let gates = self.gates.iter().map(|g| g.read().unwrap_or_else(PoisonError::into_inner));
        let open: BTreeSet<BlockHash> =
            gates.flat_map(|behind| behind.keys().copied().collect::<Vec<_>>()).collect();
        let sealed: BTreeSet<BlockHash> =
            before.into_iter().filter(|name| !open.contains(name)).collect();
        locked(&self.order).retain(|(_, name)| !sealed.contains(name));
    }
}

/// Returns the content of a block before it was opened; `None` if that is lost.
fn made_again(
    blocks: &Blocks,
    cipher: Option<&FileCipher>,
    name: &BlockHash,
    left: &LeftOpen<'_>,
) -> io::Result<Option<Vec<u8>>> {
    let Some(base) = left.redo.first().and_then(|first| first.base) else {
        return Ok(Some(Vec::new()));
    };
    let stored = blocks.base(left.rnode, name, &base)?;
    let plain = match cipher {
        None => stored,
        // The bytes match the hash, and were decrypted once before.
        Some(cipher) => stored.and_then(|bytes| cipher.open_block(left.index, &bytes).ok()),
    };
    Ok(plain.map(|mut bytes| {
        bytes.truncate(base.len_bytes as usize);
        bytes
    }))
}

/// Rebuilds the blocks that were open when the last run of this client ended, and stores them.
/// Changes that name one that cannot be rebuilt are given up: its base was lost in a power cut.
///
/// # Errors
/// The store cannot be written, or lacks the key of an encrypted file.
pub(super) fn recover(
    blocks: &Blocks,
    keys: &Keys,
    journal: &mut Journal,
    mut records: Vec<JournalRecord>,
) -> io::Result<Vec<JournalRecord>> {
    let mut found = Vec::new();
    for (name, left) in left_open(&records) {
        let LeftOpen { rnode, index, ref redo, encryption } = left;
        let cipher = encryption.map(|encryption| {
            let lacks =
                || format!("inode {rnode}: this mount does not have the key {}", encryption.key);
            keys.cipher(encryption).ok_or_else(|| io::Error::other(lacks()))
        });
        let cipher = cipher.transpose()?;
        let Some(mut bytes) = made_again(blocks, cipher.as_ref(), &name, &left)? else {
            tracing::error!("the earlier content of block {name:?} of inode {rnode} is lost");
            let lost = naming(&records, &name);
            found.extend(lost.into_iter().map(|seq| JournalRecord::GivenUp { seq }));
            continue;
        };
        for part in redo {
            match &cipher {
                None => part.apply(&mut bytes),
                Some(cipher) => {
                    let plain = cipher.open_redo(&part.name, part.within, &part.data.0);
                    let plain = plain.map_err(|e| {
                        io::Error::other(format!("cannot store data written to inode {rnode}: {e}"))
                    })?;
                    Redo { data: Written(plain.into()), ..(*part).clone() }.apply(&mut bytes);
                }
            }
        }
        let stored = to_store(cipher.as_ref(), index, &bytes)?;
        let hash = blocks.put_open(rnode, &name, &stored)?;
        found.push(JournalRecord::Sealed { name, hash });
    }
    if !found.is_empty() {
        // The journal may be the only place where they are durable.
        blocks.sync()?;
        found.iter().for_each(|record| journal.append(record));
        journal.catch_up()?;
        records.append(&mut found);
    }
    blocks.forget_bases()?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn open_one(open: &OpenBlocks, behind: &mut Behind, id: RnodeId) -> BlockHash {
        let (name, data) = (open.name(), Written(vec![1; 8].into()));
        let redo = [Redo { name, base: None, kept_bytes: 0, within: 0, data }];
        open.apply(behind, id, None, &redo, vec![(0, Vec::new())]);
        name
    }

    /// A mount hung for ever when one thread tidied up while another opened a block.
    #[test]
    fn blocks_are_opened_while_others_are_forgotten() {
        const BLOCKS: usize = 2 * ORDER_MAX;
        let open = Arc::new(OpenBlocks::new(Incarnation(1)));
        for n in 1..=BLOCKS {
            let id = RnodeId::new(1, n as u32);
            let mut behind = open.change(id);
            let name = open_one(&open, &mut behind, id);
            if n % 2 == 0 {
                open.remove(&mut behind, &name);
            }
        }
        let (tidies, tidying) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        let opening = {
            let (open, done) = (Arc::clone(&open), done.clone());
            move || {
                let id = RnodeId::new(1, 63);
                let mut behind = open.change(id);
                tidying.recv().expect("it tidies");
                // Long enough for the other thread to come to this gate.
                for _ in 0..BLOCKS {
                    open_one(&open, &mut behind, id);
                }
                drop(done);
            }
        };
        let tidying = {
            let open = Arc::clone(&open);
            move || {
                tidies.send(()).expect("the test receives");
                open.tidy();
                drop(done);
            }
        };
        let threads = [std::thread::spawn(opening), std::thread::spawn(tidying)];
        let hung = is_done.recv_timeout(Duration::from_secs(60));
        assert_eq!(hung, Err(mpsc::RecvTimeoutError::Disconnected), "they wait for each other");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        open.tidy();
        assert_eq!(
            locked(&open.order).len(),
            BLOCKS / 2 + BLOCKS,
            "those that are open, all of them"
        );
    }
}
