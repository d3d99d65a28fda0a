//! The reason why an operation was refused: the errors of [`weft_vfs::Error`] that can be sent and
//! stored.

use weft_vfs::Error as VfsError;

use crate::types::Seq;
use crate::wire::{Reader, Wire, WireError};

macro_rules! refusals {
    ($($(#[$doc:meta])* $number:literal $(/ $detail:literal)? => $name:ident, $vfs:expr;)*) => {
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

        impl Refusal {
            /// The number on the wire, and the detail that follows it; 0: none does.
            const fn numbers(self) -> (u64, u64) {
                match self {
                    $(Self::$name => ($number, 0 $(+ $detail)?),)*
                }
            }

            fn of_numbers(numbers: (u64, u64)) -> Option<Self> {
                ALL.iter().copied().find(|refusal| refusal.numbers() == numbers)
            }

            fn of_errno(number: u64) -> Result<Self, WireError> {
                Self::of_numbers((number, 0)).ok_or(WireError::Unknown { what: "Refusal", number })
            }
        }

        const ALL: &[Refusal] = &[$(Refusal::$name,)*];
    };
}

/// `EBUSY` with a text.
fn busy(message: &str) -> VfsError {
    VfsError::Io { errno: VfsError::Busy.errno(), message: message.into() }
}

impl Wire for Refusal {
    fn put(&self, out: &mut Vec<u8>) {
        let (number, detail) = self.numbers();
        number.put(out);
        if detail > 0 {
            detail.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let refusal = Self::of_errno(u64::get(from)?)?;
        let mut behind = from.clone();
        let detail = u64::get(&mut behind).ok().filter(|detail| *detail > 0);
        match detail.and_then(|detail| Self::of_numbers((refusal.numbers().0, detail))) {
            Some(detailed) => {
                *from = behind;
                Ok(detailed)
            }
            None => Ok(refusal),
        }
    }
}

/// A change that was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The change.
    pub seq: Seq,
    /// The reason.
    pub why: Refusal,
}

/// Only the errno of the reason is encoded, as other fields may follow.
impl Wire for Refused {
    fn put(&self, out: &mut Vec<u8>) {
        self.seq.put(out);
        self.why.numbers().0.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { seq: Seq::get(from)?, why: Refusal::of_errno(u64::get(from)?)? })
    }
}

// The numbers are Linux's errnos. Of several refusals with one errno all but the first have a detail,
// which is another number behind it: a peer of version 2 of the protocol ignores that, and takes the
// refusal for the first. So a refusal with a detail is the last field of a message or record.
refusals! {
    /// Permission denied.
    1 => NotPermitted, VfsError::NotPermitted;
    /// No such name.
    2 => NotFound, VfsError::NotFound;
    /// The server's store failed, or a peer broke the protocol.
    5 => Io, VfsError::Io { errno: 5, message: "the cell's metadata server failed".into() };
    /// A conflicting lock is held by another owner.
    11 => WouldBlock, VfsError::WouldBlock;
    /// In use. A peer of version 2 says this for all that follow with this number.
    16 => Busy, VfsError::Busy;
    /// The rnode does not have the version that the request is for: read it and try again.
    16/1 => Changed, busy("changed meanwhile: read it again and retry");
    /// The directory is the mount point of another cell, which must be detached first.
    16/2 => CellMount, busy("another cell is mounted here: detach it first (weft ringer detach)");
    /// The directory was encrypted meanwhile, or is no longer: make the file anew.
    16/3 => EncryptionChanged, busy("the directory's encryption has changed meanwhile: retry");
    /// The client has a lease on the rnode or has requested one: it must request it by number.
    16/4 => AlreadyLeased, busy("protocol error: lease requested by name, but known by number");
    /// Without this client's copy the file would have fewer copies than its policy requires.
    16/5 => TooFewCopies, busy("too few other clients and archives have a copy of the file");
    /// A sweep deletes blocks of the archive: archive the file again when it has ended.
    16/6 => SweepRunning, busy("a sweep of the archive is running: retry when it has ended");
    /// The server is taking the maximum number of snapshots.
    16/7 => TooManySnapshots, busy("too many snapshots are being taken: retry when one is done");
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
    /// The change was made on a newer state of the cell than the one that was accepted since.
    116/1 => OlderCell, VfsError::Io {
        errno: 116,
        message: "made before an older copy of the cell was accepted".into(),
    };
    /// The change was made in a store that was copied, and another copy has been used since.
    116/2 => CopiedStore, VfsError::Io {
        errno: 116,
        message: "made in a copy of a local store".into(),
    };
    /// The client's epoch ended while the operation waited, or before it reached the server.
    125 => Fenced, VfsError::Io { errno: 125, message: "the client's epoch has ended".into() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn the_number_on_the_wire_is_the_errno() {
        for &refusal in ALL {
            let bytes = encode(&refusal);
            assert_eq!(i32::from(bytes[0]), VfsError::from(refusal).errno(), "{refusal:?}");
            assert_eq!(decode(&bytes), Ok(refusal));
        }
    }

    #[test]
    fn unknown_detail_leaves_the_errno() {
        let mut from = Reader::new(&[16, 99]);
        assert_eq!(Refusal::get(&mut from), Ok(Refusal::Busy));
        assert_eq!(from.rest(), [99]);
        assert!(matches!(decode::<Refusal>(&[99]), Err(WireError::Unknown { number: 99, .. })));
    }
}
