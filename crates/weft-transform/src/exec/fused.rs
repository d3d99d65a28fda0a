//! In-place stages, run one after the other on each block.

use crate::exec::BLOCK_BYTES;
use crate::{Direction, Io, Layer, Result, Shape, Transform};
use std::sync::Arc;

/// The minimum number of bytes for which starting another thread pays off.
const PARALLEL_MIN_BYTES: usize = 2 << 20;

/// A sequence of stages that work in place.
#[derive(Debug, Clone, Default)]
pub struct Fused {
    /// The stages, in execution order.
    stages: Vec<(Arc<dyn Transform>, Direction)>,
}

impl Fused {
    /// Fuses the stages of these layers (given from the stored file up) in the order of `io`;
    /// `None` if one of them does not work in place.
    #[must_use]
    pub fn new(layers: &[Layer], io: Io) -> Option<Self> {
        let in_place = |layer: &&Layer| matches!(layer.stage.shape(), Shape::Bytes(_));
        if !layers.iter().all(|layer| in_place(&layer)) {
            return None;
        }
        let mut fused = Self::default();
        let mut add = |layer: &Layer| fused.push(layer.stage.clone(), layer.direction(io));
        match io {
            Io::Read => layers.iter().for_each(&mut add),
            Io::Write => layers.iter().rev().for_each(&mut add),
        }
        Some(fused)
    }

    /// Returns true if there are no stages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Appends a stage, which runs last.
    pub(crate) fn push(&mut self, stage: Arc<dyn Transform>, direction: Direction) {
        if let Some((last, last_direction)) = self.stages.last_mut()
            && let Some(joined) = last.joined(*last_direction, &*stage, direction)
        {
            (*last, *last_direction) = (joined, Direction::Forward);
            return;
        }
        self.stages.push((stage, direction));
    }

    /// Runs all stages over `data`, whose first byte is byte `offset` of the file.
    ///
    /// # Errors
    /// That of a stage; blocks before the one that failed have been transformed.
    pub fn apply(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.apply_named(offset, data, &mut |_| {})
    }

    /// As [`apply`](Self::apply), calling `enter` with the name of each stage before it runs.
    pub(crate) fn apply_named(
        &self,
        mut offset: u64,
        data: &mut [u8],
        enter: &mut dyn FnMut(&'static str),
    ) -> Result<()> {
        for block in data.chunks_mut(BLOCK_BYTES) {
            for (stage, direction) in &self.stages {
                if let Shape::Bytes(map) = stage.shape() {
                    enter(stage.name());
                    map.apply(*direction, offset, block)?;
                }
            }
            offset += block.len() as u64;
        }
        Ok(())
    }

    /// As [`apply`](Self::apply), on up to `threads` threads if `data` is large.
    ///
    /// # Errors
    /// That of the first piece that failed.
    pub fn apply_parallel(&self, offset: u64, data: &mut [u8], threads: usize) -> Result<()> {
        let pieces = threads.min(data.len() / PARALLEL_MIN_BYTES).max(1);
        if pieces == 1 {
            return self.apply(offset, data);
        }
        let piece_bytes = data.len().div_ceil(pieces).next_multiple_of(BLOCK_BYTES);
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            let mut at = offset;
            let mut pieces = data.chunks_mut(piece_bytes);
            let first = pieces.next();
            at += piece_bytes as u64;
            for piece in pieces {
                let start = at;
                at += piece.len() as u64;
                others.push(scope.spawn(move || self.apply(start, piece)));
            }
            let mut result = first.map_or(Ok(()), |piece| self.apply(offset, piece));
            for other in others {
                let joined = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(joined);
            }
            result
        })
    }
}
