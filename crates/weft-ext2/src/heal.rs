//! Frees, while the volume is in use, the blocks and inodes that a crash under soft updates has
//! leaked.
//!
//! A mount does not wait for a check. It freezes the device as it is before the first change of
//! this mount, and a thread looks for leaks in that view; then it frees them, a few at a time, by
//! changes like any other. A block or inode that was marked as taken and belonged to nothing then
//! belongs to nothing now: the allocator could not take it, and no path leads to it. Counts change
//! by differences.
//!
//! A directory without a name is freed if it is empty. Any other one was being made or removed, too,
//! but it is moved to lost+found: what it looks like may as well have been torn from its place. One that
//! was being renamed gets its new `..`; if it has two names it keeps them.
//!
//! If the view shows anything worse than what soft updates leave, no inode is freed, blocks only if
//! every inode could be read ([`Extent`]), and the volume stays marked for a repair. So it does if the
//! mount ends first, or overwrites more than is kept of the view. What was found goes to the log.

use crate::Result;
use crate::fsck::{Extent, Leaks, find_leaks};
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
/// Problems that are reported one by one.
const REPORTED: usize = 20;

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

    /// Reports whether a check was started, and nobody has waited for its end yet.
    pub(crate) fn is_started(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).is_some()
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
    if result.is_ok() {
        tracing::info!("the check in the background has ended");
    }
    if let Err(error) = result
        && !cancel.load(Ordering::Relaxed)
    {
        tracing::warn!("what the last crash left was not reclaimed: {error}");
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
    fn check_not_ended(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(crate::Error::Invalid("the mount has ended".into()));
        }
        Ok(())
    }

    /// Runs `f` on some of `all` at a time, until all are done or the mount ends.
    fn for_some<T>(
        &self,
        all: &[T],
        at_once: usize,
        mut f: impl FnMut(&mut State<Volume>, &mut Op<'_>, &T) -> weft_unix::Result<()>,
    ) -> Result<()> {
        for some in all.chunks(at_once) {
            self.check_not_ended()?;
            self.front.change(META_BLOCKS, &[], |st, op| {
                some.iter().try_for_each(|item| f(st, op, item))
            })?;
        }
        Ok(())
    }

    /// Reclaims all, or what can be told from the rest of a damaged volume.
    fn free(&self, leaks: &Leaks) -> Result<()> {
        let Some(first) = leaks.corruption.first() else {
            return match leaks.extent {
                Extent::All => self.free_all(leaks),
                _ => Err(crate::Error::Invalid(
                    "there are too many for one check; weft fsck --repair frees them".into(),
                )),
            };
        };
        for problem in leaks.corruption.iter().take(REPORTED) {
            tracing::error!("damage found by the background check: {problem}");
        }
        let more = leaks.corruption.len().saturating_sub(REPORTED);
        if more > 0 {
            tracing::error!("damage found by the background check: {more} more problems");
        }
        let freed = match leaks.extent {
            Extent::Nothing => 0,
            Extent::Blocks | Extent::All => self.free_blocks(leaks)?,
        };
        tracing::error!(
            "the volume is damaged, so only blocks that belong to no file were freed ({freed}), and no \
             files: unmount it and run weft fsck --repair"
        );
        self.front.lock().format.note_damage(first.to_string());
        Ok(())
    }

    /// Frees the blocks that belong to nothing. Returns their number.
    fn free_blocks(&self, leaks: &Leaks) -> Result<u64> {
        let runs: Vec<(u32, u32)> = leaks.blocks.iter().flat_map(|&run| pieces(run)).collect();
        self.for_some(&runs, 1, |st, op, &(first, len)| {
            st.format.free_blocks(op, first, len, PatchId::DURABLE)
        })?;
        Ok(leaks.blocks.iter().map(|run| u64::from(run.1)).sum())
    }

    fn free_all(&self, leaks: &Leaks) -> Result<()> {
        self.for_some(&leaks.directory_counts, INODES_AT_ONCE, |st, _, &(group, by)| {
            st.format.correct_directory_count(group, by);
            Ok(())
        })?;
        self.delete_nameless(leaks)?;
        let ino = |number: u32| Ino(u64::from(number));
        self.for_some(&leaks.parents, 1, |st, op, &(dir, found, expected)| {
            st.correct_parent(op, ino(dir), ino(found), ino(expected)).map(drop)
        })?;
        if !(leaks.directories.is_empty() && leaks.parents.is_empty()) {
            // The counts are lowered only after what they count is gone.
            self.front.engine().sync()?;
        }
        self.for_some(&leaks.excess_links, INODES_AT_ONCE, |st, op, &(ino, by)| {
            // It is the same inode still: with this count none can have been removed.
            st.lower_excess(op, Ino(u64::from(ino)), by)
        })?;
        self.for_some(&leaks.sectors, INODES_AT_ONCE, |st, op, &(ino, by)| {
            let Some(node) = still_there(st, op, leaks, ino)? else { return Ok(()) };
            node.inode.blocks_512 = node.inode.blocks_512.saturating_add_signed(by);
            st.write_node(op, Ino(u64::from(ino)), &[]).map(drop)
        })?;
        self.for_some(&leaks.sizes, INODES_AT_ONCE, |st, op, &(ino, found, size)| {
            let Some(node) = still_there(st, op, leaks, ino)? else { return Ok(()) };
            if node.inode.size_bytes != found {
                return Ok(());
            }
            node.inode.size_bytes = size;
            node.epoch += 1;
            st.write_node(op, Ino(u64::from(ino)), &[]).map(drop)
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
        let blocks = self.free_blocks(leaks)?;
        // Last, as it may find no space.
        let adopted = leaks.nameless.iter().try_for_each(|&number| -> Result<()> {
            self.check_not_ended()?;
            Ok(self.front.adopt(ino(number))?)
        });
        self.front.engine().sync()?;
        if let Err(error) = adopted {
            self.check_not_ended()?;
            return Err(crate::Error::Invalid(format!(
                "directories without a name could not be moved to lost+found ({error}); everything else \
                 was freed, and the next mount tries again"
            )));
        }
        let mut st = self.front.lock();
        if st.format.damage.is_none() {
            self.clean.store(true, Ordering::Relaxed);
            st.format.sb.state -= SbState::ERROR;
        }
        drop(st);
        if let Some(said) = summary(leaks, blocks) {
            tracing::warn!("the volume was not unmounted: {said}");
        }
        Ok(())
    }

    /// Deletes the inodes that have lost their last name.
    fn delete_nameless(&self, leaks: &Leaks) -> Result<()> {
        for list in [&leaks.unattached, &leaks.directories] {
            self.for_some(list, 1, |st, op, &ino| st.doom(op, Ino(u64::from(ino))))?;
        }
        Ok(())
    }
}

/// Returns an inode that the view shows, unless it has been removed since (and its number given to
/// another file).
fn still_there<'s>(
    st: &'s mut State<Volume>,
    op: &mut Op<'_>,
    leaks: &Leaks,
    ino: u32,
) -> weft_unix::Result<Option<&'s mut weft_unix::Node<Volume>>> {
    let seen = leaks.generations.get(&ino).copied();
    match st.load(op, Ino(u64::from(ino))) {
        Ok(node) => Ok(Some(node).filter(|node| Some(node.inode.generation) == seen)),
        Err(weft_unix::Error::Vfs(weft_vfs::Error::Stale(_))) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Says what was reclaimed, if anything was.
fn summary(leaks: &Leaks, blocks: u64) -> Option<String> {
    let inodes = leaks.inodes.len() + leaks.unattached.len() + leaks.directories.len();
    let corrected =
        leaks.excess_links.len() + leaks.sectors.len() + leaks.sizes.len() + leaks.parents.len();
    let parts = [
        (blocks as usize + inodes, format!("freed {blocks} blocks and {inodes} inodes")),
        (corrected, format!("corrected counts and \"..\" of {corrected} inodes")),
        (
            leaks.nameless.len(),
            format!(
                "moved {} directories that were being made or removed to lost+found",
                leaks.nameless.len()
            ),
        ),
        (
            leaks.second_names as usize,
            format!(
                "{} directories that were being renamed have two names (weft fsck --repair removes \
                 one)",
                leaks.second_names
            ),
        ),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|(n, _)| *n > 0).map(|(_, s)| s).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
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
