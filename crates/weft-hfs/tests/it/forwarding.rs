//! The calls that a view of forks passes on to the volume below it.

use std::sync::Arc;

use weft_hfs::interchange::Meta;
use weft_hfs::streams::{MacVolume, VolumeMeta};
use weft_hfs::view::{ForkView, Forks};
use weft_vfs::conformance::forwarding::{Recorder, not_forwarded};
use weft_vfs::{
    Caller, Error, FileKind, FileLock, FileSystem, Handle, Ino, Layer, LockStyle, MemFs, OpenFlags,
    Result,
};

/// A volume that has a resource fork of four bytes for each file.
struct Volume(Arc<Recorder>);

impl Layer for Volume {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }
}

impl MacVolume for Volume {
    fn meta(&self, _: Ino) -> Result<Meta> {
        Ok(Meta { resource_bytes: 4, ..Meta::default() })
    }

    fn set_meta(&self, _: Ino, _: &Meta) -> Result<()> {
        Ok(())
    }

    fn read_resource(&self, _: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = b"fork".get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_resource(&self, _: Ino, _: u64, data: &[u8]) -> Result<usize> {
        Ok(data.len())
    }

    fn set_resource_len(&self, _: Ino, _: u64) -> Result<()> {
        Ok(())
    }

    fn volume_meta(&self) -> VolumeMeta {
        VolumeMeta::default()
    }

    fn set_volume_meta(&self, _: &VolumeMeta) -> Result<()> {
        Ok(())
    }
}

fn over(below: &Arc<Recorder>, forks: Forks) -> ForkView {
    ForkView::new(Arc::new(Volume(Arc::clone(below))), forks)
}

#[test]
fn calls_about_files_reach_the_volume() {
    for forks in Forks::ALL {
        let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
        // References are given back one inode at a time, as each may be a companion's.
        let own = not_forwarded(&over(&below, forks), &below);
        assert_eq!(own, ["without_waiting", "forget_many"], "{forks}");
    }
}

#[test]
fn numbers_of_companions_do_not() {
    let below = Arc::new(Recorder::new(Arc::new(MemFs::new())));
    let view = over(&below, Forks::Suffix);
    let fs: &dyn FileSystem = &view;
    let caller = Caller::ROOT;
    let file = fs.mknod(&caller, fs.root(), b"Game", FileKind::Regular, 0o644, 0).unwrap();
    let fork = fs.lookup(fs.root(), b"Game..rsrc").unwrap().attr.ino;
    assert_ne!(fork, file.attr.ino);
    let opened = fs.open(&Caller::ROOT, fork, OpenFlags::READ).unwrap();

    // The file below has no content: none of this is about it.
    assert_eq!(fs.copy_range(&Caller::ROOT, fork, 0, file.attr.ino, 0, 4).unwrap(), 4);
    let mut buf = [0; 8];
    assert_eq!(fs.read(file.attr.ino, Handle::NONE, 0, &mut buf).unwrap(), 4);
    assert_eq!(&buf[..4], b"fork");
    assert_eq!(fs.write_cached(&Caller::ROOT, fork, opened.handle, 0, b"page").unwrap(), 4);
    assert!(fs.backing(fork, opened.handle).is_none());
    assert!(matches!(fs.file_flags(fork), Err(Error::UnknownCommand)));
    drop(below.take_calls());
    let command = fs.command(&caller, fork, opened.handle, 0, b"");
    assert!(matches!(command, Err(Error::UnknownCommand)));
    assert_eq!(names(&below), [""; 0]);

    // Locks are: of the file that it belongs to.
    let lock =
        FileLock { style: LockStyle::Posix, owner: 1, exclusive: true, first: 0, last: 0, pid: 1 };
    let _ = fs.find_lock(fork, &lock);
    assert_eq!(names(&below), ["find_lock"]);
    fs.flush(fork, opened.handle).unwrap();
    fs.release(fork, opened.handle).unwrap();
}

fn names(below: &Recorder) -> Vec<&'static str> {
    below.take_calls().iter().map(|call| call.name).collect()
}
