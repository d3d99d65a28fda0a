//! Extended attributes: in a block of their own, or behind `i_extra_isize` in a larger inode.
//!
//! Both hold a row of entries that grows up and values that grow down from the end. An entry is
//! name length (1 byte), name index (1), value offset (2), value block or inode (4, always 0),
//! value size (4), hash (4), the name, padded to 4. A block starts with a header of 32 bytes:
//! magic, reference count, blocks (1), hash, checksum, reserve; its value offsets count from the
//! block's start and its entries are sorted. In an inode there is only the magic in front, and
//! offsets count from the first entry.

use super::bytes::{get8, get16, get32, put, put8, put16, put32};

/// The magic in front of both kinds.
pub const XATTR_MAGIC: u32 = 0xEA02_0000;
/// Bytes of an attribute block's header.
pub const XATTR_BLOCK_HEADER_BYTES: usize = 32;
/// Bytes of an entry in front of its name.
pub const XATTR_ENTRY_BYTES: usize = 16;

/// The prefix of an attribute's name, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrIndex(pub u8);

impl XattrIndex {
    /// `user.`
    pub const USER: Self = Self(1);
    /// `system.posix_acl_access`, the whole name.
    pub const ACL_ACCESS: Self = Self(2);
    /// `system.posix_acl_default`, the whole name.
    pub const ACL_DEFAULT: Self = Self(3);
    /// `trusted.`
    pub const TRUSTED: Self = Self(4);
    /// `security.`
    pub const SECURITY: Self = Self(6);
    /// `system.`
    pub const SYSTEM: Self = Self(7);

    /// Splits a full name into index and the rest; `None` if the prefix is not known.
    #[must_use]
    pub fn split(name: &[u8]) -> Option<(Self, &[u8])> {
        if name == b"system.posix_acl_access" {
            return Some((Self::ACL_ACCESS, b""));
        }
        if name == b"system.posix_acl_default" {
            return Some((Self::ACL_DEFAULT, b""));
        }
        [(Self::USER, &b"user."[..]), (Self::TRUSTED, b"trusted."), (Self::SECURITY, b"security.")]
            .into_iter()
            .find_map(|(index, prefix)| Some((index, name.strip_prefix(prefix)?)))
            .filter(|(_, rest)| !rest.is_empty())
    }

    /// The prefix this index stands for (the whole name, for the ACLs); `None` if unknown.
    #[must_use]
    pub fn prefix(self) -> Option<&'static [u8]> {
        Some(match self {
            Self::USER => b"user.",
            Self::ACL_ACCESS => b"system.posix_acl_access",
            Self::ACL_DEFAULT => b"system.posix_acl_default",
            Self::TRUSTED => b"trusted.",
            Self::SECURITY => b"security.",
            Self::SYSTEM => b"system.",
            _ => return None,
        })
    }
}

/// One attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xattr {
    /// The prefix.
    pub index: XattrIndex,
    /// The name behind the prefix.
    pub name: Vec<u8>,
    /// The value, as on disk (ACLs in their disk form).
    pub value: Vec<u8>,
}

impl Xattr {
    /// The full name; `None` for a prefix that is not known.
    #[must_use]
    pub fn full_name(&self) -> Option<Vec<u8>> {
        let mut name = self.index.prefix()?.to_vec();
        name.extend_from_slice(&self.name);
        Some(name)
    }

    /// Bytes of its entry and of its value, padded.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        entry_len(self.name.len()) + pad4(self.value.len())
    }

    fn sort_key(&self) -> (XattrIndex, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }
}

/// The region that attributes lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrRegion {
    /// In the inode.
    Inode,
    /// In a block.
    Block,
}

const fn pad4(n: usize) -> usize {
    (n + 3) & !3
}

const fn entry_len(name_len: usize) -> usize {
    pad4(XATTR_ENTRY_BYTES + name_len)
}

