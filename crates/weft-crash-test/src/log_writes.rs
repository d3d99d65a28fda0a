//! Logs of Linux's dm-log-writes as recordings: what a kernel, or any other program, wrote to a
//! block device is searched as if weft had written it.
//!
//! An entry of the log is a write, a discard, a flush or a mark. A write that the log flags with FUA
//! was durable at once, all others with the next flush; [`weft_block::LogReader`] has the format.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use weft_block::{Event, Image, LogReader};
use weft_vfs::memfs::Snapshot;

use crate::backend::later;
use crate::calls::{Action, Call, Process};
use crate::volume::{Volume, VolumeKind, copy, default_order, device_failed, merge};
use crate::{Error, Header, Recording, Result};

/// A log, and the volume that it was written to.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// The volume before the first entry; otherwise zeroes.
    pub volume: Option<PathBuf>,
    /// The size of a volume of zeroes, in bytes; otherwise it ends where the last entry does.
    pub size_bytes: Option<u64>,
    /// All before the first mark of this text is taken to be durable.
    pub after_mark: Option<String>,
    /// The order of writes with which weft mounts the volume. Otherwise `journal` for a volume with a
    /// journal, and else `async`: such a volume is repaired first.
    pub order: Option<String>,
}

/// The largest volume, in bytes: what is not written takes no memory.
const VOLUME_MAX: u64 = 1 << 40;
/// The most data of one write in a recording, in bytes; longer ones are several.
const WRITE_MAX: usize = 1 << 20;

impl Recording {
    /// Reads a log in the format of dm-log-writes.
    ///
    /// # Errors
    /// [`Error::Log`] if the file is none, or is damaged; [`Error::LogBeyondVolume`];
    /// [`Error::NoMark`]; [`Error::NotTested`] if there is nothing to search in it, or weft does not
    /// know the format of the volume; [`Error::Io`].
    pub fn load_log(path: &Path, options: &LogOptions) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(format!("opening {}", path.display())))?;
        Self::read_log(path, file, options)
    }

    /// Reads a log from anything; `path` is what errors call it.
    ///
    /// # Errors
    /// Those of [`load_log`](Self::load_log).
    pub fn read_log(path: &Path, log: impl Read + Seek, options: &LogOptions) -> Result<Self> {
        let base = options.volume.as_deref().map(copy).transpose()?;
        let size_bytes = base.as_ref().map(Image::len_bytes).or(options.size_bytes);
        let Log { events, end } = read(path, log, size_bytes)?;
        // A volume of zeroes is made of whole pages, as disks are of whole sectors.
        let size_bytes = size_bytes.unwrap_or_else(|| end.next_multiple_of(4096));
        let mut image = base.unwrap_or_else(|| Image::new(size_bytes));
        let skipped = match &options.after_mark {
            Some(mark) => after_mark(path, &events, mark)?,
            None => 0,
        };
        apply(&mut image, &events[..skipped])?;
        let events = later(&events, skipped);
        if !events.iter().any(|event| matches!(event, Event::Write { .. })) {
            return Err(Error::NotTested("the log holds no write that can be lost".into()));
        }
        let Some(order) = default_order(&image)? else {
            return Err(no_volume(image, &events)?);
        };
        let order = options.order.clone().unwrap_or_else(|| order.to_owned());
        let kind = VolumeKind::of(&image, &order)?;
        let end = Call {
            action: Action::End,
            process: Process::default(),
            at_nanos: 0,
            data: bytes::Bytes::new(),
        };
        let calls = merge(vec![end], &[events.len()], &events, kind.block_bytes);
        let run = format!("the log {}", path.display());
        let header = Header { run, exit: Some(0), ..Header::default() };
        let volume = Some(Volume { kind, image });
        Ok(Self { volume, ..Self::new(header, Snapshot::new(), calls) })
    }
}

struct Log {
    events: Vec<Event>,
    /// The end of what the entries change.
    end: u64,
}

