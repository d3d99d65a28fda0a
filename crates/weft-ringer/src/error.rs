//! Why an operation was refused: the errors of [`weft_vfs::Error`] that travel and can be kept.

use weft_vfs::Error as VfsError;

macro_rules! refusals {
    ($($(#[$doc:meta])* $number:literal => $name:ident, $vfs:expr;)*) => {
        /// Why a file-system operation was refused.
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
    /// The caller may not.
    1 => NotPermitted, VfsError::NotPermitted;
    /// No such name.
    2 => NotFound, VfsError::NotFound;
    /// The server's store failed, or a peer broke the protocol.
    5 => Io, VfsError::Io { errno: 5, message: "the cell's metadata server failed".into() };
    /// Another has it locked.
    11 => WouldBlock, VfsError::WouldBlock;
    /// `.`, `..` or the root cannot be moved.
    16 => Busy, VfsError::Busy;
    /// The name is taken.
    17 => Exists, VfsError::Exists;
    /// From one encrypted directory to another, or in or out: it is copied.
    18 => CrossDevice, VfsError::CrossDevice;
    /// A directory was needed.
    20 => NotADirectory, VfsError::NotADirectory;
    /// A directory is no file.
    21 => IsADirectory, VfsError::IsADirectory;
    /// The operation makes no sense on this rnode.
    22 => Invalid, VfsError::Invalid("not possible with this inode");
    /// Past the longest file.
    27 => TooLarge, VfsError::TooLarge;
    /// The cell is full.
    28 => NoSpace, VfsError::NoSpace;
    /// An rnode can have no more names.
    31 => TooManyLinks, VfsError::TooManyLinks;
    /// Each of two would wait for the other's lock.
    35 => Deadlock, VfsError::Deadlock;
    /// A name of over 255 bytes, or a target of over 4095.
    36 => NameTooLong, VfsError::NameTooLong;
    /// A client has too many locks on one file.
    37 => NoLocks, VfsError::NoLocks;
    /// A directory with names in it.
    39 => NotEmpty, VfsError::NotEmpty;
    /// No such extended attribute.
    61 => NoAttribute, VfsError::NoAttribute;
    /// The rnode is gone.
    116 => Stale, VfsError::Stale(0);
    /// The client lost its epoch while the operation waited, or before it reached the server.
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
