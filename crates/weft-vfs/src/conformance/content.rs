//! Bytes of files.

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, Handle, Node, OpenFlags, Result, SetAttr};

fn resize(bench: &Bench<'_>, node: &Node<'_>, size_bytes: u64) -> Result<()> {
    let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    let attr = bench.fs.setattr(&Caller::ROOT, node.ino(), &set)?;
    assert_eq!(attr.size_bytes, size_bytes);
    Ok(())
}

pub(super) fn overwrite_and_read_back(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    let mut want = pattern(1, 20_000);
    node.write_at(&Caller::ROOT, 0, &want)?;
    // Unaligned, across pages and across blocks of every size.
    for (seed, (at, len)) in
        [(0, 1), (1023, 2), (4095, 4098), (511, 513), (8192, 4096), (19_999, 1), (5000, 0)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(seed as u64 + 2, len);
        node.write_at(&Caller::ROOT, at as u64, &bytes)?;
        want[at..at + len].copy_from_slice(&bytes);
        assert!(node.read_all()? == want, "after a write of {len} bytes at {at}");
    }
    assert_eq!(node.stat()?.size_bytes, 20_000);
    Ok(())
}

pub(super) fn long_file(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let want = pattern(7, bench.limits.long_bytes);
    {
        let node = root.create(&caller(), b"long", 0o644)?;
        let mut at = 0;
        for (round, chunk) in want.chunks(100_003).enumerate() {
            node.write_at(&Caller::ROOT, at, chunk)?;
            at += chunk.len() as u64;
            if round % 16 == 7 {
                bench.fs.fsync(&Caller::ROOT, node.ino(), true)?;
            }
        }
    }
    let node = root.lookup(b"long")?;
    assert!(node.read_all()? == want, "content after forgetting the inode");
    assert!(node.stat()?.blocks_512 >= want.len() as u64 / 512);
    let mut piece = vec![0; 10_000];
    for at in (0..want.len() - piece.len()).step_by(77_777) {
        assert_eq!(node.read_at(at as u64, &mut piece)?, piece.len());
        assert!(piece == want[at..at + piece.len()], "piece at {at}");
    }
    Ok(())
}

pub(super) fn read_past_the_end(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    let mut buf = [9; 16];
    assert_eq!(node.read_at(0, &mut buf)?, 0);
    node.write_at(&Caller::ROOT, 0, b"0123456789")?;
    assert_eq!(node.read_at(7, &mut buf)?, 3);
    assert_eq!(&buf[..3], b"789");
    assert_eq!(node.read_at(10, &mut buf)?, 0);
    assert_eq!(node.read_at(1 << 40, &mut buf)?, 0);
    assert_eq!(node.read_at(u64::MAX, &mut buf)?, 0);
    assert_eq!(bench.fs.read(node.ino(), Handle::NONE, 0, &mut [])?, 0);
    Ok(())
}

pub(super) fn sparse_and_far(bench: &Bench<'_>) -> Result<()> {
    let node = bench.root().create(&caller(), b"sparse", 0o644)?;
    // Direct, indirect, double and triple indirect in the ext family, and beyond 4 GiB.
    let far = [5_000, 300_000, 70 << 20, (4 << 30) + 123, (20 << 30) + 1];
    // Without holes, only as much as fits a small volume.
    let most = if bench.limits.holes { bench.limits.file_bytes } else { 1 << 20 };
    let far: Vec<u64> = far.into_iter().filter(|at| at + 100 <= most).collect();
    for (seed, &at) in far.iter().enumerate().rev() {
        node.write_at(&Caller::ROOT, at, &pattern(seed as u64, 100))?;
    }
    let mut buf = [1; 100];
    for (seed, &at) in far.iter().enumerate() {
        assert_eq!(node.read_at(at, &mut buf)?, 100);
        assert_eq!(buf[..], pattern(seed as u64, 100), "at {at}");
        assert_eq!(node.read_at(at - 200, &mut buf)?, 100);
        assert_eq!(buf, [0; 100], "a hole before {at}");
    }
    let last = far.last().copied().unwrap_or(0);
    let attr = node.stat()?;
    assert_eq!(attr.size_bytes, last + 100);
    if bench.limits.holes {
        assert!(attr.blocks_512 < 1000, "{} sectors for holes", attr.blocks_512);
    }
    resize(bench, &node, 0)?;
    assert_eq!(node.stat()?.blocks_512, bench.limits.empty_blocks_512);
    Ok(())
}

