//! `HostDir` on a tmpfs of its own, also while other processes change the directory.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_vfs::acl::ACCESS;
use weft_vfs::conformance::{self, Limits};
use weft_vfs::{Caller, Error, FileSystem, Handle, HostDir, OpenFlags, Result, Walker, XattrSet};

/// The id field of ACL entries without an id.
const NO_ID: u32 = u32::MAX;

/// A tmpfs that is unmounted in the end. `None` without the privilege.
struct Tmpfs {
    dir: tempfile::TempDir,
}

impl Tmpfs {
    fn mount() -> Option<Self> {
        Self::mount_as("tmpfs", "size=1g,nr_inodes=100000,mode=755")
    }

    fn mount_as(kind: &str, options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", kind, "-o", options, "weft-test"])
            .arg(dir.path())
            .output();
        match mounted {
            Ok(out) if out.status.success() => Some(Self { dir }),
            _ => {
                eprintln!("skipped: mounting a tmpfs takes privilege");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn conforms() {
    let Some(tmpfs) = Tmpfs::mount() else { return };
    let next = AtomicU32::new(0);
    let make = || -> Arc<dyn FileSystem> {
        // The earlier file system is dropped: its inodes are no longer counted.
        let nr = next.fetch_add(1, Ordering::Relaxed);
        if let Some(last) = nr.checked_sub(3) {
            let _ = std::fs::remove_dir_all(tmpfs.path().join(last.to_string()));
        }
        let path = tmpfs.path().join(nr.to_string());
        std::fs::create_dir(&path).expect("a directory");
        Arc::new(HostDir::open(&path).expect("a directory"))
    };
    let limits = Limits {
        sets_ctime: false,
        xattr_bytes: 4096,
        special_attributes: false,
        names: 300,
        random_runs: 4,
        ..Limits::default()
    };
    conformance::run(make, &limits);
}

/// A kernel either enforces the ACLs of a mount or not, and asks for those of each file; there may
/// be several file systems below.
#[test]
fn acls_are_those_of_each_file_system_below() -> Result<()> {
    let (Some(with), Some(without)) = (Tmpfs::mount(), Tmpfs::mount_as("ramfs", "mode=755")) else {
        return Ok(());
    };
    // u::rw- u:1001:--- g::r-- m::r-- o::r--
    let list: Vec<u8> =
        [[1, 6, NO_ID], [2, 0, 1001], [4, 4, NO_ID], [16, 4, NO_ID], [32, 4, NO_ID]]
            .iter()
            .flat_map(|[tag, perm, id]| {
                [&tag.to_le_bytes()[..2], &perm.to_le_bytes()[..2], &id.to_le_bytes()[..]].concat()
            })
            .collect();
    let list = [&2_u32.to_le_bytes()[..], &list].concat();
    for (root, there) in [(&with, true), (&without, false)] {
        let below = Tmpfs { dir: tempfile::tempdir_in(root.path()).expect("a directory") };
        let other = if there { "ramfs" } else { "tmpfs" };
        let mounted =
            Command::new("mount").args(["-t", other, "weft-test"]).arg(below.path()).status();
        assert!(mounted.is_ok_and(|mounted| mounted.success()));
        let fs = HostDir::open(root.path())?;
        assert!(fs.has_acls());
        let directory = below.path().file_name().expect("a name").as_encoded_bytes().to_vec();
        for (path, there) in
            [(b"/f".to_vec(), there), ([b"/", &directory[..], b"/f"].concat(), !there)]
        {
            let walker = Walker::new(&fs);
            walker.write_file(&path, b"x", 0o644)?;
            let file = walker.resolve(&path)?;
            assert_eq!(
                fs.getxattr(file.ino(), ACCESS).map_err(|e| e.errno()),
                Err(Error::NoAttribute.errno())
            );
            let set = fs.setxattr(&Caller::ROOT, file.ino(), ACCESS, &list, XattrSet::Any);
            if there {
                set?;
                assert_eq!(fs.getxattr(file.ino(), ACCESS)?, list);
            } else {
                assert!(matches!(set, Err(Error::Unsupported(_))), "{set:?}");
            }
        }
    }
    Ok(())
}

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("served");
    std::fs::create_dir(&path).expect("a directory");
    (dir, path)
}

#[test]
fn no_path_leads_out_of_the_directory() -> Result<()> {
    let (dir, path) = temporary();
    std::fs::write(dir.path().join("secret"), "outside").expect("a file");
    symlink("../secret", path.join("relative")).expect("a link");
    symlink(dir.path(), path.join("absolute")).expect("a link");
    std::fs::create_dir_all(path.join("a/b")).expect("directories");
    let fs = HostDir::open(&path)?;
    let walker = Walker::new(&fs);
    // Links are followed within the tree, by the caller that walks it.
    assert!(matches!(walker.read_file(b"/relative"), Err(Error::NotFound)));
    assert!(walker.resolve(b"/absolute/secret").is_err());
    assert_eq!(fs.lookup(fs.root(), b"..")?.attr.ino, fs.root());
    for name in [&b"../secret"[..], b"/etc", b"a/b"] {
        assert!(matches!(fs.lookup(fs.root(), name), Err(Error::Invalid(_))));
    }
    // A directory that another process moves out while it is held has no parent.
    let b = walker.resolve(b"/a/b")?;
    std::fs::rename(path.join("a/b"), dir.path().join("b")).expect("moved out");
    assert!(matches!(b.lookup(b".."), Err(Error::NotFound)));
    Ok(())
}

#[test]
fn file_renamed_by_another_process_keeps_its_identity() -> Result<()> {
    let (_dir, path) = temporary();
    std::fs::write(path.join("f"), "one").expect("a file");
    let fs = HostDir::open(&path)?;
    let file = Walker::new(&fs).resolve(b"/f")?;
    std::fs::rename(path.join("f"), path.join("g")).expect("moved");
    std::fs::write(path.join("f"), "another").expect("a file");
    assert_eq!(file.read_all()?, b"one");
    file.write_at(&Caller::ROOT, 0, b"ONE")?;
    assert_eq!(std::fs::read(path.join("g")).expect("a file"), b"ONE");
    std::fs::remove_file(path.join("g")).expect("removed");
    assert_eq!(file.read_all()?, b"ONE");
    assert_eq!(file.stat()?.nlink, 0);
    assert_eq!(Walker::new(&fs).read_file(b"/f")?, b"another");
    Ok(())
}

#[test]
fn descriptors_are_given_back() -> Result<()> {
    let (_dir, path) = temporary();
    for nr in 0..50 {
        std::fs::write(path.join(nr.to_string()), "x").expect("a file");
    }
    let fs = HostDir::open(&path)?;
    // Only those of this directory: other tests run in parallel.
    let held = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let links = links.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links.filter(|to| to.starts_with(&path)).count()
    };
    let root = held();
    assert_eq!(root, 1, "the root");
    for listed in Walker::new(&fs).resolve(b"/")?.list()? {
        let node = Walker::new(&fs).resolve(&listed.name)?;
        assert_eq!(node.read_all()?, b"x");
        assert!(held() <= 4);
    }
    assert_eq!(held(), 1);
    let ino = fs.lookup(fs.root(), b"7")?.attr.ino;
    let opened = fs.open(&Caller::ROOT, ino, OpenFlags::READ)?;
    fs.forget(ino, 1);
    assert_eq!(fs.read(ino, opened.handle, 0, &mut [0; 4])?, 1, "the handle holds it");
    fs.unmount()?;
    assert_eq!(held(), 1);
    assert!(matches!(fs.read(ino, Handle::NONE, 0, &mut [0]), Err(Error::Stale(_))));
    Ok(())
}

#[test]
fn owner_and_mode_do_not_depend_on_the_mask() -> Result<()> {
    let (_dir, path) = temporary();
    let fs = HostDir::open(&path)?;
    let privileged = std::fs::metadata(&path).expect("there").uid() == 0;
    let (uid, gid) = if privileged { (1234, 2345) } else { (0, 0) };
    let caller = Caller { uid, gid, ..Caller::ROOT };
    let walker = Walker::owned_by(&fs, caller);
    walker.write_file(b"/f", b"x", 0o666)?;
    walker.mkdir(b"/d", 0o1777)?;
    for (name, mode) in [("f", 0o666), ("d", 0o1777)] {
        let found = std::fs::metadata(path.join(name)).expect("there");
        assert_eq!(found.permissions().mode() & 0o7777, mode);
        if privileged {
            assert_eq!((found.uid(), found.gid()), (1234, 2345));
        }
    }
    Ok(())
}

#[test]
fn other_kinds_than_directories_are_refused() {
    let (_dir, path) = temporary();
    std::fs::write(path.join("f"), "x").expect("a file");
    assert!(matches!(HostDir::open(&path.join("f")), Err(Error::NotADirectory)));
    assert!(matches!(HostDir::open(&path.join("none")), Err(Error::NotFound)));
}
