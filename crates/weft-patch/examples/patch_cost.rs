//! What a patch costs: nanoseconds and patches of the changes an untar makes.
//!
//! `cargo run --release -p weft-patch --example patch_cost`

use std::sync::Arc;
use std::time::Instant;
use weft_block::MemoryDevice;
use weft_patch::{BlockNr, Engine, Options, Owner};

fn main() -> Result<(), weft_patch::Error> {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    let options = Options {
        background: false,
        memory_budget_bytes: 4 << 30,
        background_bytes: 1 << 30,
        ..Options::default()
    };
    let engine = Engine::new(device, 4096, options)?;
    for round in ["fresh memory", "used memory"] {
        println!("{round}:");
        untar(&engine)?;
    }
    Ok(())
}

fn untar(engine: &Engine) -> Result<(), weft_patch::Error> {
    const FILES: u64 = 26_000;
    let before = engine.counters();
    let start = Instant::now();
    let mut changes = 0_u64;
    for i in 0..FILES {
        let mut op = engine.begin(8)?;
        let (inode, at) = (BlockNr(100 + i / 16), (i % 16) as usize * 256);
        let bit =
            op.flip(BlockNr(1 + i / 32768), (i % 32768 / 32) as usize * 4, 1 << (i % 32), &[])?;
        op.write(BlockNr(50), 16, &[3; 8], &[])?;
        let made = op.write(inode, at, &[1; 256], &[bit])?;
        let dir = BlockNr(2000 + i / 100);
        op.write(dir, (i % 100) as usize * 40, &[2; 40], &[])?;
        op.write(dir, (i % 100) as usize * 40, &[2; 4], &[made])?;
        changes += 5;
        for b in 0..3_u64 {
            let nr = i * 3 + b;
            let bit = op.flip(
                BlockNr(10 + nr / 32768),
                (nr % 32768 / 32) as usize * 4,
                1 << (nr % 32),
                &[],
            )?;
            op.write(BlockNr(50), 12, &[3; 4], &[])?;
            let data =
                op.write_data(BlockNr(10_000 + nr), Owner(i + 1), 0, &[7; 4096], true, &[])?;
            op.write(inode, at + 4, &[9; 60], &[bit, data])?;
            changes += 4;
        }
    }
    let made = start.elapsed();
    let c = engine.counters();
    println!(
        "{changes} changes in {:.1} ms: {:.0} ns each; {} patches, {} merged, {} undo bytes",
        made.as_secs_f64() * 1e3,
        made.as_secs_f64() * 1e9 / changes as f64,
        c.patches - before.patches,
        c.merged - before.merged,
        c.undo_bytes
    );
    let start = Instant::now();
    engine.sync()?;
    let c = engine.counters();
    println!(
        "sync in {:.1} ms: {} blocks, {} requests, {} flushes, {} rollbacks",
        start.elapsed().as_secs_f64() * 1e3,
        c.blocks_written,
        c.requests,
        c.flushes,
        c.rollbacks
    );
    Ok(())
}
