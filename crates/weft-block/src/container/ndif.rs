//! NDIF, the images of DiskCopy 6: chunks in the data fork, and where they belong in the resource
//! `bcem` 128.
//!
//! Apple did not publish the format; its fields are those that other readers have found out. Of the
//! compressions only ADC is described anywhere. KenCode, which Disk Copy 6.0 used, and those of
//! other programs are known by their numbers alone (Aaru has them so): they are errors that name
//! them.

use super::chunks::{Chunk, ChunkedImage, Packing};
use super::{be32, resource};
use crate::{BlockDevice, Error, Result};
use std::sync::Arc;

const STRUCTURE: &str = "NDIF block map";
const HEADER_BYTES: usize = 128;

/// The image in `data`, and its name, if the resource fork describes one.
pub(super) fn open(
    data: &Arc<dyn BlockDevice>,
    fork: Option<Arc<dyn BlockDevice>>,
) -> Result<Option<(ChunkedImage, Vec<u8>)>> {
    let Some(fork) = fork else { return Ok(None) };
    let maps = resource::of_type(&*fork, *b"bcem")?;
    let map = maps.iter().find(|(id, _)| *id == 128).or(maps.first());
    let Some((_, map)) = map else { return Ok(None) };
    let corrupt = |problem: &str| {
        Err(Error::Corrupt { structure: STRUCTURE, offset: 0, problem: problem.into() })
    };
    let unsupported =
        |what: &str| Err(Error::Unsupported { structure: STRUCTURE, offset: 0, what: what.into() });
    let Some((header, entries)) = map.split_at_checked(HEADER_BYTES) else {
        return corrupt("it is shorter than its header");
    };
    if be32(header, 84) != 0 || maps.len() > 1 {
        return unsupported("an image in several files");
    }
    if be32(header, 116) != 0 {
        return unsupported("an encrypted image");
    }
    let name = header[5..5 + usize::from(header[4]).min(63)].to_vec();
    let sectors = u64::from(be32(header, 68));
    let base = u64::from(be32(header, 76));
    let count = usize::try_from(be32(header, 124)).unwrap_or(usize::MAX);
    if entries.len() / 12 < count {
        return corrupt("it ends before its last chunk");
    }
    let mut chunks: Vec<Chunk> = Vec::new();
    for entry in entries.chunks_exact(12).take(count) {
        let sector = u64::from(be32(entry, 0) >> 8);
        // Each chunk goes on to where the next one begins.
        if let Some(last) = chunks.last_mut() {
            match (sector * 512).checked_sub(last.start) {
                Some(len) => last.len = len,
                None => return corrupt("its chunks are not in order"),
            }
        }
        let packing = match entry[3] {
            0xff => break,
            0 => Packing::Zero,
            2 => Packing::Raw,
            0x83 => Packing::Adc,
            other => Packing::Unknown(
                other.into(),
                match other {
                    0x80 => "(KenCode)",
                    0x81 => "(RLE)",
                    0x82 => "(LZH)",
                    0xf0 => "(StuffIt, of ShrinkWrap)",
                    _ => "",
                },
            ),
        };
        chunks.push(Chunk {
            start: sector * 512,
            len: (sectors * 512).saturating_sub(sector * 512),
            packing,
            at: base + u64::from(be32(entry, 4)),
            packed_len: be32(entry, 8).into(),
        });
    }
    let image = ChunkedImage::new(Arc::clone(data), "NDIF chunk", sectors * 512, chunks)?;
    Ok(Some((image, name)))
}
