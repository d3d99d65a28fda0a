//! The journal's superblock: geometry of the ring, start of the live log, features.

use super::{BlockType, Error, Header, Result, be, checksum};
use std::fmt::Write as _;

/// Length of the structure in bytes; the rest of its block is unused.
pub const SUPERBLOCK_BYTES: usize = 1024;
/// Maximum number of file systems that can share one external journal.
pub const FORMAT_MAX_USERS: usize = 48;

const BLOCK_BYTES: usize = 0x0c;
const MAX_LEN: usize = 0x10;
const FIRST: usize = 0x14;
const SEQUENCE: usize = 0x18;
const START: usize = 0x1c;
const ERRNO: usize = 0x20;
const COMPAT: usize = 0x24;
const INCOMPAT: usize = 0x28;
const RO_COMPAT: usize = 0x2c;
const UUID: usize = 0x30;
const NR_USERS: usize = 0x40;
const CHECKSUM_TYPE: usize = 0x50;
const CHECKSUM: usize = 0xfc;
const USERS: usize = 0x100;
const CHECKSUM_CRC32C: u8 = 4;

/// Feature bits of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Features that an old implementation may ignore.
    pub compat: u32,
    /// Features that an implementation must know to use the journal at all.
    pub incompat: u32,
    /// Features that an implementation must know to write to the journal.
    pub ro_compat: u32,
}

impl Features {
    /// Compatible: commit blocks carry a CRC32 of their transaction.
    pub const COMPAT_CHECKSUM: u32 = 1;
    /// Incompatible: there may be revoke blocks.
    pub const REVOKE: u32 = 1;
    /// Incompatible: block numbers have 64 bits.
    pub const BITS64: u32 = 2;
    /// Incompatible: the commit block may be written before the transaction is durable.
    pub const ASYNC_COMMIT: u32 = 4;
    /// Incompatible: CRC32C of every block, 16 bits of it in a tag.
    pub const CSUM_V2: u32 = 8;
    /// Incompatible: CRC32C of every block, 32 bits of it in a tag.
    pub const CSUM_V3: u32 = 16;
    /// Incompatible: part of the log holds logical changes. Not supported here.
    pub const FAST_COMMIT: u32 = 32;

    const KNOWN_INCOMPAT: u32 =
        Self::REVOKE | Self::BITS64 | Self::ASYNC_COMMIT | Self::CSUM_V2 | Self::CSUM_V3;

    /// Returns the features of weft's own journals: revoke records.
    #[must_use]
    pub fn revoke() -> Self {
        Self { incompat: Self::REVOKE, ..Self::default() }
    }

    /// Returns the features for revoke records and full checksums.
    #[must_use]
    pub fn revoke_and_checksums() -> Self {
        Self { incompat: Self::REVOKE | Self::CSUM_V3, ..Self::default() }
    }

    pub(super) fn has(self, incompat: u32) -> bool {
        self.incompat & incompat != 0
    }

    /// Returns true if blocks carry CRC32C checksums.
    pub(super) fn csum(self) -> bool {
        self.has(Self::CSUM_V2 | Self::CSUM_V3)
    }

    /// Returns true if commit blocks carry the old CRC32 of the transaction.
    pub(super) fn transaction_crc(self) -> bool {
        self.compat & Self::COMPAT_CHECKSUM != 0 && !self.csum()
    }

    /// Returns the number of bytes at the end of descriptor and revoke blocks that hold their
    /// checksum.
    pub(super) fn tail_bytes(self) -> usize {
        if self.csum() { 4 } else { 0 }
    }

    fn check(self) -> Result<()> {
        let unknown = self.incompat & !Self::KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(Error::UnknownFeatures {
                kind: "incompatible",
                names: bit_names(unknown, &[(Self::FAST_COMMIT, "fast_commit")]),
            });
        }
        if self.ro_compat != 0 {
            return Err(Error::UnknownFeatures {
                kind: "read-only-compatible",
                names: bit_names(self.ro_compat, &[]),
            });
        }
        if self.has(Self::CSUM_V2) && self.has(Self::CSUM_V3) {
            return Err(Error::BadSuperblock("both checksum v2 and checksum v3 are set".into()));
        }
        Ok(())
    }
}