/// Reads entries that start at `first`; value offsets count from `base`.
fn parse_entries(
    bytes: &[u8],
    first: usize,
    base: usize,
    region: XattrRegion,
) -> Result<Vec<Xattr>, String> {
    // Find the end of the entries first: no value may lie below it.
    let mut end = first;
    loop {
        if end + 4 > bytes.len() {
            return Err("the list of attributes has no end".into());
        }
        if get32(bytes, end) == 0 {
            break;
        }
        end += entry_len(usize::from(get8(bytes, end)));
    }
    let mut all = Vec::new();
    let mut at = first;
    while at < end {
        let name_len = usize::from(get8(bytes, at));
        let index = XattrIndex(get8(bytes, at + 1));
        let value_at = base + usize::from(get16(bytes, at + 2));
        let size = get32(bytes, at + 8) as usize;
        let entry_at = at;
        if get32(bytes, at + 4) != 0 {
            return Err(format!("attribute entry at {entry_at}: value outside the block"));
        }
        let name = bytes
            .get(at + XATTR_ENTRY_BYTES..at + XATTR_ENTRY_BYTES + name_len)
            .ok_or_else(|| format!("attribute entry at {entry_at}: name past the end"))?
            .to_vec();
        let value = if size == 0 {
            Vec::new()
        } else {
            if value_at < end + 4 {
                return Err(format!("attribute entry at {entry_at}: value overlaps the entries"));
            }
            value_at
                .checked_add(size)
                .and_then(|value_end| bytes.get(value_at..value_end))
                .ok_or_else(|| format!("attribute entry at {entry_at}: value past the end"))?
                .to_vec()
        };
        if region == XattrRegion::Block {
            let hash = get32(bytes, at + 12);
            if hash != 0 && hash != xattr_entry_hash(&name, &value) && name.iter().all(u8::is_ascii)
            {
                return Err(format!("attribute entry at {entry_at}: hash does not match"));
            }
        }
        all.push(Xattr { index, name, value });
        at += entry_len(name_len);
    }
    Ok(all)
}

/// Lays attributes out over `bytes` (zeroed here from `first` on). `false` if they do not fit.
fn encode_entries(
    bytes: &mut [u8],
    first: usize,
    base: usize,
    all: &[Xattr],
    with_hash: bool,
) -> bool {
    let need: usize = all.iter().map(Xattr::len_bytes).sum();
    if first + need + 4 > bytes.len() || all.iter().any(|a| a.name.len() > 255) {
        return false;
    }
    bytes[first..].fill(0);
    let mut sorted: Vec<&Xattr> = all.iter().collect();
    sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    let mut at = first;
    let mut value_at = bytes.len();
    for attr in sorted {
        put8(bytes, at, u8::try_from(attr.name.len()).unwrap_or(0));
        put8(bytes, at + 1, attr.index.0);
        if !attr.value.is_empty() {
            value_at -= pad4(attr.value.len());
            put(bytes, value_at, &attr.value);
            put16(bytes, at + 2, u16::try_from(value_at - base).unwrap_or(0));
        }
        put32(bytes, at + 8, u32::try_from(attr.value.len()).unwrap_or(0));
        if with_hash {
            put32(bytes, at + 12, xattr_entry_hash(&attr.name, &attr.value));
        }
        put(bytes, at + XATTR_ENTRY_BYTES, &attr.name);
        at += entry_len(attr.name.len());
    }
    true
}

/// Reads an attribute block.
///
/// # Errors
/// A description of the fault.
pub fn parse_xattr_block(block: &[u8]) -> Result<Vec<Xattr>, String> {
    if get32(block, 0) != XATTR_MAGIC {
        return Err(format!("invalid magic {:#x} of the attribute block", get32(block, 0)));
    }
    if get32(block, 8) != 1 {
        return Err(format!(
            "the attribute block's count of blocks is {}, should be 1",
            get32(block, 8)
        ));
    }
    if get32(block, 4) == 0 {
        return Err("attribute block's reference count is 0".into());
    }
    parse_entries(block, XATTR_BLOCK_HEADER_BYTES, 0, XattrRegion::Block)
}

/// Returns the number of inodes that share an attribute block (the field at 4).
#[must_use]
pub fn xattr_block_refcount(block: &[u8]) -> u32 {
    get32(block, 4)
}

