//! The volumes of the campaign: ext2 and ext3, and HFS with its journal behind it, in every order.

use super::device::Speed;
use std::sync::Arc;
use weft_block::{BlockDevice, Image, MemoryDevice, Partition};
use weft_ext2::Ext2;
use weft_ext2::mkfs::Journal;
use weft_hfs::Hfs;
use weft_hfs::layout::Name;
use weft_patch::{Clock, Engine, JournalMode, Options, Policy};
use weft_vfs::FileSystem;

const VOLUME_BYTES: u64 = 64 << 20;
const JOURNAL_BYTES: u64 = 8 << 20;

pub const JOURNALS: [Policy; 3] = [
    Policy::Journal(JournalMode::Metadata),
    Policy::Journal(JournalMode::Ordered),
    Policy::Journal(JournalMode::Full),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Ext,
    Hfs,
}

/// A volume, its order and its disk.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub format: Format,
    pub policy: Policy,
    pub speed: Speed,
    /// Dirty memory at which operations wait; write-back begins at a quarter of it.
    pub memory_bytes: usize,
}

pub type Opened = (Arc<dyn FileSystem>, Arc<Engine>);

impl Setting {
    fn is_journaled(&self) -> bool {
        matches!(self.policy, Policy::Journal(_))
    }

    pub fn fresh(&self) -> Image {
        match self.format {
            Format::Ext => {
                use weft_ext2::mkfs::{MkfsOptions, mkfs};
                let device = MemoryDevice::new(VOLUME_BYTES);
                let journal = Journal::Internal { len_bytes: Some(JOURNAL_BYTES) };
                let base =
                    if self.is_journaled() { MkfsOptions::ext3() } else { MkfsOptions::ext2() };
                let options = MkfsOptions {
                    block_bytes: Some(4096),
                    inodes: Some(8192),
                    journal: self.is_journaled().then_some(journal),
                    ..base
                };
                mkfs(&device, &options).unwrap();
                device.snapshot()
            }
            Format::Hfs => {
                use weft_hfs::mkfs::{MkfsOptions, mkfs};
                let device = Arc::new(MemoryDevice::new(VOLUME_BYTES + JOURNAL_BYTES));
                let (volume, journal) = self.parts(&(device.clone() as Arc<dyn BlockDevice>));
                let name = Name::new(b"Ages").unwrap();
                mkfs(&*volume, &MkfsOptions::new(name, 3_800_000_000)).unwrap();
                if let Some(journal) = journal {
                    weft_hfs::format_journal(&*volume, &*journal).unwrap();
                }
                device.snapshot()
            }
        }
    }

    fn parts(
        &self,
        device: &Arc<dyn BlockDevice>,
    ) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        let part = |at, len| -> Arc<dyn BlockDevice> {
            Arc::new(Partition::window(Arc::clone(device), at, len))
        };
        (part(0, VOLUME_BYTES), self.is_journaled().then(|| part(VOLUME_BYTES, JOURNAL_BYTES)))
    }

    pub fn open(&self, device: Arc<dyn BlockDevice>, clock: Clock) -> Opened {
        let engine = Options {
            policy: self.policy,
            memory_budget_bytes: self.memory_bytes,
            background_bytes: self.memory_bytes / 4,
            background: false,
            clock,
            ..Options::default()
        };
        match self.format {
            Format::Ext => {
                let options = weft_ext2::OpenOptions {
                    engine,
                    no_healing: true,
                    ..weft_ext2::OpenOptions::default()
                };
                let fs = Ext2::open(device, options).unwrap();
                let engine = Arc::clone(fs.engine());
                (fs, engine)
            }
            Format::Hfs => {
                let (volume, journal) = self.parts(&device);
                let options =
                    weft_hfs::OpenOptions { engine, journal, ..weft_hfs::OpenOptions::default() };
                let fs = Hfs::open(volume, options).unwrap();
                let engine = Arc::clone(fs.engine());
                (fs, engine)
            }
        }
    }

    /// Mounts what a crash has left, repaired where the order allows damage.
    pub fn recover(&self, image: Image) -> Opened {
        let device = Arc::new(MemoryDevice::from_image(image));
        if self.policy == Policy::Async && self.format == Format::Ext {
            // Without an order of writes, a crash may damage the volume.
            weft_ext2::fsck::check(&*device, &weft_ext2::fsck::Options::repair()).unwrap();
        }
        self.open(device, Clock::default())
    }

    /// The age in milliseconds that no change may reach without being durable. `calm`: no block is
    /// changed without a pause.
    pub fn promised_ms(&self, calm: bool) -> u64 {
        let (age_ms, tick_ms) = (5000, 500);
        let age_ms = match self.is_journaled() {
            true => age_ms + tick_ms,
            // Overdue blocks are searched for once a tick.
            false if calm => age_ms + 2 * tick_ms,
            false => 2 * age_ms + 2 * tick_ms,
        };
        // What may be dirty, twice: a commit may have begun just before this change. And the
        // flushes of a chain of dependent blocks.
        let Speed { bytes_per_micro, flush_micros, request_micros } = self.speed;
        let drain = 2 * self.memory_bytes as u64 / bytes_per_micro;
        let requests = 2 * self.memory_bytes as u64 / 4096 * request_micros;
        age_ms + (drain + requests + 40 * flush_micros) / 1000
    }
}
