//! The pipeline of processes: each is this program, which reads a block, runs weft's own stage over
//! it, and writes it to the next.

use super::{check, consume, increments};
use crate::machine::family_cpu_seconds;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

pub const BLOCKS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const PIPE_BYTES: usize = 1 << 20;

/// Runs one process of the pipeline: standard input to standard output, incremented.
pub fn stage(block_bytes: usize) -> Result<()> {
    let increment = increments(1)?;
    // Direct system calls: the buffers of the standard library would cost the pipeline copies.
    let (input, output) = (std::io::stdin(), std::io::stdout());
    // The kernel's limit for ordinary users may be lower.
    let _ = rustix::pipe::fcntl_setpipe_size(&output, PIPE_BYTES);
    let mut block = vec![0; block_bytes];
    loop {
        let got = rustix::io::read(&input, &mut block[..])?;
        if got == 0 {
            return Ok(());
        }
        increment.apply(0, &mut block[..got])?;
        let mut done = 0;
        while done < got {
            done += rustix::io::write(&output, &block[done..got])?;
        }
    }
}

/// Runs a file through a pipeline of as many processes as stages; returns the seconds, and the
/// seconds of CPU time.
pub fn through(path: &Path, bytes: u64, stages: usize, block_bytes: usize) -> Result<(f64, f64)> {
    let cpu = family_cpu_seconds();
    let began = Instant::now();
    let mut children: Vec<Child> = Vec::new();
    let mut from = Stdio::from(File::open(path)?);
    let mut end = None;
    for nr in 1..=stages {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["pipe-stage", &format!("--block-bytes={block_bytes}")])
            .stdin(from)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("a pipe")?;
        children.push(child);
        if nr == stages {
            end = Some(out);
            break;
        }
        from = out.into();
    }
    let mut end = end.context("a stage at least")?;
    let (len, first) = consume(&mut end, block_bytes)?;
    for mut child in children {
        ensure!(child.wait()?.success(), "a process of the pipeline failed");
    }
    check(len, first, bytes, stages)?;
    Ok((began.elapsed().as_secs_f64(), family_cpu_seconds() - cpu))
}
