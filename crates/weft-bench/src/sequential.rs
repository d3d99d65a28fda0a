//! One large file, written and read through a mount, beside the kernel.

use crate::peer::{Peer, Setting};
use crate::report::Section;
use crate::stats::Times;
use crate::{Bench, machine};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;
use weft::Order;
use weft::patch::{JournalMode, Policy};

const RUN_BYTES: usize = 1 << 20;

/// Measures writing and reading of the file.
pub fn sequential(bench: &Bench) -> Result<()> {
    let len: u64 = if bench.quick { 128 << 20 } else { 1 << 30 };
    let setting = Setting::new(bench, None);
    let mut section = Section::new("sequential", "One large file through a mount");
    section.line(&format!(
        "A file of {} MiB written in pieces of 1 MiB until it is durable, then read after a remount \
         (the image is in the host's page cache, the mount's cache is cold). Seconds, {} pairs \
         after a warm-up.",
        len >> 20,
        bench.pairs
    ));
    let mut rows: Vec<(Peer, Times, Times)> = Vec::new();
    for peer in [
        Peer::Weft(Order(Policy::Soft)),
        Peer::Weft(Order(Policy::Journal(JournalMode::Ordered))),
        Peer::KernelExt2,
        Peer::KernelExt3,
        Peer::Fuse2fs,
    ] {
        match peer.missing(&setting) {
            Some(why) => section.line(&format!("Skipped: {peer}: {why}.")),
            None => rows.push((peer, Times::default(), Times::default())),
        }
    }
    for round in 0..=bench.pairs {
        for (peer, writes, reads) in &mut rows {
            eprintln!("large file: round {round} of {}, {peer}", bench.pairs);
            let volume = peer.make(&setting)?;
            let mounted = volume.mount()?;
            let began = Instant::now();
            write(&mounted.dir().join("large"), len).with_context(|| format!("on {peer}"))?;
            mounted.finish()?;
            let wrote = began.elapsed().as_secs_f64();
            let mounted = volume.mount()?;
            let began = Instant::now();
            read(&mounted.dir().join("large"), len).with_context(|| format!("on {peer}"))?;
            let took = began.elapsed().as_secs_f64();
            mounted.finish()?;
            if round > 0 {
                writes.push(wrote);
                reads.push(took);
            }
        }
    }
    let kernel = rows.iter().find(|r| r.0 == Peer::KernelExt2).map(|r| (r.1.clone(), r.2.clone()));
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|(peer, writes, reads)| {
            let rate = |t: &Times| format!("{:.0} MB/s", len as f64 / 1e6 / t.median().max(1e-9));
            let ratio = |t: &Times, of: Option<&Times>| {
                of.and_then(|of| t.ratio_to(of)).map_or("-".into(), |r| format!("{r:.2}"))
            };
            vec![
                peer.to_string(),
                writes.show(),
                rate(writes),
                ratio(writes, kernel.as_ref().map(|k| &k.0)),
                reads.show(),
                rate(reads),
                ratio(reads, kernel.as_ref().map(|k| &k.1)),
            ]
        })
        .collect();
    section.table(
        &["", "write", "", "times the kernel's ext2", "read", "", "times the kernel's ext2"],
        &table,
    );
    section.signed(&machine::describe(), "weft-bench sequential").save(&bench.report)
}

fn write(path: &Path, len: u64) -> Result<()> {
    let buffer: Vec<u8> = (0..RUN_BYTES).map(|i| (i * 7 % 251) as u8).collect();
    let mut file = File::create(path)?;
    for _ in 0..len / RUN_BYTES as u64 {
        file.write_all(&buffer)?;
    }
    file.sync_all()?;
    Ok(())
}

fn read(path: &Path, len: u64) -> Result<()> {
    let mut buffer = vec![0; RUN_BYTES];
    let mut file = File::open(path)?;
    let mut got = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => got += n as u64,
        }
    }
    ensure!(got == len, "{got} bytes came back of {len}");
    Ok(())
}
