//! A directory of one cell that is the mount point of another cell: a *cell mount*.
//!
//! A cell mount is an attribute ([`CELL_MOUNT_XATTR`]) of an empty directory, so it is versioned,
//! leased and seen by all clients as any other. Clients show the root of the other cell, the
//! *inner* one, in the directory's place; the servers of the two cells do not know of each other.
//! Its text form is lines:
//!
//! ```text
//! cell 8f3c29d0a1b2c3d4      the number of the inner cell
//! server nas:7473            an address of one of its servers, one line or several
//! ```
//!
//! Invariants, kept by [`op`](crate::op):
//! - A cell mount's text was parsed before it was set, and its directory has no names of its own.
//! - The directory is not removed, nor replaced by a rename, while it is a cell mount.

use std::fmt;

use crate::types::CellId;

/// The attribute of a directory that makes it a cell mount, under the name that stores and earlier
/// clients know.
pub const CELL_MOUNT_XATTR: &[u8] = b"user.weft.junction";
/// The longest cell mount, in bytes: the longest attribute value that the index holds.
pub const CELL_MOUNT_MAX_BYTES: usize = 1024;
/// The most server addresses of a cell mount.
pub const CELL_MOUNT_SERVERS_MAX: usize = 8;

/// Another cell, and the addresses of its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellMount {
    /// The number of the cell: a different cell at the same address is refused.
    pub cell: CellId,
    /// The addresses of its servers, as users write them: `HOST:PORT` or `unix:/PATH`.
    pub servers: Vec<String>,
}

/// The reason why a text is not a cell mount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CellMountError {
    /// Too long.
    #[error("a cell mount has at most {CELL_MOUNT_MAX_BYTES} bytes, this has {0}")]
    TooLong(usize),
    /// Not UTF-8.
    #[error("a cell mount is text")]
    NotText,
    /// No line gives the number of the cell, or several do, or it is malformed.
    #[error("a cell mount has one line 'cell NUMBER', with 16 digits in hex")]
    Cell,
    /// No server, or too many.
    #[error("a cell mount has 1 to {CELL_MOUNT_SERVERS_MAX} lines 'server ADDRESS', this has {0}")]
    Servers(usize),
    /// An empty address, or one with control characters.
    #[error("a server's address is not empty and has no control characters")]
    Address,
}

impl CellMount {
    /// Parses the text of an attribute. Lines of a later version are ignored.
    ///
    /// # Errors
    /// [`CellMountError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CellMountError> {
        if bytes.len() > CELL_MOUNT_MAX_BYTES {
            return Err(CellMountError::TooLong(bytes.len()));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| CellMountError::NotText)?;
        let (mut cells, mut servers) = (Vec::new(), Vec::new());
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("cell", number)) => cells.push(CellId::parse(number)),
                Some(("server", address)) => servers.push(address.to_owned()),
                _ => {}
            }
        }
        let [Some(cell)] = cells[..] else { return Err(CellMountError::Cell) };
        if !(1..=CELL_MOUNT_SERVERS_MAX).contains(&servers.len()) {
            return Err(CellMountError::Servers(servers.len()));
        }
        let is_odd = |address: &String| address.is_empty() || address.contains(char::is_control);
        if servers.iter().any(is_odd) {
            return Err(CellMountError::Address);
        }
        Ok(Self { cell, servers })
    }
}

impl fmt::Display for CellMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cell {}", self.cell)?;
        self.servers.iter().try_for_each(|server| writeln!(f, "server {server}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell_mount(servers: &[&str]) -> CellMount {
        let servers = servers.iter().map(|s| (*s).to_owned()).collect();
        CellMount { cell: CellId(0x8f3c_29d0_a1b2_c3d4), servers }
    }

    #[test]
    fn cell_mounts_roundtrip() {
        let eight = ["nas:7473", "[::1]:1", "unix:/a b,c", "a", "b", "c", "d", "é"];
        for servers in [&eight[..1], &eight[2..3], &eight[..]] {
            let cell_mount = cell_mount(servers);
            assert_eq!(CellMount::parse(cell_mount.to_string().as_bytes()), Ok(cell_mount));
        }
        let later = "cell 8f3c29d0a1b2c3d4\nmoon 3\nserver a\nx\n\n";
        assert_eq!(CellMount::parse(later.as_bytes()), Ok(cell_mount(&["a"])));
    }

    #[test]
    fn invalid_cell_mounts_are_refused() {
        let cell = "cell 8f3c29d0a1b2c3d4\n";
        let many = format!("{cell}{}", "server a\n".repeat(9));
        let zero = "cell 0000000000000000\nserver a";
        for (text, why) in [
            ("", CellMountError::Cell),
            ("server a", CellMountError::Cell),
            ("cell 8F3C29D0A1B2C3D4\nserver a", CellMountError::Cell),
            ("cell +f3c29d0a1b2c3d4\nserver a", CellMountError::Cell),
            (zero, CellMountError::Cell),
            (&format!("{cell}{cell}server a"), CellMountError::Cell),
            (cell, CellMountError::Servers(0)),
            (&many, CellMountError::Servers(9)),
            (&format!("{cell}server "), CellMountError::Address),
            (&format!("{cell}server a\0b"), CellMountError::Address),
            (&"x".repeat(1025), CellMountError::TooLong(1025)),
        ] {
            assert_eq!(CellMount::parse(text.as_bytes()), Err(why), "{text}");
        }
        assert_eq!(CellMount::parse(b"\xff\xfe"), Err(CellMountError::NotText));
    }
}
