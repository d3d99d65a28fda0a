//! Copying from a reader to a writer through a network.
//!
//! The head of the network that processes blocks independently (in-place stages, then perhaps one
//! frame encoder) runs on the pool, a bounded number of blocks ahead; the rest runs in the caller's
//! thread, in order. The caller's thread also reads and writes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::pool::Pending;
use super::{BLOCK_BYTES, Chain, Fused, Pool};
use crate::{Direction, Frame, Io, Layer, Network, Result, Shape, Transform};

/// The options for running a network over a stream.
#[derive(Debug, Default, Clone, Copy)]
pub struct RunOptions<'a> {
    /// The pool that processes independent blocks; `None` to use the caller's thread alone.
    pub pool: Option<&'a Pool>,
    /// The time limit of the stages for one block on the pool.
    pub deadline: Option<Duration>,
}

/// Copies `input` to `output` through a network. Returns the number of bytes written.
///
/// # Errors
/// The error of a stage, of the reader or of the writer. The output written before it is correct.
pub fn run(
    network: &Network,
    io: Io,
    input: &mut dyn Read,
    output: &mut dyn Write,
    options: RunOptions<'_>,
) -> Result<u64> {
    let mut layers = network.layers().to_vec();
    if io == Io::Write {
        layers.reverse();
    }
    let head = options.pool.map(|_| Head::split(&mut layers, io)).unwrap_or_default();
    if io == Io::Write {
        layers.reverse();
    }
    let mut tail = Chain::of_layers(network, &layers, io)?;
    let mut written = 0;
    let mut emit = |block: &mut [u8]| {
        output.write_all(block)?;
        written += block.len() as u64;
        Ok(())
    };
    match options.pool.filter(|_| !head.is_empty()) {
        None => {
            let mut block = vec![0; BLOCK_BYTES];
            loop {
                let len = fill(input, &mut block)?;
                if len == 0 {
                    break;
                }
                tail.push(&mut block[..len], &mut emit)?;
            }
        }
        Some(pool) => {
            let mut ahead = Ahead { pool, head: Arc::new(head), deadline: options.deadline };
            ahead.run(input, &mut |block| tail.push(block, &mut emit))?;
        }
    }
    tail.finish(&mut emit)?;
    output.flush()?;
    Ok(written)
}

/// Reads until `block` is full or the input ends.
fn fill(input: &mut dyn Read, block: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < block.len() {
        match input.read(&mut block[len..]) {
            Ok(0) => break,
            Ok(got) => len += got,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(len)
}

/// The stages that process each block independently.
#[derive(Debug, Default)]
struct Head {
    fused: Fused,
    /// A stage of the shape `Framed`, run forward.
    encoder: Option<Arc<dyn Transform>>,
}

impl Head {
    /// Splits the head off `layers`, which are in the order in which data passes them.
    fn split(layers: &mut Vec<Layer>, io: Io) -> Self {
        let mut head = Self::default();
        while let Some(layer) = layers.first() {
            match (layer.stage.shape(), layer.direction(io)) {
                (Shape::Bytes(_), direction) => head.fused.push(layer.stage.clone(), direction),
                (Shape::Framed(_), Direction::Forward) => {
                    head.encoder = Some(layer.stage.clone());
                    layers.remove(0);
                    break;
                }
                _ => break,
            }
            layers.remove(0);
        }
        head
    }

    fn is_empty(&self) -> bool {
        self.fused.is_empty() && self.encoder.is_none()
    }

    fn block_bytes(&self) -> usize {
        match self.encoder.as_ref().map(|stage| stage.shape()) {
            Some(Shape::Framed(codec)) => codec.frame_bytes(),
            _ => BLOCK_BYTES,
        }
    }
}

/// Processes blocks on the pool ahead of the caller, and returns them in order.
struct Ahead<'a> {
    pool: &'a Pool,
    head: Arc<Head>,
    deadline: Option<Duration>,
}

/// A processed block: its content, and its length in bytes before processing.
type Done = (Vec<u8>, u64);

impl Ahead<'_> {
    fn run(
        &mut self,
        input: &mut dyn Read,
        next: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let window = 2 * self.pool.threads();
        let block_bytes = self.head.block_bytes();
        let mut flying: VecDeque<Pending<Done>> = VecDeque::new();
        let mut frames = Vec::new();
        // Blocks are reused: a new one costs a page fault for each of its pages, which is more
        // expensive than a cheap stage.
        let mut spare = Vec::new();
        let mut offset = 0;
        let mut at_end = false;
        loop {
            while !at_end && flying.len() < window {
                let mut block: Vec<u8> = spare.pop().unwrap_or_default();
                block.resize(block_bytes, 0);
                let len = fill(input, &mut block)?;
                block.truncate(len);
                at_end = len < block_bytes;
                if len > 0 {
                    flying.push_back(self.start(offset, block));
                    offset += len as u64;
                }
            }
            let Some(oldest) = flying.pop_front() else { break };
            let (mut block, plain_bytes) = oldest.wait(self.deadline)?;
            frames.push(Frame { stored_bytes: block.len() as u64, plain_bytes });
            next(&mut block)?;
            spare.push(block);
        }
        if let Some(Shape::Framed(codec)) = self.head.encoder.as_ref().map(|stage| stage.shape()) {
            let mut end = Vec::new();
            codec.finish(&frames, &mut end);
            next(&mut end)?;
        }
        Ok(())
    }

    fn start(&self, offset: u64, mut block: Vec<u8>) -> Pending<Done> {
        let head = self.head.clone();
        self.pool.submit(move |progress| {
            let plain_bytes = block.len() as u64;
            head.fused.apply_named(offset, &mut block, &mut |stage| progress.enter(stage))?;
            if let Some(stage) = &head.encoder
                && let Shape::Framed(codec) = stage.shape()
            {
                progress.enter(stage.name());
                let mut out = Vec::with_capacity(block.len());
                codec.encode(&block, &mut out).map_err(|e| e.moved(offset))?;
                block = out;
            }
            Ok((block, plain_bytes))
        })
    }
}
