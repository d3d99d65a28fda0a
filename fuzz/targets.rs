//! What is fuzzed, for cargo-fuzz and for the seeded replays of `make test` alike. Each target
//! takes any bytes and demands of weft only that it neither panics nor hangs nor eats memory.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use weft::block::{
    BlockDevice, Image, LogReader, MemoryDevice, Source, list_partitions, parse_size,
};
use weft::ext2::layout;
use weft::ext2::mkfs::{MkfsOptions, mkfs};
use weft::mount_options::MountOptions;
use weft::nbd::Export;
use weft::patch::{self, JournalMode, Policy};
use weft::transfer::{Content, Item, ItemKind, Ownership, Sink, TarSink, TarSource, VolumeSink};
use weft::vfs::{Caller, FileKind, FileSystem, MemFs, Node, Time, Walker};
use weft::{Options, Order, Stack};

#[path = "macintosh.rs"]
mod macintosh;
pub use macintosh::{hfs, hfs_plus};

/// Tar streams that begin as good ones, with a sparse file, long names and attributes: the bytes
/// are changes, `[offset, offset, value]`, after which the headers' checksums fit again.
pub fn tar_streams(data: &[u8]) {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let mut stream = GOOD.get_or_init(good_tar).clone();
    let is_header = |block: &[u8]| block.get(257..262) == Some(b"ustar");
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % stream.len();
        stream[at] = change[2];
    }
    for block in stream.chunks_exact_mut(512).filter(|block| is_header(block)) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    let _ = TarSource::new(Cursor::new(&stream)).send(&mut Judge);
}

/// A sink that holds contents to their word: runs in order, within the file.
struct Judge;

impl Sink for Judge {
    fn put(&mut self, item: &Item<'_>, content: &mut dyn Content) -> weft::Result<()> {
        let ItemKind::File { len_bytes } = item.kind else { return Ok(()) };
        let (mut buffer, mut end) = ([0; 700], 0);
        while let Some((at, len)) = content.next_run(&mut buffer)? {
            assert!(at >= end && len > 0 && at + len as u64 <= len_bytes, "runs are in the file");
            end = at + len as u64;
        }
        Ok(())
    }

    fn finish(&mut self) -> weft::Result<()> {
        Ok(())
    }
}

fn good_tar() -> Vec<u8> {
    struct Pieces(std::vec::IntoIter<u64>);
    impl Content for Pieces {
        fn next_run(&mut self, buf: &mut [u8]) -> weft::Result<Option<(u64, usize)>> {
            let Some(at) = self.0.next() else { return Ok(None) };
            buf[..512].fill(7);
            Ok(Some((at, 512)))
        }

        fn extents(&mut self) -> weft::Result<Option<Vec<std::ops::Range<u64>>>> {
            Ok(Some(self.0.as_slice().iter().map(|at| *at..*at + 512).collect()))
        }
    }
    let mut stream = Vec::new();
    let mut sink = TarSink::new(&mut stream);
    let long = "n".repeat(150);
    let xattrs = [(b"user.name".to_vec(), b"a value\n".to_vec())];
    let mtime = Time { secs: -5, nanos: 250_000_000 };
    for (path, kind) in [
        ("d", ItemKind::Directory),
        ("d/sparse", ItemKind::File { len_bytes: 1 << 20 }),
        (&long, ItemKind::File { len_bytes: 512 }),
        ("d/link", ItemKind::Symlink(long.as_bytes())),
        ("d/hard", ItemKind::HardLink(b"d/sparse")),
    ] {
        let starts = if path == "d/sparse" { (0..90).map(|i| i * 8192).collect() } else { vec![0] };
        let path = path.as_bytes();
        let (perm, uid, gid) = (0o644, 1 << 22, 5);
        let item = Item { path, kind, perm, uid, gid, atime: None, mtime, xattrs: &xattrs };
        sink.put(&item, &mut Pieces(starts.into_iter())).expect("it is written to memory");
    }
    sink.finish().expect("it is written to memory");
    drop(sink);
    stream
}

