//! Volumes opened in this process, to read the engine's counters without a kernel in between.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;
use weft::ext2::mkfs::MkfsOptions;
use weft::patch::Counters;
use weft::transfer::{Ownership, ReadAhead, TarSource, VolumeSink};
use weft::vfs::{Node, Walker};
use weft::{Options, Order, Stack};

/// An image file that is removed on drop.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
}

impl Image {
    /// Makes an empty volume.
    pub fn make(work: &Path, name: &str, len_bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let path = work.join(name);
        let _ = std::fs::remove_file(&path);
        let image = Self { path };
        weft::mkfs::make(image.name()?, Some(len_bytes), true, options)?;
        Ok(image)
    }

    pub fn name(&self) -> Result<&str> {
        self.path.to_str().context("the working directory's name is not UTF-8")
    }

    pub fn open(&self, order: Order, engine: weft::patch::Options) -> Result<Stack> {
        let options = Options { order: Some(order), engine, ..Options::default() };
        Ok(Stack::open(self.name()?, &options)?)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The cost of one phase of work.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub counters: Counters,
    /// CPU seconds of this process, user and system.
    pub cpu_seconds: f64,
    pub seconds: f64,
}

/// Runs `work`, syncs, and returns the cost of both.
pub fn measure(stack: &Stack, work: impl FnOnce(&Stack) -> Result<()>) -> Result<Cost> {
    let before = stack.counters();
    let cpu = crate::machine::cpu_seconds("self");
    let began = Instant::now();
    work(stack)?;
    stack.fs().sync()?;
    Ok(Cost {
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: crate::machine::cpu_seconds("self") - cpu,
        counters: since(&stack.counters(), &before),
    })
}

/// Returns the counts between two readings.
pub fn since(now: &Counters, before: &Counters) -> Counters {
    let mut c = *now;
    for (field, old) in [
        (&mut c.patches, before.patches),
        (&mut c.merged, before.merged),
        (&mut c.hard, before.hard),
        (&mut c.cancelled, before.cancelled),
        (&mut c.undo_bytes, before.undo_bytes),
        (&mut c.blocks_written, before.blocks_written),
        (&mut c.log_blocks_written, before.log_blocks_written),
        (&mut c.requests, before.requests),
        (&mut c.flushes, before.flushes),
        (&mut c.rollbacks, before.rollbacks),
        (&mut c.transactions, before.transactions),
        (&mut c.blocks_read, before.blocks_read),
        (&mut c.reads_under_lock, before.reads_under_lock),
        (&mut c.syncs, before.syncs),
        (&mut c.operations, before.operations),
    ] {
        *field = field.saturating_sub(old);
    }
    for (size, old) in c.requests_by_size.iter_mut().zip(before.requests_by_size) {
        *size = size.saturating_sub(old);
    }
    c
}

/// Unpacks a tar file into the root, as `weft import` does.
pub fn untar(stack: &Stack, tar: &Path) -> Result<()> {
    let stream = ReadAhead::new(std::fs::File::open(tar)?)?;
    let root = Node::root(stack.fs())?;
    let mut sink = VolumeSink::new(stack.fs(), root, None, b"/", Ownership::Keep);
    TarSource::new(stream).send(&mut sink)?;
    Ok(())
}

/// Removes a tree, as `rm -r` does.
pub fn remove(stack: &Stack, path: &[u8]) -> Result<()> {
    Walker::new(stack.fs()).remove_tree(path, &mut |_| {})?;
    Ok(())
}
