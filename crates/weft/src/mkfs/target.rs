//! The image file or device that a volume is made on.

use crate::format::{Format, recognise};
use crate::source::Source;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use weft_block::{BlockDevice, FileDevice, OpenMode};

/// The users who may read and write a file that is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Those that the umask allows, as with any other file.
    Umask,
    /// Only its owner.
    Owner,
}

/// Calls `run` with the device that `image` names, which is created or grown first if need be.
pub(crate) fn in_source<T>(
    image: &str,
    len_bytes: Option<u64>,
    force: bool,
    access: Access,
    run: &dyn Fn(&dyn BlockDevice) -> Result<T>,
) -> Result<T> {
    let source: Source = image.parse()?;
    if let Some(path) = source.whole_file() {
        let run =
            |device: FileDevice| run(&*source.add_filters(Arc::new(device), OpenMode::READ_WRITE)?);
        return in_file(image, path, len_bytes, force, access, &run);
    }
    let device = source.open(OpenMode::READ_WRITE)?;
    if !force {
        refuse_content(image, &*device)?;
    }
    run(&*device)
}

fn in_file<T>(
    image: &str,
    path: &Path,
    len_bytes: Option<u64>,
    force: bool,
    access: Access,
    run: &dyn Fn(FileDevice) -> Result<T>,
) -> Result<T> {
    if !path.exists() {
        let Some(len) = len_bytes else {
            let message = format!("{image} does not exist: give the size it shall have");
            return Err(Error::Missing { message, option: "such as --size 1G" });
        };
        let device = match access {
            Access::Umask => FileDevice::create(path, len)?,
            Access::Owner => FileDevice::create_private(path, len)?,
        };
        let made = run(device);
        if made.is_err() {
            // The file is new; remove it again.
            let _ = std::fs::remove_file(path);
        }
        return made;
    }
    let device = FileDevice::open(path, OpenMode::READ_WRITE)?;
    if !force {
        refuse_content(image, &device)?;
    }
    if let Some(len) = len_bytes
        && len > device.geometry().len_bytes
        && !device.is_block_special()
    {
        device.grow(len)?;
    }
    run(device)
}

fn refuse_content(image: &str, device: &dyn BlockDevice) -> Result<()> {
    let there = match recognise(device)? {
        Format::Nothing => return Ok(()),
        other => other.words(),
    };
    let message = format!("{image} is in use already: it looks like {there}");
    Err(Error::Unasked { message, option: "--force overwrites it" })
}
