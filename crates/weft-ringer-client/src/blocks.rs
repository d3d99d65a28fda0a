//! The blocks in a client's local store, each in a file named by its hash in a directory of its
//! rnode.
//!
//! ```text
//! own/RNODE/HASH     written here; possibly the only copy
//! copy/RNODE/HASH    fetched from other clients, and promised to be kept
//! cache/RNODE/HASH   fetched from other clients, and removed when room is needed
//! kept/RNODE/HASH    belongs to a conflict that is not settled yet
//! open/NAME          the former content of an open block: a second name of it
//! room/NAME          reserved room for an open block (see `room`)
//! spare              reserved room for directory entries and small files
//! new/N              a temporary file, on its way to one of these
//! ```
//!
//! Two files with the same bytes have two blocks: so a file's blocks are removed without asking
//! about others. A block has its name only when it is whole.
//!
//! Data from the disk is not trusted: no part of a block is returned that was not checked against
//! its hash since the kernel read it (see `verified`).

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_ringer::{Block, BlockHash, ENCRYPTED_OVERHEAD_BYTES, RnodeId, STORED_MAX_BYTES};
use weft_ringer_net::{private, private_dir};
use weft_vfs::host_file;

use super::durable::sync_all;
use super::fetched::{Fetched, Key};
use super::mutex::locked;
use super::room::{Spare, allocate, rounded};
use super::verified::{Stamp, Verified};

/// The local store of a client.
#[derive(Debug)]
pub(super) struct Blocks {
    dir: PathBuf,
    next: AtomicU64,
    fetched: Mutex<Fetched>,
    cache_max_bytes: u64,
    /// Blocks that stay and are not durable yet.
    unsynced: Mutex<Vec<PathBuf>>,
    /// The bytes of the blocks that stay.
    staying_bytes: AtomicU64,
    verified: Verified,
    spare: Spare,
    /// The bytes allocated for each open block.
    reserved: Mutex<HashMap<BlockHash, u64>>,
}

/// The kinds of blocks, in the order in which a block is searched.
const KINDS: [&str; 4] = ["own", "copy", "cache", "kept"];

/// The result of a search for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It is here, and was checked.
    Here,
    Absent,
    /// It is here with other content, or cannot be read.
    Damaged,
}

/// A block that was read to be checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) len_bytes: u64,
    /// A description of the damage, if any.
    pub(super) damage: Option<String>,
}

