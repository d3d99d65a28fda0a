//! The blocks of a commit: descriptor blocks, escaped copies, revoke blocks, the commit block.

use super::descriptor::{self, ESCAPE, Tag, tags_per_block};
use super::revoke::{self, records_per_block};
use super::superblock::Features;
use super::{CommitTime, Error, MAGIC, Result, Superblock, checksum, commit};
use hashbrown::HashSet;
use std::borrow::Cow;

/// The parameters that determine the layout of a journal's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Features.
    pub features: Features,
    /// The journal's uuid.
    pub uuid: [u8; 16],
    /// Size of a block, in bytes.
    pub block_bytes: u32,
}

impl From<&Superblock> for Format {
    fn from(superblock: &Superblock) -> Self {
        Self {
            features: superblock.features,
            uuid: superblock.uuid,
            block_bytes: superblock.block_bytes,
        }
    }
}

/// The log blocks of a transaction, in order, without the commit block, which must be written after
/// all of them are durable.
#[derive(Debug)]
pub struct Transaction<'a> {
    /// Revoke blocks, then descriptor blocks each followed by its copies. A copy that needed no
    /// escape is borrowed.
    pub blocks: Vec<Cow<'a, [u8]>>,
    /// For [`commit_block`].
    pub crc: u32,
}

/// Returns the number of log blocks that a transaction of `blocks` copies and `revoked` revoke
/// records takes, its commit block included.
#[must_use]
pub fn log_blocks_needed(format: &Format, blocks: usize, revoked: usize) -> usize {
    let len = format.block_bytes as usize;
    blocks
        + blocks.div_ceil(tags_per_block(format.features, len).max(1))
        + revoked.div_ceil(records_per_block(format.features, len).max(1))
        + 1
}

/// Builds the log blocks of transaction `sequence`: copies of `blocks` (the volume's block number
/// and a whole block each) and revoke records for `revoked`.
///
/// # Errors
/// [`Error::BadTransaction`] if a block is both written and revoked (it would be lost), has the
/// wrong length or a number the journal's features cannot express, or if the journal's features
/// have no revoke records.
pub fn build_transaction<'a>(
    format: &Format,
    sequence: u32,
    blocks: &[(u64, &'a [u8])],
    revoked: &[u64],
) -> Result<Transaction<'a>> {
    check(format, blocks, revoked)?;
    let Format { features, uuid, block_bytes } = format;
    let len = *block_bytes as usize;
    let seed = checksum::seed(uuid);
    let mut out = Vec::with_capacity(log_blocks_needed(format, blocks.len(), revoked.len()));
    for chunk in revoked.chunks(records_per_block(*features, len).max(1)) {
        out.push(Cow::Owned(revoke::encode(*features, uuid, sequence, chunk, len)));
    }
    let mut crc = !0;
    for chunk in blocks.chunks(tags_per_block(*features, len).max(1)) {
        let mut tags = Vec::with_capacity(chunk.len());
        let mut copies = Vec::with_capacity(chunk.len());
        for (block, content) in chunk {
            let (copy, flags) = escape(content);
            let sum = if features.csum() { checksum::data_csum(seed, sequence, &copy) } else { 0 };
            let checksum = descriptor::tag_checksum(*features, sum);
            tags.push(Tag { block: *block, flags, checksum });
            copies.push(copy);
        }
        out.push(Cow::Owned(descriptor::encode(*features, uuid, sequence, &tags, len)));
        let first = out.len() - 1;
        out.append(&mut copies);
        if features.transaction_crc() {
            crc = out[first..].iter().fold(crc, |crc, block| checksum::crc32_be(crc, block));
        }
    }
    Ok(Transaction { blocks: out, crc })
}

/// Builds the commit block of a transaction.
#[must_use]
pub fn commit_block(format: &Format, sequence: u32, crc: u32, time: CommitTime) -> Vec<u8> {
    commit::encode(format.features, &format.uuid, sequence, crc, time, format.block_bytes as usize)
}

/// Returns the copy of a block as stored in the log, and the tag's flag for it.
fn escape(content: &[u8]) -> (Cow<'_, [u8]>, u32) {
    if content.get(..4) != Some(&MAGIC.to_be_bytes()[..]) {
        return (Cow::Borrowed(content), 0);
    }
    let mut copy = content.to_vec();
    copy[..4].fill(0);
    (Cow::Owned(copy), ESCAPE)
}

fn check(format: &Format, blocks: &[(u64, &[u8])], revoked: &[u64]) -> Result<()> {
    let bad = |text: String| Err(Error::BadTransaction(text));
    if !revoked.is_empty() && !format.features.has(Features::REVOKE) {
        return bad("the journal's features have no revoke records".into());
    }
    let highest =
        if format.features.has(Features::BITS64) { u64::MAX } else { u64::from(u32::MAX) };
    let written: HashSet<u64> =
        if revoked.is_empty() { HashSet::new() } else { blocks.iter().map(|b| b.0).collect() };
    for (nr, content) in blocks {
        if content.len() != format.block_bytes as usize {
            return bad(format!("block {nr} has {} bytes", content.len()));
        }
        if *nr > highest {
            return bad(format!("block number {nr} needs the 64bit feature"));
        }
    }
    for nr in revoked {
        if *nr > highest {
            return bad(format!("block number {nr} needs the 64bit feature"));
        }
        if written.contains(nr) {
            return bad(format!("block {nr} is both written and revoked"));
        }
    }
    Ok(())
}
