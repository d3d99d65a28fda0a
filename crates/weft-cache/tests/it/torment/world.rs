//! Disks with volatile caches, recorded in one order, so that the power can be cut afterwards at
//! every event.
//!
//! A life of the cache runs once on a [`World`]. Every write and flush of every disk is an event.
//! [`World::at`] rebuilds what each disk held after event `k`: its medium, and the writes that a
//! power cut may still lose. [`cut`] decides what of them survives. So one run gives as many power
//! cuts as it has events, times as many outcomes as one cares to look at, without running again.
//!
//! # Invariants
//!
//! - A write is whole sectors. A smaller one is completed with what the disk held, as a disk does.
//! - A disk's pending writes are in the order in which they completed; of those that survive, the
//!   newest wins, sector by sector.

use std::sync::{Arc, Mutex, MutexGuard};
use weft_block::{BlockDevice, Geometry, Image, Result, Rng, SECTOR_BYTES, check_range};

const SECTOR: u64 = SECTOR_BYTES as u64;

/// What a disk reads as where it was told to forget, if it forgets into garbage.
pub const GARBAGE: u8 = 0xd5;

/// What a disk does with a discarded range: all of it is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    Ignored,
    Zeroes,
    Garbage,
}

/// A write that is not on the medium yet.
#[derive(Debug, Clone)]
struct Write {
    offset: u64,
    data: Arc<[u8]>,
}

/// A disk while no one uses it.
#[derive(Debug, Clone)]
pub struct Disk {
    medium: Image,
    pending: Vec<Write>,
    discard: Discard,
}

impl Disk {
    pub fn new(len_bytes: u64, discard: Discard) -> Self {
        Self { medium: Image::new(len_bytes), pending: Vec::new(), discard }
    }

    /// What is sure to be there whatever happens next.
    pub fn medium(&self) -> &Image {
        &self.medium
    }

    /// Whether everything is on the medium.
    pub fn settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// What a reader sees: the medium under everything pending.
    pub fn visible(&self) -> Image {
        let mut image = self.medium.clone();
        for write in &self.pending {
            image.write(&write.data, write.offset).expect("pending writes are in range");
        }
        image
    }

    /// Decides which pending writes reached the medium.
    fn settle(&mut self, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        let n = pending.len();
        // Random subsets alone almost never show a single missing or a single surviving write of
        // many, which is what finds a missing order.
        let one = rng.index(n);
        let keep: Vec<bool> = match rng.below(8) {
            0 => vec![false; n],
            1 => vec![true; n],
            2 => (0..n).map(|i| i != one).collect(),
            3 => (0..n).map(|i| i == one).collect(),
            4 => (0..n).map(|i| i < one).collect(),
            5 => (0..n).map(|i| i >= one).collect(),
            _ => {
                let of = rng.below(101);
                (0..n).map(|_| rng.chance(of, 100)).collect()
            }
        };
        let tear = if rng.chance(1, 2) { rng.below(101) } else { 0 };
        for (write, keep) in pending.into_iter().zip(keep) {
            if write.data.len() > SECTOR_BYTES && rng.chance(tear, 100) {
                for (i, sector) in write.data.chunks(SECTOR_BYTES).enumerate() {
                    if rng.chance(1, 2) {
                        let at = write.offset + i as u64 * SECTOR;
                        self.medium.write(sector, at).expect("in range");
                    }
                }
            } else if keep {
                self.medium.write(&write.data, write.offset).expect("in range");
            }
        }
    }
}

/// Which disks lose their power. Disk 0 is the cache's, all others are origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of them: one machine.
    Both,
    /// The cache's: the client fails and the server goes on.
    Cache,
    /// The origins': the server fails, and the client's process with it.
    Origins,
    /// None: the client's process is killed.
    Nothing,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Both, Self::Cache, Self::Origins, Self::Nothing];

    pub fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Cache => "cache",
            Self::Origins => "origins",
            Self::Nothing => "nothing",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    fn takes(self, disk: usize) -> bool {
        match self {
            Self::Both => true,
            Self::Cache => disk == 0,
            Self::Origins => disk > 0,
            Self::Nothing => false,
        }
    }
}

