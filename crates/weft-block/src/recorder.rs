//! A device that writes down everything done to it.
//!
//! The record is a list of [`Event`]s in order of completion, in memory, and optionally also a log
//! in the dm-log-writes format on the way ([`LogWriter`]). A flush says how many of the events
//! before it it made durable: those that had completed when it began, and no more.

use crate::change::joined;
use crate::log_writes::LogWriter;
use crate::{BlockDevice, Change, ChangeKind, Filter, Result};
use std::io::{Seek, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A write completed.
    Write {
        /// Byte offset on the device.
        offset: u64,
        /// The bytes written.
        data: Arc<[u8]>,
        /// Whether the write was durable at once, without a flush (`REQ_FUA`; only in recordings of
        /// the kernel).
        fua: bool,
    },
    /// A flush completed.
    Flush {
        /// The number of events, from the start of the record on, that the flush made durable.
        covers: usize,
    },
    /// A range was discarded.
    Discard {
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len_bytes: u64,
    },
    /// Somebody put a mark here.
    Mark(String),
}

/// The destination of a log.
trait LogFile: Write + Seek + Send {}
impl<T: Write + Seek + Send> LogFile for T {}

struct Record {
    events: Vec<Event>,
    /// Whether the events are kept (without, a long run with a log does not fill the memory).
    keep: bool,
    count: usize,
    log: Option<LogWriter<Box<dyn LogFile>>>,
    /// Events since the last flush, which the log may not hold yet: in that format a write stands
    /// in front of the flush that made it durable.
    unlogged: Vec<(usize, Event)>,
}

/// Another device, recorded.
pub struct Recorder<D> {
    inner: D,
    record: Mutex<Record>,
}

impl<D> std::fmt::Debug for Recorder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl<D: BlockDevice> Recorder<D> {
    /// Records into memory.
    pub fn new(inner: D) -> Self {
        Self::build(inner, true, None)
    }

    /// Records into a log in the dm-log-writes format, and not in memory. The log is complete after
    /// each flush of the device, after [`finish`](Self::finish), which reports errors, and after a
    /// drop, which cannot.
    ///
    /// # Errors
    /// Those of writing the log.
    pub fn to_log(inner: D, log: impl Write + Seek + Send + 'static) -> Result<Self> {
        let log: Box<dyn LogFile> = Box::new(log);
        Ok(Self::build(inner, false, Some(LogWriter::new(log)?)))
    }

    fn build(inner: D, keep: bool, log: Option<LogWriter<Box<dyn LogFile>>>) -> Self {
        let record = Record { events: Vec::new(), keep, count: 0, log, unlogged: Vec::new() };
        Self { inner, record: Mutex::new(record) }
    }

    /// Puts a mark into the record: where a workload is, what it may rely on from here.
    ///
    /// # Errors
    /// Those of writing the log.
    pub fn mark(&self, text: impl Into<String>) -> Result<()> {
        self.record().add(Event::Mark(text.into()))
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.record().events.clone()
    }

    /// Returns the number of events so far.
    pub fn event_count(&self) -> usize {
        self.record().count
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Writes the rest of the log, un-flushed writes too, and its number of entries.
    ///
    /// # Errors
    /// Those of writing the log.
    pub fn finish(&self) -> Result<()> {
        self.record().finish()
    }
}

impl<D> Recorder<D> {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> Drop for Recorder<D> {
    fn drop(&mut self) {
        let mut record = self.record();
        if let Err(e) = record.finish() {
            tracing::warn!("the end of a log of writes is lost: {e}");
        }
    }
}

impl Record {
    /// Writes what the log lacks, and its number of entries.
    fn finish(&mut self) -> Result<()> {
        self.log_up_to(self.count)?;
        self.log.as_mut().map_or(Ok(()), LogWriter::finish)
    }

    fn add(&mut self, event: Event) -> Result<()> {
        let number = self.count;
        self.count += 1;
        if self.log.is_some() {
            if let Event::Flush { covers } = event {
                self.log_up_to(covers)?;
                if let Some(log) = &mut self.log {
                    log.append(&event)?;
                    // A process that is killed leaves a log that is complete up to here.
                    log.finish()?;
                }
            } else {
                self.unlogged.push((number, event.clone()));
            }
        }
        if self.keep {
            self.events.push(event);
        }
        Ok(())
    }

    fn add_write(&mut self, offset: u64, data: Arc<[u8]>) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.add(Event::Write { offset, data, fua: false })
    }

    fn log_up_to(&mut self, end: usize) -> Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let n = self.unlogged.partition_point(|(number, _)| *number < end);
        for (_, event) in self.unlogged.drain(..n) {
            log.append(&event)?;
        }
        Ok(())
    }
}

impl<D: BlockDevice> Filter for Recorder<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn filter_change(&self, change: Change<'_>) -> Result<()> {
        change.apply(&self.inner)?;
        let Change { offset, len_bytes, .. } = change;
        match change.kind {
            ChangeKind::Write(bufs) => self.record().add_write(offset, joined(bufs).into()),
            ChangeKind::Zero => {
                // All of one length share their memory.
                let mut shared: Arc<[u8]> = Arc::default();
                change.apply_by_writes(|zeroes, at| {
                    if shared.len() != zeroes.len() {
                        shared = zeroes.into();
                    }
                    self.record().add_write(at, Arc::clone(&shared))
                })
            }
            ChangeKind::Discard => self.record().add(Event::Discard { offset, len_bytes }),
        }
    }

    fn filter_flush(&self) -> Result<()> {
        let covers = self.record().count;
        self.inner.flush()?;
        self.record().add(Event::Flush { covers })
    }
}

/// Does to `device` what a record says was done.
///
/// # Errors
/// Those of the device.
pub fn replay<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    device: &dyn BlockDevice,
) -> Result<()> {
    for event in events {
        match event {
            Event::Write { offset, data, .. } => device.write_at(data, *offset)?,
            Event::Flush { .. } => device.flush()?,
            Event::Discard { offset, len_bytes } => device.discard(*offset, *len_bytes)?,
            Event::Mark(_) => {}
        }
    }
    Ok(())
}
