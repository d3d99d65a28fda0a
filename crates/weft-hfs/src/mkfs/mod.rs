//! Making an empty volume.
//!
//! The size of an allocation block is the smallest multiple of 512 by which the *whole* volume has
//! at most 65,535 of them, at every size: Apple's checker computes it so, and popular formatters do
//! not (1 GiB needs 16,896 bytes, not 16,384).

mod build;
mod options;
mod plan;

pub use options::MkfsOptions;
pub use plan::{MAX_BLOCKS, MIN_BLOCKS, Plan};

use crate::Result;
use crate::store::Device;

/// Makes an empty volume on a whole device. The old content is lost.
///
/// # Errors
/// [`Error::Invalid`](crate::Error::Invalid) for sizes that no volume can have; device errors.
pub fn format<D: Device>(device: &mut D, options: &MkfsOptions) -> Result<Plan> {
    let plan = Plan::new(device.len_blocks(), options)?;
    build::build(device, &plan, options)?;
    Ok(plan)
}

/// Makes an empty volume on a whole device. The old content is lost.
///
/// # Errors
/// As [`format()`].
#[cfg(feature = "std")]
pub fn mkfs(device: &dyn weft_block::BlockDevice, options: &MkfsOptions) -> Result<Plan> {
    format(&mut crate::store::Raw(device), options)
}
