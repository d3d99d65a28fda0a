//! The description of a source: the text that names a device on the command line.
//!
//! ```text
//! SOURCE  = *(FILTER ":") DEVICE ["?" OPTIONS]
//! FILTER  = "delay=" TIME | "record=" LOG
//! DEVICE  = PATH | "mem:" SIZE | SCHEME "://" ...
//! OPTIONS = "partition=" NUMBER, "offset=" SIZE, "sizelimit=" SIZE, and those of the scheme, with "&"
//!           between them
//! ```
//!
//! | description | device |
//! |---|---|
//! | `disk.img`, `/dev/sdb1` | an image file or a block special file |
//! | `disk.img?partition=2` | partition 2 of it |
//! | `fw.bin?offset=1M&sizelimit=8M` | 8 MiB of it from byte 1 MiB on; without a limit all to its end |
//! | `mem:64M` | a fresh device in memory |
//! | `nbd://host/export` | a device that another room opens ([`SourceDevice::Uri`]) |
//! | `delay=5ms:disk.img` | the same device, each of whose requests takes 5 ms longer |
//! | `record=disk.log:disk.img` | the same device; changes are recorded in a [log](crate::LogWriter) |
//!
//! A filter sees what the filters in front of it let through: `delay=1ms:record=x.log:disk.img`
//! records after the delay. The text of a path that exists is that path, whatever is in it; another
//! path that reads like a filter or a scheme is written with `./` in front.

use crate::{
    BlockDevice, Error, Fault, FaultDevice, FileDevice, MemoryDevice, OpenMode, Partition,
    ReadOnly, Recorder, Request, Result, Rule, SECTOR_BYTES,
};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A parsed description of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The filters on top of the device, the outermost first.
    pub filters: Vec<SourceFilter>,
    /// The whole device.
    pub device: SourceDevice,
    /// The part of it that counts as the device, if not all of it.
    pub window: Option<Window>,
    /// The number of the partition on it, if not all of it.
    pub partition: Option<u32>,
}

/// A part of a device by its place, as of losetup(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The first byte: a multiple of 512.
    pub offset_bytes: u64,
    /// The length, if not all up to the end of the device.
    pub len_bytes: Option<u64>,
}

impl Window {
    /// Cuts the part out of a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device is too short for it.
    pub fn of(self, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
        let whole = device.geometry().len_bytes;
        let start = self.offset_bytes;
        let rest = whole.checked_sub(start).filter(|rest| *rest > 0).ok_or_else(|| {
            Error::Invalid(format!("offset={start}: the device has only {whole} bytes"))
        })?;
        let len_bytes = self.len_bytes.unwrap_or(rest);
        if len_bytes > rest {
            return Err(Error::Invalid(format!(
                "sizelimit={len_bytes}: the device has only {rest} bytes from byte {start} on"
            )));
        }
        Ok(Arc::new(Partition::window(device, start, len_bytes)))
    }

    /// Reads one option, `offset=SIZE` or `sizelimit=SIZE`. `None`: it is neither.
    ///
    /// # Errors
    /// A sentence.
    pub fn option(&mut self, option: &str) -> Option<Result<(), String>> {
        let (name, value) = option.split_once('=')?;
        if !matches!(name, "offset" | "sizelimit") {
            return None;
        }
        Some(match parse_size(value).map_err(|e| e.to_string()) {
            Err(e) => Err(e),
            Ok(n) if !n.is_multiple_of(SECTOR_BYTES as u64) => {
                Err("it must be a multiple of 512 bytes".into())
            }
            Ok(0) if name == "sizelimit" => Err("nothing would be left".into()),
            Ok(n) => {
                match name {
                    "offset" => self.offset_bytes = n,
                    _ => self.len_bytes = Some(n),
                }
                Ok(())
            }
        })
    }
}

/// A filter that a description puts on top of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceFilter {
    /// Each read, change and flush takes so much longer.
    Delay(Duration),
    /// Changes and flushes are recorded in this file, in the format of dm-log-writes. A device that
    /// is opened read-only has no changes, and the file is not made.
    Record(PathBuf),
}

/// A whole device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceDevice {
    /// An image file or a block special file.
    File(PathBuf),
    /// A fresh device in memory of so many bytes.
    Memory(u64),
    /// A URI, without the option `partition`. This room opens none.
    Uri(String),
}

