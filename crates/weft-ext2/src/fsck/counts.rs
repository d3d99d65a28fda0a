//! Pass 5: bitmaps and free counts, compared with the inodes and blocks that were found.

use super::bitmap::{Bitmap, disk_bits64};
use super::found::{Found, KIND_DIRECTORY};
use super::problem::Problem;
use super::volume::Volume;
use crate::Result;
use crate::layout::Superblock;

/// Free blocks, free inodes and directories of a group, as found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub free_blocks: u32,
    pub free_inodes: u32,
    pub used_dirs: u32,
}

/// The bitmap that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blocks,
    Inodes,
}

/// A run of wrong bits that may continue.
struct Runs {
    kind: Kind,
    open: Option<(u32, u32, bool)>,
}

impl Runs {
    fn add(&mut self, found: &mut Found, at: u32, leaked: bool) {
        match &mut self.open {
            Some((first, len, was)) if *was == leaked && first.wrapping_add(*len) == at => {
                *len += 1;
            }
            _ => {
                self.close(found);
                self.open = Some((at, 1, leaked));
            }
        }
    }

    fn close(&mut self, found: &mut Found) {
        if let Some((first, len, leaked)) = self.open.take() {
            found.report(match self.kind {
                Kind::Blocks => Problem::BlockBitmap { first, len, leaked },
                Kind::Inodes => Problem::InodeBitmap { first, len, leaked },
            });
        }
    }
}

/// Compares `bits` bits of a bitmap on disk with those that `found` holds from `base` on; numbers
/// of bits that differ start at `first`. Returns the number of clear bits found.
fn compare(
    found: &mut Found,
    runs: &mut Runs,
    map: &[u8],
    bits: u32,
    first: u32,
    expected: &dyn Fn(&Found, u32) -> u64,
) -> u32 {
    let mut free = 0;
    let mut bit = 0;
    while bit < bits {
        let width = (bits - bit).min(64);
        let mask = if width == 64 { !0 } else { (1_u64 << width) - 1 };
        let want = expected(found, bit) & mask;
        let mut wrong = (disk_bits64(map, u64::from(bit)) & mask) ^ want;
        free += width - want.count_ones();
        while wrong != 0 {
            let i = wrong.trailing_zeros();
            runs.add(found, first + bit + i, want >> i & 1 == 0);
            wrong &= wrong - 1;
        }
        bit += width;
    }
    free
}

fn padding_set(map: &[u8], from: u32) -> bool {
    let bits = u32::try_from(map.len() * 8).unwrap_or(u32::MAX);
    (from..bits).all(|bit| map.get((bit / 8) as usize).is_some_and(|b| b >> (bit % 8) & 1 == 1))
}

/// The inodes in use of each group as bits, and its directories.
fn inode_bits(found: &Found, volume: &Volume<'_>) -> (Bitmap, Vec<u32>) {
    let mut bits = Bitmap::new(u64::from(volume.geometry.inodes));
    let mut dirs = vec![0; volume.geometry.groups as usize];
    // The reserved inodes are in use even where their table could not be read.
    bits.set_run(0, u64::from(volume.geometry.first_inode) - 1);
    for (ino, state) in found.used_inodes() {
        bits.set(u64::from(ino) - 1);
        if state.kind == KIND_DIRECTORY
            && let Some((group, _)) = volume.geometry.inode_group(ino)
            && let Some(dirs) = dirs.get_mut(group as usize)
        {
            *dirs += 1;
        }
    }
    (bits, dirs)
}

