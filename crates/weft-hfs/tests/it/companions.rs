//! Companions beside files that have their names, and companions that are no companions: nothing is
//! hidden, dropped or mixed up.

use crate::volume::{empty, mount};
use counting::Counting;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_block::{BlockDevice, MemoryDevice};
use weft_hfs::interchange::{Meta, apple};
use weft_hfs::mfs::{self, Mfs, MkfsOptions};
use weft_hfs::streams::MacVolume;
use weft_hfs::view::{ForkView, Forks};
use weft_vfs::{
    Caller, DirCursor, Error, FileKind, FileSystem, Handle, OpenFlags, RenameFlags, Result,
    SetAttr, SetTime, Time,
};

const ROOT: Caller = Caller::ROOT;

/// Volumes of both formats.
fn volumes() -> Vec<Arc<dyn MacVolume>> {
    let device = Arc::new(MemoryDevice::new(800 << 10));
    mfs::mkfs(&*device, &MkfsOptions::default()).unwrap();
    let floppy = Mfs::open(device as Arc<dyn BlockDevice>, mfs::OpenOptions::default()).unwrap();
    vec![mount(&empty(2 << 20)), floppy]
}

fn view(volume: &Arc<dyn MacVolume>, forks: Forks) -> Arc<dyn FileSystem> {
    Arc::new(ForkView::new(Arc::clone(volume), forks))
}

/// As on a mount.
fn mounted(volume: &Arc<dyn MacVolume>) -> Arc<dyn FileSystem> {
    Arc::new(ForkView::new(Arc::clone(volume), Forks::AppleDouble).leaving_doubles(true))
}