/// The options of every device, for messages.
const OPTIONS: &str = "partition=NUMBER, offset=BYTES and sizelimit=BYTES";

/// The names of the filters, for messages.
const FILTERS: &str = "delay=TIME and record=LOG";

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |part: &str, problem: String| Error::Description {
            text: text.to_owned(),
            part: part.to_owned(),
            problem,
        };
        if text.is_empty() {
            return Err(bad(text, "a volume's path is missing".into()));
        }
        let mut source = Self {
            filters: Vec::new(),
            device: SourceDevice::File(text.into()),
            window: None,
            partition: None,
        };
        if text.contains(['?', ':']) && Path::new(text).exists() {
            return Ok(source);
        }
        let mut rest = text;
        while let Some((name, value, after)) = split_filter(rest) {
            let part = &rest[..name.len() + 1 + value.len()];
            if after.is_empty() {
                return Err(bad(part, "no device follows; write it behind a colon".into()));
            }
            source.filters.push(match name {
                "delay" => SourceFilter::Delay(parse_delay(value).map_err(|why| bad(part, why))?),
                "record" if value.is_empty() => {
                    return Err(bad(part, "the path of the log is missing".into()));
                }
                "record" => SourceFilter::Record(value.into()),
                _ => return Err(bad(part, format!("no such filter (there are {FILTERS})"))),
            });
            rest = after;
        }
        let is_uri = scheme_of(rest).is_some();
        // A path may have question marks in it, a URI writes them as %3F.
        let split = if is_uri { rest.split_once('?') } else { rest.rsplit_once('?') };
        let (name, options) = split.map_or((rest, None), |(name, options)| (name, Some(options)));
        let mut for_scheme = Vec::new();
        for option in options.into_iter().flat_map(|o| o.split('&')) {
            let mut window = source.window.unwrap_or_default();
            if let Some(read) = window.option(option) {
                read.map_err(|why| bad(option, why))?;
                source.window = Some(window);
                continue;
            }
            match option.strip_prefix("partition=").map(str::parse::<u32>) {
                Some(Ok(number)) if number > 0 => source.partition = Some(number),
                Some(_) => {
                    return Err(bad(option, "partitions have numbers, from 1 on".into()));
                }
                None if is_uri => for_scheme.push(option),
                None => return Err(bad(option, format!("no such option (there are {OPTIONS})"))),
            }
        }
        source.device = if is_uri {
            let query = if for_scheme.is_empty() { "" } else { "?" };
            SourceDevice::Uri(format!("{name}{query}{}", for_scheme.join("&")))
        } else if let Some(size) = name.strip_prefix("mem:") {
            SourceDevice::Memory(parse_size(size).map_err(|e| bad(name, e.to_string()))?)
        } else if name.is_empty() {
            return Err(bad(rest, "a volume's path is missing".into()));
        } else {
            SourceDevice::File(name.into())
        };
        Ok(source)
    }
}

/// Splits `NAME=VALUE:REST` off a description that begins so: NAME is of lower-case letters and
/// hyphens, VALUE has no colon in it. A text that ends behind VALUE counts if NAME is a filter's.
fn split_filter(text: &str) -> Option<(&str, &str, &str)> {
    let (name, behind) = text.split_once('=')?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
        return None;
    }
    match behind.split_once(':') {
        Some((value, rest)) => Some((name, value, rest)),
        None if matches!(name, "delay" | "record") => Some((name, behind, "")),
        None => None,
    }
}

/// Returns the scheme of a text that begins as a URI does (RFC 3986, section 3.1).
#[must_use]
pub fn scheme_of(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    let begins = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (begins && scheme.bytes().all(is_letter)).then_some(scheme)
}

