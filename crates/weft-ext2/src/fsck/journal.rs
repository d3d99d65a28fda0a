//! The journal of a volume under check: replayed in memory by a check, on the device by a repair.

use super::found::Found;
use super::options::Options;
use super::problem::{JournalFix, Problem};
use super::start;
use super::volume::Volume;
use crate::layout::bytes::get32;
use crate::layout::{Compat, Incompat, Inode, JOURNAL_INO, MapPath, Superblock};
use crate::{Error, Result, superblock};
use hashbrown::HashMap;
use weft_block::BlockDevice;
use weft_patch::jbd2::{self, Log, LogMap};

/// The inode of the journal, as its slot has it.
fn journal_inode(
    volume: &Volume<'_>,
    found: &Found,
) -> Result<std::result::Result<Inode, &'static str>> {
    let Some(slot) = start::inode_slot(volume, found, JOURNAL_INO)? else {
        return Ok(Err("its inode cannot be read"));
    };
    Ok(Inode::parse(&slot).map_err(|_| "its inode cannot be read"))
}

/// The inode of the journal by the copy of its map in the superblock, if there is one.
pub(super) fn backup_inode(superblock: &Superblock) -> Option<Inode> {
    let [map @ .., high, low] = superblock.journal_backup;
    let size_bytes = u64::from(high) << 32 | u64::from(low);
    let has_one = superblock.journal_backup_type == 1 && map[0] != 0 && size_bytes > 0;
    has_one.then(|| Inode { mode: 0o100_600, links: 1, size_bytes, block: map, ..Inode::default() })
}

/// The blocks of the journal inode, in the order of the file.
///
/// # Errors
/// A sentence, if there is no journal there.
fn journal_blocks(
    volume: &Volume<'_>,
    inode: &Inode,
) -> Result<std::result::Result<Vec<u64>, &'static str>> {
    if inode.mode & 0o170_000 != 0o100_000 || inode.links == 0 {
        return Ok(Err("its inode is not a regular file"));
    }
    let geometry = &volume.geometry;
    let len = inode.size_bytes / u64::from(geometry.block_bytes);
    if len > geometry.blocks {
        return Ok(Err("it is longer than the volume"));
    }
    let pointers = u64::from(geometry.pointers_per_block());
    let mut blocks = Vec::new();
    // Tables on the way to the block last looked up, by level.
    let mut tables: [(u64, Vec<u8>); 3] = Default::default();
    for i in 0..len {
        let Some(path) = MapPath::new(i, pointers) else {
            return Ok(Err("it is longer than the longest file"));
        };
        let mut block = u64::from(inode.block.get(path.slot).copied().unwrap_or(0));
        for (index, (at, table)) in path.indexes().iter().zip(&mut tables) {
            if !geometry.contains_block(block) {
                return Ok(Err("it has a hole, or a block pointer that leads outside the volume"));
            }
            if *at != block {
                volume.read(block, table)?;
                *at = block;
            }
            block = u64::from(get32(table, 4 * index));
        }
        if !geometry.contains_block(block) {
            return Ok(Err("it has a hole, or a block pointer that leads outside the volume"));
        }
        blocks.push(block);
    }
    Ok(Ok(blocks))
}

type DeviceLog<'d> = Log<&'d dyn BlockDevice>;

/// Opens a log by its map. The error is a sentence.
fn open_log<'d>(
    volume: &Volume<'d>,
    map: std::result::Result<LogMap<&'d dyn BlockDevice>, jbd2::Error>,
) -> Result<std::result::Result<DeviceLog<'d>, String>> {
    match map.and_then(Log::open) {
        Ok(log) if log.map().block_bytes() != volume.geometry.block_bytes => Ok(Err(format!(
            "its block size is {} bytes, not the volume's",
            log.map().block_bytes()
        ))),
        Ok(log) => Ok(Ok(log)),
        Err(jbd2::Error::Device(error)) => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Opens the journal that an inode of the volume is.
fn open_inode<'d>(
    volume: &Volume<'d>,
    inode: std::result::Result<Inode, &'static str>,
) -> Result<std::result::Result<DeviceLog<'d>, String>> {
    let blocks = match inode {
        Ok(inode) => journal_blocks(volume, &inode)?,
        Err(problem) => Err(problem),
    };
    match blocks {
        Ok(blocks) => {
            let block_bytes = volume.geometry.block_bytes;
            open_log(volume, LogMap::from_blocks_on(volume.device, block_bytes, &blocks))
        }
        Err(problem) => Ok(Err(problem.into())),
    }
}

