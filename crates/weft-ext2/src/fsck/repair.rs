//! Repairs what a check found, one problem at a time, until a check finds nothing.

use super::options::{Options, Repair, Unattached};
use super::pass::Pass;
use super::problem::{EntryProblem, InodeProblem, JournalFix, Place, Problem};
use super::report::Report;
use super::scan::{EXT4_FLAGS, inner_attributes};
use super::{counts, entries, journal, start};
use crate::layout::bytes::{get16, get32, put, put16, put32};
use crate::layout::{
    Compat, GOOD_OLD_INODE_BYTES, Incompat, Inode, InodeFlags, MapPath, RESIZE_INO, ROOT_INO,
    RoCompat, State, XATTR_MAGIC, parse_xattr_block,
};
use crate::{Result, superblock};
use hashbrown::HashSet;
use repairer::Repairer;
use weft_block::BlockDevice;
use weft_vfs::Time;

mod lost;
mod lost_found;
mod repairer;
mod root;

/// Most rounds: each corrects at least the problems that the one before has uncovered.
const MAX_ROUNDS: usize = 16;

/// Checks and repairs in turns.
pub(super) fn repair(
    device: &dyn BlockDevice,
    options: &Options<'_>,
    how: Repair,
    report: &mut Report,
) -> Result<()> {
    let now = || u32::try_from(Time::now().secs).unwrap_or(u32::MAX);
    let time = options.time.unwrap_or_else(now);
    let mut marked = false;
    let mut before: Vec<Problem> = Vec::new();
    for round in 0..MAX_ROUNDS {
        let pass = Pass::run(device, super::superblock::read(device)?, options)?;
        if round == 0 {
            report.problems.extend(pass.found.problems.iter().cloned());
            report.counts = pass.found.counts;
        }
        if let Some(recovery) = pass.recovery {
            report.journal = Some(recovery);
            journal::replay(&pass.volume, &pass.superblock, options)?;
            continue;
        }
        report.remaining.clone_from(&pass.found.problems);
        pass.summarise(report);
        if pass.found.problems.is_empty() {
            return finish(device, time);
        }
        if !marked {
            // A repair that is interrupted leaves the volume marked as having errors.
            superblock::update(device, |sb, _| {
                sb.state.remove(State::VALID);
                sb.state.insert(State::ERROR);
            })?;
            device.flush()?;
            marked = true;
        }
        if pass.found.problems == before {
            return Ok(());
        }
        before.clone_from(&pass.found.problems);
        let orphans = lost::orphans(&pass)?;
        let leaked = root::leaked_blocks(&pass.found.problems);
        let lost_found = None;
        Repairer { pass, how, time, search: 0, orphans, leaked, lost_found }.run()?;
        device.flush()?;
    }
    Ok(())
}

/// Marks a volume without problems as clean.
fn finish(device: &dyn BlockDevice, time: u32) -> Result<()> {
    device.flush()?;
    superblock::update(device, |sb, _| {
        sb.state.remove(State::ERROR | State::ORPHANS);
        sb.state.insert(State::VALID);
        sb.features.incompat.remove(Incompat::RECOVER);
        sb.mount_count = 0;
        sb.error_count = 0;
        sb.last_check = time;
        sb.write_time = time;
    })?;
    Ok(device.flush()?)
}