/// Every parser on the same bytes.
pub fn parsers(data: &[u8]) {
    let _ = layout::Superblock::parse(data).map(|sb| {
        let _ = sb.check_features();
        sb.geometry()
    });
    let _ = layout::Inode::parse(data);
    let _ = layout::parse_xattr_block(data);
    let _ = layout::parse_xattr_inode(data);
    let _ = layout::acl_from_disk(data);
    let _ = layout::acl_to_disk(data);
    let _ = layout::HtreeRoot::parse(data);
    for filetype in [false, true] {
        // An entry in error ends the block.
        let mut seen = 0;
        for entry in layout::Dirents::new(data, filetype) {
            seen += 1;
            assert!(seen <= data.len(), "the entries of a block end");
            if entry.is_err() {
                break;
            }
        }
    }
    journal(data);
    let _ = weft::format::recognise_bytes(data, data.len() as u64);

    let device = memory(data);
    let _ = list_partitions(&*device);
    let _ = weft::ext2::fsck::check(&*device, &weft::ext2::fsck::Options::default());
    if let Ok(reader) = LogReader::new(Cursor::new(data)) {
        let _ = reader.read_all();
    }
    let fs = MemFs::new();
    if let Ok(root) = Node::root(&fs) {
        let mut sink = VolumeSink::new(&fs, root, None, b"/", Ownership::Keep);
        let _ = TarSource::new(Cursor::new(data)).send(&mut sink);
    }

    let _ = weft::volume::parse(OsStr::from_bytes(data));
    nbd_messages(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = text.parse::<Source>();
        let _ = text.parse::<weft::source::Source>();
        let _ = text.parse::<Order>();
        let _ = parse_size(text);
        let _ = MountOptions::default().parse(text);
        let _ = MkfsOptions::ext2().set_features(text);
    }
}

/// A description of a source, which is written as it is read: the text that a mount table shows
/// opens the same device.
pub fn sources(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let behind = &text[weft::block::filters_len_bytes(text)..];
    let _ = weft::block::scheme_of(behind);
    let _ = weft::volume::parse(OsStr::from_bytes(data));
    if let Ok(source) = text.parse::<Source>() {
        assert_eq!(source.to_string().parse::<Source>().ok().as_ref(), Some(&source), "{text:?}");
    }
    if let Ok(mut source) = text.parse::<weft::source::Source>() {
        let parse = |text: String| text.parse::<weft::source::Source>().ok();
        assert_eq!(parse(source.to_string()).as_ref(), Some(&source), "{text:?}");
        if source.make_absolute().is_ok() {
            assert_eq!(parse(source.to_string()).as_ref(), Some(&source), "{text:?}");
        }
        let _ = source.unfiltered().to_string();
    }
}

/// Files that keep both forks of a Macintosh file, in every format: what is in them is read, and
/// packed again.
pub fn interchange(data: &[u8]) {
    use weft::hfs::interchange::{Fork, Format, Reader, detect, write};
    let _ = detect(&mut Cursor::new(data));
    for format in Format::ALL {
        let Ok(mut reader) = Reader::open(format, Cursor::new(data)) else { continue };
        let mut forks = [Vec::new(), Vec::new()];
        let resource = reader.copy_fork(Fork::Resource, &mut forks[1]);
        if reader.copy_fork(Fork::Data, &mut forks[0]).is_err() || resource.is_err() {
            continue;
        }
        // Nothing grows by more than a run of BinHex can say.
        assert!(forks[0].len() + forks[1].len() <= data.len() * 256, "{format:?}");
        let meta = reader.meta();
        for packed in Format::ALL {
            let (mut data, mut resource) = (&forks[0][..], &forks[1][..]);
            let _ = write(packed, meta, &mut data, &mut resource, &mut std::io::sink());
        }
    }
    let _ = weft::hfs::macroman::name_from_unix(data).map(|name| {
        let unix = weft::hfs::macroman::name_to_unix(&name);
        assert_eq!(weft::hfs::macroman::name_from_unix(unix.as_bytes()), Ok(name));
    });
}

/// A disk image in whatever wrapping the bytes pretend, with and without a resource fork.
pub fn containers(data: &[u8]) {
    use weft::block::container::{Options, open};
    let half = data.len() / 2;
    let beside = Options { resource_fork: Some(memory(&data[half..])), ..Options::default() };
    let third = Options { partition: Some(3), ..Options::default() };
    for (image, options) in [(data, &Options::default()), (&data[..half], &beside), (data, &third)]
    {
        let Ok(opened) = open(memory(image), options) else { continue };
        let len = opened.device.geometry().len_bytes;
        let mut buffer = vec![0; 8192];
        for at in [0, 1000, len / 2, len.saturating_sub(8192)] {
            let n = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
            let _ = opened.device.read_at(&mut buffer[..n], at);
        }
        let _ = opened.device.write_at(&[1; 100], len / 3);
        let _ = opened.device.flush();
        let _ = opened.verify();
        let _: Vec<String> = opened.layers.iter().map(ToString::to_string).collect();
    }
}

