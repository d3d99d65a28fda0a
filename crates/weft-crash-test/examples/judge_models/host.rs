//! File systems of the kernel: images of them, loop devices, mounts, and the trees in them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{collections::HashMap, os::unix::ffi::OsStrExt};

use rustix::mount::{MountFlags, UnmountFlags};
use weft_crash_test::Model;
use weft_vfs::FileKind;
use weft_vfs::memfs::{Snapshot, SnapshotAttr, SnapshotNode};

use crate::disk::{BLOCK_BYTES, Image};

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file system of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The model that stands for it.
    pub fn model(self) -> Model {
        match self {
            Self::Ext4 => Model::Ext4Ordered,
            Self::Xfs => Model::XfsLike,
            Self::Btrfs => Model::BtrfsLike,
        }
    }

    pub fn size_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 32 << 20,
            Self::Xfs => 300 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    /// Makes an empty file system in a file.
    pub fn make(self, image: &Path) -> Result<()> {
        File::create(image)?.set_len(self.size_bytes())?;
        let options: &[&str] = match self {
            Self::Ext4 => &[
                "-q",
                "-b",
                "4096",
                "-J",
                "size=4",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
            ],
            Self::Xfs => &["-q", "-f"],
            Self::Btrfs => &["-q", "-f", "-m", "single"],
        };
        run(Command::new(format!("mkfs.{}", self.name())).args(options).arg(image)).map(drop)
    }

    /// The options of a mount, beside the defaults.
    pub fn options(self) -> &'static str {
        match self {
            Self::Ext4 | Self::Btrfs => "commit=1",
            Self::Xfs => "nouuid",
        }
    }
}

/// Runs a command and returns what it prints.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {}", output.status, error.trim_end()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// A loop device over a file. Detached when dropped.
pub struct Loop(PathBuf);

impl Loop {
    pub fn new(file: &Path) -> Result<Self> {
        Ok(Self(run(Command::new("losetup").args(["-f", "--show"]).arg(file))?.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("-d").arg(&self.0)) {
            eprintln!("{error}");
        }
    }
}

/// A mount of a loop device. Unmounted when dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn new(kind: Kind, device: &Loop, at: &Path) -> Result<Self> {
        let options = std::ffi::CString::new(kind.options())?;
        rustix::mount::mount(&device.0, at, kind.name(), MountFlags::NOATIME, options.as_c_str())?;
        Ok(Self(at.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, UnmountFlags::empty()) {
            eprintln!("unmounting {}: {error}", self.0.display());
            let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
        }
    }
}

/// Fills a file with an image, whatever it holds.
pub fn fill(file: &File, size_bytes: u64, base: &Image, changed: &Image) -> Result<()> {
    file.set_len(0)?;
    file.set_len(size_bytes)?;
    for (nr, block) in base {
        if !changed.contains_key(nr) {
            file.write_all_at(block, nr * BLOCK_BYTES)?;
        }
    }
    for (nr, block) in changed {
        file.write_all_at(block, nr * BLOCK_BYTES)?;
    }
    Ok(())
}

/// Reads the blocks of a file that are not zero.
pub fn read_image(file: &mut File) -> Result<Image> {
    let mut image = Image::new();
    let mut buf = vec![0; 1 << 20];
    let mut nr = 0;
    loop {
        let len = file.read(&mut buf)?;
        if len == 0 {
            return Ok(image);
        }
        for block in buf[..len].chunks(BLOCK_BYTES as usize) {
            if block.iter().any(|byte| *byte != 0) {
                image.insert(nr, block.to_vec());
            }
            nr += 1;
        }
    }
}

/// Reads the tree of a directory of the host.
pub fn read_tree(root: &Path) -> Result<Snapshot> {
    let mut tree = Snapshot::new();
    let mut numbers = HashMap::new();
    let meta = fs::metadata(root)?;
    tree.insert(Snapshot::ROOT, SnapshotNode::new(FileKind::Directory, &attr(&meta)))?;
    let mut todo = vec![(root.to_owned(), Snapshot::ROOT)];
    while let Some((dir, number)) = todo.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            let next = Snapshot::ROOT + 1 + numbers.len() as u64;
            let to = *numbers.entry(meta.ino()).or_insert(next);
            tree.set_entry(number, entry.file_name().as_bytes(), to)?;
            if to != next {
                continue;
            }
            if meta.is_dir() {
                tree.insert(to, SnapshotNode::new(FileKind::Directory, &attr(&meta)))?;
                todo.push((path, to));
            } else if meta.is_symlink() {
                let target = fs::read_link(&path)?;
                let target = target.as_os_str().as_bytes();
                tree.insert(to, SnapshotNode::symlink(target, &attr(&meta)))?;
            } else {
                tree.insert(to, SnapshotNode::new(FileKind::Regular, &attr(&meta)))?;
                let content = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                tree.set_size(to, content.len() as u64)?;
                tree.write(to, 0, &content)?;
            }
        }
    }
    Ok(tree)
}

fn attr(meta: &fs::Metadata) -> SnapshotAttr {
    let perm = (meta.mode() & 0o7777) as u16;
    SnapshotAttr { perm, uid: meta.uid(), gid: meta.gid(), ..SnapshotAttr::default() }
}
