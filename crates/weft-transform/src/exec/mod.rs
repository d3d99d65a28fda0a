//! Running networks over data.
//!
//! - [`Fused`] runs stages that work in place over cache-sized blocks: all stages on one block,
//!   then the next block, so that a further stage costs its arithmetic and no memory traffic.
//! - [`Chain`] runs any network over a stream, block by block.
//! - [`run`] copies a reader to a writer through a network, with independent blocks in parallel.

mod chain;
mod frames;
mod fused;
mod pool;
mod run;

pub use chain::Chain;
pub(crate) use frames::FrameEncoder;
pub use fused::Fused;
pub use pool::Pool;
pub use run::{RunOptions, run};

/// Bytes of a block: small enough that it stays in the second-level cache while all stages pass
/// over it, large enough that the cost of the calls is negligible.
pub const BLOCK_BYTES: usize = 128 << 10;
