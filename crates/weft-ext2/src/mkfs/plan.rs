//! From options and a length to a superblock: how many groups, inodes, reserved blocks.

use super::options::{Journal, MkfsOptions, Revision, SETTABLE};
use crate::layout::{
    Compat, CreatorOs, GOOD_OLD_FIRST_INO, JOURNAL_INO, RoCompat, Superblock, WANT_EXTRA_BYTES,
};
use crate::{Error, Result};
use weft_vfs::Time;

/// Fewest inodes a volume may have: the reserved ones, lost+found, and some for files.
const MIN_INODES: u32 = 16;
/// Fewest blocks of a group (mke2fs's choice).
const MIN_GROUP_BLOCKS: u32 = 256;
/// Blocks a last group must have beside its metadata to be worth it (mke2fs's choice).
const MIN_LAST_GROUP_BLOCKS: u64 = 50;
/// Fewest blocks JBD2 accepts in a journal.
const MIN_JOURNAL_BLOCKS: u64 = 1024;

/// The measures of a volume to be made.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// All fields but the free counts and those that depend on the position of the journal.
    pub superblock: Superblock,
    /// Length of the journal inside the volume, 0 without one.
    pub journal_blocks: u32,
    /// Time of making, seconds since 1970.
    pub time: u32,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Error::Invalid(text))
}

impl Plan {
    pub(super) fn new(device_bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let len_bytes = options.len_bytes.unwrap_or(device_bytes);
        if len_bytes > device_bytes {
            return invalid(format!(
                "a volume of {len_bytes} bytes does not fit on a device of {device_bytes}"
            ));
        }
        let block_bytes =
            options.block_bytes.unwrap_or(if len_bytes < 16 << 20 { 1024 } else { 4096 });
        if ![1024, 2048, 4096].contains(&block_bytes) {
            return invalid(format!("block size {block_bytes} is not 1024, 2048 or 4096 bytes"));
        }
        let good_old = options.revision == Revision::GoodOld;
        let inode_bytes = options.inode_bytes.unwrap_or(if good_old { 128 } else { 256 });
        if !inode_bytes.is_power_of_two() || !(128..=block_bytes).contains(&inode_bytes) {
            return invalid(format!(
                "inode size {inode_bytes} is not a power of two from 128 to the block size"
            ));
        }
        if good_old && inode_bytes != 128 {
            return invalid("revision 0 has inodes of 128 bytes only".into());
        }
        let blocks_per_group = options.blocks_per_group.unwrap_or(block_bytes * 8);
        if !blocks_per_group.is_multiple_of(8)
            || !(MIN_GROUP_BLOCKS..=block_bytes * 8).contains(&blocks_per_group)
        {
            return invalid(format!(
                "{blocks_per_group} blocks per group are not a multiple of 8 from \
                 {MIN_GROUP_BLOCKS} to {}",
                block_bytes * 8
            ));
        }
        if !(0.0..=50.0).contains(&options.reserved_percent) {
            return invalid(format!("{} % reserved is not 0 to 50", options.reserved_percent));
        }
        if options.label.len() > 16 {
            return invalid("the label is longer than 16 bytes".into());
        }
        let Ok(blocks) = u32::try_from(len_bytes / u64::from(block_bytes)) else {
            return invalid(format!(
                "{len_bytes} bytes are more than 2^32 - 1 blocks of {block_bytes}"
            ));
        };
        let time = options.time.unwrap_or_else(now);
        let mut superblock = base(options, block_bytes, inode_bytes, time)?;
        size(&mut superblock, blocks, len_bytes, options)?;
        let share = f64::from(superblock.blocks) * options.reserved_percent / 100.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most half of a u32"
        )]
        {
            superblock.reserved_blocks = share as u32;
        }
        let journal_blocks = journal_blocks(&superblock, options)?;
        Ok(Self { superblock, journal_blocks, time })
    }
}

fn now() -> u32 {
    u32::try_from(Time::now().secs).unwrap_or(u32::MAX)
}

