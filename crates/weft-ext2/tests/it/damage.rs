//! Damaged and hostile volumes: whatever is wrong, calls end, with a value or an error.

use crate::tools::{assert_clean, have_e2fsprogs, run};
use crate::volumes::{KINDS, Mounted, empty, options, store};
use std::process::Command;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, Image, MemoryDevice, OpenMode, Rng};
use weft_ext2::layout::{Inode, Superblock};
use weft_ext2::{Error, Ext2, fsck};
use weft_patch::Options;
use weft_vfs::{Caller, DirCursor, FileKind, FileSystem, Handle, Ino, OpenFlags, SetAttr};

/// A volume with some of everything on it.
fn used() -> Image {
    let mounted = Mounted::open(&empty(&KINDS[1]), Options::default());
    let fs = &mounted.fs;
    let caller = Caller::ROOT;
    let dir = fs.mkdir(&caller, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for i in 0..40_u8 {
        let name = [b'f', b'0' + i / 10, b'0' + i % 10];
        let (entry, open) = fs.create(&caller, dir, &name, 0o644, OpenFlags::WRITE).unwrap();
        let len = usize::from(i) * 4000;
        fs.write(&Caller::ROOT, entry.attr.ino, open.handle, 0, &vec![i; len]).unwrap();
        fs.release(entry.attr.ino, open.handle).unwrap();
        fs.setxattr(&Caller::ROOT, entry.attr.ino, b"user.a", &[i; 100], weft_vfs::XattrSet::Any)
            .unwrap();
    }
    fs.symlink(&caller, dir, b"long", &[b'x'; 300]).unwrap();
    fs.mkdir(&caller, dir, b"sub", 0o755).unwrap();
    mounted.check("some of everything").snapshot()
}

/// Does a bit of everything, whatever comes back.
fn exercise(fs: &Ext2) {
    let caller = Caller::ROOT;
    let mut todo = vec![(fs.root(), 0)];
    let mut met = 0;
    while let Some((dir, depth)) = todo.pop() {
        let mut names = Vec::new();
        let _ = fs.readdir(dir, DirCursor::START, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 200
        });
        for name in names {
            met += 1;
            if met > 500 || name == b"." || name == b".." {
                continue;
            }
            let Ok(entry) = fs.lookup(dir, &name) else { continue };
            let ino = entry.attr.ino;
            let _ = fs.read(ino, Handle::NONE, 0, &mut [0; 20_000]);
            let _ = fs.readlink(ino);
            let _ = fs.getxattr(ino, b"user.a");
            let _ = fs.listxattr(ino);
            if depth < 4 {
                todo.push((ino, depth + 1));
            }
            let _ = fs.write(&Caller::ROOT, ino, Handle::NONE, 5000, &[1; 3000]);
            let _ = fs.setattr(
                &Caller::ROOT,
                ino,
                &SetAttr { size_bytes: Some(100), ..SetAttr::default() },
            );
            let _ = fs.mkdir(&caller, ino, b"new", 0o700);
            if met % 3 == 0 {
                let _ = fs.unlink(&Caller::ROOT, dir, &name);
            }
        }
    }
    let _ = fs.sync();
    let _ = fs.unmount();
}

#[test]
fn random_damage_never_panics() {
    if !have_e2fsprogs() {
        return;
    }
    let image = used();
    // The metadata of the first group, where a random byte hits something.
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let mut broken = image.clone();
        for _ in 0..1 + seed % 20 {
            let at = 1024 + rng.next_u64() % (900 << 10);
            let byte = [(rng.next_u64() & 0xFF) as u8];
            broken.write(&byte, at).unwrap();
        }
        let device = Arc::new(MemoryDevice::from_image(broken));
        if let Ok(fs) = Ext2::open(device, options(Options::default())) {
            exercise(&fs);
        }
    }
}

#[test]
fn truncated_and_empty_devices_are_refused() {
    if !have_e2fsprogs() {
        return;
    }
    for len in [0, 1000, 2048, 1 << 20] {
        let device = Arc::new(MemoryDevice::new(len));
        let e = Ext2::open(device, options(Options::default())).unwrap_err();
        assert!(matches!(e, Error::NotExt2 { .. }), "{e}");
    }
    let image = empty(&KINDS[1]);
    let whole = MemoryDevice::from_image(image);
    let mut half = vec![0; 12 << 20];
    whole.read_at(&mut half, 0).unwrap();
    let device = Arc::new(MemoryDevice::new(half.len() as u64));
    device.write_at(&half, 0).unwrap();
    let e = Ext2::open(device, options(Options::default())).unwrap_err();
    assert!(matches!(e, Error::Corrupt { .. }), "{e}");
}