fn bit_names(bits: u32, known: &[(u32, &str)]) -> String {
    let mut rest = bits;
    let mut text = String::new();
    for (bit, name) in known {
        if rest & bit != 0 {
            rest &= !bit;
            let _ = write!(text, "{}{name}", if text.is_empty() { "" } else { ", " });
        }
    }
    if rest != 0 {
        let _ = write!(text, "{}{rest:#x}", if text.is_empty() { "" } else { ", " });
    }
    text
}

/// A checked journal superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Whether it has the fields from the features on (type 4 on disk).
    pub version2: bool,
    /// Bytes in a log block, 1024 to 65536, a power of two.
    pub block_bytes: u32,
    /// Length of the log in blocks, counted from log block 0.
    pub len_blocks: u32,
    /// First log block of the ring.
    pub first: u32,
    /// Sequence number expected in the block at `start`; if clean, the last one used or the next.
    pub sequence: u32,
    /// Log block at which the live log starts; zero: nothing to replay.
    pub start: u32,
    /// An error of the file system, as a negative or positive errno; zero: none.
    pub errno: i32,
    /// Features; all clear in version 1.
    pub features: Features,
    /// Identifies the journal.
    pub uuid: [u8; 16],
    /// The file systems that use an external journal.
    pub users: Vec<[u8; 16]>,
}

impl Superblock {
    /// Reads and checks a superblock from the first 1024 bytes of `block`.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] and [`Error::UnknownFeatures`].
    pub fn parse(block: &[u8]) -> Result<Self> {
        let bad = |text: String| Err(Error::BadSuperblock(text));
        let Some(raw) = block.get(..SUPERBLOCK_BYTES) else {
            return bad(format!("only {} bytes long", block.len()));
        };
        let version2 = match Header::parse(raw).map(|h| h.block_type) {
            Some(BlockType::SuperblockV1) => false,
            Some(BlockType::SuperblockV2) => true,
            Some(other) => return bad(format!("has the type of a {other:?} block")),
            None => return bad("wrong magic number or block type".into()),
        };
        let get = |at| be::get32(raw, at).unwrap_or(0);
        let features = if version2 {
            Features { compat: get(COMPAT), incompat: get(INCOMPAT), ro_compat: get(RO_COMPAT) }
        } else {
            Features::default()
        };
        features.check()?;
        if features.csum() {
            let kind = raw.get(CHECKSUM_TYPE).copied().unwrap_or(0);
            if kind != CHECKSUM_CRC32C {
                return bad(format!("checksum type {kind} is not CRC32C"));
            }
            let (want, got) = (get(CHECKSUM), checksum::block_csum(!0, raw, CHECKSUM));
            if want != got {
                return bad(format!("checksum is {got:#010x}, should be {want:#010x}"));
            }
        }
        let field = |at: usize| -> [u8; 16] {
            raw.get(at..at + 16).and_then(|s| s.try_into().ok()).unwrap_or_default()
        };
        let nr_users = if version2 { get(NR_USERS) as usize } else { 0 };
        if nr_users > FORMAT_MAX_USERS {
            return bad(format!("{nr_users} users, more than {FORMAT_MAX_USERS}"));
        }
        let this = Self {
            version2,
            block_bytes: get(BLOCK_BYTES),
            len_blocks: get(MAX_LEN),
            first: get(FIRST),
            sequence: get(SEQUENCE),
            start: get(START),
            errno: get(ERRNO).cast_signed(),
            features,
            uuid: if version2 { field(UUID) } else { [0; 16] },
            users: (0..nr_users).map(|i| field(USERS + 16 * i)).collect(),
        };
        this.check_geometry()?;
        Ok(this)
    }

    fn check_geometry(&self) -> Result<()> {
        let bad = |text: String| Err(Error::BadSuperblock(text));
        if !(1024..=65536).contains(&self.block_bytes) || !self.block_bytes.is_power_of_two() {
            return bad(format!("block size {} bytes", self.block_bytes));
        }
        if self.first == 0 || self.first >= self.len_blocks {
            return bad(format!(
                "first block {} with a length of {} blocks",
                self.first, self.len_blocks
            ));
        }
        if self.start != 0 && !(self.first..self.len_blocks).contains(&self.start) {
            return bad(format!(
                "log starts at block {}, outside {}..{}",
                self.start, self.first, self.len_blocks
            ));
        }
        Ok(())
    }

