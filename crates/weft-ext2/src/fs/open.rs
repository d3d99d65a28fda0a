//! Opening a volume, and leaving it clean.

use super::heal::Healing;
use super::{Ext2, State};
use crate::layout::{ROOT_INO, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, State as SbState, Superblock};
use crate::volume::Volume;
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use weft_block::{BlockDevice, SnapshotDevice};
use weft_patch::{Engine, Options as EngineOptions, Policy};
use weft_vfs::Time;

/// Groups up to which all bitmaps are read after a crash, so that all counts are right at once.
const MAX_GROUPS_READ: u32 = 4096;

/// When reading a file changes its access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// If it is not newer than the last change, or a day old (as Linux mounts by default).
    #[default]
    Relative,
    /// Never.
    Never,
}

/// How to open a volume.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Refuse all changes, and change nothing (but for a journal that must be replayed).
    pub read_only: bool,
    /// Options of the engine, its commit policy among them.
    pub engine: EngineOptions,
    /// When reading changes access times.
    pub atime: Atime,
    /// Do not look for what a crash has leaked, in the background.
    pub no_healing: bool,
    /// Where it will be mounted: written to the superblock for people to read.
    pub mount_point: Option<String>,
    /// The device of its journal, for a volume made with one beside it.
    pub journal: Option<Arc<dyn BlockDevice>>,
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("read_only", &self.read_only)
            .field("engine", &self.engine)
            .field("atime", &self.atime)
            .field("mount_point", &self.mount_point)
            .field("journal", &self.journal.is_some())
            .finish()
    }
}

fn now_secs() -> u32 {
    u32::try_from(Time::now().secs.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
}

/// Reads and checks a device's superblock.
///
/// # Errors
/// [`Error::NotExt2`], [`Error::Corrupt`], [`Error::Incompatible`], [`Error::Device`].
pub(super) fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut raw = [0; SUPERBLOCK_BYTES];
    if device.geometry().len_bytes < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Err(Error::NotExt2 { found: 0 });
    }
    device.read_at(&mut raw, SUPERBLOCK_OFFSET)?;
    let sb = Superblock::parse(&raw)?;
    sb.check_features()?;
    Ok(sb)
}

impl Ext2 {
    /// Opens the volume on a device: replays its journal if needed, ends the lives of orphans,
    /// and marks it as in use. Read-only, it writes nothing: the journal is replayed in memory.
    ///
    /// A volume with unknown read-only-compatible features is opened read-only.
    ///
    /// # Errors
    /// [`Error::NotExt2`], [`Error::Corrupt`], [`Error::Incompatible`], [`Error::Device`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let mut sb = read_superblock(&*device)?;
        let unknown = sb.features.unknown_ro_compat();
        let mut read_only = options.read_only || device.geometry().read_only;
        if !unknown.is_empty() && !read_only {
            tracing::warn!("opened read-only for its features {}", unknown.join(", "));
            read_only = true;
        }
        let mut device = device;
        let journal = options.journal.as_ref();
        if let Some(replayed) = super::journal::replay(&device, &sb, journal, read_only)? {
            device = replayed;
            sb = read_superblock(&*device)?;
        }
        let was_clean = sb.state.contains(SbState::VALID) && !sb.state.contains(SbState::ERROR);
        // What a crash has leaked is looked for in a frozen view.
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
            super::journal::engine(&device, &mut sb, options.journal.as_ref(), engine_options)?
        } else {
            Engine::new(Arc::clone(&device), block_bytes, engine_options)?
        };
        let vol = Volume::load(&mut engine.begin(0)?, sb, device_bytes)?;
        // Revision 0 has no feature that would tell others of longer files.
        let max_file_bytes = match vol.sb.revision {
            0 => u64::from(i32::MAX.unsigned_abs()),
            _ => vol.geometry.max_file_bytes(),
        };
        let fs = Self {
            state: Mutex::new(State::new(vol, engine.policy())),
            engine,
            device,
            block_bytes,
            max_file_bytes,
            read_only: AtomicBool::new(read_only),
            tight: AtomicBool::new(false),
            deletions: RwLock::new(()),
            lazy_crowded: AtomicBool::new(false),
            atime: if read_only { Atime::Never } else { options.atime },
            healing: Healing::default(),
            trimming: Mutex::new(()),
        };
        fs.look(|st, op| {
            st.load_dir(op, ROOT_INO)?;
            st.nodes.values_mut().for_each(|root| root.refs = 1);
            Ok(())
        })?;
        if !read_only {
            fs.mark_in_use(was_clean, options.mount_point.as_deref())?;
            if fs.lock().vol.sb.last_orphan != 0 {
                fs.recover_orphans()?;
            }
        }
        let fs = Arc::new(fs);
        if let Some(device) = freezable {
            // Nothing is dirty and nobody knows the volume yet: it stands still.
            fs.engine.sync()?;
            Healing::start(&fs, &device);
        }
        Ok(fs)
    }

    fn mark_in_use(&self, was_clean: bool, mount_point: Option<&str>) -> Result<()> {
        let journaled = matches!(self.policy(), Policy::Journal(_));
        self.change_inner(16, |st, op| {
            if !was_clean && st.vol.geometry.groups <= MAX_GROUPS_READ {
                st.vol.load_all_bitmaps(op)?;
            }
            let sb = &mut st.vol.sb;
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
            st.was_clean = was_clean;
            st.vol.write_sb(op, &[])?;
            Ok(())
        })?;
        self.engine.sync()?;
        Ok(())
    }

    /// Makes everything durable and marks the volume clean (as clean as it was found).
    pub(super) fn close(&self) -> Result<()> {
        self.healing.stop();
        self.lock().give_up_references();
        self.reap();
        if self.is_read_only() && self.lock().vol.damage.is_none() {
            return Ok(self.engine.shutdown()?);
        }
        self.do_sync()?;
        let damaged = self.lock().vol.damage.is_some();
        // What a sync has made durable must not wait behind the mark.
        self.read_only.store(false, Ordering::Relaxed);
        let marked = self.change_inner(1, |st, op| {
            st.vol.refresh_counts();
            let was_clean = st.was_clean;
            let sb = &mut st.vol.sb;
            if damaged {
                sb.state |= SbState::ERROR;
            } else if was_clean {
                sb.state |= SbState::VALID;
            }
            sb.write_time = now_secs();
            st.vol.write_sb(op, &[])?;
            Ok(())
        });
        self.read_only.store(true, Ordering::Relaxed);
        marked?;
        self.engine.shutdown()?;
        if matches!(self.policy(), Policy::Journal(_)) {
            // The log is empty now, and everything in its place.
            super::journal::set_recover(&*self.device, false)?;
        }
        Ok(())
    }
}
