//! Identifiers of a cell and its parts, versions and times. Each is a type of its own, so that none
//! can be taken for another; the guarantees are stated here and kept by the code that makes the
//! values.

use std::fmt;

use crate::wire::{Reader, Wire, WireError, wire_enum, wire_struct};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $inner);

        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self(Wire::get(from)?))
            }
        }
    };
}

number!(
    /// The number of a client of a cell, from its identity; the same over restarts.
    ClientId(u64)
);
number!(
    /// The number of an archive, an object store that keeps copies of a cell's files; chosen at
    /// random when it is added, so that no two are the same.
    ArchiveId(u64)
);
number!(
    /// The number of a cell; chosen at random when it is made, so that no two are the same. 0 is
    /// none.
    CellId(u64)
);
number!(
    /// One run of a client; it grows with each start. A client keeps it in its journal.
    Incarnation(u64)
);
number!(
    /// The period in which a client may rely on its leases: begun by the server, renewed by the
    /// client, ended by either. Never reused in a cell.
    Epoch(u64)
);
number!(
    /// One run of the metadata server of a cell; it grows with each start.
    Generation(u32)
);
number!(
    /// The number of a request, which tells a late reply from the expected one. Never reused by any
    /// incarnation of a client.
    RequestId(u64)
);
number!(
    /// The position of a change in a client's log; grows over all of the client's incarnations.
    Seq(u64)
);
number!(
    /// A position in a directory listing: the number its entry was given when it was made. 0 is
    /// before all entries.
    Cookie(u64)
);
number!(
    /// A fencing token: the number of a grant of a lease. It grows over all grants of a cell, the
    /// later grant having the larger token; the high half is the server's generation, so that no
    /// counter need be kept over its restarts.
    Token(u64)
);

/// A state of an rnode: how often it was changed, and by which change last.
///
/// Invariant: no two states of an rnode share a version, over all clients, incarnations and undone
/// changes. An epoch belongs to one incarnation of one client, in which the log's numbers only
/// grow; so epoch and number name one change of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Version {
    /// The number of changes so far; 1 when made.
    pub count: u64,
    /// The epoch in which the last of them was made; 0 for a state that the server made.
    pub epoch: Epoch,
    /// Its position in the log of its client.
    pub seq: Seq,
}
wire_struct!(Version { count, epoch, seq });

impl Version {
    /// The version of an rnode that the server made and no client has changed.
    pub const FIRST: Self = Self { count: 1, epoch: Epoch(0), seq: Seq(0) };

    /// Returns the version after one more change, made in `epoch` as `seq` of a log.
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
    /// Parses the text form, 16 lower-case hex digits; `None` for any other text, and for 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // Each number has one text form.
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 16 || !text.bytes().all(is_hex) {
            return None;
        }
        u64::from_str_radix(text, 16).ok().filter(|number| *number != 0).map(Self)
    }
}

impl Token {
    /// The token of a lease that no server granted: on an rnode that this client made and only it
    /// knows of.
    pub const BORN: Self = Self(0);

    /// Returns the `count`th token of a server's generation.
    #[must_use]
    pub fn new(generation: Generation, count: u32) -> Self {
        Self(u64::from(generation.0) << 32 | u64::from(count))
    }

    /// Returns a token smaller than every token of this generation, larger than those of earlier
    /// ones.
    #[must_use]
    pub fn before(generation: Generation) -> Self {
        Self::new(generation, 0)
    }
}

/// An rnode's number in its cell, never reused for another that the server has heard of. The high
/// half is the *slot* of the client that made it, the low half counts: so a client numbers new
/// rnodes without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RnodeId(pub u64);

impl Wire for RnodeId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match u64::get(from)? {
            0 => Err(WireError::Invalid { what: "an rnode number" }),
            id => Ok(Self(id)),
        }
    }
}

/// The first slot of snapshots. Clients never reach so many.
pub const SNAPSHOT_SLOTS: u32 = 1 << 30;

impl RnodeId {
    /// The root directory of a cell.
    pub const ROOT: Self = Self(1);

    /// The `count`th rnode made in `slot`.
    #[must_use]
    pub fn new(slot: u32, count: u32) -> Self {
        Self(u64::from(slot) << 32 | u64::from(count))
    }

    /// Returns the slot that the number belongs to. Slot 0 is the server's own.
    #[must_use]
    pub fn slot(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns true if the rnode is part of a snapshot, which is read-only.
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

/// A time on the clock of one machine that is never set: microseconds since some start, counting
/// while the machine sleeps (`CLOCK_BOOTTIME`). Moments of two machines, or of two boots of one,
/// cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the moment `micros` microseconds later.
    #[must_use]
    pub fn after(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// The access that a lease grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Keeps an rnode without a name alive while it is open, and nothing else.
    Hold,
    /// Read: answer from memory about the rnode and, of a directory, its names. Shared.
    Read,
    /// Write: change the rnode, and tell the server later. Exclusive.
    Write,
}

wire_enum!(Mode { 0 => Hold, 1 => Read, 2 => Write });

/// The BLAKE3 hash of a block's bytes: its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

impl Wire for BlockHash {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, WireError> {
        const WHAT: &str = "a hash";
        let bytes = from.take(32, WHAT)?;
        bytes.try_into().map(Self).map_err(|_| WireError::Short { what: WHAT })
    }
}

impl BlockHash {
    /// Returns the name of a block that is being written, and has no hash yet: 16 bytes of zeroes,
    /// which no hash begins with, and two numbers. Only its client knows it.
    #[must_use]
    pub fn open(incarnation: Incarnation, number: u64) -> Self {
        let mut name = [0; 32];
        name[16..24].copy_from_slice(&incarnation.0.to_be_bytes());
        name[24..].copy_from_slice(&number.to_be_bytes());
        Self(name)
    }

    /// Returns true if this names a block that is being written.
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

/// The text is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 digits in hex")]
pub struct NotAHash;

impl std::str::FromStr for BlockHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let mut hash = [0; 32];
        // Each hash has one text form: lower-case hex.
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
    fn rnode_number_contains_its_slot() {
        let id = RnodeId::new(7, 9);
        assert_eq!((id.slot(), id.count(), id.to_string().as_str()), (7, 9, "7.9"));
        assert_eq!(RnodeId::ROOT.slot(), 0);
    }
}
