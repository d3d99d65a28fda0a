//! `transform run`: a network on a stream.

use super::networks;
use crate::cli::transform::Run;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::time::Duration;
use weft::transform::exec::{Chain, Pool, RunOptions, run as stream};
use weft::transform::store::{Limits, MemoryBase, open};
use weft::transform::text::Side;
use weft::transform::{Io, Network};
use weft::vfs::host_file::NewFile;

/// The direction of the data: a store network runs as on a write, a view as on a read.
fn direction(network: &Network, inverse: bool) -> Io {
    match (network.text().side, inverse) {
        (Side::Store, false) | (Side::View, true) => Io::Write,
        (Side::Store, true) | (Side::View, false) => Io::Read,
    }
}

/// `run`.
pub fn run(out: Output, args: &Run) -> Outcome {
    let network = networks(&args.keys).registry()?.parse(&args.network)?;
    let io = direction(&network, args.inverse);
    let mut input: Box<dyn Read> = match &args.input {
        None => Box::new(std::io::stdin().lock()),
        Some(path) => Box::new(File::open(path).map_err(|e| weft::Error::host("open", path, e))?),
    };
    let made = |path: &PathBuf| {
        NewFile::create(path, 0o666).map_err(|e| weft::Error::host("make", path, e))
    };
    let mut file = args.output.as_ref().map(made).transpose()?;
    let mut output: Box<dyn Write> = match &mut file {
        None => Box::new(BufWriter::with_capacity(256 << 10, std::io::stdout().lock())),
        Some(file) => Box::new(file),
    };
    let written = if Chain::new(&network, io).is_ok() {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pool = match args.threads.unwrap_or(cpus) {
            0 | 1 => None,
            threads => Some(Pool::new(threads)?),
        };
        let deadline = args.deadline.map(Duration::from_millis);
        let options = RunOptions { pool: pool.as_ref(), deadline };
        stream(&network, io, &mut *input, &mut *output, options)?
    } else {
        in_memory(&network, io, &mut *input, &mut *output)?
    };
    drop(output);
    if let (Some(file), Some(path)) = (file, &args.output) {
        file.replace().map_err(|e| weft::Error::host("write", path, e))?;
        out.note(&format!("{written} bytes written"));
    }
    Ok(DONE)
}

/// Runs a network whose stored form has a header that is written last, with all of it in memory.
fn in_memory(
    network: &Network,
    io: Io,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> Result<u64, Failure> {
    let mut content = Vec::new();
    input.read_to_end(&mut content)?;
    if io == Io::Read {
        return copy(network, content, output);
    }
    let base = MemoryBase::default();
    let mut store = open(Box::new(base.clone()), network, &Limits::default())?;
    store.write_at(0, &content)?;
    store.commit()?;
    drop(store);
    let stored = base.content();
    output.write_all(&stored)?;
    output.flush()?;
    Ok(stored.len() as u64)
}

fn copy(network: &Network, stored: Vec<u8>, output: &mut dyn Write) -> Result<u64, Failure> {
    let mut store = open(Box::new(MemoryBase::new(stored)), network, &Limits::default())?;
    let mut block = vec![0; 256 << 10];
    let mut at = 0;
    loop {
        let got = store.read_at(at, &mut block)?;
        if got == 0 {
            output.flush()?;
            return Ok(at);
        }
        output.write_all(&block[..got])?;
        at += got as u64;
    }
}
