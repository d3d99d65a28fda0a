//! More inodes than descriptors, by handles and by names, and changes to them by other processes
//! meanwhile.

use std::path::{Path, PathBuf};

use weft_vfs::{
    Caller, Error, FileKind, FileSystem, Handle, HostDir, HostDirOptions, OpenFlags, Result,
};
use weft_vfs::{Ino, RenameFlags, Walker};

const DESCRIPTORS: usize = 20;
const FILES: usize = 500;

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("served");
    std::fs::create_dir_all(path.join("d/e")).expect("directories");
    for nr in 0..FILES {
        std::fs::write(path.join(format!("d/e/{nr}")), nr.to_string()).expect("a file");
    }
    (dir, path)
}

fn open(path: &Path, by_handle: bool) -> HostDir {
    let options = HostDirOptions { descriptors: DESCRIPTORS, by_handle };
    HostDir::open_with(path, &options).expect("a directory")
}

/// Descriptors of this process below a path.
fn held(path: &Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let links = links.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|to| to.starts_with(path)).count()
}

fn text(fs: &HostDir, ino: Ino) -> Result<String> {
    let mut buf = [0; 16];
    let got = fs.read(ino, Handle::NONE, 0, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..got]).into_owned())
}

/// The inodes of all files, each with one reference, and their directory's.
fn all(fs: &HostDir) -> Result<(Ino, Vec<Ino>)> {
    let d = fs.lookup(fs.root(), b"d")?.attr.ino;
    let e = fs.lookup(d, b"e")?.attr.ino;
    let inos = (0..FILES).map(|nr| Ok(fs.lookup(e, nr.to_string().as_bytes())?.attr.ino));
    Ok((e, inos.collect::<Result<_>>()?))
}

/// Uses other inodes until all descriptors are closed.
fn wear(fs: &HostDir, inos: &[Ino]) -> Result<()> {
    for ino in &inos[FILES - 3 * DESCRIPTORS..] {
        fs.getattr(*ino)?;
        fs.getattr(*ino)?;
    }
    Ok(())
}

#[test]
fn any_number_of_inodes_is_used_by_few_descriptors() -> Result<()> {
    for by_handle in [true, false] {
        let (_dir, path) = temporary();
        let fs = open(&path, by_handle);
        let (e, inos) = all(&fs)?;
        for round in 0..2 {
            for (nr, ino) in inos.iter().enumerate() {
                assert_eq!(fs.getattr(*ino)?.ino, *ino);
                assert_eq!(text(&fs, *ino)?, nr.to_string());
                assert_eq!(fs.getxattr(*ino, b"user.none").map_err(|e| e.errno()), Err(61));
                assert!(held(&path) <= DESCRIPTORS + 3, "round {round}: {}", held(&path));
            }
        }
        // Moved, removed and opened inodes stay usable, whatever is used meanwhile.
        fs.rename(&Caller::ROOT, e, b"1", fs.root(), b"moved", RenameFlags::empty())?;
        fs.rename(&Caller::ROOT, e, b"2", e, b"3", RenameFlags::EXCHANGE)?;
        fs.rename(&Caller::ROOT, e, b"4", e, b"5", RenameFlags::empty())?;
        fs.unlink(&Caller::ROOT, e, b"6")?;
        let opened = fs.open(&Caller::ROOT, inos[7], OpenFlags::READ)?;
        let d = fs.lookup(fs.root(), b"d")?.attr.ino;
        fs.rename(&Caller::ROOT, fs.root(), b"d", fs.root(), b"other", RenameFlags::empty())?;
        std::fs::remove_file(path.join("other/e/7")).expect("removed");
        wear(&fs, &inos)?;
        for (nr, ino) in inos.iter().enumerate().take(20) {
            assert_eq!(text(&fs, *ino)?, nr.to_string(), "by handle: {by_handle}");
            assert_eq!(fs.getattr(*ino)?.nlink, u32::from(![5, 6, 7].contains(&nr)), "{nr}");
        }
        assert_eq!(fs.lookup(d, b"..")?.attr.ino, fs.root());
        fs.release(inos[7], opened.handle)?;
        for (nr, ino) in inos.iter().enumerate() {
            fs.forget(*ino, 1);
            assert!(matches!(fs.getattr(*ino), Err(Error::Stale(_))), "{nr}");
        }
        assert!(held(&path) <= 5, "{}", held(&path));
    }
    Ok(())
}

