//! Frees, while the volume is in use, the blocks and inodes that a crash under soft updates has
//! leaked.
//!
//! A mount does not wait for a check. It freezes the device as it is before the first change of
//! this mount, and a thread looks for leaks in that view; then it frees them, a few at a time, by
//! changes like any other. A block or inode that was marked as taken and belonged to nothing then
//! belongs to nothing now: the allocator could not take it, and no path leads to it. Counts change
//! by differences.
//!
//! If the view shows anything worse than leaks, nothing is freed, and the volume stays marked for a
//! repair. So it does if the mount ends first, or overwrites more than is kept of the view.

use crate::Result;
use crate::fsck::{Leaks, find_leaks};
use crate::layout::State as SbState;
use crate::volume::{Volume, now_secs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use weft_block::{BlockDevice, Filter, Snapshot, SnapshotDevice};
use weft_patch::{BlockNr, Op, PatchId};
use weft_unix::{Format as _, State, UnixFs};
use weft_vfs::Ino;

/// Bytes that may be overwritten while the check reads.
const KEEP_BYTES: usize = 128 << 20;
/// Blocks freed by one change.
const BLOCKS_AT_ONCE: u32 = 4096;
/// Inodes changed by one change.
const INODES_AT_ONCE: usize = 16;
/// Blocks of metadata that a change here may touch.
const META_BLOCKS: u32 = 64;

type Shared = Arc<dyn BlockDevice>;

/// The background check of a mount.
#[derive(Debug, Default)]
pub(crate) struct Healing {
    cancel: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The frozen view, which fails once the mount ends.
struct View {
    snapshot: Snapshot<Shared>,
    cancel: Arc<AtomicBool>,
}

impl Filter for View {
    type Below = Snapshot<Shared>;

    fn below(&self) -> &Self::Below {
        &self.snapshot
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> weft_block::Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(weft_block::Error::Invalid("the mount has ended".into()));
        }
        self.snapshot.read_at(buf, offset)
    }
}

impl Healing {
    /// Ends the check, and waits until its thread is gone.
    pub(crate) fn stop(&self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.wait();
    }

    pub(crate) fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last user of the volume may be that thread itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Starts the check of a volume on `device`, which must not change before this returns.
    /// Sets `clean` once all leaks are freed.
    pub(crate) fn start(
        &self,
        front: &Arc<UnixFs<Volume>>,
        clean: &Arc<AtomicBool>,
        device: &Arc<SnapshotDevice<Shared>>,
    ) {
        let Some(snapshot) = device.freeze(KEEP_BYTES) else { return };
        let (cancel, clean) = (Arc::clone(&self.cancel), Arc::clone(clean));
        let front = Arc::downgrade(front);
        let view = View { snapshot, cancel: Arc::clone(&cancel) };
        let thread = std::thread::Builder::new()
            .name("weft-heal".into())
            .spawn(move || heal(&front, &clean, view, &cancel));
        match thread {
            Ok(thread) => {
                *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            }
            Err(error) => tracing::warn!("no background check: {error}"),
        }
    }
}

/// The body of the thread: finds the leaks and frees them.
fn heal(front: &Weak<UnixFs<Volume>>, clean: &AtomicBool, view: View, cancel: &AtomicBool) {
    let found = find_leaks(&view);
    // Writes need not keep anything from here on.
    drop(view);
    if cancel.load(Ordering::Relaxed) {
        return;
    }
    let Some(front) = front.upgrade() else { return };
    let result = found.and_then(|leaks| Healer { front: &front, clean, cancel }.free(&leaks));
    if let Err(error) = result
        && !cancel.load(Ordering::Relaxed)
    {
        tracing::warn!("blocks and inodes that the last crash leaked stay allocated: {error}");
    }
}

/// The changes of a mounted volume that free its leaks.
struct Healer<'a> {
    front: &'a UnixFs<Volume>,
    clean: &'a AtomicBool,
    /// Set when the mount ends.
    cancel: &'a AtomicBool,
}

