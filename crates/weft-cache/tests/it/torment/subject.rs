//! What is tormented: the cache, and behind the same few calls, in the harness's own tests,
//! something that is wrong on purpose.

use super::script::Config;
use super::world::{Disk, World};
use std::sync::Arc;
use weft_block::BlockDevice;
use weft_cache::Mode;

/// Origins behind a cache. Errors are texts: nothing here may fail.
pub trait Subject: Sized {
    /// New disks, the first of them formatted as a cache.
    fn format(config: &Config) -> Result<Vec<Disk>, String>;

    /// Opens the cache and attaches every origin.
    fn open(config: &Config, world: &Arc<World>) -> Result<Self, String>;

    /// Looks for damage on disks that nobody uses, without changing them.
    fn inspect(config: &Config, disks: &[Disk]) -> Result<(), String>;

    /// An origin as its users see it.
    fn device(&self, origin: usize) -> &dyn BlockDevice;

    /// Looks at what must always be so in memory.
    fn invariants(&self) {}

    fn set_mode(&mut self, origin: usize, mode: Mode) -> Result<(), String>;
    fn tick(&mut self, ms: u64) -> Result<(), String>;
    fn checkpoint(&mut self) -> Result<(), String>;
    fn write_back(&mut self, origin: usize) -> Result<(), String>;
    fn resize(&mut self, percent: u64) -> Result<(), String>;
    fn reattach(&mut self, origin: usize) -> Result<(), String>;
    fn detach_all(&mut self) -> Result<(), String>;
    fn close(self) -> Result<(), String>;
}
