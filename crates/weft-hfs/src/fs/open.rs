//! Opening, making and closing a volume.

use super::cut::CutDevice;
use super::hfs::Hfs;
use super::node::State;
use super::store::{OpStore, engine_error};
use crate::layout::{Attributes, BLOCK_BYTES, EPOCH_1904_SECS, MDB_BLOCK};
use crate::store::{Bare, Device, Raw};
use crate::volume::{Volume, mdb_by_copy};
use crate::{Error, Permissions, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, Overlay};
use weft_patch::{Engine, JournalMode, Options as EngineOptions, Pending, Policy};
use weft_vfs::Time;

/// Options for opening a volume.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Refuse all changes, and write nothing. A volume that was not unmounted is recovered in
    /// memory.
    pub read_only: bool,
    /// Options of the engine, its commit policy among them.
    pub engine: EngineOptions,
    /// The journal beside the volume, for a journal policy: made if the device is empty. A volume
    /// that has one must be opened with it.
    pub journal: Option<Arc<dyn BlockDevice>>,
    /// Under the `Async` policy, write the trees without order, too. A power cut then damages them.
    /// For tests that must detect such damage.
    pub unordered_trees: bool,
    /// Seconds by which local time is ahead of UTC: HFS keeps local time.
    pub utc_offset_secs: i32,
    /// A fixed time, for reproducible volumes; `None`: the system's clock.
    pub clock: Option<Time>,
    /// The owner and the permissions of files and folders for which the volume stores none.
    pub permissions: Permissions,
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("read_only", &self.read_only)
            .field("engine", &self.engine)
            .field("journal", &self.journal.is_some())
            .finish_non_exhaustive()
    }
}

