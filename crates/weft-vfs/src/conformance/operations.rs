//! The operations of the random comparison: small values, so that operations often concern the same
//! names and ranges.

use crate::{
    Caller, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, Node, OpenFlags, RenameFlags,
    Result, SetAttr, SetTime, Time, XattrSet,
};

use super::limits::Limits;
use super::seeded::{Random, pattern};

/// A path of one to three short names.
pub(super) type Place = Vec<u8>;

#[derive(Debug, Clone)]
pub(super) enum Operation {
    Make { at: Place, kind: FileKind, perm: u16 },
    Mkdir { at: Place, perm: u16 },
    Symlink { at: Place, len: usize },
    Link { from: Place, to: Place },
    Unlink { at: Place },
    Rmdir { at: Place },
    Rename { from: Place, to: Place, flags: RenameFlags },
    Write { at: Place, offset: u64, len: usize, seed: u64 },
    Resize { at: Place, size: u64 },
    Chmod { at: Place, perm: u16 },
    Chown { at: Place, uid: u32, gid: u32 },
    Touch { at: Place, secs: i64 },
    SetXattr { at: Place, name: u8, len: usize, how: XattrSet },
    RemoveXattr { at: Place, name: u8 },
    Fallocate { at: Place, mode: FallocateMode, offset: u64, len: u64 },
    Copy { from: Place, to: Place, offset: u64, len: u64 },
    Open { at: Place, slot: usize, append: bool },
    WriteSlot { slot: usize, offset: u64, len: usize, seed: u64 },
    ReadSlot { slot: usize, offset: u64, len: usize },
    CloseSlot { slot: usize },
    Fsync { at: Place },
    Sync,
}

const SLOTS: usize = 3;

fn place(random: &mut Random, limits: &Limits) -> Place {
    let depth = [1, 1, 1, 2, 2, 2, 3][random.below(7)];
    let names: Vec<Vec<u8>> = (0..depth)
        .map(|_| match random.below(6) {
            5 => vec![b'L'; limits.name_bytes.min(200)],
            nr => vec![b'a' + nr as u8],
        })
        .collect();
    names.join(&b'/')
}

/// Mostly within the first pages, at times far out.
fn offset(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => 4096 * random.below(20) as u64,
        2 => (60 << 10) + random.below(5000) as u64,
        3 => (300 << 10) + random.below(5000) as u64,
        _ => random.below(20_000) as u64,
    }
}

pub(super) fn random_operation(random: &mut Random, limits: &Limits) -> Operation {
    let seed = random.next();
    let at = place(random, limits);
    let perm = [0o644, 0o600, 0o755, 0o4755][random.below(4)];
    let slot = random.below(SLOTS);
    match random.below(43) {
        0..=4 => Operation::Make { at, kind: FileKind::Regular, perm },
        5 if limits.special_files => Operation::Make { at, kind: FileKind::Fifo, perm },
        5..=8 => Operation::Mkdir { at, perm },
        9 if limits.symlinks => {
            Operation::Symlink { at, len: [1, 59, 60, 61, 300][random.below(5)] }
        }
        10..=11 if limits.hard_links => Operation::Link { from: at, to: place(random, limits) },
        12..=13 => Operation::Unlink { at },
        14 => Operation::Rmdir { at },
        15..=19 => {
            let flags = match random.below(5) {
                0 => RenameFlags::NO_REPLACE,
                1 if limits.exchange => RenameFlags::EXCHANGE,
                _ => RenameFlags::empty(),
            };
            Operation::Rename { from: at, to: place(random, limits), flags }
        }
        20..=25 => {
            let len = [0, 1, 100, 1024, 4096, 5000, 20_000][random.below(7)];
            Operation::Write { at, offset: offset(random), len, seed }
        }
        26..=28 => Operation::Resize { at, size: offset(random) },
        29 if limits.owners_and_modes => Operation::Chmod { at, perm },
        30 if limits.owners_and_modes => {
            Operation::Chown { at, uid: random.below(100_000) as u32, gid: slot as u32 }
        }
        31 if limits.own_times => Operation::Touch { at, secs: random.below(2_000_000_000) as i64 },
        32 | 33 if limits.xattr_bytes > 0 => {
            let how = [XattrSet::Any, XattrSet::Create, XattrSet::Replace][random.below(3)];
            // Six names of at most an eighth fit together into what one value may take.
            let len = random.below(limits.xattr_bytes / 8);
            Operation::SetXattr { at, name: random.below(4) as u8, len, how }
        }
        34 if limits.xattr_bytes > 0 => Operation::RemoveXattr { at, name: random.below(4) as u8 },
        35 if limits.punch => {
            let mode = match random.below(3) {
                0 => FallocateMode::PunchHole,
                1 => FallocateMode::ZeroRange { keep_size: true },
                _ => FallocateMode::ZeroRange { keep_size: false },
            };
            Operation::Fallocate { at, mode, offset: offset(random), len: 1 + offset(random) }
        }
        36 if limits.allocate => {
            let mode = FallocateMode::Allocate { keep_size: random.below(2) == 0 };
            Operation::Fallocate { at, mode, offset: offset(random), len: 1 + offset(random) }
        }
        37 => {
            let (offset, len) = (offset(random), offset(random));
            Operation::Copy { from: at, to: place(random, limits), offset, len }
        }
        38 => Operation::Open { at, slot, append: random.below(2) == 0 },
        39 => Operation::WriteSlot { slot, offset: offset(random), len: 777, seed },
        40 => Operation::ReadSlot { slot, offset: offset(random), len: 9000 },
        41 => Operation::CloseSlot { slot },
        42 if random.below(4) == 0 => Operation::Sync,
        _ => Operation::Fsync { at },
    }
}