/// The fields that do not depend on the number of blocks.
fn base(
    options: &MkfsOptions,
    block_bytes: u32,
    inode_bytes: u32,
    time: u32,
) -> Result<Superblock> {
    let mut features = options.features;
    let known = SETTABLE;
    if !known.compat.contains(features.compat)
        || !known.incompat.contains(features.incompat)
        || !known.ro_compat.contains(features.ro_compat)
    {
        return invalid(format!(
            "features {} are not all ext2's or ext3's",
            features.names().join(", ")
        ));
    }
    match options.revision {
        Revision::GoodOld => {
            features = crate::layout::Features::default();
            if options.journal.is_some() {
                return invalid("revision 0 has no journal".into());
            }
        }
        Revision::Dynamic => {
            features.compat.set(Compat::HAS_JOURNAL, options.journal.is_some());
        }
    }
    if features.compat.contains(Compat::RESIZE_INODE)
        && !features.ro_compat.contains(RoCompat::SPARSE_SUPER)
    {
        return invalid("resize_inode needs sparse_super".into());
    }
    let uuid = options.uuid.unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes());
    let mut volume_name = [0; 16];
    for (to, from) in volume_name.iter_mut().zip(&options.label) {
        *to = *from;
    }
    let mut hash_seed = [0; 4];
    for (word, bytes) in hash_seed.iter_mut().zip(uuid.as_chunks::<4>().0) {
        // Any seed does; one from the uuid keeps deterministic volumes deterministic.
        *word = u32::from_le_bytes(*bytes).rotate_left(9) ^ 0x9e37_79b9;
    }
    let dynamic = options.revision == Revision::Dynamic;
    let extra = if inode_bytes > 128 { WANT_EXTRA_BYTES } else { 0 };
    let blocks_per_group = options.blocks_per_group.unwrap_or(block_bytes * 8);
    Ok(Superblock {
        first_data_block: u32::from(block_bytes == 1024),
        log_block_size: block_bytes.trailing_zeros() - 10,
        log_frag_size: block_bytes.trailing_zeros() - 10,
        blocks_per_group,
        frags_per_group: blocks_per_group,
        write_time: time,
        last_check: time,
        made_time: time,
        creator_os: CreatorOs::LINUX,
        revision: u32::from(dynamic),
        first_inode: GOOD_OLD_FIRST_INO,
        inode_size: u16::try_from(inode_bytes).unwrap_or(128),
        features,
        uuid,
        volume_name,
        hash_seed,
        hash_version: 1,
        // Signed characters in hashes; user attributes and ACLs on by default, as mke2fs does.
        flags: 1,
        default_mount_options: if features.compat.contains(Compat::EXT_ATTR) { 0xC } else { 0 },
        min_extra_isize: extra,
        want_extra_isize: extra,
        journal_inode: match options.journal {
            Some(Journal::Internal { .. }) => JOURNAL_INO,
            _ => 0,
        },
        journal_uuid: match options.journal {
            Some(Journal::External { uuid }) => uuid,
            _ => [0; 16],
        },
        ..Superblock::default()
    })
}

