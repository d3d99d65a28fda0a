//! The block cache: the experiment of the paper behind it repeated beside peers, the cost of its
//! metadata, and the opening of a large cache.

mod batching;
mod dm_cache;
mod experiment;
mod hits;
mod opening;
mod server;

pub use batching::batching;
pub use dm_cache::dm_cache;
pub use experiment::experiment;
pub use hits::hits;
pub use opening::{Opening, opening};
pub use server::Server;