/// Returns the current time as the volume keeps dates: seconds since 1904 in a local time that is
/// `utc_offset_secs` seconds ahead of UTC.
#[must_use]
pub fn unix_now(utc_offset_secs: i32) -> u32 {
    let secs = Time::now().secs + EPOCH_1904_SECS + i64::from(utc_offset_secs);
    u32::try_from(secs.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
}

/// Recovers a volume that was not unmounted. The writes are ordered: recovery can be interrupted,
/// too.
fn recover(device: &Arc<dyn BlockDevice>, utc_offset_secs: i32, read_only: bool) -> Result<()> {
    let options =
        EngineOptions { policy: Policy::Soft, background: false, ..EngineOptions::default() };
    let engine = Engine::new(Arc::clone(device), BLOCK_BYTES as u32, options)
        .map_err(|e| engine_error(&e))?;
    let (mut volume, done) = {
        let mut op = engine.begin(0).map_err(|e| engine_error(&e))?;
        let mut pending = Pending::default();
        let mut s = OpStore::new(&mut op, &engine, &**device, &mut pending, (0, 0));
        let mut volume = Volume::open(&mut s, Raw(&**device).len_blocks())?;
        if volume.mdb().attributes.contains(Attributes::INCONSISTENT) {
            if read_only {
                return Ok(());
            }
            let what = "the volume is marked as inconsistent: repair it first (fsck --repair)";
            return Err(Error::corrupt("MDB", MDB_BLOCK, what));
        }
        if volume.is_clean() {
            return Ok(());
        }
        volume.set_now(unix_now(utc_offset_secs));
        let done = volume.recover_trees(&mut s)?;
        (volume, done)
    };
    engine.sync().map_err(|e| engine_error(&e))?;
    let done = {
        let mut op = engine.begin(0).map_err(|e| engine_error(&e))?;
        // As the volume is not used any more, its freed blocks need not become available.
        let mut pending = Pending::default();
        let mut s = OpStore::new(&mut op, &engine, &**device, &mut pending, (0, 0));
        volume.recover_rest(&mut s, done)?
    };
    if done.changes() > 0 {
        tracing::info!("recovered the volume, which was not unmounted: {done}");
    }
    engine.shutdown().map_err(|e| engine_error(&e))
}

/// Returns an overlay in memory over a read-only device on which the volume can be opened:
/// recovered, or unchanged if recovery fails, or repaired if the volume cannot be read otherwise.
/// Adds the problems to `damage`.
fn salvaged(
    device: &Arc<dyn BlockDevice>,
    options: &OpenOptions,
    damage: &mut Vec<String>,
) -> Result<Arc<dyn BlockDevice>> {
    let over = || Arc::new(Overlay::new(Arc::clone(device))) as Arc<dyn BlockDevice>;
    // A journal is replayed later, and is all the recovery that is needed.
    if options.journal.is_some() {
        return Ok(over());
    }
    let recovered = over();
    let failed = match recover(&recovered, options.utc_offset_secs, true) {
        Ok(()) => return Ok(recovered),
        Err(e @ (Error::Corrupt { .. } | Error::Device { .. })) => e,
        Err(e) => return Err(e),
    };
    let as_it_is = over();
    let raw = Raw(&*as_it_is);
    let blocks = raw.len_blocks();
    if Volume::open(&mut Bare::new(raw), blocks).is_ok() {
        damage.push(format!("the volume was not unmounted, and recovery failed: {failed}"));
        return Ok(as_it_is);
    }
    let repaired = over();
    match crate::fsck::repair(&*repaired) {
        Ok(_) if Volume::open(&mut Bare::new(Raw(&*repaired)), blocks).is_ok() => {
            damage.push(format!("the volume is shown as a repair would leave it: {failed}"));
            Ok(repaired)
        }
        _ => Err(failed),
    }
}

/// Returns true if a device that begins with no HFS volume has the copy of the header of one at its
/// end, by which it can be read.
#[must_use]
pub fn has_copy_of_header(device: &dyn BlockDevice) -> bool {
    let raw = Raw(device);
    let blocks = raw.len_blocks();
    matches!(mdb_by_copy(&mut Bare::new(raw), blocks), Ok(Some(_)))
}

/// Returns an overlay in memory over a volume whose header is lost or damaged, with the header by
/// its copy; `None` if there is no need for that.
fn with_header(device: &Arc<dyn BlockDevice>) -> Option<Arc<dyn BlockDevice>> {
    let raw = Raw(&**device);
    let blocks = raw.len_blocks();
    let mdb = mdb_by_copy(&mut Bare::new(raw), blocks).ok().flatten()?;
    let mut block = [0; BLOCK_BYTES];
    crate::layout::put(&mut block, 0, &mdb.encode());
    let over = Overlay::new(Arc::clone(device));
    over.write_at(&block, MDB_BLOCK * BLOCK_BYTES as u64).ok()?;
    Some(Arc::new(over))
}

/// Returns the engine's options for ordered writes.
///
/// Nodes of the trees hold records of many files, and splits and merges move them: if a node is
/// written before the one that took over its records, files that were synced long ago are lost. So
/// the trees keep their order in `async`, too; only file data is not ordered there.
fn ordered(mut options: EngineOptions) -> EngineOptions {
    if options.policy == Policy::Async {
        options.policy = Policy::Soft;
    }
    options
}

impl Hfs {
    /// Opens the volume on a device. A volume that was not unmounted is recovered first: by its
    /// journal if it has one, else by a pass over its trees.
    ///
    /// In read-only mode a volume is opened as far as possible: one that cannot be recovered in its
    /// present state, one with a damaged tree as a repair would leave it, one whose image is
    /// truncated up to the end of the image. [`Hfs::damage`] returns the problems.
    ///
    /// # Errors
    /// [`Error::NotHfs`], [`Error::Corrupt`], [`Error::Device`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let read_only = options.read_only || device.geometry().read_only;
        let mut damage = Vec::new();
        // In read-only mode the recovery takes place in memory.
        let device: Arc<dyn BlockDevice> = if read_only {
            let device = match with_header(&device) {
                Some(over) => {
                    damage.push(format!("MDB in block {MDB_BLOCK}: {}", crate::fsck::BY_COPY));
                    over
                }
                None => device,
            };
            let device = match CutDevice::around(&device) {
                Some(cut) => {
                    damage.push(cut.problem());
                    Arc::new(cut) as Arc<dyn BlockDevice>
                }
                None => device,
            };
            salvaged(&device, &options, &mut damage)?
        } else if has_copy_of_header(&*device) {
            let what = format!(
                "{}; the volume can be read, and must be repaired (fsck --repair) before it is \
                 changed",
                crate::fsck::BY_COPY
            );
            return Err(Error::corrupt("MDB", MDB_BLOCK, what));
        } else {
            device
        };
        let journal = options.journal.map(|journal| -> Arc<dyn BlockDevice> {
            if read_only { Arc::new(Overlay::new(journal)) } else { journal }
        });
        let mut engine_options = options.engine;
        if read_only {
            engine_options.policy = Policy::Async;
        }
        let policy = engine_options.policy;
        let journaled = matches!(policy, Policy::Journal(_));
        if engine_options.policy == Policy::Journal(JournalMode::Full) {
            return Err(Error::Invalid("an HFS volume's journal holds no file data".into()));
        }
        if journaled && journal.is_none() {
            return Err(Error::Invalid("a journal policy needs a journal beside the image".into()));
        }
        let replayed = match &journal {
            Some(journal) => super::journal::replay(&device, journal)?,
            None => false,
        };
        if !replayed && !read_only {
            recover(&device, options.utc_offset_secs, read_only)?;
        }
        if !options.unordered_trees {
            engine_options = ordered(engine_options);
        }
        let loose_data = policy == Policy::Async;
        let engine = match (&journal, journaled) {
            (Some(journal), true) => super::journal::engine(&device, journal, engine_options),
            _ => Engine::new(Arc::clone(&device), BLOCK_BYTES as u32, engine_options)
                .map_err(|e| engine_error(&e)),
        }?;
        let blocks = Raw(&*device).len_blocks();
        let volume = {
            let mut op = engine.begin(0).map_err(|e| engine_error(&e))?;
            let mut pending = Pending::default();
            Volume::open(
                &mut OpStore::new(&mut op, &engine, &*device, &mut pending, (0, 0)),
                blocks,
            )?
        };
        let locked = volume.is_locked();
        let geometry = (u64::from(volume.mdb().first_block), volume.mdb().blocks_per_alloc());
        let mut state = State::new(volume);
        state.at_opening = damage;
        let fs = Self {
            state: Mutex::new(state),
            loose_data,
            engine,
            device,
            read_only: AtomicBool::new(false),
            utc_offset_secs: options.utc_offset_secs,
            clock: options.clock,
            geometry,
            permissions: options.permissions,
        };
        if read_only || locked {
            fs.read_only.store(true, Ordering::Relaxed);
            fs.lock().vol.set_read_only(true);
        } else {
            fs.change_once(|st, s| st.vol.mark(s, false).map(|_| ()))?;
            // The mark of a volume in use must be durable before any other change.
            fs.engine.sync().map_err(|e| engine_error(&e))?;
        }
        Ok(Arc::new(fs))
    }

    /// Writes deferred metadata and makes everything durable.
    pub(super) fn do_sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        // A few at a time, so that other operations are not delayed and a journal has room.
        while self.change_once(|st, s| st.vol.tidy(s, 16))? {}
        self.change_once(|st, s| st.vol.store_counts(s))?;
        self.engine.sync().map_err(|e| engine_error(&e))?;
        self.look(|st, s| {
            st.vol.settle(s);
            st.changes.settle(s);
            Ok(())
        })
    }

    /// Makes everything durable and marks the volume as unmounted.
    pub(super) fn close(&self) -> Result<()> {
        if self.is_read_only() && self.lock().damage.is_none() {
            return self.engine.shutdown().map_err(|e| engine_error(&e));
        }
        let nodes: Vec<u32> = {
            let mut st = self.lock();
            st.handles.clear();
            for node in st.nodes.values_mut() {
                node.refs = 0;
                node.opens = 0;
            }
            st.nodes.keys().copied().collect()
        };
        for id in nodes {
            self.end_life(id);
        }
        let damaged = self.lock().damage.is_some();
        if !damaged {
            self.change_once(|st, s| st.vol.settle_next_id(s))?;
            self.do_sync()?;
            self.change_once(|st, s| st.vol.mark(s, true).map(|_| ()))?;
        }
        self.read_only.store(true, Ordering::Relaxed);
        self.engine.shutdown().map_err(|e| engine_error(&e))
    }
}
