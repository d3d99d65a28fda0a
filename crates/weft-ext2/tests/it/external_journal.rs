//! A journal on a device of its own.

use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice, ReadOnly};
use weft_ext2::mkfs::{Journal, JournalDeviceOptions, MkfsOptions, format_journal_device, mkfs};
use weft_ext2::{Error, Ext2, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::FileSystem;
use weft_vfs::path::Walker;

struct Volume {
    device: Arc<MemoryDevice>,
    journal: Arc<MemoryDevice>,
}

fn volume() -> Volume {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let journal = Arc::new(MemoryDevice::new(8 << 20));
    let uuid = [5; 16];
    let options = JournalDeviceOptions {
        block_bytes: 4096,
        uuid: Some([9; 16]),
        label: Vec::new(),
        users: vec![uuid],
        checksums: true,
    };
    let named = format_journal_device(&*journal, &options).unwrap();
    let options = MkfsOptions {
        block_bytes: Some(4096),
        uuid: Some(uuid),
        journal: Some(Journal::External { uuid: named }),
        ..MkfsOptions::ext3()
    };
    mkfs(&*device, &options).unwrap();
    Volume { device, journal }
}

fn open(
    device: &Arc<MemoryDevice>,
    journal: Option<&Arc<MemoryDevice>>,
) -> Result<Arc<Ext2>, Error> {
    let policy = Policy::Journal(JournalMode::Full);
    let engine = Options { policy, background: false, ..Options::default() };
    let journal = journal.map(|j| Arc::clone(j) as Arc<dyn BlockDevice>);
    let options = OpenOptions { engine, journal, ..OpenOptions::default() };
    Ext2::open(Arc::clone(device) as Arc<dyn BlockDevice>, options)
}

/// A volume after a cut that `/kept` was synced before: nothing was closed, and of the volume
/// itself there is only what was there before the sync.
fn cut() -> Volume {
    let Volume { device, journal } = volume();
    let fs = open(&device, Some(&journal)).unwrap();
    Walker::new(&*fs).write_file(b"/kept", b"content", 0o644).unwrap();
    let in_place = device.snapshot();
    fs.sync().unwrap();
    drop(fs);
    Volume { device: Arc::new(MemoryDevice::from_image(in_place)), journal }
}

#[test]
fn synced_files_come_back_from_the_journal_alone() {
    let Volume { device, journal } = cut();
    assert!(matches!(open(&device, None), Err(Error::Incompatible { .. })), "it must be replayed");
    let fs = open(&device, Some(&journal)).unwrap();
    assert_eq!(Walker::new(&*fs).read_file(b"/kept").unwrap(), b"content");
    fs.unmount().unwrap();
}

#[test]
fn a_look_at_it_replays_in_memory() {
    let Volume { device, journal } = cut();
    let (in_place, log) = (device.snapshot(), journal.snapshot());
    let options = OpenOptions {
        journal: Some(Arc::new(ReadOnly::new(Arc::clone(&journal)))),
        ..OpenOptions::default()
    };
    let fs = Ext2::open(Arc::new(ReadOnly::new(Arc::clone(&device))), options).unwrap();
    let walker = Walker::new(&*fs);
    assert_eq!(walker.read_file(b"/kept").unwrap(), b"content");
    let refused = walker.write_file(b"/other", b"", 0o644);
    assert!(matches!(refused, Err(weft_vfs::Error::ReadOnly)), "{refused:?}");
    fs.unmount().unwrap();
    assert!(device.snapshot().pages_apart(&in_place).is_empty(), "nothing was written");
    assert!(journal.snapshot().pages_apart(&log).is_empty(), "nothing was written to the journal");
}

#[test]
fn a_foreign_journal_is_refused() {
    let (Volume { device, .. }, other) = (volume(), MemoryDevice::new(8 << 20));
    let options = JournalDeviceOptions {
        block_bytes: 4096,
        uuid: Some([1; 16]),
        label: Vec::new(),
        users: vec![],
        checksums: false,
    };
    format_journal_device(&other, &options).unwrap();
    assert!(matches!(open(&device, Some(&Arc::new(other))), Err(Error::Invalid(_))));
}