impl Repairer<'_> {
    fn run(mut self) -> Result<()> {
        let problems = std::mem::take(&mut self.pass.found.problems);
        if self.restore_journal(&problems)? {
            // Its blocks are known by the next check: until then they look free.
            return Ok(());
        }
        let mut summary = false;
        // While blocks are multiply claimed or inodes invalid, structures read through them must
        // not be changed.
        let foundations = problems.iter().any(is_foundation);
        let shared = shared_blocks(&problems);
        let lies_in_shared = |problem: &Problem| is_in(problem, &shared);
        // If nothing else is left (a block of pointers that has itself), it is no other file's
        // data.
        let waits = problems.iter().any(|p| is_foundation(p) && !lies_in_shared(p));
        for problem in &problems {
            match problem {
                other if foundations && !is_foundation(other) => {}
                // The other owner's data, until it has its copy.
                other if waits && lies_in_shared(other) => {}
                Problem::BlockBitmap { .. }
                | Problem::InodeBitmap { .. }
                | Problem::Padding { .. }
                | Problem::Count { .. } => summary = true,
                other => self.problem(other)?,
            }
        }
        // Also while other problems remain: a block must not be allocated twice meanwhile.
        if summary { self.bitmaps() } else { Ok(()) }
    }

    fn problem(&mut self, problem: &Problem) -> Result<()> {
        match problem {
            Problem::Superblock { .. } => self.superblock(),
            Problem::OrphanChain { .. } => {
                superblock::update(self.volume().device, |sb, _| sb.last_orphan = 0)
            }
            Problem::GroupDescriptor { group, .. } => self.descriptor(*group),
            Problem::ResizeInode { .. } => self.resize_inode(),
            Problem::Inode { ino, problem } => self.inode(*ino, problem),
            Problem::Pointer { ino, place, .. } => self.set_pointer(*ino, *place, 0),
            Problem::CrossLink { ino, block, place } => {
                let mut content = Vec::new();
                self.volume().read(u64::from(*block), &mut content)?;
                let Some(copy) = self.allocate() else { return Ok(()) };
                self.volume().write(u64::from(copy), &content)?;
                self.set_pointer(*ino, *place, copy)
            }
            Problem::AttributeRefs { block, expected, .. } => {
                self.volume().update(u64::from(*block), |content| put32(content, 4, *expected))
            }
            Problem::Hole { ino, first, count } => self.fill_hole(*ino, *first, *count),
            Problem::Entry { ino, block, offset, problem } => {
                self.entry(*ino, u64::from(*block), usize::from(*offset), problem)
            }
            Problem::Unconnected { ino, empty, .. } => {
                if *empty && self.how.unattached == Unattached::Free {
                    return self.free_inode(*ino);
                }
                self.leave_parent(*ino)?;
                self.reattach(*ino)
            }
            Problem::Unattached { ino, empty } => {
                if *empty || self.how.unattached == Unattached::Free {
                    self.free_inode(*ino)
                } else {
                    self.reattach(*ino)
                }
            }
            Problem::LinkCount { ino, expected, .. } => {
                let links = u16::try_from(*expected).unwrap_or(u16::MAX);
                self.slot(*ino, |slot| put16(slot, 0x1A, links))
            }
            Problem::Journal { fix: JournalFix::Remove, .. } => self.remove_journal(),
            // One that was replayed is no longer found; another needs the device that it lies on.
            Problem::Journal { .. } => Ok(()),
            Problem::NoRoot => self.make_root(),
            Problem::BlockBitmap { .. }
            | Problem::InodeBitmap { .. }
            | Problem::Padding { .. }
            | Problem::Count { .. } => Ok(()),
        }
    }

    fn superblock(&self) -> Result<()> {
        let large_file = self.pass.found.large_file;
        superblock::update(self.volume().device, |sb, raw| {
            sb.reserved_blocks = sb.reserved_blocks.min(sb.blocks / 2);
            if sb.revision == 0 {
                for i in 0..3 {
                    put32(raw, 0x5C + 4 * i, 0);
                }
                return;
            }
            if large_file {
                sb.features.ro_compat.insert(RoCompat::LARGE_FILE);
            }
            if !sb.features.compat.contains(Compat::HAS_JOURNAL) {
                sb.features.incompat.remove(Incompat::RECOVER);
            }
            if !sb.features.compat.contains(Compat::RESIZE_INODE) {
                sb.reserved_gdt_blocks = 0;
            }
        })
    }

    /// Takes a group's descriptor from a backup table where it makes sense.
    fn descriptor(&self, group: u32) -> Result<()> {
        let geometry = &self.volume().geometry;
        let (primary, offset) = geometry.desc_position(group);
        let mut backup = Vec::new();
        for block in geometry.desc_backups(group / geometry.descs_per_block()) {
            if block >= geometry.blocks {
                continue;
            }
            self.volume().read(block, &mut backup)?;
            let Some(raw) = backup.get(offset..offset + crate::layout::GROUP_DESC_BYTES) else {
                continue;
            };
            let desc = crate::layout::GroupDesc::parse(raw);
            if desc.check(group, geometry).is_ok() {
                let raw = raw.to_vec();
                return self.volume().update(primary, |content| put(content, offset, &raw));
            }
        }
        let Some(desc) = self.usual_descriptor(group)? else { return Ok(()) };
        self.volume().update(primary, |content| {
            if let Some(raw) = content.get_mut(offset..offset + crate::layout::GROUP_DESC_BYTES) {
                raw.fill(0);
                desc.encode_into(raw);
            }
        })
    }

    fn resize_inode(&mut self) -> Result<()> {
        let Some(double) = self.allocate() else { return Ok(()) };
        let volume = self.volume();
        let inode = crate::mkfs::rewrite_resize_inode(
            volume.device,
            &volume.geometry,
            u64::from(double),
            self.time,
        )?;
        self.slot(RESIZE_INO, |slot| {
            slot.fill(0);
            inode.encode_into(slot);
        })
    }

    fn inode(&mut self, ino: u32, problem: &InodeProblem) -> Result<()> {
        let time = self.time.max(1);
        let reserved = ino < self.volume().geometry.first_inode && ino != ROOT_INO;
        match problem {
            InodeProblem::Orphan => {
                self.slot(ino, |slot| put32(slot, 0x14, if reserved { 0 } else { time }))
            }
            InodeProblem::Deleted => self.slot(ino, |slot| put32(slot, 0x14, 0)),
            InodeProblem::Mode(_) | InodeProblem::Content(_) if reserved => {
                self.slot(ino, |slot| slot.fill(0))
            }
            InodeProblem::Mode(_) | InodeProblem::Content(_) => self.free_inode(ino),
            InodeProblem::Field(_) => self.slot(ino, fix_fields),
            InodeProblem::Size { lags: true, .. } if self.orphans.contains(&ino) => {
                self.cut_tail(ino)
            }
            InodeProblem::Size { expected, .. } => self.slot(ino, |slot| {
                let [a, b, c, d, high @ ..] = expected.to_le_bytes();
                put(slot, 0x04, &[a, b, c, d]);
                if reserved || get16(slot, 0) & 0o170_000 == 0o100_000 {
                    put(slot, 0x6C, &high);
                }
            }),
            InodeProblem::BlockCount { expected, .. } => {
                let expected = u32::try_from(*expected).unwrap_or(u32::MAX);
                self.slot(ino, |slot| put32(slot, 0x1C, expected))
            }
            InodeProblem::Attributes(_) => self.drop_attributes(ino),
            InodeProblem::HashTree(_) => self.slot(ino, |slot| {
                // Without the flag the tree is free space in a plain directory.
                let flags = InodeFlags::from_bits_retain(get32(slot, 0x20)) - InodeFlags::INDEX;
                put32(slot, 0x20, flags.bits());
            }),
        }
    }

    /// Takes away the attributes that cannot be read.
    fn drop_attributes(&self, ino: u32) -> Result<()> {
        let volume = self.volume();
        let Some(slot) = start::inode_slot(volume, &self.pass.found, ino)? else {
            return Ok(());
        };
        let acl = u64::from(get32(&slot, 0x68));
        let mut bad = ino < volume.geometry.first_inode && ino != ROOT_INO;
        bad |= !volume.geometry.features.compat.contains(Compat::EXT_ATTR);
        if acl != 0 && volume.geometry.contains_block(acl) {
            let mut block = Vec::new();
            volume.read(acl, &mut block)?;
            bad |= parse_xattr_block(&block).is_err();
        }
        self.slot(ino, |slot| {
            if bad {
                put32(slot, 0x68, 0);
            }
            let extra = usize::from(get16(slot, 0x80));
            if let Some(region) = slot.get_mut(GOOD_OLD_INODE_BYTES + extra..)
                && region.len() >= 4
                && get32(region, 0) == XATTR_MAGIC
                && inner_attributes(region).is_err()
            {
                region.fill(0);
            }
        })
    }

    /// Gives a directory empty blocks where it has none.
    fn fill_hole(&mut self, ino: u32, first: u32, count: u32) -> Result<()> {
        let Some(slot) = start::inode_slot(self.volume(), &self.pass.found, ino)? else {
            return Ok(());
        };
        let Ok(inode) = Inode::parse(&slot) else { return Ok(()) };
        let len = self.volume().block_len();
        let parent = self.pass.found.dirs.get(&ino).map_or(0, |dir| dir.parent);
        let parent = if parent == 0 { ROOT_INO } else { parent };
        for logical in (u64::from(first)..).take(count as usize) {
            let pointers = u64::from(self.volume().geometry.pointers_per_block());
            let Some(path) = MapPath::new(logical, pointers) else { return Ok(()) };
            let mut place = Place::Slot(path.slot);
            let mut table = inode.block.get(path.slot).copied().unwrap_or(0);
            let mut content = Vec::new();
            for &index in path.indexes() {
                if !self.volume().geometry.contains_block(u64::from(table)) {
                    return Ok(());
                }
                self.volume().read(u64::from(table), &mut content)?;
                place = Place::Entry { block: u64::from(table), index };
                table = get32(&content, 4 * index);
            }
            if table != 0 {
                continue;
            }
            let Some(block) = self.allocate() else { return Ok(()) };
            let mut content = entries::empty(len);
            if logical == 0 {
                entries::rebuild_first(&mut content, ino, parent, self.filetype());
            }
            self.volume().write(u64::from(block), &content)?;
            self.set_pointer(ino, place, block)?;
        }
        Ok(())
    }

    fn entry(&mut self, ino: u32, block: u64, offset: usize, problem: &EntryProblem) -> Result<()> {
        let dir = self.pass.found.dirs.get(&ino).copied().unwrap_or_default();
        let is_dotdot =
            dir.dotdot_at.is_some_and(|(b, o)| u64::from(b) == block && usize::from(o) == offset);
        let parent = if dir.parent == 0 { ROOT_INO } else { dir.parent };
        let filetype = self.filetype();
        self.volume().update(block, |content| match problem {
            EntryProblem::Record(_) => entries::truncate(content, offset, filetype),
            EntryProblem::Dot | EntryProblem::DotDot => {
                entries::rebuild_first(content, ino, parent, filetype);
            }
            EntryProblem::Parent { expected, .. } => put32(content, offset, *expected),
            EntryProblem::NoSuchInode(_) | EntryProblem::FreeInode(_) if is_dotdot => {
                put32(content, offset, parent);
            }
            EntryProblem::Name
            | EntryProblem::Duplicate
            | EntryProblem::NoSuchInode(_)
            | EntryProblem::FreeInode(_)
            | EntryProblem::SecondName(_) => entries::clear(content, offset),
            EntryProblem::Kind { expected, .. } => put(content, offset + 7, &[*expected]),
        })
    }

    /// Writes bitmaps and counts as they should be.
    fn bitmaps(&self) -> Result<()> {
        counts::write(self.volume(), &self.pass.found)
    }
}

