//! LZ4 compression in frames of a fixed plain length, each with checksums, followed by the seek
//! table of zstd's seekable format: `lz4 -d` reads the stored file.
//!
//! The frame format is `doc/lz4_Frame_format.md` of the lz4 sources.

use std::io::{Read, Write};
use std::sync::Arc;

use lz4_flex::frame::{BlockMode, FrameDecoder, FrameEncoder, FrameInfo};

use super::seek_table::{self, FRAME_MAX_BYTES, Found, FrameFormat, ReadAt, Splitter};
use crate::parameters::StageInfo;
use crate::store::Store;
use crate::{Error, Frame, FrameCodec, Result, Shape, Stream, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "lz4",
    summary: "compresses with LZ4: less than zstd, and faster",
    parameters: &[("frame", "bytes compressed together, 4K to 8M (256K)")],
    make: |p, _| {
        let frame_bytes = p.bytes("frame", 4 << 10..=8 << 20, 256 << 10)? as usize;
        Ok(Arc::new(Lz4 { frame_bytes }))
    },
}];

#[derive(Debug)]
struct Lz4 {
    frame_bytes: usize,
}

impl Transform for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Framed(self)
    }
}

impl FrameCodec for Lz4 {
    fn stage(&self) -> &'static str {
        "lz4"
    }

    fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    fn guards(&self) -> bool {
        true
    }

    fn encode(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let info = FrameInfo::new()
            .content_size(Some(plain.len() as u64))
            .content_checksum(true)
            .block_mode(BlockMode::Independent);
        let mut encoder = FrameEncoder::with_frame_info(info, out);
        let result = encoder.write_all(plain).and_then(|()| Ok(encoder.finish()?));
        result.map(|_| ()).map_err(Error::Io)
    }

    fn decode(&self, stored: &[u8], out: &mut [u8]) -> Result<(), String> {
        let mut decoder = FrameDecoder::new(stored);
        decoder.read_exact(out).map_err(|e| e.to_string())?;
        // Reading past the content verifies the checksum.
        match decoder.read(&mut [0]) {
            Ok(0) if decoder.get_ref().is_empty() => Ok(()),
            Ok(_) => Err(format!("decodes to more than {} bytes", out.len())),
            Err(e) => Err(e.to_string()),
        }
    }

    fn finish(&self, frames: &[Frame], out: &mut Vec<u8>) {
        seek_table::append(frames, out);
    }

    fn pad(&self, stored_bytes: u64) -> Option<Vec<u8>> {
        seek_table::pad(stored_bytes)
    }

    fn index(&self, file: &mut dyn Store) -> Result<Option<Vec<Frame>>> {
        seek_table::index(&Format, file).map(Some)
    }

    fn decoder(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Splitter::new(Format)))
    }
}

struct Format;

impl FrameFormat for Format {
    fn stage(&self) -> &'static str {
        "lz4"
    }

    fn frame(&self, at: u64, read: &mut ReadAt<'_>) -> Result<Option<Found>, String> {
        // Magic number, flags, block descriptor, content size, dictionary id, header checksum.
        let mut head = [0; 19];
        let got = read(at, &mut head).map_err(|e| e.to_string())?;
        if got >= 4 && head[..4] != [0x04, 0x22, 0x4D, 0x18] {
            return Err(format!("no LZ4 frame begins at stored byte {at}"));
        }
        let flags = head[4];
        let has = |bit: u8| flags & bit != 0;
        if got >= 5 && flags >> 6 != 1 {
            return Err(format!("an LZ4 frame of unknown version at stored byte {at}"));
        }
        let (size, dictionary) = (8 * u64::from(has(8)), 4 * u64::from(has(1)));
        let mut stored_bytes = 7 + size + dictionary;
        if (got as u64) < stored_bytes {
            return Ok(None);
        }
        let mut content = [0; 8];
        content.copy_from_slice(&head[6..14]);
        let plain_bytes = has(8).then(|| u64::from_le_bytes(content));
        loop {
            let mut block = [0; 4];
            if read(at + stored_bytes, &mut block).map_err(|e| e.to_string())? < 4 {
                return Ok(None);
            }
            let block = u32::from_le_bytes(block);
            stored_bytes += 4;
            if block == 0 {
                break;
            }
            // The high bit marks a block that is not compressed.
            stored_bytes += u64::from(block & 0x7FFF_FFFF) + 4 * u64::from(has(0x10));
        }
        stored_bytes += 4 * u64::from(has(4));
        Ok(Some(Found { stored_bytes, plain_bytes }))
    }

    fn decode_whole(&self, stored: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut out = Vec::new();
        let mut decoder = FrameDecoder::new(stored).take(FRAME_MAX_BYTES as u64 + 1);
        decoder.read_to_end(&mut out).map_err(|e| e.to_string())?;
        Ok((out.len() <= FRAME_MAX_BYTES).then_some(out))
    }
}
