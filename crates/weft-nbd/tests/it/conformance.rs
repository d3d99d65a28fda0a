//! A device on a server goes through the conformance suite of the block plug.

use crate::bench::Bench;
use std::sync::Arc;
use weft_block::conformance::{Limits, run};
use weft_block::{BlockDevice, Filter, MemoryDevice, ReadOnly};
use weft_nbd::server::Options;
use weft_nbd::{Export, NbdDevice, Server};

/// A client with its server.
struct Served {
    device: NbdDevice,
    _server: Server,
    _bench: Bench,
}

impl Served {
    fn new(device: impl BlockDevice + 'static, block_bytes_min: u32) -> Self {
        let bench = Bench::new();
        let mut options = bench.options();
        options.read_only = device.geometry().read_only;
        let mut export = Export::new("", Arc::new(device));
        export.block_bytes_min = block_bytes_min;
        let server = bench.serve_with(vec![export], Options::default());
        let device = NbdDevice::connect(options).expect("it connects");
        Self { device, _server: server, _bench: bench }
    }
}

impl Filter for Served {
    type Below = NbdDevice;

    fn below(&self) -> &NbdDevice {
        &self.device
    }
}

#[test]
fn a_served_device_conforms() {
    let limits = Limits { holes: true, random_runs: 3, ..Limits::default() };
    for block_bytes_min in [1, 4096] {
        run(|| Served::new(MemoryDevice::new(1 << 20), block_bytes_min), &limits);
    }
}

#[test]
fn a_served_device_that_is_read_only_conforms() {
    let filled = || {
        let memory = MemoryDevice::new(1 << 20);
        memory.write_at(&[7; 300_000], 5000).expect("memory can be written");
        ReadOnly::new(memory)
    };
    run(|| Served::new(filled(), 1), &Limits::default());
}
