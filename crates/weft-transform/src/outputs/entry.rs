//! One output on disk: a file that is the output and nothing else, so that the kernel can read it for
//! others, and beside it one that says what it must be.
//!
//! ```text
//! hashes                      BLAKE3 of each piece of 128 KiB, the last one shorter: 32 bytes each
//! length of the output        8 bytes, the lowest first
//! magic                       "weftsum1"
//! hash of key, hashes, length 32 bytes
//! ```
//!
//! It counts only if these sums are right, and all of its pieces have their hashes, which is found out
//! before the first of them is served; and each piece is looked at again when it is read. What was found right once is right as long as length and time
//! of change of the file stay the same.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blake3::{Hash, Hasher};

/// Bytes with a hash of their own.
pub(super) const PIECE_BYTES: usize = 128 << 10;
const HASH_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"weftsum1";
const FOOTER_BYTES: u64 = (8 + MAGIC.len() + HASH_BYTES) as u64;

/// An output that can be read.
#[derive(Debug)]
pub(crate) struct Entry {
    file: File,
    len_bytes: u64,
    hashes: Vec<[u8; HASH_BYTES]>,
    checked: Arc<Checked>,
}

/// Which pieces of an output were found right: kept longer than the output is open.
#[derive(Debug, Default)]
pub(super) struct Checked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the file looked like before the first of them was read.
    of: Option<Stamp>,
    pieces: Vec<bool>,
    /// How many are missing.
    left: u64,
}

type Stamp = (u64, SystemTime);

fn stamp(file: &File) -> io::Result<Stamp> {
    let found = file.metadata()?;
    Ok((found.len(), found.modified()?))
}

impl Checked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew if the file looks different.
    fn look(&self, file: &File) -> io::Result<()> {
        let now = stamp(file)?;
        let mut state = self.state();
        if state.of != Some(now) {
            let left = pieces(now.0);
            let none = vec![false; usize::try_from(left).unwrap_or_default()];
            *state = State { of: Some(now), pieces: none, left };
        }
        Ok(())
    }

    fn has(&self, nr: u64) -> bool {
        let state = self.state();
        usize::try_from(nr).is_ok_and(|nr| state.pieces.get(nr) == Some(&true))
    }

    fn add(&self, nr: u64) {
        let mut state = self.state();
        let piece = usize::try_from(nr).ok().and_then(|nr| state.pieces.get_mut(nr));
        if piece.is_some_and(|piece| !std::mem::replace(piece, true)) {
            state.left -= 1;
        }
    }
}

fn pieces(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(PIECE_BYTES as u64)
}

fn footer_hash(key: &Hash, hashes: &[u8], len_bytes: u64) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(key.as_bytes()).update(hashes).update(&len_bytes.to_le_bytes());
    hasher.finalize()
}

/// The length of piece `nr` of an output.
fn piece_bytes(len_bytes: u64, nr: u64) -> usize {
    let left = len_bytes.saturating_sub(nr * PIECE_BYTES as u64);
    usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES)
}

/// Gives the file of an output its length. What its sums are, and that all of it is right.
pub(super) fn seal(file: &File, len_bytes: u64, key: &Hash) -> io::Result<(Vec<u8>, Checked)> {
    file.set_len(len_bytes)?;
    let checked = Checked::default();
    checked.look(file)?;
    let mut sums = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    for nr in 0..pieces(len_bytes) {
        let piece = &mut piece[..piece_bytes(len_bytes, nr)];
        file.read_exact_at(piece, nr * PIECE_BYTES as u64)?;
        sums.extend_from_slice(blake3::hash(piece).as_bytes());
        checked.add(nr);
    }
    let hash = footer_hash(key, &sums, len_bytes);
    sums.extend_from_slice(&len_bytes.to_le_bytes());
    sums.extend_from_slice(&MAGIC);
    sums.extend_from_slice(hash.as_bytes());
    Ok((sums, checked))
}

impl Entry {
    /// The entry in a file, by its sums; `None` if it is not one with this key, or not whole.
    pub(super) fn open(
        file: File,
        sums: File,
        key: &Hash,
        checked: Arc<Checked>,
    ) -> io::Result<Option<Self>> {
        let len_bytes = file.metadata()?.len();
        let hashes_bytes = pieces(len_bytes).saturating_mul(HASH_BYTES as u64);
        let sums_bytes = hashes_bytes.saturating_add(FOOTER_BYTES);
        if sums.metadata()?.len() != sums_bytes {
            return Ok(None);
        }
        let mut all = Vec::new();
        sums.take(sums_bytes).read_to_end(&mut all)?;
        let Some((hashes, footer)) = usize::try_from(hashes_bytes)
            .ok()
            .filter(|_| all.len() as u64 == sums_bytes)
            .map(|at| all.split_at(at))
        else {
            return Ok(None);
        };
        let hash = footer_hash(key, hashes, len_bytes);
        let want = [&len_bytes.to_le_bytes()[..], &MAGIC, hash.as_bytes()].concat();
        if footer != want {
            return Ok(None);
        }
        checked.look(&file)?;
        let hashes = hashes.chunks_exact(HASH_BYTES).filter_map(|h| h.try_into().ok()).collect();
        Ok(Some(Self { file, len_bytes, hashes, checked }))
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Reads what was not found right yet: before any of it is served, so that nobody who is in the
    /// middle of it learns of damage further on.
    pub(super) fn check(&self) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        for nr in 0..pieces(self.len_bytes) {
            if !self.checked.has(nr) {
                let piece = &mut piece[..piece_bytes(self.len_bytes, nr)];
                self.piece(nr, nr * PIECE_BYTES as u64, piece)?;
            }
        }
        Ok(())
    }

    /// True if this process has verified every piece of the output, and its file has not changed since.
    pub(crate) fn is_whole(&self) -> bool {
        let right = self.checked.look(&self.file).is_ok() && self.checked.state().left == 0;
        right && self.file.metadata().is_ok_and(|found| found.len() == self.len_bytes)
    }

    /// Its file, if it is whole.
    pub(crate) fn whole_file(&self) -> Option<OwnedFd> {
        self.is_whole().then(|| self.file.try_clone().ok().map(OwnedFd::from))?
    }

    /// Reads as a file does. An error if it cannot be read, or is damaged.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = buf.len().min(left);
        let mut scratch = Vec::new();
        let mut done = 0;
        while done < want {
            let at = offset + done as u64;
            let nr = at / PIECE_BYTES as u64;
            let (start, len) = (nr * PIECE_BYTES as u64, piece_bytes(self.len_bytes, nr));
            // Within a piece.
            let skip = (at - start) as usize;
            let take = (len - skip).min(want - done);
            if take == len {
                self.piece(nr, start, &mut buf[done..done + len])?;
            } else {
                scratch.resize(len, 0);
                self.piece(nr, start, &mut scratch)?;
                buf[done..done + take].copy_from_slice(&scratch[skip..skip + take]);
            }
            done += take;
        }
        Ok(done)
    }

    fn piece(&self, nr: u64, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, start)?;
        let want = usize::try_from(nr).ok().and_then(|nr| self.hashes.get(nr));
        if want.is_some_and(|want| blake3::hash(into).as_bytes() == want) {
            self.checked.add(nr);
            return Ok(());
        }
        Err(io::Error::other(format!("byte {start}: not what was written")))
    }
}
