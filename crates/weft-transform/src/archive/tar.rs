//! tar, by the `tar` crate: ustar with the extensions of GNU and PAX for long names and sparse
//! files.
//!
//! A malformed member is listed but cannot be read, and a malformed header is skipped: the listing
//! continues at the next header whose checksum is correct.

use tar::{Archive, Entry, EntryType, Header};
use weft_vfs::{FileKind, check_interrupt};

use super::cursor::Cursor;
use super::listing::{Data, Item, Listing, OF_ARCHIVE, Unknown};
use super::parsed;
use super::sparse::{Map, Sparse, gnu_pieces};
use crate::Result;
use crate::store::Store;

const BLOCK: u64 = 512;
/// Maximum number of hard links that come before their targets.
const EARLY_MAX: usize = 1 << 20;
/// The type of a directory in an incremental archive of GNU tar; a list of its names is its content.
const GNU_DUMP_DIRECTORY: u8 = b'D';
/// Bytes that are searched at a time for the next header.
const SCANNED_BYTES: usize = 64 << 10;

/// The most bytes of an archive without members: the largest blocking factor of GNU tar that is in use.
const EMPTY_MAX_BYTES: u64 = 1 << 20;

/// Returns true if `head`, the first block of a file, is a header. Archives of before POSIX have no
/// magic number, but a checksum.
pub(super) fn begins_with(head: &[u8]) -> bool {
    let Ok(block) = <[u8; BLOCK as usize]>::try_from(head) else { return false };
    &block[257..262] == b"ustar" || block[0] != 0 && has_right_sum(&block)
}

fn has_right_sum(block: &[u8; BLOCK as usize]) -> bool {
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    let sum: u32 = block.iter().enumerate().fold(0, |sum, (nr, byte)| {
        sum + u32::from(if (148..156).contains(&nr) { b' ' } else { *byte })
    });
    header.cksum().is_ok_and(|there| there == sum)
}

