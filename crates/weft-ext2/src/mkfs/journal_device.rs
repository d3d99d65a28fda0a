//! External journals: a device of its own that starts like a volume, with the feature
//! `journal_dev`, and holds nothing but a log.

use crate::layout::{Features, Incompat, SUPERBLOCK_OFFSET, Superblock};
use crate::{Error, Result};
use weft_block::BlockDevice;
use weft_patch::jbd2;

/// Fewest blocks JBD2 accepts in a journal.
const MIN_BLOCKS: u64 = 1024;

/// Options for making an external journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDeviceOptions {
    /// Block size in bytes: that of the volumes that will use it.
    pub block_bytes: u32,
    /// Its uuid, by which volumes name it; `None`: random.
    pub uuid: Option<[u8; 16]>,
    /// Its name, at most 16 bytes.
    pub label: Vec<u8>,
    /// The uuids of the volumes that use it. (JBD2 allows several; Linux only one.)
    pub users: Vec<[u8; 16]>,
    /// Set to write checksums in its blocks.
    pub checksums: bool,
}

/// Makes an external journal of the whole device; returns its uuid. The old content is lost.
///
/// # Errors
/// [`Error::Invalid`] for sizes that make no journal; device errors.
pub fn format_journal_device(
    device: &dyn BlockDevice,
    options: &JournalDeviceOptions,
) -> Result<[u8; 16]> {
    let block_bytes = options.block_bytes;
    if ![1024, 2048, 4096].contains(&block_bytes) {
        return Err(Error::Invalid(format!(
            "block size {block_bytes} is not 1024, 2048 or 4096 bytes"
        )));
    }
    if options.label.len() > 16 {
        return Err(Error::Invalid("the label is longer than 16 bytes".into()));
    }
    let blocks = device.geometry().len_bytes / u64::from(block_bytes);
    let Some(len_blocks) = u32::try_from(blocks).ok().filter(|_| blocks >= MIN_BLOCKS) else {
        return Err(Error::Invalid(format!(
            "{blocks} blocks are too few or too many for a journal"
        )));
    };
    let uuid = options.uuid.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
    let superblock_at = if block_bytes == 1024 { 2 } else { 1 };
    let features = if options.checksums {
        jbd2::Features::revoke_and_checksums()
    } else {
        jbd2::Features::revoke()
    };
    let journal = jbd2::format_journal_superblock(&jbd2::FormatOptions {
        block_bytes,
        len_blocks,
        superblock_at,
        uuid,
        features,
        users: options.users.clone(),
    })
    .map_err(|e| Error::Invalid(e.to_string()))?;
    let mut volume_name = [0; 16];
    for (to, from) in volume_name.iter_mut().zip(&options.label) {
        *to = *from;
    }
    let log_block_size = block_bytes.trailing_zeros() - 10;
    let head = Superblock {
        blocks: len_blocks,
        first_data_block: u32::from(block_bytes == 1024),
        log_block_size,
        log_frag_size: log_block_size,
        blocks_per_group: block_bytes * 8,
        frags_per_group: block_bytes * 8,
        features: Features { incompat: Incompat::JOURNAL_DEV, ..Features::default() },
        uuid,
        volume_name,
        ..Superblock::default()
    };
    // The log must not hold blocks of an older one, whose numbers might fit.
    device.write_zeroes(0, blocks * u64::from(block_bytes))?;
    device.flush()?;
    device.write_at(&journal, u64::from(superblock_at) * u64::from(block_bytes))?;
    device.flush()?;
    device.write_at(&head.encode(), SUPERBLOCK_OFFSET)?;
    device.flush()?;
    Ok(uuid)
}