fn fork(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// An AppleDouble as unar writes it.
fn double(kind: &[u8; 8], fork: &[u8]) -> Vec<u8> {
    let mut meta = Meta { resource_bytes: fork.len() as u64, ..Meta::default() };
    meta.finder_info[..8].copy_from_slice(kind);
    [&apple::short_header(&meta).unwrap()[..], fork].concat()
}

/// Writes a file as a program does that opens, writes and closes it. Returns what closing it said.
fn try_put(fs: &dyn FileSystem, name: &[u8], content: &[u8]) -> Result<()> {
    let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let (ino, handle) = match fs.lookup(fs.root(), name) {
        Ok(entry) => (entry.attr.ino, fs.open(&ROOT, entry.attr.ino, flags)?.handle),
        Err(Error::NotFound) => {
            let (entry, opened) = fs.create(&ROOT, fs.root(), name, 0o644, flags)?;
            (entry.attr.ino, opened.handle)
        }
        Err(e) => return Err(e),
    };
    let written = content.chunks(700).enumerate().try_for_each(|(n, piece)| {
        let put = fs.write(&ROOT, ino, handle, n as u64 * 700, piece)?;
        assert_eq!(put, piece.len());
        Ok(())
    });
    let closed = written.and(fs.flush(ino, handle)).and(fs.release(ino, handle));
    fs.forget(ino, 1);
    closed
}

#[track_caller]
fn put(fs: &dyn FileSystem, name: &[u8], content: &[u8]) {
    try_put(fs, name, content).unwrap();
}

fn get(fs: &dyn FileSystem, name: &[u8]) -> Option<Vec<u8>> {
    let entry = fs.lookup(fs.root(), name).ok()?;
    let mut content = vec![0; entry.attr.size_bytes as usize + 10];
    let mut done = 0;
    loop {
        match fs.read(entry.attr.ino, Handle::NONE, done as u64, &mut content[done..]).unwrap() {
            0 => break,
            got => done += got,
        }
    }
    content.truncate(done);
    assert_eq!(done as u64, entry.attr.size_bytes);
    fs.forget(entry.attr.ino, 1);
    Some(content)
}

fn names(fs: &dyn FileSystem) -> Vec<String> {
    let mut all = Vec::new();
    fs.readdir(fs.root(), DirCursor::START, &mut |entry| {
        all.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    let mut plus = Vec::new();
    let mut held = Vec::new();
    fs.readdir_plus(fs.root(), DirCursor::START, &mut |entry, found| {
        plus.push(String::from_utf8(entry.name.to_vec()).unwrap());
        if !matches!(entry.name, b"." | b"..") {
            held.push(found.attr.ino);
        }
        true
    })
    .unwrap();
    held.into_iter().for_each(|ino| fs.forget(ino, 1));
    assert_eq!(all, plus);
    all.retain(|name| name != "." && name != "..");
    all.sort();
    all
}

fn resource(volume: &Arc<dyn MacVolume>, name: &[u8]) -> Vec<u8> {
    let entry = volume.lookup(volume.root(), name).unwrap();
    let mut bytes = vec![0; volume.meta(entry.attr.ino).unwrap().resource_bytes as usize];
    let got = volume.read_resource(entry.attr.ino, 0, &mut bytes).unwrap();
    assert_eq!(got, bytes.len());
    volume.forget(entry.attr.ino, 1);
    bytes
}

/// All orders of these names.
fn orders(names: &[String]) -> Vec<Vec<String>> {
    if names.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |at: usize| {
        let mut rest = names.to_vec();
        let first = rest.remove(at);
        orders(&rest).into_iter().map(move |rest| [vec![first.clone()], rest].concat())
    };
    (0..names.len()).flat_map(with_first).collect()
}

#[test]
fn a_file_with_the_name_of_a_companion_has_another_spelling() {
    for volume in volumes() {
        for (forks, companion, other) in [
            (Forks::AppleDouble, "._App", "\u{2024}_App"),
            (Forks::Suffix, "App..rsrc", "App\u{2024}\u{2024}rsrc"),
        ] {
            let fs = view(&volume, forks);
            let plain: &dyn FileSystem = &*volume;
            put(&*fs, b"App", b"data");
            put(plain, companion.as_bytes(), b"left by a PC");
            let all = names(&*fs);
            assert!(all.contains(&companion.into()) && !all.contains(&other.into()), "{all:?}");
            let content = match forks {
                Forks::AppleDouble => double(b"APPLabcd", &fork(400)),
                _ => fork(400),
            };
            put(plain, b"App", b"data");
            let app = plain.lookup(plain.root(), b"App").unwrap().attr.ino;
            volume.write_resource(app, 0, &fork(400)).unwrap();
            assert_eq!(get(&*fs, other.as_bytes()).as_deref(), Some(&b"left by a PC"[..]));
            put(&*fs, companion.as_bytes(), &content);
            assert_eq!(get(&*fs, companion.as_bytes()), Some(content.clone()), "{forks}");
            let all = names(&*fs);
            assert!(all.contains(&companion.into()) && all.contains(&other.into()), "{all:?}");
            assert_eq!(get(&*fs, other.as_bytes()).as_deref(), Some(&b"left by a PC"[..]));
            assert_eq!(resource(&volume, b"App"), fork(400));

            // Onto another volume, in every order: programs sort by inode number, among others.
            let listed = names(&*fs);
            for order in orders(&listed) {
                let second: Arc<dyn MacVolume> = mount(&empty(2 << 20));
                let to = view(&second, forks);
                for name in &order {
                    put(&*to, name.as_bytes(), &get(&*fs, name.as_bytes()).unwrap());
                }
                let told = format!("{forks} {order:?}");
                if forks == Forks::AppleDouble || order == listed {
                    assert_eq!(names(&*to), listed, "{told}");
                    assert_eq!(resource(&second, b"App"), fork(400), "{told}");
                }
                let real = get(&*second, other.as_bytes());
                assert_eq!(real.as_deref(), Some(&b"left by a PC"[..]), "{told}");
            }
            // Each is removed by its own name.
            fs.unlink(&ROOT, fs.root(), companion.as_bytes()).unwrap();
            assert_eq!(resource(&volume, b"App"), b"");
            assert_eq!(get(plain, companion.as_bytes()).as_deref(), Some(&b"left by a PC"[..]));
            for name in names(&*fs) {
                match fs.unlink(&ROOT, fs.root(), name.as_bytes()) {
                    // A companion goes with its file.
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(e) => panic!("{name}: {e}"),
                }
            }
            assert_eq!(names(plain), [""; 0]);
        }
    }
}

#[test]
fn a_directory_is_no_companion_either() {
    let volume: Arc<dyn MacVolume> = mount(&empty(2 << 20));
    let fs = view(&volume, Forks::AppleDouble);
    volume.mkdir(&ROOT, volume.root(), b"._App", 0o755).unwrap();
    put(&*fs, b"App", b"data");
    put(&*volume, b"App", b"data");
    let app = volume.lookup(volume.root(), b"App").unwrap().attr.ino;
    volume.write_resource(app, 0, b"fork").unwrap();
    assert_eq!(names(&*fs), ["._App", "App", "\u{2024}_App"]);
    assert!(matches!(fs.rmdir(&ROOT, fs.root(), b"._App"), Err(Error::NotADirectory)));
    assert!(matches!(fs.mkdir(&ROOT, fs.root(), b"._App", 0o755), Err(Error::Exists)));
    fs.rmdir(&ROOT, fs.root(), "\u{2024}_App".as_bytes()).unwrap();
    assert_eq!(names(&*fs), ["._App", "App"]);
}

/// What is no whole AppleDouble.
fn scraps() -> Vec<Vec<u8>> {
    let whole = double(b"APPLabcd", &fork(3000));
    let mut single = whole.clone();
    single[3] = 0;
    vec![b"notes".to_vec(), Vec::new(), whole[..82].to_vec(), whole[..1000].to_vec(), single]
}

#[test]
fn what_is_no_appledouble_becomes_a_file() {
    for volume in volumes() {
        let fs = view(&volume, Forks::AppleDouble);
        put(&*fs, b"App", b"data");
        for scrap in scraps() {
            let told = format!("{} bytes", scrap.len());
            put(&*fs, b"._App", &scrap);
            assert_eq!(get(&*volume, b"._App"), Some(scrap.clone()), "{told}");
            assert_eq!(get(&*fs, b"._App"), Some(scrap.clone()), "{told}");
            assert_eq!(names(&*fs), ["._App", "App"], "{told}");
            // It is not taken for a companion when its file is made again.
            fs.unlink(&ROOT, fs.root(), b"App").unwrap();
            put(&*fs, b"App", b"data");
            assert_eq!(get(&*fs, b"._App"), Some(scrap.clone()), "{told}");
            fs.unlink(&ROOT, fs.root(), b"._App").unwrap();

            // Beside a fork, which stays.
            put(&*fs, b"._App", &double(b"APPLabcd", &fork(500)));
            put(&*fs, b"._App", &scrap);
            assert_eq!(get(&*volume, b"._App"), Some(scrap.clone()), "{told}");
            assert_eq!(names(&*fs), ["._App", "App", "\u{2024}_App"], "{told}");
            assert_eq!(get(&*fs, "\u{2024}_App".as_bytes()), Some(scrap), "{told}");
            assert_eq!(resource(&volume, b"App"), fork(500), "{told}");
            fs.unlink(&ROOT, fs.root(), "\u{2024}_App".as_bytes()).unwrap();
            fs.unlink(&ROOT, fs.root(), b"._App").unwrap();
            assert_eq!(names(&*volume), ["App"], "{told}");
        }
    }
}

#[test]
fn a_draft_is_durable_when_it_is_synced() {
    let device = empty(2 << 20);
    let volume: Arc<dyn MacVolume> = mount(&device);
    let fs = view(&volume, Forks::AppleDouble);
    put(&*fs, b"App", b"data");
    fs.sync().unwrap();
    let flags = OpenFlags::WRITE;
    let (entry, opened) = fs.create(&ROOT, fs.root(), b"._App", 0o644, flags).unwrap();
    let ino = entry.attr.ino;
    for (n, sync) in ["fsync", "sync"].into_iter().enumerate() {
        let content = format!("notes {sync}");
        fs.write(&ROOT, ino, opened.handle, 0, content.as_bytes()).unwrap();
        if n == 0 {
            fs.fsync(&ROOT, ino, false).unwrap();
        } else {
            fs.sync().unwrap();
        }
        // The power fails here.
        let after = mount(&Arc::new(MemoryDevice::from_image(device.snapshot())));
        let found = get(&*after, b"._App").unwrap();
        assert_eq!(found[..content.len()], *content.as_bytes(), "{sync}");
    }
    // It becomes a whole one: the file is gone again.
    let whole = double(b"APPLabcd", &fork(2000));
    fs.write(&ROOT, ino, opened.handle, 0, &whole).unwrap();
    fs.flush(ino, opened.handle).unwrap();
    assert_eq!(names(&*volume), ["App"]);
    assert_eq!(resource(&volume, b"App"), fork(2000));
    fs.release(ino, opened.handle).unwrap();
    fs.forget(ino, 1);
    fs.unmount().unwrap();
}

/// Names to which `._` or a suffix can only be added because no item of the volume has them.
#[test]
fn a_file_with_a_long_name_gets_companions() {
    let volume: Arc<dyn MacVolume> = mount(&empty(2 << 20));
    let whole = double(b"APPLabcd", &fork(900));
    for len in [25, 26, 29, 30, 31] {
        let name = "n".repeat(len);
        let fs = view(&volume, Forks::Suffix);
        put(&*fs, name.as_bytes(), b"data");
        let companion = format!("{name}..rsrc");
        assert!(matches!(fs.lookup(fs.root(), companion.as_bytes()), Err(Error::NotFound)));
        put(&*fs, companion.as_bytes(), &fork(300));
        put(&*fs, format!("{name}..finf").as_bytes(), &[b'x'; 32]);
        assert_eq!(resource(&volume, name.as_bytes()), fork(300), "{len}");
        fs.unlink(&ROOT, fs.root(), name.as_bytes()).unwrap();

        let fs = mounted(&volume);
        let companion = format!("._{name}");
        put(&*fs, name.as_bytes(), b"data");
        assert!(matches!(fs.lookup(fs.root(), companion.as_bytes()), Err(Error::NotFound)));
        put(&*fs, companion.as_bytes(), &whole);
        assert_eq!(resource(&volume, name.as_bytes()), fork(900), "{len}");
        // Removed and made again, and what is no AppleDouble.
        fs.unlink(&ROOT, fs.root(), name.as_bytes()).unwrap();
        assert_eq!(get(&*fs, companion.as_bytes()).as_ref(), Some(&whole), "{len}");
        put(&*fs, name.as_bytes(), b"data");
        assert_eq!(resource(&volume, name.as_bytes()), fork(900), "{len}");
        put(&*fs, companion.as_bytes(), b"scrap");
        let all = names(&*volume);
        assert_eq!(all.len(), 2, "{all:?}");
        let scrap = all.iter().find(|other| **other != name).unwrap();
        assert_eq!(get(&*volume, scrap.as_bytes()).as_deref(), Some(&b"scrap"[..]), "{len}");
        // Before its file.
        for name in all {
            volume.unlink(&ROOT, volume.root(), name.as_bytes()).unwrap();
        }
        put(&*fs, companion.as_bytes(), &whole);
        put(&*fs, name.as_bytes(), b"data");
        assert_eq!(resource(&volume, name.as_bytes()), fork(900), "{len}");
        assert_eq!(names(&*volume), std::slice::from_ref(&name));
        volume.unlink(&ROOT, volume.root(), name.as_bytes()).unwrap();
    }
}

/// As `mv` to another file system and programs that write a new file do it.
#[test]
fn a_file_that_is_removed_or_replaced_leaves_its_fork() {
    for volume in volumes() {
        let fs = mounted(&volume);
        let whole = double(b"APPLabcd", &fork(70_000));
        put(&*fs, b"App", b"data");
        put(&*fs, b"._App", &whole);
        fs.unlink(&ROOT, fs.root(), b"App").unwrap();
        assert_eq!(names(&*fs), ["._App"]);
        assert_eq!(get(&*fs, b"._App").as_ref(), Some(&whole));
        // It is that of the next file of the name, and a part of it.
        put(&*fs, b"App", b"new");
        assert_eq!(names(&*volume), ["App"]);
        put(&*fs, b"other", b"newer");
        fs.rename(&ROOT, fs.root(), b"other", fs.root(), b"App", RenameFlags::empty()).unwrap();
        assert_eq!(get(&*fs, b"App").as_deref(), Some(&b"newer"[..]));
        assert_eq!(resource(&volume, b"App"), fork(70_000));
        assert_eq!(get(&*fs, b"._App").map(|double| double[50..58].to_vec()).unwrap(), b"APPLabcd");
        // One that has its own keeps that.
        put(&*fs, b"other", b"third");
        put(&*fs, b"._other", &double(b"TEXTabcd", b"own"));
        fs.rename(&ROOT, fs.root(), b"other", fs.root(), b"App", RenameFlags::empty()).unwrap();
        assert_eq!(resource(&volume, b"App"), b"own");
        // Both are removed, in either order.
        fs.unlink(&ROOT, fs.root(), b"._App").unwrap();
        fs.unlink(&ROOT, fs.root(), b"App").unwrap();
        assert_eq!(names(&*volume), [""; 0]);
        put(&*fs, b"App", b"data");
        put(&*fs, b"._App", &whole);
        fs.unlink(&ROOT, fs.root(), b"App").unwrap();
        fs.unlink(&ROOT, fs.root(), b"._App").unwrap();
        assert_eq!(names(&*volume), [""; 0]);
        // A document without more than its data leaves nothing.
        put(&*fs, b"note.txt", b"text");
        fs.unlink(&ROOT, fs.root(), b"note.txt").unwrap();
        assert_eq!(names(&*volume), [""; 0]);
    }
}

/// Other layouts: macOS' name in the header and attributes behind the Finder information, an order
/// of its own, bytes behind the fork.
fn layouts() -> Vec<Vec<u8>> {
    let layout = |filler: &[u8; 16], entries: &[(u32, &[u8])], gap: usize| {
        let mut bytes = [&[0, 5, 0x16, 7, 0, 2, 0, 0][..], filler].concat();
        bytes.extend((entries.len() as u16).to_be_bytes());
        let mut at = 26 + 12 * entries.len() + gap;
        for (id, content) in entries {
            for n in [*id, at as u32, content.len() as u32] {
                bytes.extend(n.to_be_bytes());
            }
            at += content.len() + gap;
        }
        for (_, content) in entries {
            bytes.extend(vec![0xee; gap]);
            bytes.extend(*content);
        }
        bytes
    };
    let mut info = b"APPLabcd".to_vec();
    info.resize(34, 0);
    info.extend(b"ATTR and what it holds");
    let (own, fork) = (&info[..32], fork(5000));
    vec![
        layout(b"Mac OS X        ", &[(9, &info), (2, &fork)], 0),
        layout(&[0; 16], &[(2, &fork), (9, own)], 0),
        layout(b"Netatalk        ", &[(3, b"Another"), (9, own), (2, &fork)], 100),
        double(b"APPLabcd", &fork),
    ]
}

#[test]
fn appledoubles_read_back_as_they_were_written() {
    for volume in volumes() {
        let fs = view(&volume, Forks::AppleDouble);
        for (n, whole) in layouts().into_iter().enumerate() {
            let name = format!("App{n}");
            put(&*fs, name.as_bytes(), b"data");
            let set = SetAttr {
                mtime: Some(SetTime::At(Time { secs: 700_000_000, nanos: 0 })),
                ..SetAttr::default()
            };
            let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
            fs.setattr(&ROOT, ino, &set).unwrap();
            let companion = format!("._{name}");
            put(&*fs, companion.as_bytes(), &whole);
            // The date that cp -a and rsync set; it is that of both.
            let double = fs.lookup(fs.root(), companion.as_bytes()).unwrap().attr.ino;
            let attr = fs.setattr(&ROOT, double, &set).unwrap();
            assert_eq!(attr.mtime, fs.getattr(ino).unwrap().mtime);
            fs.forget(double, 1);
            assert_eq!(get(&*fs, companion.as_bytes()).as_ref(), Some(&whole), "layout {n}");
            assert_eq!(resource(&volume, name.as_bytes()), fork(5000), "layout {n}");
            // A change elsewhere is seen.
            let mut meta = volume.meta(ino).unwrap();
            meta.finder_info[..4].copy_from_slice(b"TEXT");
            volume.set_meta(ino, &meta).unwrap();
            assert_ne!(get(&*fs, companion.as_bytes()).as_ref(), Some(&whole), "layout {n}");
            meta.finder_info[..4].copy_from_slice(b"APPL");
            volume.set_meta(ino, &meta).unwrap();
            assert_eq!(get(&*fs, companion.as_bytes()).as_ref(), Some(&whole), "layout {n}");
        }
        // The layout of unar reads back from the next mount, too.
        let whole = double(b"APPLabcd", &fork(5000));
        assert_eq!(get(&*view(&volume, Forks::AppleDouble), b"._App3"), Some(whole));
    }
}

/// Writing in pieces writes each byte of the fork once: anew, over itself, and with the header
/// written again for each piece, as Samba does it.
#[test]
fn a_write_costs_its_own_length() {
    let volume: Arc<dyn MacVolume> = mount(&empty(8 << 20));
    let counting = Arc::new(Counting { below: volume, written: AtomicU64::new(0) });
    let fs = view(&(Arc::clone(&counting) as Arc<dyn MacVolume>), Forks::AppleDouble);
    put(&*fs, b"App", b"data");
    let len = 1 << 20;
    let whole = double(b"APPLabcd", &fork(len));
    let written = || counting.written.swap(0, Ordering::Relaxed);
    put(&*fs, b"._App", &whole);
    assert_eq!(written(), len as u64, "anew");
    let entry = fs.lookup(fs.root(), b"._App").unwrap();
    let ino = entry.attr.ino;
    let opened = fs.open(&ROOT, ino, OpenFlags::WRITE).unwrap();
    for (n, piece) in whole.chunks(4096).enumerate() {
        fs.write(&ROOT, ino, opened.handle, n as u64 * 4096, piece).unwrap();
    }
    assert_eq!(written(), len as u64, "over itself");
    let mut done = 0;
    while done < len {
        let end = (done + 4096).min(len);
        let head = double(b"APPLabcd", &fork(len)[..end]);
        fs.write(&ROOT, ino, opened.handle, 0, &head[..82]).unwrap();
        fs.write(&ROOT, ino, opened.handle, 82 + done as u64, &head[82 + done..]).unwrap();
        fs.write(&ROOT, ino, opened.handle, 0, &head[..82]).unwrap();
        done = end;
    }
    assert!(written() <= 3 * len as u64, "with its header");
    fs.release(ino, opened.handle).unwrap();
    fs.forget(ino, 1);
    assert_eq!(get(&*fs, b"._App"), Some(whole));
}

/// A locked file is one that says more than its name, as soon as it is locked: not before its
/// companion could be made.
#[test]
fn a_file_is_not_locked_before_it_has_its_content() {
    for volume in volumes() {
        let fs = view(&volume, Forks::AppleDouble);
        let made = fs.mknod(&ROOT, fs.root(), b"App", FileKind::Regular, 0o444, 0).unwrap();
        let double = fs.mknod(&ROOT, fs.root(), b"._App", FileKind::Regular, 0o444, 0).unwrap();
        for ino in [double.attr.ino, made.attr.ino] {
            fs.flush(ino, Handle::NONE).unwrap();
            fs.forget(ino, 1);
        }
    }
}

mod counting {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use weft_hfs::interchange::Meta;
    use weft_hfs::streams::{MacVolume, VolumeMeta};
    use weft_vfs::{FileSystem, Ino, Layer, Result};

    /// A volume that counts what is written to resource forks.
    pub struct Counting {
        pub below: Arc<dyn MacVolume>,
        pub written: AtomicU64,
    }

    impl Layer for Counting {
        fn below(&self) -> &dyn FileSystem {
            &*self.below
        }
    }

    impl MacVolume for Counting {
        fn meta(&self, ino: Ino) -> Result<Meta> {
            self.below.meta(ino)
        }
        fn set_meta(&self, ino: Ino, meta: &Meta) -> Result<()> {
            self.below.set_meta(ino, meta)
        }
        fn read_resource(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
            self.below.read_resource(ino, offset, buf)
        }
        fn write_resource(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
            self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
            self.below.write_resource(ino, offset, data)
        }
        fn set_resource_len(&self, ino: Ino, len_bytes: u64) -> Result<()> {
            self.below.set_resource_len(ino, len_bytes)
        }
        fn volume_meta(&self) -> VolumeMeta {
            self.below.volume_meta()
        }
        fn set_volume_meta(&self, meta: &VolumeMeta) -> Result<()> {
            self.below.set_volume_meta(meta)
        }
    }
}