/// An MFS volume with bytes changed as `data` says: opened, read, changed, checked, repaired.
pub fn mfs(data: &[u8]) {
    use weft::hfs::mfs::{Mfs, MkfsOptions, OpenOptions, check, mkfs};
    static BASE: OnceLock<Image> = OnceLock::new();
    let options = || OpenOptions {
        engine: patch::Options { background: false, ..patch::Options::default() },
        ..OpenOptions::default()
    };
    let base = BASE.get_or_init(|| {
        let device = Arc::new(MemoryDevice::new(400 << 10));
        mkfs(&*device, &MkfsOptions::default()).expect("an empty volume is made");
        let fs = Mfs::open(Arc::clone(&device) as _, options()).expect("and opened");
        let walker = Walker::new(&*fs);
        for i in 0..30 {
            let path = format!("/file {i}");
            let content = path.repeat(20 * i);
            let node =
                walker.write_file(path.as_bytes(), content.as_bytes(), 0o644).expect("a file");
            let name = b"user.com.apple.ResourceFork";
            fs.setxattr(&Caller::ROOT, node.ino(), name, &[7; 2000], weft::vfs::XattrSet::Any)
                .expect("a fork");
        }
        fs.close().expect("and closed");
        device.snapshot()
    });
    let mut image = base.clone();
    for change in data.chunks_exact(3) {
        // The metadata: blocks 2 to 15.
        let at = 1024 + u64::from(u16::from_le_bytes([change[0], change[1]])) % (14 * 512);
        let _ = image.write(&change[2..], at);
    }
    let device = Arc::new(MemoryDevice::from_image(image));
    if let Ok(fs) = Mfs::open(Arc::clone(&device) as _, options()) {
        walk(&*fs);
        change(&*fs);
        let _ = fs.close();
    }
    if let Ok(report) = check(&*device, true) {
        assert!(report.is_clean() || report.repaired, "{report:?}");
    }
}

/// The journal's codec, and a recovery from a log that is nothing but these bytes behind a
/// superblock (so that headers and sequence numbers get a chance).
fn journal(data: &[u8]) {
    use weft::patch::jbd2::{self, Features, Log, LogMap, commit, descriptor, revoke};
    let _ = jbd2::Header::parse(data);
    let _ = jbd2::Superblock::parse(data);
    let flags = data.first().copied().unwrap_or(0);
    let features = Features {
        compat: u32::from(flags & 1),
        incompat: [1, 3, 9, 11, 17, 19, 23, 7][usize::from(flags >> 1) % 8],
        ro_compat: 0,
    };
    assert!(descriptor::tags(data, features).count() <= data.len());
    let _ = revoke::records(data, features).map(Iterator::count);
    let _ = descriptor::tail_fits(data, features, &[0; 16]);
    let _ = commit::fits(data, features, &[0; 16], 0);
    let options = jbd2::FormatOptions {
        block_bytes: 1024,
        len_blocks: 16,
        superblock_at: 0,
        uuid: [7; 16],
        features,
        users: Vec::new(),
    };
    let mut log = jbd2::format_journal_superblock(&options).expect("the options are sound");
    log.resize(16 * 1024, 0);
    for (block, bytes) in log.chunks_mut(1024).skip(1).zip(data.chunks(64)) {
        // A header, then what was given.
        let kind = [1, 2, 5, 1, 9][usize::from(bytes[0]) % 5];
        block[..4].copy_from_slice(&jbd2::MAGIC.to_be_bytes());
        block[7] = kind;
        block[11] = 1 + bytes.get(1).map_or(0, |b| b >> 6);
        block[12..12 + bytes.len()].copy_from_slice(bytes);
    }
    let mut log = Log::open(LogMap::sidecar(memory(&log)).expect("a log")).expect("a log");
    log.set_tail(1, 1 + u32::from(flags) % 15).expect("a start in the ring");
    let replayed = log.recover_before_damage(100, |block, _: &[u8]| {
        assert!(block < 100, "nothing outside the volume is written");
        Ok::<(), std::convert::Infallible>(())
    });
    assert!(replayed.is_ok(), "damage is no error here");
}

/// The networks that stored files are opened through.
const NETWORKS: &[&str] = &[
    "zstd",
    "lz4",
    "xz level=0",
    "gzip",
    "base64",
    "hex",
    "guard block=4K",
    "aead key=k",
    "view: ~zstd | lines contains=a | charset from=shift_jis on-error=replace",
    "view: line-ends to=lf | gzip",
    "zstd frame=4K | aead key=k",
    "view: json",
    "view: json from=tsv header=no numbers=yes max=300",
    "view: ~zstd | tee name=a (upper) | merge with=a",
    "view: tee name=a (~base64) | tee name=b (~hex) | merge with=a,b by=turns unit=3",
];

