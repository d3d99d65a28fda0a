//! Networks pushed on files that are open on a mount: a matter of `ioctl(2)`, which is `unsafe` as
//! the kernel writes to memory by a number's word alone.

use crate::{Error, Result};
use rustix::ioctl::{Updater, ioctl};
use std::fs::File;
use weft_transform::{COMMAND_BYTES, POP_COMMAND, PUSH_COMMAND, SHOW_COMMAND};

/// Lets all who read `file`, which is on a mount with networks, see it through one more network as
/// long as this descriptor is open. Returns all that it is seen through then.
///
/// # Errors
/// [`Error::Invalid`] with the reason that the mount gives.
pub fn push(file: &File, network: &str) -> Result<String> {
    command::<PUSH_COMMAND>(file, network)
}

/// Takes off what this descriptor pushed last. Returns what the file is seen through then.
///
/// # Errors
/// As [`push`].
pub fn pop(file: &File) -> Result<String> {
    command::<POP_COMMAND>(file, "")
}

/// The network that the file is seen through, what is pushed included.
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
    // SAFETY: the number says that so many bytes are read and written, whatever file it is.
    let done = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut data)) };
    let said = data.split(|&b| b == 0).next().unwrap_or_default();
    let said = String::from_utf8_lossy(said).into_owned();
    match done {
        Ok(()) => Ok(said),
        Err(rustix::io::Errno::NOTTY) => {
            Err(Error::Invalid("not a file of a mount with networks".to_owned()))
        }
        // The answer has the reason in the place of what was asked.
        Err(_) if said != text && !said.is_empty() => Err(Error::Invalid(said)),
        Err(e) => Err(Error::Invalid(std::io::Error::from(e).to_string())),
    }
}