/// Cuts the power of some disks; those outside `scope` keep what they have pending.
pub fn cut(disks: &mut [Disk], scope: Scope, seed: u64) {
    for (i, disk) in disks.iter_mut().enumerate() {
        if scope.takes(i) {
            disk.settle(&mut Rng::stream(seed, i as u64));
        }
    }
}

enum Event {
    Write(usize, Write),
    /// The disk, and its medium from now on.
    Flush(usize, Image),
}

/// What one disk was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub flushes: u64,
}

/// What a flush that fails does to what was pending: some of it is on the medium, and some is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailFlush {
    /// What is lost still reads as if it were there, for as long as the disk is in use: so do
    /// pages of a kernel's cache that could not be written.
    pub hidden: bool,
    pub seed: u64,
}

/// How many flushes of a disk have failed, and how many of them while something was pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failed {
    pub all: u64,
    pub losing: u64,
}

struct Running {
    start: Vec<Disk>,
    /// As they are now, with what is lost left out.
    disks: Vec<Disk>,
    /// What they read as.
    now: Vec<Image>,
    /// What happens to the next flush of each.
    fail: Vec<Option<FailFlush>>,
    failed: Vec<Failed>,
    asked: Vec<Asked>,
    events: Vec<Event>,
}

/// Disks in use.
pub struct World(Mutex<Running>);

impl World {
    pub fn new(disks: Vec<Disk>) -> Arc<Self> {
        let now = disks.iter().map(Disk::visible).collect();
        Arc::new(Self(Mutex::new(Running {
            now,
            fail: vec![None; disks.len()],
            failed: vec![Failed::default(); disks.len()],
            asked: vec![Asked::default(); disks.len()],
            events: Vec::new(),
            disks: disks.clone(),
            start: disks,
        })))
    }

    /// Makes the next flush of a disk fail; `None`, that none does.
    pub fn fail_flush(&self, disk: usize, how: Option<FailFlush>) {
        self.lock().fail[disk] = how;
    }

    /// A disk is opened anew: what it has lost does not read as if it were there any more.
    pub fn reopen(&self, disk: usize) {
        let mut running = self.lock();
        running.now[disk] = running.disks[disk].visible();
        running.fail[disk] = None;
    }

    pub fn failed(&self, disk: usize) -> Failed {
        self.lock().failed[disk]
    }

    /// One of the disks as a device.
    pub fn device(self: &Arc<Self>, disk: usize) -> Arc<dyn BlockDevice> {
        Arc::new(WorldDevice { world: Arc::clone(self), disk })
    }

    /// How many writes and flushes there have been.
    pub fn events(&self) -> usize {
        self.lock().events.len()
    }

    pub fn asked(&self, disk: usize) -> Asked {
        self.lock().asked[disk]
    }

    /// What a disk reads as now.
    pub fn visible(&self, disk: usize) -> Image {
        self.lock().now[disk].clone()
    }

    /// The disks as they were after the first `events` events, the power still on.
    pub fn at(&self, events: usize) -> Vec<Disk> {
        let running = self.lock();
        let mut disks = running.start.clone();
        // Only what came after a disk's last flush matters.
        let mut from = vec![0; disks.len()];
        for (i, event) in running.events[..events].iter().enumerate() {
            if let Event::Flush(disk, _) = event {
                from[*disk] = i;
            }
        }
        for (i, event) in running.events[..events].iter().enumerate() {
            match event {
                Event::Flush(disk, medium) if from[*disk] == i => {
                    disks[*disk].medium = medium.clone();
                    disks[*disk].pending.clear();
                }
                Event::Write(disk, write) if from[*disk] <= i => {
                    disks[*disk].pending.push(write.clone());
                }
                _ => {}
            }
        }
        disks
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().expect("no test goes on after a panic")
    }
}

struct WorldDevice {
    world: Arc<World>,
    disk: usize,
}