/// Opens the journal inside the volume, if need be by the copy of its map in the superblock, or the one
/// on `external`. `None`: there is none, or it is broken (which is reported).
fn open<'d>(
    volume: &Volume<'d>,
    superblock: &Superblock,
    found: &mut Found,
    external: Option<&'d dyn BlockDevice>,
) -> Result<Option<DeviceLog<'d>>> {
    if superblock.journal_inode != 0 {
        let opened = if superblock.journal_inode == JOURNAL_INO {
            open_inode(volume, journal_inode(volume, found)?)?
        } else {
            Err(format!("its inode is {}, should be {JOURNAL_INO}", superblock.journal_inode))
        };
        let mut problem = match opened {
            Ok(log) => return Ok(Some(log)),
            Err(problem) => problem,
        };
        if let Some(inode) = backup_inode(superblock)
            && let Ok(log) = open_inode(volume, Ok(inode))?
        {
            problem.push_str("; the superblock has a copy of its map");
            found.report(Problem::Journal { problem, fix: JournalFix::Restore });
            return Ok(Some(log));
        }
        found.report(Problem::Journal { problem, fix: JournalFix::Remove });
        return Ok(None);
    }
    let Some(external) = external else { return Ok(None) };
    let opened = match LogMap::external_on(external) {
        Ok((map, uuid)) if uuid == superblock.journal_uuid => open_log(volume, Ok(map))?,
        Ok(_) => Err("the device given holds the journal of another volume".into()),
        Err(error) => open_log(volume, Err(error))?,
    };
    Ok(match opened {
        Ok(log) => Some(log),
        Err(problem) => {
            found.report(Problem::Journal { problem, fix: JournalFix::Give });
            None
        }
    })
}

/// Replays a journal into memory.
pub(super) fn replay_in_memory(
    volume: &mut Volume<'_>,
    superblock: &Superblock,
    found: &mut Found,
    options: &Options<'_>,
) -> Result<Option<jbd2::Recovery>> {
    let flagged = superblock.features.incompat.contains(Incompat::RECOVER);
    if !superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        if flagged {
            let problem = "say needs_recovery, but there is no journal".into();
            found.report(Problem::Superblock { field: "features", problem });
        }
        return Ok(None);
    }
    let Some(log) = open(volume, superblock, found, options.journal)? else {
        if flagged && superblock.journal_inode == 0 && options.journal.is_none() {
            let problem =
                "the volume needs a replay of its external journal, which was not given".into();
            found.report(Problem::Journal { problem, fix: JournalFix::Give });
        }
        return Ok(None);
    };
    if !log.needs_recovery() {
        return Ok(None);
    }
    if !flagged {
        let problem = "holds transactions, but the superblock does not say needs_recovery".into();
        found.report(Problem::Journal { problem, fix: JournalFix::Replay });
    }
    let mut overlay = HashMap::new();
    let recovery = log
        .recover_before_damage(volume.geometry.blocks, |block, content: &[u8]| {
            overlay.insert(block, content.into());
            Ok::<(), std::convert::Infallible>(())
        })
        .map_err(journal_error)?;
    volume.overlay = overlay;
    if let Some(damage) = recovery.damage {
        let problem = format!("is damaged: {damage}");
        found.report(Problem::Journal { problem, fix: JournalFix::Replay });
    }
    Ok(Some(recovery))
}

/// Replays the journal to the volume and empties it.
pub(super) fn replay(
    volume: &Volume<'_>,
    superblock: &Superblock,
    options: &Options<'_>,
) -> Result<()> {
    let mut found = Found::new(&volume.geometry, 0);
    start::groups(volume, &mut found)?;
    let log = open(volume, superblock, &mut found, options.journal)?;
    let Some(mut log) = log else { return Ok(()) };
    let block_bytes = u64::from(volume.geometry.block_bytes);
    let recovery = log
        .recover_before_damage(volume.geometry.blocks, |block, content: &[u8]| {
            volume.device.write_at(content, block * block_bytes)
        })
        .map_err(journal_error)?;
    volume.device.flush()?;
    log.reset(recovery.next_sequence).map_err(journal_error)?;
    superblock::update(volume.device, |sb, _| sb.features.incompat.remove(Incompat::RECOVER))?;
    Ok(volume.device.flush()?)
}

fn journal_error(error: jbd2::Error) -> Error {
    match error {
        jbd2::Error::Device(error) => Error::Device(error),
        other => Error::corrupt("journal", 0, other.to_string()),
    }
}