/// Returns true for an archive without members: nothing but its end, which is zeroes.
pub(super) fn is_empty(store: &mut dyn Store) -> Result<bool> {
    let Some(len @ 1..=EMPTY_MAX_BYTES) = store.len_bytes()? else { return Ok(false) };
    if len < 2 * BLOCK || !len.is_multiple_of(BLOCK) {
        return Ok(false);
    }
    let mut block = [0; BLOCK as usize];
    // Most files say no at once.
    for at in (0..len).step_by(block.len()) {
        if store.read_at(at, &mut block)? < block.len() || block.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) struct Listed {
    pub(super) listing: Listing,
    pub(super) store: Box<dyn Store>,
    pub(super) sparse: Vec<Sparse>,
    /// The first defect, if members were left out.
    pub(super) damage: Option<String>,
}

pub(super) fn list(cursor: Cursor) -> Result<Listed> {
    let len = cursor.len();
    let mut cursor = cursor;
    let mut listing = Listing::new();
    let (mut sparse, mut damage) = (Vec::new(), None);
    let mut early = Vec::new();
    let mut start = 0;
    loop {
        let mut archive = Archive::new(cursor.rest_from(start));
        let mut next = start;
        let mut failed = None;
        for entry in archive.entries_with_seek().map_err(|e| parsed(&e))? {
            match entry {
                Ok(mut entry) => {
                    let is_sparse = entry.header().entry_type().is_gnu_sparse();
                    let stored =
                        if is_sparse { entry.header().entry_size() } else { Ok(entry.size()) };
                    let data = start.saturating_add(entry.raw_file_position());
                    let behind = stored.unwrap_or(0).checked_next_multiple_of(BLOCK);
                    next = data.saturating_add(behind.unwrap_or(u64::MAX));
                    let (name, item) = item(&mut entry, start, len, &mut listing, &mut sparse)?;
                    if item.data == Data::Unknown(Unknown::LinkToNothing) && early.len() < EARLY_MAX
                    {
                        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                        early.push((name.clone(), target));
                    }
                    listing.add(&name, item)?;
                }
                Err(e) => {
                    // An interrupt of the reader is no damage.
                    check_interrupt()?;
                    failed = Some(e.to_string());
                    break;
                }
            }
        }
        cursor = archive.into_inner();
        let Some(why) = failed else { break };
        tracing::warn!("an archive is damaged behind byte {next}: {why}");
        damage.get_or_insert_with(|| format!("behind byte {next}: {why}"));
        match next_header(cursor.store(), next.saturating_add(BLOCK))? {
            Some(found) => start = found,
            None => break,
        }
    }
    // Links to members that came later; in a chain of them, one in each round.
    loop {
        let before = early.len();
        let mut left = Vec::new();
        for (name, target) in early {
            match listing.find(&target).filter(|there| is_linkable(there)).copied() {
                Some(there) => listing.add(&name, there)?,
                None => left.push((name, target)),
            }
        }
        early = left;
        if early.is_empty() || early.len() == before {
            break;
        }
    }
    let (listing, store) = (listing.finish(), cursor.into_store());
    Ok(Listed { listing, store, sparse, damage })
}

/// Returns the first block from `at` on that is a header with a correct checksum.
fn next_header(store: &mut dyn Store, mut at: u64) -> Result<Option<u64>> {
    at = at / BLOCK * BLOCK;
    let mut buf = vec![0; SCANNED_BYTES];
    loop {
        let got = store.read_at(at, &mut buf)?;
        for (nr, block) in buf[..got].chunks_exact(BLOCK as usize).enumerate() {
            let block: &[u8; BLOCK as usize] = block.try_into().expect("of that length");
            if &block[257..262] == b"ustar" && has_right_sum(block) {
                return Ok(Some(at + nr as u64 * BLOCK));
            }
        }
        if got < buf.len() {
            return Ok(None);
        }
        at += got as u64;
    }
}

/// Parses the PAX headers of a sparse file: its name, its length, and its map.
fn pax_sparse(entry: &mut Entry<'_, Cursor>) -> Option<(Option<Vec<u8>>, u64, Map)> {
    let (mut name, mut len_bytes, mut version) = (None, None, (0, 0));
    let (mut pieces, mut offset) = (Vec::new(), 0);
    for extension in entry.pax_extensions().ok()??.flatten() {
        let number = || extension.value().ok()?.parse::<u64>().ok();
        match extension.key().ok()? {
            "GNU.sparse.name" => name = Some(extension.value_bytes().to_vec()),
            "GNU.sparse.realsize" | "GNU.sparse.size" => len_bytes = Some(number()?),
            "GNU.sparse.major" => version.0 = number()?,
            "GNU.sparse.minor" => version.1 = number()?,
            "GNU.sparse.offset" => offset = number()?,
            "GNU.sparse.numbytes" => pieces.push((offset, number()?)),
            "GNU.sparse.map" => {
                let numbers = extension.value().ok()?.split(',').map(|n| n.parse::<u64>().ok());
                let numbers = numbers.collect::<Option<Vec<_>>>()?;
                pieces = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            }
            _ => {}
        }
    }
    let map = if version == (1, 0) { Map::Lines } else { Map::Known(pieces) };
    Some((name, len_bytes?, map))
}

/// Converts an entry to a member and its name.
fn item(
    entry: &mut Entry<'_, Cursor>,
    base: u64,
    archive_bytes: u64,
    listing: &mut Listing,
    sparse: &mut Vec<Sparse>,
) -> Result<(Vec<u8>, Item)> {
    let (start, entry_bytes) = (base.saturating_add(entry.raw_file_position()), entry.size());
    let mut name = entry.path_bytes().into_owned();
    let pax = pax_sparse(entry);
    let header = entry.header();
    let kind = match header.entry_type() {
        EntryType::Directory => FileKind::Directory,
        other if other.as_byte() == GNU_DUMP_DIRECTORY => FileKind::Directory,
        EntryType::Fifo => FileKind::Fifo,
        EntryType::Symlink => FileKind::Symlink,
        EntryType::Regular | EntryType::Continuous | EntryType::Link | EntryType::GNUSparse => {
            FileKind::Regular
        }
        // A device would be one of this machine. A name of `..` makes the listing skip
        // them.
        _ => return Ok((b"..".to_vec(), Item::new(FileKind::Regular, 0))),
    };
    // An entry with an invalid mode is accessible to its owner only.
    let usual = if kind == FileKind::Directory { 0o700 } else { 0o600 };
    let mut item = Item::new(kind, (header.mode().unwrap_or(usual) & 0o7777) as u16);
    let id = |id: std::io::Result<u64>| id.ok().and_then(|id| u32::try_from(id).ok());
    item.uid = id(header.uid()).unwrap_or(OF_ARCHIVE);
    item.gid = id(header.gid()).unwrap_or(OF_ARCHIVE);
    let secs = header.mtime().ok().and_then(|secs| i64::try_from(secs).ok());
    item.mtime_secs = secs.unwrap_or(0);
    match header.entry_type() {
        EntryType::Symlink => {
            let target = entry.link_name_bytes().unwrap_or_default();
            item.len_bytes = target.len() as u64;
            item.data = listing.add_target(&target)?;
        }
        EntryType::Link => {
            // A hard link to an earlier file.
            let of = entry.link_name_bytes().unwrap_or_default().into_owned();
            match listing.find(&of) {
                Some(there) if is_linkable(there) => item = *there,
                _ => {
                    item.data = Data::Unknown(Unknown::LinkToNothing);
                    // A length above 0, so that reads are attempted, and fail.
                    item.len_bytes = 1;
                }
            }
        }
        EntryType::GNUSparse => {
            item.len_bytes = entry_bytes;
            let entries = header.as_gnu().map(|gnu| (&header.as_bytes()[386..482], gnu));
            let map = entries.and_then(|(entries, gnu)| {
                let pieces = gnu_pieces(entries)?;
                Some(if gnu.is_extended() { Map::Continued(pieces) } else { Map::Known(pieces) })
            });
            match map {
                Some(map) => {
                    item.data = add_sparse(sparse, Sparse::new(start, entry_bytes, map));
                }
                None => item.data = Data::Unknown(Unknown::SparseMap),
            }
        }
        _ if kind == FileKind::Regular => {
            item.len_bytes = entry_bytes;
            item.data = match (start.checked_add(entry_bytes), pax) {
                (Some(end), Some((of, len_bytes, map))) if end <= archive_bytes => {
                    name = of.unwrap_or(name);
                    item.len_bytes = len_bytes;
                    add_sparse(sparse, Sparse::new(start, len_bytes, map))
                }
                (Some(end), None) if end <= archive_bytes => Data::Plain(start),
                _ => Data::Unknown(Unknown::CutShort),
            };
        }
        _ => {}
    }
    Ok((name, item))
}

/// Returns true if a hard link may lead there.
fn is_linkable(item: &Item) -> bool {
    item.kind != FileKind::Directory && item.data != Data::Unknown(Unknown::LinkToNothing)
}

fn add_sparse(sparse: &mut Vec<Sparse>, file: Sparse) -> Data {
    let nr = u32::try_from(sparse.len());
    sparse.push(file);
    nr.map_or(Data::Unknown(Unknown::SparseMap), Data::Sparse)
}
