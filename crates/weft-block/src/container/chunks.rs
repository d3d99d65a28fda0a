//! An image in chunks, each raw, zero or compressed: what NDIF and UDIF have in common. Read-only.
//!
//! Invariants: chunks are sorted and do not overlap; what none covers reads as zeroes; a packed
//! chunk has at most [`CHUNK_MAX_BYTES`] unpacked, and its packed bytes are within the file.

use super::{adc, read_range};
use crate::{BlockDevice, Error, Geometry, Result, check_range};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes that a packed chunk may have unpacked; writers use up to 1 MiB.
const CHUNK_MAX_BYTES: u64 = 16 << 20;
/// Unpacked chunks kept, and the most bytes they may have together.
const CACHED_CHUNKS: usize = 16;
const CACHED_BYTES: usize = 32 << 20;

/// The compression of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Zero,
    Raw,
    Adc,
    Zlib,
    Bzip2,
    Lzfse,
    /// An xz stream, which its writers call LZMA.
    Xz,
    /// By its number, and its name if it has one: an error when it is read.
    Unknown(u32, &'static str),
}

/// A chunk of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// Offset and length in the image, in bytes.
    pub start: u64,
    pub len: u64,
    pub packing: Packing,
    /// The offset of its content in the file, in bytes.
    pub at: u64,
    pub packed_len: u64,
}

type Unpacked = Arc<Vec<u8>>;

/// An image in chunks as a device.
pub(super) struct ChunkedImage {
    file: Arc<dyn BlockDevice>,
    structure: &'static str,
    len_bytes: u64,
    chunks: Vec<Chunk>,
    /// By index of the chunk, the one used last at the end.
    cache: Mutex<VecDeque<(usize, Unpacked)>>,
}

impl ChunkedImage {
    /// An image of chunks in `file`; `structure` is what errors call a chunk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the chunks break the invariants.
    pub fn new(
        file: Arc<dyn BlockDevice>,
        structure: &'static str,
        len_bytes: u64,
        mut chunks: Vec<Chunk>,
    ) -> Result<Self> {
        chunks.retain(|chunk| chunk.len > 0);
        chunks.sort_by_key(|chunk| chunk.start);
        let file_bytes = file.geometry().len_bytes;
        let mut end = 0;
        for chunk in &chunks {
            let bad = |problem| Err(Error::Corrupt { structure, offset: chunk.start, problem });
            if chunk.start < end {
                return bad(format!("it overlaps the chunk that ends at {end}"));
            }
            match chunk.start.checked_add(chunk.len) {
                Some(e) if e <= len_bytes => end = e,
                _ => return bad(format!("it reaches past the end of the image at {len_bytes}")),
            }
            let stored = match chunk.packing {
                Packing::Zero | Packing::Unknown(..) => 0,
                Packing::Raw if chunk.packed_len < chunk.len => {
                    return bad(format!("{} bytes stored of {}", chunk.packed_len, chunk.len));
                }
                Packing::Raw => chunk.len,
                _ if chunk.len > CHUNK_MAX_BYTES => {
                    return bad(format!("{} bytes unpacked", chunk.len));
                }
                _ => chunk.packed_len,
            };
            if chunk.at.checked_add(stored).is_none_or(|e| e > file_bytes) {
                return bad(format!(
                    "its {stored} bytes at {} reach past the end of the file at {file_bytes}",
                    chunk.at
                ));
            }
        }
        Ok(Self { file, structure, len_bytes, chunks, cache: Mutex::default() })
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    fn unpacked(&self, index: usize) -> Result<Unpacked> {
        // A panic cannot leave the cache half-changed.
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut cache = lock();
            if let Some(at) = cache.iter().position(|(i, _)| *i == index)
                && let Some(entry) = cache.remove(at)
            {
                let content = Arc::clone(&entry.1);
                cache.push_back(entry);
                return Ok(content);
            }
        }
        let content = Arc::new(self.unpack(&self.chunks[index])?);
        let mut cache = lock();
        cache.push_back((index, Arc::clone(&content)));
        while cache.len() > CACHED_CHUNKS
            || (cache.len() > 1 && cache.iter().map(|(_, c)| c.len()).sum::<usize>() > CACHED_BYTES)
        {
            cache.pop_front();
        }
        Ok(content)
    }

