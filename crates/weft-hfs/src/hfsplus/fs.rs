//! The reading calls of the file plug. Writing calls are refused by default; only setting an
//! attribute is refused here, as by default a file system has no attributes.

use super::layout::{Item, be16};
use super::place::{Place, find};
use super::volume::{Fork, Volume, io};
use crate::Permissions;
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;
use weft_block::{BlockDevice, Partition, PartitionInfo, PartitionType, ReadOnly};
use weft_vfs::{
    Attr, Caller, DirCursor, DirEntry, Entry, Error, FileKind, FileSystem, Handle, Ino,
    NAME_MAX_BYTES, Result, StatFs, Time, XattrSet,
};

pub(super) const ROOT: u32 = 2;
/// 1970-01-01 in seconds since 1904-01-01; HFS Plus keeps UTC.
const UNIX_EPOCH: i64 = 2_082_844_800;
const RESOURCE_FORK: &[u8] = b"user.com.apple.ResourceFork";
const FINDER_INFO: &[u8] = b"user.com.apple.FinderInfo";
/// The folder of files that have hard links, in the root.
const LINKED_FILES: &str = "␀␀␀␀HFS+ Private Data";
/// The longest target of a symbolic link, in bytes.
const TARGET_MAX_BYTES: u64 = 4095;

/// Options for opening a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// The owner and the permissions of files and folders for which the volume stores none.
    pub permissions: Permissions,
}

/// An open HFS Plus volume, for reading.
#[derive(Debug)]
pub struct HfsPlus {
    volume: Volume,
    place: Place,
    options: OpenOptions,
}

impl HfsPlus {
    /// Opens the volume on a device, or the one embedded in the HFS volume there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or if its header or a tree's is invalid; [`Error::Io`].
    pub fn open(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = find(&*device)
            .map_err(|e| io(&e))?
            .ok_or_else(|| Error::Corrupt("there is no HFS Plus volume".into()))?;
        let info = PartitionInfo {
            number: 1,
            start_bytes: place.start_bytes,
            len_bytes: place.len_bytes,
            kind: PartitionType::Apple("HFS Plus".into()),
            id: None,
            name: String::new(),
        };
        let inside = Partition::new(ReadOnly::new(device), &info).map_err(|e| io(&e))?;
        let volume = Volume::open(Arc::new(inside))?;
        Ok(Arc::new(Self { volume, place, options }))
    }

