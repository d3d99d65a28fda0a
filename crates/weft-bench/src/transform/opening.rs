//! The cost of a network without reads, and of one that does nothing.

use super::mounts::Mounted;
use super::{check, consume, zeroes};
use crate::Bench;
use crate::report::Section;
use crate::stats::Times;
use anyhow::Result;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Opens and closes a file `times` times; returns the mean seconds.
fn open(path: &Path, times: u32) -> Result<f64> {
    let began = Instant::now();
    for _ in 0..times {
        drop(File::open(path)?);
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(times))
}

fn read(path: &Path, bytes: u64) -> Result<f64> {
    let began = Instant::now();
    let (len, first) = consume(&mut File::open(path)?, 1 << 20)?;
    check(len, first, bytes, 0)?;
    Ok(began.elapsed().as_secs_f64())
}

pub fn opening(bench: &Bench, section: &mut Section, data: &Path) -> Result<()> {
    latency(bench, section, data)?;
    identity(bench, section, data)
}

fn latency(bench: &Bench, section: &mut Section, data: &Path) -> Result<()> {
    zeroes(&data.join("small"), 4096)?;
    let mounted = Mounted::with_networks(bench, data)?;
    let files = [
        ("none", mounted.file("small")),
        ("1", mounted.view("small", 1)),
        ("5", mounted.view("small", 5)),
        ("25", mounted.view("small", 25)),
    ];
    let mut times = vec![Times::default(); files.len()];
    let mut first = Vec::new();
    for (_, path) in &files {
        first.push(open(path, 1)?);
    }
    for _ in 0..4 * bench.pairs {
        for ((_, path), times) in files.iter().zip(&mut times) {
            times.push(open(path, 250)?);
        }
    }
    let row = |(((stages, _), times), first): (((&str, _), &Times), &f64)| {
        let us = |seconds: f64| format!("{:.1}", seconds * 1e6);
        vec![stages.to_owned(), us(times.median()), us(*first)]
    };
    let rows: Vec<Vec<String>> = files
        .iter()
        .map(|(stages, path)| (*stages, path))
        .zip(&times)
        .zip(&first)
        .map(row)
        .collect();
    section.line(
        "Opening and closing a file on a mount, by the number of its stages, in microseconds; the \
         first time it is looked up, and its network parsed and checked. (The paper: 38.8 us with \
         one stage and 200 us with 25.)",
    );
    section.table(&["stages", "open and close", "the first time"], &rows);
    Ok(())
}

/// Measures the identity as a view, a file without a network beside it, and the same on a mount
/// without networks.
fn identity(bench: &Bench, section: &mut Section, data: &Path) -> Result<()> {
    let bytes: u64 = if bench.quick { 64 << 20 } else { 512 << 20 };
    zeroes(&data.join("input"), bytes)?;
    let mut cold = [const { Times::new() }; 3];
    let mut warm = [const { Times::new() }; 3];
    for round in 0..=2 * bench.pairs {
        for nr in 0..3 {
            let mounted = match nr {
                0 => Mounted::without(bench, data)?,
                _ => Mounted::with_networks(bench, data)?,
            };
            let path = mounted.file(if nr == 2 { "input@same" } else { "input" });
            let (first, second) = (read(&path, bytes)?, read(&path, bytes)?);
            if round > 0 {
                cold[nr].push(first);
                warm[nr].push(second);
            }
        }
    }
    let names = [
        "a mount without networks",
        "no network, on a mount with some",
        "the network \"identity\"",
    ];
    let mut rows = Vec::new();
    for (nr, name) in names.into_iter().enumerate() {
        let rate = |times: &Times| format!("{:.2}", bytes as f64 / 1e9 / times.median());
        let more = |all: &[Times; 3]| {
            let ratio = all[nr].ratio_to(&all[0]).unwrap_or(1.0);
            format!("{:+.1}%", 100.0 * (ratio - 1.0))
        };
        rows.push(vec![
            name.to_owned(),
            rate(&cold[nr]),
            more(&cold),
            rate(&warm[nr]),
            more(&warm),
        ]);
    }
    section.line(&format!(
        "A file of {} MiB read through a mount, in GB/s, and how much longer than without networks.",
        bytes >> 20
    ));
    section.table(&["", "cold", "longer", "warm", "longer"], &rows);
    Ok(())
}
