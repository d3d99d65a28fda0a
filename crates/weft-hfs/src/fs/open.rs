//! Opening a volume and leaving it clean; making one.

use super::cut::CutDevice;
use super::node::State;
use super::store::{OpStore, engine_error};
use super::{Hfs, Raw};
use crate::layout::{Attributes, BLOCK_BYTES, EPOCH_1904_SECS, MDB_BLOCK};
use crate::store::{Bare, Device};
use crate::volume::Volume;
use crate::{Error, Permissions, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, Overlay};
use weft_patch::{Engine, JournalMode, Options as EngineOptions, Policy};
use weft_vfs::Time;

/// How to open a volume.
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
    /// Under the `Async` policy let the trees be written in no order either, which a power cut does not
    /// leave whole: for those who prove that they would notice.
    pub unordered_trees: bool,
    /// Seconds that local time is ahead of UTC: HFS keeps local time.
    pub utc_offset_secs: i32,
    /// What the time is, for volumes that shall come out the same; `None`: the system's clock.
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

/// The time now, as the volume keeps dates: seconds since 1904 in a local time that is so many
/// seconds ahead of UTC.
#[must_use]
pub fn unix_now(utc_offset_secs: i32) -> u32 {
    let secs = Time::now().secs + EPOCH_1904_SECS + i64::from(utc_offset_secs);
    u32::try_from(secs.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
}

/// Makes right what a crash has left on a volume that was not unmounted, by ordered writes: it can
/// be interrupted too.
fn recover(device: &Arc<dyn BlockDevice>, utc_offset_secs: i32, read_only: bool) -> Result<()> {
    let options =
        EngineOptions { policy: Policy::Soft, background: false, ..EngineOptions::default() };
    let engine = Engine::new(Arc::clone(device), BLOCK_BYTES as u32, options)
        .map_err(|e| engine_error(&e))?;
    let (mut volume, done) = {
        let mut op = engine.begin(0).map_err(|e| engine_error(&e))?;
        let mut s = OpStore::new(&mut op, &engine, &**device, (0, 0));
        let mut volume = Volume::open(&mut s, Raw(&**device).len_blocks())?;
        if volume.mdb().attributes.contains(Attributes::INCONSISTENT) {
            if read_only {
                return Ok(());
            }
            let what = "the volume is marked as inconsistent: fsck must repair it first";
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
        volume.recover_rest(&mut OpStore::new(&mut op, &engine, &**device, (0, 0)), done)?
    };
    if done.changes() > 0 {
        tracing::info!("recovered the volume, which was not unmounted: {done}");
    }
    engine.shutdown().map_err(|e| engine_error(&e))
}

/// A device in memory over one that is only read, on which the volume can be opened: recovered, or
/// as it is where that fails, or repaired where not even that can be read. Adds to `damage` what
/// was wrong.
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
        damage.push(format!("the volume was not unmounted, and could not be set right: {failed}"));
        return Ok(as_it_is);
    }
    let repaired = over();
    match crate::fsck::repair(&*repaired) {
        Ok(_) if Volume::open(&mut Bare::new(Raw(&*repaired)), blocks).is_ok() => {
            damage.push(format!("it is shown as a repair would leave it: {failed}"));
            Ok(repaired)
        }
        _ => Err(failed),
    }
}

/// The engine's options for an order of writes.
///
/// Nodes of the trees hold records of many files, and splits and merges move them: a node that is
/// written before the one that took its records over takes files away that were synced long ago. So
/// the trees keep their order in `async`, too; what has none there is file data.
fn ordered(mut options: EngineOptions) -> EngineOptions {
    if options.policy == Policy::Async {
        options.policy = Policy::Soft;
    }
    options
}

impl Hfs {
    /// Opens the volume on a device. One that was not unmounted is recovered first: by its journal
    /// if it has one, else by a pass over its trees.
    ///
    /// To be read only, a volume is opened as far as it can be: one that cannot be recovered as it
    /// is, one with a damaged tree as a repair would leave it, one whose image is cut as far as
    /// that goes. [`Hfs::damage`] tells of it.
    ///
    /// # Errors
    /// [`Error::NotHfs`], [`Error::Corrupt`], [`Error::Device`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let read_only = options.read_only || device.geometry().read_only;
        let mut damage = Vec::new();
        // What must be recovered is recovered in memory if nothing may be written.
        let device: Arc<dyn BlockDevice> = if read_only {
            let device = match CutDevice::around(&device) {
                Some(cut) => {
                    damage.push(cut.what());
                    Arc::new(cut) as Arc<dyn BlockDevice>
                }
                None => device,
            };
            salvaged(&device, &options, &mut damage)?
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
            Volume::open(&mut OpStore::new(&mut op, &engine, &*device, (0, 0)), blocks)?
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
            // A volume in use must not look clean once anything else has changed.
            fs.engine.sync().map_err(|e| engine_error(&e))?;
        }
        Ok(Arc::new(fs))
    }

    /// Writes deferred metadata and makes everything durable.
    pub(super) fn do_sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        // Few at a time, that others are not held up and a journal has room.
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
