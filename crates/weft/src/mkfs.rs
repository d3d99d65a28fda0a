//! Makes a volume in an image file, on a block device or in a partition.

use crate::{Error, Result};
use weft_ext2::mkfs::{MkfsOptions, Report, mkfs};

mod apple;
mod mac;
mod named;
mod target;

pub use apple::Drivers;
pub use mac::{MacFormat, MacMade, MacOptions, Wrapping, make_mac};
pub use named::make_named;
pub(crate) use target::{Access, in_source};

/// Makes a volume in `image`, of `len_bytes` or of the whole device. An image file that does not
/// exist is created, one that is too short grows. Recognised content is overwritten only with
/// `force`.
///
/// # Errors
/// [`Error::Usage`] for a missing size and for options that contradict each other,
/// [`Error::Invalid`] for existing content; those of the device.
pub fn make(
    image: &str,
    len_bytes: Option<u64>,
    force: bool,
    options: &MkfsOptions,
) -> Result<Report> {
    let options = MkfsOptions { len_bytes, ..options.clone() };
    in_source(image, len_bytes, force, Access::Umask, &|device| {
        mkfs(device, &options).map_err(|e| match e {
            weft_ext2::Error::Invalid(why) => Error::Usage(format!("{image}: {why}")),
            e => Error::Volume { image: image.to_owned(), message: e.to_string() },
        })
    })
}
