//! Attaches networks to open files on a mount, by `ioctl(2)`, which is `unsafe` as the kernel
//! writes as much memory as the number of the command says.

use crate::{Error, Result};
use rustix::ioctl::{Updater, ioctl};
use std::fs::File;
use weft_transform::{COMMAND_BYTES, POP_COMMAND, PUSH_COMMAND, SHOW_COMMAND};

/// Attaches one more network to `file`, which is on a mount with networks, for all its readers as
/// long as this descriptor is open. Returns the whole network of the file then.
///
/// # Errors
/// [`Error::Invalid`] with the reason from the mount.
pub fn push(file: &File, network: &str) -> Result<String> {
    command::<PUSH_COMMAND>(file, network)
}

/// Detaches the network that this descriptor attached last. Returns the remaining network of the
/// file.
///
/// # Errors
/// As [`push`].
pub fn pop(file: &File) -> Result<String> {
    command::<POP_COMMAND>(file, "")
}

/// Returns the network of the file, including those attached.
///
/// # Errors
/// As [`push`].
pub fn shown(file: &File) -> Result<String> {
    command::<SHOW_COMMAND>(file, "")
}

fn command<const NUMBER: u32>(file: &File, text: &str) -> Result<String> {
    let mut data = [0; COMMAND_BYTES];
    // The last byte stays zero.
    if text.len() >= COMMAND_BYTES {
        return Err(Error::Invalid(format!("a network of {COMMAND_BYTES} bytes or more")));
    }
    data[..text.len()].copy_from_slice(text.as_bytes());
    // SAFETY: the number of the command encodes this length, for any file.
    let done = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut data)) };
    let said = data.split(|&b| b == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said).into_owned();
    match done {
        Ok(()) => Ok(said),
        Err(rustix::io::Errno::NOTTY) => {
            Err(Error::Invalid("not a file of a mount with networks".to_owned()))
        }
        // On an error the kernel returns the reason in place of the request.
        Err(_) if said != text && !said.is_empty() => Err(Error::Invalid(said)),
        Err(e) => Err(Error::Invalid(std::io::Error::from(e).to_string())),
    }
}
