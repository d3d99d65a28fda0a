//! The description of a source: the text that names a device on the command line.
//!
//! | description | device |
//! |---|---|
//! | `disk.img`, `/dev/sdb1` | an image file or a block special file |
//! | `disk.img?partition=2` | partition 2 of it |
//! | `mem:64M` | a fresh device in memory |

use crate::{BlockDevice, Error, FileDevice, MemoryDevice, OpenMode, Partition, ReadOnly, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A parsed description of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The whole device.
    pub device: SourceDevice,
    /// The number of the partition on it, if not all of it.
    pub partition: Option<u32>,
}

/// A whole device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceDevice {
    /// An image file or a block special file.
    File(PathBuf),
    /// A fresh device in memory of so many bytes.
    Memory(u64),
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let whole = |path: &str| Self { device: SourceDevice::File(path.into()), partition: None };
        if text.is_empty() {
            return Err(Error::Description("a volume's path is missing".into()));
        }
        // What exists under that very name is meant, question mark and all.
        if text.contains('?') && std::path::Path::new(text).exists() {
            return Ok(whole(text));
        }
        let (name, options) = match text.rsplit_once('?') {
            Some((name, options)) => (name, Some(options)),
            None => (text, None),
        };
        let mut source = match name.strip_prefix("mem:") {
            Some(size) => Self {
                device: SourceDevice::Memory(
                    parse_size(size).map_err(|e| Error::Description(e.to_string()))?,
                ),
                partition: None,
            },
            None => whole(name),
        };
        for option in options.into_iter().flat_map(|o| o.split('&')) {
            let number = option.strip_prefix("partition=").map(str::parse::<u32>);
            match number {
                Some(Ok(number)) if number > 0 => source.partition = Some(number),
                _ => {
                    return Err(Error::Description(format!(
                        "{option:?} in {text:?} is not understood (it can be partition=NUMBER)"
                    )));
                }
            }
        }
        Ok(source)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            SourceDevice::File(path) => write!(f, "{}", path.display())?,
            SourceDevice::Memory(len_bytes) => write!(f, "mem:{len_bytes}")?,
        }
        match self.partition {
            Some(number) => write!(f, "?partition={number}"),
            None => Ok(()),
        }
    }
}

impl Source {
    /// Opens it.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`] and [`Partition::open`].
    pub fn open(&self, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
        let device: Arc<dyn BlockDevice> = match &self.device {
            SourceDevice::File(path) => Arc::new(FileDevice::open(path, mode)?),
            SourceDevice::Memory(len) if mode.read_only => {
                Arc::new(ReadOnly::new(MemoryDevice::new(*len)))
            }
            SourceDevice::Memory(len) => Arc::new(MemoryDevice::new(*len)),
        };
        Ok(match self.partition {
            Some(number) => Arc::new(Partition::open(device, number)?),
            None => device,
        })
    }
}

/// Opens what a description names.
///
/// # Errors
/// [`Error::Invalid`] if it is not understood, and those of opening it.
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
        let file = |p: &str, partition| Source { device: SourceDevice::File(p.into()), partition };
        assert_eq!(parse("a/b.img").unwrap(), file("a/b.img", None));
        assert_eq!(parse("b.img?partition=3").unwrap(), file("b.img", Some(3)));
        assert_eq!(parse("mem:64M").unwrap().device, SourceDevice::Memory(64 << 20));
        assert_eq!(parse("mem:1k?partition=1").unwrap().to_string(), "mem:1024?partition=1");
        for bad in ["", "mem:", "mem:x", "a?partition=0", "a?partition=x", "a?size=1", "a?"] {
            assert!(matches!(parse(bad), Err(Error::Description(_))), "{bad:?}");
        }
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