/// A file that another process puts in the place of an inode is not taken for that inode.
#[test]
fn replacement_by_another_process_is_another_inode() -> Result<()> {
    for by_handle in [true, false] {
        let (_dir, path) = temporary();
        let fs = open(&path, by_handle);
        let (e, inos) = all(&fs)?;
        wear(&fs, &inos)?;
        for nr in 0..100 {
            let at = path.join(format!("d/e/{nr}"));
            std::fs::remove_file(&at).expect("removed");
            // Inode numbers are reused soon.
            if nr % 2 == 0 { std::fs::write(&at, "new") } else { std::fs::create_dir(&at) }
                .expect("made");
        }
        let mut again = 0;
        for nr in 0..100 {
            let was = inos[nr];
            let gone = fs.getattr(was);
            assert!(matches!(gone, Err(Error::Stale(_))), "{by_handle} {nr}: {gone:?}");
            assert!(matches!(text(&fs, was), Err(Error::Stale(_))), "{nr}");
            let found = fs.lookup(e, nr.to_string().as_bytes())?.attr;
            again += usize::from(inos[..100].iter().any(|ino| ino.0 == found.ino.0));
            let kind = if nr % 2 == 0 { FileKind::Regular } else { FileKind::Directory };
            assert_eq!(found.kind, kind, "{nr}");
            assert_eq!(fs.getattr(found.ino)?.kind, kind);
            assert_eq!(fs.lookup(e, nr.to_string().as_bytes())?.attr.ino, found.ino);
            // Also after it was forgotten.
            fs.forget(found.ino, 2);
            assert_eq!(fs.lookup(e, nr.to_string().as_bytes())?.attr.ino, found.ino);
        }
        assert_eq!(again, 0, "no number is that of an inode that somebody refers to");
    }
    Ok(())
}

/// Two devices below one directory may have the same number for different files.
#[test]
fn several_devices_have_numbers_of_their_own() -> Result<()> {
    let (_dir, path) = temporary();
    let mounts = [path.join("d/one"), path.join("d/two")];
    for mount in &mounts {
        std::fs::create_dir(mount).expect("a directory");
        let mut command = std::process::Command::new("mount");
        let mounted = command.args(["-t", "tmpfs", "weft-test"]).arg(mount).output();
        if !mounted.is_ok_and(|out| out.status.success()) {
            eprintln!("skipped: mounting a tmpfs takes privilege");
            return Ok(());
        }
        for nr in 0..50 {
            std::fs::write(mount.join(nr.to_string()), "x").expect("a file");
        }
    }
    let fs = open(&path, true);
    let numbers = || -> Result<Vec<Ino>> {
        let mut numbers = Vec::new();
        for dir in ["/d", "/d/e", "/d/one", "/d/two"] {
            for listed in Walker::new(&fs).resolve(dir.as_bytes())?.list()? {
                let name = String::from_utf8_lossy(&listed.name).into_owned();
                let found = Walker::new(&fs).resolve(format!("{dir}/{name}").as_bytes())?.ino();
                numbers.push(found);
            }
        }
        Ok(numbers)
    };
    let first = numbers()?;
    assert_eq!(first, numbers()?, "the same when all of them were forgotten");
    let mut unique = first.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), first.len());
    drop(fs);
    for mount in &mounts {
        let _ = std::process::Command::new("umount").arg(mount).status();
    }
    Ok(())
}
