//! A recording, and its file.
//!
//! The file is made to be read on another machine, and by other programs: after a line that names it
//! and its version come frames. A frame is the length of a JSON text and of the data behind it (two
//! 32-bit numbers, little-endian), the text, and the data. The frames are: one [`Header`]; the tree
//! at the beginning, inode by inode, names and pages apart; the calls, each with its bytes; and an
//! end with the number of the calls, so that a recording that was cut off is recognised.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weft_block::Image;
use weft_vfs::host_file::NewFile;
use weft_vfs::memfs::{Snapshot, SnapshotAttr, SnapshotNode};
use weft_vfs::{FileKind, Time};

use crate::calls::{Action, Call, NodeNr, Process, Span};
use crate::effects::{PAGE_BYTES, ZEROES_MAX, zeroes};
use crate::mapped::map;
use crate::volume::{Volume, VolumeKind};
use crate::{Error, Result};

/// What was recorded, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Header {
    /// The shell line that prepared the folder, if there was one.
    pub setup: Option<String>,
    /// The shell line that was recorded.
    pub run: String,
    /// Its exit status; `None` if a signal ended it.
    pub exit: Option<i32>,
    /// Processes that were left when it ended, and were killed.
    pub left_behind: u32,
    /// The path of the folder in which it ran, if it ran in one.
    #[serde(default)]
    pub folder: Option<PathBuf>,
}

/// A recording of a program.
#[derive(Debug, Clone)]
pub struct Recording {
    /// What was recorded.
    pub header: Header,
    /// The tree before the first call. It is taken to be durable.
    pub base: Snapshot,
    /// The calls, in the order in which they took effect.
    pub calls: Vec<Call>,
    /// The volume before the first call, if the program ran on one; what was written to it is among
    /// the calls.
    pub volume: Option<Volume>,
}

const MAGIC: &[u8] = b"weft crash recording 1\n";
/// Longest JSON text of a frame, in bytes.
const TEXT_MAX: u32 = 1 << 20;
/// Longest data of a frame, in bytes.
const DATA_MAX: u32 = 64 << 20;
/// Names and pages in one frame of the tree.
const CHUNK: usize = 256;
/// The largest volume, in bytes: what is not written takes no memory.
const VOLUME_MAX: u64 = 1 << 40;

#[derive(Serialize, Deserialize)]
#[serde(tag = "frame", rename_all = "snake_case")]
enum Frame {
    Header(Header),
    Node(NodeFrame),
    Names {
        dir: u64,
        names: Vec<NameFrame>,
    },
    Pages {
        node: u64,
        pages: Vec<u64>,
    },
    Xattr {
        node: u64,
        #[serde(with = "crate::text")]
        name: Vec<u8>,
    },
    Volume {
        kind: VolumeKind,
        len_bytes: u64,
    },
    Blocks {
        pages: Vec<u64>,
    },
    Call {
        at: u64,
        by: Process,
        action: Action,
    },
    End {
        calls: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct NameFrame {
    #[serde(with = "crate::text")]
    name: Vec<u8>,
    node: u64,
}

#[derive(Serialize, Deserialize)]
struct NodeFrame {
    node: u64,
    #[serde(with = "crate::text::kind")]
    kind: FileKind,
    perm: u16,
    uid: u32,
    gid: u32,
    rdev: u32,
    size: u64,
    /// Access, modification, change and birth, each in seconds and nanoseconds.
    times: [(i64, u32); 4],
    #[serde(with = "crate::text")]
    target: Vec<u8>,
}

impl Recording {
    /// Makes a recording of a program. Calls on inodes that had lost their last name before the
    /// first call are left out: the kernel closes the files of an earlier program late.
    #[must_use]
    pub fn new(header: Header, base: Snapshot, mut calls: Vec<Call>) -> Self {
        let mut known: HashSet<NodeNr> = base.nodes().map(|(nr, _)| NodeNr(nr)).collect();
        calls.retain(|call| match &call.action {
            Action::Create { new, .. } => {
                known.insert(new.node);
                true
            }
            Action::Write(Span { node, .. })
            | Action::Zero(Span { node, .. })
            | Action::Resize(Span { node, .. })
            | Action::Attributes { node, .. }
            | Action::Xattr { node, .. }
            | Action::Fsync { node, .. }
            | Action::Close { node } => known.contains(node),
            _ => true,
        });
        Self { header, base, calls, volume: None }
    }

    /// Writes the recording to a file, which is replaced if it exists.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |source| Error::Io { what: format!("writing {}", path.display()), source };
        let mut file = NewFile::create(path, 0o666).map_err(failed)?;
        let mut to = BufWriter::new(&mut file);
        self.write(&mut to).and_then(|()| to.flush()).map_err(failed)?;
        drop(to);
        file.replace().map_err(failed)
    }

    /// Reads a recording.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Recording`] if the file is damaged, or something else.
    pub fn load(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(format!("opening {}", path.display())))?;
        Self::read(&mut BufReader::new(file)).map_err(|problem| problem.of(path))
    }

