//! One output on disk: its bytes, then a hash of each piece of them, then a footer.
//!
//! ```text
//! output                      as long as it is
//! hashes                      BLAKE3 of each piece of 128 KiB, the last one shorter: 32 bytes each
//! length of the output        8 bytes, the lowest first
//! magic                       "weftout1"
//! hash of key, hashes, length 32 bytes
//! ```
//!
//! It counts only if the footer is right, and a piece only if it has its hash: so neither a power
//! cut nor damage needs any other care.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use blake3::{Hash, Hasher};

/// Bytes with a hash of their own.
pub(super) const PIECE_BYTES: usize = 128 << 10;
const HASH_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"weftout1";
const FOOTER_BYTES: u64 = (8 + MAGIC.len() + HASH_BYTES) as u64;

/// An output that can be read.
#[derive(Debug)]
pub(crate) struct Entry {
    file: File,
    len_bytes: u64,
    hashes: Vec<[u8; HASH_BYTES]>,
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

/// Puts what makes an entry of them behind the bytes of an output. Returns the length of the whole.
pub(super) fn seal(file: &File, len_bytes: u64, key: &Hash) -> io::Result<u64> {
    let mut hashes = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    for nr in 0..pieces(len_bytes) {
        let piece = &mut piece[..piece_bytes(len_bytes, nr)];
        file.read_exact_at(piece, nr * PIECE_BYTES as u64)?;
        hashes.extend_from_slice(blake3::hash(piece).as_bytes());
    }
    let hash = footer_hash(key, &hashes, len_bytes);
    let mut end = hashes;
    end.extend_from_slice(&len_bytes.to_le_bytes());
    end.extend_from_slice(&MAGIC);
    end.extend_from_slice(hash.as_bytes());
    file.set_len(len_bytes)?;
    file.write_all_at(&end, len_bytes)?;
    Ok(len_bytes + end.len() as u64)
}

impl Entry {
    /// The entry in a file; `None` if it is not one with this key, or not whole.
    pub(super) fn open(file: File, key: &Hash) -> io::Result<Option<Self>> {
        let all_bytes = file.metadata()?.len();
        let Some(footer_at) = all_bytes.checked_sub(FOOTER_BYTES) else { return Ok(None) };
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut footer, footer_at)?;
        let (len, rest) = footer.split_at(8);
        let (magic, hash) = rest.split_at(MAGIC.len());
        let len_bytes = u64::from_le_bytes(len.try_into().unwrap_or_default());
        let hashes_bytes = pieces(len_bytes).checked_mul(HASH_BYTES as u64);
        if magic != MAGIC || hashes_bytes.and_then(|h| h.checked_add(len_bytes)) != Some(footer_at)
        {
            return Ok(None);
        }
        // No longer than the file.
        let mut hashes = vec![0; (footer_at - len_bytes) as usize];
        file.read_exact_at(&mut hashes, len_bytes)?;
        if footer_hash(key, &hashes, len_bytes).as_bytes() != hash {
            return Ok(None);
        }
        let hashes = hashes.chunks_exact(HASH_BYTES).filter_map(|h| h.try_into().ok()).collect();
        Ok(Some(Self { file, len_bytes, hashes }))
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
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
            return Ok(());
        }
        Err(io::Error::other(format!("byte {start}: not what was written")))
    }
}
