//! Calls from many threads at once.

use std::collections::HashSet;
use std::thread;

use super::bench::{Bench, caller};
use super::seeded::pattern;
use crate::{Caller, Error, FileSystem, Node, OpenFlags, RenameFlags, Result};

const THREADS: u64 = 4;

/// Runs `work` on four threads and returns the first error.
fn together(
    bench: &Bench<'_>,
    work: impl Fn(&dyn FileSystem, u64) -> Result<()> + Sync,
) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|nr| {
                let fs = &*bench.fs;
                scope.spawn(move || work(fs, nr))
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("a thread panicked"))
    })
}

pub(super) fn own_directories(bench: &Bench<'_>) -> Result<()> {
    together(bench, |fs, nr| {
        let root = Node::root(fs)?;
        let dir = root.mkdir(&caller(), format!("dir{nr}").as_bytes(), 0o755)?;
        for at in 0..100 {
            let name = format!("file{at}");
            let node = dir.create(&caller(), name.as_bytes(), 0o644)?;
            let bytes = pattern(nr * 1000 + at, 5000);
            node.write_at(&Caller::ROOT, 0, &bytes)?;
            assert!(node.read_all()? == bytes);
            if at % 3 == 0 {
                dir.remove(&Caller::ROOT, name.as_bytes())?;
            }
            if at % 10 == 9 {
                fs.fsync(&Caller::ROOT, node.ino(), false)?;
            }
        }
        Ok(())
    })?;
    let root = bench.root();
    for nr in 0..THREADS {
        let dir = root.lookup(format!("dir{nr}").as_bytes())?;
        assert_eq!(dir.list()?.len(), 66);
        for at in (0..100).filter(|at| at % 3 != 0) {
            let node = dir.lookup(format!("file{at}").as_bytes())?;
            assert!(node.read_all()? == pattern(nr * 1000 + at, 5000));
        }
    }
    Ok(())
}

pub(super) fn one_directory(bench: &Bench<'_>) -> Result<()> {
    let fight = bench.root().mkdir(&caller(), b"fight", 0o755)?;
    let ino = fight.ino();
    together(bench, |fs, nr| {
        let dir = Node::root(fs)?.lookup(b"fight")?;
        for at in 0..200 {
            let (shared, mine) = (format!("shared{}", at % 5), format!("mine{nr}"));
            // Each of the outcomes is allowed, but no other error and no inconsistent tree.
            match dir.create(&caller(), shared.as_bytes(), 0o644) {
                Ok(_) | Err(Error::Exists) => {}
                Err(e) => return Err(e),
            }
            match fs.rename(
                &Caller::ROOT,
                ino,
                shared.as_bytes(),
                ino,
                mine.as_bytes(),
                RenameFlags::empty(),
            ) {
                Ok(()) | Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
            match fs.unlink(&Caller::ROOT, ino, format!("shared{}", (at + nr) % 5).as_bytes()) {
                Ok(()) | Err(Error::NotFound) => {}
                Err(e) => return Err(e),
            }
            dir.list()?;
        }
        Ok(())
    })?;
    let listed = fight.list()?;
    let distinct: HashSet<_> = listed.iter().map(|l| l.ino).collect();
    assert_eq!(distinct.len(), listed.len());
    for l in &listed {
        assert_eq!(bench.nlink(fight.lookup(&l.name)?.ino()), 1);
        fight.remove(&Caller::ROOT, &l.name)?;
    }
    bench.root().remove(&Caller::ROOT, b"fight")
}

pub(super) fn one_file(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"log", 0o644)?;
    let ino = node.ino();
    together(bench, |fs, nr| {
        let opened = fs.open(&Caller::ROOT, ino, OpenFlags::WRITE | OpenFlags::APPEND)?;
        for at in 0..100 {
            let line = format!("{nr} {at:05}\n");
            assert_eq!(
                fs.write(&Caller::ROOT, ino, opened.handle, 0, line.as_bytes())?,
                line.len()
            );
        }
        fs.release(ino, opened.handle)
    })?;
    let content = node.read_all()?;
    let lines: Vec<&[u8]> = content.split_inclusive(|&b| b == b'\n').collect();
    assert_eq!(lines.len() as u64, THREADS * 100, "each append is atomic");
    for nr in 0..THREADS {
        let prefix = format!("{nr} ");
        let mine: Vec<_> = lines.iter().filter(|l| l.starts_with(prefix.as_bytes())).collect();
        let want: Vec<_> = (0..100).map(|at| format!("{nr} {at:05}\n").into_bytes()).collect();
        assert!(mine.iter().zip(&want).all(|(a, b)| *a == b) && mine.len() == 100);
    }
    Ok(())
}

/// Write-back as by a kernel: pieces of a new file, by several threads, in no order. A write past
/// the end extends the file, while other threads write before and behind it.
pub(super) fn pieces_of_one_file(bench: &Bench<'_>) -> Result<()> {
    const PIECE: usize = 64 << 10;
    let pieces = (bench.limits.long_bytes / PIECE).max(THREADS as usize);
    let want = pattern(5, pieces * PIECE);
    // Upwards and downwards, both from the middle.
    for step in [pieces + 1, 2 * pieces - 1] {
        let node = bench.root().create(&caller(), b"pieces", 0o644)?;
        together(bench, |fs, nr| {
            let opened = fs.open(&Caller::ROOT, node.ino(), OpenFlags::WRITE)?;
            for n in (nr as usize..pieces).step_by(THREADS as usize) {
                let at = (n * step + pieces / 2) % pieces * PIECE;
                let piece = &want[at..at + PIECE];
                assert_eq!(
                    fs.write(&Caller::ROOT, node.ino(), opened.handle, at as u64, piece)?,
                    PIECE
                );
            }
            fs.release(node.ino(), opened.handle)
        })?;
        assert!(node.read_all()? == want, "in steps of {step}");
        bench.root().remove(&Caller::ROOT, b"pieces")?;
    }
    Ok(())
}
