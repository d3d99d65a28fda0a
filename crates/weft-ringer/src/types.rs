//! Names for numbers: who, what, when. Each is a type of its own, so that none can be taken for
//! another; what they promise is said here and kept by those who make them.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $inner);

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn get(from: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::WireError> {
                Ok(Self($crate::wire::Wire::get(from)?))
            }
        }
    };
}

number!(
    /// A client of a cell, as its identity numbers it; the same over restarts.
    ClientId(u64)
);
number!(
    /// A store of objects that keeps copies of a cell's files, as it is numbered when it is added; at
    /// random, so that no two have the same.
    ArchiveId(u64)
);
number!(
    /// A cell, as it is numbered when it is made; at random, so that no two have the same. 0 is none.
    CellId(u64)
);
number!(
    /// One life of a client: it grows with each start. A client keeps it in its journal.
    Incarnation(u64)
);
number!(
    /// The time a client may vouch for its leases: begun by the server, renewed by the client,
    /// ended by either. Never reused in a cell.
    Epoch(u64)
);
number!(
    /// One life of the metadata server of a cell; grows with each start.
    Generation(u32)
);
number!(
    /// What tells a late answer from the one that is waited for. Never reused by any life of a
    /// client.
    RequestId(u64)
);
number!(
    /// The place of a change in a client's log; grows over all of a client's lives.
    Seq(u64)
);
number!(
    /// A point in a directory's listing: the number its entry was given when it was made. 0 is
    /// before all of them.
    Cookie(u64)
);
number!(
    /// A fencing token: which grant of a lease this is. Grows over all grants of a cell, the later
    /// grant having the larger token; the high half is the server's generation, so that no counter
    /// need be kept over its restarts.
    Token(u64)
);

/// Which state of an rnode: how often it was changed, and by which change last.
///
/// Invariant: no two states of an rnode share a version, over all clients, lives and what was taken
/// back. An epoch is of one life of one client, and in one life a log's numbers only grow; so epoch
/// and number name one change of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Version {
    /// Changes so far; 1 when made.
    pub count: u64,
    /// The epoch in which the last of them was made; 0 for what the server made.
    pub epoch: Epoch,
    /// Its place in the log of its client.
    pub seq: Seq,
}
crate::wire::wire_struct!(Version { count, epoch, seq });

impl Version {
    /// Of what the server made, and nobody has changed.
    pub const FIRST: Self = Self { count: 1, epoch: Epoch(0), seq: Seq(0) };

    /// After one more change, made in `epoch` as `seq` of a log.
    #[must_use]
    pub fn next(self, epoch: Epoch, seq: Seq) -> Self {
        Self { count: self.count + 1, epoch, seq }
    }
}

/// In hex, all 16 digits.
impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl CellId {
    /// Takes the number apart as it is shown.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // One way to write each.
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 16 || !text.bytes().all(is_hex) {
            return None;
        }
        u64::from_str_radix(text, 16).ok().filter(|number| *number != 0).map(Self)
    }
}

impl Token {
    /// A lease that no server granted: on an rnode that this client made and nobody else has
    /// heard of.
    pub const BORN: Self = Self(0);

    /// The `count`th token of a server's life.
    #[must_use]
    pub fn new(generation: Generation, count: u32) -> Self {
        Self(u64::from(generation.0) << 32 | u64::from(count))
    }

    /// Smaller than every token of this life of the server, larger than those of earlier ones.
    #[must_use]
    pub fn before(generation: Generation) -> Self {
        Self::new(generation, 0)
    }
}

/// An rnode's number in its cell, never used again for another that the server has heard of. The high half is the *slot* of the client that made
/// it, the low half counts: so a client numbers what it makes without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RnodeId(pub u64);

/// Slots from this one on are of snapshots. Clients do not come by so many.
pub const SNAPSHOT_SLOTS: u32 = 1 << 30;

impl RnodeId {
    /// The root directory of a cell.
    pub const ROOT: Self = Self(1);

    /// The `count`th rnode made in `slot`.
    #[must_use]
    pub fn new(slot: u32, count: u32) -> Self {
        Self(u64::from(slot) << 32 | u64::from(count))
    }

    /// Whose number it is. Slot 0 is the server's own.
    #[must_use]
    pub fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether it is part of a snapshot, which nobody changes.
    #[must_use]
    pub fn is_of_snapshot(self) -> bool {
        self.slot() >= SNAPSHOT_SLOTS
    }

    /// The number within the slot.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    pub fn count(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for RnodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.count())
    }
}

/// A moment on the clock of one machine that is never set: microseconds since some start, counting
/// while the machine sleeps (`CLOCK_BOOTTIME`). Moments of two machines, or of two boots of one,
/// have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// This much later.
    #[must_use]
    pub fn after(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// What a lease allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Nothing but that an rnode without a name is kept: somebody has it open.
    Hold,
    /// To answer from memory what the rnode is and, of a directory, which names it has. Shared.
    Read,
    /// To change it, and tell the server later. Exclusive.
    Write,
}

/// The BLAKE3 hash of a block's bytes: its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The name of a block that is being written, and has no hash yet: 16 bytes of zeroes, which no
    /// hash begins with, and two numbers. It is known to its client alone.
    #[must_use]
    pub fn open(incarnation: Incarnation, number: u64) -> Self {
        let mut name = [0; 32];
        name[16..24].copy_from_slice(&incarnation.0.to_be_bytes());
        name[24..].copy_from_slice(&number.to_be_bytes());
        Self(name)
    }

    /// Whether it is the name of a block that is being written.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0[..16] == [0; 16]
    }
}

/// In hex.
impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why a text is no hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 digits in hex")]
pub struct NotAHash;

impl std::str::FromStr for BlockHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let mut hash = [0; 32];
        // One way to write each: small letters.
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 64 || !text.bytes().all(is_hex) {
            return Err(NotAHash);
        }
        for (i, byte) in hash.iter_mut().enumerate() {
            let digits = text.get(2 * i..2 * i + 2).ok_or(NotAHash)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NotAHash)?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in &self.0[..6] {
            write!(f, "{b:02x}")?;
        }
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_generations_have_larger_tokens() {
        let old = Token::new(Generation(3), u32::MAX);
        assert!(old < Token::before(Generation(4)));
        assert!(Token::before(Generation(4)) < Token::new(Generation(4), 1));
        assert!(Token::BORN < Token::before(Generation(1)));
    }

    #[test]
    fn a_number_knows_its_slot() {
        let id = RnodeId::new(7, 9);
        assert_eq!((id.slot(), id.count(), id.to_string().as_str()), (7, 9, "7.9"));
        assert_eq!(RnodeId::ROOT.slot(), 0);
    }
}
