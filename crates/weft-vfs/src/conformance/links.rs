//! Link counts.

use super::bench::{Bench, caller, refused};
use crate::{Caller, Error, Result};

pub(super) fn names_of_one_file(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let file = root.create(&caller(), b"one", 0o644)?;
    file.write_at(&Caller::ROOT, 0, b"shared")?;
    file.link_as(&Caller::ROOT, &root, b"two")?;
    file.link_as(&Caller::ROOT, &dir, b"three")?;
    assert_eq!(file.stat()?.nlink, 3);
    assert_eq!(dir.lookup(b"three")?.ino(), file.ino());
    root.lookup(b"two")?.write_at(&Caller::ROOT, 0, b"SH")?;
    root.remove(&Caller::ROOT, b"one")?;
    assert_eq!(file.stat()?.nlink, 2);
    refused!(root.lookup(b"one"), NotFound);
    assert_eq!(dir.lookup(b"three")?.read_all()?, b"SHared");
    root.remove(&Caller::ROOT, b"two")?;
    dir.remove(&Caller::ROOT, b"three")?;
    assert_eq!(file.stat()?.nlink, 0);
    let link = root.symlink(&caller(), b"symlink", b"dir")?;
    link.link_as(&Caller::ROOT, &root, b"symlink2")?;
    assert_eq!(link.stat()?.nlink, 2, "a symbolic link may have two names");
    Ok(())
}

pub(super) fn directories_count_their_children(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let before = root.stat()?.nlink;
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    bench.assert_directory_links(&dir, 2);
    bench.assert_directory_links(&root, before + 1);
    for at in 0..5 {
        dir.mkdir(&caller(), format!("sub{at}").as_bytes(), 0o755)?;
        dir.create(&caller(), format!("file{at}").as_bytes(), 0o644)?;
    }
    bench.assert_directory_links(&dir, 7);
    for at in 0..5 {
        dir.remove(&Caller::ROOT, format!("sub{at}").as_bytes())?;
    }
    bench.assert_directory_links(&dir, 2);
    refused!(bench.fs.rmdir(&Caller::ROOT, root.ino(), b"dir"), NotEmpty);
    refused!(bench.fs.unlink(&Caller::ROOT, root.ino(), b"dir"), IsADirectory);
    refused!(bench.fs.rmdir(&Caller::ROOT, dir.ino(), b"file0"), NotADirectory);
    refused!(bench.fs.rmdir(&Caller::ROOT, dir.ino(), b"none"), NotFound);
    refused!(bench.fs.unlink(&Caller::ROOT, dir.ino(), b"none"), NotFound);
    for at in 0..5 {
        dir.remove(&Caller::ROOT, format!("file{at}").as_bytes())?;
    }
    root.remove(&Caller::ROOT, b"dir")?;
    assert_eq!(root.stat()?.nlink, before);
    Ok(())
}

pub(super) fn refused_links(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let file = root.create(&caller(), b"file", 0o644)?;
    refused!(dir.link_as(&Caller::ROOT, &root, b"dir2"), NotPermitted);
    refused!(file.link_as(&Caller::ROOT, &root, b"dir"), Exists);
    refused!(file.link_as(&Caller::ROOT, &root, b"file"), Exists);
    refused!(file.link_as(&Caller::ROOT, &dir, b"."), Exists);
    assert_eq!((file.stat()?.nlink, dir.stat()?.nlink), (1, 2));
    Ok(())
}

pub(super) fn most_names_of_a_file(bench: &Bench<'_>) -> Result<()> {
    let Some(most) = bench.limits.links else { return Ok(()) };
    let root = bench.root();
    let file = root.create(&caller(), b"file", 0o644)?;
    let mut names: u32 = 1;
    let mut at = 0;
    let refusal = 'fill: loop {
        let dir = root.mkdir(&caller(), format!("dir{at}").as_bytes(), 0o755)?;
        at += 1;
        // Short directories: looking for a free name may take a pass over all of them.
        for name in 0..500 {
            match file.link_as(&Caller::ROOT, &dir, format!("name{name}").as_bytes()) {
                Ok(()) => names += 1,
                Err(e) => break 'fill e,
            }
            assert!(names <= most, "more than {most} names");
        }
    };
    assert!(matches!(refusal, Error::TooManyLinks), "{refusal}");
    assert_eq!((names, file.stat()?.nlink), (most, most));
    root.remove(&Caller::ROOT, b"file")?;
    file.link_as(&Caller::ROOT, &root, b"file")?;
    Ok(())
}

pub(super) fn most_subdirectories(bench: &Bench<'_>) -> Result<()> {
    let Some(most) = bench.limits.directory_links else { return Ok(()) };
    let dir = bench.root().mkdir(&caller(), b"dir", 0o755)?;
    for at in 2..most {
        dir.mkdir(&caller(), format!("{at}").as_bytes(), 0o755)?;
    }
    assert_eq!(dir.stat()?.nlink, most);
    refused!(dir.mkdir(&caller(), b"more", 0o755), TooManyLinks);
    let other = bench.root().mkdir(&caller(), b"other", 0o755)?;
    let flags = crate::RenameFlags::empty();
    let root = bench.root().ino();
    refused!(
        bench.fs.rename(&Caller::ROOT, root, b"other", dir.ino(), b"more", flags),
        TooManyLinks
    );
    bench.fs.rename(&Caller::ROOT, root, b"other", dir.ino(), b"2", flags)?;
    assert_eq!((dir.stat()?.nlink, dir.lookup(b"2")?.ino()), (most, other.ino()));
    dir.remove(&Caller::ROOT, b"3")?;
    dir.mkdir(&caller(), b"more", 0o755)?;
    Ok(())
}