    /// Returns the location of the volume on the device, and whether it is in a wrapper.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Returns the volume's name, in UTF-8: that of its root folder.
    #[must_use]
    pub fn name(&self) -> String {
        self.volume.name_of(ROOT).map(|name| shown(&name)).unwrap_or_default()
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(super) fn item(&self, ino: Ino) -> Result<Item> {
        let id = u32::try_from(ino.0).map_err(|_| Error::Stale(ino.0))?;
        let item = self.volume.item(id)?;
        self.linked(item)
    }

    fn folder(&self, ino: Ino) -> Result<u32> {
        if ino.0 == u64::from(ROOT) {
            return Ok(ROOT);
        }
        let item = self.item(ino)?;
        if item.is_folder { Ok(item.id) } else { Err(Error::NotADirectory) }
    }

    /// Returns the target of a hard link; any other item unchanged.
    fn linked(&self, item: Item) -> Result<Item> {
        if item.is_folder || item.finder_info[..8] != *b"hlnkhfs+" {
            return Ok(item);
        }
        let Some(private) = self.find(ROOT, LINKED_FILES)? else { return Ok(item) };
        let wanted = format!("iNode{}", item.special);
        Ok(self.find(private.id, &wanted)?.unwrap_or(item))
    }

    fn find(&self, folder: u32, wanted: &str) -> Result<Option<Item>> {
        let mut found = None;
        self.volume.each_in(folder, &mut |name, record| {
            if !name.is_empty() && shown(name) == wanted {
                found = Item::parse(record)?;
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    fn kind(item: &Item) -> FileKind {
        match FileKind::from_mode(item.mode.into()) {
            _ if item.is_folder => FileKind::Directory,
            Some(kind) if kind != FileKind::Directory => kind,
            _ => FileKind::Regular,
        }
    }

    fn attr(&self, item: &Item) -> Attr {
        let kind = Self::kind(item);
        let time = |date: u32| Time { secs: i64::from(date) - UNIX_EPOCH, nanos: 0 };
        // Mac OS 9 kept no permissions.
        let kept = item.mode != 0;
        let perm = match kind {
            _ if kept => item.mode & 0o7777,
            _ => self.options.permissions.perm(kind, false),
        };
        let blocks = u64::from(item.data.blocks) + u64::from(item.resource.blocks);
        let device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        let inode = item.special.max(1);
        Attr {
            ino: Ino(item.id.into()),
            kind,
            perm,
            nlink: if item.is_folder {
                2
            } else if device {
                1
            } else {
                inode
            },
            uid: if kept { item.uid } else { self.options.permissions.uid },
            gid: if kept { item.gid } else { self.options.permissions.gid },
            rdev: if device { item.special } else { 0 },
            size_bytes: item.data.len_bytes,
            blocks_512: blocks * u64::from(self.volume.header.block_bytes / 512),
            io_bytes: self.volume.header.block_bytes.max(4096),
            atime: time(item.accessed),
            mtime: time(item.modified),
            ctime: time(item.changed),
            btime: Some(time(item.created)),
        }
    }

    /// Returns names and items of a folder, without the private folders of hard links.
    fn list(&self, folder: u32) -> Result<Vec<(String, Item)>> {
        let mut all = Vec::new();
        self.volume.each_in(folder, &mut |name, record| {
            let hidden = folder == ROOT && be16(name, 0) == 0;
            if !name.is_empty()
                && !hidden
                && let Some(item) = Item::parse(record)?
            {
                let name = shown(name);
                // The name of the folder of hard links to folders ends in a carriage return.
                if name != ".HFS+ Private Directory Data␍" && name.len() <= NAME_MAX_BYTES {
                    all.push((name, item));
                }
            }
            Ok(true)
        })?;
        Ok(all)
    }

    fn each(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Attr) -> bool,
    ) -> Result<()> {
        let folder = self.folder(ino)?;
        let here = self.attr(&self.item(ino)?);
        let dots = [".", ".."].map(|dot| (dot.to_owned(), here));
        let mut all = dots.to_vec();
        for (name, item) in self.list(folder)? {
            all.push((name, self.attr(&self.linked(item)?)));
        }
        let from = usize::try_from(cursor.0).unwrap_or(usize::MAX);
        for (at, (name, attr)) in all.iter().enumerate().skip(from) {
            let next = DirCursor(at as u64 + 1);
            let entry = DirEntry { ino: attr.ino, kind: attr.kind, name: name.as_bytes(), next };
            if !each(entry, *attr) {
                break;
            }
        }
        Ok(())
    }

    /// Returns extended attributes by their names on Linux.
    fn attributes(&self, item: &Item) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        if item.finder_info != [0; 32] {
            all.push((FINDER_INFO.to_vec(), item.finder_info.to_vec()));
        }
        self.volume.each_attribute(item.id, &mut |name, value| {
            let name = format!("user.{}", utf8(name).nfc());
            if name.len() <= NAME_MAX_BYTES && !name.contains('\0') {
                all.push((name.into_bytes(), value));
            }
        })?;
        Ok(all)
    }
}

fn utf8(name: &[u8]) -> String {
    let units = name.chunks_exact(2).map(|unit| be16(unit, 0));
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Converts a name to a Unix name.
fn shown(name: &[u8]) -> String {
    let plain = |c: char| match c {
        '/' => ':',
        // A Unix name cannot have the slash that a colon on the volume would become.
        ':' => '\u{a789}',
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or(c),
        '\x7f' => '\u{2421}',
        c => c,
    };
    let name: String = utf8(name).nfc().map(plain).collect();
    match name.as_str() {
        "." => "\u{2024}".into(),
        ".." => "\u{2025}".into(),
        _ => name,
    }
}

impl FileSystem for HfsPlus {
    fn root(&self) -> Ino {
        Ino(ROOT.into())
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let folder = self.folder(parent)?;
        let item = match name {
            b"." => self.item(parent)?,
            b".." => {
                let mut up = ROOT;
                self.volume.each_in(folder, &mut |own, record| {
                    if own.is_empty() {
                        up = super::layout::be32(record, 4).max(ROOT);
                    }
                    Ok(false)
                })?;
                self.item(Ino(up.into()))?
            }
            _ if name.len() > NAME_MAX_BYTES => return Err(Error::NameTooLong),
            _ => {
                let wanted = std::str::from_utf8(name).map_err(|_| Error::NotFound)?;
                let wanted: String = wanted.nfc().collect();
                self.linked(self.find(folder, &wanted)?.ok_or(Error::NotFound)?)?
            }
        };
        Ok(Entry { attr: self.attr(&item), generation: 0 })
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.attr(&self.item(ino)?))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let item = self.item(ino)?;
        if Self::kind(&item) != FileKind::Symlink {
            return Err(Error::Invalid("no symbolic link"));
        }
        let len = item.data.len_bytes;
        if !(1..=TARGET_MAX_BYTES).contains(&len) {
            return Err(Error::Corrupt(format!("symbolic link {}: {len} bytes", item.id).into()));
        }
        let mut target = vec![0; len as usize];
        self.volume.read(&item, Fork::Data, 0, &mut target)?;
        Ok(target)
    }

    fn read(&self, ino: Ino, _handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let item = self.item(ino)?;
        if item.is_folder {
            return Err(Error::IsADirectory);
        }
        self.volume.read(&item, Fork::Data, offset, buf)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.each(ino, cursor, &mut |entry, _| each(entry))
    }

    fn readdir_plus(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>, Entry) -> bool,
    ) -> Result<()> {
        self.each(ino, cursor, &mut |entry, attr| each(entry, Entry { attr, generation: 0 }))
    }

    fn statfs(&self) -> Result<StatFs> {
        let header = &self.volume.header;
        Ok(StatFs {
            block_bytes: header.block_bytes,
            blocks: header.blocks.into(),
            blocks_free: header.free_blocks.into(),
            blocks_available: header.free_blocks.into(),
            inodes: u64::from(header.files) + u64::from(header.folders),
            inodes_free: 0,
            name_max_bytes: NAME_MAX_BYTES as u32,
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let item = self.item(ino)?;
        let len = item.resource.len_bytes;
        match name {
            RESOURCE_FORK if len > 64 << 10 => Err(Error::Range),
            RESOURCE_FORK if len > 0 => {
                let mut fork = vec![0; len as usize];
                self.volume.read(&item, Fork::Resource, 0, &mut fork)?;
                Ok(fork)
            }
            b"user.hfs.type" if !item.is_folder => Ok(item.finder_info[..4].to_vec()),
            b"user.hfs.creator" if !item.is_folder => Ok(item.finder_info[4..8].to_vec()),
            _ => {
                let found = self.attributes(&item)?.into_iter().find(|(n, _)| n == name);
                found.map(|(_, value)| value).ok_or(Error::NoAttribute)
            }
        }
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let item = self.item(ino)?;
        let mut names: Vec<_> = self.attributes(&item)?.into_iter().map(|(name, _)| name).collect();
        if item.resource.len_bytes > 0 {
            names.push(RESOURCE_FORK.to_vec());
        }
        Ok(names)
    }

    fn setxattr(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8], _: XattrSet) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