/// One of the two file systems with its open files.
pub(super) struct Side<'a> {
    pub(super) fs: &'a dyn FileSystem,
    slots: [Option<(Ino, Handle)>; SLOTS],
    special_attributes: bool,
}

/// The result of an operation for its caller, apart from the tree.
pub(super) type Told = Result<Vec<u8>, i32>;

impl<'a> Side<'a> {
    pub(super) fn new(fs: &'a dyn FileSystem, limits: &Limits) -> Self {
        Self { fs, slots: [None; SLOTS], special_attributes: limits.special_attributes }
    }

    /// Returns the node, unless its kind has no `user.` attributes.
    fn with_xattrs(&self, path: &[u8]) -> Result<Option<Node<'a>>> {
        let node = self.node(path)?;
        let common = matches!(node.kind(), FileKind::Regular | FileKind::Directory);
        Ok((common || self.special_attributes).then_some(node))
    }

    fn node(&self, path: &[u8]) -> Result<Node<'a>> {
        path.split(|&b| b == b'/').try_fold(Node::root(self.fs)?, |at, name| at.lookup(name))
    }

    /// Splits a path into its directory and its last name.
    fn split<'p>(&self, path: &'p [u8]) -> Result<(Node<'a>, &'p [u8])> {
        match path.iter().rposition(|&b| b == b'/') {
            Some(at) => Ok((self.node(&path[..at])?, &path[at + 1..])),
            None => Ok((Node::root(self.fs)?, path)),
        }
    }

    pub(super) fn apply(&mut self, operation: &Operation) -> Told {
        self.try_apply(operation).map_err(|e| e.errno())
    }

    fn try_apply(&mut self, operation: &Operation) -> Result<Vec<u8>> {
        let fs = self.fs;
        let who = Caller { uid: 7, gid: 8, ..Caller::ROOT };
        match operation {
            Operation::Make { at, kind, perm } => {
                let (dir, name) = self.split(at)?;
                dir.mknod(&who, name, *kind, *perm, 0)?;
            }
            Operation::Mkdir { at, perm } => {
                let (dir, name) = self.split(at)?;
                dir.mkdir(&who, name, *perm)?;
            }
            Operation::Symlink { at, len } => {
                let (dir, name) = self.split(at)?;
                dir.symlink(&who, name, &vec![b't'; *len])?;
            }
            Operation::Link { from, to } => {
                let node = self.node(from)?;
                let (dir, name) = self.split(to)?;
                node.link_as(&Caller::ROOT, &dir, name)?;
            }
            Operation::Unlink { at } => {
                let (dir, name) = self.split(at)?;
                fs.unlink(&Caller::ROOT, dir.ino(), name)?;
            }
            Operation::Rmdir { at } => {
                let (dir, name) = self.split(at)?;
                fs.rmdir(&Caller::ROOT, dir.ino(), name)?;
            }
            Operation::Rename { from, to, flags } => {
                let ((dir, name), (to_dir, to_name)) = (self.split(from)?, self.split(to)?);
                fs.rename(&Caller::ROOT, dir.ino(), name, to_dir.ino(), to_name, *flags)?;
            }
            Operation::Write { at, offset, len, seed } => {
                let node = self.node(at)?;
                let taken = fs.write(
                    &Caller::ROOT,
                    node.ino(),
                    Handle::NONE,
                    *offset,
                    &pattern(*seed, *len),
                )?;
                return Ok(taken.to_le_bytes().to_vec());
            }
            Operation::Resize { at, size } => {
                let set = SetAttr { size_bytes: Some(*size), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, self.node(at)?.ino(), &set)?;
            }
            Operation::Chmod { at, perm } => {
                let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
                let node = self.node(at)?;
                if self.special_attributes || node.kind() != FileKind::Symlink {
                    fs.setattr(&Caller::ROOT, node.ino(), &set)?;
                }
            }
            Operation::Chown { at, uid, gid } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, self.node(at)?.ino(), &set)?;
            }
            Operation::Touch { at, secs } => {
                let time = Some(SetTime::At(Time { secs: *secs, nanos: 0 }));
                let set = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
                let attr = fs.setattr(&Caller::ROOT, self.node(at)?.ino(), &set)?;
                return Ok([attr.atime.secs, attr.mtime.secs].map(i64::to_le_bytes).concat());
            }
            Operation::SetXattr { at, name, len, how } => {
                let (name, value) = (xattr_name(*name), pattern(*len as u64, *len));
                if let Some(node) = self.with_xattrs(at)? {
                    fs.setxattr(&Caller::ROOT, node.ino(), &name, &value, *how)?;
                }
            }
            Operation::RemoveXattr { at, name } => {
                if let Some(node) = self.with_xattrs(at)? {
                    fs.removexattr(&Caller::ROOT, node.ino(), &xattr_name(*name))?;
                }
            }
            Operation::Fallocate { at, mode, offset, len } => {
                fs.fallocate(&Caller::ROOT, self.file(at)?.ino(), *mode, *offset, *len)?;
            }
            Operation::Copy { from, to, offset, len } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                if from.ino() != to.ino() {
                    let done = fs.copy_range(
                        &Caller::ROOT,
                        from.ino(),
                        *offset,
                        to.ino(),
                        offset / 2,
                        *len,
                    )?;
                    return Ok(done.to_le_bytes().to_vec());
                }
            }
            Operation::Open { at, slot, append } => self.open(at, *slot, *append)?,
            Operation::WriteSlot { slot, offset, len, seed } => {
                if let Some((ino, handle)) = self.slots[*slot] {
                    fs.write(&Caller::ROOT, ino, handle, *offset, &pattern(*seed, *len))?;
                }
            }
            Operation::ReadSlot { slot, offset, len } => {
                if let Some((ino, handle)) = self.slots[*slot] {
                    let mut buf = vec![0; *len];
                    let got = fs.read(ino, handle, *offset, &mut buf)?;
                    buf.truncate(got);
                    let attr = fs.getattr(ino)?;
                    buf.extend(attr.size_bytes.to_le_bytes());
                    buf.extend(attr.nlink.to_le_bytes());
                    return Ok(buf);
                }
            }
            Operation::CloseSlot { slot } => self.close(*slot)?,
            Operation::Fsync { at } => fs.fsync(&Caller::ROOT, self.node(at)?.ino(), false)?,
            Operation::Sync => fs.sync()?,
        }
        Ok(Vec::new())
    }

    /// A regular file; the answer of other kinds is up to the format.
    fn file(&self, path: &[u8]) -> Result<Node<'a>> {
        let node = self.node(path)?;
        if node.kind() == FileKind::Regular { Ok(node) } else { Err(Error::Invalid("no file")) }
    }

    fn open(&mut self, at: &[u8], slot: usize, append: bool) -> Result<()> {
        self.close(slot)?;
        let node = self.file(at)?;
        let mut flags = OpenFlags::READ | OpenFlags::WRITE;
        flags.set(OpenFlags::APPEND, append);
        let opened = self.fs.open(&Caller::ROOT, node.ino(), flags)?;
        self.slots[slot] = Some((node.ino(), opened.handle));
        Ok(())
    }

    fn close(&mut self, slot: usize) -> Result<()> {
        self.slots[slot].take().map_or(Ok(()), |(ino, handle)| self.fs.release(ino, handle))
    }

    pub(super) fn close_all(&mut self) -> Result<()> {
        (0..SLOTS).try_for_each(|slot| self.close(slot))
    }
}

fn xattr_name(nr: u8) -> Vec<u8> {
    [b"user.".to_vec(), vec![b'n'; usize::from(nr) * 5 + 1]].concat()
}
