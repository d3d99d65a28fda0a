//! Execution of any network over a stream, in one thread.
//!
//! Neighbouring stages that work in place form one segment, which transforms the block in place. A
//! sequential stage consumes the block and emits others of about [`STEP_BYTES`](crate::STEP_BYTES),
//! each of which passes through all later segments before the next is produced. Memory is thus
//! bounded by one block for each segment, however far the data expands.

use std::sync::Arc;

use super::Fused;
use super::frames::FrameEncoder;
use crate::{
    Direction, Error, Io, Layer, Network, Reason, Refusal, Result, Shape, Stream, Transform,
};

/// A pass of a stream through a network.
pub struct Chain {
    segments: Vec<Segment>,
}

enum Segment {
    InPlace { fused: Fused, offset: u64 },
    Stream { stream: Box<dyn Stream>, out: Vec<u8> },
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("segments", &self.segments.len()).finish()
    }
}

/// The callback that receives the output blocks of a chain.
pub type Emit<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

impl Chain {
    /// Starts a pass through the whole network.
    ///
    /// # Errors
    /// [`Error::Refused`] if a stage cannot run on a stream; [`Error::Parameter`] if it has no
    /// inverse.
    pub fn new(network: &Network, io: Io) -> Result<Self> {
        Self::of_layers(network, network.layers(), io)
    }

    pub(crate) fn of_layers(network: &Network, layers: &[Layer], io: Io) -> Result<Self> {
        let mut chain = Self { segments: Vec::new() };
        let mut add = |layer: &Layer| chain.add(network, &layer.stage, layer.direction(io));
        match io {
            Io::Read => layers.iter().try_for_each(&mut add)?,
            Io::Write => layers.iter().rev().try_for_each(&mut add)?,
        }
        Ok(chain)
    }

    fn add(
        &mut self,
        network: &Network,
        stage: &Arc<dyn Transform>,
        direction: Direction,
    ) -> Result<()> {
        if direction == Direction::Inverse && !stage.invertible() {
            return Err(crate::model::no_inverse(stage.name()));
        }
        let stream = match (stage.shape(), direction) {
            (Shape::Bytes(_), _) => {
                if let Some(Segment::InPlace { fused, .. }) = self.segments.last_mut() {
                    fused.push(stage.clone(), direction);
                } else {
                    let mut fused = Fused::default();
                    fused.push(stage.clone(), direction);
                    self.segments.push(Segment::InPlace { fused, offset: 0 });
                }
                return Ok(());
            }
            (Shape::Sealed(_), _) => {
                return Err(Error::Refused(Box::new(Refusal {
                    stage: stage.name(),
                    reason: Reason::NeedsFile,
                    nearest: network.text().without(stage.name()),
                })));
            }
            (Shape::Merged(_), _) => {
                return Err(Error::Refused(Box::new(Refusal {
                    stage: stage.name(),
                    reason: Reason::ReadsAgain,
                    nearest: network.text().identity(),
                })));
            }
            (Shape::Framed(_), Direction::Forward) => Box::new(FrameEncoder::new(stage.clone())),
            (Shape::Framed(codec), Direction::Inverse) => codec.decoder()?,
            (Shape::Stream(codec), _) => codec.start(direction)?,
        };
        self.segments.push(Segment::Stream { stream, out: Vec::new() });
        Ok(())
    }

    /// Passes a block, which is modified, through the chain; the output goes to `emit`.
    ///
    /// # Errors
    /// That of a stage or of `emit`. The pass is over then.
    pub fn push(&mut self, block: &mut [u8], emit: &mut Emit<'_>) -> Result<()> {
        feed(&mut self.segments, block, emit)
    }

    /// Ends the input: passes on the data that the stages still hold.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(&mut self, emit: &mut Emit<'_>) -> Result<()> {
        for at in 0..self.segments.len() {
            let (this, rest) = self.segments[at..].split_at_mut(1);
            let Some(Segment::Stream { stream, out }) = this.first_mut() else { continue };
            loop {
                out.clear();
                let done = stream.finish(out)?;
                if !out.is_empty() {
                    feed(rest, out, emit)?;
                }
                if done {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn feed(segments: &mut [Segment], block: &mut [u8], emit: &mut Emit<'_>) -> Result<()> {
    let Some((first, rest)) = segments.split_first_mut() else { return emit(block) };
    match first {
        Segment::InPlace { fused, offset } => {
            fused.apply(*offset, block)?;
            *offset += block.len() as u64;
            feed(rest, block, emit)
        }
        Segment::Stream { stream, out } => {
            let mut at = 0;
            while at < block.len() {
                out.clear();
                at += stream.push(&block[at..], out)?;
                if !out.is_empty() {
                    feed(rest, out, emit)?;
                }
            }
            Ok(())
        }
    }
}