    /// Writes the known fields over `block`, leaving its other bytes, and the checksum if the
    /// features require one. `block` must be at least 1024 bytes long.
    ///
    /// # Errors
    /// [`Error::BadSuperblock`] for fields that [`parse`](Self::parse) would refuse.
    pub fn encode(&self, block: &mut [u8]) -> Result<()> {
        self.features.check()?;
        self.check_geometry()?;
        let len_bytes = block.len();
        let Some(raw) = block.get_mut(..SUPERBLOCK_BYTES) else {
            return Err(Error::BadSuperblock(format!("no room in {len_bytes} bytes")));
        };
        let block_type =
            if self.version2 { BlockType::SuperblockV2 } else { BlockType::SuperblockV1 };
        Header { block_type, sequence: 0 }.encode(raw);
        be::put32(raw, BLOCK_BYTES, self.block_bytes);
        be::put32(raw, MAX_LEN, self.len_blocks);
        be::put32(raw, FIRST, self.first);
        be::put32(raw, SEQUENCE, self.sequence);
        be::put32(raw, START, self.start);
        be::put32(raw, ERRNO, self.errno.cast_unsigned());
        if !self.version2 {
            return Ok(());
        }
        be::put32(raw, COMPAT, self.features.compat);
        be::put32(raw, INCOMPAT, self.features.incompat);
        be::put32(raw, RO_COMPAT, self.features.ro_compat);
        be::put(raw, UUID, &self.uuid);
        let users = self.users.get(..FORMAT_MAX_USERS).unwrap_or(&self.users);
        be::put32(raw, NR_USERS, u32::try_from(users.len()).unwrap_or(0));
        for (i, user) in users.iter().enumerate() {
            be::put(raw, USERS + 16 * i, user);
        }
        if self.features.csum() {
            be::put(raw, CHECKSUM_TYPE, &[CHECKSUM_CRC32C]);
            let sum = checksum::block_csum(!0, raw, CHECKSUM);
            be::put32(raw, CHECKSUM, sum);
        }
        Ok(())
    }

    /// Returns the number of blocks in the ring, the maximum that can be live at once.
    #[must_use]
    pub fn ring_blocks(&self) -> u32 {
        self.len_blocks.saturating_sub(self.first)
    }

    /// Returns the log block `count` blocks further round the ring from `block`, which must be in
    /// it.
    #[must_use]
    pub fn advance(&self, block: u32, count: u32) -> u32 {
        let ring = u64::from(self.ring_blocks()).max(1);
        let at = u64::from(block.saturating_sub(self.first)) + u64::from(count);
        self.first + u32::try_from(at % ring).unwrap_or(0)
    }
}

/// Parameters of a new journal.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Bytes in a log block: the volume's block size.
    pub block_bytes: u32,
    /// Length of the log in blocks, the superblock's included. On an external device, the length
    /// of the device.
    pub len_blocks: u32,
    /// Log block of the superblock: 0 inside a volume or in a plain file; on an external device,
    /// the block after the one that holds byte 1024.
    pub superblock_at: u32,
    /// Identifies the journal; inside a volume, zeroes or the volume's uuid.
    pub uuid: [u8; 16],
    /// Features.
    pub features: Features,
    /// The file systems that use it, for an external journal.
    pub users: Vec<[u8; 16]>,
}

/// Returns the superblock's block of a new, empty journal.
///
/// # Errors
/// [`Error::BadSuperblock`] if the sizes are invalid.
pub fn format_journal_superblock(options: &FormatOptions) -> Result<Vec<u8>> {
    let superblock = Superblock {
        version2: true,
        block_bytes: options.block_bytes,
        len_blocks: options.len_blocks,
        first: options.superblock_at.saturating_add(1),
        sequence: 1,
        start: 0,
        errno: 0,
        features: options.features,
        uuid: options.uuid,
        users: options.users.clone(),
    };
    superblock.check_geometry()?;
    let mut block = vec![0; options.block_bytes as usize];
    superblock.encode(&mut block)?;
    // e2fsprogs writes 1 here for an internal journal too, and expects at least one.
    if options.users.is_empty() {
        be::put32(&mut block, NR_USERS, u32::from(options.superblock_at == 0));
        if options.features.csum() {
            let sum = checksum::block_csum(!0, &block[..SUPERBLOCK_BYTES], CHECKSUM);
            be::put32(&mut block, CHECKSUM, sum);
        }
    }
    Ok(block)
}
