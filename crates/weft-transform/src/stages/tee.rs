//! `tee ( ... )` passes a copy of every block to a branch, and `log to=NAME` ends a branch.
//!
//! Blocks arrive in the order in which they are read or written, not in the order of the file: so a
//! branch consists of stages that work in place at any offset, and a log records offsets.

use std::fmt;
use std::sync::Arc;

use crate::model::kept_as;
use crate::parameters::{LogSink, StageInfo};
use crate::{ByteMap, Direction, Error, Layer, Result, Shape, Transform};

pub(super) const STAGES: &[StageInfo] = &[StageInfo {
    name: "log",
    summary: "copies the data that passes to a log that --log names",
    parameters: &[("to", "the name of the log")],
    make: |p, context| {
        let to = p.required("to")?;
        match context.logs.get(&to) {
            Some(sink) => Ok(Arc::new(Log { sink: sink.clone() })),
            None => Err(p.error(format!("no log named \"{to}\""))),
        }
    },
}];

struct Log {
    sink: Arc<dyn LogSink>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl Transform for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        // A cached output would bypass the log.
        None
    }

    fn acts_outside(&self) -> bool {
        true
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }
}

impl ByteMap for Log {
    fn apply(&self, _: Direction, offset: u64, block: &mut [u8]) -> Result<()> {
        self.sink.record(offset, block)
    }
}

/// A stage that passes copies to a branch.
#[derive(Debug)]
pub struct Tee {
    branch: Vec<Layer>,
}

impl Tee {
    /// Creates a tee with this branch.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a stage of the branch does not work in place.
    pub fn new(branch: Vec<Layer>) -> Result<Self> {
        match branch.iter().find(|layer| !matches!(layer.stage.shape(), Shape::Bytes(_))) {
            None => Ok(Self { branch }),
            Some(layer) => Err(Error::Parameter {
                stage: "tee".to_owned(),
                message: format!(
                    "\"{}\" cannot run in a branch: it works not in place",
                    layer.stage.name()
                ),
            }),
        }
    }
}

impl Transform for Tee {
    fn name(&self) -> &'static str {
        "tee"
    }

    fn kept_as(&self) -> Option<Vec<u8>> {
        kept_as(&self.branch)
    }

    fn acts_outside(&self) -> bool {
        self.branch.iter().any(|layer| layer.stage.acts_outside())
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Bytes(self)
    }
}

impl ByteMap for Tee {
    fn apply(&self, _: Direction, offset: u64, block: &mut [u8]) -> Result<()> {
        let mut copy = block.to_vec();
        for layer in &self.branch {
            if let Shape::Bytes(map) = layer.stage.shape() {
                map.apply(layer.on_read, offset, &mut copy)?;
            }
        }
        Ok(())
    }
}