#[test]
fn unknown_features_are_refused_or_read_only() {
    if !have_e2fsprogs() {
        return;
    }
    let image = empty(&KINDS[1]);
    let mut raw = [0; 1024];
    image.read(&mut raw, 1024).unwrap();
    let sb = Superblock::parse(&raw).unwrap();
    let with = |change: &dyn Fn(&mut Superblock)| {
        let mut sb = sb.clone();
        change(&mut sb);
        let mut raw = raw;
        sb.encode_into(&mut raw);
        let mut image = image.clone();
        image.write(&raw, 1024).unwrap();
        Ext2::open(Arc::new(MemoryDevice::from_image(image)), options(Options::default()))
    };
    let e = with(&|sb| sb.features.incompat |= weft_ext2::layout::Incompat::EXTENTS).unwrap_err();
    assert!(e.to_string().contains("extent"), "{e}");
    let fs = with(&|sb| sb.features.ro_compat |= weft_ext2::layout::RoCompat::METADATA_CSUM);
    let fs = fs.unwrap();
    assert!(fs.is_read_only());
    let refused = fs.mkdir(&Caller::ROOT, fs.root(), b"x", 0o700);
    assert!(matches!(refused, Err(weft_vfs::Error::ReadOnly)));
}

/// Changes inode `ino` of a volume on the disk.
fn edit_inode(image: &mut Image, ino: u32, change: impl Fn(&mut Inode)) {
    let mut raw = [0; 1024];
    image.read(&mut raw, 1024).unwrap();
    let geometry = Superblock::parse(&raw).unwrap().geometry();
    let (group, index) = geometry.inode_group(ino).unwrap();
    let (block, offset) = geometry.desc_position(group);
    let mut desc = [0; 32];
    image.read(&mut desc, block * u64::from(geometry.block_bytes) + offset as u64).unwrap();
    let table = weft_ext2::layout::GroupDesc::parse(&desc).inode_table;
    let (block, offset) = geometry.inode_position(table, index);
    let at = block * u64::from(geometry.block_bytes) + offset as u64;
    let mut slot = vec![0; geometry.inode_bytes as usize];
    image.read(&mut slot, at).unwrap();
    let mut inode = Inode::parse(&slot).unwrap();
    change(&mut inode);
    inode.encode_into(&mut slot);
    image.write(&slot, at).unwrap();
}

fn find(image: &Image, name: &[u8]) -> u32 {
    let mounted = Mounted::open(image, Options::default());
    let dir = mounted.fs.lookup(mounted.fs.root(), b"dir").unwrap().attr.ino;
    u32::try_from(mounted.fs.lookup(dir, name).unwrap().attr.ino.0).unwrap()
}

#[test]
fn pointers_into_metadata_are_named_and_make_the_volume_read_only() {
    if !have_e2fsprogs() {
        return;
    }
    let image = used();
    let victim = find(&image, b"f30");
    for pointer in [1, 2, 3, 5_000_000] {
        let mut broken = image.clone();
        edit_inode(&mut broken, victim, |inode| {
            inode.block[0] = pointer;
            inode.block[12] = pointer;
        });
        let device = Arc::new(MemoryDevice::from_image(broken));
        let fs = Ext2::open(device, options(Options::default())).unwrap();
        let ino = Ino(u64::from(victim));
        let e = fs.read(ino, Handle::NONE, 0, &mut [0; 4096]).unwrap_err();
        let text = e.to_string();
        assert_eq!(e.errno(), 117);
        assert!(text.contains(&format!("inode {victim}")) && text.contains(&pointer.to_string()));
        assert!(!fs.is_read_only(), "reading changes nothing");
        let e = fs.write(&Caller::ROOT, ino, Handle::NONE, 0, b"x").unwrap_err();
        assert_eq!(e.errno(), 117);
        assert!(fs.is_read_only());
        assert!(fs.damage().unwrap().contains("inode"));
        let _ = fs.unmount();
    }
}

