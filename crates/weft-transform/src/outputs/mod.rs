//! A content-addressed cache of network outputs on disk: the key of an output is a hash of the
//! stored file and of the network. An output is thus reused after a remount, by other mounts, and
//! for copies of the file.
//!
//! The directory belongs to one user alone, because outputs are the contents of files. Any number
//! of processes may share it: an entry is created by renaming, never changed, and verified when it
//! is read ([`entry`]). A *memo* maps a file to its entry as long as inode number, length and times
//! of the file are unchanged; without it the stored file would be hashed at each first open. The
//! least recently used entries are evicted when all entries together exceed the size limit.

mod entry;
mod filling;
mod spans;

use std::collections::HashMap;
use std::fs::{DirBuilder, File, FileTimes, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use blake3::Hash;
use rustix::fs::{FlockOperation, OFlags, flock};

use entry::Checked;
pub(crate) use entry::Entry;
pub(crate) use filling::{End, Filling};
pub(crate) use spans::Spans;

use crate::{Error, Result};

/// The subdirectories of entries, of their checksums, of memos, and of temporary files.
const KEPT: &str = "outputs";
const SUMS: &str = "sums";
const MEMOS: &str = "memos";
const FRESH: &str = "fresh";

/// Maximum number of entries whose verified pieces are remembered; all others are verified again.
const CHECKED_MAX: usize = 4096;

/// A cache directory of network outputs.
#[derive(Debug)]
pub struct OutputCache {
    directory: PathBuf,
    max_bytes: u64,
    made: AtomicU64,
    checked: Mutex<HashMap<Hash, Arc<Checked>>>,
}

impl OutputCache {
    /// Opens the cache in `directory`, which is created if it does not exist; entries are evicted
    /// when their total length exceeds `max_bytes`.
    ///
    /// # Errors
    /// [`Error::Io`], also if the directory belongs to another user, or is accessible to others.
    pub fn open(directory: &Path, max_bytes: u64) -> Result<Self> {
        let refused = |why: &str| {
            Error::Io(io::Error::other(format!("output cache {}: {why}", directory.display())))
        };
        for part in [KEPT, SUMS, MEMOS, FRESH] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory.join(part));
            made.map_err(|e| refused(&e.to_string()))?;
        }
        let found = std::fs::symlink_metadata(directory)?;
        if !found.is_dir() || !is_own(&found) || found.mode() & 0o077 != 0 {
            return Err(refused("not a directory that only this user can open (mode 700)"));
        }
        let this = Self {
            directory: directory.to_owned(),
            max_bytes,
            made: AtomicU64::new(0),
            checked: Mutex::default(),
        };
        this.sweep();
        Ok(this)
    }

    fn path(&self, part: &str, hash: &Hash) -> PathBuf {
        self.directory.join(part).join(hash.to_hex().as_str())
    }

    /// Returns the output with a key, if it exists and is intact: all of it was verified, now or
    /// before.
    pub(crate) fn get(&self, key: &Hash) -> Option<Entry> {
        let file = open_own(&self.path(KEPT, key))?;
        // The access time orders the eviction.
        let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
        let sums = open_own(&self.path(SUMS, key));
        match sums.map(|sums| Entry::open(file, sums, key, self.checked(key, None))) {
            Some(Ok(Some(entry))) if entry.check().is_ok() => Some(entry),
            _ => {
                self.discard(key);
                None
            }
        }
    }

    /// Returns the verified pieces of an entry, after replacing them by `known` if given.
    fn checked(&self, key: &Hash, known: Option<Checked>) -> Arc<Checked> {
        let mut all = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CHECKED_MAX && !all.contains_key(key) {
            all.clear();
        }
        match known {
            Some(known) => {
                let known = Arc::new(known);
                all.insert(*key, known.clone());
                known
            }
            None => all.entry(*key).or_default().clone(),
        }
    }

    /// Removes a damaged entry.
    pub(crate) fn discard(&self, key: &Hash) {
        tracing::warn!("output cache: {} is damaged, and removed", key.to_hex());
        let _ = std::fs::remove_file(self.path(KEPT, key));
        let _ = std::fs::remove_file(self.path(SUMS, key));
    }

    /// Returns the key recorded for the attributes of a file, which `looks` is a hash of.
    pub(crate) fn memo(&self, looks: &Hash) -> Option<Hash> {
        let mut text = String::new();
        open_own(&self.path(MEMOS, looks))?.take(65).read_to_string(&mut text).ok()?;
        Hash::from_hex(text).ok()
    }

    /// Records a key for the attributes of a file.
    pub(crate) fn note(&self, looks: &Hash, key: &Hash) -> io::Result<()> {
        self.put(key.to_hex().as_bytes(), &self.path(MEMOS, looks))
    }

    /// Writes a small file atomically.
    fn put(&self, content: &[u8], at: &Path) -> io::Result<()> {
        let (mut file, path) = self.fresh()?;
        let put =
            io::Write::write_all(&mut file, content).and_then(|()| std::fs::rename(&path, at));
        put.inspect_err(|_| drop(std::fs::remove_file(&path)))
    }

    /// Begins to add an output.
    pub(crate) fn begin(&self) -> io::Result<Filling> {
        let (file, path) = self.fresh()?;
        // A single output must not evict all others.
        Ok(Filling::new(file, path, self.max_bytes / 4))
    }

    /// Creates a temporary file, locked as long as it is open.
    fn fresh(&self) -> io::Result<(File, PathBuf)> {
        let nr = self.made.fetch_add(1, Ordering::Relaxed);
        let tag = getrandom::u64().map_err(|e| io::Error::other(e.to_string()))?;
        let path = self.directory.join(FRESH).join(format!("{tag:016x}-{nr}"));
        let file =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok((file, path))
    }

    /// Adds an output of `len_bytes` bytes under its key.
    pub(crate) fn keep(&self, filling: &Filling, len_bytes: u64, key: &Hash) -> io::Result<()> {
        let (sums, checked) = entry::seal(&filling.file, len_bytes, key)?;
        self.put(&sums, &self.path(SUMS, key))?;
        std::fs::rename(&filling.path, self.path(KEPT, key))?;
        self.checked(key, Some(checked));
        self.evict();
        Ok(())
    }

    /// Evicts the least recently used entries until the rest is within the limit, and removes
    /// checksums and memos whose entry is gone.
    fn evict(&self) {
        let mut all: Vec<(SystemTime, u64, PathBuf)> = files(&self.directory.join(KEPT))
            .filter_map(|(path, found)| Some((found.accessed().ok()?, found.len(), path)))
            .collect();
        let mut total: u64 = all.iter().map(|(_, len, _)| len).sum();
        if total <= self.max_bytes {
            return;
        }
        all.sort();
        for (_, len, path) in all {
            if total <= self.max_bytes {
                break;
            }
            if std::fs::remove_file(path).is_ok() {
                total -= len;
            }
        }
        let key_of_sums = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
        let key_of_memo = |path: &Path| std::fs::read_to_string(path).ok();
        let gone = |key: Option<String>| {
            let key = key.and_then(|key| Hash::from_hex(key).ok());
            key.is_none_or(|key| !self.path(KEPT, &key).exists())
        };
        for (path, _) in files(&self.directory.join(SUMS)) {
            if gone(key_of_sums(&path)) {
                let _ = std::fs::remove_file(path);
            }
        }
        for (path, _) in files(&self.directory.join(MEMOS)) {
            if gone(key_of_memo(&path)) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Removes the temporary files of processes that ended early.
    fn sweep(&self) {
        for (path, _) in files(&self.directory.join(FRESH)) {
            let free = open_own(&path)
                .is_some_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
            if free {
                let _ = std::fs::remove_file(path);
            }
        }
        self.evict();
    }
}

fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Opens a regular file of this user for reading.
fn open_own(path: &Path) -> Option<File> {
    let no_links = OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_links).open(path).ok()?;
    file.metadata().is_ok_and(|found| found.is_file() && is_own(&found)).then_some(file)
}