impl Healer<'_> {
    /// Runs `f` on some of `all` at a time, until all are done or the mount ends.
    fn for_some<T>(
        &self,
        all: &[T],
        at_once: usize,
        mut f: impl FnMut(&mut State<Volume>, &mut Op<'_>, &T) -> weft_unix::Result<()>,
    ) -> Result<()> {
        for some in all.chunks(at_once) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(crate::Error::Invalid("the mount has ended".into()));
            }
            self.front.change(META_BLOCKS, &[], |st, op| {
                some.iter().try_for_each(|item| f(st, op, item))
            })?;
        }
        Ok(())
    }

    fn free(&self, leaks: &Leaks) -> Result<()> {
        for problem in &leaks.corruption {
            tracing::error!("damage found by the background check: {problem}");
        }
        if let Some(problem) = leaks.corruption.first() {
            self.front.lock().format.note_damage(problem.to_string());
            return Ok(());
        }
        self.for_some(&leaks.directory_counts, INODES_AT_ONCE, |st, _, &(group, by)| {
            st.format.correct_directory_count(group, by);
            Ok(())
        })?;
        self.delete_nameless(leaks)?;
        self.for_some(&leaks.excess_links, INODES_AT_ONCE, |st, op, &(ino, by)| {
            let ino = Ino(u64::from(ino));
            let inode = &mut st.load(op, ino)?.inode;
            // Never the last one: each of these has a name.
            inode.links = inode.links.saturating_sub(by).max(inode.links.min(1));
            st.write_node(op, ino, &[]).map(drop)
        })?;
        self.for_some(&leaks.sectors, INODES_AT_ONCE, |st, op, &(ino, by)| {
            let ino = Ino(u64::from(ino));
            let inode = &mut st.load(op, ino)?.inode;
            inode.blocks_512 = inode.blocks_512.saturating_add_signed(by);
            st.write_node(op, ino, &[]).map(drop)
        })?;
        self.for_some(&leaks.sizes, INODES_AT_ONCE, |st, op, &(ino, found, size)| {
            let ino = Ino(u64::from(ino));
            let node = st.load(op, ino)?;
            if node.inode.size_bytes != found {
                return Ok(());
            }
            node.inode.size_bytes = size;
            node.epoch += 1;
            st.write_node(op, ino, &[]).map(drop)
        })?;
        self.for_some(&leaks.attribute_refs, INODES_AT_ONCE, |_, op, &(block, by)| {
            let block = BlockNr(u64::from(block));
            let refs = crate::layout::xattr_block_refcount(op.peek(block)?);
            op.write(block, 4, &refs.saturating_sub(by).max(1).to_le_bytes(), &[])?;
            Ok(())
        })?;
        self.for_some(&leaks.inodes, INODES_AT_ONCE, |st, op, &ino| {
            let mut cleared = PatchId::DURABLE;
            let mut inode = st.format.read_raw_inode(op, ino)?;
            if inode.mode != 0 && inode.dtime == 0 {
                inode.dtime = now_secs();
                cleared = st.format.write_raw_inode(op, ino, &inode, &[])?;
            }
            st.format.free_inode_number(op, ino, None, cleared)
        })?;
        let runs: Vec<(u32, u32)> = leaks.blocks.iter().flat_map(|&run| pieces(run)).collect();
        self.for_some(&runs, 1, |st, op, &(first, len)| {
            st.format.free_blocks(op, first, len, PatchId::DURABLE)
        })?;
        self.front.engine().sync()?;
        let mut st = self.front.lock();
        if st.format.damage.is_none() {
            self.clean.store(true, Ordering::Relaxed);
            st.format.sb.state -= SbState::ERROR;
        }
        drop(st);
        if !leaks.is_empty() {
            let blocks: u64 = leaks.blocks.iter().map(|run| u64::from(run.1)).sum();
            let inodes = leaks.inodes.len() + leaks.unattached.len() + leaks.directories.len();
            tracing::info!("freed {blocks} blocks and {inodes} inodes that a crash had leaked");
        }
        Ok(())
    }

    /// Deletes the inodes that have lost their last name.
    fn delete_nameless(&self, leaks: &Leaks) -> Result<()> {
        for list in [&leaks.unattached, &leaks.directories] {
            self.for_some(list, 1, |st, op, &ino| st.doom(op, Ino(u64::from(ino))))?;
        }
        if !leaks.directories.is_empty() {
            // The counts above are lowered only after the directories that they count are gone.
            self.front.engine().sync()?;
        }
        Ok(())
    }
}

/// A run of blocks in pieces for one change each.
fn pieces((first, len): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    (0..len)
        .step_by(BLOCKS_AT_ONCE as usize)
        .map(move |at| (first + at, BLOCKS_AT_ONCE.min(len - at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_block::MemoryDevice;
    use weft_block::conformance::{Limits, run};

    #[test]
    fn the_frozen_view_conforms_until_the_mount_ends() {
        let view = || {
            let memory: Shared = Arc::new(MemoryDevice::new(1 << 20));
            memory.write_at(&[7; 300_000], 5000).unwrap();
            let snapshot = Arc::new(SnapshotDevice::new(memory)).freeze(KEEP_BYTES).unwrap();
            View { snapshot, cancel: Arc::default() }
        };
        run(view, &Limits::default());
        let view = view();
        view.cancel.store(true, Ordering::Relaxed);
        assert!(view.read_at(&mut [0; 512], 0).is_err());
    }
}