/// The lengths of all blocks of one kind.
fn bytes_of(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for rnode in fs::read_dir(dir)? {
        for block in fs::read_dir(rnode?.path())? {
            bytes += block?.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// The name of a block.
pub(super) fn hash(bytes: &[u8]) -> BlockHash {
    BlockHash(*blake3::hash(bytes).as_bytes())
}

impl Blocks {
    /// Opens the store in `dir`, and makes it if there is none.
    pub(super) fn open(dir: &Path, cache_max_bytes: u64) -> io::Result<Self> {
        let new = dir.join("new");
        match fs::remove_dir_all(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        for kind in ["own", "copy", "cache", "kept", "open", "room", "new"] {
            private_dir(&dir.join(kind))?;
        }
        let mut fetched = Fetched::default();
        for rnode in fs::read_dir(dir.join("cache"))? {
            let rnode = rnode?;
            let id = rnode.file_name().to_str().and_then(|n| u64::from_str_radix(n, 16).ok());
            let Some(id) = id.filter(|id| *id > 0) else { continue };
            for block in fs::read_dir(rnode.path())? {
                let block = block?;
                if let Some(hash) = block.file_name().to_str().and_then(|name| name.parse().ok()) {
                    fetched.touch((RnodeId(id), hash), Some(block.metadata()?.len()));
                }
            }
        }
        Ok(Self {
            dir: dir.into(),
            next: AtomicU64::new(0),
            fetched: Mutex::new(fetched),
            cache_max_bytes,
            unsynced: Mutex::default(),
            staying_bytes: AtomicU64::new(
                bytes_of(&dir.join("own"))? + bytes_of(&dir.join("copy"))?,
            ),
            verified: Verified::default(),
            spare: Spare::new(dir.join("spare")),
            reserved: Mutex::default(),
        })
    }

    fn rnode_dir(&self, kind: &str, rnode: RnodeId) -> PathBuf {
        self.dir.join(kind).join(format!("{:016x}", rnode.0))
    }

    fn path(&self, kind: &str, rnode: RnodeId, hash: &BlockHash) -> PathBuf {
        self.rnode_dir(kind, rnode).join(hash.to_string())
    }

    fn put(
        &self,
        kind: &str,
        rnode: RnodeId,
        hash: &BlockHash,
        bytes: &[u8],
    ) -> io::Result<PathBuf> {
        let path = self.path(kind, rnode, hash);
        if self.has_whole(&path, rnode, hash) {
            return Ok(path);
        }
        if kind != "cache" {
            self.staying_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let new = self.dir.join("new").join(number.to_string());
        let renamed = self.write_new(&new, bytes).and_then(|()| self.give_name(&new, &path));
        if let Err(e) = renamed {
            let _ = fs::remove_file(&new);
            if kind != "cache" {
                self.staying_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
            }
            return Err(e);
        }
        Ok(path)
    }

    /// Returns true if a block is here and undamaged. The caller, which has it whole, replaces a
    /// damaged one.
    fn has_whole(&self, path: &Path, rnode: RnodeId, name: &BlockHash) -> bool {
        let Ok(file) = File::open(path) else { return false };
        let is_whole = self.check(rnode, name, &file).is_ok();
        if !is_whole && !path.starts_with(self.dir.join("cache")) {
            let was = file.metadata().map_or(0, |found| found.len());
            self.staying_bytes.fetch_sub(was, Ordering::Relaxed);
        }
        is_whole
    }

    fn write_new(&self, new: &Path, bytes: &[u8]) -> io::Result<()> {
        private().write(true).create_new(true).open(new)?.write_all(bytes)
    }

    /// Gives a file the name of a block.
    fn give_name(&self, new: &Path, path: &Path) -> io::Result<()> {
        match fs::rename(new, path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), private_dir)?;
                fs::rename(new, path)
            }
            done => done,
        }
    }

    fn room(&self, name: &BlockHash) -> PathBuf {
        self.dir.join("room").join(name.to_string())
    }

    /// Reserves room in which an open block can be stored when it has `len_bytes`, of at most
    /// `max_bytes`. Does nothing if that much is reserved already.
    ///
    /// # Errors
    /// There is no room.
    /// There is no room.
    pub(super) fn reserve(
        &self,
        name: &BlockHash,
        len_bytes: u64,
        max_bytes: u64,
    ) -> io::Result<()> {
        let overhead_bytes = u64::from(ENCRYPTED_OVERHEAD_BYTES);
        let wanted = len_bytes + overhead_bytes;
        if locked(&self.reserved).get(name).is_some_and(|has| *has >= wanted) {
            return Ok(());
        }
        let has = rounded(wanted, max_bytes + overhead_bytes);
        let file = private().write(true).create(true).truncate(false).open(self.room(name))?;
        if !allocate(&file, 0, has)? {
            // This file system cannot reserve room.
            let _ = fs::remove_file(self.room(name));
        }
        locked(&self.reserved).insert(*name, has);
        Ok(())
    }

    /// Releases the room that was reserved for a block.
    pub(super) fn release(&self, name: &BlockHash) {
        if locked(&self.reserved).remove(name).is_some() {
            let _ = fs::remove_file(self.room(name));
        }
    }

    /// Stores a block that was open, in the room that was reserved for it.
    pub(super) fn put_open(
        &self,
        rnode: RnodeId,
        name: &BlockHash,
        bytes: &[u8],
    ) -> io::Result<BlockHash> {
        let room = self.room(name);
        let file = match OpenOptions::new().write(true).open(&room) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                locked(&self.reserved).remove(name);
                return self.put_own(rnode, bytes);
            }
            Err(e) => return Err(e),
        };
        let hash = hash(bytes);
        let path = self.path("own", rnode, &hash);
        if self.has_whole(&path, rnode, &hash) {
            self.release(name);
            let _ = fs::remove_file(&room);
            return Ok(hash);
        }
        file.write_all_at(bytes, 0)?;
        // Frees the allocated bytes that are not needed.
        file.set_len(bytes.len() as u64)?;
        drop(file);
        self.spare.with(|| self.give_name(&room, &path))?;
        locked(&self.reserved).remove(name);
        self.staying_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        locked(&self.unsynced).push(path);
        Ok(hash)
    }

    /// Reserves the spare room again that was given up when the disk was full.
    pub(super) fn restore_spare(&self) {
        self.spare.restore();
    }

    /// Stores a block that was written here.
    pub(super) fn put_own(&self, rnode: RnodeId, bytes: &[u8]) -> io::Result<BlockHash> {
        let hash = hash(bytes);
        let path = self.put("own", rnode, &hash, bytes)?;
        locked(&self.unsynced).push(path);
        Ok(hash)
    }

    /// Stores a block that was fetched and checked, and makes room for it.
    pub(super) fn put_fetched(
        &self,
        rnode: RnodeId,
        hash: &BlockHash,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.put("cache", rnode, hash, bytes)?;
        locked(&self.fetched).touch((rnode, *hash), Some(bytes.len() as u64));
        self.make_room();
        Ok(())
    }

    /// Removes fetched blocks, the least recently used first, until the rest fits.
    fn make_room(&self) {
        let mut fetched = locked(&self.fetched);
        while fetched.bytes > self.cache_max_bytes && fetched.used.len() > 1 {
            let Some((_, &(rnode, hash))) = fetched.oldest.first_key_value() else { break };
            fetched.remove((rnode, hash));
            let _ = fs::remove_file(self.path("cache", rnode, &hash));
        }
    }

    fn find(&self, rnode: RnodeId, hash: &BlockHash) -> io::Result<Option<File>> {
        for kind in KINDS {
            match File::open(self.path(kind, rnode, hash)) {
                Ok(file) => {
                    if kind == "cache" {
                        locked(&self.fetched).touch((rnode, *hash), None);
                    }
                    return Ok(Some(file));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Fills `buf` from byte `offset` of a block on, if it is here and undamaged.
    pub(super) fn read(
        &self,
        rnode: RnodeId,
        name: &BlockHash,
        offset: u64,
        buf: &mut [u8],
    ) -> io::Result<Found> {
        let Some(file) = self.find(rnode, name)? else { return Ok(Found::Absent) };
        if self.verified.read(rnode, name, &file, offset, buf) {
            return Ok(Found::Here);
        }
        let checked = self.check(rnode, name, &file);
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = checked.as_ref().ok().and_then(|b| b.get(begin..)?.get(..buf.len()));
        match (&checked, part) {
            (_, Some(part)) => {
                buf.copy_from_slice(part);
                Ok(Found::Here)
            }
            (Ok(bytes), None) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("block {name:?} of rnode {rnode} has {} bytes", bytes.len()),
            )),
            (Err(why), _) => {
                tracing::error!("block {name:?} of inode {rnode} is damaged: {why}");
                Ok(Found::Damaged)
            }
        }
    }

    /// Reads all of a file and checks it against its name, a hash; or returns a description of the
    /// damage.
    fn check(&self, rnode: RnodeId, name: &BlockHash, file: &File) -> Result<Vec<u8>, String> {
        let read = Stamp::of(file).and_then(|stamp| Ok((stamp, all_of(file)?)));
        // A read error of the disk is damage as well.
        let (stamp, bytes) = read.map_err(|e| e.to_string())?;
        if hash(&bytes) != *name {
            return Err(format!("hash mismatch: {} bytes", bytes.len()));
        }
        self.verified.remember(rnode, name, stamp);
        Ok(bytes)
    }

    /// Returns a block as stored here, damaged or not; `None` if it is not here.
    pub(super) fn stored(&self, rnode: RnodeId, name: &BlockHash) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.find(rnode, name)? else { return Ok(None) };
        all_of(&file).map(Some)
    }

    /// Returns a whole block, checked; `None` if it is not here, or damaged.
    pub(super) fn whole(&self, rnode: RnodeId, name: &BlockHash) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.find(rnode, name)? else { return Ok(None) };
        match self.check(rnode, name, &file) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(why) => {
                tracing::error!("block {name:?} of inode {rnode} is damaged: {why}");
                Ok(None)
            }
        }
    }

    /// Replaces a block wherever it is damaged here, by `bytes`, which were checked.
    pub(super) fn heal(&self, rnode: RnodeId, name: &BlockHash, bytes: &[u8]) -> io::Result<()> {
        for kind in KINDS {
            let path = self.path(kind, rnode, name);
            let Ok(file) = File::open(&path) else { continue };
            if self.check(rnode, name, &file).is_ok() {
                continue;
            }
            let was = file.metadata().map_or(0, |found| found.len());
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let new = self.dir.join("new").join(number.to_string());
            let healed = self
                .write_new(&new, bytes)
                .and_then(|()| File::open(&new)?.sync_all())
                .and_then(|()| host_file::rename(&new, &path));
            if let Err(e) = healed {
                let _ = fs::remove_file(&new);
                return Err(e);
            }
            if kind == "own" || kind == "copy" {
                self.staying_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                self.staying_bytes.fetch_sub(was, Ordering::Relaxed);
            }
            if kind != "cache" {
                locked(&self.unsynced).push(path);
            }
            tracing::warn!("repaired block {name:?} of inode {rnode}");
        }
        Ok(())
    }

    /// Lists all blocks that are here, with their kinds.
    pub(super) fn all_stored(&self) -> io::Result<Vec<(&'static str, RnodeId, BlockHash)>> {
        let mut all = Vec::new();
        for kind in KINDS {
            for dir in fs::read_dir(self.dir.join(kind))? {
                let dir = dir?;
                let id = dir.file_name().to_str().and_then(|n| u64::from_str_radix(n, 16).ok());
                let Some(id) = id.filter(|id| *id > 0) else { continue };
                // A directory removed meanwhile has no blocks.
                for block in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
                    if let Some(hash) = block.file_name().to_str().and_then(|n| n.parse().ok()) {
                        all.push((kind, RnodeId(id), hash));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Reads one block of a kind from the disk and checks it; `None` if it has gone.
    pub(super) fn check_stored(
        &self,
        kind: &str,
        rnode: RnodeId,
        name: &BlockHash,
    ) -> Option<Checked> {
        let file = File::open(self.path(kind, rnode, name)).ok()?;
        // The page cache would hide damage of the disk.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let checked = self.check(rnode, name, &file);
        let len_bytes = checked.as_ref().map_or(0, |bytes| bytes.len() as u64);
        Some(Checked { len_bytes, damage: checked.err() })
    }

    /// Returns true if a block is here and stays: written here, or promised to be kept.
    pub(super) fn stays(&self, rnode: RnodeId, hash: &BlockHash) -> bool {
        ["own", "copy"].iter().any(|kind| self.path(kind, rnode, hash).exists())
    }

    /// Stores a block, fetched and checked, as a copy that stays; durable after the next
    /// [`sync`](Self::sync).
    pub(super) fn put_copy(
        &self,
        rnode: RnodeId,
        hash: &BlockHash,
        bytes: &[u8],
    ) -> io::Result<()> {
        let path = self.put("copy", rnode, hash, bytes)?;
        locked(&self.unsynced).push(path);
        locked(&self.fetched).remove((rnode, *hash));
        let _ = fs::remove_file(self.path("cache", rnode, hash));
        Ok(())
    }

    /// The rnodes with blocks that stay here, the one that gained a block last at the end.
    pub(super) fn staying(&self) -> io::Result<Vec<RnodeId>> {
        let mut found: HashMap<RnodeId, std::time::SystemTime> = HashMap::new();
        for kind in ["own", "copy"] {
            for dir in fs::read_dir(self.dir.join(kind))? {
                let dir = dir?;
                let id = dir.file_name().to_str().and_then(|n| u64::from_str_radix(n, 16).ok());
                let Some(id) = id.filter(|id| *id > 0) else { continue };
                // A directory removed meanwhile is left out.
                let Ok(since) = dir.metadata().and_then(|m| m.modified()) else { continue };
                let last = found.entry(RnodeId(id)).or_insert(since);
                *last = since.max(*last);
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(id, since)| (*since, *id));
        Ok(found.into_iter().map(|(id, _)| id).collect())
    }

    /// The blocks of an rnode that stay, each with its length in bytes.
    pub(super) fn staying_of(&self, rnode: RnodeId) -> io::Result<BTreeMap<BlockHash, u64>> {
        let mut found = BTreeMap::new();
        for kind in ["own", "copy"] {
            let entries = match fs::read_dir(self.rnode_dir(kind, rnode)) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            for block in entries {
                let block = block?;
                if let Some(hash) = block.file_name().to_str().and_then(|name| name.parse().ok()) {
                    found.insert(hash, block.metadata()?.len());
                }
            }
        }
        Ok(found)
    }

    /// Removes a block of those that stay.
    pub(super) fn remove_staying(&self, rnode: RnodeId, hash: &BlockHash) {
        for kind in ["own", "copy"] {
            self.remove(&self.path(kind, rnode, hash));
            // This succeeds only if it was the last.
            let _ = fs::remove_dir(self.rnode_dir(kind, rnode));
        }
    }

    /// Moves a block of those that stay to the cache.
    pub(super) fn demote(&self, rnode: RnodeId, hash: &BlockHash) -> io::Result<()> {
        for kind in ["own", "copy"] {
            let path = self.path(kind, rnode, hash);
            let len_bytes = match fs::metadata(&path) {
                Ok(found) => found.len(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            private_dir(&self.rnode_dir("cache", rnode))?;
            fs::rename(&path, self.path("cache", rnode, hash))?;
            let _ = fs::remove_dir(self.rnode_dir(kind, rnode));
            self.staying_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
            locked(&self.fetched).touch((rnode, *hash), Some(len_bytes));
        }
        self.make_room();
        Ok(())
    }

    /// The bytes of fetched blocks, which may be removed when room is needed.
    pub(super) fn cached_bytes(&self) -> u64 {
        locked(&self.fetched).bytes
    }

    /// Removes a block that stays.
    fn remove(&self, path: &Path) {
        let len_bytes = fs::metadata(path).map_or(0, |found| found.len());
        if fs::remove_file(path).is_ok() {
            self.staying_bytes.fetch_sub(len_bytes, Ordering::Relaxed);
        }
    }

    /// The bytes of the blocks that stay.
    pub(super) fn staying_bytes(&self) -> u64 {
        self.staying_bytes.load(Ordering::Relaxed)
    }

    /// Keeps a block that was written here for a conflict, even if its file is removed.
    pub(super) fn keep(&self, rnode: RnodeId, hash: &BlockHash) -> io::Result<()> {
        private_dir(&self.rnode_dir("kept", rnode))?;
        let (from, to) = (self.path("own", rnode, hash), self.path("kept", rnode, hash));
        match fs::hard_link(from, &to) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            done => done?,
        }
        // The name in `own` may go, durably, before the kernel writes this one by itself.
        host_file::sync_parent(&to)?;
        host_file::sync_dir(&self.dir.join("kept"))
    }

    /// Keeps the former content of an open block, until it is [sealed](Self::drop_base). `false` if
    /// it is not here.
    pub(super) fn keep_base(
        &self,
        rnode: RnodeId,
        name: &BlockHash,
        hash: &BlockHash,
    ) -> io::Result<bool> {
        let to = self.dir.join("open").join(name.to_string());
        for kind in ["own", "copy", "cache"] {
            match fs::hard_link(self.path(kind, rnode, hash), &to) {
                Ok(()) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Returns the former content of an open block, as stored; `None` if it is damaged or not here.
    pub(super) fn base(
        &self,
        rnode: RnodeId,
        name: &BlockHash,
        base: &Block,
    ) -> io::Result<Option<Vec<u8>>> {
        let kept = match fs::read(self.dir.join("open").join(name.to_string())) {
            Ok(bytes) => Some(bytes).filter(|bytes| hash(bytes) == base.hash),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        kept.map_or_else(|| self.whole(rnode, &base.hash), |kept| Ok(Some(kept)))
    }

    /// Removes the former content of a block, after it was sealed.
    pub(super) fn drop_base(&self, name: &BlockHash) {
        let _ = fs::remove_file(self.dir.join("open").join(name.to_string()));
    }

    /// Removes all former contents and reserved room: no block is open.
    pub(super) fn forget_bases(&self) -> io::Result<()> {
        for kind in ["open", "room"] {
            for left in fs::read_dir(self.dir.join(kind))? {
                fs::remove_file(left?.path())?;
            }
        }
        Ok(())
    }

    /// Removes a block that was kept for a conflict.
    pub(super) fn let_go(&self, rnode: RnodeId, hash: &BlockHash) {
        let _ = fs::remove_file(self.path("kept", rnode, hash));
        let _ = fs::remove_dir(self.rnode_dir("kept", rnode));
    }

    /// Removes the fetched blocks of an rnode.
    pub(super) fn remove_cached(&self, rnode: RnodeId) {
        let cached: Vec<Key> = {
            let fetched = locked(&self.fetched);
            fetched.used.keys().filter(|(id, _)| *id == rnode).copied().collect()
        };
        cached.into_iter().for_each(|key| locked(&self.fetched).remove(key));
        let _ = fs::remove_dir_all(self.rnode_dir("cache", rnode));
    }

    /// Makes all blocks that stay durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        let paths = std::mem::take(&mut *locked(&self.unsynced));
        let result = sync_all(&paths);
        if result.is_err() {
            // None of them counts as durable.
            locked(&self.unsynced).extend(paths);
        }
        result
    }

    /// Space in the file system that the store is in.
    pub(super) fn space(&self) -> io::Result<rustix::fs::StatVfs> {
        rustix::fs::statvfs(&self.dir).map_err(Into::into)
    }
}

/// The bytes of a file that is no longer than a block can be.
fn all_of(file: &File) -> io::Result<Vec<u8>> {
    let len_bytes = file.metadata()?.len().min(u64::from(STORED_MAX_BYTES));
    let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RnodeId = RnodeId(7);

    #[test]
    fn fetched_blocks_are_evicted_and_written_ones_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let blocks = Blocks::open(dir.path(), 250).expect("a store");
        let own = blocks.put_own(A, &[1; 500]).expect("room");
        let names: Vec<_> = (10..14).map(|n| [n; 100]).map(|b| (hash(&b), b)).collect();
        for (name, bytes) in &names[..2] {
            blocks.put_fetched(A, name, bytes).expect("room");
        }
        assert!(blocks.whole(A, &names[0].0).expect("a read").is_some());
        blocks.put_fetched(A, &names[2].0, &names[2].1).expect("room");
        let there = |blocks: &Blocks, name| blocks.whole(A, name).expect("a read").is_some();
        assert!(there(&blocks, &names[0].0), "used last");
        assert!(!there(&blocks, &names[1].0), "the oldest");
        blocks.sync().expect("durable");
        drop(blocks);
        let blocks = Blocks::open(dir.path(), 250).expect("a store");
        assert!(there(&blocks, &own) && there(&blocks, &names[2].0));
        assert_eq!(locked(&blocks.fetched).bytes, 200);
        blocks.remove_cached(A);
        assert!(there(&blocks, &own) && locked(&blocks.fetched).bytes == 0);
        assert_eq!(blocks.staying_bytes(), 500);
        blocks.remove_staying(A, &own);
        assert!(!there(&blocks, &own) && blocks.staying_bytes() == 0);
    }

    #[test]
    fn damaged_block_counts_as_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let blocks = Blocks::open(dir.path(), 0).expect("a store");
        let name = blocks.put_own(A, b"content").expect("room");
        fs::write(blocks.path("own", A, &name), b"contend").expect("damage");
        assert_eq!(blocks.whole(A, &name).expect("a read"), None);
        // A writer that has it whole replaces it.
        assert_eq!(blocks.put_own(A, b"content").expect("room"), name);
        assert_eq!(blocks.whole(A, &name).expect("a read").as_deref(), Some(&b"content"[..]));
        assert_eq!(blocks.staying_bytes(), 7);
        fs::write(blocks.path("own", A, &name), b"contend").expect("damage");
        let open = BlockHash::open(weft_ringer::Incarnation(1), 1);
        blocks.reserve(&open, 7, 100).expect("room");
        assert_eq!(blocks.put_open(A, &open, b"content").expect("room"), name);
        assert_eq!(blocks.whole(A, &name).expect("a read").as_deref(), Some(&b"content"[..]));
        assert_eq!(blocks.staying_bytes(), 7);
    }
}