/// Returns the length of the filters in front of a description, their colons included: what follows
/// is a device. Filters that do not exist count.
#[must_use]
pub fn filters_len_bytes(text: &str) -> usize {
    let mut rest = text;
    while let Some((_, _, after)) = split_filter(rest) {
        rest = after;
    }
    text.len() - rest.len()
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|e| format!("{e} (write a delay as 5ms, 200us or 1s)"))?;
    // A longer one is a slip of the pen, and would look like a device that hangs.
    if time > Duration::from_secs(60) {
        return Err("a request can be delayed by 60s at most".into());
    }
    Ok(time)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for filter in &self.filters {
            match filter {
                // Without the blanks that humantime puts between units: it reads both.
                SourceFilter::Delay(time) => {
                    let time = humantime::format_duration(*time).to_string().replace(' ', "");
                    write!(f, "delay={time}:")?;
                }
                SourceFilter::Record(log) => write!(f, "record={}:", log.display())?,
            }
        }
        let mut joint = '?';
        match &self.device {
            SourceDevice::File(path) => write!(f, "{}", path.display())?,
            SourceDevice::Memory(len_bytes) => write!(f, "mem:{len_bytes}")?,
            SourceDevice::Uri(uri) => {
                write!(f, "{uri}")?;
                joint = if uri.contains('?') { '&' } else { '?' };
            }
        }
        let window = self.window.unwrap_or_default();
        let options = [
            self.window.map(|_| format!("offset={}", window.offset_bytes)),
            window.len_bytes.map(|len| format!("sizelimit={len}")),
            self.partition.map(|number| format!("partition={number}")),
        ];
        for option in options.into_iter().flatten() {
            write!(f, "{joint}{option}")?;
            joint = '&';
        }
        Ok(())
    }
}

impl Source {
    /// Makes the paths of the device and of logs absolute, so that the description means the same
    /// in every working directory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no working directory, or it is not UTF-8.
    pub fn make_absolute(&mut self) -> Result<()> {
        if let SourceDevice::File(path) = &mut self.device {
            *path = absolute(path)?;
        }
        for filter in &mut self.filters {
            if let SourceFilter::Record(log) = filter {
                *log = absolute(log)?;
            }
        }
        Ok(())
    }

    /// Opens the device and puts the filters on top of it.
    ///
    /// # Errors
    /// Those of [`SourceDevice::open`], [`Window::of`], [`Partition::open`] and
    /// [`add_filters`](Self::add_filters).
    pub fn open(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let device = self.open_device(mode)?;
        let device = match self.window {
            Some(window) => window.of(device)?,
            None => device,
        };
        let device = match self.partition {
            Some(number) => Arc::new(Partition::open(device, number)?),
            None => device,
        };
        self.add_filters(device, mode)
    }

    /// Opens the whole device. If the source is a partition or another part of a file, the rest of the
    /// file is not locked.
    ///
    /// # Errors
    /// Those of [`SourceDevice::open`]; [`Error::Invalid`] if the partition table changes meanwhile.
    pub fn open_device(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let part = self.part_of_file().filter(|_| mode.lock);
        let (SourceDevice::File(path), Some(part)) = (&self.device, part) else {
            return self.device.open(mode);
        };
        let device = FileDevice::open_part(path, mode, part.clone())?;
        if self.part_of_file() == Some(part) {
            Ok(Arc::new(device))
        } else {
            let path = path.display();
            Err(Error::Invalid(format!("the partition table of {path} was changed meanwhile")))
        }
    }

    /// The bytes of a file that the source is. `None` if it is all of it, or not there, or has a
    /// partition table within a container.
    fn part_of_file(&self) -> Option<Range<u64>> {
        let SourceDevice::File(path) = &self.device else { return None };
        if self.window.is_none() && self.partition.is_none() {
            return None;
        }
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path, OpenMode::PEEK).ok()?);
        let mut range = 0..device.geometry().len_bytes;
        let window = match self.window {
            Some(window) => {
                range.start = window.offset_bytes;
                let device = window.of(device).ok()?;
                range.end = range.start + device.geometry().len_bytes;
                device
            }
            None => device,
        };
        if let Some(number) = self.partition {
            let table = crate::list_partitions(&window).ok()?;
            let found = table.partitions.into_iter().find(|info| info.number == number)?;
            range.start = range.start.checked_add(found.start_bytes)?;
            range.end = range.start.checked_add(found.len_bytes)?;
        }
        Some(range)
    }

    /// Puts the filters of the description on top of a device that was opened in `mode`.
    ///
    /// # Errors
    /// [`Error::Open`] for a log that cannot be made, or that is a file with content already:
    /// nothing is overwritten, the device's own file least of all.
    pub fn add_filters(
        &self,
        device: Arc<dyn BlockDevice>,
        mode: OpenMode,
    ) -> Result<Arc<dyn BlockDevice>> {
        let mut device = device;
        for filter in self.filters.iter().rev() {
            device = match filter {
                SourceFilter::Delay(time) => {
                    let slow = FaultDevice::new(device);
                    slow.add(Rule::every(Request::Any, Fault::Delay(*time)));
                    Arc::new(slow)
                }
                SourceFilter::Record(_) if mode.read_only => device,
                SourceFilter::Record(log) => Arc::new(Recorder::to_log(device, create_log(log)?)?),
            };
        }
        Ok(device)
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::Invalid(format!("no absolute path for {shown}: {e}")))?;
    match absolute.to_str() {
        Some(_) => Ok(absolute),
        None => Err(Error::Invalid(format!("'{shown}' is not UTF-8 when written in full"))),
    }
}

