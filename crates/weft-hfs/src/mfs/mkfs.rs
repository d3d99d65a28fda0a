//! Making an empty volume.

use super::layout::{ALLOC_MAX, BLOCK_BYTES, Map, Mdb, VOLUME_NAME_MAX_BYTES};
use super::volume::Volume;
use weft_block::BlockDevice;
use weft_vfs::{Error, Result};

/// The smallest and the largest volume, in blocks of 512 bytes: a volume below 20 KiB has no use,
/// and block numbers of the volume information have 16 bits.
const BLOCKS: std::ops::RangeInclusive<u64> = 40..=65_535;

/// The parameters of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsOptions {
    /// The volume's name: 1 to 27 bytes of MacRoman.
    pub name: Vec<u8>,
    /// The date of creation, in seconds since 1904, local time.
    pub created: u32,
    /// Blocks of the directory; `None` for the Macintosh's number.
    pub directory_blocks: Option<u16>,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self { name: b"Untitled".to_vec(), created: 0, directory_blocks: None }
    }
}

/// Makes an empty volume on a whole device, laid out as the Macintosh does: 1 KiB allocation blocks
/// as long as 12 bits count them, a directory of 12 blocks on 400 KB and 24 on more, the last two
/// blocks for the copy of the master directory block.
///
/// # Errors
/// [`Error::Invalid`] for a size or a name that MFS does not allow; [`Error::ReadOnly`],
/// [`Error::Io`].
pub fn mkfs(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<()> {
    let geometry = device.geometry();
    let blocks = geometry.len_bytes / BLOCK_BYTES as u64;
    if !BLOCKS.contains(&blocks) {
        return Err(Error::Invalid("an MFS volume has 20 KiB to 32 MiB"));
    }
    if !(1..=VOLUME_NAME_MAX_BYTES).contains(&options.name.len()) {
        return Err(Error::Invalid("an MFS volume's name has 1 to 27 bytes"));
    }
    let blocks = blocks as u16;
    let directory_blocks = options.directory_blocks.unwrap_or(match blocks {
        ..=200 => 4,
        201..=800 => 12,
        _ => 24,
    });
    // The smallest allocation block that 12 bits can count and whose map fits two blocks, so that
    // it has a copy.
    let plan = (1..=64).map(|kib: u16| {
        let alloc_start = 4 + directory_blocks;
        let sectors = 2 * kib;
        let alloc_blocks = blocks.saturating_sub(alloc_start + 2) / sectors;
        (alloc_start, sectors, alloc_blocks)
    });
    let fits = |&(_, _, n): &(u16, u16, u16)| {
        n <= ALLOC_MAX && Map::bytes_for(n) + super::layout::MAP_OFFSET <= 2 * BLOCK_BYTES
    };
    let Some((alloc_start, sectors, alloc_blocks)) = plan.into_iter().find(fits) else {
        return Err(Error::Invalid("no allocation block is large enough for that many"));
    };
    if directory_blocks == 0 || alloc_blocks == 0 {
        return Err(Error::Invalid("the directory leaves no room for files, or has none"));
    }
    let alloc_block_bytes = u32::from(sectors) * BLOCK_BYTES as u32;
    let volume = Volume {
        mdb: Mdb {
            created: options.created,
            backed_up: 0,
            attributes: 0,
            files: 0,
            directory_start: 4,
            directory_blocks,
            alloc_blocks,
            alloc_block_bytes,
            clump_bytes: 8 * alloc_block_bytes,
            alloc_start,
            next_number: 1,
            free_blocks: alloc_blocks,
            name: options.name.clone(),
        },
        map: Map::new(Vec::new(), alloc_blocks),
        files: Vec::new(),
        raw: Vec::new(),
        tails: Vec::new(),
        loose: Vec::new(),
        damage: Vec::new(),
    };
    if geometry.read_only {
        return Err(Error::ReadOnly);
    }
    let zero = |at: u64, len: u64| {
        device
            .write_zeroes(at, len)
            .map_err(|e| Error::Io { errno: e.errno(), message: e.to_string() })
    };
    // Clears the structures by which another format would be recognised: boot blocks, its
    // superblocks, its last blocks.
    let len_bytes = geometry.len_bytes;
    zero(0, len_bytes.min(64 << 10))?;
    zero(super::volume::copy_offset(len_bytes), len_bytes - super::volume::copy_offset(len_bytes))?;
    volume.write(device)
}