#[test]
fn an_indirect_block_that_points_at_itself_ends() {
    if !have_e2fsprogs() {
        return;
    }
    let image = used();
    let victim = find(&image, b"f30");
    let mut broken = image.clone();
    let slot = std::cell::Cell::new(0);
    edit_inode(&mut broken, victim, |inode| {
        slot.set(inode.block[12]);
        inode.block[13] = inode.block[12];
        inode.block[14] = inode.block[12];
        inode.size_bytes = 1 << 33;
    });
    let indirect = slot.get();
    assert_ne!(indirect, 0);
    let pointers: Vec<u8> = (0..256).flat_map(|_| indirect.to_le_bytes()).collect();
    broken.write(&pointers, u64::from(indirect) * 1024).unwrap();
    let device = Arc::new(MemoryDevice::from_image(broken));
    let fs = Ext2::open(device, options(Options::default())).unwrap();
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    assert_eq!(fs.setattr(&Caller::ROOT, Ino(u64::from(victim)), &cut).unwrap_err().errno(), 117);
    let _ = fs.unmount();
}

#[test]
fn an_entry_may_leave_its_kind_open() {
    let mut image = used();
    let mut bytes = vec![0; usize::try_from(image.len_bytes()).unwrap()];
    image.read(&mut bytes, 0).unwrap();
    // The name's length, the kind, the name.
    let at = bytes.windows(5).position(|w| w == [3, 2, b's', b'u', b'b']).unwrap();
    image.write(&[0], at as u64 + 1).unwrap();

    let report = fsck::check(&MemoryDevice::from_image(image.clone()), &fsck::Options::default());
    assert_eq!(report.unwrap().problems, []);
    let mounted = Mounted::open(&image, Options::default());
    let fs = &mounted.fs;
    let dir = fs.lookup(fs.root(), b"dir").unwrap().attr.ino;
    let mut kind = None;
    fs.readdir(dir, DirCursor::START, &mut |entry| {
        if entry.name == b"sub" {
            kind = Some(entry.kind);
        }
        true
    })
    .unwrap();
    assert_eq!(kind, Some(FileKind::Directory), "looked up in the inode");
    mounted.check("an entry of no kind");
}

/// Of two files that a block of data and an indirect block have in common, the one whose data it is
/// keeps it as it was: faults of the other one's pointers are corrected in a copy.
#[test]
fn a_repair_does_not_write_into_the_data_of_another_file() {
    if !have_e2fsprogs() {
        return;
    }
    let mounted = Mounted::open(&empty(&KINDS[1]), Options::default());
    let fs = &mounted.fs;
    let caller = Caller::ROOT;
    let noise: Vec<u8> = std::iter::repeat_with({
        let mut rng = Rng::new(1);
        move || rng.next_u64().to_le_bytes()
    })
    .take(1200)
    .flatten()
    .collect();
    let mut inos = Vec::new();
    for (name, content) in [(&b"stale"[..], &vec![b'b'; 40_000]), (b"good", &noise)] {
        let (entry, open) = fs.create(&caller, fs.root(), name, 0o644, OpenFlags::WRITE).unwrap();
        fs.write(&Caller::ROOT, entry.attr.ino, open.handle, 0, content).unwrap();
        fs.release(entry.attr.ino, open.handle).unwrap();
        inos.push(entry.attr.ino.0);
    }
    let device = mounted.check("two files");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    store(&device, &path);
    let debugfs =
        |request: String| run(Command::new("debugfs").args(["-w", "-R", &request]).arg(&path)).0;
    for block_of_good in [1, 4, 8] {
        let said = debugfs(format!("bmap <{}> {block_of_good}", inos[1]));
        let block = said.lines().find_map(|line| line.trim().parse::<u32>().ok()).unwrap();
        debugfs(format!("set_inode_field <{}> block[IND] {block}", inos[0]));
        let device = FileDevice::open(&path, OpenMode::READ_WRITE).unwrap();
        let report = fsck::check(&device, &fsck::Options::repair()).unwrap();
        assert!(!report.problems.is_empty() && report.remaining.is_empty(), "{report:?}");
        drop(device);
        assert_clean(&path, "after the repair");
        let device = Arc::new(FileDevice::open(&path, OpenMode::READ_WRITE).unwrap());
        let fs = Ext2::open(device, options(Options::default())).unwrap();
        let good = fs.lookup(fs.root(), b"good").unwrap().attr;
        let mut read = vec![0; noise.len()];
        assert_eq!(fs.read(good.ino, Handle::NONE, 0, &mut read).unwrap(), noise.len());
        let at = read.iter().zip(&noise).position(|(a, b)| a != b);
        assert_eq!(at, None, "block {block_of_good}: the repair wrote into another file's data");
        fs.unmount().unwrap();
    }
}
