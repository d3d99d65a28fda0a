//! Hash trees of indexed directories. weft reads such directories without them; Linux looks names
//! up by them and finds nothing where one is wrong.
//!
//! Block 0 holds the root behind `.` and `..`: at 0x1C the version of the hash, at 0x1D the length
//! of this part (8), at 0x1E the levels of inner nodes, at 0x20 the entries. An inner node is one
//! free record of the whole block with the entries behind it at 8. Entries are pairs of hash and
//! block of the file; the first one's hash is instead the room (16 bits) and the number (16) of
//! entries, and it counts as 0. The names of a leaf lie between its hash and the next one's.
//!
//! The hashes are public algorithms: half of MD4 (three rounds over 8 words), TEA as a compression
//! function, and an early multiplicative one, all seeded by the superblock.

use crate::layout::bytes::{get8, get16, get32};
use crate::layout::{Dirents, Superblock};
use hashbrown::HashMap;

/// The highest hash of a name.
const LAST_HASH: u32 = 0xffff_fffe;

/// A block of an indexed directory.
#[derive(Debug)]
enum Block {
    Node(Vec<(u32, u32)>),
    Leaf { lowest: u32, highest: u32 },
}

/// The state of a check of one directory's tree while its blocks are read.
#[derive(Debug)]
pub(super) struct Htree {
    seed: [u32; 4],
    unsigned: bool,
    version: u8,
    levels: u8,
    blocks: HashMap<u32, Block>,
    problem: Option<&'static str>,
}

impl Htree {
    pub(super) fn new(superblock: &Superblock) -> Self {
        Self {
            seed: superblock.hash_seed,
            unsigned: superblock.flags & 2 != 0,
            version: 0,
            levels: 0,
            blocks: HashMap::new(),
            problem: None,
        }
    }

    /// Takes in the next block of the directory.
    pub(super) fn add(&mut self, logical: u32, block: &[u8], filetype: bool) {
        let node_room = (block.len() - 8) / 8;
        let parsed = if logical == 0 {
            self.root(block)
        } else if get32(block, 0) == 0
            && usize::from(get16(block, 4)) == block.len()
            && get8(block, 6) == 0
            && usize::from(get16(block, 8)) == node_room
        {
            entries(block, 8).map(Block::Node)
        } else {
            Ok(self.leaf(block, filetype))
        };
        match parsed {
            Ok(parsed) => {
                self.blocks.insert(logical, parsed);
            }
            Err(problem) => self.problem = self.problem.or(Some(problem)),
        }
    }

    fn root(&mut self, block: &[u8]) -> Result<Block, &'static str> {
        self.version = get8(block, 0x1C);
        self.levels = get8(block, 0x1E);
        if usize::from(get16(block, 12 + 4)) != block.len() - 12 || get8(block, 0x1D) != 8 {
            return Err("invalid root node");
        }
        if get32(block, 0x18) != 0 || self.version > 2 || get8(block, 0x1F) & 1 != 0 {
            return Err("unknown hash version");
        }
        if self.levels > 1 {
            return Err("more than two levels");
        }
        entries(block, 0x20).map(Block::Node)
    }

    fn leaf(&self, block: &[u8], filetype: bool) -> Block {
        let (mut lowest, mut highest) = (u32::MAX, 0);
        for record in Dirents::new(block, filetype).map_while(Result::ok).filter(|r| r.ino != 0) {
            let hash = hash(self.version, self.unsigned, &self.seed, record.name);
            lowest = lowest.min(hash);
            highest = highest.max(hash);
        }
        Block::Leaf { lowest, highest }
    }

    /// Returns the fault of the tree of a directory of `blocks` blocks, if it has one.
    pub(super) fn finish(self, blocks: u32) -> Option<&'static str> {
        if self.problem.is_some() {
            return self.problem;
        }
        let mut seen = vec![false; blocks as usize];
        // Block, level, and the hashes its names may have.
        let mut todo = vec![(0_u32, 0_u8, 0_u32, LAST_HASH)];
        while let Some((at, level, from, to)) = todo.pop() {
            match seen.get_mut(at as usize) {
                None => return Some("an entry points past the end of the directory"),
                Some(true) => return Some("two entries point to one block"),
                Some(seen) => *seen = true,
            }
            match self.blocks.get(&at) {
                None => return Some("an entry points to a block that is not allocated"),
                Some(Block::Node(entries)) if level <= self.levels => {
                    for (i, &(hash, block)) in entries.iter().enumerate() {
                        let low = if i == 0 { from } else { hash & !1 };
                        let high = entries.get(i + 1).map_or(to, |next| next.0 & !1);
                        if low > high || low < from || high > to {
                            return Some("hashes are out of order");
                        }
                        todo.push((block & 0x0fff_ffff, level + 1, low, high));
                    }
                }
                Some(Block::Leaf { lowest, highest }) if level == self.levels + 1 => {
                    if *lowest != u32::MAX && (*lowest < from || *highest > to) {
                        return Some("a name is in the wrong leaf");
                    }
                }
                Some(_) => return Some("leaves at different depths"),
            }
        }
        seen.iter().any(|seen| !seen).then_some("no entry points to one of the blocks")
    }
}

