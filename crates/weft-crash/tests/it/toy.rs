//! A file system in memory that writes its whole tree to the device at every sync: into one of two
//! slots in turn, then a header that names the slot. Correct like that, and easily made wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, Image, mix};
use weft_crash::model::{Body, NodeId, OWNER_BASE};
use weft_crash::observe::{Identities, Seen, observe};
use weft_crash::{Error, Findings, Mounted, Promises, Result, Severity, Target};
use weft_vfs::{
    Caller, FileKind, FileSystem, Handle, Ino, Layer, MemFs, SetAttr, Walker, XattrSet,
};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// The header is written without waiting for what it names.
    NoBarrier,
    /// Only one slot.
    InPlace,
    /// fsync of a file does nothing.
    FsyncForgotten,
    /// The checker finds damage everywhere.
    WrongChecker,
}

#[derive(Debug)]
pub struct Toy(pub Flaw);

const LEN: u64 = 4 << 20;
const SLOT: u64 = 1 << 20;

pub struct ToyFs {
    mem: MemFs,
    device: Arc<dyn BlockDevice>,
    generation: Mutex<u64>,
    flaw: Flaw,
}

impl Target for Toy {
    fn fresh(&self) -> Result<Image> {
        Ok(Image::new(LEN))
    }

    fn block_bytes(&self) -> usize {
        4096
    }

    fn promises(&self) -> Promises {
        Promises { clean_after_recovery: true, operations_in_order: true, no_stale_data: true }
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Mounted> {
        let mem = MemFs::new();
        let generation = load(&*device, &mem)?;
        let generation = Mutex::new(generation);
        Ok(Mounted::new(Arc::new(ToyFs { mem, device, generation, flaw: self.0 })))
    }

    fn check(&self, device: Arc<dyn BlockDevice>, _: bool) -> Result<Option<Findings>> {
        if self.0 == Flaw::WrongChecker {
            let damage = vec!["everything is wrong".to_owned()];
            return Ok(Some(Findings { severity: Severity::Damage, damage, leaks: Vec::new() }));
        }
        load(&*device, &MemFs::new()).map(|_| Some(Findings::CLEAN))
    }

    fn repair(&self, device: Arc<dyn BlockDevice>) -> Result<bool> {
        load(&*device, &MemFs::new()).map(|_| true)
    }

    fn heal(&self, _: Arc<dyn BlockDevice>) -> Result<bool> {
        Ok(false)
    }

    fn is_ext2(&self) -> bool {
        false
    }

    fn options(&self) -> String {
        "--toy".into()
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, b| mix(sum ^ u64::from(*b)))
}

impl ToyFs {
    fn save(&self) -> weft_vfs::Result<()> {
        let io = |e: weft_block::Error| weft_vfs::Error::Io { errno: 5, message: e.to_string() };
        let observed = observe(&self.mem, &Identities::Owners)
            .map_err(|e| weft_vfs::Error::Io { errno: 5, message: e.to_string() })?;
        let mut bytes = Vec::new();
        put(&mut bytes, &(observed.nodes.len() as u32).to_le_bytes());
        for (id, seen) in &observed.nodes {
            put(&mut bytes, &id.0.to_le_bytes());
            put(&mut bytes, &seen.perm.to_le_bytes());
            match &seen.body {
                Body::File(content) => {
                    put(&mut bytes, b"f");
                    put(&mut bytes, content);
                }
                Body::Symlink(target) => {
                    put(&mut bytes, b"l");
                    put(&mut bytes, target);
                }
                Body::Dir(names) => {
                    put(&mut bytes, b"d");
                    put(&mut bytes, &(names.len() as u32).to_le_bytes());
                    for (name, id) in names {
                        put(&mut bytes, name);
                        put(&mut bytes, &id.0.to_le_bytes());
                    }
                }
                Body::Fifo | Body::Opaque => put(&mut bytes, b"p"),
            }
            put(&mut bytes, &(seen.xattrs.len() as u32).to_le_bytes());
            for (name, value) in &seen.xattrs {
                put(&mut bytes, name);
                put(&mut bytes, value);
            }
        }
        let mut generation = self.generation.lock().unwrap();
        *generation += 1;
        let slot = if self.flaw == Flaw::InPlace { 0 } else { *generation % 2 };
        self.device.write_at(&bytes, 4096 + slot * SLOT).map_err(io)?;
        if self.flaw != Flaw::NoBarrier {
            self.device.flush().map_err(io)?;
        }
        let mut header = [0; 512];
        let words = [*generation, slot, bytes.len() as u64, sum(&bytes)];
        for (piece, word) in header.chunks_mut(8).zip(words) {
            piece.copy_from_slice(&word.to_le_bytes());
        }
        self.device.write_at(&header, 0).map_err(io)?;
        self.device.flush().map_err(io)
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self) -> &'a [u8] {
        let (len, rest) = self.0.split_at(4);
        let (bytes, rest) = rest.split_at(u32::from_le_bytes(len.try_into().unwrap()) as usize);
        self.0 = rest;
        bytes
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes(self.take().try_into().unwrap())
    }
}