/// Reads all entries. They must be on a volume of `size_bytes`.
fn read(path: &Path, log: impl Read + Seek, size_bytes: Option<u64>) -> Result<Log> {
    let failed = |source| match source {
        weft_block::Error::Io { source, .. } => {
            Error::Io { what: format!("reading {}", path.display()), source }
        }
        source => Error::Log { path: path.into(), source },
    };
    let mut reader = LogReader::new(log).map_err(failed)?;
    let (mut events, mut end, mut entry) = (Vec::new(), 0, 0);
    let volume_bytes = size_bytes.unwrap_or(VOLUME_MAX);
    loop {
        let before = events.len();
        if !reader.next_entry(&mut events).map_err(failed)? {
            return Ok(Log { events, end });
        }
        for event in &events[before..] {
            let (offset, len_bytes) = match event {
                Event::Write { offset, data, .. } => (*offset, data.len() as u64),
                Event::Discard { offset, len_bytes } => (*offset, *len_bytes),
                Event::Flush { .. } | Event::Mark(_) => continue,
            };
            // The reader has refused an entry whose end no number holds.
            let its_end = offset.saturating_add(len_bytes);
            if its_end > volume_bytes {
                let path = path.into();
                return Err(Error::LogBeyondVolume {
                    path,
                    entry,
                    offset,
                    end: its_end,
                    volume_bytes,
                });
            }
            end = end.max(its_end);
        }
        divide_last(&mut events);
        entry += 1;
    }
}

/// Divides the last event if it is a long write.
fn divide_last(events: &mut Vec<Event>) {
    if !matches!(events.last(), Some(Event::Write { data, .. }) if data.len() > WRITE_MAX) {
        return;
    }
    if let Some(Event::Write { offset, data, fua }) = events.pop() {
        let offsets = (offset..).step_by(WRITE_MAX);
        events.extend(offsets.zip(data.chunks(WRITE_MAX)).map(|(offset, part)| Event::Write {
            offset,
            data: part.into(),
            fua,
        }));
    }
}

/// The number of events up to a mark, which is one of them.
fn after_mark(path: &Path, events: &[Event], mark: &str) -> Result<usize> {
    let is_it = |event: &Event| matches!(event, Event::Mark(text) if text == mark);
    if let Some(place) = events.iter().position(is_it) {
        return Ok(place + 1);
    }
    const SHOWN: usize = 20;
    let marks = events.iter().filter_map(|event| match event {
        Event::Mark(text) => Some(format!("{text:?}")),
        _ => None,
    });
    let mut marks: Vec<String> = marks.take(SHOWN + 1).collect();
    if marks.len() > SHOWN {
        marks[SHOWN] = "and more".into();
    }
    let marks = if marks.is_empty() { "none".into() } else { marks.join(", ") };
    Err(Error::NoMark { path: path.into(), mark: mark.into(), marks })
}

fn apply(image: &mut Image, events: &[Event]) -> Result<()> {
    let failed = || device_failed("replaying the log");
    for event in events {
        match event {
            Event::Write { offset, data, .. } => image.write(data, *offset).map_err(failed())?,
            Event::Discard { offset, len_bytes } => {
                image.zero(*offset, *len_bytes).map_err(failed())?;
            }
            Event::Flush { .. } | Event::Mark(_) => {}
        }
    }
    Ok(())
}

/// Says why a log cannot be searched that begins without a volume that weft knows.
fn no_volume(mut image: Image, events: &[Event]) -> Result<Error> {
    apply(&mut image, events)?;
    Ok(Error::NotTested(match default_order(&image)? {
        Some(_) => {
            "the log begins before its volume is made, so that every state before that would \
                    fail: name the mark behind mkfs (--after-mark), or the volume as it was at the \
                    first entry (--volume)"
                .into()
        }
        None => {
            "the log is of a volume that weft does not mount: it knows ext2, ext3 and HFS".into()
        }
    }))
}