/// A new attribute block of `block_bytes`, with one reference; `None` if they do not fit.
#[must_use]
pub fn encode_xattr_block(block_bytes: usize, all: &[Xattr]) -> Option<Vec<u8>> {
    let mut block = vec![0; block_bytes];
    if !encode_entries(&mut block, XATTR_BLOCK_HEADER_BYTES, 0, all, true) {
        return None;
    }
    put32(&mut block, 0, XATTR_MAGIC);
    put32(&mut block, 4, 1);
    put32(&mut block, 8, 1);
    let hash = xattr_block_hash(&block);
    put32(&mut block, 12, hash);
    Some(block)
}

/// Reads the attributes in an inode: `region` is its slot from `128 + i_extra_isize` on. None,
/// if the magic is not there.
///
/// # Errors
/// A description of the fault.
pub fn parse_xattr_inode(region: &[u8]) -> Result<Vec<Xattr>, String> {
    if region.len() < 8 || get32(region, 0) != XATTR_MAGIC {
        return Ok(Vec::new());
    }
    parse_entries(region, 4, 4, XattrRegion::Inode)
}

/// Lays attributes out in an inode's region (as for [`parse_xattr_inode`]); `None` if they do
/// not fit. No attributes give a region of zeroes.
#[must_use]
pub fn encode_xattr_inode(region_bytes: usize, all: &[Xattr]) -> Option<Vec<u8>> {
    let mut region = vec![0; region_bytes];
    if all.is_empty() {
        return Some(region);
    }
    if region_bytes < 8 || !encode_entries(&mut region, 4, 4, all, false) {
        return None;
    }
    put32(&mut region, 0, XATTR_MAGIC);
    Some(region)
}

/// The hash of an entry: over its name and its value in words of 4 bytes.
#[must_use]
pub fn xattr_entry_hash(name: &[u8], value: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for &byte in name {
        hash = (hash << 5) ^ (hash >> 27) ^ u32::from(byte);
    }
    for chunk in value.chunks(4) {
        let mut word = [0; 4];
        put(&mut word, 0, chunk);
        hash = hash.rotate_left(16) ^ u32::from_le_bytes(word);
    }
    hash
}

/// The hash of an attribute block: over the hashes of its entries, 0 if one of those is 0.
#[must_use]
pub fn xattr_block_hash(block: &[u8]) -> u32 {
    let mut hash = 0_u32;
    let mut at = XATTR_BLOCK_HEADER_BYTES;
    while at + XATTR_ENTRY_BYTES <= block.len() && get32(block, at) != 0 {
        let entry = get32(block, at + 12);
        if entry == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry;
        at += entry_len(usize::from(get8(block, at)));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attr(name: &[u8], value: &[u8]) -> Xattr {
        let (index, rest) = XattrIndex::split(name).unwrap();
        Xattr { index, name: rest.to_vec(), value: value.to_vec() }
    }

    #[test]
    fn names_split() {
        assert_eq!(XattrIndex::split(b"user.a"), Some((XattrIndex::USER, &b"a"[..])));
        assert_eq!(XattrIndex::split(b"user."), None);
        assert_eq!(XattrIndex::split(b"other.a"), None);
        assert_eq!(attr(b"security.selinux", b"").full_name().unwrap(), b"security.selinux");
    }

    #[test]
    fn both_regions_round_trip() {
        let all =
            [attr(b"user.a", b"1"), attr(b"user.empty", b""), attr(b"trusted.long", &[9; 200])];
        let block = encode_xattr_block(1024, &all).unwrap();
        assert_eq!(parse_xattr_block(&block).unwrap(), all);
        let region = encode_xattr_inode(512, &all).unwrap();
        assert_eq!(parse_xattr_inode(&region).unwrap(), all);
        assert!(encode_xattr_inode(96, &all).is_none());
        assert!(parse_xattr_inode(&encode_xattr_inode(96, &[]).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_hash_is_found() {
        let mut block = encode_xattr_block(1024, &[attr(b"user.a", b"abcd")]).unwrap();
        *block.last_mut().unwrap() ^= 1;
        assert!(parse_xattr_block(&block).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(mut block in prop::collection::vec(any::<u8>(), 64..1200)) {
            put32(&mut block, 0, XATTR_MAGIC);
            put32(&mut block, 4, 1);
            put32(&mut block, 8, 1);
            let _ = parse_xattr_block(&block);
            let _ = xattr_block_hash(&block);
            let _ = parse_xattr_inode(&block);
        }
    }
}
