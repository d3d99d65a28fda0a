//! The reason why an operation was refused: the errors of [`weft_vfs::Error`] that can be sent and
//! stored.

use weft_vfs::Error as VfsError;

macro_rules! refusals {
    ($($(#[$doc:meta])* $number:literal => $name:ident, $vfs:expr;)*) => {
        /// The reason why a file-system operation was refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
        #[non_exhaustive]
        pub enum Refusal {
            $($(#[$doc])* #[error("{}", VfsError::from(*self))] $name,)*
        }

        impl From<Refusal> for VfsError {
            fn from(refusal: Refusal) -> Self {
                match refusal {
                    $(Refusal::$name => $vfs,)*
                }
            }
        }

        crate::wire::wire_enum!(Refusal { $($number => $name,)* });

        #[cfg(test)]
        pub(crate) const ALL: &[Refusal] = &[$(Refusal::$name,)*];
    };
}

// The numbers are Linux's errnos; two refusals may not share one.
refusals! {
    /// Permission denied.
    1 => NotPermitted, VfsError::NotPermitted;
    /// No such name.
    2 => NotFound, VfsError::NotFound;
    /// The server's store failed, or a peer broke the protocol.
    5 => Io, VfsError::Io { errno: 5, message: "the cell's metadata server failed".into() };
    /// A conflicting lock is held by another owner.
    11 => WouldBlock, VfsError::WouldBlock;
    /// `.`, `..` or the root cannot be moved, and a cell mount cannot be changed.
    16 => Busy, VfsError::Busy;
    /// The name is taken.
    17 => Exists, VfsError::Exists;
    /// A move into, out of or between encrypted directories: the caller must copy instead.
    18 => CrossDevice, VfsError::CrossDevice;
    /// Not a directory.
    20 => NotADirectory, VfsError::NotADirectory;
    /// Is a directory.
    21 => IsADirectory, VfsError::IsADirectory;
    /// The operation does not apply to this rnode.
    22 => Invalid, VfsError::Invalid("not possible with this inode");
    /// Past the maximum file size.
    27 => TooLarge, VfsError::TooLarge;
    /// The cell is full.
    28 => NoSpace, VfsError::NoSpace;
    /// The rnode has the maximum number of names.
    31 => TooManyLinks, VfsError::TooManyLinks;
    /// Waiting for this lock would be a deadlock.
    35 => Deadlock, VfsError::Deadlock;
    /// A name of over 255 bytes, or a link target of over 4095.
    36 => NameTooLong, VfsError::NameTooLong;
    /// The client has too many locks on one file.
    37 => NoLocks, VfsError::NoLocks;
    /// The directory is not empty.
    39 => NotEmpty, VfsError::NotEmpty;
    /// No such extended attribute.
    61 => NoAttribute, VfsError::NoAttribute;
    /// The rnode no longer exists.
    116 => Stale, VfsError::Stale(0);
    /// The client's epoch ended while the operation waited, or before it reached the server.
    125 => Fenced, VfsError::Io { errno: 125, message: "the client's epoch has ended".into() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Wire;

    #[test]
    fn the_number_on_the_wire_is_the_errno() {
        for &refusal in ALL {
            let mut out = Vec::new();
            refusal.put(&mut out);
            assert_eq!(i32::from(out[0]), VfsError::from(refusal).errno(), "{refusal:?}");
        }
    }
}