/// The entries at `at`, the first with hash 0.
fn entries(block: &[u8], at: usize) -> Result<Vec<(u32, u32)>, &'static str> {
    let (limit, count) = (usize::from(get16(block, at)), usize::from(get16(block, at + 2)));
    if limit != (block.len() - at) / 8 || count == 0 || count > limit {
        return Err("a node has an invalid number of entries");
    }
    let entry = |i: usize| {
        let hash = if i == 0 { 0 } else { get32(block, at + 8 * i) };
        (hash, get32(block, at + 8 * i + 4))
    };
    Ok((0..count).map(entry).collect())
}

/// The hash of a name: `version` 0 is the early one, 1 half MD4, 2 TEA.
fn hash(version: u8, unsigned: bool, seed: &[u32; 4], name: &[u8]) -> u32 {
    let mut state =
        if *seed == [0; 4] { [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476] } else { *seed };
    let raw = match version {
        0 => early(name, unsigned),
        1 => {
            let mut rest = name;
            while !rest.is_empty() {
                half_md4(&mut state, &words::<8>(rest, unsigned));
                rest = rest.get(32..).unwrap_or_default();
            }
            state[1]
        }
        _ => {
            let mut rest = name;
            while !rest.is_empty() {
                tea(&mut state, &words::<4>(rest, unsigned));
                rest = rest.get(16..).unwrap_or_default();
            }
            state[0]
        }
    };
    // The highest number stands for the end of a directory.
    if raw & !1 == LAST_HASH { LAST_HASH - 2 } else { raw & !1 }
}

/// A character as the hash sees it: as Linux's `char` on the machine that made the volume.
fn character(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { i32::from(byte.cast_signed()).cast_unsigned() }
}

/// The next characters as `N` words, padded with the length of what is left.
fn words<const N: usize>(name: &[u8], unsigned: bool) -> [u32; N] {
    let len = u32::try_from(name.len()).unwrap_or(0);
    let pad = len | len << 8;
    let pad = pad | pad << 16;
    let mut out = [pad; N];
    for (word, bytes) in out.iter_mut().zip(name.chunks(4)) {
        *word = bytes.iter().fold(pad, |v, &b| character(b, unsigned).wrapping_add(v << 8));
    }
    out
}

fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    let rounds: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            0x5a82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        ),
        (|x, y, z| x ^ y ^ z, 0x6ed9_eba1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in rounds {
        for (step, &i) in order.iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[i]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

fn tea(state: &mut [u32; 4], input: &[u32; 4]) {
    let [a, b, c, d] = *input;
    let [mut x, mut y, ..] = *state;
    let mut sum = 0_u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mix = |v: u32, k0: u32, k1: u32| {
            (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
        };
        x = x.wrapping_add(mix(y, a, b));
        y = y.wrapping_add(mix(x, c, d));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

fn early(name: &[u8], unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let product = character(byte, unsigned).wrapping_mul(7_152_373);
        let mut next = before.wrapping_add(last ^ product);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        before = last;
        last = next;
    }
    last << 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn hashes_are_those_of_debugfs() {
        if Command::new("debugfs").arg("-V").output().is_err() {
            println!("skipped: debugfs is not installed");
            return;
        }
        let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
        let seed = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
        let long = "a-name-of-more-than-thirty-two-characters-so-that-there-are-two-rounds";
        for (version, kind) in [(0, "legacy"), (1, "half_md4"), (2, "tea")] {
            for name in ["a", "four", "lost+found", "exactly-thirty-two-characters-xx", long, "é-ü"]
            {
                for (seed, option) in [([0; 4], String::new()), (seed, format!("-s {uuid}"))] {
                    let request = format!("dx_hash -h {kind} {option} {name}");
                    let out = Command::new("debugfs").args(["-R", &request]).output().unwrap();
                    let text = String::from_utf8_lossy(&out.stdout).into_owned();
                    let ours = hash(version, false, &seed, name.as_bytes());
                    let want = format!("is 0x{ours:08x}");
                    let short = format!("is {ours:#x}");
                    assert!(text.contains(&want) || text.contains(&short), "{request}: {text}");
                }
            }
        }
    }
}