pub(super) fn longest_file(bench: &Bench<'_>) -> Result<()> {
    let most = bench.limits.file_bytes;
    if !bench.limits.holes {
        return Ok(());
    }
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    refused!(node.write_at(&Caller::ROOT, most, b"x"), TooLarge);
    let beyond = SetAttr { size_bytes: Some(most + 1), ..SetAttr::default() };
    refused!(bench.fs.setattr(&Caller::ROOT, node.ino(), &beyond), TooLarge);
    assert_eq!(node.stat()?.size_bytes, 0);
    node.write_at(&Caller::ROOT, most - 1, b"z")?;
    assert_eq!(node.stat()?.size_bytes, most);
    let mut last = [0];
    assert_eq!((node.read_at(most - 1, &mut last)?, last), (1, *b"z"));
    // As many bytes as there are.
    assert_eq!(bench.fs.write(&Caller::ROOT, node.ino(), Handle::NONE, most - 2, b"abc")?, 2);
    resize(bench, &node, 1)?;
    resize(bench, &node, most)?;
    assert_eq!((node.read_at(most - 1, &mut last)?, last), (1, [0]));
    resize(bench, &node, 0)
}

pub(super) fn cut_and_grow_reads_zeroes(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    for cut in [0, 1, 511, 512, 1000, 1024, 4095, 4096, 4097, 12 * 1024, 50_000, 99_999] {
        let node = root.create(&caller(), b"file", 0o644)?;
        let mut want = pattern(cut as u64, 100_000);
        node.write_at(&Caller::ROOT, 0, &want)?;
        resize(bench, &node, cut as u64)?;
        want.truncate(cut);
        assert!(node.read_all()? == want, "cut to {cut}");
        resize(bench, &node, 100_000)?;
        want.resize(100_000, 0);
        assert!(node.read_all()? == want, "cut to {cut} and grown");
        node.write_at(&Caller::ROOT, cut as u64, b"again")?;
        want[cut..].iter_mut().zip(b"again").for_each(|(to, from)| *to = *from);
        assert!(node.read_all()?[..want.len()] == want, "cut to {cut}, grown and written");
        root.remove(&Caller::ROOT, b"file")?;
    }
    Ok(())
}

pub(super) fn write_past_the_end_reads_zeroes(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    for cut in [0_usize, 1, 700, 1024, 3000, 4096, 6000] {
        for gap in [1, 600, 1024, 5000, 100_000] {
            let node = root.create(&caller(), b"file", 0o644)?;
            node.write_at(&Caller::ROOT, 0, &pattern(1, 8000))?;
            resize(bench, &node, cut as u64)?;
            node.write_at(&Caller::ROOT, (cut + gap) as u64, b"end")?;
            let content = node.read_all()?;
            assert!(content[..cut] == pattern(1, 8000)[..cut], "cut {cut} gap {gap}: kept");
            assert!(content[cut..cut + gap].iter().all(|&b| b == 0), "cut {cut} gap {gap}: gap");
            assert_eq!(&content[cut + gap..], b"end");
            root.remove(&Caller::ROOT, b"file")?;
        }
    }
    Ok(())
}

