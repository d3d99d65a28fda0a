//! Space: allocation, freeing, seeking, and full volumes.

use super::bench::{Bench, caller, refused};
use super::seeded::pattern;
use crate::{Caller, Error, FallocateMode, Handle, Result, SeekFrom};

pub(super) fn allocate(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let node = root.create(&caller(), b"file", 0o644)?;
    let ino = node.ino();
    node.write_at(&Caller::ROOT, 0, b"head")?;
    fs.fallocate(&Caller::ROOT, ino, FallocateMode::Allocate { keep_size: false }, 0, 100_000)?;
    assert_eq!(node.stat()?.size_bytes, 100_000);
    assert!(node.stat()?.blocks_512 * 512 >= 100_000);
    let content = node.read_all()?;
    assert!(content.starts_with(b"head") && content[4..].iter().all(|&b| b == 0));
    fs.fallocate(&Caller::ROOT, ino, FallocateMode::Allocate { keep_size: true }, 200_000, 50_000)?;
    assert_eq!(node.stat()?.size_bytes, 100_000);
    // Space allocated past the end reads as zeroes once the file grows over it.
    node.write_at(&Caller::ROOT, 300_000, b"tail")?;
    assert!(node.read_all()?[4..300_000].iter().all(|&b| b == 0));
    refused!(
        fs.fallocate(&Caller::ROOT, ino, FallocateMode::Allocate { keep_size: false }, 0, 0),
        Invalid(_)
    );
    let dir = root.mkdir(&caller(), b"dir", 0o755)?;
    let on_dir =
        fs.fallocate(&Caller::ROOT, dir.ino(), FallocateMode::Allocate { keep_size: false }, 0, 1);
    refused!(on_dir, IsADirectory | Invalid(_));
    Ok(())
}

pub(super) fn punch_and_zero(bench: &Bench<'_>) -> Result<()> {
    let root = bench.root();
    for (at, len) in [(0, 100_000), (1, 2), (4096, 8192), (1000, 50_000), (99_000, 90_000)] {
        for (mode, keep) in [
            (FallocateMode::PunchHole, true),
            (FallocateMode::ZeroRange { keep_size: true }, true),
            (FallocateMode::ZeroRange { keep_size: false }, false),
        ] {
            let node = root.create(&caller(), b"file", 0o644)?;
            let mut want = pattern(at as u64, 100_000);
            node.write_at(&Caller::ROOT, 0, &want)?;
            bench.fs.fallocate(&Caller::ROOT, node.ino(), mode, at as u64, len as u64)?;
            if !keep && at + len > want.len() {
                want.resize(at + len, 0);
            }
            let end = (at + len).min(want.len());
            want[at..end].fill(0);
            assert!(node.read_all()? == want, "{mode:?} of {len} at {at}");
            let taken = node.stat()?.blocks_512;
            if mode == FallocateMode::PunchHole && bench.limits.holes {
                // Whole blocks of up to 4 KiB within the hole are freed.
                let whole = ((end - at) / 4096).saturating_sub(1) as u64 * 8;
                let blocks = 100_000_u64.div_ceil(512) + 64;
                assert!(taken <= blocks - whole, "{taken} sectors left");
            }
            node.write_at(&Caller::ROOT, at as u64, b"back")?;
            let mut four = [0; 4];
            node.read_at(at as u64, &mut four)?;
            assert_eq!(&four, b"back");
            root.remove(&Caller::ROOT, b"file")?;
        }
    }
    Ok(())
}

pub(super) fn seek_data_and_holes(bench: &Bench<'_>) -> Result<()> {
    let fs = &bench.fs;
    let node = bench.root().create(&caller(), b"file", 0o644)?;
    let ino = node.ino();
    refused!(fs.seek(ino, SeekFrom::Data(0)), NoAddress);
    node.write_at(&Caller::ROOT, 0, &[1; 4096])?;
    node.write_at(&Caller::ROOT, 1 << 20, &[2; 4096])?;
    let end = (1 << 20) + 4096;
    for past in [end, end + 1, 1 << 50] {
        refused!(fs.seek(ino, SeekFrom::Data(past)), NoAddress);
        refused!(fs.seek(ino, SeekFrom::Hole(past)), NoAddress);
    }
    assert_eq!(fs.seek(ino, SeekFrom::Data(10))?, 10);
    assert_eq!(fs.seek(ino, SeekFrom::Hole((1 << 20) + 5))?, end, "the end counts as a hole");
    if !bench.limits.holes {
        return Ok(());
    }
    assert_eq!(fs.seek(ino, SeekFrom::Hole(10))?, 4096);
    assert_eq!(fs.seek(ino, SeekFrom::Hole(5000))?, 5000);
    assert_eq!(fs.seek(ino, SeekFrom::Data(5000))?, 1 << 20);
    let size_bytes = Some(bench.limits.file_bytes.min(1 << 30));
    let grow = crate::SetAttr { size_bytes, ..crate::SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &grow)?;
    refused!(fs.seek(ino, SeekFrom::Data(end)), NoAddress);
    assert_eq!(fs.seek(ino, SeekFrom::Hole(1 << 20))?, end);
    Ok(())
}

