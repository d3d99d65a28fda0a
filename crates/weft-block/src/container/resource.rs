//! The resources of one type in a resource fork. Source: Inside Macintosh: More Macintosh Toolbox,
//! "Resource Manager Reference".

use super::{be16, be32, read_range};
use crate::{BlockDevice, Error, Result};

/// The longest map and the largest resource read, in bytes.
const MAP_MAX_BYTES: u64 = 16 << 20;
const RESOURCE_MAX_BYTES: u64 = 32 << 20;

/// The resources of `kind`: id and content, in the order of the map. A fork that has none, or is
/// none, has no resources.
///
/// # Errors
/// [`Error::Corrupt`] if one that is in the map is not in the fork; [`Error::Io`].
pub(super) fn of_type(fork: &dyn BlockDevice, kind: [u8; 4]) -> Result<Vec<(i16, Vec<u8>)>> {
    let fork_bytes = fork.geometry().len_bytes;
    let mut head = [0; 16];
    if fork_bytes < 16 {
        return Ok(Vec::new());
    }
    fork.read_at(&mut head, 0)?;
    let [data_at, map_at, data_len, map_len] = [0, 4, 8, 12].map(|at| u64::from(be32(&head, at)));
    let outside = |at: u64, len: u64| at + len > fork_bytes;
    if map_len < 30 || outside(map_at, map_len) || outside(data_at, data_len) {
        return Ok(Vec::new());
    }
    let map = read_range(fork, "resource map", (map_at, map_len), MAP_MAX_BYTES)?;
    let types_at = usize::from(be16(&map, 24));
    let types = map.get(types_at..).unwrap_or_default();
    // Counts are less one; FFFF is none.
    let count = usize::from(be16(types, 0).wrapping_add(1));
    let Some(entry) =
        types.get(2..).and_then(|t| t.chunks_exact(8).take(count).find(|entry| entry[..4] == kind))
    else {
        return Ok(Vec::new());
    };
    let references = types.get(usize::from(be16(entry, 6))..).unwrap_or_default();
    let count = usize::from(be16(entry, 4)) + 1;
    let mut found = Vec::new();
    let mut total = 0;
    for reference in references.chunks_exact(12).take(count) {
        // Eight bits of attributes, then where it is among the data.
        let at = data_at + u64::from(be32(reference, 4) & 0xff_ffff);
        let len = read_range(fork, "resource", (at, 4), 4)?;
        let content =
            read_range(fork, "resource", (at + 4, u64::from(be32(&len, 0))), RESOURCE_MAX_BYTES)?;
        // References may name one and the same resource again and again.
        total += content.len() as u64;
        if total > 2 * RESOURCE_MAX_BYTES {
            let problem = format!("its resources have more than {total} bytes");
            return Err(Error::Corrupt { structure: "resource map", offset: map_at, problem });
        }
        found.push((be16(reference, 0).cast_signed(), content));
    }
    Ok(found)
}
