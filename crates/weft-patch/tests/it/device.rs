//! A device in memory that keeps apart what is durable and what was written since the last flush.

use std::sync::Mutex;
use weft_block::{BlockDevice, Geometry, Result};

/// Called at each flush with the durable content and the writes it is about to make durable.
type Inspect = Box<dyn Fn(&[u8], &[(u64, Vec<u8>)]) + Send + Sync>;

/// What is durable, and the writes since the last flush.
type Content = (Vec<u8>, Vec<(u64, Vec<u8>)>);

pub struct Inspected {
    inner: Mutex<Content>,
    inspect: Inspect,
}

impl Inspected {
    pub fn new(len: usize, inspect: Inspect) -> Self {
        Self { inner: Mutex::new((vec![0; len], Vec::new())), inspect }
    }

    pub fn durable(&self) -> Vec<u8> {
        self.inner.lock().unwrap().0.clone()
    }
}

impl BlockDevice for Inspected {
    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.inner.lock().unwrap().0.len() as u64,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            read_only: false,
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let inner = self.inner.lock().unwrap();
        let at = offset as usize;
        buf.copy_from_slice(&inner.0[at..at + buf.len()]);
        for (from, bytes) in &inner.1 {
            let from = *from as usize;
            for (i, byte) in bytes.iter().enumerate() {
                if let Some(slot) = (from + i).checked_sub(at).and_then(|j| buf.get_mut(j)) {
                    *slot = *byte;
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.inner.lock().unwrap().1.push((offset, buf.to_vec()));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut inner = self.inner.lock().unwrap();
        let (durable, pending) = &mut *inner;
        (self.inspect)(durable, pending);
        for (offset, bytes) in pending.drain(..) {
            let at = offset as usize;
            durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}