/// Network texts and rules files, and stored files that are damaged or nothing but these bytes:
/// opened, read, written, committed, and read again.
pub fn transforms(data: &[u8]) {
    use weft::transform::store::{Limits, MemoryBase, Store, open};
    use weft::transform::{Context, Key, KeyRing, Registry, Rules, text::Text};

    let mut keys = KeyRing::default();
    keys.add("k", Key::new([7; 32]));
    let registry = Registry::new(Context { keys, ..Context::default() });
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(parsed) = text.parse::<Text>()
    {
        let printed = parsed.to_string();
        assert_eq!(printed.parse::<Text>().ok(), Some(parsed), "{printed}");
        let _ = registry.parse(text).map(|network| network.can());
    }
    if let Ok(rules) = Rules::parse(data) {
        let _ = rules.ruling("a/b".as_ref()).map(|r| r.line);
        let _ = rules.view_ruling("a/b@c".as_ref()).map(|r| r.line);
    }
    let _ = link(data, &registry);

    let Some((&choice, rest)) = data.split_first() else { return };
    let network = NETWORKS[usize::from(choice) % NETWORKS.len()];
    let network = registry.parse(network).expect("one of ours");
    let limits = Limits {
        frame_bytes: 1 << 20,
        file_bytes: 8 << 20,
        dirty_bytes: 16 << 10,
        ..Limits::default()
    };
    let mut stored = rest.to_vec();
    if choice >= 128 {
        // A sound file, with some bytes changed.
        let base = MemoryBase::default();
        if let Ok(mut file) = open(Box::new(base.clone()), &network, &limits) {
            let _ = file.write_at(0, &b"some text that repeats ".repeat(700));
            let _ = file.commit();
        }
        stored = base.content();
        for change in rest.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
            let len = stored.len().max(1);
            stored.get_mut(at % len).into_iter().for_each(|byte| *byte ^= change[2]);
        }
    }
    let Ok(mut file) = open(Box::new(MemoryBase::new(stored)), &network, &limits) else { return };
    let read = |file: &mut dyn Store| {
        let mut buffer = vec![0; 5000];
        for at in [0, 4096, 100_000, u64::MAX] {
            let _ = file.read_at(at, &mut buffer);
        }
    };
    read(&mut *file);
    let _ = file.write_at(3000, &[1; 9000]);
    let _ = file.set_len(5000);
    let _ = file.commit();
    read(&mut *file);
}

/// WebAssembly modules: these bytes, one of ours with some bytes changed, and one that answers with
/// these bytes.
#[cfg(feature = "wasm")]
pub fn wasm_guests(data: &[u8]) {
    let sound = include_str!("../crates/weft-transform/guests/increment.wat");
    let mut module = wat::parse_str(sound).expect("one of ours");
    run_guest(data);
    for change in data.chunks_exact(3).take(20) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % module.len();
        module[at] ^= change[2];
    }
    run_guest(&module);
    let mut words = data
        .chunks_exact(8)
        .map(|eight| eight.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
    let mut word = || words.next().unwrap_or_default();
    let buffers = (word() as u32, word() as u32);
    let (code, answer) = (word() as u32, word());
    let text = format!(
        "(module (memory (export \"memory\") 12) (global $second (mut i32) (i32.const 0)) \
         (func (export \"weft_buffer\") (param i32) (result i32) \
           (if (result i32) (global.get $second) (then (i32.const {})) \
             (else (global.set $second (i32.const 1)) (i32.const {})))) \
         (func (export \"weft_{}\") {}))",
        buffers.0 & 0xFFFFF,
        buffers.1 & 0xFFFFF,
        if code & 1 == 0 { "bytes" } else { "stream" },
        if code & 1 == 0 {
            format!("(param i32 i32 i64) (result i32) (i32.const {})", code & 2)
        } else {
            format!("(param i32 i32 i32 i32 i32) (result i64) (i64.const {answer})")
        },
    );
    run_guest(&wat::parse_str(&text).expect("one of ours"));
    // One that shares its memory, and reads and writes somewhere in it.
    let (pages, at) = (word() % 40, word() as u32);
    let text = format!(
        "(module (import \"weft\" \"memory\" (memory {pages})) \
         (func (export \"weft_bytes\") (param i32 i32 i64) (result i32) \
           (i32.store (i32.const {at}) (i32.load (local.get 0))) \
           (drop (memory.grow (i32.const {}))) (i32.const 0)))",
        word() as u16
    );
    run_guest(&wat::parse_str(&text).expect("one of ours"));
}

/// Loads a module, if it is one, and runs it over some bytes.
#[cfg(feature = "wasm")]
fn run_guest(module: &[u8]) {
    use weft::transform::exec::{RunOptions, run};
    use weft::transform::{Context, Io, Registry, wasm::Guest};

    let Ok(guest) = Guest::load(module, None) else { return };
    let mut context = Context::default();
    context.modules.insert("g".to_owned(), Arc::new(guest));
    let registry = Registry::new(context);
    let text = "view: wasm module=g deadline=50 memory=2M | wasm module=g deadline=50 memory=2M";
    let Ok(network) = registry.parse(text) else { return };
    let mut out = Bounded(1 << 20);
    let input = vec![b'x'; 300_000];
    let _ = run(&network, Io::Read, &mut &input[..], &mut out, RunOptions::default());
}