/// Compares all bitmaps and counts; returns the groups' counts as they should be.
pub(super) fn check(
    volume: &Volume<'_>,
    superblock: &Superblock,
    found: &mut Found,
) -> Result<Vec<Counts>> {
    let geometry = &volume.geometry;
    let (inode_bits, dirs) = inode_bits(found, volume);
    let mut all = Vec::with_capacity(geometry.groups as usize);
    let mut map = Vec::new();
    let mut block_runs = Runs { kind: Kind::Blocks, open: None };
    let mut inode_runs = Runs { kind: Kind::Inodes, open: None };
    for group in 0..geometry.groups {
        let readable = found.tables.get(group as usize).copied().flatten().is_some();
        let Some(desc) = found.descs.get(group as usize).copied().filter(|_| readable) else {
            all.push(Counts::default());
            continue;
        };
        let first = geometry.group_first_block(group);
        let blocks = u32::try_from(geometry.group_blocks(group)).unwrap_or(0);
        volume.read(u64::from(desc.block_bitmap), &mut map)?;
        let free_blocks = compare(
            found,
            &mut block_runs,
            &map,
            blocks,
            u32::try_from(first).unwrap_or(u32::MAX),
            &|found, bit| found.blocks.bits64(first + u64::from(bit)),
        );
        if !padding_set(&map, blocks) {
            found.report(Problem::Padding { group, which: "block bitmap" });
        }
        volume.read(u64::from(desc.inode_bitmap), &mut map)?;
        let base = geometry.inode_number(group, 0);
        let free_inodes =
            compare(found, &mut inode_runs, &map, geometry.inodes_per_group, base, &|_, bit| {
                inode_bits.bits64(u64::from(base - 1 + bit))
            });
        if !padding_set(&map, geometry.inodes_per_group) {
            found.report(Problem::Padding { group, which: "inode bitmap" });
        }
        let used_dirs = dirs.get(group as usize).copied().unwrap_or(0);
        let counts = Counts { free_blocks, free_inodes, used_dirs };
        for (which, stored, expected) in [
            ("free blocks", desc.free_blocks, counts.free_blocks),
            ("free inodes", desc.free_inodes, counts.free_inodes),
            ("directories", desc.used_dirs, counts.used_dirs),
        ] {
            let stored = u32::from(stored);
            if stored != expected {
                let group = Some(group);
                found.report(Problem::Count { group, which, found: stored, expected });
            }
        }
        all.push(counts);
    }
    block_runs.close(found);
    inode_runs.close(found);
    for (which, stored, expected) in [
        ("free blocks", superblock.free_blocks, all.iter().map(|c| c.free_blocks).sum::<u32>()),
        ("free inodes", superblock.free_inodes, all.iter().map(|c| c.free_inodes).sum()),
    ] {
        if stored != expected {
            found.report(Problem::Count { group: None, which, found: stored, expected });
        }
    }
    Ok(all)
}

/// Writes bitmaps, descriptors' counts and the superblock's as they were found to be.
pub(super) fn write(volume: &Volume<'_>, found: &Found) -> Result<()> {
    let geometry = &volume.geometry;
    let (inode_bits, dirs) = inode_bits(found, volume);
    let mut table = volume.descriptor_table()?;
    let (mut free_blocks, mut free_inodes) = (0_u32, 0_u32);
    let slots = table.chunks_exact_mut(crate::layout::GROUP_DESC_BYTES);
    for (group, slot) in (0..geometry.groups).zip(slots) {
        let readable = found.tables.get(group as usize).copied().flatten().is_some();
        let Some(mut desc) = found.descs.get(group as usize).copied().filter(|_| readable) else {
            continue;
        };
        let first = geometry.group_first_block(group);
        let blocks = u32::try_from(geometry.group_blocks(group)).unwrap_or(0);
        let (map, free) = disk_map(volume.block_len(), blocks, &|bit| {
            found.blocks.bits64(first + u64::from(bit))
        });
        volume.write(u64::from(desc.block_bitmap), &map)?;
        desc.free_blocks = u16::try_from(free).unwrap_or(u16::MAX);
        free_blocks = free_blocks.saturating_add(free);
        let base = geometry.inode_number(group, 0) - 1;
        let (map, free) = disk_map(volume.block_len(), geometry.inodes_per_group, &|bit| {
            inode_bits.bits64(u64::from(base + bit))
        });
        volume.write(u64::from(desc.inode_bitmap), &map)?;
        desc.free_inodes = u16::try_from(free).unwrap_or(u16::MAX);
        free_inodes = free_inodes.saturating_add(free);
        let used_dirs = dirs.get(group as usize).copied().unwrap_or(0);
        desc.used_dirs = u16::try_from(used_dirs).unwrap_or(u16::MAX);
        desc.encode_into(slot);
    }
    volume.write_descriptor_table(&table)?;
    crate::superblock::update(volume.device, |sb, _| {
        sb.free_blocks = free_blocks;
        sb.free_inodes = free_inodes;
    })
}

/// A bitmap for the disk of `bits` bits, those past them set, and the number of clear ones.
fn disk_map(len: usize, bits: u32, at: &dyn Fn(u32) -> u64) -> (Vec<u8>, u32) {
    let mut map = vec![0xff; len];
    let mut free = 0;
    for (bit, bytes) in (0..bits).step_by(64).zip(map.chunks_mut(8)) {
        let width = (bits - bit).min(64);
        let padding = if width == 64 { 0 } else { !0 << width };
        let word = at(bit) | padding;
        free += word.count_zeros();
        if let Some(from) = word.to_le_bytes().get(..bytes.len()) {
            bytes.copy_from_slice(from);
        }
    }
    (map, free)
}
