//! The limits of the machine, as the scale for the other measurements.

use crate::peer::{Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::Result;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;
use weft::Order;
use weft::patch::Policy;

const MEMORY_BYTES: usize = 64 << 20;
const DISK_BYTES: usize = 256 << 20;
const CALLS: u32 = 20_000;

/// Measures memory, disk and FUSE round trip.
pub fn limits(bench: &Bench) -> Result<()> {
    let mut section = Section::new("limits", "What the machine can do");
    let mut rows = Vec::new();

    let from = vec![1_u8; MEMORY_BYTES];
    let mut to = vec![0_u8; MEMORY_BYTES];
    let mut times = Times::default();
    for _ in 0..=bench.pairs {
        let began = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        times.push(began.elapsed().as_secs_f64());
    }
    rows.push(rate("memory copied", MEMORY_BYTES, &times));

    let mut times = Times::default();
    let path = bench.work.join("raw");
    for _ in 0..=bench.pairs {
        let _ = std::fs::remove_file(&path);
        let file = File::create(&path)?;
        let began = Instant::now();
        for at in (0..DISK_BYTES).step_by(1 << 20) {
            file.write_all_at(&from[..1 << 20], at as u64)?;
        }
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64());
    }
    std::fs::remove_file(&path)?;
    rows.push(rate("a new file written in pieces of 1 MiB and synced", DISK_BYTES, &times));

    for cpu in [Some(0), None] {
        let setting = Setting::new(bench, cpu);
        let peer = Peer::Weft(Order(Policy::Soft));
        if let Some(why) = peer.missing(&setting) {
            section.line(&format!("Skipped: the FUSE round trip: {why}."));
            continue;
        }
        let volume = peer.make(&setting)?;
        let mounted = volume.mount()?;
        let mut times = Times::default();
        for _ in 0..=bench.pairs {
            let began = Instant::now();
            // The client has to be pinned as well, so this program runs itself again.
            crate::tree::run(
                setting
                    .command(std::env::current_exe()?)
                    .arg("round-trips")
                    .arg(mounted.dir())
                    .arg(format!("--calls={CALLS}")),
            )?;
            times.push(began.elapsed().as_secs_f64());
        }
        mounted.finish()?;
        let micros = times.median() * 1e6 / f64::from(CALLS);
        let how = if cpu.is_some() { "on one CPU" } else { "scheduler left free" };
        rows.push(vec![format!("a FUSE round trip (statfs), {how}"), format!("{micros:.1} µs")]);
    }
    section.table(&["", ""], &rows);
    section.signed(&machine::describe(), "weft-bench limits").save(&bench.report)
}

fn rate(what: &str, bytes: usize, times: &Times) -> Vec<String> {
    vec![what.to_owned(), format!("{:.1} GB/s", bytes as f64 / 1e9 / times.median().max(1e-9))]
}

/// Calls statfs, which the kernel does not cache.
pub fn round_trips(dir: &std::path::Path, calls: u32) -> Result<()> {
    for _ in 0..calls {
        rustix::fs::statfs(dir)?;
    }
    Ok(())
}
