//! The same stage as native code, as WebAssembly, and as long-running and one-shot programs.

use super::increments;
use crate::Bench;
use crate::report::Section;
use crate::stats::Times;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::time::Instant;
use weft::transform::exec::{BLOCK_BYTES, RunOptions, run};
use weft::transform::stages::Program;
use weft::transform::{Context as Surroundings, Direction, Io, Network, Registry, Shape};

/// Runs a program of the protocol of long-running filters (docs/transform.md): increments.
pub fn filter() -> Result<()> {
    let increment = increments(1)?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout());
    let mut head = [0; 5];
    let mut data = Vec::new();
    while input.read_exact(&mut head).is_ok() {
        let [letter, len @ ..] = head;
        data.resize(u32::from_le_bytes(len) as usize, 0);
        input.read_exact(&mut data)?;
        let answer: &mut [u8] = match letter {
            b'h' => &mut b"weft filter 1".clone(),
            _ => data.get_mut(8..).context("an offset")?,
        };
        if letter != b'h' {
            increment.apply(0, answer)?;
        }
        let mut frames = vec![b'd'];
        frames.extend(u32::try_from(answer.len())?.to_le_bytes());
        frames.extend_from_slice(answer);
        frames.extend(b"n\0\0\0\0");
        output.write_all(&frames)?;
        output.flush()?;
    }
    Ok(())
}

/// The implementations of the increment, by name.
fn ways() -> Result<Vec<(&'static str, Network)>> {
    let myself = std::env::current_exe()?;
    let mut surroundings = Surroundings::default();
    for (name, verb) in [("lives", "filter-stage"), ("once", "pipe-stage --block-bytes=65536")] {
        let program = Program::new(format!("exec {} {verb}", myself.display()));
        surroundings.programs.insert(name.to_owned(), program);
    }
    add_module(&mut surroundings)?;
    let registry = Registry::new(surroundings);
    let mut ways = vec![("native", registry.parse("view: increment")?)];
    if cfg!(feature = "wasm") {
        ways.push(("WebAssembly (SIMD)", registry.parse("view: wasm module=increment")?));
    }
    ways.push(("a program that lives on", registry.parse("view: exec program=lives mode=blocks")?));
    ways.push(("a process for each file", registry.parse("view: exec program=once")?));
    Ok(ways)
}

#[cfg(feature = "wasm")]
fn add_module(surroundings: &mut Surroundings) -> Result<()> {
    let text = include_str!("../../../weft-transform/guests/increment.wat");
    let guest = weft::transform::wasm::Guest::load(&wat::parse_str(text)?, None)?;
    surroundings.modules.insert("increment".to_owned(), std::sync::Arc::new(guest));
    Ok(())
}

#[cfg(not(feature = "wasm"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
fn add_module(_: &mut Surroundings) -> Result<()> {
    Ok(())
}

/// Returns the mean seconds of `calls` calls on a block that is in the cache of the processor.
fn call(network: &Network, block: &mut [u8], calls: u32) -> Result<f64> {
    let stage = &network.layers().first().context("a stage")?.stage;
    let began = Instant::now();
    for _ in 0..calls {
        match stage.shape() {
            Shape::Bytes(map) => map.apply(Direction::Forward, 0, block)?,
            _ => drop(whole(network, block.len())?),
        }
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(calls))
}

/// Returns the seconds for a stream of `len` bytes from memory, with the output dropped.
fn whole(network: &Network, len: usize) -> Result<f64> {
    let began = Instant::now();
    let mut input = std::io::repeat(1).take(len as u64);
    let written = run(network, Io::Read, &mut input, &mut std::io::sink(), RunOptions::default())?;
    ensure!(written == len as u64, "{written} bytes came of {len}");
    Ok(began.elapsed().as_secs_f64())
}

/// Measures native code, WebAssembly and programs beside each other.
pub fn kinds(bench: &Bench, section: &mut Section) -> Result<()> {
    let stream_bytes = if bench.quick { 32 << 20 } else { 256 << 20 };
    let ways = ways()?;
    let mut small = vec![Times::default(); ways.len()];
    let mut block = vec![Times::default(); ways.len()];
    let mut stream = vec![Times::default(); ways.len()];
    for round in 0..=2 * bench.pairs {
        for (nr, (_, network)) in ways.iter().enumerate() {
            // Numbers of calls that take some milliseconds.
            let (few, many) = [(200, 20_000), (200, 20_000), (100, 500), (4, 4)][match nr {
                _ if nr + 1 == ways.len() => 3,
                _ if nr + 2 == ways.len() => 2,
                _ => nr,
            }];
            let times = [
                call(network, &mut [0; 4096], many)?,
                call(network, &mut vec![0; BLOCK_BYTES], few)?,
                whole(network, stream_bytes)?,
            ];
            if round > 0 {
                small[nr].push(times[0]);
                block[nr].push(times[1]);
                stream[nr].push(times[2]);
            }
        }
    }
    let rate = |bytes: usize, times: &Times| format!("{:.0}", bytes as f64 / 1e6 / times.median());
    let mut rows = Vec::new();
    for (nr, (name, _)) in ways.iter().enumerate() {
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.2}", small[nr].median() * 1e6),
            rate(BLOCK_BYTES, &block[nr]),
            block[0].ratio_to(&block[nr]).map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            rate(stream_bytes, &stream[nr]),
        ]);
    }
    section.line(&format!(
        "An increment as native code, as a WebAssembly module (copied in and out of its memory), as \
         a program that lives on and is asked block by block, and as one that is started for each \
         file: microseconds for a call of 4 KiB; MB/s in calls of {} KiB on one block, which stays \
         in the processor's cache, and that beside native; MB/s of a stream of {} MiB.",
        BLOCK_BYTES >> 10,
        stream_bytes >> 20
    ));
    section.table(&["", "4 KiB, us", "128 KiB, MB/s", "of native", "stream, MB/s"], &rows);
    Ok(())
}
