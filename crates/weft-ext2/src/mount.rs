//! Opening a volume, and leaving it clean.

#[cfg(doc)]
use crate::Error;
use crate::Result;
use crate::heal::Healing;
use crate::layout::State as SbState;
use crate::superblock;
use crate::volume::{Volume, now_secs};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_block::{BlockDevice, SnapshotDevice};
use weft_patch::{Engine, Options as EngineOptions, Policy};
use weft_unix::{Atime, Orphans as _, UnixFs};
use weft_vfs::{FileSystem, Layer};

/// Groups up to which all bitmaps are read after a crash, so that all counts are right at once.
const MAX_GROUPS_READ: u32 = 4096;

/// Blocks of metadata that a step of cutting an orphan may change.
const CUT_META_BLOCKS: u32 = 64;

/// A mounted ext2 or ext3 volume.
pub struct Ext2 {
    front: Arc<UnixFs<Volume>>,
    device: Arc<dyn BlockDevice>,
    healing: Healing,
    /// The volume was clean when it was opened, or is now.
    clean: Arc<AtomicBool>,
}

impl fmt::Debug for Ext2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ext2").field(&self.front).finish()
    }
}

/// Options for opening a volume.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Refuse all changes, and change nothing (but for a journal that must be replayed).
    pub read_only: bool,
    /// Options of the engine, its commit policy among them.
    pub engine: EngineOptions,
    /// The condition under which reading changes access times.
    pub atime: Atime,
    /// Inodes kept in memory, if not as many as [`weft_unix`] keeps by default.
    pub inodes_in_memory: Option<usize>,
    /// Do not look in the background for blocks and inodes that a crash has leaked.
    pub no_healing: bool,
    /// The mount point, written to the superblock for people to read.
    pub mount_point: Option<String>,
    /// The device of its journal, for a volume made with one beside it.
    pub journal: Option<Arc<dyn BlockDevice>>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("read_only", &self.read_only)
            .field("engine", &self.engine)
            .field("atime", &self.atime)
            .field("inodes_in_memory", &self.inodes_in_memory)
            .field("mount_point", &self.mount_point)
            .field("journal", &self.journal.is_some())
            .finish()
    }
}

