//! One output on disk: a file that holds only the output, so that the kernel can read it directly,
//! and beside it a file of its checksums.
//!
//! ```text
//! hashes                      BLAKE3 of each piece of 128 KiB, the last one shorter: 32 bytes each
//! length of the output        8 bytes, the lowest first
//! magic                       "weftsum1"
//! hash of key, hashes, length 32 bytes
//! ```
//!
//! An entry is valid only if these checksums are correct and all of its pieces match their hashes,
//! which is verified before the first piece is served; each piece is verified again when it is
//! read. A verified piece stays verified as long as length and modification time of the file do not
//! change.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use blake3::{Hash, Hasher};

/// Bytes of a piece, which has its own hash.
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

/// The verified pieces of an output: kept beyond the time that the output is open.
#[derive(Debug, Default)]
pub(super) struct Checked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Length and modification time of the file before the first piece was read.
    of: Option<Stamp>,
    pieces: Vec<bool>,
    /// The number of pieces not yet verified.
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

    /// Discards the verified pieces if the file has changed.
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

/// Returns the length of piece `nr` of an output, in bytes.
fn piece_bytes(len_bytes: u64, nr: u64) -> usize {
    let left = len_bytes.saturating_sub(nr * PIECE_BYTES as u64);
    usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES)
}

/// Sets the length of an output's file. Returns the content of its checksum file, and all its
/// pieces as verified.
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
    /// Opens the entry in a file, by its checksums; returns `None` if they do not match this key,
    /// or the entry is incomplete.
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

    /// Verifies the pieces that are not yet verified. This happens before any piece is served, so
    /// that no reader meets damage halfway through the output.
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

    /// Returns true if this process has verified every piece of the output, and its file has not
    /// changed since.
    pub(crate) fn is_whole(&self) -> bool {
        let right = self.checked.look(&self.file).is_ok() && self.checked.state().left == 0;
        right && self.file.metadata().is_ok_and(|found| found.len() == self.len_bytes)
    }

    /// Returns the file of the output, if all of it is verified.
    pub(crate) fn whole_file(&self) -> Option<OwnedFd> {
        self.is_whole().then(|| self.file.try_clone().ok().map(OwnedFd::from))?
    }

    /// Reads from the output, as from a file. Fails if the file cannot be read, or is damaged.
    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = buf.len().min(left);
        let mut scratch = Vec::new();
        let mut done = 0;
        while done < want {
            let at = offset + done as u64;
            let nr = at / PIECE_BYTES as u64;
            let (start, len) = (nr * PIECE_BYTES as u64, piece_bytes(self.len_bytes, nr));
            // The difference is below the length of a piece.
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
