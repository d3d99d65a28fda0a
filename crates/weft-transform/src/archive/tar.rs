//! tar, by the `tar` crate: ustar with the extensions of GNU and PAX for long names.

use tar::{Archive, EntryType};
use weft_vfs::{FileKind, Time};

use super::{Cursor, Data, Item, Listing, corrupt, parsed};
use crate::Result;
use crate::store::Store;

pub(super) fn list(cursor: Cursor) -> Result<(Listing, Box<dyn Store>)> {
    let len = cursor.len;
    let mut archive = Archive::new(cursor);
    let mut listing = Listing::new();
    for entry in archive.entries_with_seek().map_err(|e| parsed(&e))? {
        let entry = entry.map_err(|e| parsed(&e))?;
        let header = entry.header();
        let (start, entry_bytes) = (entry.raw_file_position(), entry.size());
        let perm = (header.mode().map_err(|e| parsed(&e))? & 0o7777) as u16;
        let kind = match header.entry_type() {
            EntryType::Directory => FileKind::Directory,
            EntryType::Symlink => FileKind::Symlink,
            EntryType::Regular | EntryType::Continuous | EntryType::Link | EntryType::GNUSparse => {
                FileKind::Regular
            }
            // Devices and pipes: nobody reads them out of an archive.
            _ => continue,
        };
        let mut item = Item::new(kind, perm);
        let id = |id: std::io::Result<u64>| id.ok().and_then(|id| u32::try_from(id).ok());
        item.uid = id(header.uid()).unwrap_or(u32::MAX);
        item.gid = id(header.gid()).unwrap_or(u32::MAX);
        let secs = header.mtime().ok().and_then(|secs| i64::try_from(secs).ok());
        item.mtime = Time { secs: secs.unwrap_or(0), nanos: 0 };
        let name = entry.path_bytes().into_owned();
        match header.entry_type() {
            EntryType::Symlink => {
                item.target = entry.link_name_bytes().unwrap_or_default().into_owned();
                item.len_bytes = item.target.len() as u64;
            }
            EntryType::Link => {
                // Another name of a file that came before.
                let of = entry.link_name_bytes().unwrap_or_default().into_owned();
                let Some(there) = listing.find(&of).and_then(|nr| listing.0.get(nr)) else {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    return Err(corrupt(0, format!("{name} is a link to nothing")));
                };
                if there.kind == FileKind::Regular {
                    item = there.clone();
                }
            }
            EntryType::GNUSparse => {
                item.len_bytes = entry_bytes;
                item.data = Data::Unknown("a sparse file of a tar archive");
            }
            _ if kind == FileKind::Regular => {
                if start.checked_add(entry_bytes).is_none_or(|end| end > len) {
                    return Err(corrupt(start, "the archive ends within a file"));
                }
                item.len_bytes = entry_bytes;
                item.data = Data::Plain(start);
            }
            _ => {}
        }
        drop(entry);
        listing.add(&name, item)?;
    }
    Ok((listing, archive.into_inner().store))
}
