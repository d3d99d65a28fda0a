//! A disk with a volatile cache on a simulated clock: each request takes its time, and what was not
//! flushed is lost when the power goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, Geometry, Image, MemoryDevice, Result};

/// The simulated time, in microseconds.
#[derive(Debug, Clone, Default)]
pub struct SimulatedTime(Arc<AtomicU64>);

impl SimulatedTime {
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn pass(&self, micros: u64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }

    /// Lets the time pass until `micros`, if that is not past.
    pub fn pass_until(&self, micros: u64) {
        self.0.fetch_max(micros, Ordering::SeqCst);
    }
}

/// The time that requests take.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    pub request_micros: u64,
    pub bytes_per_micro: u64,
    pub flush_micros: u64,
}

/// A moment at which a [`TimedDevice`] calls its observer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A request has taken its time.
    Worked,
    /// A flush is about to make writes durable: until now they are lost if the power goes.
    BeforeFlush,
}

type Observer = Box<dyn FnMut(Moment) + Send>;

pub struct TimedDevice {
    /// What a reader finds, and what is left if weft is killed.
    completed: MemoryDevice,
    /// What is left for certain when the power goes.
    durable: MemoryDevice,
    unflushed: Mutex<Vec<(u64, Vec<u8>)>>,
    time: SimulatedTime,
    speed: Speed,
    observer: Mutex<Option<Observer>>,
}

impl TimedDevice {
    pub fn new(image: Image, time: SimulatedTime, speed: Speed) -> Self {
        Self {
            completed: MemoryDevice::from_image(image.clone()),
            durable: MemoryDevice::from_image(image),
            unflushed: Mutex::default(),
            time,
            speed,
            observer: Mutex::default(),
        }
    }

    /// Calls `observer` at every [`Moment`] from now on; it is not called by what it does itself.
    pub fn observe(&self, observer: Observer) {
        *self.observer.lock().unwrap() = Some(observer);
    }

    pub fn after_a_kill(&self) -> Image {
        self.completed.snapshot()
    }

    pub fn after_a_power_cut(&self) -> Image {
        self.durable.snapshot()
    }

    fn tell(&self, moment: Moment) {
        if let Ok(mut observer) = self.observer.try_lock()
            && let Some(observer) = &mut *observer
        {
            observer(moment);
        }
    }
}

impl BlockDevice for TimedDevice {
    fn geometry(&self) -> Geometry {
        self.completed.geometry()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.completed.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.completed.write_at(buf, offset)?;
        self.unflushed.lock().unwrap().push((offset, buf.to_vec()));
        self.time.pass(self.speed.request_micros + buf.len() as u64 / self.speed.bytes_per_micro);
        self.tell(Moment::Worked);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // Writes that are completed while the flush is under way are not covered by it.
        let covered = std::mem::take(&mut *self.unflushed.lock().unwrap());
        self.time.pass(self.speed.flush_micros);
        self.tell(Moment::Worked);
        self.tell(Moment::BeforeFlush);
        for (offset, bytes) in covered {
            self.durable.write_at(&bytes, offset)?;
        }
        Ok(())
    }
}