fn load(device: &dyn BlockDevice, mem: &MemFs) -> Result<u64> {
    let mut header = [0; 32];
    device.read_at(&mut header, 0)?;
    let word = |i: usize| u64::from_le_bytes(header[i * 8..i * 8 + 8].try_into().unwrap());
    let (generation, slot, len) = (word(0), word(1), word(2));
    if generation == 0 {
        return Ok(0);
    }
    let mut bytes = vec![0; len as usize];
    device.read_at(&mut bytes, 4096 + slot * SLOT)?;
    if sum(&bytes) != word(3) {
        return Err(Error::Target("the tree's checksum is wrong".into()));
    }
    let mut reader = Reader(&bytes);
    let mut nodes = BTreeMap::new();
    for _ in 0..reader.number() {
        let id = NodeId(reader.number());
        let perm = u16::from_le_bytes(reader.take().try_into().unwrap());
        let body = match reader.take() {
            b"f" => Body::File(Arc::new(reader.take().to_vec())),
            b"l" => Body::Symlink(reader.take().to_vec()),
            b"d" => {
                let n = reader.number();
                let names = (0..n).map(|_| (reader.take().to_vec(), NodeId(reader.number())));
                Body::Dir(names.collect())
            }
            _ => Body::Fifo,
        };
        let n = reader.number();
        let xattrs = (0..n).map(|_| (reader.take().to_vec(), reader.take().to_vec())).collect();
        nodes.insert(id, Seen { body, xattrs, perm, nlink: 1 });
    }
    build(mem, &nodes).map_err(|source| Error::Fs { what: "loading".into(), source })?;
    Ok(generation)
}

/// Makes the tree again, inode owners and all.
fn build(mem: &MemFs, nodes: &BTreeMap<NodeId, Seen>) -> weft_vfs::Result<()> {
    let mut todo = vec![(NodeId::ROOT, mem.root())];
    let mut made: BTreeMap<NodeId, Ino> = BTreeMap::new();
    let mut finished = BTreeSet::new();
    while let Some((id, ino)) = todo.pop() {
        let Some(seen) = nodes.get(&id) else { continue };
        for (name, value) in &seen.xattrs {
            mem.setxattr(&Caller::ROOT, ino, name, value, XattrSet::Any)?;
        }
        mem.setattr(&Caller::ROOT, ino, &SetAttr { perm: Some(seen.perm), ..SetAttr::default() })?;
        let Body::Dir(names) = &seen.body else { continue };
        if !finished.insert(id) {
            continue;
        }
        for (name, child) in names {
            if let Some(old) = made.get(child) {
                mem.link(&Caller::ROOT, *old, ino, name)?;
                continue;
            }
            let caller = Caller { uid: OWNER_BASE + child.0, ..Caller::ROOT };
            let entry = match nodes.get(child).map(|n| &n.body) {
                Some(Body::Dir(_)) => mem.mkdir(&caller, ino, name, 0o755)?,
                Some(Body::Symlink(target)) => mem.symlink(&caller, ino, name, target)?,
                Some(Body::File(content)) => {
                    let e = mem.mknod(&caller, ino, name, FileKind::Regular, 0o755, 0)?;
                    mem.write(&Caller::ROOT, e.attr.ino, Handle::NONE, 0, content)?;
                    e
                }
                _ => mem.mknod(&caller, ino, name, FileKind::Fifo, 0o755, 0)?,
            };
            made.insert(*child, entry.attr.ino);
            todo.push((*child, entry.attr.ino));
        }
    }
    Walker::new(mem).root().map(drop)
}

impl Layer for ToyFs {
    fn below(&self) -> &dyn FileSystem {
        &self.mem
    }

    fn fsync(&self, _: &Caller, ino: Ino, _data_only: bool) -> weft_vfs::Result<()> {
        if self.flaw == Flaw::FsyncForgotten && ino != self.mem.root() {
            return Ok(());
        }
        self.save()
    }

    fn fsync_dir(&self, caller: &Caller, ino: Ino) -> weft_vfs::Result<()> {
        Layer::fsync(self, caller, ino, false)
    }

    fn sync(&self) -> weft_vfs::Result<()> {
        self.save()
    }

    fn unmount(&self) -> weft_vfs::Result<()> {
        self.save()
    }
}