pub(super) fn statfs_follows(bench: &Bench<'_>) -> Result<()> {
    let (fs, root) = (&bench.fs, bench.root());
    let before = fs.statfs()?;
    assert!(before.blocks_free <= before.blocks && before.blocks_available <= before.blocks_free);
    assert!(before.inodes_free < before.inodes);
    assert!(before.name_max_bytes as usize >= bench.limits.name_bytes);
    let node = root.create(&caller(), b"file", 0o644)?;
    node.write_at(&Caller::ROOT, 0, &pattern(1, 500_000))?;
    fs.fsync(&Caller::ROOT, node.ino(), false)?;
    let during = fs.statfs()?;
    let taken = (before.blocks_free - during.blocks_free) * u64::from(before.block_bytes);
    assert!((500_000..700_000).contains(&taken), "{taken} bytes taken for 500,000");
    assert_eq!(during.inodes_free, before.inodes_free - 1);
    root.remove(&Caller::ROOT, b"file")?;
    drop(node);
    fs.sync()?;
    let after = fs.statfs()?;
    assert!(after.inodes_free == before.inodes_free || !bench.limits.reuses_inodes);
    assert!(before.blocks_free - after.blocks_free <= 1, "a directory block at most");
    Ok(())
}

pub(super) fn full_of_data(bench: &Bench<'_>) -> Result<()> {
    if !bench.limits.fill {
        return Ok(());
    }
    let (fs, root) = (&bench.fs, bench.root());
    let small = root.create(&caller(), b"small", 0o644)?;
    small.write_at(&Caller::ROOT, 0, b"survives")?;
    let before = fs.statfs()?.blocks_free;
    let node = root.create(&caller(), b"big", 0o644)?;
    let chunk = pattern(5, 64 << 10);
    let mut len = 0;
    let refusal = loop {
        match fs.write(&Caller::ROOT, node.ino(), Handle::NONE, len, &chunk) {
            Ok(0) => panic!("a write that takes nothing says why"),
            Ok(taken) => len += taken as u64,
            Err(e) => break e,
        }
        assert!(len >> 40 == 0, "a volume without end");
    };
    assert!(matches!(refusal, Error::NoSpace), "{refusal}");
    assert_eq!(node.stat()?.size_bytes, len, "the length is that of what was taken");
    assert!(node.read_all()?.chunks(chunk.len()).all(|got| got == &chunk[..got.len()]));
    refused!(fs.write(&Caller::ROOT, node.ino(), Handle::NONE, 1 << 29, b"x"), NoSpace);
    assert_eq!(small.read_all()?, b"survives");
    // Overwriting needs no space.
    small.write_at(&Caller::ROOT, 0, b"SURVIVES")?;
    fs.sync()?;
    root.remove(&Caller::ROOT, b"big")?;
    drop(node);
    fs.sync()?;
    assert!(before - fs.statfs()?.blocks_free <= 1);
    let again = root.create(&caller(), b"again", 0o644)?;
    again.write_at(&Caller::ROOT, 0, &chunk)?;
    assert!(again.read_all()? == chunk);
    Ok(())
}

pub(super) fn full_of_names(bench: &Bench<'_>) -> Result<()> {
    if !bench.limits.fill {
        return Ok(());
    }
    let (fs, root) = (&bench.fs, bench.root());
    let before = fs.statfs()?;
    let mut made = 0_u32;
    let refusal = 'fill: loop {
        let name = format!("dir{made}");
        let dir = match root.mkdir(&caller(), name.as_bytes(), 0o755) {
            Ok(dir) => dir,
            Err(e) => break e,
        };
        for at in 0..400 {
            match dir.create(&caller(), format!("file{at}").as_bytes(), 0o644) {
                Ok(_) => made += 1,
                Err(e) => break 'fill e,
            }
        }
        assert!(made < 10_000_000, "a volume without end");
    };
    assert!(matches!(refusal, Error::NoSpace), "{refusal}");
    fs.sync()?;
    let walker = crate::Walker::new(&*bench.fs);
    for listed in root.list()? {
        if listed.name.starts_with(b"dir") {
            walker.remove_tree(&[b"/", &listed.name[..]].concat(), &mut |_| {})?;
        }
    }
    fs.sync()?;
    let after = fs.statfs()?;
    assert!(after.inodes_free == before.inodes_free || !bench.limits.reuses_inodes);
    let lost = before.blocks_free - after.blocks_free;
    assert!(lost <= 1 || !bench.limits.names_give_back_space, "{lost} blocks are lost");
    let again = root.create(&caller(), b"again", 0o644)?;
    if bench.limits.names_give_back_space { again.write_at(&Caller::ROOT, 0, b"x") } else { Ok(()) }
}