impl WorldDevice {
    /// Writes `fill` or `buf` to a range, whole sectors of which become an event.
    fn write(
        &self,
        op: &'static str,
        offset: u64,
        len: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let mut running = self.world.lock();
        let image = &mut running.now[self.disk];
        check_range(op, offset, len, image.len_bytes())?;
        if len == 0 {
            return Ok(());
        }
        let start = offset / SECTOR * SECTOR;
        let end = (offset + len).div_ceil(SECTOR) * SECTOR;
        let mut data = vec![0; (end - start) as usize];
        if start != offset || end != offset + len {
            image.read(&mut data, start)?;
        }
        let within = (offset - start) as usize;
        fill(&mut data[within..within + len as usize]);
        image.write(&data, start)?;
        running.asked[self.disk].writes += 1;
        let write = Write { offset: start, data: data.into() };
        running.disks[self.disk].pending.push(write.clone());
        running.events.push(Event::Write(self.disk, write));
        Ok(())
    }
}

impl BlockDevice for WorldDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.world.lock().now[self.disk].len_bytes(),
            logical_block_bytes: SECTOR_BYTES as u32,
            physical_block_bytes: 4096,
            read_only: false,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut running = self.world.lock();
        running.asked[self.disk].reads += 1;
        running.asked[self.disk].read_bytes += buf.len() as u64;
        running.now[self.disk].read(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write("write", offset, buf.len() as u64, |data| data.copy_from_slice(buf))
    }

    fn write_vectored_at(&self, bufs: &[std::io::IoSlice<'_>], offset: u64) -> Result<()> {
        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write_at(&all, offset)
    }

    fn flush(&self) -> Result<()> {
        let mut running = self.world.lock();
        running.asked[self.disk].flushes += 1;
        let fails = running.fail[self.disk].take();
        let disk = &mut running.disks[self.disk];
        let loses = fails.is_some() && !disk.settled();
        match fails {
            Some(how) if loses => disk.settle(&mut Rng::new(how.seed)),
            _ => disk.medium = disk.visible(),
        }
        disk.pending.clear();
        let medium = disk.medium.clone();
        running.events.push(Event::Flush(self.disk, medium.clone()));
        let Some(how) = fails else { return Ok(()) };
        running.failed[self.disk].all += 1;
        running.failed[self.disk].losing += u64::from(loses);
        if !how.hidden {
            running.now[self.disk] = medium;
        }
        let why = std::io::Error::other("a flush that was to fail");
        Err(weft_block::Error::io("flush", 0, 0, why))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        let how = self.world.lock().start[self.disk].discard;
        match how {
            Discard::Ignored => {
                check_range("discard", offset, len_bytes, self.geometry().len_bytes)
            }
            Discard::Zeroes => self.write_zeroes(offset, len_bytes),
            Discard::Garbage => self.write("discard", offset, len_bytes, |data| data.fill(GARBAGE)),
        }
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.write("write zeroes", offset, len_bytes, |data| data.fill(0))
    }
}

/// A disk that forgets its flushes, or any other mistake in this file, would make every test that
/// stands on it worthless.
#[test]
fn a_flushed_write_survives_a_cut_at_every_event_and_any_other_may_go() {
    let world = World::new(vec![Disk::new(1 << 16, Discard::Ignored)]);
    let device = world.device(0);
    for i in 0..6_u8 {
        device.write_at(&[i + 1; 1024], u64::from(i) * 700).unwrap();
        if i == 2 {
            device.flush().unwrap();
        }
    }
    assert_eq!(world.events(), 7);
    let mut states = std::collections::BTreeSet::new();
    for events in 0..=7 {
        for seed in 0..300 {
            let mut disks = world.at(events);
            cut(&mut disks, Scope::Both, seed);
            let mut all = [0; 5120];
            disks[0].medium().read(&mut all, 0).unwrap();
            if events >= 4 {
                assert!(all[..700] == [1; 700] && all[700..1400] == [2; 700]);
            } else if events == 0 {
                assert_eq!(all, [0; 5120]);
            }
            states.insert(all.to_vec());
        }
    }
    assert!(states.len() > 30, "{} states", states.len());
    let mut last = [0; 1];
    world.visible(0).read(&mut last, 3500 + 1023).unwrap();
    assert_eq!(last, [6]);
}
