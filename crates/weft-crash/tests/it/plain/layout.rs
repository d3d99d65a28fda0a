//! The layout of a volume of the plain format, in blocks of 1 or 4 KiB, all numbers little-endian:
//!
//! | block | |
//! |---|---|
//! | 0 | the magic |
//! | 1 | a bit for each block |
//! | 2 | a bit for each inode |
//! | 3 to 66 | inodes of 256 bytes, from number 1, the root, on |
//!
//! An inode points at 40 blocks and at one of further pointers. A directory is a row of records of
//! 512 bytes, so that none is torn: the inode (4 bytes, 0 if free), the name's length, the name;
//! the first two are `.` and `..`. A symbolic link's target is its first block. Attributes lie in a
//! block of their own.

use weft_patch::BlockNr;
use weft_unix::{Attribute, Inode};
use weft_vfs::{FileFlags, Time};

pub const MAGIC: &[u8; 8] = b"plainfs1";
pub const BLOCK_BITS: BlockNr = BlockNr(1);
pub const INODE_BITS: BlockNr = BlockNr(2);
pub const INODE_TABLE: u64 = 3;
const INODE_TABLE_BLOCKS: u64 = 64;
pub const FIRST_DATA: u64 = INODE_TABLE + INODE_TABLE_BLOCKS;
pub const INODE_BYTES: usize = 256;
pub const DIRECT: usize = 40;
pub const RECORD_BYTES: usize = 512;
const NAME_AT: usize = 5;

pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn inodes(block_bytes: usize) -> u64 {
    INODE_TABLE_BLOCKS * (block_bytes / INODE_BYTES) as u64
}

pub fn inode_place(block_bytes: usize, ino: u64) -> (BlockNr, usize) {
    let per_block = (block_bytes / INODE_BYTES) as u64;
    let index = ino - 1;
    (BlockNr(INODE_TABLE + index / per_block), (index % per_block) as usize * INODE_BYTES)
}

/// The pointers of an inode: data, then one block of further pointers, then the attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointers {
    pub direct: [u32; DIRECT],
    pub indirect: u32,
    pub attributes: u32,
}

impl Default for Pointers {
    fn default() -> Self {
        Self { direct: [0; DIRECT], indirect: 0, attributes: 0 }
    }
}

pub fn encode(inode: &Inode, pointers: &Pointers) -> [u8; INODE_BYTES] {
    let mut raw = [0; INODE_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        raw[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&inode.mode.to_le_bytes());
    put(&(inode.links as u16).to_le_bytes());
    for word in [inode.uid, inode.gid, inode.generation, inode.rdev, inode.blocks_512 as u32] {
        put(&word.to_le_bytes());
    }
    put(&inode.size_bytes.to_le_bytes());
    for time in [inode.atime, inode.mtime, inode.ctime] {
        put(&time.secs.to_le_bytes());
        put(&time.nanos.to_le_bytes());
    }
    pointers.direct.iter().for_each(|nr| put(&nr.to_le_bytes()));
    put(&pointers.indirect.to_le_bytes());
    put(&pointers.attributes.to_le_bytes());
    raw
}

pub fn decode(raw: &[u8]) -> (Inode, Pointers) {
    let time = |at: usize| Time {
        secs: get64(raw, at).cast_signed(),
        nanos: get32(raw, at + 8).min(999_999_999),
    };
    let inode = Inode {
        mode: u16::from_le_bytes([raw[0], raw[1]]),
        links: u32::from(u16::from_le_bytes([raw[2], raw[3]])),
        uid: get32(raw, 4),
        gid: get32(raw, 8),
        generation: get32(raw, 12),
        rdev: get32(raw, 16),
        blocks_512: u64::from(get32(raw, 20)),
        size_bytes: get64(raw, 24),
        atime: time(32),
        mtime: time(44),
        ctime: time(56),
        btime: None,
        flags: FileFlags::empty(),
    };
    let mut pointers = Pointers::default();
    for (i, nr) in pointers.direct.iter_mut().enumerate() {
        *nr = get32(raw, 68 + 4 * i);
    }
    pointers.indirect = get32(raw, 68 + 4 * DIRECT);
    pointers.attributes = get32(raw, 72 + 4 * DIRECT);
    (inode, pointers)
}

pub fn record(ino: u32, name: &[u8]) -> [u8; RECORD_BYTES] {
    let mut raw = [0; RECORD_BYTES];
    raw[..4].copy_from_slice(&ino.to_le_bytes());
    raw[4] = name.len() as u8;
    raw[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
    raw
}

/// The inode and the name of a record.
pub fn entry(record: &[u8]) -> (u32, &[u8]) {
    let len = usize::from(record[4]);
    (get32(record, 0), &record[NAME_AT..NAME_AT + len])
}

/// Returns the bytes of a record behind its inode: the length of its name, and the name.
pub fn name_bytes(name: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name].concat()
}

/// Encodes attributes in a block: the lengths of name and value, then both. Returns `None` if there
/// are too many.
pub fn encode_attributes(block_bytes: usize, attributes: &[Attribute]) -> Option<Vec<u8>> {
    let mut block = Vec::new();
    for Attribute { name, value } in attributes {
        block.push(name.len() as u8);
        block.extend((value.len() as u16).to_le_bytes());
        block.extend_from_slice(name);
        block.extend_from_slice(value);
    }
    (block.len() < block_bytes).then(|| {
        block.resize(block_bytes, 0);
        block
    })
}

pub fn decode_attributes(mut block: &[u8]) -> Vec<Attribute> {
    let mut all = Vec::new();
    while let [name_len, low, high, rest @ ..] = block {
        if *name_len == 0 {
            break;
        }
        let value_len = usize::from(u16::from_le_bytes([*low, *high]));
        let (name, rest) = rest.split_at(usize::from(*name_len));
        let (value, rest) = rest.split_at(value_len);
        all.push(Attribute { name: name.to_vec(), value: value.to_vec() });
        block = rest;
    }
    all
}