pub(super) fn append_handles(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let node = root.create(&caller(), b"log", 0o644)?;
    let append = OpenFlags::WRITE | OpenFlags::APPEND;
    let (one, two) =
        (fs.open(&Caller::ROOT, node.ino(), append)?, fs.open(&Caller::ROOT, node.ino(), append)?);
    for round in 0..50 {
        fs.write(&Caller::ROOT, node.ino(), one.handle, 0, format!("one {round}\n").as_bytes())?;
        fs.write(&Caller::ROOT, node.ino(), two.handle, 3, format!("two {round}\n").as_bytes())?;
    }
    let want: String = (0..50).map(|r| format!("one {r}\ntwo {r}\n")).collect();
    assert_eq!(node.read_all()?, want.as_bytes());
    // Without a handle the offset counts.
    fs.write(&Caller::ROOT, node.ino(), Handle::NONE, 0, b"ONE")?;
    assert_eq!(node.read_all()?.len(), want.len());
    // A page of a cache has its place, by whichever handle the kernel writes it.
    let page = [b"PAGE\n", &want.as_bytes()[5..]].concat();
    let taken = fs.write_cached(&Caller::ROOT, node.ino(), one.handle, 0, &page)?;
    assert_eq!((taken, node.read_all()?), (page.len(), page.clone()), "a page was appended");
    fs.write_cached(&Caller::ROOT, node.ino(), two.handle, 5, b"again")?;
    fs.write(&Caller::ROOT, node.ino(), two.handle, 0, b"end\n")?;
    let content = node.read_all()?;
    assert_eq!((&content[..10], content.len()), (&b"PAGE\nagain"[..], want.len() + 4));
    assert_eq!(&content[want.len()..], b"end\n", "a program appends as before");
    fs.release(node.ino(), one.handle)?;
    fs.release(node.ino(), two.handle)?;
    refused!(fs.release(node.ino(), two.handle), Invalid(_));
    Ok(())
}

pub(super) fn directories_have_no_content(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    refused!(dir.read_at(0, &mut [0; 10]), IsADirectory);
    refused!(dir.write_at(&Caller::ROOT, 0, b"x"), IsADirectory);
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    refused!(bench.fs.setattr(&Caller::ROOT, dir.ino(), &cut), IsADirectory);
    refused!(bench.fs.open(&Caller::ROOT, dir.ino(), OpenFlags::WRITE), IsADirectory);
    if bench.limits.symlinks {
        let link = root.symlink(&caller(), b"link", b"dir")?;
        refused!(bench.fs.setattr(&Caller::ROOT, link.ino(), &cut), Invalid(_));
        refused!(link.write_at(&Caller::ROOT, 0, b"x"), Invalid(_));
    }
    Ok(())
}

pub(super) fn copy_a_range(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let from = root.create(&caller(), b"from", 0o644)?;
    let to = root.create(&caller(), b"to", 0o644)?;
    let bytes = pattern(3, 600_000);
    from.write_at(&Caller::ROOT, 0, &bytes)?;
    to.write_at(&Caller::ROOT, 0, &pattern(4, 1000))?;
    assert_eq!(fs.copy_range(&Caller::ROOT, from.ino(), 1234, to.ino(), 777, 500_000)?, 500_000);
    let got = to.read_all()?;
    assert!(got[..777] == pattern(4, 1000)[..777] && got[777..] == bytes[1234..501_234]);
    assert_eq!(
        fs.copy_range(&Caller::ROOT, from.ino(), 599_000, to.ino(), 0, 5000)?,
        1000,
        "ends at the end"
    );
    assert_eq!(fs.copy_range(&Caller::ROOT, from.ino(), 700_000, to.ino(), 0, 5000)?, 0);
    assert!(to.read_all()?[..1000] == bytes[599_000..]);
    // Within one file.
    assert_eq!(fs.copy_range(&Caller::ROOT, from.ino(), 0, from.ino(), 600_000, 100)?, 100);
    assert!(from.read_all()?[600_000..] == bytes[..100]);
    Ok(())
}