    /// Reads a recording in the directory of a test, whose data stay in the file: all processes of the
    /// test share them. Nothing may change the file from here on; it can be removed.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn share(path: &Path) -> Result<Self> {
        let failed = || Error::io(format!("opening {}", path.display()));
        let mut bytes = map(&File::open(path).map_err(failed())?).map_err(failed())?;
        Self::read(&mut bytes).map_err(|problem| problem.of(path))
    }

    /// Reads a recording from bytes.
    ///
    /// # Errors
    /// [`Error::Recording`] if the bytes are no recording.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let failed = |p: Problem| Error::Recording { path: "-".into(), problem: p.to_string() };
        Self::read(&mut Bytes::copy_from_slice(bytes)).map_err(failed)
    }

    /// Returns the recording as bytes.
    ///
    /// # Errors
    /// [`Error::Io`] if a call has more data than a frame can hold.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).map_err(Error::io("writing a recording"))?;
        Ok(bytes)
    }

    fn write(&self, to: &mut dyn Write) -> std::io::Result<()> {
        to.write_all(MAGIC)?;
        put(to, &Frame::Header(self.header.clone()), &[])?;
        for (nr, node) in self.base.nodes() {
            put_node(to, nr, node)?;
        }
        if let Some(volume) = &self.volume {
            put_volume(to, volume)?;
        }
        for call in &self.calls {
            let (at, by, action) = (call.at_nanos, call.process.clone(), call.action.clone());
            put(to, &Frame::Call { at, by, action }, &call.data)?;
        }
        put(to, &Frame::End { calls: self.calls.len() as u64 }, &[])
    }

    fn read(from: &mut dyn Source) -> std::result::Result<Self, Problem> {
        if from.take(MAGIC.len() as u32)? != MAGIC {
            return Err(Problem::Format("it does not begin as one"));
        }
        let Frame::Header(header) = get(from)?.0 else {
            return Err(Problem::Format("the header is missing"));
        };
        let mut recording = Self::new(header, Snapshot::new(), Vec::new());
        loop {
            match get(from)? {
                (Frame::Call { at, by, action }, data) => {
                    check(&action, data.len())?;
                    recording.calls.push(Call { action, process: by, at_nanos: at, data });
                }
                (Frame::End { calls }, _) if calls == recording.calls.len() as u64 => {
                    return Ok(recording);
                }
                (Frame::End { .. }, _) => return Err(Problem::Format("calls are missing")),
                (Frame::Header(_), _) => return Err(Problem::Format("a second header")),
                (_, _) if !recording.calls.is_empty() => {
                    return Err(Problem::Format("a part of the tree behind the calls"));
                }
                (Frame::Volume { kind, len_bytes }, _) => {
                    if len_bytes > VOLUME_MAX {
                        return Err(Problem::Format("a volume that is too large"));
                    }
                    recording.volume = Some(Volume { kind, image: Image::new(len_bytes) });
                }
                (Frame::Blocks { pages }, data) => {
                    let volume = recording.volume.as_mut();
                    let volume = volume.ok_or(Problem::Format("blocks without a volume"))?;
                    take_blocks(&mut volume.image, &pages, &data)?;
                }
                (frame, data) => take(&mut recording.base, frame, &data)?,
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("it ends too early ({0})")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Format(&'static str),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Fs(#[from] weft_vfs::Error),
    #[error("{0}")]
    Volume(#[from] weft_block::Error),
}

impl Problem {
    /// The error of a file.
    fn of(self, path: &Path) -> Error {
        match self {
            Self::Io(source) if source.kind() != std::io::ErrorKind::UnexpectedEof => {
                Error::Io { what: format!("reading {}", path.display()), source }
            }
            problem => Error::Recording { path: path.into(), problem: problem.to_string() },
        }
    }
}

/// Checks what the code behind relies on: spans within their data and their sizes.
fn check(action: &Action, data_len: usize) -> std::result::Result<(), Problem> {
    let span = match action {
        Action::Write(span) | Action::Zero(span) | Action::Resize(span) => span,
        Action::BlockWrite { offset, block_bytes, .. } => {
            let is_block = block_bytes.is_power_of_two() && (512..=65_536).contains(block_bytes);
            let end = offset.checked_add(data_len as u64);
            return match end.filter(|end| is_block && *end <= VOLUME_MAX) {
                Some(_) => Ok(()),
                None => Err(Problem::Format("a block that no volume has")),
            };
        }
        Action::BlockDiscard { offset, len_bytes } => {
            return match offset.checked_add(*len_bytes).filter(|end| *end <= VOLUME_MAX) {
                Some(_) => Ok(()),
                None => Err(Problem::Format("a discard past the largest volume")),
            };
        }
        _ => return Ok(()),
    };
    let end =
        span.offset.checked_add(span.len_bytes).filter(|end| *end <= i64::MAX.cast_unsigned());
    if end.is_none() || span.size_after > i64::MAX.cast_unsigned() {
        return Err(Problem::Format("a write past the longest file"));
    }
    if matches!(action, Action::Write(_)) && span.len_bytes != data_len as u64 {
        return Err(Problem::Format("a write of another length than its data"));
    }
    if matches!(action, Action::Zero(_)) && zeroes(span).len_bytes > ZEROES_MAX {
        return Err(Problem::Format("a hole that is too large"));
    }
    Ok(())
}

fn put_volume(to: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    let (kind, len_bytes) = (volume.kind.clone(), volume.image.len_bytes());
    put(to, &Frame::Volume { kind, len_bytes }, &[])?;
    let pages: Vec<_> = volume.image.pages().collect();
    for chunk in pages.chunks(CHUNK) {
        let data: Vec<u8> = chunk.iter().flat_map(|(_, page)| page.iter().copied()).collect();
        put(to, &Frame::Blocks { pages: chunk.iter().map(|(nr, _)| *nr).collect() }, &data)?;
    }
    Ok(())
}

fn take_blocks(image: &mut Image, pages: &[u64], data: &[u8]) -> std::result::Result<(), Problem> {
    let page_bytes = weft_block::PAGE_BYTES;
    if data.len() != pages.len() * page_bytes {
        return Err(Problem::Format("blocks without their data"));
    }
    for (page, bytes) in pages.iter().zip(data.chunks(page_bytes)) {
        let offset = page.checked_mul(page_bytes as u64);
        let offset = offset.ok_or(Problem::Format("a block past the end of the volume"))?;
        // The last page may pass the end.
        let len = image.len_bytes().saturating_sub(offset).min(page_bytes as u64);
        if len == 0 {
            return Err(Problem::Format("a block past the end of the volume"));
        }
        image.write(&bytes[..len as usize], offset)?;
    }
    Ok(())
}

fn put(to: &mut dyn Write, frame: &Frame, data: &[u8]) -> std::io::Result<()> {
    let text = serde_json::to_vec(frame)?;
    let too_long = |_| std::io::Error::other("a frame is too long");
    let text_len = u32::try_from(text.len()).map_err(too_long)?;
    let data_len = u32::try_from(data.len()).map_err(too_long)?;
    if text_len > TEXT_MAX || data_len > DATA_MAX {
        return Err(std::io::Error::other("a frame is too long"));
    }
    to.write_all(&text_len.to_le_bytes())?;
    to.write_all(&data_len.to_le_bytes())?;
    to.write_all(&text)?;
    to.write_all(data)
}

/// The bytes of a recording, in their order.
trait Source {
    /// The next bytes; an error if there are fewer.
    fn take(&mut self, len: u32) -> std::io::Result<Bytes>;
}

impl Source for BufReader<File> {
    fn take(&mut self, len: u32) -> std::io::Result<Bytes> {
        // Read as it comes: the lengths of a damaged file allocate nothing.
        let mut bytes = Vec::new();
        Read::take(self, u64::from(len)).read_to_end(&mut bytes)?;
        if bytes.len() < len as usize {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes.into_boxed_slice().into())
    }
}

/// Parts of what is in memory share it.
impl Source for Bytes {
    fn take(&mut self, len: u32) -> std::io::Result<Bytes> {
        if self.len() < len as usize {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.split_to(len as usize))
    }
}

fn get(from: &mut dyn Source) -> std::result::Result<(Frame, Bytes), Problem> {
    let mut number = || -> std::io::Result<u32> {
        let bytes = from.take(4)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    };
    let (text_len, data_len) = (number()?, number()?);
    if text_len > TEXT_MAX || data_len > DATA_MAX {
        return Err(Problem::Format("a frame is too long"));
    }
    let (text, data) = (from.take(text_len)?, from.take(data_len)?);
    Ok((serde_json::from_slice(&text)?, data))
}

fn put_node(to: &mut dyn Write, nr: u64, node: &Arc<SnapshotNode>) -> std::io::Result<()> {
    let attr = node.attr();
    let time = |time: Time| (time.secs, time.nanos);
    let frame = NodeFrame {
        node: nr,
        kind: node.kind(),
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        size: if node.kind() == FileKind::Regular { node.size_bytes() } else { 0 },
        times: [attr.atime, attr.mtime, attr.ctime, attr.btime].map(time),
        target: node.target().unwrap_or_default().to_vec(),
    };
    put(to, &Frame::Node(frame), &[])?;
    let name = |(name, node): (&[u8], u64)| NameFrame { name: name.to_vec(), node };
    let mut names: Vec<NameFrame> = node.entries().map(name).collect();
    while !names.is_empty() {
        let rest = names.split_off(names.len().min(CHUNK));
        put(to, &Frame::Names { dir: nr, names }, &[])?;
        names = rest;
    }
    let pages: Vec<_> = node.pages().collect();
    for chunk in pages.chunks(CHUNK) {
        let data: Vec<u8> = chunk.iter().flat_map(|(_, page)| *page.bytes()).collect();
        let pages = chunk.iter().map(|(nr, _)| *nr).collect();
        put(to, &Frame::Pages { node: nr, pages }, &data)?;
    }
    for (name, value) in node.xattrs() {
        put(to, &Frame::Xattr { node: nr, name: name.to_vec() }, value)?;
    }
    Ok(())
}

/// Adds a frame to the tree.
fn take(tree: &mut Snapshot, frame: Frame, data: &[u8]) -> std::result::Result<(), Problem> {
    match frame {
        Frame::Node(node) => {
            let [atime, mtime, ctime, btime] = node.times.map(|(secs, nanos)| Time { secs, nanos });
            let NodeFrame { perm, uid, gid, rdev, .. } = node;
            let attr = SnapshotAttr { perm, uid, gid, rdev, atime, mtime, ctime, btime };
            let made = match node.kind {
                FileKind::Symlink => SnapshotNode::symlink(&node.target, &attr),
                kind => SnapshotNode::new(kind, &attr),
            };
            tree.insert(node.node, made)?;
            if node.kind == FileKind::Regular {
                tree.set_size(node.node, node.size)?;
            }
        }
        Frame::Names { dir, names } => {
            for name in names {
                tree.set_entry(dir, &name.name, name.node)?;
            }
        }
        Frame::Pages { node, pages } => {
            let page_bytes = PAGE_BYTES as usize;
            if data.len() != pages.len() * page_bytes {
                return Err(Problem::Format("pages without their data"));
            }
            for (page, bytes) in pages.into_iter().zip(data.chunks(page_bytes)) {
                let offset = page.checked_mul(PAGE_BYTES);
                let offset = offset.ok_or(Problem::Format("a page past the longest file"))?;
                tree.write(node, offset, bytes)?;
            }
        }
        Frame::Xattr { node, name } => tree.set_xattr(node, &name, data)?,
        Frame::Header(_)
        | Frame::Volume { .. }
        | Frame::Blocks { .. }
        | Frame::Call { .. }
        | Frame::End { .. } => {}
    }
    Ok(())
}
