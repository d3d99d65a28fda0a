//! Recordings of crash tests that begin as a good one: the bytes are changes, `[offset, offset,
//! value]`. Those that can still be read are searched a little.

use std::sync::{Arc, OnceLock};
use weft_block::{BlockDevice, Event, LogWriter, MemoryDevice};
use weft_crash_test::{
    Bounds, Cursor, Header, LogOptions, Model, Recorder, Recording, State, Subject,
};
use weft_ext2::mkfs::{MkfsOptions, mkfs};
use weft_vfs::memfs::MemFs;
use weft_vfs::{
    Caller, FallocateMode, FileKind, FileSystem, Handle, RenameFlags, SetAttr, XattrSet,
};

/// States of each epoch that are built.
const STATES: usize = 8;

pub fn recordings(data: &[u8]) {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = changed(GOOD.get_or_init(|| good().unwrap_or_default()), data);
    let _ = String::from_utf8_lossy(data).parse::<State>();
    let Ok(recording) = Recording::from_bytes(&bytes) else { return };
    for model in Model::ALL {
        search(&recording, model, data.is_empty());
    }
}

/// Bytes with the changes of an input.
fn changed(good: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    bytes
}

/// Builds some states. What cannot be built is an error, of a damaged recording alone: a tree, or the
/// mount of a volume.
fn search(recording: &Recording, model: Model, is_good: bool) {
    let subject = Subject::new(recording, model, &[]);
    let mut cursor = Cursor::new(&subject);
    for epoch in subject.epochs() {
        let bounds = Bounds { all: STATES, states: STATES, ..Bounds::default() };
        epoch.each_state(&subject.units, bounds, &mut |state| {
            assert!(epoch.is_legal(&state), "{state} is a state of its epoch");
            let built = cursor.tree(&state).map(|tree| tree.hash());
            assert!(built.is_ok() || !is_good, "{built:?}");
            true
        });
    }
}

/// A recording with every kind of call.
fn good() -> weft_vfs::Result<Vec<u8>> {
    let memory = Arc::new(MemFs::new());
    let recorder = Recorder::new(Arc::clone(&memory) as Arc<dyn FileSystem>, 1 << 20);
    let fs: &dyn FileSystem = &recorder;
    let (root, me) = (fs.root(), &Caller::ROOT);
    let file =
        |name: &[u8]| fs.mknod(me, root, name, FileKind::Regular, 0o644, 0).map(|e| e.attr.ino);
    let write = |ino, at, data: &[u8]| fs.write(me, ino, Handle::NONE, at, data);
    let old = file(b"old")?;
    write(old, 0, &[1; 6000])?;
    let base = memory.snapshot();
    recorder.start(None, None);
    let dir = fs.mkdir(me, root, b"dir", 0o755)?.attr.ino;
    let new = file(b"new")?;
    write(new, 0, &[2; 5000])?;
    write(old, 5000, &[3; 100])?;
    fs.setattr(
        me,
        old,
        &SetAttr { size_bytes: Some(10), perm: Some(0o600), ..SetAttr::default() },
    )?;
    fs.setxattr(me, new, b"user.a", b"value", XattrSet::Any)?;
    fs.fsync(me, new, true)?;
    fs.symlink(me, dir, b"link", b"../new")?;
    fs.link(me, new, dir, b"also")?;
    fs.fallocate(me, new, FallocateMode::PunchHole, 100, 4000)?;
    fs.rename(me, root, b"new", dir, b"moved", RenameFlags::empty())?;
    fs.rename(me, root, b"dir", root, b"old", RenameFlags::EXCHANGE)?;
    fs.fsync_dir(me, root)?;
    fs.unlink(me, dir, b"also")?;
    fs.removexattr(me, new, b"user.a")?;
    fs.sync()?;
    write(new, 0, &[4; 10])?;
    let calls = recorder.stop().unwrap_or_default();
    let bytes = Recording::new(Header::default(), base, calls).to_bytes();
    bytes.map_err(|_| weft_vfs::Error::Invalid("the recording cannot be written"))
}

/// A log of dm-log-writes, of a volume that it makes itself, with bytes changed as those of a
/// recording; what can still be read is searched a little.
pub fn logs(data: &[u8]) {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = changed(GOOD.get_or_init(|| good_log().unwrap_or_default()), data);
    let options = LogOptions { after_mark: Some("made".into()), ..LogOptions::default() };
    let read = |bytes: &[u8], options: &LogOptions| {
        Recording::read_log("log".as_ref(), std::io::Cursor::new(bytes), options)
    };
    let _ = read(data, &LogOptions::default());
    let Ok(recording) = read(&bytes, &options) else {
        assert!(!data.is_empty(), "a good log is read");
        return;
    };
    search(&recording, Model::Volume, data.is_empty());
}

/// A log with every kind of entry. Those that are searched are within reach of the changes.
fn good_log() -> weft_block::Result<Vec<u8>> {
    let device = MemoryDevice::new(64 << 10);
    let options = MkfsOptions { inodes: Some(16), ..MkfsOptions::ext2() };
    let made = mkfs(&device, &options);
    made.map_err(|e| weft_block::Error::Invalid(format!("mkfs: {e}")))?;
    let mut volume = vec![0; 64 << 10];
    device.read_at(&mut volume, 0)?;
    let write = |offset: u64, len: usize, fua| Event::Write {
        offset,
        data: volume[offset as usize..][..len].into(),
        fua,
    };
    let events = [
        write(0, 32 << 10, false),
        write(32 << 10, 32 << 10, false),
        Event::Mark("made".into()),
        write(1024, 1024, false),
        write(5120, 4096, false),
        Event::Flush { covers: 5 },
        write(2048, 1024, true),
        Event::Discard { offset: 60 << 10, len_bytes: 4 << 10 },
        Event::Mark("end".into()),
        write(1024, 1024, false),
    ];
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut log = LogWriter::new(&mut bytes)?;
    for event in &events {
        log.append(event)?;
    }
    log.finish()?;
    Ok(bytes.into_inner())
}
