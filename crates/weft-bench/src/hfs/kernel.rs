//! The kernel's ext2 on a loop device, in place of the paper's Unix FFS: the same operations
//! through system calls.

use super::{BYTES, Operation, Took};
use crate::Bench;
use crate::peer::{Peer, Setting, Volume};
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

/// ext2, mounted anew for each operation.
#[derive(Debug)]
pub struct Kernel {
    setting: Setting,
    volume: Option<Volume>,
}

impl Kernel {
    /// Makes the peer; `Err` has the reason why it cannot be measured here.
    pub fn new(bench: &Bench) -> Result<Self, String> {
        let setting = Setting::new(bench, None);
        match Peer::KernelExt2.missing(&setting) {
            Some(why) => Err(why),
            None => Ok(Self { setting, volume: None }),
        }
    }

    /// Runs an operation, and returns the times.
    pub fn run(&mut self, operation: Operation) -> Result<Took> {
        if matches!(operation, Operation::Create(_) | Operation::Write(_)) {
            self.volume = None;
        }
        let volume = match &mut self.volume {
            Some(volume) => volume,
            none => none.insert(Peer::KernelExt2.make(&self.setting)?),
        };
        let mounted = volume.mount()?;
        let dir = mounted.dir().to_owned();
        let data = dir.join("data");
        let mut buffer = vec![7; BYTES];
        let start = Instant::now();
        match operation {
            Operation::Create(n) => {
                for i in 0..n {
                    File::create_new(dir.join(format!("file{i:06}")))?;
                }
            }
            Operation::Delete(n) => {
                for i in 0..n {
                    std::fs::remove_file(dir.join(format!("file{i:06}")))?;
                }
            }
            Operation::Write(request) | Operation::Overwrite(request) => {
                let new = matches!(operation, Operation::Write(_));
                let mut file = File::options().write(true).create_new(new).open(data)?;
                for piece in buffer.chunks(request) {
                    file.write_all(piece)?;
                }
            }
            Operation::Read(request) => {
                buffer.fill(0);
                let mut file = File::open(data)?;
                for piece in buffer.chunks_mut(request) {
                    file.read_exact(piece)?;
                }
            }
        }
        let calls = start.elapsed().as_secs_f64();
        mounted.finish()?;
        let durable = start.elapsed().as_secs_f64();
        ensure!(buffer.iter().all(|&byte| byte == 7), "what was read is what was written");
        Ok(Took { calls, durable })
    }
}