/// Sets blocks, inodes and the reserve for descriptors.
fn size(sb: &mut Superblock, blocks: u32, len_bytes: u64, options: &MkfsOptions) -> Result<()> {
    let block_bytes = u64::from(sb.block_bytes());
    let ratio = match options.bytes_per_inode {
        Some(0) => return invalid("0 bytes per inode".into()),
        Some(ratio) => ratio,
        None if len_bytes < 512 << 20 => 4096,
        None => 16384,
    };
    let wanted = match options.inodes {
        Some(n) => u64::from(n),
        None => len_bytes / u64::from(ratio),
    };
    let wanted = u32::try_from(wanted.max(u64::from(MIN_INODES))).unwrap_or(u32::MAX);
    sb.blocks = blocks;
    let resizable = sb.features.compat.contains(Compat::RESIZE_INODE);
    loop {
        let usable = sb.blocks.saturating_sub(sb.first_data_block);
        if usable == 0 {
            return invalid(format!("{len_bytes} bytes are too few for a volume"));
        }
        let groups = usable.div_ceil(sb.blocks_per_group);
        sb.reserved_gdt_blocks = 0;
        if resizable {
            sb.reserved_gdt_blocks = reserved_gdt_blocks(sb, groups);
            sb.features.compat.set(Compat::RESIZE_INODE, sb.reserved_gdt_blocks != 0);
        }
        // Whole blocks of inodes, a multiple of 8, and no more than a bitmap has bits.
        let per_block = sb.block_bytes() / u32::from(sb.inode_size);
        let unit = per_block.max(8);
        let max = (sb.block_bytes() * 8).min(65_528) / unit * unit;
        let per_group = wanted.div_ceil(groups).max(MIN_INODES);
        sb.inodes_per_group = per_group.checked_next_multiple_of(unit).unwrap_or(max).min(max);
        let Some(inodes) = sb.inodes_per_group.checked_mul(groups) else {
            return invalid(format!("{wanted} inodes are too many"));
        };
        sb.inodes = inodes;
        let geometry = sb.geometry();
        let need = |group: u32| {
            geometry.group_overhead_blocks(group) + 2 + u64::from(geometry.inode_table_blocks())
        };
        let last = groups - 1;
        let last_blocks = geometry.group_blocks(last);
        let is_partial = last_blocks < u64::from(sb.blocks_per_group);
        if last > 0 && is_partial && last_blocks < need(last) + MIN_LAST_GROUP_BLOCKS {
            sb.blocks -= u32::try_from(last_blocks).unwrap_or(0);
            continue;
        }
        // Root and lost+found take a block each.
        if (0..groups.min(2)).any(|g| geometry.group_blocks(g) < need(g) + 2) {
            return invalid(format!(
                "{len_bytes} bytes are too few for a volume with {inodes} inodes, blocks of \
                 {block_bytes} bytes and groups of {} blocks",
                sb.blocks_per_group
            ));
        }
        // The resize inode's size is beyond 2 GiB from 2 KiB blocks on.
        if sb.features.compat.contains(Compat::RESIZE_INODE) && sb.block_bytes() > 1024 {
            sb.features.ro_compat |= RoCompat::LARGE_FILE;
        }
        return Ok(());
    }
}

/// Blocks to set aside so that the volume can grow to 1024 times its size, as mke2fs does.
fn reserved_gdt_blocks(sb: &Superblock, groups: u32) -> u16 {
    let grown = u64::from(sb.blocks).saturating_mul(1024).min(u64::from(u32::MAX));
    let grown_groups =
        (grown - u64::from(sb.first_data_block)).div_ceil(u64::from(sb.blocks_per_group));
    let per_block = u64::from(sb.block_bytes() / 32);
    let now = u64::from(groups).div_ceil(per_block);
    // The resize inode's double indirect block has one slot for each.
    let room = u64::from(sb.block_bytes() / 4).saturating_sub(now);
    let want = grown_groups.div_ceil(per_block).saturating_sub(now).min(room);
    // Most of a small group is left to files.
    let want = want.min(u64::from(sb.blocks_per_group / 4));
    u16::try_from(want).unwrap_or(0)
}

fn journal_blocks(sb: &Superblock, options: &MkfsOptions) -> Result<u32> {
    let Some(Journal::Internal { len_bytes }) = options.journal else { return Ok(0) };
    let blocks = match len_bytes {
        Some(bytes) => bytes / u64::from(sb.block_bytes()),
        // e2fsprogs' table.
        None => match sb.blocks {
            0..2048 => {
                return invalid(format!(
                    "a volume of {} blocks is too small for a journal",
                    sb.blocks
                ));
            }
            2048..0x8000 => 1024,
            0x8000..0x4_0000 => 4096,
            0x4_0000..0x8_0000 => 8192,
            0x8_0000..0x40_0000 => 16_384,
            0x40_0000..0x80_0000 => 32_768,
            0x80_0000..0x100_0000 => 65_536,
            0x100_0000..0x200_0000 => 131_072,
            0x200_0000.. => 262_144,
        },
    };
    if !(MIN_JOURNAL_BLOCKS..=u64::from(sb.blocks / 2)).contains(&blocks) {
        return invalid(format!(
            "a journal of {blocks} blocks: it needs {MIN_JOURNAL_BLOCKS} or more, and at most \
             half the volume's {}",
            sb.blocks
        ));
    }
    Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
}