/// Takes so many bytes and no more: a guest may stream for ever.
#[cfg(feature = "wasm")]
struct Bounded(usize);

#[cfg(feature = "wasm")]
impl std::io::Write for Bounded {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.saturating_sub(data.len());
        if self.0 == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(data.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A link with this content, or one whose network is these bytes, in a tree of two files.
fn link(data: &[u8], registry: &weft::transform::Registry) -> weft::vfs::Result<()> {
    use weft::transform::{LINK, NETWORK_ATTRIBUTE, TransformFs, TransformOptions};
    use weft::vfs::{FileSystem, MemFs, Walker, XattrSet};

    let below = std::sync::Arc::new(MemFs::new());
    let walker = Walker::new(&*below);
    walker.write_file(b"/base", b"a,b\n1,2\n", 0o644)?;
    let made = [&b"weft link 1\nbase: base\nnetwork: view: "[..], data].concat();
    for (name, content) in [(&b"/one"[..], data), (b"/two", &made)] {
        let node = walker.write_file(name, content, 0o644)?;
        below.setxattr(&Caller::ROOT, node.ino(), NETWORK_ATTRIBUTE, LINK, XattrSet::Any)?;
    }
    let fs = TransformFs::new(below.clone(), registry.clone(), TransformOptions::default())?;
    for name in [&b"/one"[..], b"/two", b"/base@hex"] {
        if let Ok(node) = Walker::new(&fs).resolve(name) {
            let _ = node.stat();
            let _ = node.read_at(0, &mut [0; 4096]);
        }
    }
    fs.unmount()
}

/// A volume with bytes changed as `data` says: opened in each order, walked, changed, checked,
/// repaired, opened again.
pub fn mount_and_walk(data: &[u8]) {
    let Some((&choice, changes)) = data.split_first() else { return };
    let (order, base) = bases(choice);
    let mut image = base.clone();
    let len = image.len_bytes();
    for change in changes.chunks_exact(4) {
        // Half of the changes go to the first blocks, where everything else is decided.
        let at = u64::from(u16::from_le_bytes([change[1], change[2]]));
        let at = match change[0] & 3 {
            0 => 1024 + at % 1024,
            1 => at % (64 << 10),
            _ => (at << 8 | u64::from(change[0])) % len,
        };
        let _ = image.write(&change[3..4], at);
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(image));
    let engine = patch::Options { background: false, ..patch::Options::default() };
    let options = Options { order: Some(order), engine, ..Options::default() };

    let _ = weft::ext2::fsck::check(&*device, &weft::ext2::fsck::Options::default());
    if let Ok(owners) = weft::ext2::owners::Owners::read(&*device) {
        let held = (0..len >> 10).filter_map(|block| owners.content(block)).count();
        assert!(held > 0 && owners.blocks_of(2).len() <= held, "at least the superblock");
    }
    if let Ok(stack) = Stack::open_device("fuzzed", Arc::clone(&device), &options) {
        walk(stack.fs());
        change(stack.fs());
        let _ = stack.close();
    }
    if weft::ext2::fsck::check(&*device, &weft::ext2::fsck::Options::repair()).is_ok()
        && let Ok(stack) = Stack::open_device("repaired", device, &options)
    {
        walk(stack.fs());
        let _ = stack.close();
    }
}

/// Looks at everything, up to bounds that no sound volume of this size reaches.
fn walk(fs: &dyn FileSystem) {
    let mut buffer = vec![0; 1 << 16];
    let Ok(tree) = Walker::new(fs).tree(b"/") else { return };
    for found in tree.take(2000) {
        let Ok(found) = found else { continue };
        let node = found.node;
        let _ = node.stat();
        let _ = node.readlink();
        let attr = *node.attr();
        for at in [0, 1 << 20, attr.size_bytes / 2, attr.size_bytes.saturating_sub(100)] {
            let _ = node.read_at(at, &mut buffer);
        }
        for name in fs.listxattr(node.ino()).unwrap_or_default() {
            let _ = fs.getxattr(node.ino(), &name);
        }
    }
    let _ = fs.statfs();
}

/// One change of each kind. What fails, fails.
fn change(fs: &dyn FileSystem) {
    let walker = Walker::owned_by(fs, Caller::ROOT);
    if let Ok(file) = walker.write_file(b"/new", &[7; 9000], 0o644) {
        let _ = file.write_at(&Caller::ROOT, 300_000, b"far");
        let _ =
            fs.setxattr(&Caller::ROOT, file.ino(), b"user.x", b"value", weft::vfs::XattrSet::Any);
        let _ = fs.fsync(&Caller::ROOT, file.ino(), false);
    }
    let _ = walker.mkdir(b"/dir/new", 0o755);
    let _ = walker.rename(b"/new", b"/dir/file-3", weft::vfs::RenameFlags::empty());
    let _ = walker.symlink(b"/dir/link", &[b'x'; 200]);
    let _ = walker.remove(b"/big");
    let _ = walker.remove_tree(b"/dir", &mut |_| {});
    let _ = fs.sync();
}

fn memory(data: &[u8]) -> Arc<dyn BlockDevice> {
    let mut image = Image::new(data.len() as u64);
    let _ = image.write(data, 0);
    Arc::new(MemoryDevice::from_image(image))
}

/// Sound volumes to start from, each with the order of writes it is opened in.
fn bases(choice: u8) -> (Order, &'static Image) {
    static BASES: OnceLock<Vec<(Order, Image)>> = OnceLock::new();
    let bases = BASES.get_or_init(|| {
        let soft = Order(Policy::Soft);
        let journal = Order(Policy::Journal(JournalMode::Ordered));
        vec![
            (soft, base(&MkfsOptions::ext2(), 1 << 20)),
            (soft, base(&MkfsOptions { inode_bytes: Some(128), ..MkfsOptions::ext2() }, 1 << 20)),
            (soft, base(&MkfsOptions { block_bytes: Some(4096), ..MkfsOptions::ext2() }, 4 << 20)),
            (journal, base(&MkfsOptions::ext3(), 4 << 20)),
        ]
    });
    let (order, image) = &bases[usize::from(choice) % bases.len()];
    (*order, image)
}

/// A small volume with one of everything.
fn base(options: &MkfsOptions, len_bytes: u64) -> Image {
    let device = Arc::new(MemoryDevice::new(len_bytes));
    let options = MkfsOptions { uuid: Some([7; 16]), time: Some(1_000_000_000), ..options.clone() };
    mkfs(&*device, &options).expect("an empty volume is made");
    let engine = patch::Options { background: false, ..patch::Options::default() };
    let stack = Stack::open_device(
        "base",
        Arc::clone(&device) as Arc<dyn BlockDevice>,
        &Options { engine, order: Some(Order(Policy::Soft)), ..Options::default() },
    )
    .expect("an empty volume is opened");
    let walker = Walker::new(stack.fs());
    walker.mkdir(b"/dir", 0o755).expect("a directory");
    for i in 0..40 {
        let path = format!("/dir/file-{i}");
        walker.write_file(path.as_bytes(), path.repeat(20).as_bytes(), 0o644).expect("a file");
    }
    // Past the direct blocks, so that there are indirect ones to damage.
    let big = walker.write_file(b"/big", &vec![3; 330_000], 0o600).expect("a large file");
    stack
        .fs()
        .setxattr(&Caller::ROOT, big.ino(), b"user.name", &[1; 300], weft::vfs::XattrSet::Any)
        .expect("an attribute");
    walker.symlink(b"/short", b"dir/file-1").expect("a link");
    walker.symlink(b"/long", &[b'l'; 300]).expect("a long link");
    walker.link(b"/dir/file-2", b"/again").expect("a second name");
    let root = walker.root().expect("the root");
    root.mknod(&Caller::ROOT, b"fifo", FileKind::Fifo, 0o600, 0).expect("a fifo");
    drop((big, root));
    stack.close().expect("the volume is closed");
    device.snapshot()
}

/// A cache device with bytes changed as `data` says: checked, opened, used, repaired, opened.
pub fn cache_device(data: &[u8]) {
    use weft::cache::{self, AttachOptions, Cache, CreateOptions, Mode, OpenOptions, OriginId};
    static BASE: OnceLock<Image> = OnceLock::new();
    const ORIGIN_BYTES: u64 = 1 << 20;
    let open = |disk: &Arc<MemoryDevice>| {
        let options = OpenOptions { background: false, ..OpenOptions::default() };
        let cache = Cache::open(Arc::clone(disk) as Arc<dyn BlockDevice>, options).ok()?;
        let id = OriginId { len_bytes: ORIGIN_BYTES, label: "o".to_owned(), ..OriginId::default() };
        let attach = AttachOptions {
            mode: Mode::WriteBack,
            add: true,
            invalidate: true,
            ..AttachOptions::default()
        };
        let origin = Arc::new(MemoryDevice::new(ORIGIN_BYTES));
        cache.attach(origin, &id, &attach).ok()
    };
    let base = BASE.get_or_init(|| {
        let disk = Arc::new(MemoryDevice::new(1 << 20));
        let create = CreateOptions {
            log_bytes: Some(64 << 10),
            uuid: Some([7; 16]),
            ..CreateOptions::default()
        };
        Cache::create(&*disk, &create).expect("a cache is made");
        let cached = open(&disk).expect("a cache is opened");
        let mut buf = vec![0; 64 << 10];
        cached.read_at(&mut buf, 0).expect("reads");
        for at in 0..40 {
            cached.write_at(&[at as u8; 5000], at * 9000).expect("writes");
            cached.flush().expect("flushes");
        }
        disk.snapshot()
    });
    let mut image = base.clone();
    for change in data.chunks_exact(4) {
        // The metadata is the first quarter; most of it is superblock, log and headers.
        let at = u64::from(u16::from_le_bytes([change[1], change[2]]));
        let at = if change[0] & 3 == 0 {
            at % 8192
        } else {
            (at << 2 | u64::from(change[0] >> 6)) % (1 << 20)
        };
        let _ = image.write(&change[3..4], at);
    }
    let disk = Arc::new(MemoryDevice::from_image(image));
    let use_it = |disk: &Arc<MemoryDevice>| {
        let Some(cached) = open(disk) else { return };
        let mut buf = vec![0; 300_000];
        let _ = cached.read_at(&mut buf, 1000);
        let _ = cached.write_at(&buf, 5000);
        let _ = cached.cache().tick(100_000);
        let _ = cached.cache().close();
    };
    let _ = cache::check(&*disk, true);
    let _ = cache::dump(&*disk, |_| {});
    use_it(&disk);
    if cache::repair(Arc::clone(&disk) as Arc<dyn BlockDevice>).is_ok() {
        let report = cache::check(&*disk, true).expect("a repaired cache can be checked");
        assert!(!report.needs_repair(), "{report:?}");
        use_it(&disk);
    }
}

/// Block traces in each format, and a small cache of each policy that lives through them.
pub fn traces(data: &[u8]) {
    use weft::cache::policy::PolicyKind;
    use weft::cache::simulate::CacheModel;
    use weft::cache::trace::{self, Format, csv, synthetic};
    /// A line of a trace can stand for a million uses.
    const USES: usize = 5_000;

    let text = String::from_utf8_lossy(data);
    let first_line = text.lines().next().unwrap_or_default();
    let named = first_line.parse::<Format>();
    let _ = first_line.parse::<synthetic::Workload>();
    let _ = first_line.parse::<PolicyKind>();
    let columns = csv::Columns { time: Some(2), size: Some(3), ..csv::Columns::default() };
    let formats = [Format::OracleGeneral, Format::Arc, Format::Csv(columns)];
    for (number, format) in formats.into_iter().chain(named).enumerate() {
        let Ok(requests) = trace::read(Cursor::new(data.to_vec()), &format) else { continue };
        let kinds = [PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Lru, PolicyKind::SEED];
        let mut cache = CacheModel::new(kinds[number % kinds.len()], 1 + data.len() as u32 % 64);
        let mut ended = false;
        for request in trace::cut(requests, 512, 4096).take(USES) {
            assert!(!ended, "an error ends the trace");
            match request {
                Ok(request) => {
                    assert_eq!(request.len_bytes, 4096, "cut into blocks");
                    cache.access(request.key());
                }
                Err(_) => ended = true,
            }
        }
    }
}

/// What an NBD server reads: options up to the transmission phase, then requests.
pub fn nbd_server(data: &[u8]) {
    use weft::nbd::server::{Negotiator, Next, TlsMode};
    use weft::nbd::wire::{OptionType, Request};
    let exports = ["", "disk"].map(|name| Arc::new(Export::new(name, memory(&[0; 4096]))));
    let Some((&first, mut rest)) = data.split_first() else { return };
    let mode = [TlsMode::Off, TlsMode::Optional, TlsMode::Required][usize::from(first) % 3];
    let mut negotiator = Negotiator::new(exports.into(), mode, first & 4 != 0);
    let mut out = Vec::new();
    while let [option, len, tail @ ..] = rest {
        let (data, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        match negotiator.option(OptionType(u32::from(*option)), data, &mut out) {
            Next::Option => {}
            Next::Tls => negotiator.now_under_tls(),
            Next::End | Next::Transmission(_) => break,
        }
        assert!(out.len() < 1 << 20, "replies are bounded by what was asked");
    }
    for extended in [false, true] {
        for request in rest.chunks_exact(Request::header_bytes(extended)) {
            if let Ok(request) = Request::parse(request, extended) {
                assert_eq!(Request::parse(&request.encode(extended), extended), Ok(request));
            }
        }
    }
}

/// What an NBD client reads: a handshake made of these bytes, and replies made of them.
pub fn nbd_client(data: &[u8]) {
    use weft::nbd::client::{Handshake, fuzz_replies};
    fuzz_replies(data);
    // A sound greeting and magic numbers give the rest a chance.
    let mut script = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    for (option, bytes) in [11_u32, 8, 10, 7, 7, 7].iter().zip(data.chunks(24)) {
        script.extend_from_slice(&0x0003_e889_0455_65a9_u64.to_be_bytes());
        script.extend_from_slice(&option.to_be_bytes());
        script.extend_from_slice(&u32::from(bytes[0] % 6).to_be_bytes());
        script.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        script.extend_from_slice(bytes);
    }
    for script in [&script[..], data] {
        let (mut reader, mut writer) = (script, std::io::sink());
        let mut handshake = Handshake::new(&mut reader, &mut writer, None);
        if handshake.greet().is_ok()
            && let Ok(facts) = handshake.go("disk")
        {
            assert!(facts.sizes.check().is_ok() && i64::try_from(facts.len_bytes).is_ok());
        }
        let (mut reader, mut writer) = (script, std::io::sink());
        let mut handshake = Handshake::new(&mut reader, &mut writer, None);
        let _ = handshake.greet().and_then(|_| handshake.list());
    }
}

/// The codec of NBD on any bytes.
fn nbd_messages(data: &[u8]) {
    use weft::nbd::wire::{
        Chunk, ChunkType, GoRequest, Info, MetaQueries, ReplyHeader, parse_meta_context,
        parse_server_entry,
    };
    let _ = (GoRequest::parse(data), MetaQueries::parse(data), Info::parse(data));
    let _ = (parse_server_entry(data), parse_meta_context(data), ReplyHeader::parse(data));
    for kind in [0, 2, 5, 6, 0x8001, 0x8002, 0x8077, 77] {
        let _ = Chunk::parse(ChunkType(kind), true, data);
    }
}

/// Blocks, keys and marks of encrypted directories: what is understood has one form.
fn ringer_encryption(data: &[u8], text: &str) {
    use weft::ringer::{Encryption, KeyId, Rnode, is_encrypted};
    use weft::ringer_client::{DirectoryKey, EncryptedBlock, MemberId, Shares, parse_keys};
    if let Ok(block) = EncryptedBlock::parse(data) {
        let ids = [&block.encryption.key.0[..], &block.encryption.file.0].concat();
        assert_eq!(data.get(4..36), Some(&ids[..]));
    }
    if let Ok(key) = text.parse::<DirectoryKey>() {
        assert_eq!(*key.to_text(), text.trim());
    }
    let _ = parse_keys(text);
    if let Ok(id) = text.parse::<MemberId>() {
        assert_eq!(id.to_string(), text.trim());
    }
    if let Ok(shares) = Shares::parse(data) {
        assert_eq!(shares.to_bytes(), data);
    }
    if let Ok(rnode) = weft::ringer::wire::decode::<Rnode>(data) {
        let (file, directory) = (Encryption::of(&rnode), KeyId::of_directory(&rnode));
        let says = matches!(file, Ok(Some(_))) || matches!(directory, Ok(Some(_)));
        assert!(is_encrypted(&rnode) || !says);
    }
}

/// Messages and records of the shared file service: what is understood has one form, and frames end.
pub fn ringer_wire(data: &[u8]) {
    use weft::ringer::wire::frame::Deframer;
    use weft::ringer::wire::{FromServer, ToServer, Wire, decode, encode};
    use weft::ringer_net::{Answer, Ask, FromPeer, ToPeer};
    fn one_form<T: Wire>(data: &[u8]) {
        if let Ok(value) = decode::<T>(data) {
            assert_eq!(encode(&value), data, "a value has one encoding");
        }
    }
    fn frames<T: Wire>(data: &[u8]) {
        let mut deframer = Deframer::default();
        for piece in data.chunks(7) {
            deframer.push(piece);
            while let Ok(Some(_)) = deframer.pull::<T>() {}
        }
    }
    one_form::<ToServer>(data);
    one_form::<FromServer>(data);
    one_form::<weft::ringer::Rnode>(data);
    one_form::<weft::ringer::ToldText>(data);
    one_form::<Ask>(data);
    one_form::<Answer>(data);
    one_form::<ToPeer>(data);
    one_form::<FromPeer>(data);
    let text = String::from_utf8_lossy(data);
    let query = text.parse::<weft::ringer::query::Query>();
    if let Ok(summary) = decode::<weft::ringer::Summary>(data) {
        let absent = "tag:x word".parse().expect("a query");
        let _ = summary.may_have(query.as_ref().unwrap_or(&absent));
    }
    let _ = text.parse::<weft::ringer::Policy>();
    if let Ok(cell_mount) = weft::ringer::CellMount::parse(data) {
        let text = cell_mount.to_string();
        // One that has no end of a line at its end grows by that.
        if text.len() <= weft::ringer::CELL_MOUNT_MAX_BYTES {
            assert_eq!(weft::ringer::CellMount::parse(text.as_bytes()), Ok(cell_mount));
        }
    }
    ringer_encryption(data, &text);
    frames::<Ask>(data);
    frames::<FromPeer>(data);
    frames::<ToServer>(data);
    frames::<FromServer>(data);
}
