//! An open MFS volume: one directory, files with two forks.
//!
//! The resource fork is the extended attribute `user.com.apple.ResourceFork`, Finder information
//! `user.com.apple.FinderInfo` (32 bytes, of which MFS keeps 16), type and creator also
//! `user.hfs.type` and `user.hfs.creator`. A locked file shows as one without write permission.

use super::state::{FIRST_INO, File, State, engine_error};
use super::volume::Volume;
use crate::Permissions;
use crate::macroman::{name_from_unix, name_to_unix};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_block::{BlockDevice, Overlay};
use weft_patch::{Engine, Op, Options as EngineOptions, Policy};
use weft_vfs::{
    Attr, DirCursor, Entry, Error, FileKind, FileSystem, HandleTable, Ino, NAME_MAX_BYTES,
    OpenFlags, Opened, Result, Time,
};

/// The inode number of the directory.
pub(super) const ROOT: u64 = 1;
/// The indexes of the forks in [`File`].
pub(super) const DATA: usize = 0;
pub(super) const RESOURCE: usize = 1;
/// 1970-01-01 in seconds since 1904-01-01.
const UNIX_EPOCH: i64 = 2_082_844_800;

/// Options for opening a volume.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Refuse all changes, and write nothing.
    pub read_only: bool,
    /// Options of the engine. A journal is neither needed nor used: a volume of this size is
    /// recovered in milliseconds.
    pub engine: EngineOptions,
    /// Seconds by which local time is ahead of UTC: MFS keeps local time.
    pub utc_offset_secs: i32,
    /// A fixed time, for reproducible volumes; `None`: the system's clock.
    pub clock: Option<Time>,
    /// The owner and the permissions of files and folders for which the volume stores none.
    pub permissions: Permissions,
}

/// An open MFS volume.
pub struct Mfs {
    pub(super) state: Mutex<State>,
    pub(super) handles: Mutex<HandleTable<OpenFlags>>,
    pub(super) engine: Arc<Engine>,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) read_only: bool,
    pub(super) damage: Vec<String>,
    pub(super) options: OpenOptions,
}

impl fmt::Debug for Mfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mfs").field("read_only", &self.read_only).finish_non_exhaustive()
    }
}