    fn unpack(&self, chunk: &Chunk) -> Result<Vec<u8>> {
        let structure = self.structure;
        let corrupt = |problem: String| Error::Corrupt { structure, offset: chunk.start, problem };
        // A packed chunk that is longer than this is not what any packer makes.
        let most = 2 * chunk.len + (64 << 10);
        let packed = read_range(&*self.file, structure, (chunk.at, chunk.packed_len), most)?;
        let len = usize::try_from(chunk.len).map_err(|e| corrupt(e.to_string()))?;
        let mut content = vec![0; len];
        let done = match chunk.packing {
            Packing::Adc => adc::unpack(&packed, &mut content).map_err(str::to_owned),
            Packing::Zlib => codec::zlib(&packed, &mut content),
            Packing::Bzip2 => codec::bzip2(&packed, &mut content),
            Packing::Lzfse => codec::lzfse(&packed, &mut content),
            Packing::Xz => codec::xz(&packed, &mut content),
            Packing::Zero | Packing::Raw | Packing::Unknown(..) => Err("it is not packed".into()),
        };
        done.map_err(corrupt)?;
        Ok(content)
    }
}

/// The compressions that other crates unpack: a chunk is filled, or the problem told.
#[cfg(feature = "compressed")]
mod codec {
    use std::io::Read;

    fn fill(mut from: impl Read, to: &mut [u8]) -> Result<(), String> {
        from.read_exact(to).map_err(|e| format!("it cannot be unpacked: {e}"))
    }

    pub fn zlib(packed: &[u8], to: &mut [u8]) -> Result<(), String> {
        fill(flate2::read::ZlibDecoder::new(packed), to)
    }

    pub fn bzip2(packed: &[u8], to: &mut [u8]) -> Result<(), String> {
        fill(bzip2::read::BzDecoder::new(packed), to)
    }

    pub fn lzfse(packed: &[u8], to: &mut [u8]) -> Result<(), String> {
        fill(lzfse_rust::LzfseRingDecoder::default().reader(packed), to)
    }

    pub fn xz(packed: &[u8], to: &mut [u8]) -> Result<(), String> {
        // The header may ask for a dictionary of gigabytes; one longer than the longest chunk is
        // of no use, and writers round up.
        const MEMORY_MAX_KIB: u32 = 80 << 10;
        fill(lzma_rust2::XzReader::new_mem_limit(packed, false, MEMORY_MAX_KIB), to)
    }
}

#[cfg(not(feature = "compressed"))]
mod codec {
    fn off() -> Result<(), String> {
        Err("weft was built without the feature `compressed`".into())
    }

    pub fn zlib(_: &[u8], _: &mut [u8]) -> Result<(), String> {
        off()
    }

    pub use zlib as bzip2;
    pub use zlib as lzfse;
    pub use zlib as xz;
}

impl BlockDevice for ChunkedImage {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            read_only: true,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range("read", offset, buf.len() as u64, self.len_bytes)?;
        let mut index = self.chunks.partition_point(|c| c.start + c.len <= offset);
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let chunk = self.chunks.get(index);
            // Up to the chunk, then in it.
            let (piece_end, packing) = match chunk {
                Some(c) if c.start <= at => (c.start + c.len, c.packing),
                Some(c) => (c.start, Packing::Zero),
                None => (self.len_bytes, Packing::Zero),
            };
            let n = usize::try_from(piece_end - at).unwrap_or(usize::MAX).min(rest.len());
            let (piece, tail) = rest.split_at_mut(n);
            let within = chunk.map_or(0, |c| at.saturating_sub(c.start));
            match (packing, chunk) {
                (Packing::Zero, _) | (_, None) => piece.fill(0),
                (Packing::Raw, Some(c)) => self.file.read_at(piece, c.at + within)?,
                (Packing::Unknown(kind, name), Some(c)) => {
                    let what = format!("compression {kind:#x} {name}").trim_end().to_owned();
                    let structure = self.structure;
                    return Err(Error::Unsupported { structure, offset: c.start, what });
                }
                (_, Some(_)) => {
                    let content = self.unpacked(index)?;
                    // Within a chunk of at most CHUNK_MAX_BYTES.
                    let within = within as usize;
                    piece.copy_from_slice(&content[within..within + n]);
                }
            }
            at += n as u64;
            if chunk.is_some_and(|c| at >= c.start + c.len) {
                index += 1;
            }
            rest = tail;
        }
        Ok(())
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
