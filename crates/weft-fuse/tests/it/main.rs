//! Real system calls through a real mount of the file system in memory.
//!
//! Needs `/dev/fuse` and the right to mount; where the device is missing each test says so and
//! passes.

mod callers;
mod interrupts;
mod io_uring;
mod life;
mod mapped;
mod names;
mod overtaken;
mod restored;
mod slow;
mod trees;
mod waits;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_fuse::{Error, Mount, MountOptions};
use weft_testing::wait_for;
use weft_vfs::{Caller, FileSystem, MemFs, SetAttr};

/// A mount in a directory of its own.
struct Mounted {
    mount: Option<Mount>,
    fs: Arc<MemFs>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn unmount(mut self) -> Arc<MemFs> {
        unmount(&mut self.mount.take().expect("mounted"));
        Arc::clone(&self.fs)
    }
}

/// Unmounts when no program uses the mount any more: while another test of this process starts a program,
/// that has the files of all tests until its exec.
fn unmount(mount: &mut Mount) {
    wait_for("no program uses the mount", || match mount.unmount() {
        Err(busy @ Error::Busy(_)) => Err(busy),
        other => Ok(other),
    })
    .expect("unmount");
}

/// Mounts with the default options, or says why not.
fn mounted() -> Option<Mounted> {
    mounted_with(&options())
}

/// Root lets others in, so that there is somebody whose permissions are checked.
fn options() -> MountOptions {
    let allow_other = rustix::process::geteuid().is_root();
    MountOptions { allow_other, ..MountOptions::default() }
}

/// A file system in memory that belongs to the user of the test, as a mount checks permissions.
fn memory() -> MemFs {
    let fs = MemFs::new();
    give_root_away(&fs);
    fs
}

/// Makes the root directory that of whoever runs the test.
fn give_root_away(fs: &dyn FileSystem) {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, fs.root(), &owner).expect("an owner");
}

fn mounted_with(options: &MountOptions) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse here");
        return None;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let fs = Arc::new(memory());
    let plug: Arc<dyn FileSystem> = fs.clone();
    let mount = weft_fuse::mount(plug, dir.path(), options).expect("mount");
    Some(Mounted { mount: Some(mount), fs, dir })
}

/// Both with and without the kernel's writeback cache.
fn both_caches(test: impl Fn(&Mounted)) {
    for writeback_cache in [true, false] {
        let options = MountOptions { writeback_cache, ..options() };
        let Some(mounted) = mounted_with(&options) else { return };
        test(&mounted);
        mounted.unmount();
    }
}