impl Ext2 {
    /// Opens the volume on a device: replays its journal if needed, deletes orphaned inodes, and
    /// marks it as in use. Read-only, it writes nothing: the journal is replayed in memory.
    ///
    /// A volume with unknown read-only-compatible features is opened read-only.
    ///
    /// # Errors
    /// [`Error::NotExt2`], [`Error::Corrupt`], [`Error::Incompatible`], [`Error::Device`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let mut sb = superblock::read(&*device)?;
        let unknown = sb.features.unknown_ro_compat();
        let mut read_only = options.read_only || device.geometry().read_only;
        if !unknown.is_empty() && !read_only {
            tracing::warn!("opened read-only for its features {}", unknown.join(", "));
            read_only = true;
        }
        let mut device = device;
        let journal = options.journal.as_ref();
        if let Some(replayed) = crate::journal::replay(&device, &sb, journal, read_only)? {
            device = replayed;
            sb = superblock::read(&*device)?;
        }
        let was_clean = sb.state.contains(SbState::VALID) && !sb.state.contains(SbState::ERROR);
        // The background check for leaks reads a frozen view.
        let freezable = (!was_clean && !read_only && !options.no_healing)
            .then(|| Arc::new(SnapshotDevice::new(Arc::clone(&device))));
        let device = freezable.as_ref().map_or(device, |d| Arc::clone(d) as Arc<dyn BlockDevice>);
        let device_bytes = device.geometry().len_bytes;
        let block_bytes = sb.block_bytes();
        let mut engine_options = options.engine;
        if read_only {
            engine_options.policy = Policy::Soft;
        }
        let engine = if matches!(engine_options.policy, Policy::Journal(_)) {
            crate::journal::engine(&device, &mut sb, options.journal.as_ref(), engine_options)?
        } else {
            Engine::new(Arc::clone(&device), block_bytes, engine_options)?
        };
        let vol = Volume::load(&mut engine.begin(0)?, sb, device_bytes)?;
        let front = UnixFs::new(engine, Arc::clone(&device), vol, read_only, options.atime)?;
        if let Some(max) = options.inodes_in_memory {
            front.keep_inodes(max);
        }
        let (front, clean) = (Arc::new(front), Arc::new(AtomicBool::new(was_clean)));
        let fs = Self { front, device, healing: Healing::default(), clean };
        if !read_only {
            fs.mark_in_use(was_clean, options.mount_point.as_deref())?;
            if fs.front.lock().format.sb.last_orphan != 0 {
                fs.recover_orphans()?;
            }
        }
        if let Some(device) = freezable {
            // Nothing is dirty, and no caller has the volume yet: it does not change meanwhile.
            fs.front.engine().sync()?;
            fs.healing.start(&fs.front, &fs.clean, &device);
        }
        Ok(Arc::new(fs))
    }

    fn mark_in_use(&self, was_clean: bool, mount_point: Option<&str>) -> Result<()> {
        let journaled = matches!(self.front.policy(), Policy::Journal(_));
        self.front.change_only(16, &[], |st, op| {
            let vol = &mut st.format;
            if !was_clean && vol.geometry.groups <= MAX_GROUPS_READ {
                vol.load_all_bitmaps(op)?;
            }
            let sb = &mut vol.sb;
            if !journaled {
                sb.state -= SbState::VALID;
            }
            sb.mount_count = sb.mount_count.saturating_add(1);
            sb.mount_time = now_secs();
            sb.write_time = sb.mount_time;
            if let Some(path) = mount_point {
                sb.last_mounted = [0; 64];
                let n = path.len().min(63);
                if let (Some(to), Some(from)) =
                    (sb.last_mounted.get_mut(..n), path.as_bytes().get(..n))
                {
                    to.copy_from_slice(from);
                }
            }
            // A volume in use must not look clean once anything else has changed.
            vol.write_sb(op, &[])?;
            Ok(())
        })?;
        self.front.engine().sync()?;
        Ok(())
    }

    /// Deletes the orphans of the last mount: those without names, and of the others the part past
    /// their length.
    fn recover_orphans(&self) -> Result<()> {
        let mut to_cut = Vec::new();
        {
            let mut op = self.front.engine().begin(0)?;
            let mut st = self.front.lock();
            for orphan in st.format.read_orphans(&mut op) {
                to_cut.extend(Volume::is_half_cut(&orphan).then_some(orphan.ino));
                st.take_orphan(orphan);
            }
        }
        for ino in to_cut {
            while !self.front.change_only(CUT_META_BLOCKS, &[], |st, op| {
                let size = st.node(ino)?.inode.size_bytes;
                st.truncate_step(op, ino, size)
            })? {}
            self.front.change_only(8, &[], |st, op| {
                st.format.remove_orphan(op, &mut st.nodes, ino)?;
                st.write_node(op, ino, &[])?;
                Ok(())
            })?;
        }
        self.front.reap();
        self.front.change_only(2, &[], |st, op| {
            let vol = &mut st.format;
            if vol.sb.last_orphan != 0 {
                vol.sb.last_orphan = 0;
                vol.write_last_orphan(op)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Makes everything durable and marks the volume clean (as clean as it was found).
    fn close(&self) -> Result<()> {
        self.healing.stop();
        let unchanged = self.is_read_only() && self.damage().is_none();
        self.front.close(|vol, op| {
            vol.refresh_counts();
            if vol.damage.is_some() {
                vol.sb.state |= SbState::ERROR;
            } else if self.clean.load(Ordering::Relaxed) {
                vol.sb.state |= SbState::VALID;
            }
            vol.sb.write_time = now_secs();
            vol.write_sb(op, &[])?;
            Ok(())
        })?;
        if !unchanged && matches!(self.front.policy(), Policy::Journal(_)) {
            // The log is empty now, and everything in its place.
            crate::journal::set_recover(&*self.device, false)?;
        }
        Ok(())
    }

    /// The blocks of the journal inode in order, as the volume has them.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no journal inside the volume, or it has holes.
    pub fn journal_blocks(device: &Arc<dyn BlockDevice>) -> Result<Vec<u64>> {
        crate::journal::journal_inode_blocks(device, &superblock::read(&**device)?)
    }

    /// Reports whether a background check was started, as the volume was not unmounted. It may have
    /// ended by now.
    #[must_use]
    pub fn is_being_checked(&self) -> bool {
        self.healing.is_started()
    }

    /// Waits until the background check that follows a crash is done, if there is one.
    pub fn finish_healing(&self) {
        self.healing.wait();
    }

    /// Returns the number of inodes in memory.
    #[must_use]
    pub fn inodes_in_memory(&self) -> usize {
        self.front.lock().nodes.len()
    }

    /// The engine under the volume: counters, policy.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        self.front.engine()
    }

    /// Reports whether the volume refuses changes: it was opened read-only, has features that only
    /// allow that, or damage was found since.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.front.is_read_only()
    }

    /// Returns the description of the first damage found since the volume was opened, if there is
    /// any.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.front.damage()
    }
}

impl Layer for Ext2 {
    fn below(&self) -> &dyn FileSystem {
        &*self.front
    }

    fn without_waiting(&self, call: &mut dyn FnMut()) -> bool {
        self.front.without_waiting(call)
    }

    fn unmount(&self) -> weft_vfs::Result<()> {
        Ok(self.close()?)
    }
}