/// Creates the file of a log. One that exists and is empty is taken.
fn create_log(path: &Path) -> Result<File> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.len() > 0 {
        let why = "a log is recorded into a new file, and this one is there already";
        return Err(failed(std::io::Error::new(std::io::ErrorKind::AlreadyExists, why)));
    }
    Ok(file)
}

impl SourceDevice {
    /// Opens the whole device.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`]; [`Error::Description`] for a URI.
    pub fn open(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        Ok(match self {
            Self::File(path) => Arc::new(FileDevice::open(path, mode)?),
            Self::Memory(len) if mode.read_only => Arc::new(ReadOnly::new(MemoryDevice::new(*len))),
            Self::Memory(len) => Arc::new(MemoryDevice::new(*len)),
            Self::Uri(uri) => {
                return Err(Error::Description {
                    text: uri.clone(),
                    part: scheme_of(uri).unwrap_or_default().to_owned(),
                    problem: "no device is opened by this scheme here".into(),
                });
            }
        })
    }
}

/// Opens what a description names.
///
/// # Errors
/// [`Error::Description`] if it cannot be parsed, and those of [`Source::open`].
pub fn open_source(description: &str, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    description.parse::<Source>()?.open(mode)
}

/// Reads a size in bytes: a whole number and an optional unit `K`, `M`, `G`, `T`, `P` (powers of
/// 1024; `KiB` and `KB` mean the same, in any case) or `B`.
///
/// # Errors
/// [`Error::Invalid`] if it is none or does not fit 64 bits.
///
/// ```
/// assert_eq!(weft_block::parse_size("2G")?, 2 << 30);
/// assert_eq!(weft_block::parse_size("64 MiB")?, 64 << 20);
/// assert!(weft_block::parse_size("-1").is_err());
/// # Ok::<(), weft_block::Error>(())
/// ```
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || Error::Invalid(format!("{text:?} is no size (try 512, 64M or 2G)"));
    parse_size::Config::new().with_binary().parse_size(text).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_understood_or_refused() {
        let parse = |text: &str| text.parse::<Source>();
        let file = |p: &str, partition| Source {
            filters: Vec::new(),
            device: SourceDevice::File(p.into()),
            window: None,
            partition,
        };
        assert_eq!(parse("a/b.img").unwrap(), file("a/b.img", None));
        assert_eq!(parse("b.img?partition=3").unwrap(), file("b.img", Some(3)));
        assert_eq!(parse("mem:64M").unwrap().device, SourceDevice::Memory(64 << 20));
        for file_name in ["a:b", "a=b", "A=1:b", "/x=1:b", "./delay=1ms:b", "=1:b", "a://b c"] {
            let parsed = parse(file_name).unwrap();
            let expected = if file_name == "a://b c" {
                SourceDevice::Uri(file_name.into())
            } else {
                SourceDevice::File(file_name.into())
            };
            assert_eq!(parsed.device, expected);
        }
        let bad = [
            "",
            "mem:",
            "mem:x",
            "a?partition=0",
            "a?partition=x",
            "a?offset=x",
            "a?offset=100",
            "a?sizelimit=0",
            "a?offset=512&partition=0",
            "a?size=1",
            "a?",
            "?partition=1",
            "nbd://h/x?partition=0",
            "delay=1ms",
            "delay=1ms:",
            "delay=:a",
            "delay=x:a",
            "delay=1:a",
            "delay=2min:a",
            "record=:a",
            "record=a",
            "dealy=1ms:a",
            "delay=1ms:?partition=2",
        ];
        for bad in bad {
            assert!(matches!(parse(bad), Err(Error::Description { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_description_is_written_as_it_is_read() {
        let same = [
            "a.img",
            "mem:1024?partition=1",
            "a.img?offset=0",
            "a.img?offset=1048576&sizelimit=512",
            "delay=1ms:mem:4096?offset=512&partition=1",
            "nbd+unix:///e?socket=/s&offset=512&sizelimit=1024&partition=2",
            "delay=5ms:a.img",
            "delay=1s500ms:mem:512",
            "delay=1ms:record=/x/a.log:/x/a.img?partition=2",
            "record=a.log:delay=2us:a.img",
            "nbd://host/export?partition=3",
            "nbd+unix:///e?socket=/s&partition=1",
            "delay=1ms:nbd+unix:///e?socket=/a%3Fb",
        ];
        for text in same {
            let source: Source = text.parse().unwrap();
            assert_eq!(source.to_string(), text);
            assert_eq!(filters_len_bytes(text) > 0, !source.filters.is_empty(), "{text}");
        }
        let source: Source = "record=a.log:nbd://h/e?partition=2&connections=4".parse().unwrap();
        assert_eq!(source.device, SourceDevice::Uri("nbd://h/e?connections=4".into()));
        assert_eq!((source.partition, source.filters.len()), (Some(2), 1));
    }

    #[test]
    fn a_part_of_a_device_is_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let bytes: Vec<u8> = (0..8192_u32).map(|i| (i / 512) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        let open = |options: &str| {
            open_source(&format!("{}?{options}", path.display()), OpenMode::READ_WRITE)
        };
        let first = |device: &dyn BlockDevice| {
            let mut sector = [0; 512];
            device.read_at(&mut sector, 0).unwrap();
            (sector[0], device.geometry().len_bytes)
        };
        assert_eq!(first(&*open("offset=1K").unwrap()), (2, 7168));
        let device = open("sizelimit=512&offset=4K").unwrap();
        assert_eq!(first(&*device), (8, 512));
        assert!(device.write_at(&[1; 2], 511).is_err(), "past the limit");
        device.write_at(&[77], 511).unwrap();
        drop(device);
        assert_eq!(std::fs::read(&path).unwrap()[4096 + 511], 77);
        for (options, why) in [("offset=8K", "only 8192 bytes"), ("offset=4K&sizelimit=8K", "4096")]
        {
            let error = open(options).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_recorded_source_writes_a_log_that_is_replayed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("a.img"), [7; 8192]).unwrap();
        let text = format!("delay=1us:record={}:{}", path("a.log"), path("a.img"));
        drop(open_source(&text, OpenMode::READ_ONLY).unwrap());
        assert!(!Path::new(&path("a.log")).exists(), "reading records nothing");
        let device = open_source(&text, OpenMode::READ_WRITE).unwrap();
        device.write_at(&[1; 512], 1024).unwrap();
        device.flush().unwrap();
        let events = || {
            let log = File::open(path("a.log")).unwrap();
            crate::LogReader::new(log).unwrap().read_all().unwrap()
        };
        assert_eq!(events().len(), 2, "a log is complete at each flush");
        device.write_at(&[2; 512], 0).unwrap();
        drop(device);
        assert_eq!(events().len(), 3, "and when the device is closed");
        let copy = MemoryDevice::new(8192);
        copy.write_at(&[7; 8192], 0).unwrap();
        crate::replay(&events(), &copy).unwrap();
        let mut bytes = [0; 8192];
        copy.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..], std::fs::read(path("a.img")).unwrap()[..]);
    }

    #[test]
    fn a_log_overwrites_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        std::fs::write(&image, [7; 1024]).unwrap();
        let text = format!("record={0}:{0}", image.display());
        let error = open_source(&text, OpenMode::READ_WRITE).err().unwrap();
        assert!(matches!(error, Error::Open { .. }), "{error}");
        assert_eq!(std::fs::read(&image).unwrap(), [7; 1024]);
    }

    #[test]
    fn sizes_overflow_into_errors() {
        assert_eq!(parse_size("16383P").unwrap(), 16383 << 50);
        assert_eq!(parse_size("1.5G").unwrap(), 3 << 29);
        for bad in ["16384P", "99999999999999999999", "1.5.5G", "-1G", "G", "1X", "0x10", ""] {
            assert!(parse_size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_with_a_question_mark_in_its_name_can_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd?partition=2");
        std::fs::write(&path, [0; 1024]).unwrap();
        let device = open_source(path.to_str().unwrap(), OpenMode::READ_ONLY).unwrap();
        assert_eq!(device.geometry().len_bytes, 1024);
        let none = open_source("/nonexistent.img", OpenMode::READ_ONLY).err().unwrap();
        assert!(none.to_string().contains("cannot open /nonexistent.img"), "{none}");
    }
}