/// Returns the regular files in a directory.
fn files(directory: &Path) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .filter(|(_, found)| found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(cache: &OutputCache, name: &str, data: &[u8]) -> Hash {
        let key = blake3::hash(name.as_bytes());
        let mut filling = cache.begin().expect("begun");
        let len = data.len() as u64;
        assert_eq!(filling.take(0, data, true), Some(End::Whole(len)));
        cache.keep(&filling, len, &key).expect("kept");
        key
    }

    fn content(entry: &Entry) -> io::Result<Vec<u8>> {
        let mut all = vec![0; entry.len_bytes() as usize + 10];
        let got = entry.read_at(0, &mut all)?;
        all.truncate(got);
        Ok(all)
    }

    #[test]
    fn outputs_are_found_by_their_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = OutputCache::open(&dir.path().join("c"), 10 << 20).expect("a cache");
        let data: Vec<u8> = (0..700_000_u32).map(|n| (n / 3) as u8).collect();
        for (name, len) in [("a", 0), ("b", 1), ("c", entry::PIECE_BYTES), ("d", data.len())] {
            let key = kept(&cache, name, &data[..len]);
            // Another mount finds it too.
            let other = OutputCache::open(&dir.path().join("c"), 10 << 20).expect("a cache");
            let entry = other.get(&key).expect("there");
            assert!(content(&entry).expect("read") == data[..len]);
            let mut piece = [0; 50];
            let at = len as u64 / 2;
            let got = entry.read_at(at, &mut piece).expect("read");
            assert!(piece[..got] == data[at as usize..len.min(at as usize + 50)]);
        }
        assert!(cache.get(&blake3::hash(b"e")).is_none());
        let (looks, key) = (blake3::hash(b"looks"), blake3::hash(b"d"));
        assert!(cache.memo(&looks).is_none());
        cache.note(&looks, &key).expect("noted");
        assert_eq!(cache.memo(&looks), Some(key));
        assert_eq!(files(&cache.directory.join(FRESH)).count(), 0);
    }

    /// A damaged byte anywhere is never read, and a truncated entry is discarded.
    #[test]
    fn damage_is_never_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = OutputCache::open(&dir.path().join("c"), 10 << 20).expect("a cache");
        let key = kept(&cache, "a", b"some output");
        let parts = [KEPT, SUMS].map(|part| cache.path(part, &key));
        let whole = parts.clone().map(|path| std::fs::read(path).expect("there"));
        let put = |nr: usize, content: &[u8]| {
            for (path, content) in parts.iter().zip(&whole) {
                std::fs::write(path, content).expect("written");
            }
            std::fs::write(&parts[nr], content).expect("written");
        };
        for (nr, content_there) in whole.iter().enumerate() {
            for at in 0..content_there.len() {
                let mut bad = content_there.clone();
                bad[at] ^= 0x10;
                for damaged in [&bad[..], &content_there[..at]] {
                    put(nr, damaged);
                    let entry = cache.get(&key);
                    assert!(entry.is_none(), "{nr}: byte {at}");
                }
            }
        }
        // An entry copied to another key is not valid either.
        put(0, &whole[0]);
        let other = blake3::hash(b"other");
        for part in [KEPT, SUMS] {
            std::fs::copy(cache.path(part, &key), cache.path(part, &other)).expect("copied");
        }
        assert!(cache.get(&other).is_none() && cache.get(&key).is_some());
    }

    /// The file is handed out, and read, only if all of it was verified and has not changed since.
    #[test]
    fn what_was_not_checked_is_not_given_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = OutputCache::open(&dir.path().join("c"), 10 << 20).expect("a cache");
        let data = vec![7; 3 * entry::PIECE_BYTES + 5];
        let key = kept(&cache, "a", &data);
        assert!(cache.get(&key).expect("there").whole_file().is_some(), "made here");
        let other = OutputCache::open(&dir.path().join("c"), 10 << 20).expect("a cache");
        let entry = other.get(&key).expect("there");
        assert!(entry.whole_file().is_some(), "all of it was read");
        assert!(other.get(&key).expect("there").whole_file().is_some(), "remembered");
        // Damage that preserves the times is found when the piece is read, and by the next open.
        let path = cache.path(KEPT, &key);
        let times = File::open(&path).expect("there").metadata().expect("known").modified();
        let mut bad = data.clone();
        bad[data.len() - 1] ^= 1;
        std::fs::write(&path, &bad).expect("written");
        let set = FileTimes::new().set_modified(times.expect("a time"));
        File::options().write(true).open(&path).expect("there").set_times(set).expect("set");
        let mut part = vec![0; 2 * entry::PIECE_BYTES];
        entry.read_at(0, &mut part).expect("this part is right");
        entry.read_at(2 * entry::PIECE_BYTES as u64, &mut part).expect_err("damaged");
        std::fs::write(&path, &data[1..]).expect("written");
        assert!(entry.whole_file().is_none(), "changed since");
        assert!(other.get(&key).is_none());
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = OutputCache::open(&dir.path().join("c"), 50_000).expect("a cache");
        let age = |key: &Hash, secs| {
            let time = SystemTime::now() - std::time::Duration::from_secs(secs);
            let file = File::open(cache.path(KEPT, key)).expect("there");
            file.set_times(FileTimes::new().set_accessed(time)).expect("aged");
        };
        let old: Vec<Hash> = (0..6)
            .map(|nr| {
                let key = kept(&cache, &format!("old {nr}"), &[nr; 7000]);
                age(&key, 1000 - u64::from(nr));
                cache.note(&key, &key).expect("noted");
                key
            })
            .collect();
        assert!(cache.get(&old[0]).is_some(), "used again");
        kept(&cache, "new", &[9; 12_000]);
        let there: Vec<bool> = old.iter().map(|key| cache.get(key).is_some()).collect();
        assert_eq!(there, [true, false, true, true, true, true]);
        assert!(cache.memo(&old[1]).is_none() && cache.memo(&old[2]).is_some());
        assert_eq!(files(&cache.directory.join(SUMS)).count(), 6, "as many as there are outputs");
        let mut long = cache.begin().expect("begun");
        assert_eq!(long.take(0, &[0; 13_000], true), Some(End::TooLong));
    }

    #[test]
    fn the_directory_is_this_users_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("c");
        OutputCache::open(&path, 1 << 20).expect("made");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("opened up");
        let refused = OutputCache::open(&path, 1 << 20).expect_err("open to others").to_string();
        assert!(refused.contains("mode 700"), "{refused}");
    }
}
