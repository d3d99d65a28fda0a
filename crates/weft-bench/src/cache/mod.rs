//! The block cache: the experiment of the paper behind it run again beside peers, what its metadata
//! costs, and how it opens when it is large.

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