/// The blocks with more than one owner.
fn shared_blocks(problems: &[Problem]) -> HashSet<u64> {
    let shared = problems.iter().filter_map(|problem| match problem {
        Problem::CrossLink { block, .. } => Some(u64::from(*block)),
        _ => None,
    });
    shared.collect()
}

/// Reports whether the repair of a problem would write into one of these blocks: the problem is an entry
/// of an indirect block that is another file's data as well.
fn is_in(problem: &Problem, blocks: &HashSet<u64>) -> bool {
    match problem {
        Problem::Pointer { place: Place::Entry { block, .. }, .. }
        | Problem::CrossLink { place: Place::Entry { block, .. }, .. } => blocks.contains(block),
        _ => false,
    }
}

/// Reports whether a problem must be corrected before the check of the structures that build on it.
fn is_foundation(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::Superblock { .. }
            | Problem::Journal { fix: JournalFix::Remove, .. }
            | Problem::GroupDescriptor { .. }
            | Problem::ResizeInode { .. }
            | Problem::Pointer { .. }
            | Problem::CrossLink { .. }
            | Problem::Inode {
                problem: InodeProblem::Mode(_)
                    | InodeProblem::Content(_)
                    | InodeProblem::Field(_)
                    | InodeProblem::Attributes(_),
                ..
            }
    )
}

/// Gives every field with only one possible value that value.
fn fix_fields(slot: &mut [u8]) {
    let mode = get16(slot, 0);
    let kind = mode & 0o170_000;
    put32(slot, 0x70, 0);
    put16(slot, 0x74, 0);
    put16(slot, 0x76, 0);
    if kind != 0o100_000 {
        put32(slot, 0x6C, 0);
    }
    let mut flags = InodeFlags::from_bits_retain(get32(slot, 0x20));
    flags -= EXT4_FLAGS | InodeFlags::INDEX;
    put32(slot, 0x20, flags.bits());
    if matches!(kind, 0o010_000 | 0o020_000 | 0o060_000 | 0o140_000) {
        put32(slot, 0x04, 0);
    }
    if slot.len() > GOOD_OLD_INODE_BYTES && Inode::parse(slot).is_err() {
        // The bytes behind cannot be told from attributes: both are cleared.
        if let Some(rest) = slot.get_mut(GOOD_OLD_INODE_BYTES..) {
            rest.fill(0);
        }
    }
}
