//! The journal, inside the volume (inode 8) or on a device of its own: replaying it, and running
//! the engine on it.

use crate::layout::{Compat, Incompat, JOURNAL_INO, Superblock};
use crate::superblock;
use crate::volume::{Node, Volume, split};
use crate::{Error, Result};
use std::sync::Arc;
use weft_block::{BlockDevice, Overlay, ReadOnly};
use weft_patch::jbd2::{Features, Log, LogMap};
use weft_patch::{Engine, Options, Policy};
use weft_vfs::{FileKind, Ino};

/// The blocks of the journal inode, in order.
///
/// # Errors
/// [`Error::Corrupt`] if there is none, or it has holes.
pub fn journal_inode_blocks(device: &Arc<dyn BlockDevice>, sb: &Superblock) -> Result<Vec<u64>> {
    if sb.journal_inode != JOURNAL_INO {
        return Err(Error::corrupt(
            "superblock",
            0,
            format!("the journal's inode is {}, not {JOURNAL_INO}", sb.journal_inode),
        ));
    }
    // A cache for this one walk: nothing is changed through it.
    let options = Options { policy: Policy::Soft, background: false, ..Options::default() };
    let engine = Engine::new(Arc::clone(device), sb.block_bytes(), options)?;
    let mut op = engine.begin(0)?;
    let mut vol = Volume::load(&mut op, sb.clone(), device.geometry().len_bytes)?;
    let inode = vol.read_raw_inode(&mut op, JOURNAL_INO)?;
    if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
        return Err(Error::corrupt("inode 8", 0, "the journal is not a regular file"));
    }
    let blocks = inode.size_bytes / u64::from(sb.block_bytes());
    let (fields, own) = split(&inode);
    let mut node = Node::new(Ino(u64::from(JOURNAL_INO)), FileKind::Regular, fields, own);
    let all = vol.all_blocks(&mut op, &mut node, blocks)?;
    Ok(all.into_iter().map(u64::from).collect())
}

/// Returns the map of the volume's journal: `external` is the device given for one beside it.
fn log_map(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<LogMap> {
    if sb.journal_inode == 0 {
        let Some(external) = external else {
            return Err(Error::Incompatible {
                features: "an external journal, which was not given".into(),
            });
        };
        let (map, uuid) = LogMap::external(Arc::clone(external)).map_err(|e| log_error(&e))?;
        if uuid != sb.journal_uuid {
            return Err(Error::Invalid(
                "the device given holds the journal of another volume".into(),
            ));
        }
        return Ok(map);
    }
    if external.is_some() {
        return Err(Error::Invalid(
            "a journal device was given, but the journal is inside the volume".into(),
        ));
    }
    let blocks = journal_inode_blocks(device, sb)?;
    LogMap::from_blocks(Arc::clone(device), sb.block_bytes(), &blocks).map_err(|e| log_error(&e))
}

fn log_error(e: &weft_patch::jbd2::Error) -> Error {
    Error::corrupt("journal", 0, e.to_string())
}

/// Sets or clears the feature that says the journal must be replayed: in place, past any engine,
/// as a recovery looks at it before it reads the log.
pub(crate) fn set_recover(device: &dyn BlockDevice, on: bool) -> Result<()> {
    superblock::update(device, |sb, _| sb.features.incompat.set(Incompat::RECOVER, on))?;
    Ok(device.flush()?)
}

/// Replays the journal if the volume needs it, and returns the device to open. If nothing may
/// be written the replay stays in memory, and that device is a view of the volume.
///
/// # Errors
/// [`Error::Incompatible`] if it is external and not given, [`Error::Corrupt`] if it is damaged.
pub(crate) fn replay(
    device: &Arc<dyn BlockDevice>,
    sb: &Superblock,
    external: Option<&Arc<dyn BlockDevice>>,
    read_only: bool,
) -> Result<Option<Arc<dyn BlockDevice>>> {
    if !sb.features.incompat.contains(Incompat::RECOVER) {
        return Ok(None);
    }
    if !sb.features.compat.contains(Compat::HAS_JOURNAL) {
        return Err(Error::corrupt(
            "superblock",
            0,
            "the features say needs_recovery, but there is no journal",
        ));
    }
    let writable = |device: &Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        let device = Arc::clone(device);
        if read_only { Arc::new(Overlay::new(device)) } else { device }
    };
    let (device, external) = (writable(device), external.map(writable));
    let log = log_map(&device, sb, external.as_ref())?;
    let done = weft_patch::recover(&*device, sb.block_bytes(), log)?;
    let place = if read_only { " in memory" } else { "" };
    tracing::info!("replayed {} transactions of the journal{place}", done.transactions);
    // The replay may have written the superblock, so it is read again.
    set_recover(&*device, false)?;
    Ok(Some(if read_only { Arc::new(ReadOnly::new(device)) } else { device }))
}

/// An engine that commits through the volume's journal, which must be clean.
pub(crate) fn engine(
    device: &Arc<dyn BlockDevice>,
    sb: &mut Superblock,
    external: Option<&Arc<dyn BlockDevice>>,
    options: Options,
) -> Result<Arc<Engine>> {
    if !sb.features.compat.contains(Compat::HAS_JOURNAL) {
        return Err(Error::Incompatible {
            features: "a journal (the journal policy needs one)".into(),
        });
    }
    let map = log_map(device, sb, external)?;
    let mut log = Log::open(map.clone()).map_err(|e| log_error(&e))?;
    if log.needs_recovery() {
        // The superblock says that nothing is to be replayed: the transactions in the log are old.
        let next = log.superblock().sequence.wrapping_add(1);
        log.reset(next).map_err(|e| log_error(&e))?;
    }
    // As the kernel does at its first mount: mke2fs makes logs without features.
    log.update(|sb| sb.features.incompat |= Features::REVOKE).map_err(|e| log_error(&e))?;
    set_recover(&**device, true)?;
    sb.features.incompat |= Incompat::RECOVER;
    Ok(Engine::with_journal(Arc::clone(device), sb.block_bytes(), options, map)?)
}