impl Mfs {
    /// Opens the volume on a device. Inconsistencies left by a power cut are corrected; a volume
    /// with other damage is opened for reading only.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no volume; [`Error::Invalid`] for a journal policy;
    /// [`Error::Io`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        if matches!(options.engine.policy, Policy::Journal(_)) {
            return Err(Error::Invalid("an MFS volume needs no journal"));
        }
        let mut volume = Volume::read(&*device)?;
        let wanted = options.read_only || device.geometry().read_only || volume.mdb.is_locked();
        let read_only = wanted || !volume.damage.is_empty();
        let damage = std::mem::take(&mut volume.damage);
        for problem in &damage {
            tracing::warn!("{problem}");
        }
        if !volume.loose.is_empty() {
            tracing::info!("corrected after a crash: {}", volume.loose.join("; "));
        }
        let device: Arc<dyn BlockDevice> =
            if read_only { Arc::new(Overlay::new(device)) } else { device };
        // Deleted entries after the last one must not reappear when a block gets other entries.
        let as_left = volume.loose.is_empty() && volume.tails.is_empty();
        if !read_only && !as_left {
            volume.write(&*device)?;
            volume = Volume::read(&*device)?;
        }
        let engine =
            Engine::new(Arc::clone(&device), 512, options.engine.clone()).map_err(engine_error)?;
        Ok(Arc::new(Self {
            state: Mutex::new(State::new(volume)),
            handles: Mutex::default(),
            engine,
            device,
            read_only,
            damage,
            options,
        }))
    }

    /// Returns the damage that makes the volume read-only, if any.
    #[must_use]
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Returns true if the volume refuses changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the engine under the volume.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the volume's name, in MacRoman.
    #[must_use]
    pub fn volume_name(&self) -> Vec<u8> {
        self.lock().mdb.name.clone()
    }

    /// Makes everything durable, updates the copy of the master directory block and stops the
    /// engine. Open files are closed.
    ///
    /// # Errors
    /// Any write error.
    pub fn close(&self) -> Result<()> {
        if !self.read_only {
            self.change(|state, op| {
                let all: Vec<u64> = state.files.keys().copied().collect();
                for ino in all {
                    let file = state.file_mut(ino)?;
                    (file.refs, file.opens) = (0, 0);
                    state.release(op, ino)?;
                }
                Ok(())
            })?;
            self.sync()?;
        }
        self.engine.shutdown().map_err(engine_error)?;
        if !self.read_only {
            let state = self.lock();
            let len_blocks = self.device.geometry().len_bytes / 512;
            if let Some(block) = state.mdb.copy_block(len_blocks) {
                let at = block * 512;
                let head = [&state.mdb.encode()[..], state.map.bytes()].concat();
                let io =
                    |e: weft_block::Error| Error::Io { errno: e.errno(), message: e.to_string() };
                self.device.write_at(&head, at).map_err(io)?;
                self.device.flush().map_err(io)?;
            }
        }
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // An operation that panics leaves a state that is valid to write at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn handles(&self) -> MutexGuard<'_, HandleTable<OpenFlags>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one operation that changes the volume.
    pub(super) fn change<R>(
        &self,
        f: impl FnOnce(&mut State, &mut Op<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        let mut state = self.lock();
        // Without a journal the bound has no meaning.
        let mut op = self.engine.begin(0).map_err(engine_error)?;
        state.settle(&op);
        f(&mut state, &mut op)
    }

    pub(super) fn now(&self) -> u32 {
        self.to_mac(self.options.clock.unwrap_or_else(Time::now))
    }

    pub(super) fn to_mac(&self, time: Time) -> u32 {
        let secs = time.secs + UNIX_EPOCH + i64::from(self.options.utc_offset_secs);
        u32::try_from(secs.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
    }

    fn to_unix(&self, date: u32) -> Time {
        let secs = i64::from(date) - UNIX_EPOCH - i64::from(self.options.utc_offset_secs);
        Time { secs, nanos: 0 }
    }

    pub(super) fn attr(&self, ino: u64, file: &File) -> Attr {
        let entry = &file.entry;
        let allocated =
            u64::from(entry.data.allocated_bytes) + u64::from(entry.resource.allocated_bytes);
        Attr {
            ino: Ino(ino),
            kind: FileKind::Regular,
            perm: self.options.permissions.perm(FileKind::Regular, entry.locked),
            nlink: u32::from(file.gone.is_none()),
            uid: self.options.permissions.uid,
            gid: self.options.permissions.gid,
            rdev: 0,
            size_bytes: entry.data.len_bytes.into(),
            blocks_512: allocated / 512,
            io_bytes: 4096,
            atime: self.to_unix(entry.modified),
            mtime: self.to_unix(entry.modified),
            ctime: self.to_unix(entry.modified),
            btime: Some(self.to_unix(entry.created)),
        }
    }

    pub(super) fn root_attr(&self, state: &State) -> Attr {
        let created = self.to_unix(state.mdb.created);
        Attr {
            ino: Ino(ROOT),
            kind: FileKind::Directory,
            perm: self.options.permissions.perm(FileKind::Directory, false),
            nlink: 2,
            uid: self.options.permissions.uid,
            gid: self.options.permissions.gid,
            rdev: 0,
            size_bytes: u64::from(state.mdb.directory_blocks) * 512,
            blocks_512: state.mdb.directory_blocks.into(),
            io_bytes: 4096,
            atime: created,
            mtime: created,
            ctime: created,
            btime: Some(created),
        }
    }

    pub(super) fn entry(&self, state: &mut State, ino: u64) -> Result<Entry> {
        let file = state.file_mut(ino)?;
        file.refs += 1;
        Ok(Entry { attr: self.attr(ino, file), generation: 0 })
    }

    /// Returns the names from a cursor on. They are copied, as the receiver may call back.
    pub(super) fn names_from(&self, cursor: DirCursor) -> Vec<(u64, Vec<u8>)> {
        let state = self.lock();
        let all = state.named().filter(|(ino, _)| *ino >= cursor.0);
        all.map(|(ino, file)| (ino, shown(ino, file))).collect()
    }

    pub(super) fn of_file(ino: Ino) -> Result<u64> {
        if ino.0 == ROOT { Err(Error::IsADirectory) } else { Ok(ino.0) }
    }

    pub(super) fn of_root(&self, ino: Ino) -> Result<()> {
        if ino.0 == ROOT {
            return Ok(());
        }
        self.lock().file(ino.0)?;
        Err(Error::NotADirectory)
    }

    /// Converts and checks the name of a new file.
    pub(super) fn new_name(name: &[u8]) -> Result<Vec<u8>> {
        weft_vfs::check_name(name)?;
        let name = name_from_unix(name).map_err(|e| match e {
            crate::macroman::Error::Dots => Error::Exists,
            _ => Error::Invalid("MacRoman has no such name"),
        })?;
        if name.contains(&0) {
            return Err(Error::Invalid("a name has no NUL"));
        }
        if name.len() > 255 { Err(Error::NameTooLong) } else { Ok(name) }
    }

    pub(super) fn find(state: &State, name: &[u8]) -> Result<u64> {
        if name.len() > NAME_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let by_name = name_from_unix(name).ok().and_then(|name| state.find(&name));
        // A name that is too long for Unix is listed in a shortened form, with its number.
        let cut = || state.named().find(|(ino, f)| shown(*ino, f) == name).map(|(ino, _)| ino);
        by_name.or_else(cut).ok_or(Error::NotFound)
    }

    pub(super) fn open_handle(&self, ino: u64, flags: OpenFlags) -> Result<Opened> {
        if flags.contains(OpenFlags::WRITE) && self.read_only {
            return Err(Error::ReadOnly);
        }
        if flags.contains(OpenFlags::TRUNCATE) {
            self.set_len(ino, DATA, 0)?;
        }
        self.lock().file_mut(ino)?.opens += 1;
        let handle = self.handles().open(flags);
        Ok(Opened { handle, keep_cache: true, direct_io: false })
    }
}

/// Returns a file's Unix name. A name of over 255 bytes is cut and ends in the file's number.
pub(super) fn shown(ino: u64, file: &File) -> Vec<u8> {
    let mut name = name_to_unix(&file.entry.name);
    if name.len() > NAME_MAX_BYTES {
        let number = format!("~{}", ino - FIRST_INO);
        let mut keep = NAME_MAX_BYTES - number.len();
        while !name.is_char_boundary(keep) {
            keep -= 1;
        }
        name.truncate(keep);
        name += &number;
    }
    name.into_bytes()
}
